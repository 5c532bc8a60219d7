"""Render and parse the descriptions with which service managers start the gateway. Reads no file and runs no program.

The first comment contains a digest of the rest, so that a text changed by hand is recognized.
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
from xml.sax.saxutils import escape, quoteattr  # nosec B406  # writes, parses nothing

from everhold.errors import InvalidRequest

EXIT_GIVEN_UP: Final = 78
"""The exit code of the gateway under systemd when a restart cannot help. No other error uses it."""
STOP_SECONDS: Final = 60
"""The time limit of a stop: running turns get 30 seconds, then everything is closed."""
RESTART_SECONDS: Final = 5
WATCHDOG_SECONDS: Final = 60

_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PLIST_HEAD: Final = '<?xml version="1.0" encoding="UTF-8"?>\n<!-- '
_MARK_PATTERN: Final = re.compile(r"everhold (?P<version>\S+) wrote this; digest (?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True)
class ServiceSpec:
    """The service to describe."""

    home: Path
    program: Sequence[str]
    """The command that starts everhold on this machine, with an absolute path."""
    search_path: str
    """$PATH of the service, because a service manager's own is too short for most tool servers."""
    version: str
    name: str = "everhold"
    user: str = "everhold"
    """The account of a system service."""

    def __post_init__(self) -> None:
        if not _NAME_PATTERN.fullmatch(self.name):
            raise InvalidRequest(f"{self.name!r} cannot name a service", remedy="letters, digits, -, _ and .")
        for text in (str(self.home), self.search_path, self.user, *self.program):
            if not text.isprintable():
                raise InvalidRequest(
                    f"{text!r} cannot be used in a service description",
                    remedy="move it to a path without control characters",
                )

    def build_command(self, *flags: str) -> list[str]:
        return [*self.program, "--home", str(self.home), "up", *flags]


@dataclass(frozen=True)
class ServiceDescription:
    """A parsed description. `version` is empty if everhold did not write it. `edited`: it was changed since."""

    version: str
    edited: bool
    program: str
    """The program that it starts; empty if unknown."""
    home: Path | None


# -- systemd -----------------------------------------------------------------------------------------------------------


USER_HARDENING: Final = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service @mount landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=user mnt pid net ipc uts cgroup
"""
"""What a user's systemd can enforce without namespaces, which many systems refuse to users. The gateway starts tool
servers with bubblewrap, so it may make namespaces and mounts, and with Landlock."""
SYSTEM_HARDENING: Final = """\
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
PrivateMounts=yes
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectProc=invisible
RemoveIPC=yes
KeyringMode=private
"""
"""What the system's systemd adds. ProtectKernelTunables, ProtectKernelLogs and ProcSubset are left out: they cover
parts of /proc, and then the kernel refuses bubblewrap a /proc of its own. MemoryDenyWriteExecute would stop Node.js."""


def render_systemd(wanted: ServiceSpec) -> str:
    """Return a unit for the user's systemd."""
    return _render_systemd_unit(
        wanted,
        edit=f"systemctl --user edit {wanted.name}",
        directory="%h",
        hardening=USER_HARDENING,
        target="default.target",
        replaced="After an upgrade, `everhold service install` replaces this file, unless it was changed.",
    )


def render_system_unit(wanted: ServiceSpec) -> str:
    """Return a unit for the system's systemd, which runs the gateway as the user who owns the home."""
    below = [path for path in (wanted.home, Path(wanted.program[0])) if path.parts[1:2] in (("home",), ("root",))]
    lines = [
        f"User={_quote_word(wanted.user)}",
        f"ReadWritePaths={_quote_word(str(wanted.home))}",
        f"ProtectHome={'read-only' if below else 'yes'}",
    ]
    return _render_systemd_unit(
        wanted,
        edit=f"systemctl edit {wanted.name}",
        directory=_quote_word(str(wanted.home)),
        hardening="\n".join(lines) + "\n" + SYSTEM_HARDENING + USER_HARDENING,
        target="multi-user.target",
        replaced=f"Save it as /etc/systemd/system/{wanted.name}.service. The home must exist: `everhold doctor`.",
    )


def _render_systemd_unit(
    wanted: ServiceSpec, *, edit: str, directory: str, hardening: str, target: str, replaced: str
) -> str:
    words = wanted.build_command("--give-up-with", str(EXIT_GIVEN_UP))
    body = f"""\
# {replaced}
# Put your own settings into `{edit}`, which is never replaced.
[Unit]
Description=everhold gateway ({_escape_specifiers(str(wanted.home))})
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={_quote_word(words[0])} {" ".join(_quote_word(word.replace("$", "$$")) for word in words[1:])}
WorkingDirectory={directory}
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
{hardening}
[Install]
WantedBy={target}
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
    """Quote a word for systemd."""
    word = _escape_specifiers(word)
    if re.fullmatch(r"[\w%+,./:=@-]+", word, re.ASCII):
        return word
    word = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{word}"'


# -- launchd -----------------------------------------------------------------------------------------------------------


def render_launchd(wanted: ServiceSpec) -> str:
    """Return a property list for launchd, which distinguishes only exit code 0 from others and has no readiness."""
    properties = {
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
    _, body = plistlib.dumps(properties, sort_keys=False).decode().split("\n", 1)
    return f"{_PLIST_HEAD}{_build_mark(wanted, body)} -->\n{body}"


def parse_launchd(text: str, *, user_home: Path) -> ServiceDescription:
    try:
        properties = plistlib.loads(text.encode())
    except (ExpatError, ValueError, LookupError, AttributeError, TypeError):  # plistlib raises all of these
        properties = {}
    argv = properties.get("ProgramArguments") if isinstance(properties, dict) else None
    known = properties.get("EnvironmentVariables") if isinstance(properties, dict) else None
    return _build_description(
        text,
        [str(word) for word in argv] if isinstance(argv, list) else [],
        known if isinstance(known, dict) else {},
        user_home,
        head=_PLIST_HEAD,
    )


# -- Windows -----------------------------------------------------------------------------------------------------------


def render_winsw(wanted: ServiceSpec) -> str:
    """Return a description for WinSW, which runs any program as a Windows service and stops it with Ctrl-C."""
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
    "systemd-system": render_system_unit,
    "launchd": render_launchd,
    "winsw": render_winsw,
}


# -- recognizing our own text ------------------------------------------------------------------------------------------


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
