"""A provider deletes what there was when an erasure began, however often and however late it is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.memories.hindsight.plugin import factory as hindsight_factory
from everhold.memories.honcho.plugin import factory as honcho_factory
from everhold.memories.mem0.plugin import factory as mem0_factory
from everhold.memories.supermemory.plugin import factory as supermemory_factory
from everhold.ports.memory import ErasureState, ErasureTarget
from tests.memories.memory_items import AT, make_batch, make_exchange, make_note, make_query, open_memories
from tests.memories.services import NAMES, MemoryServices

FACTORIES: dict[str, Any] = {
    "honcho": honcho_factory,
    "hindsight": hindsight_factory,
    "mem0": mem0_factory,
    "supermemory": supermemory_factory,
}
OLD, NEW = "the old zanzibar", "the new quokka"
MOVED = {"dm": "dm-2"}


@pytest.fixture(params=NAMES)
async def memory(request: pytest.FixtureRequest, tmp_path: Path, services: MemoryServices) -> AsyncIterator[Any]:
    settings = {**services.settings(request.param), "api_key": "key"}
    settings.pop("api_key_env")
    async with open_memories(FACTORIES[request.param], tmp_path, **settings) as make:
        yield make()


def target(**more: Any) -> ErasureTarget:
    given: dict[str, Any] = {
        "identities": ("ada",),
        "audiences": (("person:ada",),),
        "keys": ("s1:1",),
        "before": AT + 100,
        "moved_sessions": MOVED,
    }
    return ErasureTarget(**{**given, **more})


async def find_texts(memory: Any, services: MemoryServices) -> str:
    services.honcho.work()
    exported = [it.text async for it in memory.export("ada")]
    found = [it.text for name in ("dm", "dm-2") for it in await memory.find(make_query("the", name=name))]
    return "\n".join([*exported, *found])


async def test_a_repeated_request_leaves_what_the_person_said_since(memory: Any, services: MemoryServices) -> None:
    await memory.store(make_batch(make_exchange(1, OLD), name="dm"))
    first = await memory.forget(target())
    assert any(it.state is ErasureState.ASKED for it in first)
    assert OLD not in await find_texts(memory, services)
    await memory.store(make_batch(make_exchange(200, NEW), name="dm-2"))
    await memory.forget(target(kept_keys=frozenset({"s1:200"})))
    assert NEW in await find_texts(memory, services)
    asked = [it for it in first if it.state is ErasureState.ASKED]
    assert set((await memory.confirm_deletions(asked)).values()) == {ErasureState.CONFIRMED}, "the new is no remainder"


async def test_a_first_request_that_comes_late_takes_only_the_old(memory: Any, services: MemoryServices) -> None:
    """The service was down when the erasure began, and the person has come back since."""
    await memory.store(make_batch(make_exchange(1, OLD), name="dm"))
    await memory.store(make_batch(make_exchange(200, NEW), name="dm"))
    asked = await memory.forget(target(kept_keys=frozenset({"s1:200"})))
    texts = await find_texts(memory, services)
    assert (OLD in texts, NEW in texts) == (False, True)
    asked = [it for it in asked if it.state is ErasureState.ASKED]
    assert set((await memory.confirm_deletions(asked)).values()) == {ErasureState.CONFIRMED}


async def test_the_log_decides_and_not_the_clock(memory: Any, services: MemoryServices) -> None:
    """The clock was set back after the erasure, so what was said since looks older. It was ahead before."""
    await memory.store(make_batch(make_exchange(900, OLD), name="dm"))
    await memory.store(make_batch(make_exchange(5, NEW), name="dm"))
    await memory.forget(target(keys=("s1:900",), kept_keys=frozenset({"s1:5"})))
    texts = await find_texts(memory, services)
    assert (OLD in texts, NEW in texts) == (False, True)


async def test_a_note_from_before_goes(memory: Any, services: MemoryServices) -> None:
    await memory.store(make_batch(make_exchange(1, OLD), make_note(3, f"a note on {OLD}"), name="dm"))
    await memory.forget(target(keys=("s1:1", "s1:3:note")))
    assert OLD not in await find_texts(memory, services)


async def test_what_the_log_does_not_know_goes_only_if_it_is_older(memory: Any, services: MemoryServices) -> None:
    """After a restore, the log does not know what a person said who came back."""
    await memory.store(make_batch(make_exchange(1, NEW), name="dm"))
    assert not [it for it in await memory.forget(target(keys=(), before=1_000.0)) if it.count]
    assert NEW in await find_texts(memory, services)
    await memory.forget(target(keys=()))
    assert memory.__class__.__name__ == "HindsightMemory" or NEW not in await find_texts(memory, services)
