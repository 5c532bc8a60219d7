"""Honcho's real server, if a checkout of its source is named. It derives in the background what everhold recalls, it
answers a deletion at once and deletes later, and its search returns neighbours.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from everhold.memories.honcho.plugin import factory
from everhold.memories.honcho.provider import HonchoMemory
from everhold.ports.memory import ErasureState, Exchange, SessionRenewal
from everhold.testing.conformance import CHECKS
from tests.memories.deriving_model import DERIVED
from tests.memories.honcho.server import HOW, HonchoServer, find_checkout, run_server
from tests.memories.memory_items import (
    Forgetting,
    confirm,
    forget,
    make_batch,
    make_context,
    make_exchange,
    make_note,
    make_query,
    make_tool_context,
    open_memories,
    read_tool,
    run_real_check,
)

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]
LIMIT_SECONDS = 300.0
SETTINGS: dict[str, Any] = {"deadline_seconds": 300.0, "visible_seconds": 1.0}


@pytest.fixture(scope="module")
def running_server() -> Iterator[HonchoServer]:
    source = find_checkout()
    if source is None:
        pytest.skip(f"Honcho's server is not there: {HOW}")
    with run_server(source) as server:
        yield server


@pytest.fixture
def server(running_server: HonchoServer) -> Iterator[HonchoServer]:
    """The server without its worker, which a test starts."""
    yield running_server
    running_server.stop_worker()


@pytest.fixture
def workspace(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "-", request.node.name)[:60]


@pytest.fixture
async def memory(server: HonchoServer, tmp_path: Path, workspace: str) -> AsyncIterator[HonchoMemory]:
    async with open_memories(factory, tmp_path, base_url=server.url, workspace=workspace, **SETTINGS) as make:
        yield make()


async def wait_until(shown: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for the worker of the server, which sends no event."""
    until = time.monotonic() + LIMIT_SECONDS
    while not await shown():
        assert time.monotonic() < until, what
        await asyncio.sleep(1.0)


async def wait_until_confirmed(memory: HonchoMemory, forgotten: Forgetting) -> None:
    async def is_confirmed() -> bool:
        return set(await confirm(memory, forgotten)) == {"confirmed"}

    await wait_until(is_confirmed, "the worker deletes, and everhold confirms it")


async def find_texts(memory: HonchoMemory, text: str, who: str = "ada") -> str:
    return "\n".join(it.text for it in await memory.find(make_query(text, who=who)))


async def wait_until_derived(memory: HonchoMemory, word: str, who: str = "ada") -> None:
    async def is_derived() -> bool:
        return any(
            DERIVED in line and word in line
            for line in (await find_texts(memory, f"{DERIVED} {word}", who)).split("\n")
        )

    await wait_until(is_derived, f"what Honcho derived from {word} is recalled")


async def show(memory: HonchoMemory, who: str) -> str:
    """Return everything that a person is shown: recall, search without a session, tools and export."""
    context = make_tool_context(who, session=f"s-{who}")
    shown = [await find_texts(memory, "what is the secret?", who)]
    shown += [it.text for it in await memory.find(make_query("what is the secret?", who=who, name="", session=""))]
    asked: dict[str, dict[str, Any]] = {
        "honcho_search": {"query": "what is the secret?"},
        "honcho_reasoning": {"query": "what is the secret?"},  # our model answers with everything that it was shown
        "honcho_conclude": {"list": True},
    }
    for tool in memory.tools():
        shown.append(read_tool(await tool.run(asked.get(tool.spec.name, {}), context)))
    shown += [it.text async for it in memory.export(who)]
    return "\n".join(shown)


async def test_what_honcho_derives_is_recalled_for_its_person_alone(server: HonchoServer, memory: HonchoMemory) -> None:
    server.start_worker()
    await memory.store(make_batch(make_exchange(1, "my secret is zanzibar", "I see"), name="room-of-ada"))
    other = make_exchange(2, "my hobby is chess", "Nice", who="bob", session="s-bob")
    await memory.store(make_batch(other, name="room-of-bob"))
    await wait_until_derived(memory, "zanzibar")
    await wait_until_derived(memory, "chess", "bob")
    (conclude,) = (it for it in memory.tools() if it.spec.name == "honcho_conclude")
    assert DERIVED in read_tool(await conclude.run({"list": True}, make_tool_context("ada")))
    assert "zanzibar" in await show(memory, "ada")
    hers, his = await show(memory, "ada"), await show(memory, "bob")
    assert "chess" in his
    assert "zanzibar" not in his
    assert "chess" not in hers


async def test_a_session_that_another_program_opened_is_observed_from_the_next_write_on(
    server: HonchoServer, memory: HonchoMemory
) -> None:
    """Honcho keeps the settings of a peer that is in the session already. Without them it derives nothing to recall."""
    await memory.client.call("opening", lambda sdk: sdk.aio.session("room", peers=["ada", memory.peers.agent_peer]))
    server.start_worker()
    await memory.store(make_batch(make_exchange(1, "my secret is zanzibar", "I see"), name="room"))
    await wait_until_derived(memory, "zanzibar")


async def test_no_prompt_of_honcho_contains_our_metadata(server: HonchoServer, memory: HonchoMemory) -> None:
    server.start_worker()
    await memory.store(make_batch(make_exchange(1, "my hobby is falconry", "I see", session="session-of-mine")))
    await wait_until_derived(memory, "falconry")
    prompts = [it for it in server.model.list_prompts() if "falconry" in it]
    assert prompts
    assert [it for it in prompts if "everhold" in it or "session-of-mine" in it] == []


async def test_a_session_is_confirmed_only_after_the_worker_has_deleted_it(
    server: HonchoServer, memory: HonchoMemory
) -> None:
    await memory.store(make_batch(make_exchange(1, "my secret is zanzibar", "I see"), make_note(2, "likes tea")))
    assert "zanzibar" in await find_texts(memory, "secret zanzibar")
    forgotten = await forget(memory, "ada")
    states = dict(
        zip([it.id.partition(":")[0] for it in forgotten.deletions], await confirm(memory, forgotten), strict=True)
    )
    assert states == {"conclusions": "confirmed", "session": "asked"}
    assert "zanzibar" in await find_texts(memory, "secret zanzibar"), "it still has it"
    server.start_worker()
    await wait_until_confirmed(memory, forgotten)
    assert "zanzibar" not in await find_texts(memory, "secret zanzibar")


async def test_when_erasure_is_confirmed_nothing_derived_is_left_either(
    server: HonchoServer, memory: HonchoMemory
) -> None:
    server.start_worker()
    await memory.store(make_batch(make_exchange(1, "my secret is quibblewort", "I see"), make_note(2, "quibblewort")))
    await wait_until_derived(memory, "quibblewort")
    assert "quibblewort" in server.database.dump_rows()
    forgotten = await forget(memory, "ada")
    await wait_until_confirmed(memory, forgotten)
    assert "quibblewort" not in await show(memory, "ada")
    left = [line for line in server.database.dump_rows().splitlines() if "quibblewort" in line]
    assert left == [], "its database has none of it"


async def test_a_rebuilt_session_keeps_the_others(server: HonchoServer, memory: HonchoMemory) -> None:
    server.start_worker()
    mine = make_exchange(1, "my secret is zanzibar", "I see", group="club")
    his = make_exchange(3, "I like quokkas", "Nice", who="bob", group="club")
    await memory.store(make_batch(mine, his, name="club"))
    forgotten = await forget(memory, "ada", keys=(mine.key,), rebuild=True)
    await wait_until_confirmed(memory, forgotten)
    assert [it.content for it in await memory.client.list_messages("club-2")] == ["I like quokkas", "Nice"]


async def test_a_renewed_session_has_nothing_of_what_was_undone(server: HonchoServer, memory: HonchoMemory) -> None:
    """Neither the message, nor what the server derived from it. It derives the rest again."""
    server.start_worker()
    now = time.time()
    kept, undone = (_say_at(1, "I keep quokkas", now - 60), _say_at(3, "my secret is quibblewort", now))
    await memory.store(make_batch(kept, undone, name="old"))
    await wait_until_derived(memory, "quibblewort")
    renewal = SessionRenewal(name="old", new_name="new", is_left=False, keys=frozenset({undone.key}), since=now)
    assert await memory.renew_session(renewal)
    deletions = await memory.renew_session(structs.replace(renewal, is_left=True))

    async def is_gone() -> bool:
        return set((await memory.confirm_deletions(deletions)).values()) == {ErasureState.CONFIRMED}

    await wait_until(is_gone, "the old session is deleted")
    assert [it.content for it in await memory.client.list_messages("new")] == ["I keep quokkas", "I see"]
    await wait_until_derived(memory, "quokkas")
    left = [line for line in server.database.dump_rows().splitlines() if "quibblewort" in line]
    assert left == [], "its database has none of it"


def _say_at(op: int, text: str, at: float) -> Exchange:
    made = make_exchange(op, text, "I see")
    heard = tuple(structs.replace(it, at=at) for it in made.heard)
    return structs.replace(made, heard=heard, said=tuple(structs.replace(it, at=at) for it in made.said))


@pytest.mark.parametrize("check", CHECKS)
async def test_the_real_server_passes_the_conformance_suite(
    server: HonchoServer, tmp_path: Path, workspace: str, check: str
) -> None:
    def make(agent: str, directory: Path) -> HonchoMemory:
        given = factory.Settings.model_validate({"base_url": server.url, "workspace": workspace, **SETTINGS})
        return factory(given, make_context(directory, agent=agent))

    server.start_worker()
    outcome = await run_real_check(check, tmp_path, make)
    if outcome.state == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.state == "passed", outcome.reason
