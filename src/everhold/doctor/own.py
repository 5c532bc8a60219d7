"""Looks at our own home: files, configuration, store, lanes, copies, disk, clock, service. It only looks."""

from __future__ import annotations

import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw

from everhold.app import settings_of
from everhold.backups import kept
from everhold.config import ConfigError, Problem, Settings
from everhold.core.wording import describe_count
from everhold.doctor.finding import Finding
from everhold.errors import EverholdError, StoreError
from everhold.home import Home
from everhold.service import place
from everhold.service.manager import of_this_machine
from everhold.stores.sqlite import backup, connect, mark, migrate

OLDEST_SQLITE: Final = (3, 51, 3)
"""Older ones can lose pages of the write-ahead log."""
LAG_SECONDS: Final = 600.0
LEAST_FREE: Final = 256 << 20
AHEAD_SECONDS: Final = 120.0
"""How far in the future an entry may lie before the clock is doubted."""

SYSTEM_UNIT: Final = Path("/etc/systemd/system/everhold.service")


@dataclass(frozen=True)
class Cure:
    """A finding, and what `--fix` would do about it."""

    finding: Finding
    act: Callable[[], str] | None = None
    """Does it; what was done."""


@dataclass
class Look:
    """One look at a home. `alone`: no other process holds it, so that files may be changed."""

    home: Home
    environ: Mapping[str, str]
    now: float
    alone: bool
    status: Mapping[str, Any] | None = None
    """What a running gateway says about itself."""
    settings: Settings | None = None

    def cures(self) -> Iterator[Cure]:
        if not self.home.path.exists():
            yield _cure("home", f"there is no {self.home.path}", "`everhold chat` makes one; --home names another")
            return
        yield from self._files()
        yield from self._configuration()
        yield from self._library()
        if self.home.store.exists() or mark.beside(self.home.store).exists():
            yield from self._store()
        yield from self._copies()
        yield from self._index()
        yield from self._disk()
        yield from self._gateway()
        yield from self._service()

    def concerning(self, keys: Sequence[str]) -> Iterator[Cure]:
        """The short look after something was written: the files it went to, and what is said about these keys."""
        yield from self._files()
        for cure in self._configuration():
            if any(key in cure.finding.text for key in keys):
                yield cure
        if "service" in keys:
            yield from self._service()
        yield from self._disk()

    # -- files -------------------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[Cure]:
        try:
            self.home.check()
        except ConfigError as error:
            for problem in error.problems:
                path = Path(problem.file or str(self.home.path))
                act = _chmod(path, 0o700) if "others may write" in problem.message else None
                yield _cure("home", f"{problem.file}: {problem.message}", problem.remedy, act=act)
        private = [
            self.home.env,
            self.home.salt,
            self.home.store,
            self.home.index,
            self.home.erasures,
            self.home.last_good,
        ]
        private += [*self.home.path.glob("everhold.db-*"), *self.home.backups.glob("*.db"), *self.home.logs.glob("*")]
        for path in private if sys.platform != "win32" else ():  # whose modes say nothing about who may read
            if path.is_file() and not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077:
                yield _cure("permissions", f"others may read {path}", f"chmod 600 {path}", act=_chmod(path, 0o600))
        for path in [*self.home.path.glob("*.restored*"), *self.home.backups.glob("*.partial")]:
            note = f"{path.name} was left behind by something that did not finish"
            yield _cure("leftover", note, f"rm {path}", level="note", act=_remove(path) if self.alone else None)

    def _configuration(self) -> Iterator[Cure]:
        try:
            self.settings = settings_of(self.home, environ=self.environ)
        except ConfigError as error:
            for problem in error.problems:
                yield _cure("config", _where(problem), problem.remedy or "everhold config check")
            return
        for problem in self.settings.problems:
            check = "secrets" if "not set" in problem.message else "config"
            yield _cure(check, f"{_where(problem)}; it is off until then", problem.remedy or "everhold config check")

    def _library(self) -> Iterator[Cure]:
        version = tuple(int(part) for part in apsw.sqlite_lib_version().split(".")[:3])
        if version < OLDEST_SQLITE:
            yield _cure(
                "sqlite", f"SQLite {apsw.sqlite_lib_version()} can lose pages of the log", "pip install -U apsw"
            )

    # -- the store ---------------------------------------------------------------------------------------------------

    def _store(self) -> Iterator[Cure]:
        store = self.home.store
        try:
            held = backup.inspect(store)
            mark.check(mark.beside(store), held.pos)
        except StoreError as error:
            yield _cure("store", error.message, error.remedy)
            return
        for line in held.wrong[:20]:
            yield _cure("integrity", line, "everhold restore; the last copy may have it as it was")
        for line in held.broken[:20]:
            yield _cure("promises", line, "everhold audit says more; please report it")
        if held.newest > self.now + AHEAD_SECONDS:
            ahead = int(held.newest - self.now)
            yield _cure(
                "clock", f"the log is {ahead} s ahead of this machine's clock", "set the clock: timedatectl status"
            )
        db = connect.for_reading(store)
        try:
            yield from self._pragmas(db)
            yield from self._lanes(db)
        except apsw.Error as error:
            yield _cure("store", str(error), "everhold restore")
        finally:
            db.close()

    def _pragmas(self, db: apsw.Connection) -> Iterator[Cure]:
        mode = str(db.pragma("journal_mode"))
        if mode != "wal":
            yield _cure("sqlite", f"the store is in {mode} mode", "`everhold up` puts it right", level="note")
        newest = migrate.known()[-1].number
        if db.pragma("user_version") < newest:
            yield _cure("sqlite", "the store has an older schema", "the next start upgrades it", level="note")

    def _lanes(self, db: apsw.Connection) -> Iterator[Cure]:
        late = db.execute(
            "select consumer, count(*), min(since), max(attempts), max(error) from cursors "
            "where due is not null and (error <> '' or since < ?) group by consumer order by consumer",
            (self.now - LAG_SECONDS,),
        )
        for reader, count, since, attempts, error in late:
            waited = int(max(0.0, self.now - since)) // 60
            text = f"{reader} is behind in {describe_count(count, 'session')}, the oldest for {waited} min"
            if error:
                yield _cure(
                    "lanes", f"{text}: {error} (tried {attempts} times)", "it is tried again by itself; everhold logs"
                )
            elif self.status is None:
                yield _cure("lanes", f"{text}: nobody is working", "everhold up")
            else:
                yield _cure("lanes", text, "everhold logs", level="note")
        parked = db.execute(
            "select consumer, count(*), max(reason) from dead_letters where state = 'dead' group by 1 order by 1"
        )
        for reader, count, reason in parked:
            text = f"{reader} gave up on {describe_count(count, 'item')}: {reason}"
            yield _cure("parked", text, "everhold dead-letters list; everhold dead-letters replay")

    # -- around it ---------------------------------------------------------------------------------------------------

    def _copies(self) -> Iterator[Cure]:
        wanted = self.settings.backup if self.settings else None
        if not self.home.store.exists() or wanted is None or not wanted.every_hours:
            return
        there = [it for it in kept(self.home.backups) if it.sound]
        began = self.home.store.stat().st_ctime
        newest = max((it.at for it in there), default=None)
        due = 2 * wanted.every_hours * 3600
        grown = not there or there[-1].pos < _last_pos(self.home.store)
        if grown and self.now - (newest or began) > due:
            since = "there is none" if newest is None else f"the last is {int((self.now - newest) // 3600)} h old"
            yield _cure(
                "backup", f"no recent copy of the store: {since}", "everhold backup; `everhold up` makes them by itself"
            )
        for it in kept(self.home.backups):
            if not it.sound:
                yield _cure("backup", f"{it.path.name} is a copy that was not sound", "everhold audit", level="note")

    def _index(self) -> Iterator[Cure]:
        if not self.home.index.exists():
            return
        try:
            db = apsw.Connection(str(self.home.index), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                found = [str(row[0]) for row in db.execute("pragma quick_check(3)")]
            finally:
                db.close()
        except apsw.Error as error:
            found = [str(error)]
        if found != ["ok"]:
            act = _remove(self.home.index, *self.home.path.glob("index.db-*")) if self.alone else None
            text = f"the search index is damaged: {found[0]}"
            yield _cure("index", text, f"rm {self.home.index}; it is made again from the log", act=act)

    def _disk(self) -> Iterator[Cure]:
        disk = shutil.disk_usage(self.home.path)
        size = self.home.store.stat().st_size if self.home.store.exists() else 0
        needed = max(LEAST_FREE, 2 * size)
        if disk.free < needed:
            text = f"{disk.free >> 20} MB are free where the home is, and {needed >> 20} MB are wanted"
            yield _cure("disk", text, f"free space on the disk of {self.home.path}")

    def _gateway(self) -> Iterator[Cure]:
        if self.status is None:
            return
        for account in self.status.get("accounts", ()):
            if account.get("trouble"):
                name = f"{account['platform']}/{account['account']}"
                yield _cure("platform", f"{name}: {account['trouble']}", "everhold status")
        if self.status.get("store"):
            yield _cure("store", str(self.status["store"]), "everhold logs")
        for problem in self.status.get("refused", ()):
            said = ": ".join(part for part in ("refused", problem["key"], problem["message"]) if part)
            yield _cure("config", said, problem["remedy"])

    def _service(self) -> Iterator[Cure]:
        try:
            manager = of_this_machine(self.environ)
            found = place.of_home(manager, self.home)
            usual = place.look(manager, place.NAME)
        except EverholdError as error:  # a file that cannot be read, or a system without a manager we know
            if sys.platform != "win32":
                yield _cure("service", error.message, error.remedy, level="note")
            return
        if found is None and SYSTEM_UNIT.is_file():  # one that an administrator wrote; nothing of it is ours
            found = place.Found(place.NAME, SYSTEM_UNIT, manager.read(SYSTEM_UNIT.read_text("utf-8", "replace")))
        for level, text, remedy in place.complaints(found) if found is not None else ():
            yield _cure("service", text, remedy, level=level)
        if found is None and usual is not None:
            text = f"{usual.path} starts another home: {usual.written.home or 'unknown'}"
            yield _cure(
                "service", text, "everhold service install --name NAME, if this one shall run, too", level="note"
            )
        if found is not None and self.status is None:
            text = f"{found.path} is installed, and no gateway answers"
            yield _cure("service", text, "everhold service start; everhold service status", level="note")


def _last_pos(store: Path) -> int:
    try:
        db = connect.for_reading(store)
        try:
            return int(db.execute("select max(pos) from entries").get or 0)
        finally:
            db.close()
    except apsw.Error:
        return 0


def _where(problem: Problem) -> str:
    where = f"{problem.file}:{problem.line}" if problem.line else problem.file
    return ": ".join(part for part in (where, problem.key, problem.message) if part)


def _cure(check: str, text: str, remedy: str, *, level: Any = "wrong", act: Callable[[], str] | None = None) -> Cure:
    return Cure(Finding(check, text, remedy=remedy, level=level), act)


def _chmod(path: Path, mode: int) -> Callable[[], str]:
    def act() -> str:
        path.chmod(mode)
        return f"chmod {mode:o} {path}"

    return act


def _remove(*paths: Path) -> Callable[[], str]:
    def act() -> str:
        for path in paths:
            path.unlink(missing_ok=True)
        return f"removed {', '.join(path.name for path in paths)}"

    return act
