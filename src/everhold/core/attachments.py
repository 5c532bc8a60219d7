"""Files that are attached to messages. The content hash identifies a file. Its name is a label, never a path."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from typing import Final

from everhold.core.entries import Attachment, Entry, Heard, Returned

MAX_NAME_CHARS: Final = 120
MAX_SHOWN_CHARS: Final = 20_000
"""Characters of a text file that a model reads with the message. The rest it can read with a tool."""
PDF: Final = "application/pdf"
_TEXT_MEDIA: Final = frozenset(
    f"application/{name}" for name in ("json", "xml", "yaml", "x-yaml", "toml", "javascript", "x-sh", "sql", "csv")
)


def build_attachment(data: bytes, *, name: str = "", media: str = "") -> Attachment:
    """Return the attachment that an entry stores for a file."""
    return Attachment(
        blob=hashlib.sha256(data).hexdigest(), name=sanitize_file_name(name), media=media[:100], size=len(data)
    )


def is_text_file(file: Attachment) -> bool:
    """Return whether a file is text by its media type, so that every model can read it."""
    media = file.media.partition(";")[0].strip().lower()
    return media.startswith("text/") or media.endswith(("+json", "+xml")) or media in _TEXT_MEDIA


def build_missing_attachment(*, name: str, media: str = "", size: int = 0) -> Attachment:
    """Return the attachment for a file that was not stored because it was too large or could not be fetched."""
    return Attachment(blob="", name=sanitize_file_name(name), media=media[:100], size=size)


def list_incoming_attachments(entry: Entry) -> tuple[Attachment, ...]:
    """Return the files that came into a conversation with an entry."""
    match entry.body:
        case Heard(attachments=files) | Returned(files=files):
            return files
        case _:
            return ()


def drop_oversized_files(text: str, files: Iterable[Attachment], *, most: int) -> tuple[str, tuple[Attachment, ...]]:
    """Return a reply with the files of at most `most` bytes. The text names the files that were dropped."""
    taken: list[Attachment] = []
    for file in files:
        if file.size <= most:
            taken.append(file)
        else:
            text = f"{text}\n{format_unsent_file(file, most=most)}"
    return text, tuple(taken)


def format_unsent_file(file: Attachment, *, most: int | None = None) -> str:
    """Return the text that a chat shows instead of a file that was not sent."""
    name = file.name or "a file"
    match most:
        case None:
            return f"[{name} was not sent: its {file.size:,} bytes are more than this chat takes]"
        case 0:
            return f"[{name} was not sent: files cannot be sent here]"
        case _:
            return f"[{name} was not sent: it has {file.size:,} bytes, and this chat takes {most:,}]"


def sanitize_file_name(name: str) -> str:
    """Return a file's name for display: its last path component, without control characters."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(char for char in last if unicodedata.category(char)[0] != "C").strip(". ")
    return kept[:MAX_NAME_CHARS]
