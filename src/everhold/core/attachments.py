"""A file that came with a message: known by what is in it. Its name is a label and is never a path."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Final

from everhold.core.entries import Attachment

LONGEST_NAME: Final = 120


def attachment(data: bytes, *, name: str = "", media: str = "") -> Attachment:
    """What an entry keeps of a file."""
    return Attachment(blob=hashlib.sha256(data).hexdigest(), name=label(name), media=media[:100], size=len(data))


def absent(*, name: str, media: str = "", size: int = 0) -> Attachment:
    """A file that was not taken in: it was too large, or it could not be fetched. That it was there is kept."""
    return Attachment(blob="", name=label(name), media=media[:100], size=size)


def label(name: str) -> str:
    """A file's name as it may be shown: its last part, without anything that steers a terminal or a file system."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(char for char in last if unicodedata.category(char)[0] != "C").strip(". ")
    return kept[:LONGEST_NAME]
