"""A process to be killed. It commits as fast as it can and prints what was acknowledged, or only holds a home's
lock."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from everhold.stores.sqlite import HomeLock, SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom, StoreScenario


async def commit_for_ever(home: Path, life: str) -> None:
    with HomeLock(home / "lock"):
        store = SqliteStore.open(home / "log.db", chance=SeededRandom())
        scenario = StoreScenario(store)
        for session in ("s", "t"):
            if await store.resolve_address(f"test:{session}") is None:
                await scenario.open_session(session)

        async def speak(speaker: int) -> None:
            n, session = 0, "st"[speaker % 2]
            while True:
                n += 1
                text = f"{life}-{speaker}-{n}"
                await scenario.commit_heard(
                    text, session=session, dedup=text, bound=(f"test:{session}", "")
                )  # as an accepted message
                os.write(1, f"{text}\n".encode())

        await asyncio.gather(*[speak(speaker) for speaker in range(20)])


def hold_lock(home: Path) -> None:
    HomeLock(home / "lock").acquire()
    os.write(1, b"held\n")
    sys.stdin.read()


if __name__ == "__main__":
    what, home = sys.argv[1], Path(sys.argv[2])
    if what == "hold":
        hold_lock(home)
    else:
        asyncio.run(commit_for_ever(home, sys.argv[3]))
