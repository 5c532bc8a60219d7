"""An update that an adapter cannot take apart: kept as it came, so that reading goes on behind it."""

from __future__ import annotations

from typing import Final

import msgspec

from everhold.core.entries import ChatLocation
from everhold.ports.platform import UNPARSED_EVENT, IncomingMessage

UNPARSED_CHAT: Final = "unreadable"
MAX_RAW_CHARS: Final = 100_000
PARSE_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What taking apart something that somebody made up raises: a number that is none, a list where a text belongs."""


def check_incoming_message(heard: IncomingMessage) -> IncomingMessage:
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


def build_unparsed_message(raw: object, *, platform: str, account: str, id: str, reason: str) -> IncomingMessage:
    """What to hand over instead. All that an account could not read stands in one conversation that nobody answers."""
    try:
        text = raw if isinstance(raw, str) else msgspec.json.encode(raw, enc_hook=repr).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = repr(raw)
    return IncomingMessage(
        origin=ChatLocation(platform=platform, account=account, chat=UNPARSED_CHAT, message=id),
        text=f"{reason}\n{text[:MAX_RAW_CHARS]}",
        sender=UNPARSED_CHAT,
        kind="channel",
        event=UNPARSED_EVENT,
        addressed=False,
    )
