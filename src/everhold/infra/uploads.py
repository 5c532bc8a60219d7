"""Files that were uploaded and belong to no message yet. They are in the home for an hour, then they are deleted.

An id counts for its uploader only: knowing it, or the hash of a file, opens nothing of somebody else.
"""

from __future__ import annotations

import contextlib
import re
import threading
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
MAX_ACCOUNT_FILES: Final = 1_000
MAX_ACCOUNT_BYTES: Final = 500_000_000
"""Of all users of one token together: a service names them as it likes."""
MAX_ALL_BYTES: Final = 2_000_000_000
"""The limits of what waits for a message."""
_ID: Final = re.compile(r"[0-9a-f]{32}")


class UploadRecord(Struct, frozen=True, kw_only=True):
    """What is known of an uploaded file."""

    id: str
    account: str
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
        self._lock = threading.Lock()
        """Held while files are counted, stored and deleted. Requests do that on several threads."""

    def save(self, data: bytes, *, account: str, owner: str, name: str, media: str) -> UploadRecord:
        """Store a file until a message names it. `account` is whose quota counts besides the owner's. Raises
        InvalidRequest if it is empty or too large, Transient if there are too many."""
        if not data or len(data) > MAX_FILE_BYTES:
            raise InvalidRequest(
                f"the file has {len(data):,} bytes, and may have {MAX_FILE_BYTES:,}", remedy="send another file"
            )
        record = UploadRecord(
            id=self._random_bytes(16).hex(),
            account=account,
            owner=owner,
            name=name,
            media=media,
            size=len(data),
            at=self._now(),
        )
        with self._lock:
            if not _has_room(self._tidy(), record):
                raise Transient(
                    "too many uploaded files wait for a message", remedy="send them in messages, or wait an hour"
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
        with self._lock:
            return self._tidy()

    def _tidy(self) -> list[UploadRecord]:
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


def _has_room(waiting: list[UploadRecord], record: UploadRecord) -> bool:
    """Return whether one more file is within the limits of its owner, its account and all."""
    of_account = [it for it in waiting if it.account == record.account]
    of_owner = [it for it in of_account if it.owner == record.owner]
    return (
        len(of_owner) < MAX_OWNER_FILES
        and len(of_account) < MAX_ACCOUNT_FILES
        and _sum_sizes(of_owner) + record.size <= MAX_OWNER_BYTES
        and _sum_sizes(of_account) + record.size <= MAX_ACCOUNT_BYTES
        and _sum_sizes(waiting) + record.size <= MAX_ALL_BYTES
    )


def _sum_sizes(records: list[UploadRecord]) -> int:
    return sum(it.size for it in records)
