"""Somebody is forgotten, and the process that does it is killed -9 at any moment: whoever comes next finishes it."""

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
A_RUN = 20
CHATS = 3
"""Sessions of each person: each is erased in a commit of its own."""
LONGEST_SECONDS = 1.0
"""About as long as it takes to forget somebody here, the start of the command included."""


class ForgettingHome(GatewayProcess):
    """People who told something nobody else knows, and who leave one after the other."""

    stores = ("mem0", "supermemory")

    def __init__(self, path: Path, services: MemoryServices, *, people: int, seed: int) -> None:
        patient = {"deadline_seconds": 5.0}  # the machine may be busy; it is not about the services
        super().__init__(path, services.config("mem0", "supermemory", mem0=patient, supermemory=patient))
        self.services = services
        self.dice = random.Random(f"leaving/{seed}")
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
        """Whether a service has something of somebody."""
        texts = self.services.mem0.texts() if name == "mem0" else self.services.supermemory.texts()
        return any(self.secret(person) in text for text in texts)

    async def until(self, true: Callable[[], bool], *, seconds: float = LIMIT_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not true():  # another process rings no bell
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
        return any(person in record["forget"] for record in self.records())

    def finished(self, person: str) -> bool:
        return any(person in record["forget"] and record["done"] for record in self.records())

    def records(self) -> list[dict[str, list[str]]]:
        path = self.home / "erasures.log"
        lines = path.read_bytes().splitlines() if path.exists() else []
        # a line that is being written is none yet
        return [json.loads(line) for line in lines if b'"forget"' in line and line.endswith(b"}")]

    def left(self, person: str, *, besides: str = "backups") -> list[str]:
        """Files and services that have a word of somebody."""
        secret = self.secret(person).encode()
        files = [path for path in self.home.rglob("*") if path.is_file() and besides not in path.parts]
        found = [str(path.relative_to(self.home)) for path in files if secret in path.read_bytes()]
        return found + [name for name in self.stores if self.holds(name, person)]

    async def forget(self, person: str) -> bool:
        """Begin to forget somebody, and kill whoever does it; whether that was in the middle of it."""
        command = await self.run("memory", "forget", person, "--yes")
        # not before it can have begun: that a command can be killed while it starts needs no proof
        if self.dice.random() < 0.8:
            await self.until(lambda: self.begun(person) or command.returncode is not None)
        await asyncio.sleep(self.dice.random() * self.dice.choice((0.02, 0.1, LONGEST_SECONDS)))
        within = self.begun(person) and not self.finished(person)
        await self.kill()
        await command.wait()
        return within


@contextlib.asynccontextmanager
async def run_forgetting_home(path: Path, *, people: int, seed: int) -> AsyncIterator[ForgettingHome]:
    async with MemoryServices().run() as services:
        street = ForgettingHome(path, services, people=people, seed=seed)
        try:
            await street.start()
            await street.wait_until_ready()
            await street.tell()
            yield street
        finally:
            await street.close()


async def run_kills(path: Path, *, kills: int, seed: int) -> int:
    """Forget so many people, each while somebody is killed; how many kills met a forgetting."""
    met = 0
    async with run_forgetting_home(path, people=kills + 1, seed=seed) as street:
        *going, staying = street.people
        for person in going:
            met += await street.forget(person)
            if street.dice.random() < 0.5:  # whoever finishes it is not safe either
                await street.start()
                await asyncio.sleep(street.dice.random() * 2)
                await street.kill()
            await street.start()
            await street.wait_until_ready()
            if not street.begun(person):  # nobody had written down that it should be done
                assert await (await street.run("memory", "forget", person, "--yes")).wait() == 0
            await street.until(functools.partial(street.finished, person))
            assert not street.left(person)
        assert await (await street.run("audit")).wait() == 0, street.errors.read_text()[-4_000:]
        assert {"everhold.db", *street.stores} <= {name.removesuffix("-wal") for name in street.left(staying)}
        for person in going:
            assert not street.left(person), "it came back"
    return met


@pytest.mark.slow
async def test_a_kill_in_the_middle_of_forgetting_brings_nothing_back(tmp_path: Path) -> None:
    assert await run_kills(tmp_path, kills=2, seed=1)


@pytest.mark.prove
async def test_a_restore_that_is_killed_forgets_again(tmp_path: Path) -> None:
    async with run_forgetting_home(tmp_path, people=2, seed=2) as street:
        gone, stays = street.people
        assert await (await street.run("backup")).wait() == 0
        assert await (await street.run("memory", "forget", gone, "--yes")).wait() == 0
        assert not street.left(gone)
        await street.kill()
        restore = await street.run("restore", "--yes")
        await asyncio.sleep(street.dice.random())
        with contextlib.suppress(ProcessLookupError):
            restore.kill()
        await restore.wait()
        assert await (await street.run("restore", "--yes")).wait() == 0, street.errors.read_text()[-4_000:]
        await street.start()
        await street.wait_until_ready()
        assert await (await street.run("audit")).wait() == 0, street.errors.read_text()[-4_000:]
        assert not street.left(gone)
        assert street.left(stays)


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 100 + -(-KILLS // A_RUN)))
async def test_many_kills_in_the_middle_of_forgetting(tmp_path: Path, seed: int) -> None:
    assert await run_kills(tmp_path, kills=A_RUN, seed=seed)
