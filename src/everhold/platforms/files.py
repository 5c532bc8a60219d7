"""Files that come with messages, fetched a few times over and named where they could not be had; and those that go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import structs

from everhold.core.attachments import absent, attachment
from everhold.core.entries import Attachment
from everhold.errors import EverholdError, Refused, TooLong, Transient
from everhold.ports.log import Log
from everhold.ports.platform import Incoming
from everhold.ports.plugin import Context, Fetched, Station

TRIES: Final = 3


async def taken_in(
    heard: Incoming, download: Callable[[], Awaitable[bytes]], *, name: str, media: str, size: int, log: Log
) -> Incoming:
    """The message with one more of its files, or with the word that there was one."""
    try:
        data = await download()
    except EverholdError as error:
        log.warning("file.missing", name=name, size=size, error=error)
        note = f"[{name} was not taken in: {error.message}]"
        text = f"{heard.text}\n{note}" if heard.text else note
        missing = absent(name=name, media=media, size=size)
        return structs.replace(heard, text=text, attachments=(*heard.attachments, missing))
    kept = attachment(data, name=name, media=media)
    return structs.replace(heard, attachments=(*heard.attachments, kept), files=(*heard.files, data))


async def fetched(station: Station, url: str, *, size: int, headers: Mapping[str, str] | None = None) -> Fetched:
    """What is at a URL that came with a message, if it is no larger than what is taken in."""
    if size > station.most_bytes:
        raise Refused(f"it is larger than {station.most_bytes:,} bytes")
    for attempt in range(1, TRIES):
        try:
            return await station.fetch(url, headers=headers)
        except Transient as error:
            await station.sleep(error.retry_after or float(attempt))
    return await station.fetch(url, headers=headers)


async def contents(context: Context, file: Attachment, *, most: int) -> bytes:
    """What is in a file that is to be sent. Raises Refused for one that was erased since, TooLong for a large one."""
    data = await context.blob(file.blob) if context.blob is not None else None
    if data is None:
        raise Refused(f"{file.name or 'the file'} is not kept any more")
    if len(data) > most:
        raise TooLong(f"{file.name or 'the file'} has {len(data):,} bytes, and {most:,} are taken")
    return data
