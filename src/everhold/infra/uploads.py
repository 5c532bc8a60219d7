"""Files that were uploaded and belong to no message yet. They are in the home for an hour, then they are deleted.

An id counts for its uploader only: knowing it, or the hash of a file, opens nothing of somebody else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from everhold.errors import InvalidRequest, NotFound, Transient
from everhold.infra.home import make_private_directory, write_file

KEEP_SECONDS: Final = 3_600.0
MAX_FILE_BYTES: Final = 20_000_000
MAX_OWNER_FILES: Final = 50
MAX_OWNER_BYTES: Final = 200_000_000
MAX_ALL_BYTES: Final = 2_000_000_000
"""The limits of what waits for a message."""
_ID: Final = re.compile(r"[0-9a-f]{32}")


class UploadRecord(Struct, frozen=True, kw_only=True):
    """What is known of an uploaded file."""

    id: str
    owner: str
    name: str
    media: str
    size: int
    at: float


class UploadFolder:
    """The uploaded files of a home."""

    def __init__(self, path: Path, *, now: Callable[[], float], random_bytes: Callable[[int], bytes]) -> None:
        self._path = path
        self._now = now
        self._random_bytes = random_bytes

    def save(self, data: bytes, *, owner: str, name: str, media: str) -> UploadRecord:
        """Store a file until a message names it. Raises InvalidRequest if it is empty or too large, Transient if its
        owner has too many."""
        if not data or len(data) > MAX_FILE_BYTES:
            raise InvalidRequest(
                f"the file has {len(data):,} bytes, and may have {MAX_FILE_BYTES:,}", remedy="send another file"
            )
        waiting = self.tidy()
        own = [it for it in waiting if it.owner == owner]
        if (
            len(own) >= MAX_OWNER_FILES
            or sum(it.size for it in own) + len(data) > MAX_OWNER_BYTES
            or sum(it.size for it in waiting) + len(data) > MAX_ALL_BYTES
        ):
            raise Transient(
                "too many uploaded files wait for a message", remedy="send them in messages, or wait an hour"
            )
        record = UploadRecord(
            id=self._random_bytes(16).hex(), owner=owner, name=name, media=media, size=len(data), at=self._now()
        )
        make_private_directory(self._path)
        write_file(self._path / f"{record.id}.bin", data)
        write_file(self._path / f"{record.id}.json", msgspec.json.encode(record))
        return record

    def read(self, id: str, *, owner: str) -> tuple[UploadRecord, bytes]:
        """Return an uploaded file. It stays, because a message may be repeated. Raises NotFound."""
        record = self._read_record(id) if _ID.fullmatch(id) else None
        if record is not None and record.owner == owner and self._now() - record.at < KEEP_SECONDS:
            with contextlib.suppress(OSError):
                return record, (self._path / f"{id}.bin").read_bytes()
        raise NotFound(f"there is no uploaded file {id[:64]!r}", remedy="upload it again; an upload counts for an hour")

    def tidy(self) -> list[UploadRecord]:
        """Delete files that are older than an hour; return the records of the others."""
        kept: list[UploadRecord] = []
        for file in self._path.glob("*.bin"):
            record = self._read_record(file.stem)
            if record is not None and 0 <= self._now() - record.at < KEEP_SECONDS:
                kept.append(record)
            else:
                file.unlink(missing_ok=True)
                file.with_suffix(".json").unlink(missing_ok=True)
        return kept

    def _read_record(self, id: str) -> UploadRecord | None:
        try:
            return msgspec.json.decode((self._path / f"{id}.json").read_bytes(), type=UploadRecord)
        except (OSError, msgspec.DecodeError):
            return None
