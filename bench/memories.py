"""What memories cost a turn, and how long it takes to deliver the backlog of an outage.

The services are those of `everhold.testing.services`, in their own process, called through the vendors' clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.history import SessionHistory
from bench.in_process import InProcessGateway, SilentLogger, SystemClock, open_store, temporary_directory
from bench.table import Row, at_most, interleave, median
from everhold.core.consumers import memory_consumer
from everhold.engine.memory_client import MemoryClient
from everhold.infra.plugins import MEMORY_PLUGINS
from everhold.ports.memory import MemoryBatch, MemoryCapability, MemoryHit, MemoryQuery
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.plugin import PluginContext
from everhold.ports.store import Change, Step, Wakeup
from everhold.testing.services.base import LoopbackService
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService
from everhold.testing.services.mem0 import Mem0Service
from everhold.testing.services.supermemory import SupermemoryService

LIMIT_MS = 0.3
SERVICES: dict[str, type[LoopbackService]] = {
    "honcho": HonchoService,
    "hindsight": HindsightService,
    "mem0": Mem0Service,
    "supermemory": SupermemoryService,
}
SESSIONS = 50


class InstantMemory:
    """A memory that confirms every batch immediately and stores nothing."""

    delivery = DeliveryGuarantee.KEYED
    capabilities = frozenset({MemoryCapability.PROBE})
    deadline = 30.0
    visible_after = 0.0

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        return {item.key: item.key for item in batch.items}

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return ()

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        return [item.key for item in batch.items]


class MemoryGateway(InProcessGateway):
    """A gateway with memories.

    `held`: nothing is delivered to them, so that a turn is measured without its delivery.
    """

    def __init__(self, directory: Path, memories: Mapping[str, Any], *, held: bool = False) -> None:
        super().__init__(open_store(directory))
        self.memories = {name: MemoryClient(memory, instance=name, agent="main") for name, memory in memories.items()}
        self._runtime = dataclasses.replace(
            self._runtime,
            memories=tuple(memories),
            recall_memories=tuple(memories),
            recall_seconds=0.8 if memories else 0.0,
        )
        if held:
            self.supervisor.only_consumers = ("turn", "platform:table:main")

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        return self.memories.get(instance)

    def list_memories(self) -> list[MemoryClient]:
        return list(self.memories.values())


TURNS = {"honcho": 10_000, "hindsight": 10_000, "supermemory": 10_000, "mem0": 1_000}
"""Fewer for mem0, because its fake is slow at finding one memory among many."""


def memory_rows(rounds: int, *, most: int = 10_000) -> list[Row]:
    found = interleave(rounds, {str(count): lambda count=count: turn_cost(count) for count in (0, 1, 4)})  # type: ignore[misc]
    each = median([(four - none) / 4 for four, none in zip(found["4"], found["0"], strict=True)])
    rows = [
        at_most(
            "an attached memory on the turn path, recall included, CPU",
            each,
            "ms",
            LIMIT_MS,
            beside=f"turn with none {median(found['0']):.2f} ms, one {median(found['1']):.2f} ms, "
            f"four {median(found['4']):.2f} ms",
        )
    ]
    for name, count in TURNS.items():
        turns = min(count, most)
        seconds = drain(name, turns)
        rows.append(
            Row(
                what=f"{turns:,} turns of {SESSIONS} sessions delivered to {name} after an outage",
                value=seconds,
                unit="s",
                beside=f"{turns / seconds:.0f} a second, each read back",
            )
        )
    return rows


def turn_cost(memories: int, *, turns: int = 150) -> float:
    """CPU milliseconds of one turn with a number of memories."""

    async def run(directory: Path) -> float:
        attached = {f"m{number}": InstantMemory() for number in range(memories)}
        async with MemoryGateway(directory, attached, held=True).open() as gateway:
            for _ in range(5):
                await gateway.turn("c")
            started = time.process_time()
            for _ in range(turns):
                await gateway.turn("c")
            return (time.process_time() - started) / turns * 1e3

    with temporary_directory() as directory:
        return asyncio.run(run(directory))


def drain(name: str, turns: int) -> float:
    """Seconds from the end of an outage until the service has everything."""

    async def run(directory: Path, url: str) -> float:
        store = open_store(directory, synchronous="OFF")
        for number in range(SESSIONS):
            await SessionHistory(store, f"s-{number}", chat=f"c{number}").live(turns // SESSIONS)
        await store.close()
        factory = MEMORY_PLUGINS.load(name)
        settings = factory.Settings.model_validate({"base_url": url, "api_key": "a-key"})
        context = PluginContext(
            agent="main", instance=name, directory=directory, log=SilentLogger(), clock=SystemClock()
        )
        gateway = MemoryGateway(directory, {name: factory(settings, context)})
        async with gateway.open():
            started = time.monotonic()
            for number in range(SESSIONS):
                wake = Wakeup(consumer=memory_consumer(name), start=0)
                await gateway.store.commit(
                    Change(step=Step.NOTE, session=f"s-{number}", at=time.time(), wakeups=(wake,))
                )
            gateway.wakeups.work_available.set()
            await gateway.wait_until_idle()
            seconds = time.monotonic() - started
            dead_letters = await gateway.store.list_dead_letters()
            assert not dead_letters, dead_letters[0]
            await gateway.memories[name].close()
            return seconds

    with temporary_directory() as directory, served(SERVICES[name]) as (url, kept):
        seconds = asyncio.run(run(directory, url))
        there = kept()
        assert there >= turns, f"{name} has {there} of {turns}"
        return seconds


@contextlib.contextmanager
def served(kind: type[LoopbackService]) -> Iterator[tuple[str, Any]]:
    """Run a service in its own process; yield its URL and a function that returns how many exchanges it has."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(kind, there), daemon=True)
    process.start()
    try:
        url = here.recv()

        def kept() -> int:
            here.send("kept")
            count: int = here.recv()
            return count

        yield url, kept
    finally:
        process.terminate()
        process.join()


def _serve(kind: type[LoopbackService], line: Connection) -> None:
    with kind().threaded() as service:
        line.send(service.url)
        while True:
            line.recv()
            line.send(_kept(service))


def _kept(service: LoopbackService) -> int:
    """Return how many exchanges a service has."""
    state = service.state
    if isinstance(service, HonchoService):
        return len({row["metadata"]["everhold"] for row in state.messages})
    return len(state.memories if isinstance(service, Mem0Service) else state.documents)
