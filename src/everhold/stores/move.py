"""Runs a move of a whole store: keep others away, copy, compare, audit, and only then change which one is used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw
import psycopg

from everhold.core.audit import StoreAudit
from everhold.errors import NotFound, StoreDamaged, StoreError
from everhold.infra.home import publish_file, sync_path
from everhold.ports.clock import RandomSource
from everhold.ports.store import Store
from everhold.stores import transfer
from everhold.stores.postgres.shared_store import MOVE_MARKER
from everhold.stores.postgres.store import PostgresStore
from everhold.stores.sqlite.connect import enable_wal, open_for_writing
from everhold.stores.sqlite.store import SqliteStore
from everhold.stores.sqlite.watermark import build_watermark_path


class MoveResult(NamedTuple):
    """What a move did."""

    sessions: int
    entries: int
    target: str
    set_aside: Path | None
    """The file that was moved from."""


def move_to_server(
    path: Path, url: str, *, set_aside: Path, chance: RandomSource, report: transfer.ReportRows
) -> MoveResult:
    """Move the store in the file at `path` to an empty database. The caller holds the home."""
    what = f"from {path}"
    with _translate_errors(url):
        _open_once(lambda: PostgresStore.open(url, chance=chance))
        target = transfer.ServerEnd(url)
        try:
            if not path.exists():
                return _finish_interrupted(target, what, path)
            _open_once(lambda: _return(SqliteStore.open(path, chance=chance)))
            target.mark(what, wants_empty=True)
            source = transfer.FileEnd(path)
            try:
                _copy_and_compare(source, target, report)
            finally:
                source.close()
            _compare_audits(
                _audit_once(lambda: _return(SqliteStore.open(path, chance=chance))),
                _audit_once(lambda: PostgresStore.open(url, chance=chance)),
                target.place,
            )
            target.finish()
            _set_file_aside(path, set_aside)
            target.unmark()
            return _count_rows(target, set_aside)
        finally:
            target.close()


def move_to_file(url: str, path: Path, *, chance: RandomSource, report: transfer.ReportRows) -> MoveResult:
    """Move the store in a database to a new file. Afterwards no host opens the database any more."""
    if path.exists():
        raise StoreError(f"{path} exists already", remedy="name a file that does not exist")
    partial = path.with_name(path.name + ".moving")
    with _translate_errors(url):
        source = transfer.ServerEnd(url)
        try:
            source.mark(f"to {path}", wants_empty=False)
            target = transfer.FileEnd(partial, create=True)
            try:
                _copy_and_compare(source, target, report)
                result = _count_rows(target, None)
                target.finish()
            finally:
                target.close()
            _compare_audits(
                _audit_once(lambda: PostgresStore.open(url, chance=chance)),
                _audit_once(lambda: _return(SqliteStore.open(partial, chance=chance, synchronous="OFF"))),
                str(path),
            )
            _settle_file(partial)
            publish_file(partial, path)
            return result._replace(target=str(path))
        finally:
            source.close()


@contextmanager
def _translate_errors(url: str) -> Iterator[None]:
    try:
        yield
    except (apsw.Error, psycopg.Error) as error:
        raise transfer.translate_transfer_error(error, url) from error


async def _return(store: SqliteStore) -> SqliteStore:
    return store


def _open_once(open_store: Callable[[], Awaitable[Store]]) -> None:
    """Open a store and close it again, which creates or upgrades its schema."""

    async def run() -> None:
        await (await open_store()).close()

    asyncio.run(run())


def _audit_once(open_store: Callable[[], Awaitable[Store]]) -> StoreAudit:
    async def run() -> StoreAudit:
        store = await open_store()
        try:
            return await store.audit()
        finally:
            await store.close()

    return asyncio.run(run())


def _copy_and_compare(source: transfer.TransferEnd, target: transfer.TransferEnd, report: transfer.ReportRows) -> None:
    transfer.copy_store(source, target, report)
    if wrong := transfer.find_differences(source, target):
        raise StoreDamaged(
            f"the copy differs: {wrong[0]}",
            remedy="nothing was switched; report this, and use another database",
        )


def _compare_audits(before: StoreAudit, after: StoreAudit, place: str) -> None:
    """Refuse a copy in which an audit finds what it does not find in the original."""
    known = {*before.contradictions, *(f"{it.session} {it.text}" for it in before.findings)}
    fresh = [it for it in after.contradictions if it not in known]
    fresh += [it.text for it in after.findings if it.level == "broken" and f"{it.session} {it.text}" not in known]
    if fresh:
        raise StoreDamaged(f"the audit of {place} finds what the original has not: {fresh[0]}", remedy="report this")


def _finish_interrupted(target: transfer.ServerEnd, what: str, path: Path) -> MoveResult:
    """End a move that was interrupted after the file was set aside."""
    if MOVE_MARKER not in target.list_tables():
        raise NotFound(f"there is no {path}", remedy="everhold status shows which store is used")
    target.mark(what, wants_empty=False)
    target.unmark()
    return _count_rows(target, None)


def _set_file_aside(path: Path, set_aside: Path) -> None:
    """Take the file out of use. It stays, because only a person may delete it."""
    _settle_file(path)
    set_aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.rename(set_aside)
    build_watermark_path(path).unlink(missing_ok=True)
    sync_path(path.parent)
    sync_path(set_aside.parent)


def _settle_file(path: Path) -> None:
    """Make one complete file of a store, without a write-ahead log beside it."""
    db = open_for_writing(path, synchronous="FULL")
    try:
        enable_wal(db)
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        db.pragma("journal_mode", "delete")
    finally:
        db.close()


def _count_rows(end: transfer.TransferEnd, set_aside: Path | None) -> MoveResult:
    counts = {name: transfer.count_rows(end, name) for name in ("sessions", "entries")}
    return MoveResult(sessions=counts["sessions"], entries=counts["entries"], target=end.place, set_aside=set_aside)
