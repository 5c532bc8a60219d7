"""An update that an adapter cannot take apart: kept as it came, so that reading goes on behind it."""

from __future__ import annotations

from typing import Final

import msgspec

from everhold.core.entries import Place
from everhold.ports.platform import UNREADABLE, Incoming
from everhold.ports.store import Position

CHAT: Final = "unreadable"
MOST_CHARACTERS: Final = 100_000
BROKEN: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What taking apart something that somebody made up raises: a number that is none, a list where a text belongs."""


def unreadable(
    raw: object, *, platform: str, account: str, id: str, reason: str, position: Position | None = None
) -> Incoming:
    """What to hand over instead. All that an account could not read stands in one conversation that nobody answers."""
    try:
        text = raw if isinstance(raw, str) else msgspec.json.encode(raw, enc_hook=repr).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = repr(raw)
    return Incoming(
        origin=Place(platform=platform, account=account, chat=CHAT, message=id),
        text=f"{reason}\n{text[:MOST_CHARACTERS]}",
        sender=CHAT,
        kind="channel",
        event=UNREADABLE,
        addressed=False,
        position=position,
    )
