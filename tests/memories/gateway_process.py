"""The whole gateway as its own process, on one home, to be killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path

import httpx2

from tests.waiting import LIMIT_SECONDS

TOKEN = "memory-tests-operator-token-0123456789abcdef"


class GatewayProcess:
    """A home, the process that serves it now, and a client."""

    def __init__(self, path: Path, config: str) -> None:
        self.home = path / "home"
        self.home.mkdir(mode=0o700)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        given = json.loads(config) | {"http": {"port": port}, "backup": {"every_hours": 0}}
        (self.home / "config.yaml").write_text(json.dumps(given))
        env = self.home / ".env"
        env.touch(mode=0o600)
        env.write_text(f"MODEL_KEY=a-key-for-everybody-0123\nEVERHOLD_OPERATOR_TOKEN={TOKEN}\n")
        self.errors = path / "stderr"
        self.process: asyncio.subprocess.Process | None = None
        self.killed = 0
        """How many processes were killed while alive."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        self.http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=5.0)

    async def start(self) -> None:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("EVERHOLD")}
        with self.errors.open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "everhold",
                "--home",
                str(self.home),
                "up",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=environ,
            )

    async def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.killed += await self.process.wait() == -signal.SIGKILL

    async def wait_until_ready(self, *, seconds: float = LIMIT_SECONDS) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(httpx2.HTTPError):
                if (await self.http.get("/ready")).status_code == 200:
                    return
            assert self.process is not None
            assert self.process.returncode is None, self.errors.read_text()[-4_000:]
            await asyncio.sleep(0.05)
        raise AssertionError(f"never ready:\n{self.errors.read_text()[-4_000:]}")

    async def send_message(self, chat: str, text: str, *, id: str, person: str = "ada") -> None:
        """Send a message until it is acknowledged; repeats use the same id."""
        body = {"chat": chat, "person": person, "text": text, "id": id}
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                answer = await self.http.post("/api/messages", json=body)
                if answer.status_code in (200, 202):
                    return
                assert answer.status_code in (429, 503), answer.text
            await asyncio.sleep(0.1)

    async def wait_for_replies(self, count: int, *, seconds: float = LIMIT_SECONDS) -> None:
        """Wait for this number of replies."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.closing(sqlite3.connect(f"file:{self.home / 'everhold.db'}?mode=ro", uri=True)) as db:
                if db.execute("SELECT count(*) FROM entries WHERE kind = 'said'").fetchone()[0] >= count:
                    return
            await asyncio.sleep(0.05)
        raise AssertionError(f"not answered:\n{self.errors.read_text()[-4_000:]}")

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            await self.kill()
        await self.http.aclose()
