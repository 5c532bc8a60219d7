"""Honcho's real server, if a checkout of its source is named: it answers a deletion at once, and deletes later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.memories.honcho.plugin import factory
from everhold.memories.honcho.provider import HonchoMemory
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
)

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1800)]
LIMIT_SECONDS = 300.0


@pytest.fixture
def server() -> Iterator[HonchoServer]:
    source = find_checkout()
    if source is None:
        pytest.skip(f"Honcho's server is not there: {HOW}")
    with run_server(source) as server:
        yield server


@pytest.fixture
def memory(server: HonchoServer, tmp_path: Path) -> HonchoMemory:
    settings = {"base_url": server.url, "workspace": "home", "deadline_seconds": 30.0, "visible_seconds": 1.0}
    return factory(factory.Settings.model_validate(settings), make_context(tmp_path))


async def wait_until_confirmed(memory: HonchoMemory, forgotten: Forgetting) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while set(await confirm(memory, forgotten)) != {"confirmed"}:
        assert time.monotonic() < until, await confirm(memory, forgotten)
        await asyncio.sleep(1.0)


async def test_a_session_is_confirmed_only_after_the_worker_has_deleted_it(
    server: HonchoServer, memory: HonchoMemory
) -> None:
    await memory.store(make_batch(make_exchange(1, "my secret is zanzibar", "I see"), make_note(2, "likes tea")))
    assert any("zanzibar" in it.text for it in await memory.find(make_query("secret zanzibar")))
    forgotten = await forget(memory, "ada")
    states = dict(
        zip([it.id.partition(":")[0] for it in forgotten.deletions], await confirm(memory, forgotten), strict=True)
    )
    assert states == {"conclusions": "confirmed", "session": "asked"}
    assert any("zanzibar" in it.text for it in await memory.find(make_query("secret zanzibar"))), "it still has it"
    server.start_worker()
    await wait_until_confirmed(memory, forgotten)
    assert not any("zanzibar" in it.text for it in await memory.find(make_query("secret zanzibar")))


async def test_a_rebuilt_session_keeps_the_others(server: HonchoServer, memory: HonchoMemory) -> None:
    server.start_worker()
    mine = make_exchange(1, "my secret is zanzibar", "I see", group="club")
    his = make_exchange(3, "I like quokkas", "Nice", who="bob", group="club")
    await memory.store(make_batch(mine, his, name="club"))
    forgotten = await forget(memory, "ada", keys=(mine.key,), rebuild=True)
    await wait_until_confirmed(memory, forgotten)
    assert [it.content for it in await memory.client.list_messages("club-2")] == ["I like quokkas", "Nice"]
