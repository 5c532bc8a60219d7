"""Runs the command line in real processes on a temporary home, with a model that obeys the message."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import everhold
from everhold.cli import main
from tests.waiting import LIMIT_SECONDS, block_until

SOURCE = Path(everhold.__file__).parents[1]
MODEL = '''
import asyncio, os, time
from pydantic import BaseModel
from everhold import ModelResponse, ModelUsage, Overloaded, Refused, TooLong

class Obedient:
    """`slow N` streams N words, `hold FILE` waits for a file, `freeze FILE` lets nobody else do anything meanwhile,
    `down FILE` cannot be asked before there is one."""

    class Settings(BaseModel):
        pass

    name = "obedient"
    context_tokens = 100_000

    def __init__(self, settings, context):
        pass

    async def answer(self, request, *, on_text=None):
        asked = request.messages[-1].text
        word, _, rest = asked.partition(" ")
        say = on_text or (lambda piece: None)
        text = f"You said: {asked}"
        if sum(len(message.text) for message in request.messages) > 4 * self.context_tokens:
            raise TooLong("more than its window holds")
        if word == "slow":
            text = " ".join(f"word{n}" for n in range(int(rest)))
            for piece in text.split(" "):
                say(piece + " ")
                await asyncio.sleep(0.03)
            return ModelResponse(text=text, model=self.name, usage=ModelUsage(input=10, output=5))
        elif word == "hold":
            say("Holding ")
            while not os.path.exists(rest):
                await asyncio.sleep(0.02)
            text = f"Holding is over: {rest}"
            say(text.removeprefix("Holding "))
            return ModelResponse(text=text, model=self.name, usage=ModelUsage(input=10, output=5))
        elif word == "freeze":
            while not os.path.exists(rest):
                time.sleep(0.02)
        elif word == "down" and not os.path.exists(rest):
            raise Overloaded("out to lunch", retry_after=0.3)
        elif word == "refuse":
            raise Refused("not that")
        elif word == "cut":
            return ModelResponse(text="Once upon a", model=self.name, finish="length")
        elif word == "escape":
            text = "red \\x1b[31malert\\x07"
        say(text)
        return ModelResponse(text=text, model=self.name, usage=ModelUsage(input=10, output=5))
'''
ENTRY_POINTS = "[everhold.models]\nobedient = everhold_obedient:Obedient\n"
CONFIG = "models: {m: {provider: obedient}}\ndefaults: {model: m, memories: [], tools: []}\n"


def make_plugin(directory: Path) -> Path:
    """Create an installed third-party package, found through PYTHONPATH."""
    info = directory / "everhold_obedient-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: everhold-obedient\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (directory / "everhold_obedient.py").write_text(MODEL)
    return directory


@dataclass(frozen=True)
class CommandResult:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def ok(self) -> CommandResult:
        assert self.code == 0, f"exit {self.code}\n{self.out}\n{self.err}"
        return self


@dataclass
class CommandHome:
    """A home, and the processes that run in it."""

    path: Path
    plugin: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.path.exists():
            self.path.mkdir(mode=0o700, parents=True)
            (self.path / "config.yaml").write_text(CONFIG)

    def env(self, **more: str) -> dict[str, str]:
        kept = {
            name: os.environ[name]
            for name in ("PATH", "LANG", "LC_ALL", "HOME", "XDG_RUNTIME_DIR", "EVERHOLD_LOCKS")
            if name in os.environ
        }
        # test this source tree, even if another everhold is installed
        path = os.pathsep.join((str(self.plugin), str(SOURCE)))
        plain = {"PYTHONPATH": path, "EVERHOLD_HOME": str(self.path), "PYTHONIOENCODING": "utf-8"}
        return {**kept, **plain, **more}

    def run(self, *args: str, input: str = "", timeout: float = LIMIT_SECONDS, **env: str) -> CommandResult:
        done = subprocess.run(
            build_command(*args),
            input=input,
            env=self.env(**env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def run_in_process(self, *args: str) -> CommandResult:
        """Run a command in this process, for commands that only call a gateway."""
        out, err, hook = io.StringIO(), io.StringIO(), sys.excepthook
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(["--home", str(self.path), *args])
        finally:
            sys.excepthook = hook
        return CommandResult(code, out.getvalue(), err.getvalue())

    def start_command(self, *args: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            build_command(*args), env=self.env(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process

    def start_gateway(self, *args: str, **env: str) -> GatewayProcess:
        """Start a gateway and wait until it is ready."""
        return GatewayProcess(self, self.start_command("up", "--port", "0", *args, **env))

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


class GatewayProcess:
    """`everhold up`. Its output is read continuously, so that it never blocks."""

    def __init__(self, home: CommandHome, process: subprocess.Popen[str]) -> None:
        self.home = home
        self.process = process
        self.lines: queue.Queue[str] = queue.Queue()
        self.log: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout, self.lines.put), daemon=True),
            threading.Thread(target=self._read, args=(process.stderr, self.log.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        try:
            self.ready = self.lines.get(timeout=LIMIT_SECONDS)
        except queue.Empty:
            raise AssertionError(f"never ready: {self.log}") from None

    def _read(self, stream: IO[str], put: Any) -> None:
        for line in stream:
            put(line.rstrip("\n"))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it without warning."""
        self.signal(signal.SIGKILL)
        self.process.wait(timeout=LIMIT_SECONDS)

    def wait_until_ended(self, *, timeout: float = LIMIT_SECONDS) -> int:
        """Wait for its end and its complete output, and return the exit code."""
        code = self.process.wait(timeout=timeout)
        for reader in self._readers:
            reader.join(timeout=LIMIT_SECONDS)
        return code


def build_command(*args: str) -> list[str]:
    return [sys.executable, "-m", "everhold", *args]


wait_until = block_until
