"""Runs other programs: a command, or clients that npm installs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from tests.waiting import LIMIT_SECONDS

SCRIPTS = Path(__file__).parent / "node"


async def run_program(
    *command: str, env: dict[str, str] | None = None, cwd: Path | None = None, seconds: float = LIMIT_SECONDS
) -> str:
    """Run a program and return its output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
    async with asyncio.timeout(seconds):
        out, err = await process.communicate()
    assert process.returncode == 0, f"{command[0]}: {(out + err).decode()[-6000:]}"
    return out.decode()


async def install_node_packages(directory: Path) -> Path:
    """Install tests/api/node/package.json in `directory`, which is kept between runs. Skips the test if npm fails."""
    npm, program = shutil.which("npm"), shutil.which("node")
    if npm is None or program is None:
        pytest.skip("there is no node with npm on this machine")
    wanted = (SCRIPTS / "package.json").read_text()
    stamp = directory / "installed.json"
    with (directory / "lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            (directory / "package.json").write_text(wanted)
            try:
                await run_program(
                    npm,
                    "install",
                    "--no-audit",
                    "--no-fund",
                    "--loglevel=error",
                    cwd=directory,
                    seconds=6 * LIMIT_SECONDS,
                )
            except (AssertionError, TimeoutError) as error:
                pytest.skip(f"npm cannot install the clients here: {error}")
            stamp.write_text(wanted)
        for script in SCRIPTS.glob("*.mjs"):
            shutil.copy(script, directory)
    return directory
