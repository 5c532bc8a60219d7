"""An update that an adapter cannot take apart: kept as it came, so that reading goes on behind it."""

from __future__ import annotations

from typing import Final

import msgspec

from everhold.core.entries import Place
from everhold.ports.platform import UNREADABLE, Incoming

CHAT: Final = "unreadable"
MOST_CHARACTERS: Final = 100_000
BROKEN: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What taking apart something that somebody made up raises: a number that is none, a list where a text belongs."""


def readable(heard: Incoming) -> Incoming:
    """A message as an adapter read it, or what is raised for one that only looks like one."""
    origin = heard.origin
    ids = (origin.chat, origin.thread, origin.message, heard.sender, heard.revision)
    for text in (*ids, heard.text, heard.name):
        if not isinstance(text, str):
            raise TypeError(f"{str(text)[:40]!r} is no text")
    for said in (heard.addressed, heard.bot, heard.notice):
        if not isinstance(said, bool):
            raise TypeError(f"{str(said)[:40]!r} is neither yes nor no")
    if not (origin.chat and origin.message and heard.sender):
        raise ValueError("it says neither where nor who")
    "".join(ids).encode()  # half a character can be in what people say, not in an id
    return heard


def unreadable(raw: object, *, platform: str, account: str, id: str, reason: str) -> Incoming:
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
    )
