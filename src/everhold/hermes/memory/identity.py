"""Decides whose home an item belongs to, and builds the keywords about person and place for `initialize`."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from everhold.core.address import Address, parse_address
from everhold.core.entries import Stamp
from everhold.errors import InvalidRequest

TERMINAL_PLATFORM: Final = "terminal"
TERMINAL_PREFIX: Final = "local:"
"""The prefix of identities at a terminal."""
PERSON_PREFIX: Final = "person:"
ROOM_PREFIX: Final = "room-"
PERSON_DIGITS: Final = 10
ROOM_DIGITS: Final = 16
"""Hex digits of the hash in a key. The numbers differ, so that no person has the key of a room."""
_PLAIN_KEY: Final = re.compile(r"[a-z0-9_]{1,40}")
_UNSAFE_CHARS: Final = re.compile(r"[^A-Za-z0-9_]+")


def find_private_person(stamp: Stamp) -> str:
    """Return the person to whom alone an item belongs; empty if it belongs to a room."""
    match stamp.audience:
        case ():
            return stamp.person
        case (one,) if one.startswith(PERSON_PREFIX):
            return one.removeprefix(PERSON_PREFIX)
        case _:
            return ""


def choose_home_key(stamp: Stamp) -> str:
    """Return the key of the home in which a plug-in keeps an item. This is the only place where a key is made.

    What a person said in private is in the person's home. What was said in a group is in the home of the group,
    because it belongs to no single person.
    """
    if person := find_private_person(stamp):
        return build_person_key(person)
    return f"{ROOM_PREFIX}{_compute_digest('+'.join(sorted(stamp.audience)))[:ROOM_DIGITS]}"


def build_person_key(person: str) -> str:
    """Return a directory name for a person. Two persons never have the same one, also where case is ignored."""
    if _PLAIN_KEY.fullmatch(person):
        return person
    readable = _UNSAFE_CHARS.sub("-", person).strip("-").lower()[:40]
    return f"{readable}-{_compute_digest(person)[:PERSON_DIGITS]}".lstrip("-")


def is_at_terminal(stamp: Stamp) -> bool:
    address = _parse_stamp_address(stamp)
    if address is not None:
        return address.platform == TERMINAL_PLATFORM
    return stamp.person.startswith(TERMINAL_PREFIX)


def build_identity(stamp: Stamp, *, agent: str, name: str = "", names_itself: bool = False) -> dict[str, str]:
    """Return the keywords that are known; unknown ones are left out, as hermes-agent does.

    A plug-in knows one user per conversation. In a group chat that user is the group, because what is said there
    belongs to no single person. `name` stands for an address that is not known. `names_itself`: at a terminal the
    plug-in chooses the session's name itself, as under hermes-agent, for example by the directory.
    """
    user = find_private_person(stamp) or "+".join(sorted(stamp.audience))
    found = {
        "agent_identity": agent,
        "agent_workspace": "hermes",
        "user_id": user,
        "user_name": user,
        "session_title": stamp.title,
    }
    terminal = is_at_terminal(stamp)
    # Without this key, a plug-in may put the conversations of several people into one session.
    if not (terminal and names_itself):
        found["gateway_session_key"] = stamp.address or name
    address = _parse_stamp_address(stamp)
    if address is not None and not terminal:
        found |= {
            "platform": address.platform,
            "chat_id": address.chat,
            "chat_type": address.kind,
            "thread_id": address.thread,
        }
    return {name: value for name, value in found.items() if value}


def _parse_stamp_address(stamp: Stamp) -> Address | None:
    try:
        return parse_address(stamp.address) if stamp.address else None
    except InvalidRequest:
        return None


def _compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
