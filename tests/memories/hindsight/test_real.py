"""Hindsight's real server, if it is installed: the conformance suite, a kill -9 between two writes, what it derives,
and what it keeps after an erasure.
"""

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
from everhold.testing.conformance import CHECKS
from tests.memories.deriving_model import DERIVED
from tests.memories.hindsight.server import HOW, Server, program, running
from tests.memories.memory_items import (
    confirm,
    forget,
    make_batch,
    make_context,
    make_exchange,
    make_note,
    make_query,
    make_tool_context,
    read_tool,
    run_real_check,
)

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = program()
    if found is None:
        pytest.skip(f"Hindsight's server is not installed: {HOW}")
    with running(found) as server:
        yield server


@pytest.fixture(scope="module")
def deriving_server() -> Iterator[Server]:
    found = program()
    if found is None:
        pytest.skip(f"Hindsight's server is not installed: {HOW}")
    with running(found, derives=True) as server:
        yield server


def memory(server: Server, directory: Path, *, agent: str = "main", **more: Any) -> HindsightMemory:
    given = {"base_url": server.url, "deadline_seconds": 300.0, "confirm_seconds": 300.0, **more}
    return factory(factory.Settings.model_validate(given), make_context(directory, agent=agent))


@pytest.mark.parametrize("check", CHECKS)
async def test_the_real_server_passes_the_conformance_suite(server: Server, tmp_path: Path, check: str) -> None:
    def make(agent: str, directory: Path) -> HindsightMemory:
        return memory(server, directory, agent=agent, bank=f"{{agent}}-{check}")

    outcome = await run_real_check(check, tmp_path, make)
    if outcome.state == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.state == "passed", outcome.reason


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
        async with asyncio.timeout(900):
            while set(await mine.probe(MemoryBatch(name="room", items=tuple(items)))) != {item.key for item in items}:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        listed = await mine.client.list_documents("killed", "session:s1")
        assert sorted(one.id for one in listed) == sorted(make_document_id(item.key) for item in items)
    finally:
        await mine.close()


# -- with a language model ---------------------------------------------------------------------------------------------


@pytest.fixture
async def deriving(deriving_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    mine = memory(deriving_server, tmp_path, bank=request.node.name)
    yield mine
    await mine.close()


async def show(mine: HindsightMemory, who: str) -> str:
    """Return everything that a person is shown: recall, search without a session, tools and export."""
    asked = "what is my secret hobby?"
    shown = [it.text for it in await mine.find(make_query(asked, who=who, session=f"s-{who}"))]
    shown += [it.text for it in await mine.find(make_query(asked, who=who, name="", session=""))]
    for tool in mine.tools():
        if tool.spec.name == "hindsight_recall":
            result = await tool.run({"query": asked}, make_tool_context(who, session=f"s-{who}"))
            shown.append(read_tool(result))
    shown += [it.text async for it in mine.export(who)]
    return "\n".join(shown)


async def test_what_hindsight_derives_is_recalled_for_its_person_alone(deriving: HindsightMemory) -> None:
    await deriving.store(make_batch(make_exchange(1, "my secret is zanzibar", "I see", session="s-ada")))
    await deriving.store(make_batch(make_exchange(2, "my hobby is chess", "Nice", who="bob", session="s-bob")))
    hers, his = await show(deriving, "ada"), await show(deriving, "bob")
    assert f"{DERIVED} ada: my secret is zanzibar" in hers
    assert f"{DERIVED} bob: my hobby is chess" in his
    assert "zanzibar" not in his
    assert "chess" not in hers


async def test_no_prompt_of_hindsight_contains_our_metadata(deriving_server: Server, deriving: HindsightMemory) -> None:
    """Hindsight writes the metadata of a document into its prompt, and it turned up inside facts."""
    item = make_exchange(1, "my hobby is falconry", "I see", session="session-of-mine", tags=("a-tag-of-ours",))
    await deriving.store(make_batch(item))
    prompts = [it for it in deriving_server.model.list_prompts() if "falconry" in it]
    assert prompts
    ours = ("session-of-mine", "everhold", "a-tag-of-ours", "audience:", make_document_id(item.key), "Metadata:")
    assert [word for word in ours for prompt in prompts if word in prompt] == []


async def test_after_an_erasure_only_the_logs_that_are_named_have_the_text(
    deriving_server: Server, deriving: HindsightMemory
) -> None:
    await deriving.store(make_batch(make_exchange(1, "my secret is quibblewort", "I see"), make_note(2, "quibblewort")))
    having = {table for table, rows in deriving_server.dump_rows().items() if "quibblewort" in rows}
    assert {"async_operations", "documents", "memory_units"} <= having
    forgotten = await forget(deriving, "ada")
    assert set(await confirm(deriving, forgotten)) == {"confirmed"}
    assert "quibblewort" not in await show(deriving, "ada")
    left = {table for table, rows in deriving_server.dump_rows().items() if "quibblewort" in rows}
    (named,) = (it for it in forgotten.deletions if it.state == "cannot")
    assert left <= {"llm_requests", "audit_log"}
    assert all(table in named.reason for table in left)
