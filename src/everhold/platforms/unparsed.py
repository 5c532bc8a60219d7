"""Updates that an adapter cannot parse. Those of an allowed sender are stored unparsed. The adapter continues with the
next update."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.core.entries import ChatLocation, strip_surrogates
from everhold.ports.platform import UNPARSED_EVENT, IncomingMessage

UNPARSED_CHAT: Final = "unreadable"
MAX_RAW_CHARS: Final = 100_000
MAX_TEXT_CHARS: Final = 200_000
"""More than the longest message of any platform."""
MAX_ID_CHARS: Final = 1_000
MAX_PIECES: Final = 100
PARSE_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What parsing an update of an unexpected form raises: a text where a number belongs, a list where a text belongs."""


class UnparsedSender(Struct, frozen=True, kw_only=True):
    """Who sent an update that cannot be parsed, as far as that can be read. It decides about access, and is not
    otherwise trusted."""

    sender: str
    chat: str = ""
    is_direct: bool = False


def find_id(fields: object, *keys: str) -> str:
    """Return the id at a path of keys, or an empty text if there is none."""
    for key in keys:
        fields = fields.get(key) if isinstance(fields, dict) else None
    if isinstance(fields, bool) or not isinstance(fields, str | int) or len(str(fields)) > MAX_ID_CHARS:
        return ""
    return strip_surrogates(str(fields))[0]


def check_incoming_message(heard: IncomingMessage) -> IncomingMessage:
    """Return the message if its fields have the right types and it has the required ids. Raises one of PARSE_ERRORS
    otherwise."""
    origin = heard.origin
    ids = (origin.chat, origin.thread, origin.message, heard.sender, heard.revision)
    for text in (*ids, heard.text, heard.name):
        if not isinstance(text, str):
            raise TypeError(f"{_describe_value(text)} is not a text")
    for said in (heard.addressed, heard.bot, heard.notice):
        if not isinstance(said, bool):
            raise TypeError(f"{_describe_value(said)} is not a boolean")
    if len(heard.pieces) > MAX_PIECES:
        raise ValueError(f"{len(heard.pieces):,} quoted texts are more than {MAX_PIECES}")
    for piece in heard.pieces:
        for text in (piece.by, piece.name, piece.text):
            if not isinstance(text, str):
                raise TypeError(f"{_describe_value(text)} is not a text")
            _require_length(text, MAX_TEXT_CHARS)
    for text in (*ids, heard.name):
        _require_length(text, MAX_ID_CHARS)
    _require_length(heard.text, MAX_TEXT_CHARS)
    if not (origin.chat and origin.message and heard.sender):
        raise ValueError("the chat, the message id or the sender is missing")
    "".join(ids).encode()  # a lone surrogate may be in a text, but not in an id
    return heard


def _require_length(text: str, most: int) -> None:
    if len(text) > most:
        raise ValueError(f"a text of {len(text):,} characters is longer than {most:,}")


def _describe_value(value: object) -> str:
    return f"a value of the type {type(value).__name__}"


def build_unparsed_message(
    raw: object, *, platform: str, account: str, id: str, reason: str, sent_by: UnparsedSender | None
) -> IncomingMessage:
    """Return the message to accept instead. All unparsed updates of an account are in one session, which gets no
    replies. An update whose sender cannot be read carries no text, because it is not stored."""
    if len(id) > MAX_ID_CHARS:
        id = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
    if sent_by is None:
        return IncomingMessage(
            origin=ChatLocation(platform=platform, account=account, chat=UNPARSED_CHAT, message=id),
            text="",
            sender="",
            kind="channel",
            event=UNPARSED_EVENT,
            addressed=False,
        )
    try:
        text = raw if isinstance(raw, str) else msgspec.json.encode(raw, enc_hook=repr).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        try:
            text = repr(raw)
        except (ValueError, RecursionError):
            text = "(it is nested too deeply to be stored)"
    return IncomingMessage(
        origin=ChatLocation(platform=platform, account=account, chat=UNPARSED_CHAT, message=id),
        text=f"{reason[:MAX_ID_CHARS]}\n{text[:MAX_RAW_CHARS]}",
        sender=sent_by.sender,
        kind="channel",
        event=UNPARSED_EVENT,
        addressed=False,
        unparsed_chat=sent_by.chat,
        unparsed_direct=sent_by.is_direct,
    )


def require_id(fields: dict[str, Any], key: str) -> str:
    """Return a text of an update that must not be empty. Raises one of PARSE_ERRORS if it is missing or empty."""
    value = fields[key]
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key} is not an id")
    return value
