"""Session stores of other projects with the same work in the same run. They are installed in their own venv."""

from __future__ import annotations

import asyncio
import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from bench.history import SessionHistory
from bench.in_process import MESSAGE, REPLY, open_store, temporary_directory
from bench.table import Row, median
from everhold.core.context import render_messages
from everhold.engine.context_cache import load_context_at

HERE = Path(__file__).parent
VENV = HERE / ".venv-peers"
PACKAGES = ("openai-agents==0.24.0", "langgraph==1.2.20", "langgraph-checkpoint-sqlite==3.1.2")
SIZES = (10, 1_000, 10_000)
COMPRESSION_TURNS = 200
PEERS = {"agents": "openai-agents SQLiteSession", "langgraph": "LangGraph SqliteSaver"}


def install(venv: Path = VENV, packages: tuple[str, ...] = PACKAGES) -> Path:
    """Return the interpreter of the peers' venv. Create the venv if it is missing or has other versions."""
    python = venv / "bin" / "python"
    stamp = venv / "packages"
    with venv.with_name(f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may want it at once
        if not stamp.exists() or stamp.read_text() != "\n".join(packages):
            print("installing", *packages, "into", venv, file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
            subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
            stamp.write_text("\n".join(packages))
    return python


class Peer:
    """A process that does one round of a peer's work on request."""

    def __init__(self, python: Path, name: str, directory: Path, size: int) -> None:
        script = HERE / f"peer_{name}.py"
        self.process = subprocess.Popen(
            [python, script, directory, str(size), MESSAGE, REPLY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def round(self) -> tuple[float, float]:
        """Return the milliseconds to append a turn, and to load the context of the next one."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        append, load = self._read()
        return append, load

    def close(self) -> None:
        self.process.communicate("", timeout=30)

    def _read(self) -> list[float]:
        out: IO[str] | None = self.process.stdout
        assert out is not None
        line = out.readline()
        if not line:
            raise RuntimeError(f"a peer ended unexpectedly: {self.process.args!r}")
        told: list[float] = json.loads(line)
        return told


class Ours:
    """The same work with everhold: two durable commits for a turn, and the next context with empty caches."""

    def __init__(self, directory: Path, size: int) -> None:
        self.runner = asyncio.Runner()
        quick = open_store(directory, synchronous="OFF")
        self.history = SessionHistory(quick, "s-old", compress_every_turns=COMPRESSION_TURNS)
        self.runner.run(self.history.live(size // 2))
        self.runner.run(quick.close())
        self.history.store = self.store = open_store(directory)

    def round(self) -> tuple[float, float]:
        return self.runner.run(self._round())

    async def _round(self) -> tuple[float, float]:
        started = time.perf_counter()
        for _ in range(5):
            await self.history.turn()
        append = (time.perf_counter() - started) / 5
        started = time.perf_counter()
        session = await self.store.get_session("s-old")
        render_messages(await load_context_at(self.store, session, at=session.last_seq + 1))
        return append * 1e3, (time.perf_counter() - started) * 1e3

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()


def peer_rows(rounds: int) -> list[Row]:
    python = install()
    rows = []
    for size in SIZES:
        with temporary_directory() as directory:
            ours = Ours(directory, size)
            peers = {name: Peer(python, name, directory, size) for name in PEERS}
            found: dict[str, list[tuple[float, float]]] = {"ours": [], **{name: [] for name in PEERS}}
            for _ in range(max(3, rounds)):
                found["ours"].append(ours.round())
                for name, peer in peers.items():
                    found[name].append(peer.round())
            ours.close()
            for peer in peers.values():
                peer.close()
        for column, what in enumerate(("append a turn", "load the next context")):
            mine = [each[column] for each in found["ours"]]
            for name, title in PEERS.items():
                theirs = [each[column] for each in found[name]]
                share = median([a / b for a, b in zip(mine, theirs, strict=True)])
                beside = f"{title} {median(theirs):.2f} ms"
                rows.append(
                    Row(what=f"{what} at {size:,} messages", value=median(mine), unit="ms", beside=beside, ratio=share)
                )
    return rows
