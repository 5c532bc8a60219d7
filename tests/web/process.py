"""A gateway as a process of its own, to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import httpx2

from everhold.home import Home
from tests.web.conftest import SECRETS, eventually


class Process:
    """`everhold up` on one home and one port, in one life after the other."""

    def __init__(self, path: Path, configuration: str) -> None:
        self.home = Home(path / "home").create()
        self.home.config.write_text(configuration)
        self.home.env.write_text(SECRETS)
        for file in (self.home.config, self.home.env):
            file.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "everhold", "--home", str(self.home.path), "up", "--port", str(self.port),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if not name.startswith(("EVERHOLD", "TOKEN_"))},
        )  # fmt: skip
        async with httpx2.AsyncClient(trust_env=False) as client:

            async def ready() -> bool:
                assert self._process is not None
                assert self._process.returncode is None, f"it ended with {self._process.returncode}"
                try:
                    return (await client.get(f"{self.url}/ready")).status_code == 200
                except httpx2.TransportError:
                    return False

            await eventually(ready, seconds=30)

    def peak_bytes(self) -> int:
        """The most memory it ever had."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    async def kill(self, how: int = signal.SIGKILL) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        if process.returncode is None:
            process.send_signal(how)
        return await process.wait()

    async def end(self) -> None:
        if self._process is not None:
            await self.kill()
