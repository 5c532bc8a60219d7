"""Control service managers with their own programs: systemd for the user, and launchd.

This module writes no descriptions. On Windows, WinSW uses the printed description.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everhold.errors import Refused
from everhold.service import unit

QUERY_SECONDS: Final = 30.0
"""The time limit of a query."""
STOP_SECONDS: Final = unit.STOP_SECONDS + 30.0


@dataclass(frozen=True)
class ServiceState:
    """The state of a service. `active` is the manager's own word."""

    active: str
    running: bool = False
    enabled: bool = False
    pid: int = 0
    restarts: int = 0
    exit: int | None = None
    """The last exit code, if the service failed."""
    says: str = ""
    """The last status text of the service, if the manager records it."""


@dataclass(frozen=True)
class ProgramResult:
    """The result of a program."""

    code: int
    out: str
    err: str


def run_program(
    *words: str, seconds: float | None = QUERY_SECONDS, environ: Mapping[str, str] | None = None
) -> ProgramResult:
    """Run a manager's program. Raises Refused if it does not exist or does not answer."""
    try:
        done = subprocess.run(  # nosec B603  # no shell, and the words are constants and a checked name
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env=environ,
            check=False,
        )
    except FileNotFoundError:
        raise Refused(f"there is no {words[0]} here", remedy=_UNSUPPORTED_REMEDY) from None
    except subprocess.TimeoutExpired:
        raise Refused(f"`{' '.join(words)}` did not answer within {seconds:g} s", remedy="try it by hand") from None
    return ProgramResult(done.returncode, done.stdout, done.stderr)


_UNSUPPORTED_REMEDY: Final = (
    "`everhold service print` shows what would be written; docs/how-to/run-as-a-service.md describes alternatives"
)


class ServiceBackend(ABC):
    """One service manager, for one user."""

    name: str
    suffix: str
    render: Callable[[unit.ServiceSpec], str]

    def __init__(self, environ: Mapping[str, str], user_home: Path) -> None:
        self.environ = environ
        self.user_home = user_home

    @property
    @abstractmethod
    def description_directory(self) -> Path:
        """The directory of the descriptions."""

    @abstractmethod
    def parse_description(self, text: str) -> unit.ServiceDescription: ...

    @abstractmethod
    def check_available(self) -> None:
        """Raise Refused if the manager is not available."""

    @abstractmethod
    def register(self, name: str) -> None:
        """Read a new description, and start the service at every login from now on."""

    @abstractmethod
    def unregister(self, name: str) -> None:
        """Stop the service, and no longer start it at login. The caller then removes its description."""

    @abstractmethod
    def reload_descriptions(self) -> None:
        """Read the descriptions again after one was removed."""

    @abstractmethod
    def start(self, name: str, *, again: bool = False) -> None:
        """Start the service (`again`: restart it). Waits until it is ready, if the manager can tell. Raises Refused."""

    @abstractmethod
    def stop(self, name: str) -> None: ...

    @abstractmethod
    def get_state(self, name: str) -> ServiceState: ...

    def is_lingering(self) -> bool | None:
        """Whether services run while the user is not logged in; None if that is unknown."""
        return None

    def get_path(self, name: str) -> Path:
        return self.description_directory / f"{name}{self.suffix}"

    def _run_checked(self, *words: str, seconds: float | None = QUERY_SECONDS) -> ProgramResult:
        done = run_program(*words, seconds=seconds, environ=self.environ)
        if done.code:
            why = " ".join((done.err or done.out).split()) or f"exit {done.code}"
            raise Refused(f"`{' '.join(words)}`: {why}", remedy=self._suggest_remedy(why))
        return done

    def _suggest_remedy(self, why: str) -> str:
        return ""


class SystemdBackend(ServiceBackend):
    name = "systemd"
    suffix = ".service"
    render = staticmethod(unit.render_systemd)

    def __init__(self, environ: Mapping[str, str], user_home: Path, *, runtimes: Path = Path("/run/user")) -> None:
        mine = runtimes / str(os.getuid()) if sys.platform != "win32" else runtimes
        if not environ.get("XDG_RUNTIME_DIR") and mine.is_dir():  # a shell of su and a cron job do not have it
            environ = {**environ, "XDG_RUNTIME_DIR": str(mine)}
        super().__init__(environ, user_home)

    @property
    def description_directory(self) -> Path:
        base = self.environ.get("XDG_CONFIG_HOME", "")
        return Path(base if base.startswith("/") else self.user_home / ".config") / "systemd" / "user"

    def parse_description(self, text: str) -> unit.ServiceDescription:
        return unit.parse_systemd(text, user_home=self.user_home)

    def check_available(self) -> None:
        self._run_checked("systemctl", "--user", "show", "--property=Version")

    def register(self, name: str) -> None:
        self._run_checked("systemctl", "--user", "daemon-reload")
        self._run_checked("systemctl", "--user", "enable", f"{name}.service")

    def unregister(self, name: str) -> None:
        self._run_checked("systemctl", "--user", "disable", "--now", f"{name}.service", seconds=STOP_SECONDS)

    def reload_descriptions(self) -> None:
        self._run_checked("systemctl", "--user", "daemon-reload")

    def start(self, name: str, *, again: bool = False) -> None:
        word = "restart" if again else "start"
        done = run_program("systemctl", "--user", word, f"{name}.service", seconds=None, environ=self.environ)
        if done.code:
            state = self.get_state(name)
            if state.exit == unit.EXIT_GIVEN_UP:
                raise Refused(
                    f"{name} gave up: {state.says or 'a restart would not help'}",
                    remedy=f"everhold doctor; journalctl --user -u {name} -n 20",
                )
            why = state.says or " ".join(done.err.split()) or f"exit {done.code}"
            raise Refused(
                f"{name} did not become ready: {why}",
                remedy=self._suggest_remedy(why) or f"journalctl --user -u {name} -n 20",
            )

    def stop(self, name: str) -> None:
        self._run_checked("systemctl", "--user", "stop", f"{name}.service", seconds=STOP_SECONDS)

    def get_state(self, name: str) -> ServiceState:
        asked = "ActiveState,SubState,UnitFileState,MainPID,NRestarts,ExecMainStatus,Result,StatusText"
        done = self._run_checked("systemctl", "--user", "show", f"{name}.service", f"--property={asked}")
        shown = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
        active, sub = shown.get("ActiveState", "unknown"), shown.get("SubState", "")
        failed = shown.get("Result", "success") != "success"
        return ServiceState(
            active=f"{active} ({sub})" if sub and sub != active else active,
            running=active in ("active", "reloading"),
            enabled=shown.get("UnitFileState", "").startswith("enabled"),
            pid=_parse_integer(shown.get("MainPID", "")) or 0,
            restarts=_parse_integer(shown.get("NRestarts", "")) or 0,
            exit=_parse_integer(shown.get("ExecMainStatus", "")) if failed else None,
            says=shown.get("StatusText", ""),
        )

    def is_lingering(self) -> bool | None:
        import getpass

        folder = Path("/var/lib/systemd/linger")
        try:
            return (folder / getpass.getuser()).exists() if folder.parent.is_dir() else None
        except (KeyError, OSError):  # the user has no name
            return None

    def _suggest_remedy(self, why: str) -> str:
        if "bus" in why or "not been booted" in why or "Host is down" in why:
            return "log in as this user itself (not by su or sudo) where systemd runs; or: everhold service print"
        return ""


class LaunchdBackend(ServiceBackend):
    name = "launchd"
    suffix = ".plist"
    render = staticmethod(unit.render_launchd)

    @property
    def description_directory(self) -> Path:
        return self.user_home / "Library" / "LaunchAgents"

    def parse_description(self, text: str) -> unit.ServiceDescription:
        return unit.parse_launchd(text, user_home=self.user_home)

    def check_available(self) -> None:
        self._run_checked("launchctl", "print", self._domain)

    def register(self, name: str) -> None:
        """Enable the service. launchd reads the folder at every login; until then, `start` loads it."""
        self._run_checked("launchctl", "enable", f"{self._domain}/{name}")

    def unregister(self, name: str) -> None:
        self.stop(name)

    def reload_descriptions(self) -> None:
        pass

    def start(self, name: str, *, again: bool = False) -> None:
        if again:
            self.stop(name)
        if self._query_service(name) is None:
            self._run_checked("launchctl", "bootstrap", self._domain, str(self.get_path(name)))
        self._run_checked("launchctl", "kickstart", f"{self._domain}/{name}")

    def stop(self, name: str) -> None:
        if self._query_service(name) is not None:
            self._run_checked("launchctl", "bootout", f"{self._domain}/{name}", seconds=STOP_SECONDS)

    def get_state(self, name: str) -> ServiceState:
        shown = self._query_service(name)
        if shown is None:
            return ServiceState(active="not loaded")
        state = re.search(r"^[ \t]*state = (.+)$", shown, re.MULTILINE)
        pid = re.search(r"^[ \t]*pid = (\d+)$", shown, re.MULTILINE)
        ended = re.search(r"^[ \t]*last exit code = (\d+)", shown, re.MULTILINE)
        return ServiceState(
            active=state[1] if state else "unknown",
            running=pid is not None,
            enabled=True,
            pid=int(pid[1]) if pid else 0,
            exit=int(ended[1]) or None if ended else None,
        )

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}" if sys.platform != "win32" else ""

    def _query_service(self, name: str) -> str | None:
        done = run_program("launchctl", "print", f"{self._domain}/{name}", environ=self.environ)
        return None if done.code else done.out


def detect_service_backend(environ: Mapping[str, str], *, platform: str = sys.platform) -> ServiceBackend:
    """Return the service manager of this system. Raises Refused if it is not supported."""
    if platform == "win32":
        raise Refused(
            "everhold does not support the service manager of Windows",
            remedy="everhold service print > everhold.xml, for WinSW: docs/how-to/run-as-a-service.md",
        )
    user_home = Path(environ.get("HOME") or "~").expanduser()
    return LaunchdBackend(environ, user_home) if platform == "darwin" else SystemdBackend(environ, user_home)


def _parse_integer(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
