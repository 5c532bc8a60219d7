"""`everhold up` on one home and one port, restarted after each kill."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx2

from everhold.infra.home import Home

START_SECONDS: Final = 120.0


class KillableGateway:
    """The real program with its HTTP API. `program` is the command that starts it."""

    def __init__(
        self, home: Path, configuration: str, *, secrets: str = "", program: Sequence[str] = ("-m", "everhold")
    ) -> None:
        self.home = Home(home).create()
        self.home.config.write_text(configuration)
        self.home.env.write_text(secrets)
        for file in (self.home.config, self.home.env):
            file.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._program = program
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._program,
            "--home",
            str(self.home.path),
            "up",
            "--port",
            str(self.port),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if not name.startswith(("EVERHOLD", "TOKEN_"))},
        )
        until = time.monotonic() + START_SECONDS
        async with httpx2.AsyncClient(trust_env=False) as client:
            while not await self._is_ready(client):
                assert self.process.returncode is None, f"the gateway ended with {self.process.returncode}"
                assert time.monotonic() < until, f"the gateway was not ready within {START_SECONDS:g} s"
                await asyncio.sleep(0.01)

    async def _is_ready(self, client: httpx2.AsyncClient) -> bool:
        try:
            return (await client.get(f"{self.url}/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    async def kill(self, how: int = signal.SIGKILL) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        if process.returncode is None:
            process.send_signal(how)
        return await process.wait()

    async def close(self) -> None:
        if self.process is not None:
            await self.kill()
