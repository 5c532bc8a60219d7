"""Answer a hundred thousand messages that wait in one session, and measure the memory that it takes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from bench.in_process import InProcessGateway, open_store, temporary_directory
from bench.table import Row, at_most

MESSAGES = 100_000
LIMIT_MB = 150.0
CHAT = "crowded"


def draining_rows(rounds: int) -> list[Row]:
    with temporary_directory() as directory:
        asyncio.run(fill(directory, MESSAGES))
        found = measure_drain(directory)
    what = f"{MESSAGES:,} messages waiting in one session, drained, memory above idle"
    return [at_most(what, found["mb"], "MB", LIMIT_MB, beside=f"{found['turns']:.0f} turns")]


async def fill(directory: Path, messages: int) -> None:
    """Accept messages without answering them."""
    gateway = InProcessGateway(open_store(directory, synchronous="OFF"))
    for first in range(0, messages, 500):
        await asyncio.gather(*(gateway.accept_message(CHAT) for _ in range(min(500, messages - first))))
    assert await gateway.store.count_waiting() == messages
    await gateway.store.close()


def measure_drain(directory: Path) -> dict[str, float]:
    """Drain in a process of its own, because only that shows the memory it takes."""
    command = [sys.executable, "-m", "bench.draining", str(directory)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["left"] == 0
    return found


def read_peak_kib() -> int:
    """The most memory that this process has had. `getrusage` would include the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


async def _drain(directory: Path) -> None:
    gateway = InProcessGateway(open_store(directory, synchronous="OFF"))
    async with gateway.open():
        idle = read_peak_kib()
        await gateway.wait_until_idle()
        left = await gateway.store.count_waiting()
        peak = read_peak_kib()
    print(json.dumps({"mb": (peak - idle) / 1024, "turns": gateway.platform.sent, "left": left}))


if __name__ == "__main__":
    asyncio.run(_drain(Path(sys.argv[1])))
