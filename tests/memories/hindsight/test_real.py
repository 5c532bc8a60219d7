"""Hindsight's real server, if it is installed: the conformance suite, and a kill -9 between two writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.errors import InDoubt, Transient
from everhold.memories.hindsight.plugin import factory
from everhold.memories.hindsight.provider import HindsightMemory
from everhold.memories.scope import make_document_id
from everhold.ports.memory import MemoryBatch
from everhold.testing.conformance import CHECKS, ProviderScenario
from everhold.testing.conformance.run import run_check
from tests.memories.hindsight.server import HOW, Server, program, running
from tests.memories.memory_items import make_context, make_exchange, make_note

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = program()
    if found is None:
        pytest.skip(f"Hindsight's server is not installed: {HOW}")
    with running(found) as server:
        yield server


def memory(server: Server, directory: Path, *, agent: str = "main", **more: Any) -> HindsightMemory:
    given = {"base_url": server.url, "deadline_seconds": 30.0, "confirm_seconds": 30.0, **more}
    return factory(factory.Settings.model_validate(given), make_context(directory, agent=agent))


async def test_the_real_server_passes_the_conformance_suite(server: Server, tmp_path: Path) -> None:
    made = 0

    def make(agent: str, directory: Path) -> HindsightMemory:
        return memory(server, directory, agent=agent, bank=f"{{agent}}-{made}")

    outcomes = []
    for name in CHECKS:
        # the server may need some time for each document
        scenario = ProviderScenario(tmp_path / name, make, seconds=60.0, patience=60.0)
        outcomes.append(await run_check(name, scenario, most=600.0))
        made += 1  # the next check uses new banks
    failed = {it.check: it.reason for it in outcomes if it.state == "failed"}
    assert not failed
    assert sum(it.state == "passed" for it in outcomes) >= 12


async def test_a_kill_of_the_real_server_loses_and_doubles_nothing(server: Server, tmp_path: Path) -> None:
    mine = memory(server, tmp_path, bank="killed", confirm=False)
    items = [make_exchange(number * 10, f"word {number}", "yes") for number in range(1, 7)] + [
        make_note(99, "likes tea")
    ]
    try:
        for number, item in enumerate(items):
            for attempt in range(30):
                writing = asyncio.create_task(mine.store(MemoryBatch(name="room", items=(item,))))
                if number % 3 == 1 and not attempt:
                    await asyncio.sleep(0.02 * number)  # pending, done or neither
                    server.kill()
                try:
                    await writing
                    break
                except (Transient, InDoubt):
                    await asyncio.to_thread(server.start)
            else:
                raise AssertionError(f"{item.key} was never accepted")
        async with asyncio.timeout(120):
            while set(await mine.probe(MemoryBatch(name="room", items=tuple(items)))) != {item.key for item in items}:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        listed = await mine.client.list_documents("killed", "session:s1")
        assert sorted(one.id for one in listed) == sorted(make_document_id(item.key) for item in items)
    finally:
        await mine.close()
