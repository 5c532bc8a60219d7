"""A `systemctl --user` for machines without systemd: reads the real unit, starts the real program, and looks after it.

It knows what our unit uses: Type=notify with a real socket, the watchdog, Restart=on-failure with the exit codes that
prevent it, stopping by SIGTERM. Nothing of everhold's is imported, so that both sides have to agree on the text.
`python systemctl.py watch NAME` is the part that stays.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["FAKE_SYSTEMD"])
FOLDER = Path(os.environ["XDG_CONFIG_HOME"]) / "systemd" / "user"
AGAIN_SECONDS = 0.1
"""Replaces RestartSec."""


def read_unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((FOLDER / name).read_text())
    assert parser["Install"]["WantedBy"] == "default.target"
    return parser["Service"]


def split_command(line: str) -> list[str]:
    """Split and unescape a command as systemd.service(5) specifies."""
    return [word.replace("%h", os.environ["HOME"]).replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def write_state(name: str, **news: object) -> None:
    path = STATE / name
    new = path.with_suffix(".new")
    new.write_text(json.dumps({**read_state(name), **news}))
    new.replace(path)


def read_state(name: str) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads((STATE / name).read_text())
    except FileNotFoundError:
        return {"ActiveState": "inactive", "SubState": "dead", "Result": "success", "NRestarts": 0}
    return found


# -- the part that stays -----------------------------------------------------------------------------------------------


class ServiceSupervisor:
    """Supervises one service until it is stopped or must not be restarted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.unit = read_unit(name)
        self.stopping = False
        self.child: subprocess.Popen[bytes] | None = None
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.address = f"\0fake-systemd-{os.getpid()}"
        self.socket.bind(self.address)
        self.socket.settimeout(0.02)
        self.watchdog = float(os.environ.get("FAKE_WATCHDOG") or self.unit["WatchdogSec"])
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_: object) -> None:
        self.stopping = True
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()

    def run(self) -> None:
        assert self.unit["Type"] == "notify"
        assert self.unit["Restart"] == "on-failure"
        final = {int(code) for code in self.unit["RestartPreventExitStatus"].split()}
        restarts = 0
        while True:
            code, result = self.run_once(restarts)
            if self.stopping or code == 0:
                write_state(self.name, ActiveState="inactive", SubState="dead", Result="success", MainPID=0)
                return
            write_state(
                self.name, ActiveState="failed", SubState="failed", Result=result, ExecMainStatus=code, MainPID=0
            )
            if code in final:
                return
            time.sleep(AGAIN_SECONDS)
            restarts += 1

    def run_once(self, restarts: int) -> tuple[int, str]:
        environ = {name: os.environ[name] for name in ("HOME", "PYTHONPATH") if name in os.environ}
        environ |= dict(word.split("=", 1) for word in split_command(self.unit["Environment"]))
        environ |= {"NOTIFY_SOCKET": "@" + self.address[1:], "WATCHDOG_USEC": str(int(self.watchdog * 1e6))}
        with open(STATE / f"{self.name}.journal", "ab") as journal:
            self.child = subprocess.Popen(
                split_command(self.unit["ExecStart"]),
                env=environ,
                cwd=split_command(self.unit["WorkingDirectory"])[0],
                stdout=journal,
                stderr=journal,
                start_new_session=True,
            )
        write_state(self.name, ActiveState="activating", SubState="start", MainPID=self.child.pid, NRestarts=restarts)
        heard, ready, result = time.monotonic(), False, "exit-code"
        while (code := self.child.poll()) is None:
            if self.stopping and ready:
                ready = False
            news = self.receive_notification()
            if news.get("READY") == "1":
                ready, heard = True, time.monotonic()
                write_state(self.name, ActiveState="active", SubState="running", Result="success")
            if "WATCHDOG" in news:
                heard = time.monotonic()
            if "STOPPING" in news:
                ready = False
            if ready and time.monotonic() - heard > self.watchdog:
                result, ready = "watchdog", False
                self.child.send_signal(signal.SIGABRT)
        while self.receive_notification():
            pass
        return code, result

    def receive_notification(self) -> dict[str, str]:
        try:
            news = dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())
        except TimeoutError:
            return {}
        if "STATUS" in news:
            write_state(self.name, StatusText=news["STATUS"])
        return news


# -- the command -------------------------------------------------------------------------------------------------------


def main(verb: str, *rest: str) -> int:
    if verb == "daemon-reload":
        return 0
    if verb == "show" and not rest[0].endswith(".service"):
        sys.stdout.write("Version=252\n")
        return 0
    name = next(word for word in rest if word.endswith(".service"))
    if not (FOLDER / name).exists() and verb != "show":
        sys.stderr.write(f"Failed to {verb} {name}: Unit {name} not found.\n")
        return 5
    match verb:
        case "show":
            enabled = (STATE / f"{name}.enabled").exists()
            shown = {**read_state(name), "UnitFileState": "enabled" if enabled else "disabled"}
            sys.stdout.writelines(f"{key}={value}\n" for key, value in shown.items())
        case "enable":
            (STATE / f"{name}.enabled").touch()
        case "disable":
            (STATE / f"{name}.enabled").unlink(missing_ok=True)
            return stop(name)
        case "start":
            return start(name)
        case "restart":
            return stop(name) or start(name)
        case "stop":
            return stop(name)
    return 0


def start(name: str) -> int:
    if read_state(name)["ActiveState"] == "active":
        return 0
    write_state(name, ActiveState="activating", Result="success", NRestarts=0)
    watch = subprocess.Popen(
        [sys.executable, __file__, "watch", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=open(STATE / f"{name}.watch", "ab"),  # noqa: SIM115
        start_new_session=True,
    )
    (STATE / f"{name}.pid").write_text(str(watch.pid))
    while (state := read_state(name)["ActiveState"]) == "activating" and watch.poll() is None:
        time.sleep(0.02)
    if state != "active":
        sys.stderr.write(f"Job for {name} failed because the control process exited with error code.\n")
        return 1
    return 0


def stop(name: str) -> int:
    try:
        pid = int((STATE / f"{name}.pid").read_text())
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    deadline = time.monotonic() + 100
    while read_state(name)["ActiveState"] not in ("inactive", "failed") and time.monotonic() < deadline:
        time.sleep(0.02)
    (STATE / f"{name}.pid").unlink()
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        ServiceSupervisor(sys.argv[2]).run()
    else:
        assert sys.argv[1] == "--user", "never the system's"
        sys.exit(main(*sys.argv[2:]))
