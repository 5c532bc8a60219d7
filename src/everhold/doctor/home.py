"""Check a home of everhold: files, configuration, store, cursors, backups, disk, clock and service. Changes nothing."""

from __future__ import annotations

import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everhold.app import load_home_settings
from everhold.assembly import stores
from everhold.assembly.agents import build_policy
from everhold.assembly.plugin_tools import list_trusted_tools
from everhold.config import ConfigError, ConfigProblem, Settings
from everhold.core.policy import names_tools
from everhold.core.wording import describe_count
from everhold.doctor.finding import DoctorFinding
from everhold.errors import EverholdError, StoreError
from everhold.infra.backup_files import choose_directory, list_backups
from everhold.infra.home import Home
from everhold.memories.builtin.index_check import find_index_damage
from everhold.ports.store_files import StoreCheckup
from everhold.service import installation
from everhold.service.manager import detect_service_backend

MAX_LAG_SECONDS: Final = 600.0
MIN_FREE_BYTES: Final = 256 << 20
MAX_CLOCK_AHEAD_SECONDS: Final = 120.0
"""How far the newest entry may be in the future before the clock is reported as wrong."""

SYSTEM_UNIT: Final = Path("/etc/systemd/system/everhold.service")


@dataclass(frozen=True)
class FixableFinding:
    """A finding, and its repair by `--fix`."""

    finding: DoctorFinding
    fix: Callable[[], str] | None = None
    """Repairs it, and returns what was done."""


@dataclass
class HomeCheckup:
    """One checkup of a home. `holds_home`: this process holds the lock, so files may be changed."""

    home: Home
    environ: Mapping[str, str]
    now: float
    holds_home: bool
    status: Mapping[str, Any] | None = None
    """The status of the running gateway."""
    settings: Settings | None = None

    def find_problems(self) -> Iterator[FixableFinding]:
        if not self.home.path.exists():
            yield _make_finding(
                "home", f"there is no {self.home.path}", "create it with `everhold chat`, or name another with --home"
            )
            return
        yield from self._check_files()
        yield from self._check_configuration()
        yield from self._check_trusted_tools()
        yield from self._check_unruled_tools()
        yield from self._check_library()
        if stores.is_store_present(self.home.store):
            yield from self._check_store()
        yield from self._check_backups()
        yield from self._check_index()
        yield from self._check_disk()
        yield from self._check_gateway()
        yield from self._check_service()

    def check_keys(self, keys: Sequence[str]) -> Iterator[FixableFinding]:
        """Run the short checkup after a change: files, disk, and problems with these keys."""
        yield from self._check_files()
        for fixable in self._check_configuration():
            if any(key in fixable.finding.text for key in keys):
                yield fixable
        if "service" in keys:
            yield from self._check_service()
        yield from self._check_disk()

    # -- files -------------------------------------------------------------------------------------------------------

    def _check_files(self) -> Iterator[FixableFinding]:
        try:
            self.home.check_private()
        except ConfigError as error:
            for problem in error.problems:
                path = Path(problem.file or str(self.home.path))
                act = _make_chmod_fix(path, 0o700) if "others may write" in problem.message else None
                yield _make_finding("home", f"{problem.file}: {problem.message}", problem.remedy, act=act)
        private = [
            self.home.env,
            self.home.salt,
            self.home.store,
            self.home.index,
            self.home.erasures,
            self.home.last_good,
        ]
        private += [*self.home.path.glob("everhold.db-*"), *self.home.backups.glob("*.db"), *self.home.logs.glob("*")]
        for path in private if sys.platform != "win32" else ():  # file modes on Windows do not show who may read
            if path.is_file() and not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077:
                yield _make_finding(
                    "permissions", f"others may read {path}", f"chmod 600 {path}", act=_make_chmod_fix(path, 0o600)
                )
        for path in [*self.home.path.glob("*.restored*"), *self.home.backups.glob("*.partial")]:
            note = f"{path.name} is left from an operation that did not finish"
            yield _make_finding(
                "leftover", note, f"rm {path}", level="note", act=_make_removal_fix(path) if self.holds_home else None
            )

    def _check_configuration(self) -> Iterator[FixableFinding]:
        try:
            self.settings = load_home_settings(self.home, environ=self.environ)
        except ConfigError as error:
            for problem in error.problems:
                yield _make_finding("config", _format_problem(problem), problem.remedy or "everhold config check")
            return
        for problem in self.settings.problems:
            check = "secrets" if "not set" in problem.message else "config"
            yield _make_finding(
                check,
                f"{_format_problem(problem)}{'; it is disabled until then' if problem.disables else ''}",
                problem.remedy or "everhold config check",
            )

    def _check_trusted_tools(self) -> Iterator[FixableFinding]:
        """Name the packages whose code runs in the gateway because an agent uses a tool of theirs."""
        for tool in list_trusted_tools(self.settings) if self.settings is not None else ():
            text = (
                f"{tool['name']} is trusted code of the package {tool['package']}: it runs in the gateway and can do "
                "all that it can"
            )
            remedy = f"if you do not trust it, remove it from `tools` of {', '.join(tool['agents'])}"
            yield _make_finding("tools", text, remedy, level="note")

    def _check_unruled_tools(self) -> Iterator[FixableFinding]:
        """Name the tool servers whose calls need an approval. Before there was a policy, they ran unasked."""
        if self.settings is None:
            return
        policy = build_policy(self.settings.policy)
        servers = {
            tool.removeprefix("mcp:")
            for agent in self.settings.agents.values()
            for tool in agent.tools
            if tool.startswith("mcp:")
        }
        for server in sorted(servers):
            if not names_tools(policy, f"{server}_"):
                yield _make_finding(
                    "policy",
                    f"no rule allows the tools of the server {server}, so an owner is asked before each of their "
                    "calls, and nobody else gets them",
                    f'`policy: {{rules: [{{tool: "{server}_*", do: allow}}], after_foreign: allow}}` lets them run '
                    "unasked for every member, as before there was a policy",
                    level="note",
                )

    def _check_library(self) -> Iterator[FixableFinding]:
        if problem := stores.find_library_problem():
            yield _make_finding("sqlite", problem, "pip install -U apsw")

    # -- the store ---------------------------------------------------------------------------------------------------

    def _check_store(self) -> Iterator[FixableFinding]:
        try:
            found = stores.examine_store(self.home.store, late_before=self.now - MAX_LAG_SECONDS)
        except StoreError as error:
            yield _make_finding("store", error.message, error.remedy)
            return
        for line in found.copy.contradictions[:20]:
            yield _make_finding("integrity", line, "everhold restore; the last backup may be intact")
        for line in found.copy.broken_promises[:20]:
            yield _make_finding("promises", line, "run everhold audit for details, and please report it")
        if found.copy.newest_at > self.now + MAX_CLOCK_AHEAD_SECONDS:
            ahead = int(found.copy.newest_at - self.now)
            yield _make_finding(
                "clock", f"the log is {ahead} s ahead of this machine's clock", "set the clock: timedatectl status"
            )
        for text, remedy in found.notes:
            yield _make_finding("sqlite", text, remedy, level="note")
        yield from self._describe_delays(found)
        for given_up in found.given_up:
            text = f"{given_up.consumer} gave up on {describe_count(given_up.items, 'item')}: {given_up.reason}"
            yield _make_finding("dead_letters", text, "everhold dead-letters list; everhold dead-letters replay")

    def _describe_delays(self, found: StoreCheckup) -> Iterator[FixableFinding]:
        for it in found.delays:
            waited = int(max(0.0, self.now - it.since)) // 60
            text = (
                f"{it.consumer} has a backlog in {describe_count(it.cursors, 'session')}, the oldest for {waited} min"
            )
            if it.error:
                text = f"{text}: {it.error} (tried {it.attempts} times)"
                yield _make_finding("cursors", text, "everhold retries by itself; everhold logs")
            elif self.status is None:
                yield _make_finding("cursors", f"{text}: no gateway is running", "everhold up")
            else:
                yield _make_finding("cursors", text, "everhold logs", level="note")

    # -- backups, index, disk, gateway, service ----------------------------------------------------------------------

    def _check_backups(self) -> Iterator[FixableFinding]:
        wanted = self.settings.backup if self.settings else None
        if not self.home.store.exists() or wanted is None or not wanted.every_hours:
            return
        directory = choose_directory(self.home, wanted.directory)
        there = [it for it in list_backups(directory) if it.is_sound]
        began = self.home.store.stat().st_ctime
        newest = max((it.at for it in there), default=None)
        due = 2 * wanted.every_hours * 3600
        grown = not there or there[-1].pos < stores.read_last_pos(self.home.store)
        if grown and self.now - (newest or began) > due:
            since = "there is none" if newest is None else f"the newest is {int((self.now - newest) // 3600)} h old"
            yield _make_finding(
                "backup",
                f"no recent backup of the store: {since}",
                "everhold backup; `everhold up` makes backups by itself",
            )
        for it in list_backups(directory):
            if not it.is_sound:
                yield _make_finding(
                    "backup", f"{it.path.name} is a backup of a damaged store", "everhold audit", level="note"
                )

    def _check_index(self) -> Iterator[FixableFinding]:
        if damage := find_index_damage(self.home.index):
            act = _make_removal_fix(self.home.index, *self.home.path.glob("index.db-*")) if self.holds_home else None
            text = f"the search index is damaged: {damage}"
            yield _make_finding("index", text, f"rm {self.home.index}; everhold rebuilds it from the log", act=act)

    def _check_disk(self) -> Iterator[FixableFinding]:
        disk = shutil.disk_usage(self.home.path)
        size = self.home.store.stat().st_size if self.home.store.exists() else 0
        needed = max(MIN_FREE_BYTES, 2 * size)
        if disk.free < needed:
            text = f"{disk.free >> 20} MB are free on the home's disk, {needed >> 20} MB are needed"
            yield _make_finding("disk", text, f"free space on the disk of {self.home.path}")

    def _check_gateway(self) -> Iterator[FixableFinding]:
        if self.status is None:
            return
        for account in self.status.get("accounts", ()):
            if account.get("trouble"):
                name = f"{account['platform']}/{account['account']}"
                yield _make_finding("platform", f"{name}: {account['trouble']}", "everhold status")
        if self.status.get("store"):
            yield _make_finding("store", str(self.status["store"]), "everhold logs")
        known = {problem.key for problem in self.settings.problems} if self.settings is not None else set()
        for problem in self.status.get("problems", ()):
            if problem["key"].startswith("mcp.") and problem["key"] not in known:
                yield _make_finding("tools", f"{problem['key']}: {problem['message']}", problem["remedy"])
        for risk in self.status.get("risks", ()):
            yield _make_finding("sandbox", f"{risk['key']}: {risk['message']}", risk["remedy"], level="note")
        for problem in self.status.get("refused", ()):
            text = ": ".join(part for part in ("refused", problem["key"], problem["message"]) if part)
            yield _make_finding("config", text, problem["remedy"])

    def _check_service(self) -> Iterator[FixableFinding]:
        try:
            manager = detect_service_backend(self.environ)
            found = installation.find_service_of_home(manager, self.home)
            usual = installation.read_service(manager, installation.SERVICE_NAME)
        except EverholdError as error:  # a file that cannot be read, or a system without a supported manager
            if sys.platform != "win32":
                yield _make_finding("service", error.message, error.remedy, level="note")
            return
        if found is None and SYSTEM_UNIT.is_file():  # a system unit, written by an administrator
            found = installation.InstalledService(
                installation.SERVICE_NAME,
                SYSTEM_UNIT,
                manager.parse_description(SYSTEM_UNIT.read_text("utf-8", "replace")),
            )
        for level, text, remedy in installation.list_complaints(found) if found is not None else ():
            yield _make_finding("service", text, remedy, level=level)
        if found is None and usual is not None:
            text = f"{usual.path} starts another home: {usual.description.home or 'unknown'}"
            yield _make_finding(
                "service",
                text,
                "to run this home as a service, too: everhold service install --name NAME",
                level="note",
            )
        if found is not None and self.status is None:
            text = f"{found.path} is installed, and no gateway answers"
            yield _make_finding("service", text, "everhold service start; everhold service status", level="note")


def _format_problem(problem: ConfigProblem) -> str:
    where = f"{problem.file}:{problem.line}" if problem.line else problem.file
    return ": ".join(part for part in (where, problem.key, problem.message) if part)


def _make_finding(
    check: str, text: str, remedy: str, *, level: Any = "wrong", act: Callable[[], str] | None = None
) -> FixableFinding:
    return FixableFinding(DoctorFinding(check, text, remedy=remedy, level=level), act)


def _make_chmod_fix(path: Path, mode: int) -> Callable[[], str]:
    def act() -> str:
        path.chmod(mode)
        return f"chmod {mode:o} {path}"

    return act


def _make_removal_fix(*paths: Path) -> Callable[[], str]:
    def act() -> str:
        for path in paths:
            path.unlink(missing_ok=True)
        return f"removed {', '.join(path.name for path in paths)}"

    return act
