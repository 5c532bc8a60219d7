"""Files that come with messages, fetched a few times over and named where they could not be had; and those that go."""

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
    """The message with one more of its files, or with the word that there was one."""
    try:
        data = await download()
    except EverholdError as error:
        log.warning("file.missing", name=name, size=size, error=error)
        note = f"[{name} was not taken in: {error.message}]"
        text = f"{heard.text}\n{note}" if heard.text else note
        missing = build_missing_attachment(name=name, media=media, size=size)
        return structs.replace(heard, text=text, attachments=(*heard.attachments, missing))
    kept = build_attachment(data, name=name, media=media)
    return structs.replace(heard, attachments=(*heard.attachments, kept), files=(*heard.files, data))


async def fetch_file(
    account_context: AccountContext, url: str, *, size: int, headers: Mapping[str, str] | None = None
) -> FetchedContent:
    """What is at a URL that came with a message, if it is no larger than what is taken in."""
    if size > account_context.max_file_bytes:
        raise Refused(f"it is larger than {account_context.max_file_bytes:,} bytes")
    for attempt in range(1, MAX_DOWNLOAD_ATTEMPTS):
        try:
            return await account_context.fetch(url, headers=headers)
        except Transient as error:
            await account_context.sleep(error.retry_after or float(attempt))
    return await account_context.fetch(url, headers=headers)


async def load_outgoing_file(context: PluginContext, file: Attachment, *, most: int) -> bytes:
    """What is in a file that is to be sent. Raises Refused for one that was erased since, TooLong for a large one."""
    data = await context.blob(file.blob) if context.blob is not None else None
    if data is None:
        raise Refused(f"{file.name or 'the file'} is not kept any more")
    if len(data) > most:
        raise TooLong(f"{file.name or 'the file'} has {len(data):,} bytes, and {most:,} are taken")
    return data
