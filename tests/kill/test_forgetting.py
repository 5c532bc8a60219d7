"""The process that forgets a person is killed with -9 at any moment, and the next process finishes the work.

Meanwhile nothing shows the erased text: no request to the model, no tool, no search and no export.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import ToolCall
from everhold.testing.model_dialects import ReceivedModelRequest
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.e2e.running_gateway import make_model_section
from tests.memories.gateway_process import GatewayProcess
from tests.memories.services import MemoryServices
from tests.waiting import LIMIT_SECONDS

KILLS = min(200, int(os.environ.get("EVERHOLD_KILLS", "200")))
FROM = min(KILLS, int(os.environ.get("EVERHOLD_FROM", "0")) * KILLS // int(os.environ.get("EVERHOLD_KILLS", "1000")))
KILLS_PER_RUN = 20
KILLS_PER_PERSON = 4
CHATS = 3
"""Sessions of each person. Each is erased in its own commit."""
LONGEST_SECONDS = 1.0
"""About the duration of forgetting one person, with the start of the command."""
QUESTION = "please look up the word"
READING_TOOLS = {
    "session_search": {"query": "the word"},
    "honcho_search": {"query": "the word"},
    "honcho_context": {},
    "honcho_reasoning": {"query": "the word"},
    "mem0_search": {"query": "the word"},
    "supermemory_search": {"query": "the word"},
}


def use_every_tool(received: ReceivedModelRequest) -> ModelServerReply:
    """Answer a question by reading with every tool that is offered, and then with what they returned."""
    body = received.json
    last = body["messages"][-1]
    offered = {it["function"]["name"] for it in body.get("tools", ())}
    if last["role"] == "tool" or QUESTION not in str(last["content"]):
        return ModelServerReply(text="fine")
    assert offered >= READING_TOOLS.keys(), offered
    calls = [ToolCall(id=name, tool=name, arguments=given) for name, given in READING_TOOLS.items()]
    return ModelServerReply(calls=tuple(calls))


class ForgettingHome(GatewayProcess):
    """A home with people who each told a secret, and who are forgotten one after another."""

    stores = ("mem0", "supermemory", "honcho")

    def __init__(self, path: Path, services: MemoryServices, model: ModelServer, *, people: int, seed: int) -> None:
        # the machine may be busy
        patience: dict[str, Any] = {name: {"deadline_seconds": 30.0} for name in self.stores}
        agent = {"tools": ["session_search"], "memories": ["builtin", *self.stores]}
        config = json.loads(services.config(*self.stores, agent=agent, **patience))
        config |= {"models": {"fake": make_model_section(model.openai)}}
        config["defaults"]["model"] = "fake"
        super().__init__(path, json.dumps(config))
        self.services = services
        self.model = model
        self.rng = random.Random(f"leaving/{seed}")
        self.people = [f"person{number}" for number in range(people)]
        services.honcho.deletes_sessions = False  # it answers, and deletes later

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
        match name:
            case "mem0":
                texts = self.services.mem0.texts()
            case "supermemory":
                texts = self.services.supermemory.texts()
            case _:
                texts = [row["content"] for row in self.services.honcho.state.messages]
        return any(self.secret(person) in text for text in texts)

    async def until(self, true: Callable[[], bool], *, about: Callable[[], object] = str) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while not true():  # poll, because another process sends no event
            assert time.monotonic() < end, f"{about()}\n{self.errors.read_text()[-4_000:]}"
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

    async def kill_again(self, person: str) -> bool:
        """Kill the next process, too; return whether it was continuing the forgetting."""
        await self.start()
        ready = self.rng.random() < 0.8
        if ready:
            await self.wait_until_ready()
        await asyncio.sleep(self.rng.random() * self.rng.choice((0.02, 0.3, LONGEST_SECONDS)))
        met = ready and self.begun(person) and not self.finished(person)
        await self.kill()
        return met

    async def assert_gone(self, person: str) -> None:
        """Let Honcho delete, and wait until nothing is left."""
        self.services.honcho.deletes_sessions = True
        # A kill between a deletion and its record leaves the place `asked` for a day; nothing of the text is left.
        await self.until(functools.partial(self.is_clean, person), about=functools.partial(self.left, person))
        await self.until(lambda: not self.list_strays(), about=self.list_strays)
        self.services.honcho.deletes_sessions = False

    def is_clean(self, person: str) -> bool:
        self.services.honcho.work()
        return not self.left(person)

    async def assert_hidden(self, person: str) -> None:
        """Read in every way while the person is being forgotten, also as the person who comes back."""
        asked, secret = len(self.model.requests), self.secret(person)
        before = self.count_replies()
        await self.send_message(f"{person}-0", QUESTION, id=f"{person}-again", person=person)
        shown = [
            (await self.http.get(path, params={**query, "person": f"http:{person}"}, timeout=LIMIT_SECONDS)).text
            for path, query in (
                ("/api/memory/search", {"q": "the word is in chat"}),
                ("/api/memory/export", {}),
                ("/api/entries", {"q": "word"}),
            )
        ]
        assert all(shown)
        await self.until(lambda: self.count_replies() > before)
        requests = [it.body.decode() for it in self.model.requests[asked:]]
        assert any('"role":"tool"' in it.replace(" ", "") for it in requests), "the tools were called"
        assert secret not in "".join((*shown, *requests))

    def count_replies(self) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{self.home / 'everhold.db'}?mode=ro", uri=True)) as db:
            count: int = db.execute("SELECT count(*) FROM entries WHERE kind = 'said'").fetchone()[0]
            return count

    def list_strays(self) -> list[str]:
        """Return what Honcho has of conversations that go on under another name."""
        with contextlib.closing(sqlite3.connect(f"file:{self.home / 'everhold.db'}?mode=ro", uri=True)) as db:
            names = {id: json.loads(given).get("honcho") for id, given in db.execute("SELECT id, names FROM sessions")}
        rows = self.services.honcho.state.messages
        return [
            f"{row['content']} in {row['session_id']}"
            for row in rows
            if names[row["metadata"]["everhold_session"]] != row["session_id"]
        ]


@contextlib.asynccontextmanager
async def run_forgetting_home(path: Path, *, people: int, seed: int) -> AsyncIterator[ForgettingHome]:
    async with MemoryServices().run() as services, ModelServer(default=use_every_tool) as model:
        home = ForgettingHome(path, services, model, people=people, seed=seed)
        try:
            await home.start()
            await home.wait_until_ready()
            await home.tell()
            yield home
        finally:
            await home.close()


async def run_kills(path: Path, *, kills: int, seed: int) -> None:
    """Forget people until this many kills have met a forgetting."""
    met = 0
    async with run_forgetting_home(path, people=kills // 2 + 2, seed=seed) as home:
        *people, staying = home.people
        gone = []
        for person in people:
            met += await home.forget(person)
            for _ in range(KILLS_PER_PERSON - 1):
                met += await home.kill_again(person) if met < kills else 0
            await home.start()
            await home.wait_until_ready()
            if not home.begun(person):  # the kill came before the request was recorded
                assert await (await home.run("memory", "forget", f"http:{person}", "--yes")).wait() in (0, 75)
            await home.assert_hidden(person)
            await home.assert_gone(person)
            gone.append(person)
            if met >= kills:
                break
        assert met >= kills, "too few kills met a forgetting"
        assert await (await home.run("audit")).wait() == 0, home.errors.read_text()[-4_000:]
        assert {"everhold.db", *home.stores} <= {name.removesuffix("-wal") for name in home.left(staying)}
        for person in gone:
            assert not home.left(person), "erased text came back"


@pytest.mark.slow
async def test_a_kill_during_an_erasure_brings_nothing_back(tmp_path: Path) -> None:
    await run_kills(tmp_path, kills=3, seed=1)


@pytest.mark.prove
async def test_a_killed_restore_applies_the_erasures_again(tmp_path: Path) -> None:
    async with run_forgetting_home(tmp_path, people=2, seed=2) as home:
        gone, stays = home.people
        home.services.honcho.deletes_sessions = True
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
    await run_kills(tmp_path, kills=KILLS_PER_RUN, seed=seed)
