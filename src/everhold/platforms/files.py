"""Downloads files that come with messages, with retries, and loads files that go out with replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import structs

from everhold.core.attachments import build_attachment, build_missing_attachment
from everhold.core.entries import Attachment
from everhold.errors import EverholdError, Refused, TooLong, Transient
from everhold.ports.log import EventLogger
from everhold.ports.platform import IncomingMessage
from everhold.ports.plugin import AccountContext, FetchedContent, PluginContext

MAX_DOWNLOAD_ATTEMPTS: Final = 3


async def attach_incoming_file(
    heard: IncomingMessage,
    download: Callable[[], Awaitable[bytes]],
    *,
    name: str,
    media: str,
    size: int,
    log: EventLogger,
) -> IncomingMessage:
    """Return the message with one more file, or with a note that the file is missing."""
    try:
        data = await download()
    except EverholdError as error:
        log.warning("file.missing", name=name, size=size, error=error)
        missing = build_missing_attachment(name=name, media=media, size=size)
        noted = add_missing_note(heard, f"[{name} was not stored: {error.message}]")
        return structs.replace(noted, attachments=(*heard.attachments, missing))
    kept = build_attachment(data, name=name, media=media)
    return structs.replace(heard, attachments=(*heard.attachments, kept), files=(*heard.files, data))


def add_missing_note(heard: IncomingMessage, note: str) -> IncomingMessage:
    """Return the message with a note about a missing file: beside the sender's words, or in the forwarded text that the
    file belongs to, because a note must not count as the sender's words.
    """
    for place, piece in enumerate(heard.pieces):
        if piece.source == "forwarded":
            noted = structs.replace(piece, text=_append_line(piece.text, note))
            return structs.replace(heard, pieces=(*heard.pieces[:place], noted, *heard.pieces[place + 1 :]))
    return structs.replace(heard, text=_append_line(heard.text, note))


def _append_line(text: str, line: str) -> str:
    return f"{text}\n{line}" if text else line


async def fetch_file(
    account_context: AccountContext, url: str, *, size: int, headers: Mapping[str, str] | None = None
) -> FetchedContent:
    """Return the content at a URL that came with a message. Raises Refused if it is larger than the limit."""
    if size > account_context.max_file_bytes:
        raise Refused(f"it is larger than {account_context.max_file_bytes:,} bytes")
    for attempt in range(1, MAX_DOWNLOAD_ATTEMPTS):
        try:
            return await account_context.fetch(url, headers=headers)
        except Transient as error:
            await account_context.sleep(error.retry_after or float(attempt))
    return await account_context.fetch(url, headers=headers)


async def load_outgoing_file(context: PluginContext, file: Attachment, *, most: int) -> bytes:
    """Return the content of a file to send. Raises Refused if it was erased, TooLong if it is too large."""
    data = await context.blob(file.blob) if context.blob is not None else None
    if data is None:
        raise Refused(f"{file.name or 'the file'} is no longer stored")
    if len(data) > most:
        raise TooLong(f"{file.name or 'the file'} has {len(data):,} bytes; the limit is {most:,}")
    return data
