"""Finds out which sessions of a damaged database file can still be read. It only reads."""

from __future__ import annotations

from typing import Final

import apsw

MAX_NAMED_SESSIONS: Final = 5


def list_integrity_errors(db: apsw.Connection, *, most: int = 20, quick: bool = False) -> list[str]:
    """The errors that SQLite finds in the file. SQLite may stop early; the errors until then are returned."""
    for check in ("quick_check",) if quick else ("quick_check", "integrity_check"):
        found: list[str] = []
        try:
            for (line,) in db.execute(f"pragma {check}({most:d})"):
                found.append(" ".join(str(line).split()))
        except apsw.Error as error:
            if quick and not isinstance(error, apsw.CorruptError):
                raise  # the disk fails or another process holds a lock, so nothing is known about the file
            return [*found, str(error)]
        if found != ["ok"]:
            return found
    return []


def name_damaged_sessions(db: apsw.Connection) -> str:
    """The damaged sessions, as part of a sentence; empty if none is known."""
    damaged, sound = _sort_sessions(db)
    if not damaged:
        return ""
    more = f" and {len(damaged) - MAX_NAMED_SESSIONS} more" if len(damaged) > MAX_NAMED_SESSIONS else ""
    whole = f"; {len(sound)} others can be read" if sound else ""
    return f"cannot be read completely: session {', '.join(damaged[:MAX_NAMED_SESSIONS])}{more}{whole}"


def _sort_sessions(db: apsw.Connection) -> tuple[list[str], list[str]]:
    lasts = read_last_seqs(db)
    damaged: list[str] = []
    sound: list[str] = []
    for session in sorted(lasts):
        (sound if _is_readable(db, session, lasts[session]) else damaged).append(session)
    return damaged, sound


def read_last_seqs(db: apsw.Connection) -> dict[str, int]:
    """The last seq of every session that can still be found, from its own row or from its entries."""
    found: dict[str, int] = {}
    for sql in (
        "select id, next_seq - 1 from sessions",
        "select session, max(seq) from entries indexed by entries_place group by session",
    ):
        try:
            for session, last in db.execute(sql):
                if isinstance(session, str) and isinstance(last, int):
                    found[session] = max(found.get(session, 0), last)
        except apsw.Error:
            continue  # the rows before the damaged page count
    return found


def _is_readable(db: apsw.Connection, session: str, last: int) -> bool:
    try:
        count, _ = db.execute(
            "select count(*), sum(length(body) + length(digest)) from entries where session = ?", (session,)
        ).get
    except apsw.Error:
        return False
    return bool(count == last)
