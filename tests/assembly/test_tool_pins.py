"""What the owner has seen of a tool server is stored, and a change waits for the owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from everhold.app import SystemClock
from everhold.assembly.tool_pins import ToolPinRegistry
from everhold.core.tool_pins import RESERVED_TOOL_NAMES, compute_entry_digest, find_clashes
from everhold.errors import Conflict, NotFound
from everhold.ports.model import ToolSpec
from everhold.ports.store import Change, StateNamespace, StateWrite, Step
from everhold.stores.sqlite import SqliteStore
from everhold.testing.gateway import RecordingLogger
from everhold.testing.seeded_random import SeededRandom

ENTRY = compute_entry_digest(("server",), "")


def make_tools(**descriptions: str) -> dict[str, ToolSpec]:
    return {
        name: ToolSpec(name=name, description=text, parameters={"type": "object"})
        for name, text in descriptions.items()
    }


@pytest.fixture
async def pins(tmp_path: Path) -> AsyncIterator[ToolPinRegistry]:
    store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
    yield ToolPinRegistry(store, clock=SystemClock(), log=RecordingLogger())
    await store.close()


async def test_the_first_tools_of_an_entry_are_trusted_and_later_changes_wait(pins: ToolPinRegistry) -> None:
    assert not (await pins.review("s", ENTRY, make_tools(a="A", b="B"))).waiting
    changed = await pins.review("s", ENTRY, make_tools(a="A", b="other", c="new"))
    assert set(changed.waiting) == {"b", "c"}
    (shown,) = await pins.list_servers()
    assert [(it["name"], it["state"], it["before"]) for it in shown["waiting"]] == [
        ("b", "changed", "B"),
        ("c", "new", ""),
    ]
    assert not (await pins.review("s", ENTRY, make_tools(a="A", b="B"))).waiting, "it changed back"
    assert not (await pins.review("s", ENTRY, make_tools(a="A"))).waiting
    assert not (await pins.review("s", ENTRY, make_tools(a="A", b="B"))).waiting, "a tool may come back unchanged"


async def test_changed_parameters_wait_too(pins: ToolPinRegistry) -> None:
    await pins.review("s", ENTRY, make_tools(a="A"))
    wider = {"a": ToolSpec(name="a", description="A", parameters={"type": "object", "properties": {"all_files": {}}})}
    assert set((await pins.review("s", ENTRY, wider)).waiting) == {"a"}


async def test_another_command_in_the_configuration_is_a_new_server(pins: ToolPinRegistry) -> None:
    await pins.review("s", ENTRY, make_tools(a="A"))
    assert not (await pins.review("s", compute_entry_digest(("other",), ""), make_tools(a="changed"))).waiting
    assert (await pins.review("s", ENTRY, make_tools(a="A"))).waiting == {}


async def test_a_confirmation_names_what_the_owner_saw(pins: ToolPinRegistry) -> None:
    await pins.review("s", ENTRY, make_tools(a="A"))
    seen = (await pins.review("s", ENTRY, make_tools(a="harmless"))).waiting_digest
    await pins.review("s", ENTRY, make_tools(a="harmful"))
    with pytest.raises(Conflict):
        await pins.confirm("s", seen)
    now = (await pins.list_servers())[0]["digest"]
    assert (await pins.confirm("s", now))["confirmed"] == ["a"]
    assert not (await pins.review("s", ENTRY, make_tools(a="harmful"))).waiting
    with pytest.raises(NotFound):
        await pins.confirm("s", now)


async def test_of_a_change_and_a_confirmation_at_the_same_time_none_is_lost(pins: ToolPinRegistry) -> None:
    """Whatever comes first, a description that the owner has not confirmed is never offered."""
    await pins.review("s", ENTRY, make_tools(a="A"))
    for number in range(20):
        seen = await pins.review("s", ENTRY, make_tools(a=f"version {number}"))
        results = await asyncio.gather(
            pins.confirm("s", seen.waiting_digest),
            pins.review("s", ENTRY, make_tools(a=f"evil {number}")),
            return_exceptions=True,
        )
        assert isinstance(results[0], dict | Conflict)
        assert set((await pins.review("s", ENTRY, make_tools(a=f"evil {number}"))).waiting) == {"a"}


async def test_pins_that_cannot_be_read_make_no_tool_trusted(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
    pins = ToolPinRegistry(store, clock=SystemClock(), log=RecordingLogger())
    write = StateWrite(namespace=StateNamespace.TOOL_PINS, key="s", value='{"entry": 7}', version=0)
    await store.commit(Change(step=Step.STATE, session="", at=0.0, state_writes=(write,)))
    with pytest.raises(msgspec.DecodeError):
        await pins.review("s", ENTRY, make_tools(a="A"))
    await store.close()


def test_the_names_of_memories_and_built_in_tools_are_theirs() -> None:
    offered = {"notes": ["notes_search", "notes_list"], "session": ["session_search"]}
    assert find_clashes(offered, {"notes_search", *RESERVED_TOOL_NAMES}) == {
        ("notes", "notes_search"): "a memory",
        ("session", "session_search"): "a built-in tool",
    }
