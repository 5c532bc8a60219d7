"""Backups of the store: made while it is in use, inspected, pruned, restored. They contain neither the configuration
nor secrets, nor the search index, which is rebuilt from the log.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import apsw

from everhold.core.erasure import is_erasure_line
from everhold.errors import EverholdError, InvalidRequest, NotFound, StoreDamaged, StoreError
from everhold.infra.home import Home, add_missing_lines
from everhold.ports.clock import RandomSource
from everhold.stores.sqlite import connect, increments, migrate, rebuild, watermark
from everhold.stores.sqlite.backup import StoreCopy, inspect_copy, read_last_seqs
from everhold.stores.sqlite.salvage import SalvageResult, add_newer_entries

_BACKUP_NAME: Final = re.compile(r"everhold-(\d{8}T\d{6}Z)-(\d+)(?:-\d+)?(\.unsound)?\.db")
_INCREMENT_NAME: Final = re.compile(r"increment-(\d+)-(\d+)-(\d+)-(\d{8}T\d{6}Z)\.db")
_TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
_SELECT_LAST_POS: Final = "select max(pos) from entries"
_COUNT_AFTER_POS: Final = "select count(*) from entries where pos > ?"


class BackupFile(NamedTuple):
    """A copy in the home's `backups/`, as described by its file name."""

    path: Path
    at: float
    pos: int
    is_sound: bool


class IncrementFile(NamedTuple):
    """What was committed between two positions, as described by its file name."""

    path: Path
    after_pos: int
    upto_pos: int
    blob_row: int
    at: float


def choose_directory(home: Home, directory: str) -> Path:
    """The directory of the backups. A configured one must exist, because an unmounted disk must not be created anew."""
    if not directory:
        return home.backups
    path = Path(directory).expanduser()
    return path if path.is_absolute() else home.path / path


def list_increments(directory: Path) -> list[IncrementFile]:
    """The increments in `directory`, in the order of the log."""
    found = []
    for path in directory.glob("increment-*.db"):
        if (named := _INCREMENT_NAME.fullmatch(path.name)) is not None:
            found.append(IncrementFile(path, int(named[1]), int(named[2]), int(named[3]), _parse_time(named[4])))
    return sorted(found, key=lambda it: (it.after_pos, it.upto_pos))


def find_chain(directory: Path, pos: int) -> list[IncrementFile]:
    """The increments that continue a copy which ends at `pos`, without a gap."""
    chain: list[IncrementFile] = []
    for it in list_increments(directory):
        if it.after_pos <= pos < it.upto_pos:
            chain.append(it)
            pos = it.upto_pos
    return chain


def list_backups(directory: Path) -> list[BackupFile]:
    """The backups in `directory`, oldest first. Copies that an upgrade or a restore set aside are not among them."""
    found = []
    for path in directory.glob("everhold-*.db"):
        if (named := _BACKUP_NAME.fullmatch(path.name)) is not None:
            found.append(BackupFile(path, _parse_time(named[1]), int(named[2]), not named[3]))
    return sorted(found, key=lambda backup: (backup.at, backup.path.name))


def list_set_aside(directory: Path) -> list[Path]:
    """The copies of replaced stores that restores and upgrades left in `directory`. Only a person removes them."""
    found = (directory.glob(pattern) for pattern in ("before-restore-*.db", "*-before-[0-9]*.db", "damaged-*"))
    return sorted(path for paths in found for path in paths)


class IncrementSource(Protocol):
    """A store that can copy its newest part."""

    async def write_increment(
        self, target: Path, *, after_pos: int, recent_pos: int, blob_row: int
    ) -> increments.StoreIncrement | None: ...


class StoreBackups:
    """Makes backups with `copy`, and removes old ones."""

    def __init__(
        self, directory: Path, *, copy: Callable[[Path], Awaitable[StoreCopy]], now: Callable[[], float]
    ) -> None:
        self.directory = directory
        self._copy = copy
        self._now = now

    async def make_backup(self, *, to: Path | None = None) -> StoreCopy:
        """Back up everything committed. A copy with contradictions is kept, too, and its name contains `.unsound`."""
        at = self._now()
        made = await self._copy(to or self.directory / f"everhold-{_format_time(at)}-0.db")
        if to is not None:
            return made
        end = ".db" if made.is_sound else ".unsound.db"
        name = made.path.name.removesuffix(".db").replace("-0", f"-{made.pos}", 1)
        return made._replace(path=made.path.rename(made.path.with_name(name + end)))

    def prune(self, keep: int) -> list[Path]:
        """Delete all but the newest `keep` sound backups. Unsound ones stay, so that an operator can examine them."""
        old = [backup.path for backup in list_backups(self.directory) if backup.is_sound][:-keep]
        for path in old:
            path.unlink(missing_ok=True)
        oldest = min((backup.pos for backup in list_backups(self.directory) if backup.is_sound), default=0)
        for it in list_increments(self.directory):
            if it.after_pos < oldest:  # nothing is left that it continues
                it.path.unlink(missing_ok=True)
        return old

    async def make_increment(self, store: IncrementSource) -> IncrementFile | None:
        """Copy what was committed after the last copy; None if nothing was, or there is no backup to continue."""
        backups = [backup for backup in list_backups(self.directory) if backup.is_sound]
        if not backups:
            return None
        base = max(backups, key=lambda backup: backup.pos)
        earlier, chain = list_increments(self.directory), find_chain(self.directory, base.pos)
        after = chain[-1].upto_pos if chain else base.pos
        rows = chain[-1].blob_row if chain else _query_number(base.path, "select max(rowid) from blobs")
        partial = self.directory / "increment.partial"
        made = await store.write_increment(
            partial, after_pos=after, recent_pos=earlier[-1].after_pos if earlier else after, blob_row=rows
        )
        if made is None:
            partial.unlink(missing_ok=True)
            return None
        at = self._now()
        name = f"increment-{made.after_pos}-{made.upto_pos}-{made.blob_row}-{_format_time(at)}.db"
        path = increments.publish(partial, self.directory / name)
        return IncrementFile(path, made.after_pos, made.upto_pos, made.blob_row, at)

    def find_newest_pos(self) -> int:
        """The last pos of the newest sound backup, -1 if there is none."""
        return max((backup.pos for backup in list_backups(self.directory) if backup.is_sound), default=-1)

    def get_seconds_until_due(self, every_hours: float) -> float:
        """Seconds until the next backup is due."""
        newest = max((backup.at for backup in list_backups(self.directory)), default=None)
        now = self._now()
        if newest is None or newest > now:  # there is none yet, or the clock jumped
            return 0.0
        return max(0.0, newest + every_hours * 3600 - now)


def _parse_time(text: str) -> float:
    return datetime.datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=datetime.UTC).timestamp()


def _format_time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(_TIME_FORMAT)


# -- restoring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RestorePlan:
    """What a restore would do. `upto_pos` is the pos to roll back to, None for everything in the source."""

    source: Path
    source_copy: StoreCopy
    upto_pos: int | None
    current_copy: StoreCopy | None
    """The present store, None if there is none or it cannot be read."""
    damage: str = ""
    """Why the present store cannot be read."""
    source_identity: tuple[int, ...] = ()
    """The file that was inspected, so that another one in its place is noticed."""
    lost_entries: int = 0
    """Entries of the present store that the restored one will not contain. They are counted, because positions have
    gaps after a power cut."""
    chain: tuple[IncrementFile, ...] = ()
    """The increments that are added to the source."""

    @property
    def last_pos(self) -> int:
        return self.chain[-1].upto_pos if self.chain else self.source_copy.pos

    @property
    def is_rollback(self) -> bool:
        """Whether the source is rolled back. Data that is not derived from entries stays as in the source."""
        return self.upto_pos is not None and self.upto_pos < self.last_pos


@dataclass(frozen=True)
class RestoreResult:
    """What a restore did."""

    pos: int
    set_aside: Path | None
    """The copy of the replaced store."""
    stopped_operations: int
    skipped_seqs: int
    """Seqs of removed entries, which are not used again."""
    salvaged: int
    """Entries after the copy that were taken from the damaged store."""
    left_out: list[str]
    """What could not be taken from it."""


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
    identity = _identify_file(chosen)
    holds = inspect_copy(chosen)
    uses_increments = not source and chosen != home.store and (present is None or bool(at))
    chain = find_chain(directory, holds.pos) if uses_increments else []
    upto = _find_pos([chosen, *(it.path for it in chain)], at) if at else None
    end = chain[-1].upto_pos if chain else holds.pos
    if upto is not None and not 0 < upto <= end:
        raise NotFound(
            f"{(chain[-1].path if chain else chosen).name} ends at pos {end}, so there is no {at}",
            remedy="`everhold restore` without --at lists the backups",
        )
    loses = 0 if present is None else _query_number(home.store, _COUNT_AFTER_POS, upto or end)
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


def _identify_file(path: Path) -> tuple[int, ...]:
    """Return values that change when a file is replaced or written to; none if there is no file."""
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def restore_store(home: Home, what: RestorePlan, *, now: float, chance: RandomSource) -> RestoreResult:
    """Run a restore. The caller holds the home's lock. After every step there is either the complete old store, or one
    that is refused with a remedy.

    First the present store is copied and the copy checked. Then the new store is made beside it and checked. Then it
    replaces the present one. An interrupted restore can be run again.
    """
    new = home.store.with_name(home.store.name + ".restored")
    sizes = what.source_copy.size_bytes + (home.store.stat().st_size if home.store.exists() else 0)
    migrate.check_disk_space(home.path, sizes)
    for leftover in home.path.glob(new.name + "*"):
        leftover.unlink()
    # the home may be a new one, which does not know what was erased after the copy was made
    add_missing_lines(what.source.with_name(home.erasures.name), home.erasures, is_valid=is_erasure_line)
    reached = read_last_seqs(home.store)
    set_aside = _set_current_aside(home, what, now=now)
    _copy_store(what.source, new)
    if _identify_file(what.source) != what.source_identity:
        new.unlink()
        raise StoreError(
            f"{what.source} changed while it was being restored", remedy="nothing was changed; check it, and try again"
        )
    _add_increments(new, what, now=now, chance=chance)
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


def _add_increments(new: Path, what: RestorePlan, *, now: float, chance: RandomSource) -> None:
    """Add the increments to the copy. A damaged one is refused, because those after it would not follow."""
    if not what.chain:
        return
    db = connect.open_for_writing(new, synchronous="FULL")
    with contextlib.ExitStack() as opened:
        opened.callback(db.close)
        sources = []
        for it in what.chain:
            migrate.inspect_header(it.path)
            source = connect.open_for_reading(it.path)
            opened.callback(source.close)
            sources.append((source, it.upto_pos))
        done = add_newer_entries(db, sources, at=now, chance=chance)
        db.pragma("journal_mode", "delete")
    if done.left_out:
        raise StoreDamaged(
            f"an increment in {what.chain[0].path.parent} is damaged: {done.left_out[0]}",
            remedy="nothing was changed; move the damaged increment away, then try again to restore up to it",
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
        return _query_number(store, _SELECT_LAST_POS)
    except (StoreError, OSError):
        return 0


def _inspect_current(home: Home) -> tuple[StoreCopy | None, str]:
    if not home.store.exists():
        return None, ""
    try:
        watermark.check_watermark(
            watermark.build_watermark_path(home.store), _query_number(home.store, _SELECT_LAST_POS)
        )
        return inspect_copy(home.store), ""
    except StoreError as error:
        return None, error.message


def _query_number(store: Path, sql: str, *values: int) -> int:
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
            return migrate.copy_database(db, home.backups / f"before-restore-{_format_time(now)}.db")
        finally:
            db.close()
    folder = home.backups / f"damaged-{_format_time(now)}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in home.path.glob(home.store.name + "*"):
        if file.suffix != ".restored":
            shutil.copy2(file, folder / file.name)
            migrate.sync_path(folder / file.name)
    migrate.sync_path(folder)
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
    migrate.sync_path(new)
    if whole:  # move everything from the old write-ahead log into the database, because the log is deleted first
        db = connect.open_for_writing(home.store, synchronous="FULL")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        db.close()
    for side in ("-wal", "-shm"):
        home.store.with_name(home.store.name + side).unlink(missing_ok=True)
    new.replace(home.store)
    migrate.sync_path(home.path)
    watermark.build_watermark_path(home.store).unlink(missing_ok=True)  # it belongs to the replaced log
    for file in home.path.glob(home.index.name + "*"):
        file.unlink()  # it is rebuilt from the log


def list_copies(directory: Path) -> list[dict[str, Any]]:
    """The backups in `directory` as users see them, oldest first."""
    return [
        {
            "path": str(backup.path),
            "at": backup.at,
            "pos": backup.pos,
            "bytes": backup.path.stat().st_size,
            "sound": backup.is_sound,
        }
        for backup in list_backups(directory)
    ]


def render_copy(made: StoreCopy, gone: Sequence[Path] = ()) -> dict[str, Any]:
    return {
        "path": str(made.path),
        "bytes": made.size_bytes,
        "pos": made.pos,
        "sessions": made.sessions,
        "entries": made.entries,
        "sound": made.is_sound,
        "wrong": made.contradictions,
        "broken": made.broken_promises,
        "removed": [str(path) for path in gone],
    }


def render_restore_plan(what: RestorePlan) -> dict[str, Any]:
    return {
        "source": str(what.source),
        "pos": what.upto_pos or what.last_pos,
        "increments": len(what.chain),
        "newest": what.source_copy.newest_at,
        "sessions": what.source_copy.sessions,
        "entries": what.source_copy.entries,
        "sound": what.source_copy.is_sound,
        "wrong": what.source_copy.contradictions,
        "broken": what.source_copy.broken_promises,
        "takes_back": what.lost_entries,
        "stays": ["schedules", "platform positions"] if what.is_rollback else [],
        "damage": what.damage,
    }
