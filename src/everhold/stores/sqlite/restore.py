"""Restores the store of a home from a backup. The caller holds the home's lock."""

from __future__ import annotations

import contextlib
import datetime
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import apsw

from everhold.core.erasure import is_erasure_line
from everhold.errors import EverholdError, InvalidRequest, NotFound, StoreDamaged, StoreError
from everhold.infra.backup_files import find_chain, format_time, identify_file, list_backups, list_increments
from everhold.infra.home import Home, add_missing_lines, check_disk_space, sync_path
from everhold.ports.clock import RandomSource
from everhold.ports.store_files import RestorePlan, RestoreResult, StoreCopy
from everhold.stores.sqlite import connect, migrate, rebuild, watermark
from everhold.stores.sqlite.backup import MOVE_INCREMENT, inspect_copy, open_increment, read_last_seqs
from everhold.stores.sqlite.salvage import SalvageResult, add_newer_entries

_SELECT_LAST_POS: Final = "select max(pos) from entries"
_COUNT_AFTER_POS: Final = "select count(*) from entries where pos > ?"


def plan_restore(home: Home, *, source: str = "", at: str = "", directory: Path | None = None) -> RestorePlan:
    """Choose what to restore: `source` (a file, or one of `directory`), else a store that contains `at`, else the
    newest backup.

    `at` is a position of the log or a time. The present store is the preferred source for it. The increments after a
    backup are added if the present store is lost or damaged, or if `at` is in one of them.
    """
    directory = directory or home.backups
    if source and Path(source).expanduser().is_dir():
        directory, source = Path(source).expanduser(), ""
    present, damage = _inspect_current(home)
    chosen = _choose_source(home, source, at, present, directory)
    identity = identify_file(chosen)
    holds = inspect_copy(chosen)
    uses_increments = not source and chosen != home.store and (present is None or bool(at))
    chain = find_chain(list_increments(directory), holds.pos) if uses_increments else []
    for it in chain:
        open_increment(it).close()
    upto = _find_pos([chosen, *(it.path for it in chain)], at) if at else None
    end = chain[-1].upto_pos if chain else holds.pos
    if upto is not None and not 0 < upto <= end:
        raise NotFound(
            f"{(chain[-1].path if chain else chosen).name} ends at pos {end}, so there is no {at}",
            remedy="`everhold restore` without --at lists the backups",
        )
    loses = 0 if present is None else query_number(home.store, _COUNT_AFTER_POS, upto or end)
    return RestorePlan(
        source=chosen,
        source_copy=holds,
        upto_pos=upto,
        current_copy=present,
        damage=damage,
        source_identity=identity,
        lost_entries=loses,
        chain=tuple(chain),
    )


def restore_store(home: Home, what: RestorePlan, *, now: float, chance: RandomSource) -> RestoreResult:
    """Run a restore. The caller holds the home's lock. After every step there is either the complete old store, or one
    that is refused with a remedy.

    First the present store is copied and the copy checked. Then the new store is made beside it and checked. Then it
    replaces the present one. An interrupted restore can be run again.
    """
    new = home.store.with_name(home.store.name + ".restored")
    sizes = what.source_copy.size_bytes + (home.store.stat().st_size if home.store.exists() else 0)
    check_disk_space(home.path, sizes)
    _remove_with_leftovers(new)
    # the home may be a new one, which does not know what was erased after the copy was made
    add_missing_lines(what.source.with_name(home.erasures.name), home.erasures, is_valid=is_erasure_line)
    reached = read_last_seqs(home.store)
    set_aside = _set_current_aside(home, what, now=now)
    _copy_store(what.source, new)
    if identify_file(what.source) != what.source_identity:
        new.unlink()
        raise StoreError(
            f"{what.source} changed while it was being restored", remedy="nothing was changed; check it, and try again"
        )
    try:
        _add_increments(new, what, now=now, chance=chance)
    except BaseException:
        _remove_with_leftovers(new)
        raise
    salvaged = SalvageResult(0, what.last_pos, [])
    if what.damage and what.upto_pos is None:
        salvaged = _salvage(home, new, what, now=now, chance=chance)
    stopped, left_out = _roll_back_copy(new, what.upto_pos, reached, now=now, chance=chance)
    made = inspect_copy(new)
    if made.contradictions and not what.source_copy.contradictions:
        raise StoreDamaged(
            f"the store made from {what.source.name} is not sound: {made.contradictions[0]}", remedy="report this"
        )
    _swap_store(home, new, whole=what.current_copy is not None)
    return RestoreResult(
        pos=made.pos,
        set_aside=set_aside,
        stopped_operations=stopped,
        skipped_seqs=left_out,
        salvaged=salvaged.entries,
        left_out=salvaged.left_out,
    )


def _remove_with_leftovers(new: Path) -> None:
    for leftover in new.parent.glob(new.name + "*"):
        leftover.unlink()


def _add_increments(new: Path, what: RestorePlan, *, now: float, chance: RandomSource) -> None:
    """Add the increments to the copy. A damaged one is refused, because those after it would not follow."""
    if not what.chain:
        return
    db = connect.open_for_writing(new, synchronous="FULL")
    with contextlib.ExitStack() as opened:
        opened.callback(db.close)
        sources = []
        for it in what.chain:
            source = open_increment(it)
            opened.callback(source.close)
            sources.append((source, it.upto_pos))
        try:
            done = add_newer_entries(db, sources, at=now, chance=chance)
        except (apsw.Error, ValueError, TypeError) as error:
            raise StoreDamaged(
                f"an increment in {what.chain[0].path.parent} does not fit: {error}", remedy=MOVE_INCREMENT
            ) from error
        db.pragma("journal_mode", "delete")
    if done.left_out:
        raise StoreDamaged(
            f"an increment in {what.chain[0].path.parent} is damaged: {done.left_out[0]}",
            remedy=MOVE_INCREMENT,
        )


def _salvage(home: Home, new: Path, what: RestorePlan, *, now: float, chance: RandomSource) -> SalvageResult:
    """Add to the copy what the damaged store has after it. If the result is not sound, the copy stays as it was."""
    last_pos = max(watermark.read_watermark(watermark.build_watermark_path(home.store)), _find_last_pos(home.store))
    try:
        source = connect.open_for_reading(home.store)
    except apsw.Error as error:
        return SalvageResult(0, what.last_pos, [f"everything after the copy: {error}"])
    db = connect.open_for_writing(new, synchronous="FULL")
    try:
        done = add_newer_entries(db, [(source, last_pos)], at=now, chance=chance)
        db.pragma("journal_mode", "delete")
    except (apsw.Error, EverholdError) as error:
        done = SalvageResult(0, what.last_pos, [f"everything after the copy: {error}"])
    finally:
        db.close()
        source.close()
    wrong = inspect_copy(new).contradictions if done.entries else []
    if wrong and not what.source_copy.contradictions:
        new.unlink()
        _copy_store(what.source, new)
        _add_increments(new, what, now=now, chance=chance)
        return SalvageResult(
            0, what.source_copy.pos, [f"everything after the copy, because it does not fit: {wrong[0]}"]
        )
    return done


def _find_last_pos(store: Path) -> int:
    try:
        return query_number(store, _SELECT_LAST_POS)
    except (StoreError, OSError):
        return 0


def _inspect_current(home: Home) -> tuple[StoreCopy | None, str]:
    if not home.store.exists():
        return None, ""
    try:
        watermark.check_watermark(
            watermark.build_watermark_path(home.store), query_number(home.store, _SELECT_LAST_POS)
        )
        return inspect_copy(home.store), ""
    except StoreError as error:
        return None, error.message


def query_number(store: Path, sql: str, *values: int) -> int:
    """Return the number that a query finds in the file of a store; 0 for none."""
    migrate.inspect_header(store)
    try:
        db = connect.open_for_reading(store)
        try:
            return int(db.execute(sql, values).get or 0)
        finally:
            db.close()
    except apsw.Error as error:
        raise StoreDamaged(f"{store} cannot be read: {error}") from error


def _choose_source(home: Home, source: str, at: str, present: StoreCopy | None, directory: Path) -> Path:
    backups = [backup for backup in list_backups(directory) if backup.is_sound]
    if source and source != "last":
        path = Path(source).expanduser()
        return path if path.is_file() or not (directory / source).is_file() else directory / source
    if at and present is not None and not source:
        return home.store
    if not backups:
        raise NotFound(f"there is no backup in {directory}", remedy="name a file: everhold restore FILE")
    if at.isdecimal():
        return next((backup.path for backup in backups if backup.pos >= int(at)), backups[-1].path)
    if at:
        moment = parse_moment(at)
        return next((backup.path for backup in backups if backup.at >= moment), backups[-1].path)
    return backups[-1].path


def _find_pos(sources: Sequence[Path], at: str) -> int:
    """The pos that `at` names, in a copy and the increments after it."""
    if at.isdecimal():
        return int(at)
    upto = 0
    for source in sources:
        db = connect.open_for_reading(source)
        try:
            upto = max(upto, rebuild.find_pos_at(db, parse_moment(at)))
            if db.execute("select 1 from entries where at > ? limit 1", (parse_moment(at),)).get is not None:
                break
        finally:
            db.close()
    return upto


def parse_moment(text: str) -> float:
    """Parse a time such as 2026-08-01T10:15, with or without seconds and zone. The default zone is the local one."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is neither a pos nor a time", remedy="for example --at 1234 or --at 2026-08-01T10:15"
        ) from None


def _set_current_aside(home: Home, what: RestorePlan, *, now: float) -> Path | None:
    """Make a checked copy of the present store, or copy the files of a damaged one."""
    if not home.store.exists() and not watermark.build_watermark_path(home.store).exists():
        return None
    if what.current_copy is not None:
        db = connect.open_for_reading(home.store)
        try:
            return migrate.copy_database(db, home.backups / f"before-restore-{format_time(now)}.db")
        finally:
            db.close()
    folder = home.backups / f"damaged-{format_time(now)}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in home.path.glob(home.store.name + "*"):
        if file.suffix != ".restored":
            shutil.copy2(file, folder / file.name)
            sync_path(folder / file.name)
    sync_path(folder)
    return folder


def _copy_store(source: Path, to: Path) -> None:
    db = connect.open_for_reading(source)
    try:
        made = migrate.copy_database(db, to)
    finally:
        db.close()
    assert made == to


def _roll_back_copy(
    new: Path, upto: int | None, reached: dict[str, int], *, now: float, chance: RandomSource
) -> tuple[int, int]:
    """Roll the copy back to `upto`, and skip the seqs that the present store has used."""
    db = connect.open_for_writing(new, synchronous="FULL")
    try:
        stopped = 0 if upto is None else rebuild.roll_back(db, upto, at=now, chance=chance).stopped_operations
        left_out = rebuild.skip_used_seqs(db, reached, at=now, chance=chance, why="not in the copy that was put back")
        db.pragma("journal_mode", "delete")
    except apsw.Error as error:
        raise StoreError(f"{new}: {error}", remedy="nothing was changed; try again") from error
    finally:
        db.close()
    return stopped, left_out


def _swap_store(home: Home, new: Path, *, whole: bool) -> None:
    """Replace the store, as the last step. If it is interrupted, opening the store is refused with a remedy."""
    sync_path(new)
    if whole:  # move everything from the old write-ahead log into the database, because the log is deleted first
        db = connect.open_for_writing(home.store, synchronous="FULL")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        db.close()
    for side in ("-wal", "-shm"):
        home.store.with_name(home.store.name + side).unlink(missing_ok=True)
    new.replace(home.store)
    sync_path(home.path)
    watermark.build_watermark_path(home.store).unlink(missing_ok=True)  # it belongs to the replaced log
    for file in home.path.glob(home.index.name + "*"):
        file.unlink()  # it is rebuilt from the log


def copy_file(source: Path, target: Path) -> None:
    """Copy a store file that another process may be writing to."""
    try:
        db = connect.open_for_reading(source)
        copy = apsw.Connection(str(target))
        try:
            with copy.backup("main", db, "main") as work:
                work.step()
        finally:
            copy.close()
            db.close()
    except apsw.Error as error:
        raise StoreError(f"{source} cannot be copied for the dry run: {error}") from error
