"""Converts the access rules of hermes-agent to an account's `access`. In hermes-agent one list covers direct chats and
groups. Here every group is named, so the groups that the agent was in are listed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from everhold.core.roles import ALLOW_EVERYBODY
from everhold.hermes.importer.conversations import ImportedConversation
from everhold.hermes.reader.files import HermesProfile

GLOBAL_VARIABLES: Final = ("GATEWAY_ALLOWED_USERS", "GATEWAY_ALLOW_ALL_USERS")
_ALL_PLATFORMS: Final = "GATEWAY"
_ALLOW_LIST: Final = re.compile(r"([A-Z]+)_(?:GROUP_)?ALLOWED_USERS")
_BOT_TOKEN: Final = re.compile(r"([A-Z]+)_(?:BOT|ACCESS)_TOKEN")
_PLATFORM_VARIABLES: Final = ("ALLOWED_USERS", "ALLOW_ALL_USERS", "GROUP_ALLOWED_USERS", "GROUP_ALLOWED_CHATS")


def list_access_variables(platform: str) -> set[str]:
    """The access rules in `.env`."""
    return {f"{platform.upper()}_{name}" for name in _PLATFORM_VARIABLES} | set(GLOBAL_VARIABLES)


def collect_groups(conversations: Collection[ImportedConversation]) -> dict[str, set[str]]:
    """Return platform -> the groups that an agent was in, as the platform here names them."""
    found: dict[str, set[str]] = {}
    for conversation in conversations:
        if conversation.address.kind != "dm":
            found.setdefault(conversation.address.platform, set()).add(conversation.address.chat)
    return found


def list_allowed(profile: HermesProfile, known: Collection[str]) -> set[str]:
    """Return the identities that the allow lists and pairings of a profile name. `known` are identities of its chats:
    a list for all platforms means one of them if one has the id.
    """
    found = {f"{platform}:{id}" for platform, ids in profile.read_pairings().items() for id in ids}
    for name in profile.env:
        match = _ALLOW_LIST.fullmatch(name)
        if match is not None and match[1] != _ALL_PLATFORMS:
            found |= {f"{match[1].lower()}:{id}" for id in _read_list(profile, name)}
    platforms = {match[1].lower() for name in profile.env if (match := _BOT_TOKEN.fullmatch(name))}
    bare = {identity.partition(":")[2] for identity in (*known, *found)}
    for id in _read_list(profile, f"{_ALL_PLATFORMS}_ALLOWED_USERS"):
        if id not in bare:
            found |= {f"{platform}:{id}" for platform in platforms}
    return {identity for identity in found if not identity.endswith(f":{ALLOW_EVERYBODY}")}


def _read_list(profile: HermesProfile, name: str) -> list[str]:
    value = profile.env.get(name)
    return [id.strip() for id in value.reveal().split(",") if id.strip()] if value else []


def convert_access(
    profile: HermesProfile, platform: str, *, paired: Collection[str], there: Collection[str]
) -> dict[str, Any]:
    """Return who may write to an account directly and in each group that it was in (`there`)."""

    def ids(*names: str) -> list[str]:
        return [
            id if id == ALLOW_EVERYBODY else f"{platform}:{id}" for name in names for id in _read_list(profile, name)
        ]

    def is_set(name: str) -> bool:
        return any(word.lower() in ("true", "1", "yes") for word in _read_list(profile, name))

    prefix = platform.upper()
    direct = [*ids(f"{prefix}_ALLOWED_USERS", "GATEWAY_ALLOWED_USERS"), *(f"{platform}:{id}" for id in paired)]
    if is_set(f"{prefix}_ALLOW_ALL_USERS") or is_set("GATEWAY_ALLOW_ALL_USERS"):
        direct = [ALLOW_EVERYBODY]
    open_groups = set(_read_list(profile, f"{prefix}_GROUP_ALLOWED_CHATS"))
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
