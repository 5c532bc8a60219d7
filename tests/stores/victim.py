"""A process to be killed: commits as fast as it can and says what was acknowledged, or just holds a home's lock."""

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
        scene = StoreScenario(store)
        for session in ("s", "t"):
            if await store.resolve_address(f"test:{session}") is None:
                await scene.open_session(session)

        async def speak(voice: int) -> None:
            n, session = 0, "st"[voice % 2]
            while True:
                n += 1
                text = f"{life}-{voice}-{n}"
                await scene.commit_heard(
                    text, session=session, dedup=text, bound=(f"test:{session}", "")
                )  # as from the door
                os.write(1, f"{text}\n".encode())

        await asyncio.gather(*[speak(voice) for voice in range(20)])


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
