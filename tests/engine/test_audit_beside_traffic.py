"""P8: an audit beside traffic raises no false alarm, because it reads one snapshot."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from everhold.admin.audit import audit_store
from everhold.core.access import AdmissionDecision
from everhold.core.entries import ChatLocation
from everhold.engine.facts import FactCache
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.supervisor import WorkerSupervisor
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.platform import IncomingMessage
from everhold.stores.sqlite import SqliteStore, connect
from everhold.testing.fakes import FakeMemoryProvider, FakePlatform
from everhold.testing.gateway import FakeRuntimes, RecordingLogger
from everhold.testing.seeded_random import SeededRandom
from tests.waiting import wait_until

CHATS = 4


class RealClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class TalkingGateway:
    """A gateway on real time, with a real store on its writer's thread. Four chats talk without a pause."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore.open(path / "log.db", chance=SeededRandom(), synchronous="OFF")
        self.runtimes = FakeRuntimes()
        self.platform = FakePlatform(text_limit=40)
        self.runtimes.platforms[("fake", "main")] = self.platform
        self.runtimes.memories["mem"] = FakeMemoryProvider()
        self.runtimes.settings.update(recall_memories=("mem",), recall_seconds=60.0)
        self.runtimes.notes = FactCache(self.store)
        gates = Gates(
            store=self.store, clock=RealClock(), chance=SeededRandom(), log=RecordingLogger(), owner="traffic"
        )
        wakeups = Wakeups()
        self.supervisor = WorkerSupervisor(gates, runtimes=self.runtimes, wakeups=wakeups)
        self.accept = MessageAcceptor(gates, admit=self._admit, wakeups=wakeups, peers=self.supervisor.peers)

    async def _admit(self, incoming: IncomingMessage) -> AdmissionDecision:
        return AdmissionDecision(agent="main", identity=incoming.sender, group="shared")

    def has_answered(self) -> bool:
        return len(self.platform.shown_messages) > 20

    async def talk(self, chat: int) -> None:
        for number in itertools.count():
            origin = ChatLocation(platform="fake", account="main", chat=f"c{chat}", message=f"{chat}-{number}")
            text = ("/undo", "/new")[number // 10 % 2] if number % 10 == 9 else f"message {number} of chat {chat}"
            await self.accept(IncomingMessage(origin=origin, text=text, sender=f"u{chat}", name=f"u{chat}"))
            await asyncio.sleep(0)


@asynccontextmanager
async def run_traffic(path: Path) -> AsyncIterator[TalkingGateway]:
    gateway = TalkingGateway(path)
    loop = asyncio.get_running_loop()
    work = [
        loop.create_task(gateway.supervisor.dispatch()),
        loop.create_task(gateway.supervisor.keep_renewing_leases()),
    ]
    work += [loop.create_task(gateway.talk(chat)) for chat in range(CHATS)]
    try:
        yield gateway
    finally:
        for task in (*work, *gateway.supervisor.tasks):
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await gateway.store.close()


async def count_alarms(path: Path, audits: int) -> tuple[int, int, list[str]]:
    """Return how many audits were beside commits, how many were made, and all alarms."""
    beside, alarms = 0, list[str]()
    for batch in range(-(-audits // 50)):  # each in a new store, because an audit of a longer log takes longer
        async with run_traffic(path / str(batch)) as gateway:
            await wait_until(gateway.has_answered)
            for _ in range(min(50, audits - 50 * batch)):
                before = await gateway.store.last_pos()
                report = await audit_store(gateway.store)
                beside += await gateway.store.last_pos() > before
                alarms += [f"{it.promise} {it.text}" for it in report.broken_findings]
    return beside, audits, alarms


async def test_audits_beside_traffic_raise_no_alarm(tmp_path: Path) -> None:
    beside, audits, alarms = await count_alarms(tmp_path, 15)
    assert alarms == []
    assert beside > audits / 2


@pytest.mark.prove
@pytest.mark.parametrize("part", range(20))
async def test_a_thousand_audits_beside_traffic_raise_no_alarm(tmp_path: Path, part: int) -> None:
    """In parts of 50, so that an interrupted run can go on: `-k "alarm and 7-"`."""
    beside, audits, alarms = await count_alarms(tmp_path, 50)
    assert alarms == []
    assert beside > audits / 2


async def test_without_a_snapshot_the_same_traffic_causes_alarms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: each statement sees another moment."""
    opened = connect.open_for_reading

    class SeveralConnections:
        """Every cursor belongs to a connection of its own, so there is no common transaction."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self.open = functools.partial(opened, *args, **options)
            self.db = self.open()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.db, name)

        def cursor(self) -> apsw.Cursor:
            return self.open().cursor()

    async with run_traffic(tmp_path) as gateway:
        await wait_until(gateway.has_answered)
        monkeypatch.setattr(connect, "open_for_reading", SeveralConnections)

        async def is_alarmed() -> bool:
            return bool((await audit_store(gateway.store)).broken_findings)

        await wait_until(is_alarmed)
