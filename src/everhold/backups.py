"""Copies of the store: made while it is in use, looked into, kept for a while, and put back. Config and secrets are
not in them; the search index is not, either, since it is made again from the log.
"""

from __future__ import annotations

import datetime
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from everhold.errors import Misuse, NotFound, StoreDamaged, StoreError
from everhold.home import Home
from everhold.ports.clock import Chance
from everhold.stores.sqlite import connect, mark, migrate, rebuild
from everhold.stores.sqlite.backup import Copy, inspect, lasts

_NAME: Final = re.compile(r"everhold-(\d{8}T\d{6}Z)-(\d+)(?:-\d+)?(\.unsound)?\.db")
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_LAST: Final = "select max(pos) from entries"
_BEHIND: Final = "select count(*) from entries where pos > ?"


class Kept(NamedTuple):
    """A copy in the home's `backups/`, as its name tells it."""

    path: Path
    at: float
    pos: int
    sound: bool


def kept(directory: Path) -> list[Kept]:
    """The copies there are, oldest first. What an upgrade or a restore set aside is not among them."""
    found = []
    for path in directory.glob("everhold-*.db"):
        if (named := _NAME.fullmatch(path.name)) is not None:
            at = datetime.datetime.strptime(named[1], _STAMP).replace(tzinfo=datetime.UTC).timestamp()
            found.append(Kept(path, at, int(named[2]), not named[3]))
    return sorted(found, key=lambda it: (it.at, it.path.name))


def set_aside(directory: Path) -> list[Path]:
    """What restores and upgrades left there of the stores before them. Nobody removes it but a person."""
    found = (directory.glob(pattern) for pattern in ("before-restore-*.db", "*-before-[0-9]*.db", "damaged-*"))
    return sorted(path for paths in found for path in paths)


class Backups:
    """Makes copies through `copy`, and keeps as many as it is told to."""

    def __init__(self, directory: Path, *, copy: Callable[[Path], Awaitable[Copy]], now: Callable[[], float]) -> None:
        self.directory = directory
        self._copy = copy
        self._now = now

    async def take(self, *, to: Path | None = None) -> Copy:
        """A copy of everything committed. One that contradicts itself is kept, too, under a name that says so."""
        at = self._now()
        made = await self._copy(to or self.directory / f"everhold-{_stamp(at)}-0.db")
        if to is not None:
            return made
        end = ".db" if made.sound else ".unsound.db"
        name = made.path.name.removesuffix(".db").replace("-0", f"-{made.pos}", 1)
        return made._replace(path=made.path.rename(made.path.with_name(name + end)))

    def prune(self, keep: int) -> list[Path]:
        """Let the oldest sound copies go. Those that are not sound stay: somebody will want to look at them."""
        old = [it.path for it in kept(self.directory) if it.sound][:-keep]
        for path in old:
            path.unlink(missing_ok=True)
        return old

    def newest_pos(self) -> int:
        """How far the newest sound copy reaches, -1 if there is none."""
        return max((it.pos for it in kept(self.directory) if it.sound), default=-1)

    def wait(self, every_hours: float) -> float:
        """Seconds until the next copy is due."""
        newest = max((it.at for it in kept(self.directory)), default=None)
        now = self._now()
        if newest is None or newest > now:  # none yet, or a clock that jumped
            return 0.0
        return max(0.0, newest + every_hours * 3600 - now)


def _stamp(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(_STAMP)


# -- putting one back --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a restore would do. `upto` is the position it goes back to, None for all that the source holds."""

    source: Path
    holds: Copy
    upto: int | None
    replaces: Copy | None
    """The store that is there now, None if there is none or it does not read."""
    damage: str = ""
    """Why the store that is there does not read."""
    loses: int = 0
    """Entries of the present store that will not be in force. They are counted: positions have gaps after a fall."""

    @property
    def cuts(self) -> bool:
        """Whether the source is taken back. What follows from no entry stays as the source has it."""
        return self.upto is not None and self.upto < self.holds.pos


@dataclass(frozen=True)
class Restored:
    """What a restore did."""

    pos: int
    set_aside: Path | None
    """Where what was there before lies now."""
    stopped: int
    left_out: int
    """Numbers that were in use behind that position and are not given out again."""


def plan(home: Home, *, source: str = "", at: str = "") -> Plan:
    """What to put in the store's place: `source` (a file, or one of `backups/`), else what `at` needs, else the newest.

    `at` is a position of the log, or a time; what the store itself still holds is the best source for either.
    """
    present, damage = _present(home)
    chosen = _chosen(home, source, at, present)
    holds = inspect(chosen)
    upto = _position(chosen, at) if at else None
    if upto is not None and not 0 < upto <= holds.pos:
        raise NotFound(
            f"{chosen.name} goes up to position {holds.pos}, not to {at}",
            remedy="`everhold restore` without --at lists the copies there are",
        )
    loses = 0 if present is None else _number(home.store, _BEHIND, upto or holds.pos)
    return Plan(source=chosen, holds=holds, upto=upto, replaces=present, damage=damage, loses=loses)


def restore(home: Home, what: Plan, *, now: float, chance: Chance) -> Restored:
    """Do it. The caller holds the home. At every step there is either the old store, whole, or one that says why not.

    First what is there is set aside and checked; then the new store is made beside it and checked; then they change
    places. Whoever is interrupted runs it again.
    """
    new = home.store.with_name(home.store.name + ".restored")
    sizes = what.holds.bytes + (home.store.stat().st_size if home.store.exists() else 0)
    migrate.room_for(home.path, sizes)
    for leftover in home.path.glob(new.name + "*"):
        leftover.unlink()
    reached = lasts(home.store)
    set_aside = _set_aside(home, what, now=now)
    _copy(what.source, new)
    stopped, left_out = _shape(new, what.upto, reached, now=now, chance=chance)
    made = inspect(new)
    if made.wrong and not what.holds.wrong:
        raise StoreDamaged(f"what was made of {what.source.name} is not sound: {made.wrong[0]}", remedy="report this")
    _swap(home, new, whole=what.replaces is not None)
    return Restored(pos=made.pos, set_aside=set_aside, stopped=stopped, left_out=left_out)


def _present(home: Home) -> tuple[Copy | None, str]:
    if not home.store.exists():
        return None, ""
    try:
        mark.check(mark.beside(home.store), _number(home.store, _LAST))
        return inspect(home.store), ""
    except StoreError as error:
        return None, error.message


def _number(store: Path, sql: str, *values: int) -> int:
    migrate.inspect(store)
    try:
        db = connect.for_reading(store)
        try:
            return int(db.execute(sql, values).get or 0)
        finally:
            db.close()
    except apsw.Error as error:
        raise StoreDamaged(f"{store} does not read: {error}") from error


def _chosen(home: Home, source: str, at: str, present: Copy | None) -> Path:
    there = [it for it in kept(home.backups) if it.sound]
    if source and source != "last":
        path = Path(source).expanduser()
        return path if path.is_file() or not (home.backups / source).is_file() else home.backups / source
    if at and present is not None and not source:
        return home.store
    if not there:
        raise NotFound(f"there is no copy in {home.backups}", remedy="name a file: everhold restore FILE")
    if at.isdecimal():
        return next((it.path for it in there if it.pos >= int(at)), there[-1].path)
    if at:
        moment = when(at)
        return next((it.path for it in there if it.at >= moment), there[-1].path)
    return there[-1].path


def _position(source: Path, at: str) -> int:
    if at.isdecimal():
        return int(at)
    db = connect.for_reading(source)
    try:
        return rebuild.position_at(db, when(at))
    finally:
        db.close()


def when(text: str) -> float:
    """A moment as people write it: 2026-08-01T10:15, with or without seconds and zone; here if without."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        raise Misuse(
            f"{text!r} is no position and no time", remedy="for example --at 1234 or --at 2026-08-01T10:15"
        ) from None


def _set_aside(home: Home, what: Plan, *, now: float) -> Path | None:
    """A checked copy of the store that is there; of a damaged one, its files as they are."""
    if not home.store.exists() and not mark.beside(home.store).exists():
        return None
    if what.replaces is not None:
        db = connect.for_reading(home.store)
        try:
            return migrate.back_up(db, home.backups / f"before-restore-{_stamp(now)}.db")
        finally:
            db.close()
    folder = home.backups / f"damaged-{_stamp(now)}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in home.path.glob(home.store.name + "*"):
        if file.suffix != ".restored":
            shutil.copy2(file, folder / file.name)
            migrate.sync(folder / file.name)
    migrate.sync(folder)
    return folder


def _copy(source: Path, to: Path) -> None:
    db = connect.for_reading(source)
    try:
        made = migrate.back_up(db, to)
    finally:
        db.close()
    assert made == to


def _shape(new: Path, upto: int | None, reached: dict[str, int], *, now: float, chance: Chance) -> tuple[int, int]:
    """Take the copy back to `upto`, and let no number be used again that was used before."""
    db = connect.for_writing(new, synchronous="FULL")
    try:
        stopped = 0 if upto is None else rebuild.cut(db, upto, at=now, chance=chance).stopped
        left_out = rebuild.use_up(db, reached, at=now, chance=chance, why="not in the copy that was put back")
        db.pragma("journal_mode", "delete")
    except apsw.Error as error:
        raise StoreError(f"{new}: {error}", remedy="nothing was changed; try again") from error
    finally:
        db.close()
    return stopped, left_out


def _swap(home: Home, new: Path, *, whole: bool) -> None:
    """The last step. A log that is left without its database, or the other way round, is refused with the remedy."""
    migrate.sync(new)
    if whole:  # so that nothing of the old store is in its log alone while they change places
        db = connect.for_writing(home.store, synchronous="FULL")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        db.close()
    for side in ("-wal", "-shm"):
        home.store.with_name(home.store.name + side).unlink(missing_ok=True)
    new.replace(home.store)
    migrate.sync(home.path)
    mark.beside(home.store).unlink(missing_ok=True)  # it witnesses for the log that was replaced
    for file in home.path.glob(home.index.name + "*"):
        file.unlink()  # made again from the log


def list_copies(directory: Path) -> list[dict[str, Any]]:
    """The copies in `directory` as users see them, oldest first."""
    return [
        {"path": str(it.path), "at": it.at, "position": it.pos, "bytes": it.path.stat().st_size, "sound": it.sound}
        for it in kept(directory)
    ]


def copy_json(made: Copy, gone: Sequence[Path] = ()) -> dict[str, Any]:
    return {
        "path": str(made.path),
        "bytes": made.bytes,
        "position": made.pos,
        "sessions": made.sessions,
        "entries": made.entries,
        "sound": made.sound,
        "wrong": made.wrong,
        "broken": made.broken,
        "removed": [str(path) for path in gone],
    }


def plan_json(what: Plan) -> dict[str, Any]:
    return {
        "source": str(what.source),
        "position": what.upto or what.holds.pos,
        "newest": what.holds.newest,
        "sessions": what.holds.sessions,
        "entries": what.holds.entries,
        "sound": what.holds.sound,
        "wrong": what.holds.wrong,
        "broken": what.holds.broken,
        "takes_back": what.loses,
        "stays": ["schedules", "platform positions"] if what.cuts else [],
        "damage": what.damage,
    }
