"""The process that forgets a person is killed with -9 at any moment, and the next process finishes the work."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.memories.gateway_process import GatewayProcess
from tests.memories.services import MemoryServices
from tests.waiting import LIMIT_SECONDS

KILLS = min(200, int(os.environ.get("EVERHOLD_KILLS", "200")))
FROM = min(KILLS, int(os.environ.get("EVERHOLD_FROM", "0")) * KILLS // int(os.environ.get("EVERHOLD_KILLS", "1000")))
KILLS_PER_RUN = 20
CHATS = 3
"""Sessions of each person. Each is erased in its own commit."""
LONGEST_SECONDS = 1.0
"""About the duration of forgetting one person, with the start of the command."""


class ForgettingHome(GatewayProcess):
    """A home with people who each told a secret, and who are forgotten one after another."""

    stores = ("mem0", "supermemory")

    def __init__(self, path: Path, services: MemoryServices, *, people: int, seed: int) -> None:
        patient = {"deadline_seconds": 5.0}  # the machine may be busy
        super().__init__(path, services.config("mem0", "supermemory", mem0=patient, supermemory=patient))
        self.services = services
        self.rng = random.Random(f"leaving/{seed}")
        self.people = [f"person{number}" for number in range(people)]

    def secret(self, person: str) -> str:
        return f"quartz{person}zanzibar"

    async def tell(self) -> None:
        for person in self.people:
            for chat in range(CHATS):
                text = f"the word is {self.secret(person)} in chat {chat}"
                await self.send_message(f"{person}-{chat}", text, id=f"{person}-{chat}", person=person)
        await self.wait_for_replies(len(self.people) * CHATS)
        await self.until(lambda: all(self.holds(name, person) for name in self.stores for person in self.people))

    def holds(self, name: str, person: str) -> bool:
        """Return whether a service has a person's secret."""
        texts = self.services.mem0.texts() if name == "mem0" else self.services.supermemory.texts()
        return any(self.secret(person) in text for text in texts)

    async def until(self, true: Callable[[], bool], *, seconds: float = LIMIT_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not true():  # poll, because another process sends no event
            assert time.monotonic() < end, self.errors.read_text()[-4_000:]
            await asyncio.sleep(0.05)

    async def run(self, *words: str) -> asyncio.subprocess.Process:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("EVERHOLD")}
        with self.errors.open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "everhold",
                "--home",
                str(self.home),
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=environ,
            )

    def begun(self, person: str) -> bool:
        return any(f"http:{person}" in record["forget"] for record in self.records())

    def finished(self, person: str) -> bool:
        return any(f"http:{person}" in record["forget"] and record["done"] for record in self.records())

    def records(self) -> list[dict[str, list[str]]]:
        path = self.home / "erasures.log"
        lines = path.read_bytes().splitlines() if path.exists() else []
        # skip a line that is not complete yet
        return [json.loads(line) for line in lines if b'"forget"' in line and line.endswith(b"}")]

    def left(self, person: str, *, besides: str = "backups") -> list[str]:
        """Return the files and services that have a person's secret."""
        secret = self.secret(person).encode()
        files = [path for path in self.home.rglob("*") if path.is_file() and besides not in path.parts]
        found = [str(path.relative_to(self.home)) for path in files if secret in path.read_bytes()]
        return found + [name for name in self.stores if self.holds(name, person)]

    async def forget(self, person: str) -> bool:
        """Begin to forget a person and kill the process; return whether the kill met the forgetting."""
        command = await self.run("memory", "forget", f"http:{person}", "--yes")
        # mostly wait until it has begun, because a kill during the start of the command tests nothing
        if self.rng.random() < 0.8:
            await self.until(lambda: self.begun(person) or command.returncode is not None)
        await asyncio.sleep(self.rng.random() * self.rng.choice((0.02, 0.1, LONGEST_SECONDS)))
        within = self.begun(person) and not self.finished(person)
        await self.kill()
        await command.wait()
        return within

    def is_clean(self, person: str) -> bool:
        return not self.left(person)


@contextlib.asynccontextmanager
async def run_forgetting_home(path: Path, *, people: int, seed: int) -> AsyncIterator[ForgettingHome]:
    async with MemoryServices().run() as services:
        home = ForgettingHome(path, services, people=people, seed=seed)
        try:
            await home.start()
            await home.wait_until_ready()
            await home.tell()
            yield home
        finally:
            await home.close()


async def run_kills(path: Path, *, kills: int, seed: int) -> int:
    """Forget `kills` people, each with a kill; return how many kills met a forgetting."""
    met = 0
    async with run_forgetting_home(path, people=kills + 1, seed=seed) as home:
        *going, staying = home.people
        for person in going:
            met += await home.forget(person)
            if home.rng.random() < 0.5:  # sometimes kill the next process too
                await home.start()
                await asyncio.sleep(home.rng.random() * 2)
                await home.kill()
            await home.start()
            await home.wait_until_ready()
            if not home.begun(person):  # the kill came before the request was recorded
                assert await (await home.run("memory", "forget", f"http:{person}", "--yes")).wait() in (0, 75)
            # A kill between a deletion and its record leaves the place `asked` for a day; nothing of the text is left.
            await home.until(functools.partial(home.is_clean, person))
        assert await (await home.run("audit")).wait() == 0, home.errors.read_text()[-4_000:]
        assert {"everhold.db", *home.stores} <= {name.removesuffix("-wal") for name in home.left(staying)}
        for person in going:
            assert not home.left(person), "erased text came back"
    return met


@pytest.mark.slow
async def test_a_kill_during_an_erasure_brings_nothing_back(tmp_path: Path) -> None:
    assert await run_kills(tmp_path, kills=2, seed=1)


@pytest.mark.prove
async def test_a_killed_restore_applies_the_erasures_again(tmp_path: Path) -> None:
    async with run_forgetting_home(tmp_path, people=2, seed=2) as home:
        gone, stays = home.people
        assert await (await home.run("backup")).wait() == 0
        # the backup still has the person, which the command reports with 1; a restore applies the erasure to it
        assert await (await home.run("memory", "forget", f"http:{gone}", "--yes")).wait() == 1
        assert not home.left(gone)
        await home.kill()
        restore = await home.run("restore", "--yes")
        await asyncio.sleep(home.rng.random())
        with contextlib.suppress(ProcessLookupError):
            restore.kill()
        await restore.wait()
        assert await (await home.run("restore", "--yes")).wait() == 0, home.errors.read_text()[-4_000:]
        await home.start()
        await home.wait_until_ready()
        assert await (await home.run("audit")).wait() == 0, home.errors.read_text()[-4_000:]
        assert not home.left(gone)
        assert home.left(stays)


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100 + FROM // KILLS_PER_RUN, 100 + -(-KILLS // KILLS_PER_RUN)))
async def test_many_kills_during_erasures_bring_nothing_back(tmp_path: Path, seed: int) -> None:
    assert await run_kills(tmp_path, kills=KILLS_PER_RUN, seed=seed)
