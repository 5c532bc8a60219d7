"""The whole gateway as its own process, four services with random faults, and repeated kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.memories.gateway_process import GatewayProcess
from tests.memories.services import NAMES, WRITES, MemoryServices

KILLS = min(300, int(os.environ.get("EVERHOLD_KILLS", "300")))
A_RUN = 25
WRITES_WHEN = ("turn", "async", "session", 3)
CHATS = ("one", "two", "three")
FAULTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("after", {}),
    ("lose", {}),
    ("mute", {}),
    ("late", {"seconds": 0.8}),
    ("slow", {"seconds": 0.3}),
    ("hollow", {}),
    ("garbage", {}),
    ("idle", {}),
    ("drop", {}),
    ("refuse", {"status": 503}),
    ("refuse", {"status": 429, "retry_after": 0.2}),
)


class FaultyServicesGateway(GatewayProcess):
    """People who send messages all the time, and services with random faults."""

    def __init__(self, path: Path, services: MemoryServices, seed: int, write: str | int) -> None:
        patient = {"visible_seconds": 0.5}
        # The vendors' clients take seconds to load, in every process. A service that is called at the end of a deadline
        # and carries out the request `late` would do so after the test has stopped waiting.
        slow = {"deadline_seconds": 4.0}
        # Nor may a turn wait for that, because a turn that is killed five times is given up.
        quick = {"recall": {"deadline_seconds": 0.3}}
        super().__init__(
            path,
            services.config(write=write, agent=quick, honcho=patient | slow, mem0=patient | slow, hindsight=slow),
        )
        self.turns_away = 0.0 if write == "turn" else 0.4
        """Messages after which a chat is reset, which sends pending items."""
        self.services = services
        self.dice = random.Random(f"services/{seed}")
        self.kept: dict[str, list[str]] = {chat: [] for chat in CHATS}
        """Acknowledged messages by chat, in order."""
        self.went_wrong = 0
        self.read = dict.fromkeys(NAMES, 0)
        self.written = dict.fromkeys(NAMES, 0)

    async def run_for_writes(self, writes: int) -> None:
        """Wait until this many more writes reached the services, and sometimes a moment longer.

        Sometimes wait until each service had one: the next process waits for writes in doubt, and a kill during that
        wait would not interrupt any work.
        """
        every = self.dice.random() < 0.2
        before = self.count_writes()
        until = time.monotonic() + (12.0 if every else 30.0)
        while time.monotonic() < until:
            now = self.count_writes()
            if sum(now.values()) - sum(before.values()) >= writes and (
                not every or all(now[n] > before[n] for n in NAMES)
            ):
                break
            await asyncio.sleep(0.005)
        await asyncio.sleep(self.dice.random() * self.dice.choice((0.01, 0.1, 1.0)))

    def count_writes(self) -> dict[str, int]:
        for name in NAMES:  # only new requests, because this is called very often
            requests = self.services[name].requests
            new = requests[self.read[name] :]
            self.read[name] += len(new)
            self.written[name] += sum(it.method == "POST" and bool(re.search(WRITES[name], it.path)) for it in new)
        return dict(self.written)

    async def send_messages(self, chat: str) -> None:
        """Send messages repeatedly."""
        number = 0
        while True:
            number += 1
            text = f"{chat} {number}"
            await self.send_message(chat, text, id=f"{chat}-{number}")
            self.kept[chat].append(text)
            if self.dice.random() < self.turns_away:
                await self.send_message(chat, "/new", id=f"{chat}-{number}-new")
            await asyncio.sleep(0.2 + self.dice.random())

    async def inject_faults(self) -> None:
        """Inject a fault into every second write."""
        while True:
            for name in NAMES:
                service = self.services[name]
                if not service.pending_faults:
                    how, more = self.dice.choice(FAULTS)
                    skip = self.dice.choice((0, 1))
                    service.plan_fault(how, WRITES[name], method="POST", skip=skip, **more)  # type: ignore[arg-type]
                    self.went_wrong += 1
            await asyncio.sleep(0.05)

    def change_setting(self) -> None:
        """Change a setting, so that failed deliveries are retried at once and the test need not wait for minutes."""
        config = self.home / "config.yaml"
        given = json.loads(config.read_text())
        given["agents"]["main"]["recall"]["deadline_seconds"] += 0.001
        new = self.home / "config.yaml.new"
        new.write_text(json.dumps(given))
        new.replace(config)

    def list_stored(self, name: str) -> dict[str, list[str]]:
        """Return what a service stored of each chat, in its order."""
        services = self.services
        if name == "honcho":
            lines = [row["content"] for row in services.honcho.state.messages if row["peer_id"] == "ada"]
        else:
            texts = {
                "hindsight": lambda: [row["text"] for row in services.hindsight.state.documents.values()],
                "mem0": services.mem0.texts,
                "supermemory": services.supermemory.texts,
            }[name]()
            lines = [
                line.removeprefix("ada: ") for text in texts for line in text.split("\n\n") if line.startswith("ada: ")
            ]
        return {chat: [line for line in lines if line.partition(" ")[0] == chat] for chat in CHATS}

    def count_missing(self) -> int:
        return sum(max(0, len(self.kept[chat]) - len(self.list_stored(name)[chat])) for name in NAMES for chat in CHATS)


async def run_kills(path: Path, *, kills: int, seed: int, write: str | int = "turn") -> FaultyServicesGateway:
    async with MemoryServices().run() as services:
        gateway = FaultyServicesGateway(path, services, seed, write)
        talking = [asyncio.create_task(gateway.send_messages(chat)) for chat in CHATS]
        trouble = asyncio.create_task(gateway.inject_faults())
        try:
            for _ in range(kills):
                await gateway.start()
                await gateway.wait_until_ready()
                await gateway.run_for_writes(gateway.dice.randint(1, 12))
                await gateway.kill()
            for task in (*talking, trouble):
                assert not task.done(), task.exception()
                task.cancel()
            for name in NAMES:
                services[name].clear_faults()
            await gateway.start()
            await gateway.wait_until_ready()
            until, times = time.monotonic() + 300, 0  # by then the longest retry delay is over
            while gateway.count_missing() and time.monotonic() < until:
                await asyncio.sleep(0.2)
                times += 1
                if times % 50 == 0:
                    gateway.change_setting()
                if gateway.turns_away and times % 10 == 0:  # a turn that is answered only now would stay pending
                    for chat in CHATS:
                        await gateway.send_message(chat, "/new", id=f"{chat}-last-{times}")
            await asyncio.sleep(2)  # time for anything that would arrive twice
        finally:
            for task in (*talking, trouble):
                task.cancel()
            await asyncio.gather(*talking, trouble, return_exceptions=True)
            await gateway.close()
        return gateway


def find_lost_and_doubled(gateway: FaultyServicesGateway) -> dict[str, str]:
    found = {}
    for name in NAMES:
        heard = gateway.list_stored(name)
        for chat in CHATS:
            # a message that was committed but could not be acknowledged may be there, too
            last = f"{chat} {len(gateway.kept[chat]) + 1}"
            if heard[chat] not in (gateway.kept[chat], [*gateway.kept[chat], last]):
                lost = [it for it in gateway.kept[chat] if it not in heard[chat]]
                twice = sorted({it for it in heard[chat] if heard[chat].count(it) > 1})
                found[f"{name}/{chat}"] = f"lost {lost}, twice {twice}, in order: {sorted(heard[chat]) == heard[chat]}"
    return found


@pytest.mark.slow
async def test_a_kill_loses_and_doubles_nothing_in_four_memories(tmp_path: Path) -> None:
    gateway = await run_kills(tmp_path, kills=1, seed=1)
    assert not find_lost_and_doubled(gateway)
    assert all(gateway.kept.values())
    assert len(gateway.services.honcho.state.created) == len(CHATS)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(100, 100 + -(-KILLS // A_RUN)))
async def test_many_kills_lose_and_double_nothing_in_four_memories(tmp_path: Path, seed: int) -> None:
    write = WRITES_WHEN[seed % len(WRITES_WHEN)]
    began = time.monotonic()
    gateway = await run_kills(tmp_path, kills=A_RUN, seed=seed, write=write)
    killed, kept = gateway.killed - 1, sum(map(len, gateway.kept.values()))  # the last start is not followed by a kill
    took = f"{time.monotonic() - began:.0f} s"
    done = f"{killed} kills, {kept} acknowledged, {gateway.went_wrong} faults, writes {gateway.count_writes()}"
    print(f"seed {seed}, write {write}: {done}, {took}")  # noqa: T201
    assert not find_lost_and_doubled(gateway)
    assert killed == A_RUN
    assert len(gateway.services.honcho.state.created) == len(CHATS)
