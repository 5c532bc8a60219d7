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
from typing import IO, Final

import httpx2

from everhold.config.secrets import parse_env
from everhold.config.settings import OPERATOR_TOKEN_ENV
from everhold.infra.home import Home

START_SECONDS: Final = 120.0
EVERHOLD: Final = ("-m", "everhold")
"""What Python is told to run."""
OPERATOR_TOKEN: Final = "killed-gateway-operator-token-0123456789abcdef"


class KillableGateway:
    """The real program with its HTTP API. `program` is the command that starts it."""

    def __init__(self, home: Path, configuration: str, *, secrets: str = "", program: Sequence[str] = EVERHOLD) -> None:
        self.home = Home(home).create()
        self.home.config.write_text(configuration)
        if OPERATOR_TOKEN_ENV not in secrets:
            secrets += f"{OPERATOR_TOKEN_ENV}={OPERATOR_TOKEN}\n"
        self.home.env.write_text(secrets)
        self.token = next(it.value.reveal() for it in parse_env(secrets.encode())[0] if it.name == OPERATOR_TOKEN_ENV)
        for file in (self.home.config, self.home.env):
            file.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.program = program
        self.errors = home.with_name(f"{home.name}.errors")
        """What all processes printed as errors."""
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open_client(self, *, seconds: float) -> httpx2.AsyncClient:
        """Return a client with the operator token."""
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=seconds, trust_env=False)

    async def start(self) -> None:
        with self.errors.open("ab") as errors:
            self.process = await self._start_process(errors)
        until = time.monotonic() + START_SECONDS
        async with httpx2.AsyncClient(trust_env=False) as client:
            while not await self._is_ready(client):
                assert self.process.returncode is None, self._describe_end()
                assert time.monotonic() < until, f"the gateway was not ready within {START_SECONDS:g} s"
                await asyncio.sleep(0.01)

    async def _start_process(self, errors: IO[bytes]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *self.program,
            "--home",
            str(self.home.path),
            "up",
            "--port",
            str(self.port),
            "--quiet",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=errors,
            env={
                name: value
                for name, value in os.environ.items()
                if name == "EVERHOLD_LOCKS" or not name.startswith(("EVERHOLD", "TOKEN_"))
            },
        )

    def _describe_end(self) -> str:
        assert self.process is not None
        said = self.errors.read_text("utf-8", "replace").splitlines()[-20:]
        return "\n".join([f"the gateway ended with {self.process.returncode}", *said])

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

    async def wait_until_ended(self, seconds: float) -> int:
        """Wait until the process ends by itself, and return its exit code."""
        assert self.process is not None
        code = await asyncio.wait_for(self.process.wait(), seconds)
        self.process = None
        return code

    async def close(self) -> None:
        if self.process is not None:
            await self.kill()
