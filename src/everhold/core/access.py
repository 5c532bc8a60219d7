"""May this sender speak here, as whom, and does it ask for an answer? Decides on stable ids, never on names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from everhold.core.address import Address
from everhold.core.entries import ChatCommand, Entry, Heard, Said

ALLOW_EVERYBODY: Final = "*"
"""In an allow list: whoever is there."""
RESERVED_NAMES: Final = frozenset({"everhold", "memory"})
"""Under these names the gateway and the memory speak to a model."""
NOTICE_PREFIX: Final = "⚙ "
"""What a gateway's own words begin with where other bots may read them: no gateway answers another's notices."""

# what stands before the word is never given back (`*+`): a megabyte of dots costs a megabyte, not its square
_ACKNOWLEDGEMENT: Final = re.compile(
    r"[\s.…!?,:;*_~-]*+"
    r"(?:ok(?:ay)?|k|ack|acknowledged|roger|noted|thanks?|thank you|👍|✅|🙏)?"
    r"[\s.…!?,:;*_~-]*",
    re.IGNORECASE,
)


_SPEAKER_COLON: Final = re.compile(r":(?=\s|$)")


class AdmissionDecision(Struct, frozen=True, kw_only=True):
    """Who somebody is here, and which conversation the message belongs to."""

    agent: str
    person: str
    group: str = "per-person"
    threads: str = "shared"
    chat: str = ""
    """The id that the chat was first known by, where it has another by now."""
    separate_conversation: bool = False
    """A direct chat that was another's before: they have a conversation of their own in it."""
    refusal: str = ""
    """Why the message is not heard; empty if it is."""
    ignored: bool = False
    """Chatter of others that nobody wants kept."""
    asks: bool = True
    always_answered: bool = False
    """Answered even if it is not meant for the agent."""
    hops: int = 0
    """How many agents have answered each other before this, as far as we know."""
    command: ChatCommand | None = None
    """What it orders, if that is decided by who says it and where."""


class IdentifiedSender(Struct, frozen=True, kw_only=True):
    """Somebody at the door. `known`: who it is was configured or proven; else `person` is only their id."""

    identity: str
    person: str
    verified: bool = False


def can_speak(speaker: IdentifiedSender, allowed: Collection[str], *, owners: Collection[str]) -> bool:
    """Whether an allow list lets somebody in. A name counts only for whoever is known to have it."""
    if ALLOW_EVERYBODY in allowed or speaker.identity in allowed:
        return True
    return speaker.verified and (speaker.person in allowed or speaker.person in owners)


def is_owner(speaker: IdentifiedSender, owners: Collection[str]) -> bool:
    return speaker.verified and speaker.person in owners


def derive_session_owner(first: Entry | None) -> str:
    """Whose a conversation is that begins so: of its author, if nobody else was there. A group's is nobody's (empty).

    What was erased tells nothing.
    """
    if first is None or not isinstance(first.body, Heard):
        return ""
    return first.author if first.author in first.body.stamp.audience else ""


def can_bind_address(first: Entry | None, *, author: str, began: str, here: str) -> bool:
    """Whether `author` may lead the address `here` to a conversation that began so at the address `began`, or to a
    branch of it.

    It is their own, or it began in this very chat: what was heard there leaves it with nobody. Who may ask for it in a
    group is decided at the door.
    """
    return derive_session_owner(first) == author or began == here


def is_acknowledgement(text: str) -> bool:
    """Whether a text only acknowledges: `.`, `ok`, a thumb. Between bots nobody answers those."""
    return _ACKNOWLEDGEMENT.fullmatch(text.strip()) is not None


def is_notice(text: str) -> bool:
    """Whether a bot's text is a gateway's notice, such as an error. Nobody answers those either."""
    return text.startswith(NOTICE_PREFIX)


def format_sender_name(name: str, *, sender: str) -> str:
    """What somebody is called to a model. It stands before what they say, so it must not look like anybody's words:
    not like the gateway's, nor like a name and what that one says.
    """
    if not name:
        return name
    plain = "".join(char for char in unicodedata.normalize("NFKC", name).casefold() if char.isalnum())
    if plain in RESERVED_NAMES:
        return f"{name.strip(' :')} ({sender})"
    return _SPEAKER_COLON.sub(" ", name) if ":" in name else name


def count_session_hops(entries: Iterable[Entry], *, since: float = 0.0) -> int:
    """How often agents have answered each other here since a human spoke, or since `since`.

    For platforms that carry no count: what this agent said last came back to it, however many stood in between.
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
    """How often agents have answered each other before a turn that consumes these.

    Only what asks is answered: what was merely overheard says nothing. A human among those who ask begins anew.
    """
    asking = [entry.body for entry in entries if isinstance(entry.body, Heard) and entry.body.asks]
    if any(not body.bot for body in asking):
        return 0
    return max((body.hops for body in asking), default=0)


def compute_audience(address: Address, person: str) -> tuple[str, ...]:
    """Who is present: in a direct chat its person; elsewhere everybody in that chat, known or not.

    Somebody with a session of their own in a group is heard by the group: what they said in private is not for it, what
    they say there is for nobody else's session, and they themselves may hear of it again in private.
    """
    if address.kind == "dm":
        return (f"person:{person}",)
    if address.person:
        return (f"chat:{address}", f"person:{person}")
    return (f"chat:{address}",)
