"""The table of blobs: content under its SHA-256 digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import apsw


def store_blobs(cur: apsw.Cursor, blobs: Iterable[bytes]) -> None:
    cur.executemany(
        "insert or ignore into blobs(digest, data) values (?, ?)",
        [(hashlib.sha256(data).hexdigest(), data) for data in blobs],
    )


def delete_blobs(cur: apsw.Cursor, digests: Iterable[str]) -> None:
    cur.executemany("delete from blobs where digest = ?", [(digest,) for digest in digests])


def read_blob(cur: apsw.Cursor, digest: str) -> bytes | None:
    data: bytes | None = cur.execute("select data from blobs where digest = ?", (digest,)).get
    return data
