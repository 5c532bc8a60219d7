"""Build and parse addresses. An address says in one string where a conversation happens; it is unique.

    agent:<agent>:<platform>[/<account>]:<kind>:<chat>[:thread:<thread>][:person:<person>]

Every part is escaped, so `:` and `/` are always separators. Thread and person have labels, so person 42 in a group and
thread 42 in that group are two conversations.
"""

from __future__ import annotations

import functools
import re
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from everhold.errors import InvalidRequest

CHAT_KINDS: Final = ("dm", "group", "channel", "thread")
_PLAIN_PART: Final = re.compile(r"[A-Za-z0-9._@+=-]*", re.ASCII)
_SAFE_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+=-")


class Address(Struct, frozen=True, kw_only=True):
    """The parts of an address. `account` is empty if it has the same name as the agent."""

    agent: str
    platform: str
    kind: Literal["dm", "group", "channel", "thread"]
    chat: str
    account: str = ""
    thread: str = ""
    person: str = ""

    def __str__(self) -> str:
        platform = _escape_part(self.platform)
        if self.account and self.account != self.agent:
            platform = f"{platform}/{_escape_part(self.account)}"
        parts = ["agent", _escape_part(self.agent), platform, self.kind, _escape_part(self.chat)]
        if self.thread:
            parts += ["thread", _escape_part(self.thread)]
        if self.person:
            parts += ["person", _escape_part(self.person)]
        return ":".join(parts)


@functools.lru_cache(maxsize=4_096)
def parse_address(text: str) -> Address:
    """Return the address that a string describes; the inverse of `str(address)`."""
    parts = text.split(":")
    if len(parts) not in (5, 7, 9) or parts[0] != "agent" or parts[3] not in CHAT_KINDS:
        raise InvalidRequest(f"{text!r} is not an address", remedy="addresses look like agent:main:terminal:dm:me")
    platform, _, account = parts[2].partition("/")
    labels = dict(zip(parts[5::2], parts[6::2], strict=True))
    if not set(labels) <= {"thread", "person"} or len(labels) != (len(parts) - 5) // 2:
        raise InvalidRequest(f"{text!r} is not an address", remedy="after the chat only thread and person may follow")
    try:
        return Address(
            agent=_unescape_part(parts[1]),
            platform=_unescape_part(platform),
            account=_unescape_part(account),
            kind=parts[3],  # type: ignore[arg-type]  # checked against CHAT_KINDS above
            chat=_unescape_part(parts[4]),
            thread=_unescape_part(labels.get("thread", "")),
            person=_unescape_part(labels.get("person", "")),
        )
    except UnicodeError as error:
        raise InvalidRequest(f"{text!r} is not an address", remedy="its escaped bytes are not valid UTF-8") from error


def derive_address(
    *,
    agent: str,
    platform: str,
    account: str,
    kind: str,
    chat: str,
    thread: str = "",
    sender: str = "",
    group: str = "per-person",
    threads: str = "shared",
    apart: bool = False,
) -> Address:
    """Return the address of a message's conversation under the configured session rules.

    A direct chat belongs to one person. `apart` gives another person a separate conversation in it. In groups and
    channels `group` decides, inside a thread `threads` decides.
    """
    if kind not in CHAT_KINDS:
        raise InvalidRequest(f"{kind!r} is not a kind of chat", remedy=f"use one of {', '.join(CHAT_KINDS)}")
    rule = threads if thread else group
    return Address(
        agent=agent,
        platform=platform,
        account="" if account == agent else account,
        kind=kind,  # type: ignore[arg-type]  # checked above
        chat=chat,
        thread=thread,
        person=sender if (apart if kind == "dm" else rule == "per-person") else "",
    )


@functools.lru_cache(maxsize=4_096)
def _escape_part(part: str) -> str:
    if _PLAIN_PART.fullmatch(part):
        return part
    raw = part.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in _SAFE_BYTES else f"%{byte:02X}" for byte in raw)


def _unescape_part(part: str) -> str:
    return unquote_to_bytes(part).decode("utf-8", "surrogatepass")
