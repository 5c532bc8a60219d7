"""May this sender speak here, as whom, and does it ask for an answer? Decides on stable ids, never on names."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from everhold.core.address import Address

# what stands before the word is never given back (`*+`): a megabyte of dots costs a megabyte, not its square
_BARE: Final = re.compile(
    r"[\s.…!?,:;*_~-]*+"
    r"(?:ok(?:ay)?|k|ack|acknowledged|roger|noted|thanks?|thank you|👍|✅|🙏)?"
    r"[\s.…!?,:;*_~-]*",
    re.IGNORECASE,
)


class Admission(Struct, frozen=True, kw_only=True):
    """Who somebody is here, and which conversation the message belongs to."""

    agent: str
    person: str
    group: str = "per-person"
    threads: str = "shared"
    refusal: str = ""
    """Why the message is not heard; empty if it is."""
    asks: bool = True


def bare(text: str) -> bool:
    """Whether a text only acknowledges: `.`, `ok`, a thumb. Between bots nobody answers those."""
    return _BARE.fullmatch(text.strip()) is not None


def audience(address: Address, person: str) -> tuple[str, ...]:
    """Who is present: in a direct chat its person; elsewhere everybody in that chat, known or not."""
    if address.kind == "dm" or address.person:
        return (f"person:{person}",)
    return (f"chat:{address}",)
