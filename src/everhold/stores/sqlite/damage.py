"""What a damaged database file still gives: which sessions read whole, and which do not. It only looks."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import apsw

from everhold.stores.sqlite import connect

MAX_NAMED_SESSIONS: Final = 5


class DamageReport(NamedTuple):
    """`lines` are SQLite's own words; `sessions` do not read whole, `sound` do; `lasts` is how far each had come."""

    lines: list[str]
    damaged_sessions: list[str]
    sound_sessions: list[str]
    last_seqs: dict[str, int]


def inspect_damage(path: Path, *, vfs: str | None = None) -> DamageReport:
    """Everything that can be said about the file at `path` without trusting it."""
    try:
        db = connect.open_for_reading(path, vfs=vfs)
    except apsw.Error as error:
        return DamageReport([str(error)], [], [], {})
    try:
        lines = list_integrity_errors(db)
        harmed, sound, lasts = _sort_sessions(db)
    finally:
        db.close()
    return DamageReport(lines, harmed, sound, lasts)


def list_integrity_errors(db: apsw.Connection, *, most: int = 20, quick: bool = False) -> list[str]:
    """What SQLite finds wrong with the file, page by page. It may give up in the middle: what it said stands."""
    for check in ("quick_check",) if quick else ("quick_check", "integrity_check"):
        found: list[str] = []
        try:
            for (line,) in db.execute(f"pragma {check}({most:d})"):
                found.append(" ".join(str(line).split()))
        except apsw.Error as error:
            if quick and not isinstance(error, apsw.CorruptError):
                raise  # a disk that fails, or somebody's lock: nothing is known about the file
            return [*found, str(error)]
        if found != ["ok"]:
            return found
    return []


def name_damaged_sessions(db: apsw.Connection) -> str:
    """The sessions that a damage reaches, for a sentence; empty when nobody can tell."""
    harmed, sound, _ = _sort_sessions(db)
    if not harmed:
        return ""
    more = f" and {len(harmed) - MAX_NAMED_SESSIONS} more" if len(harmed) > MAX_NAMED_SESSIONS else ""
    whole = f"; {len(sound)} others read whole" if sound else ""
    return f"cannot be read whole: session {', '.join(harmed[:MAX_NAMED_SESSIONS])}{more}{whole}"


def _sort_sessions(db: apsw.Connection) -> tuple[list[str], list[str], dict[str, int]]:
    lasts = read_last_seqs(db)
    harmed: list[str] = []
    sound: list[str] = []
    for session in sorted(lasts):
        (sound if _is_readable(db, session, lasts[session]) else harmed).append(session)
    return harmed, sound, lasts


def read_last_seqs(db: apsw.Connection) -> dict[str, int]:
    """Every session that can still be found, from its own row or from its entries, with its last number."""
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
            continue  # what came before the damaged page stands
    return found


def _is_readable(db: apsw.Connection, session: str, last: int) -> bool:
    try:
        count, _ = db.execute(
            "select count(*), sum(length(body) + length(digest)) from entries where session = ?", (session,)
        ).get
    except apsw.Error:
        return False
    return bool(count == last)
