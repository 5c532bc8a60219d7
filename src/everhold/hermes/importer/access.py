"""Converts the access rules of hermes-agent to an account's `access`. In hermes-agent one list covers direct chats and
groups. Here every group is named, so the groups that the agent was in are listed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from everhold.core.access import ALLOW_EVERYBODY
from everhold.hermes.reader.database import HermesSession
from everhold.hermes.reader.files import HermesProfile

GLOBAL_VARIABLES: Final = ("GATEWAY_ALLOWED_USERS", "GATEWAY_ALLOW_ALL_USERS")
_PLATFORM_VARIABLES: Final = ("ALLOWED_USERS", "ALLOW_ALL_USERS", "GROUP_ALLOWED_USERS", "GROUP_ALLOWED_CHATS")


def list_access_variables(platform: str) -> set[str]:
    """The access rules in `.env`."""
    return {f"{platform.upper()}_{name}" for name in _PLATFORM_VARIABLES} | set(GLOBAL_VARIABLES)


def collect_groups(sessions: Collection[HermesSession]) -> dict[str, set[str]]:
    """Return platform -> the groups that an agent was in."""
    found: dict[str, set[str]] = {}
    for session in sessions:
        if session.session_key and session.chat_id and session.chat_type not in ("", "dm"):
            found.setdefault(session.source, set()).add(session.chat_id)
    return found


def convert_access(
    profile: HermesProfile, platform: str, *, paired: Collection[str], there: Collection[str]
) -> dict[str, Any]:
    """Return who may write to an account directly and in each group that it was in (`there`)."""

    def listed(name: str) -> list[str]:
        value = profile.env.get(name)
        return [id.strip() for id in value.reveal().split(",") if id.strip()] if value else []

    def ids(*names: str) -> list[str]:
        return [id if id == ALLOW_EVERYBODY else f"{platform}:{id}" for name in names for id in listed(name)]

    def is_set(name: str) -> bool:
        return any(word.lower() in ("true", "1", "yes") for word in listed(name))

    prefix = platform.upper()
    direct = [*ids(f"{prefix}_ALLOWED_USERS", "GATEWAY_ALLOWED_USERS"), *(f"{platform}:{id}" for id in paired)]
    if is_set(f"{prefix}_ALLOW_ALL_USERS") or is_set("GATEWAY_ALLOW_ALL_USERS"):
        direct = [ALLOW_EVERYBODY]
    open_groups = set(listed(f"{prefix}_GROUP_ALLOWED_CHATS"))
    in_groups = list(dict.fromkeys([*direct, *ids(f"{prefix}_GROUP_ALLOWED_USERS")]))
    found: dict[str, Any] = {}
    if direct:
        found["direct"] = list(dict.fromkeys(direct))
    allowed = {
        chat: [ALLOW_EVERYBODY] if {chat, ALLOW_EVERYBODY} & open_groups else in_groups
        for chat in sorted({*there, *open_groups} - {ALLOW_EVERYBODY})
    }
    if named := {chat: people for chat, people in allowed.items() if people}:
        found["groups"] = named
    return found
