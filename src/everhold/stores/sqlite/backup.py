"""Looks into a copy of the store as hard as one can: opened, every page checked, every entry held to its digest."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import apsw

from everhold.core.audit import audit
from everhold.errors import EverholdError, StoreError
from everhold.stores.sqlite import connect, entries, harm, migrate, verify
from everhold.stores.sqlite.faults import damaged, translate
from everhold.stores.sqlite.read import rows


class Copy(NamedTuple):
    """What a file holds. `wrong` says where it contradicts itself, `broken` which promises an audit finds broken in it:
    a copy can be as good as what it was made of, and no better."""

    path: Path
    bytes: int
    pos: int
    sessions: int
    entries: int
    newest: float
    """When the last entry was written."""
    wrong: list[str]
    broken: list[str]

    @property
    def sound(self) -> bool:
        return not self.wrong


def make(db: apsw.Connection, target: Path) -> Copy:
    """A copy of everything committed, as one file at `target` or beside it, opened and audited after writing."""
    return inspect(migrate.back_up(db, target))


def inspect(path: Path) -> Copy:
    """What the store at `path` holds and whether it is sound. Raises StoreError for what cannot be opened at all."""
    if not path.is_file():
        raise StoreError(f"there is no {path}", remedy="`everhold restore` lists the copies there are")
    migrate.inspect(path)
    try:
        db = connect.for_reading(path)
        try:
            return _look(db, path)
        finally:
            db.close()
    except apsw.Error as error:
        raise translate(error, path) from error


def _look(db: apsw.Connection, path: Path) -> Copy:
    if pages := harm.complaints(db):
        raise damaged(path, " / ".join(part for part in (*pages[:5], harm.named(db)) if part))
    cur = db.cursor()
    wrong = verify.contradictions(cur, None)
    broken: list[str] = []
    for (session,) in rows(cur, "select id from sessions order by id"):
        broken += [f"{session}: {text}" for text in _audited(cur, session)]
    pos, count, newest = cur.execute("select max(pos), count(*), max(at) from entries").get
    return Copy(
        path=path,
        bytes=path.stat().st_size,
        pos=pos or 0,
        sessions=cur.execute("select count(*) from sessions").get,
        entries=count,
        newest=newest or 0.0,
        wrong=wrong,
        broken=broken,
    )


def _audited(cur: apsw.Cursor, session: str) -> list[str]:
    sql, values = entries.query(session, after=0, upto=None, kinds=(), limit=None)
    try:
        found, _ = audit(session, [entries.of((session, *row)) for row in rows(cur, sql, values)])
    except EverholdError as error:
        return [error.message]
    return [f"{one.promise}: {one.text}" for one in found if one.level == "broken"]


def lasts(path: Path) -> dict[str, int]:
    """How far each session had come in a file that may be damaged."""
    if not path.is_file():
        return {}
    try:
        db = connect.for_reading(path)
    except apsw.Error:
        return {}
    try:
        return harm.heads(db)
    finally:
        db.close()
