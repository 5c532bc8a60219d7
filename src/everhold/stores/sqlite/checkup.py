"""Examines the file of a store for `everhold doctor`. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

from everhold.ports.store_files import ConsumerDelay, GivenUpItems, StoreCheckup
from everhold.stores.sqlite import connect, migrate, restore, watermark
from everhold.stores.sqlite.backup import inspect_copy
from everhold.stores.sqlite.errors import translate_error

OLDEST_SQLITE: Final = (3, 51, 3)
"""Older versions can lose pages of the write-ahead log."""


def is_store_present(store: Path) -> bool:
    """Whether there is a store, or what remains of one."""
    return store.exists() or watermark.build_watermark_path(store).exists()


def find_library_problem() -> str:
    """Why the SQLite library of this installation must not be used; empty if it may."""
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split(".")[:3])
    return f"SQLite {apsw.sqlite_lib_version()} can lose pages of the log" if version < OLDEST_SQLITE else ""


def describe_libraries() -> dict[str, str]:
    """The versions of what the store is built on."""
    return {"apsw": apsw.apsw_version(), "sqlite": apsw.sqlite_lib_version()}


def read_last_pos(store: Path) -> int:
    """The pos of the newest entry."""
    return restore.query_number(store, "select max(pos) from entries")


def examine_store(store: Path, *, late_before: float) -> StoreCheckup:
    """Examine the whole store. Cursors that wait since before `late_before` are late. Raises StoreError if the store
    cannot be used."""
    held = inspect_copy(store)
    watermark.check_watermark(watermark.build_watermark_path(store), held.pos)
    try:
        db = connect.open_for_reading(store)
        try:
            return StoreCheckup(
                copy=held,
                notes=tuple(_list_notes(db)),
                delays=tuple(ConsumerDelay(*row) for row in db.execute(_SELECT_LATE, (late_before,))),
                given_up=tuple(GivenUpItems(*row) for row in db.execute(_SELECT_DEAD)),
            )
        finally:
            db.close()
    except apsw.Error as error:
        raise translate_error(error, store) from error


def _list_notes(db: apsw.Connection) -> list[tuple[str, str]]:
    notes = []
    mode = str(db.pragma("journal_mode"))
    if mode != "wal":
        notes.append((f"the store is in {mode} mode", "`everhold up` corrects it"))
    if db.pragma("user_version") < migrate.list_migrations()[-1].number:
        notes.append(("the store has an older schema", "the next start upgrades it"))
    return notes


_SELECT_LATE: Final = (
    "select consumer, count(*), min(since), max(attempts), max(error) from cursors "
    "where due is not null and (error <> '' or since < ?) group by consumer order by consumer"
)
_SELECT_DEAD: Final = (
    "select consumer, count(*), max(reason) from dead_letters where state = 'dead' group by 1 order by 1"
)
