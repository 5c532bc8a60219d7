"""Downloads files of messages, with retries, and loads files that go out with replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from everhold.core.entries import Attachment
from everhold.errors import Refused, TooLong, Transient
from everhold.ports.plugin import AccountContext, FetchedContent, PluginContext

MAX_DOWNLOAD_ATTEMPTS: Final = 3


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
