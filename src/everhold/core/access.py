"""Decide whether a sender may speak, as which person, and whether a message asks for an answer. The decisions use
stable ids, never display names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from everhold.core.address import Address, parse_address
from everhold.core.entries import ChatCommand, Entry, Heard, Said
from everhold.core.people import PERSON_MEMBER
from everhold.core.roles import ChatPlace, PersonRole, find_place

RESERVED_NAMES: Final = frozenset({"everhold", "memory"})
"""The gateway and the memory use these names when they write to a model."""
NOTICE_PREFIX: Final = "⚙ "
"""The prefix of a gateway's notices where other bots may read them. A gateway does not answer the notices of another
gateway.
"""

# The possessive `*+` prevents backtracking, so matching a long run of dots takes linear time.
_ACKNOWLEDGEMENT: Final = re.compile(
    r"[\s.…!?,:;*_~-]*+"
    r"(?:ok(?:ay)?|k|ack|acknowledged|roger|noted|thanks?|thank you|👍|✅|🙏)?"
    r"[\s.…!?,:;*_~-]*",
    re.IGNORECASE,
)


_SPEAKER_COLON: Final = re.compile(r":(?=\s|$)")


class AdmissionDecision(Struct, frozen=True, kw_only=True):
    """The identity of a sender, and the conversation that the message belongs to."""

    agent: str
    identity: str
    group: str = "per-person"
    threads: str = "shared"
    chat: str = ""
    """The first id of the chat, if the chat has had several ids; else empty."""
    separate_conversation: bool = False
    """The direct chat belonged to another person before, so this sender gets a separate conversation in it."""
    refusal: str = ""
    """Why the message is not accepted; empty if it is."""
    ignored: bool = False
    """A group message that the configuration says not to store."""
    asks: bool = True
    always_answered: bool = False
    """The agent answers this message even if it is not addressed to the agent."""
    hops: int = 0
    """How many agents have answered each other before this message, as far as known."""
    people_version: int = 0
    """The version of the people directory that it was decided with."""
    state_version: int | None = None
    """The version of the shared state records that it was decided with; None if it used none."""
    is_new_identity: bool = False
    """Nothing was accepted from this identity before, so its first message makes its person."""
    command: ChatCommand | None = None
    """The command, if its meaning depends on the sender and the chat."""
    role: PersonRole = PersonRole.MEMBER
    """The sender's role in this chat."""


class IdentifiedSender(Struct, frozen=True, kw_only=True):
    """The sender of a message. `label` is the person's name if the identity has its rights; else it is empty."""

    identity: str
    label: str = ""
    is_proven: bool = False
    """A proof links the identity to its person."""


def derive_session_owner(first: Entry, address: str) -> str:
    """Return the person to whom a conversation belongs, judged by its first entry and the address where it began. This
    is the author, if the author is in the audience; empty for a shared group.

    An erased entry still has its author, and the address decides who the audience was. So an erasure gives a
    conversation to nobody else.
    """
    if isinstance(first.body, Heard):
        audience = first.body.stamp.audience
    else:
        audience = compute_audience(parse_address(address), first.author.removeprefix(PERSON_MEMBER))
    return first.author if first.author in audience else ""


def is_acknowledgement(text: str) -> bool:
    """Return whether a text is only an acknowledgement, such as `.`, `ok` or a thumb. Agents do not answer
    acknowledgements of bots.
    """
    return _ACKNOWLEDGEMENT.fullmatch(text.strip()) is not None


def is_notice(text: str) -> bool:
    """Return whether a bot's text is a notice of a gateway, such as an error. Agents do not answer notices."""
    return text.startswith(NOTICE_PREFIX)


def format_sender_name(name: str, *, sender: str) -> str:
    """Return the name under which a model sees a sender.

    The name is put before the sender's text, so it must not imitate the gateway, or a name with a colon and the words
    of another sender.
    """
    if not name:
        return name
    plain = "".join(char for char in unicodedata.normalize("NFKC", name).casefold() if char.isalnum())
    if plain in RESERVED_NAMES:
        return f"{name.strip(' :')} ({sender})"
    return _SPEAKER_COLON.sub(" ", name) if ":" in name else name


def count_session_hops(entries: Iterable[Entry], *, since: float = 0.0) -> int:
    """Count how often agents have answered each other in this session since a human spoke, or since `since`.

    This is for platforms that carry no hop count: a message of a bot counts as an answer to what this agent said last.
    """
    hops = 0
    for entry in entries:
        match entry.body:
            case Heard(bot=False, asks=True):
                hops = 0
            case Said(hops=said) if entry.at >= since:
                hops = max(hops, said)
            case _:
                pass
    return hops


def count_turn_hops(entries: Iterable[Entry]) -> int:
    """Count how often agents have answered each other before a turn that consumes these entries.

    Only entries that ask count. If a human is among those who ask, the count is 0.
    """
    asking = [entry.body for entry in entries if isinstance(entry.body, Heard) and entry.body.asks]
    if any(not body.bot for body in asking):
        return 0
    return max((body.hops for body in asking), default=0)


def compute_audience(address: Address, identity: str) -> tuple[str, ...]:
    """Return who is present: in a direct chat its person, elsewhere everybody in the chat.

    A person with a separate session in a group speaks to the group. The session's entries are for this chat and this
    person, so the person may see them again in private, and the sessions of other people may not.
    """
    if address.kind == "dm":
        return (f"person:{identity}",)
    if address.person:
        return (f"chat:{address}", f"person:{identity}")
    return (f"chat:{address}",)


def find_address_place(address: Address) -> ChatPlace:
    """Return the kind of chat that an address is in."""
    return find_place(is_direct=address.kind == "dm", has_own_session=bool(address.person))
