"""The text by which a service manager starts the gateway, and what such a text says. Pure: reads and runs nothing.

The first comment carries a digest of the rest: so a text that somebody has changed is told from one everhold wrote.
"""

from __future__ import annotations

import hashlib
import plistlib
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final
from xml.parsers.expat import ExpatError
from xml.sax.saxutils import escape, quoteattr

from everhold.errors import InvalidRequest

EXIT_GIVEN_UP: Final = 78
"""What the gateway ends with under systemd where starting anew cannot help; nothing else does."""
STOP_SECONDS: Final = 60
"""What a stop may take: running turns get 30 seconds, then everything is closed."""
RESTART_SECONDS: Final = 5
WATCHDOG_SECONDS: Final = 60

_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PLIST_HEAD: Final = '<?xml version="1.0" encoding="UTF-8"?>\n<!-- '
_MARK_PATTERN: Final = re.compile(r"everhold (?P<version>\S+) wrote this; digest (?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True)
class ServiceSpec:
    """What the service shall be."""

    home: Path
    program: Sequence[str]
    """The words that start everhold on this machine, the first with its whole path."""
    search_path: str
    """Where programs are found ($PATH): a service manager's own is too short for most tool servers."""
    version: str
    name: str = "everhold"

    def __post_init__(self) -> None:
        if not _NAME_PATTERN.fullmatch(self.name):
            raise InvalidRequest(f"{self.name!r} cannot name a service", remedy="letters, digits, -, _ and .")
        for text in (str(self.home), self.search_path, *self.program):
            if not text.isprintable():
                raise InvalidRequest(
                    f"{text!r} cannot stand in a service's description", remedy="move it to a plainer path"
                )

    def build_command(self, *flags: str) -> list[str]:
        return [*self.program, "--home", str(self.home), "up", *flags]


@dataclass(frozen=True)
class ServiceDescription:
    """What a text says. `version` is empty if everhold did not write it, `edited` if it no longer stands as written."""

    version: str
    edited: bool
    program: str
    """What it starts; empty if that cannot be told."""
    home: Path | None


# -- systemd -----------------------------------------------------------------------------------------------------------


def render_systemd(wanted: ServiceSpec) -> str:
    """A unit for the user's own systemd."""
    words = wanted.build_command("--give-up-with", str(EXIT_GIVEN_UP))
    body = f"""\
# After an upgrade `everhold service install` writes it anew, unless something in it was changed.
# Lines of your own go to `systemctl --user edit {wanted.name}`, where they stay.
[Unit]
Description=everhold gateway ({_escape_specifiers(str(wanted.home))})
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={_quote_word(words[0])} {" ".join(_quote_word(word.replace("$", "$$")) for word in words[1:])}
WorkingDirectory=%h
Environment={_quote_word("PATH=" + wanted.search_path)} PYTHONFAULTHANDLER=1
Restart=on-failure
RestartSec={RESTART_SECONDS}
RestartPreventExitStatus=2 {EXIT_GIVEN_UP}
WatchdogSec={WATCHDOG_SECONDS}
TimeoutStartSec=30min
TimeoutStopSec={STOP_SECONDS}
KillMode=mixed
OOMPolicy=continue
LimitCORE=0
UMask=0077

[Install]
WantedBy=default.target
"""
    return f"# {_build_mark(wanted, body)}\n{body}"


def parse_systemd(text: str, *, user_home: Path) -> ServiceDescription:
    started = re.findall(r"^ExecStart=[-@:+!]*(.*)$", text, re.MULTILINE)
    argv = _split_systemd_words(started[-1] if started else "", user_home)
    environment = _split_systemd_words(" ".join(re.findall(r"^Environment=(.*)$", text, re.MULTILINE)), user_home)
    known = dict(word.split("=", 1) for word in environment if "=" in word)
    return _build_description(text, argv, known, user_home, head="# ")


def _split_systemd_words(line: str, user_home: Path) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    known = {"%h": str(user_home), "%%": "%", "$$": "$"}
    return [re.sub(r"%h|%%|\$\$", lambda it: known[it[0]], word) for word in words]


def _escape_specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _quote_word(word: str) -> str:
    """A word as systemd reads it back."""
    word = _escape_specifiers(word)
    if re.fullmatch(r"[\w%+,./:=@-]+", word, re.ASCII):
        return word
    word = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{word}"'


# -- launchd -----------------------------------------------------------------------------------------------------------


def render_launchd(wanted: ServiceSpec) -> str:
    """A property list for the user's own agents. launchd knows no exit codes but 0 and the rest, and no readiness."""
    told = {
        "Label": wanted.name,
        "ProgramArguments": wanted.build_command("--give-up-with", "0", "--quiet"),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_SECONDS,
        "ExitTimeOut": STOP_SECONDS,
        "Umask": 0o077,
        "EnvironmentVariables": {"PATH": wanted.search_path},
        "StandardOutPath": "/dev/null",
        "StandardErrorPath": str(wanted.home / "logs" / "service.log"),
    }
    _, body = plistlib.dumps(told, sort_keys=False).decode().split("\n", 1)
    return f"{_PLIST_HEAD}{_build_mark(wanted, body)} -->\n{body}"


def parse_launchd(text: str, *, user_home: Path) -> ServiceDescription:
    try:
        told = plistlib.loads(text.encode())
    except (ExpatError, ValueError, LookupError, AttributeError, TypeError):  # plistlib lets all of these through
        told = {}
    argv = told.get("ProgramArguments") if isinstance(told, dict) else None
    known = told.get("EnvironmentVariables") if isinstance(told, dict) else None
    return _build_description(
        text,
        [str(word) for word in argv] if isinstance(argv, list) else [],
        known if isinstance(known, dict) else {},
        user_home,
        head=_PLIST_HEAD,
    )


# -- Windows -----------------------------------------------------------------------------------------------------------


def render_winsw(wanted: ServiceSpec) -> str:
    """A description for WinSW, which makes a service of Windows' from any program and stops it by Ctrl-C."""
    words = wanted.build_command("--give-up-with", "0", "--quiet")
    body = f"""\
<service>
  <id>{escape(wanted.name)}</id>
  <name>{escape(wanted.name)}</name>
  <description>everhold gateway ({escape(str(wanted.home))})</description>
  <executable>{escape(words[0])}</executable>
  <arguments>{escape(subprocess.list2cmdline(words[1:]))}</arguments>
  <env name="PATH" value={quoteattr(wanted.search_path)}/>
  <onfailure action="restart" delay="{RESTART_SECONDS} sec"/>
  <stoptimeout>{STOP_SECONDS} sec</stoptimeout>
  <logpath>{escape(str(wanted.home / "logs"))}</logpath>
  <log mode="reset"/>
</service>
"""
    return f"<!-- {_build_mark(wanted, body)} -->\n{body}"


RENDERERS: Final[Mapping[str, Callable[[ServiceSpec], str]]] = {
    "systemd": render_systemd,
    "launchd": render_launchd,
    "winsw": render_winsw,
}


# -- whose text it is --------------------------------------------------------------------------------------------------


def _build_mark(wanted: ServiceSpec, body: str) -> str:
    return f"everhold {wanted.version} wrote this; digest {_compute_digest(body)}"


def _compute_digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _build_description(
    text: str, argv: Sequence[str], environ: Mapping[str, str], user_home: Path, *, head: str
) -> ServiceDescription:
    mark = _MARK_PATTERN.search(text)
    body = text[mark.end() :].partition("\n")[2] if mark else ""
    return ServiceDescription(
        version=mark["version"] if mark else "",
        edited=mark is None or mark["digest"] != _compute_digest(body) or text[: mark.start()] != head,
        program=argv[0] if argv else "",
        home=_find_home(argv, environ, user_home) if argv else None,
    )


def _find_home(argv: Sequence[str], environ: Mapping[str, str], user_home: Path) -> Path:
    for place, word in enumerate(argv):
        if word == "--home" and place + 1 < len(argv):
            return Path(argv[place + 1])
        if word.startswith("--home="):
            return Path(word.removeprefix("--home="))
    return Path(environ.get("EVERHOLD_HOME") or PurePath(user_home, ".everhold"))
