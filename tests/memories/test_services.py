"""The real gateway, the vendors' own clients, and four services with faults: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Changed, MemoryNameSet, Noted
from tests.e2e.running_gateway import RunningGateway
from tests.memories.services import NAMES, MemoryServices, every_write, one_write


async def wait_until_stored_everywhere(
    t: RunningGateway,
    services: MemoryServices,
    words: list[str],
    names: tuple[str, ...] = NAMES,
    *,
    write: str | int = "turn",
) -> None:
    """Wait until every service has exactly these messages, in this order."""
    if write != "turn":
        await t.send_message("/new")  # a session switch sends pending items
    try:
        await t.wait_until(lambda: all(len(services.said_texts(name)) >= len(words) for name in names))
        await t.wait_until_idle()
    finally:
        assert {name: services.said_texts(name) for name in names} == dict.fromkeys(names, words)


# -- several services at once ------------------------------------------------------------------------------------------


async def test_four_memories_each_have_every_turn_once_in_order(tmp_path: Path, services: MemoryServices) -> None:
    async with RunningGateway(tmp_path, services.config()) as t:
        words = [f"word {number}" for number in range(1, 6)]
        for word in words:
            await t.send_and_wait(word)
        await wait_until_stored_everywhere(t, services, words)
        await t.assert_sound()
    assert services.honcho.state.created == [services.honcho.state.messages[0]["session_id"]]


async def test_recall_merges_all_memories_without_duplicates_and_with_sources(
    tmp_path: Path, services: MemoryServices
) -> None:
    async with RunningGateway(tmp_path, services.config()) as t:
        first = await t.send_message("the tea garden is in Assam", chat="one")
        await wait_until_stored_everywhere(t, services, ["the tea garden is in Assam"])
        found = await t.app.memory_admin.search_memories("where is the tea garden", agent="main", person="ada")
        assert not found["unavailable"]
        memories = found["memories"]
        assert {memory["session"] for memory in memories if memory["session"]} == {first.session}
        # The same entry from four services is one hit. It comes from the memory that the configuration names first.
        assert (memories[0]["provider"], memories[0]["person"]) == ("honcho", "local:ada")
        assert len([memory for memory in memories if memory["seq"] == first.seq]) == 1


async def test_one_dead_memory_delays_no_other(tmp_path: Path, services: MemoryServices) -> None:
    await services.hindsight.stop()
    async with RunningGateway(tmp_path, services.config()) as t:
        for word in ("one", "two"):
            await t.send_and_wait(word)
        alive = tuple(name for name in NAMES if name != "hindsight")
        await t.wait_until(lambda: all(services.said_texts(name) == ["one", "two"] for name in alive))
        assert services.said_texts("hindsight") == []
        await services.hindsight.start()
        await wait_until_stored_everywhere(t, services, ["one", "two"])


async def test_several_memories_of_one_provider_are_separate(tmp_path: Path, services: MemoryServices) -> None:
    memories = {
        "honcho": services.settings("honcho", workspace="home"),
        "work": {"provider": "honcho", **services.settings("honcho", workspace="work")},
    }
    people = [{"name": "ada"}]
    config = json.dumps({"agents": {"main": {"memories": ["honcho", "work"]}}, "memories": memories, "people": people})
    async with RunningGateway(tmp_path, config) as t:
        await t.send_and_wait("hello")
        await t.wait_until(lambda: len(services.honcho.state.messages) == 4)
    rows = services.honcho.state.messages
    assert sorted((row["workspace_id"], row["content"]) for row in rows if row["peer_id"] == "ada") == [
        ("home", "hello"),
        ("work", "hello"),
    ]


async def test_a_memory_that_is_removed_and_added_again_continues_where_it_stopped(
    tmp_path: Path, services: MemoryServices
) -> None:
    async with RunningGateway(tmp_path, services.config("honcho", "mem0")) as t:
        await t.send_and_wait("one")
        await wait_until_stored_everywhere(t, services, ["one"], ("honcho", "mem0"))
        t.configure(services.config("honcho"))
        await t.send_and_wait("two")
        await t.wait_until(lambda: services.said_texts("honcho") == ["one", "two"])
        assert services.said_texts("mem0") == ["one"]
        t.configure(services.config("honcho", "mem0"))
        await t.send_and_wait("three")
        await wait_until_stored_everywhere(t, services, ["one", "two", "three"], ("honcho", "mem0"))


async def test_a_memory_added_later_starts_with_new_items(tmp_path: Path, services: MemoryServices) -> None:
    async with RunningGateway(tmp_path, services.config("honcho")) as t:
        await t.send_and_wait("one")
        t.configure(services.config("honcho", "mem0"))
        await t.send_and_wait("two")
        await t.wait_until(lambda: services.said_texts("mem0") == ["two"])
        await t.wait_until_idle()
        assert services.said_texts("mem0") == ["two"]


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.prove
@one_write
async def test_with_failing_services_nothing_is_lost_doubled_or_reordered(
    tmp_path: Path, services: MemoryServices, write: str | int
) -> None:
    faults: list[tuple[str, dict[str, Any]]] = [
        ("after", {}),
        ("lose", {}),
        ("mute", {}),
        ("late", {"seconds": 1.1}),  # after the deadline, before a probe is allowed
        ("hang", {}),
        ("slow", {"seconds": 0.3}),
        ("hollow", {}),
        ("garbage", {}),
        ("idle", {}),
        ("refuse", {"status": 429, "retry_after": 0.5}),
        ("refuse", {"status": 503}),
        ("drop", {}),
    ]
    short = {name: {"deadline_seconds": 1.0} for name in NAMES}
    async with RunningGateway(tmp_path, services.config(write=write, **short)) as t:
        words = ["first"]
        await t.send_and_wait("first")
        await wait_until_stored_everywhere(t, services, words, write=write)
        for how, more in faults:
            services.fault(how, **more)
            words.append(f"{how} {more}")
            await t.send_and_wait(words[-1])
            await wait_until_stored_everywhere(t, services, words, write=write)
        await t.assert_sound()


@every_write
async def test_a_refused_item_does_not_affect_the_rest_of_its_batch(
    tmp_path: Path, services: MemoryServices, write: str | int
) -> None:
    for name in NAMES:
        await services[name].stop()  # so that there is a batch with every write setting
    async with RunningGateway(tmp_path, services.config(write=write)) as t:
        words = ["one", "two", "POISON", "four", "five"]
        for word in words:
            await t.send_and_wait(word)
        services.fault("refuse", status=422, says="POISON", times=None)
        for name in NAMES:
            await services[name].start()
        words.remove("POISON")
        await wait_until_stored_everywhere(t, services, words, write=write)
        dead_letters = await t.app.store.list_dead_letters()
        assert sorted(one.consumer for one in dead_letters) == sorted(f"memory:{name}" for name in NAMES)
        assert len({one.key for one in dead_letters}) == 1
        for name in NAMES:
            services[name].clear_faults()
        await t.app.store.replay_dead_letters([one.id for one in dead_letters])
        t.app.wakeups.work_available.set()
        await t.wait_until(lambda: all("POISON" in services.said_texts(name) for name in NAMES))
        await t.assert_sound()


@every_write
async def test_an_outage_loses_no_memory_and_the_chat_continues(
    tmp_path: Path, services: MemoryServices, write: str | int
) -> None:
    async with RunningGateway(tmp_path, services.config(write=write)) as t:
        await t.send_and_wait("before")
        await wait_until_stored_everywhere(t, services, ["before"], write=write)
        for name in NAMES:
            await services[name].stop()
        session = (await t.send_message("during")).session
        await t.wait_for_replies(session, 2)
        noted = await t.app.session_admin.add_note(session, "written during the outage")
        assert noted
        for name in NAMES:
            await services[name].start()
        await t.send_and_wait("after")
        await wait_until_stored_everywhere(t, services, ["before", "during", "after"], write=write)
        await t.wait_until(lambda: all(services.noted_texts(name) == ["written during the outage"] for name in NAMES))
        await t.assert_sound()


async def test_a_corrected_key_is_in_force_at_the_next_message(tmp_path: Path, services: MemoryServices) -> None:
    for name in NAMES:
        services[name].key = "the-right-key-0123456789"
    async with RunningGateway(tmp_path, services.config(), env="MODEL_KEY=the-wrong-key-0123456789\n") as t:
        await t.send_and_wait("one")
        await t.wait_until(lambda: all(services[name].requests for name in NAMES))
        assert all(services.said_texts(name) == [] for name in NAMES)
        t.write_secrets("MODEL_KEY=the-right-key-0123456789\n")
        await t.send_and_wait("two")
        await wait_until_stored_everywhere(t, services, ["one", "two"])
    assert "the-wrong-key" not in t.log.getvalue()
    assert "the-right-key" not in t.log.getvalue()


# -- conclusions during other work -------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", ["turn", "async", "session", 3])
@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.prove)])
async def test_consecutive_conclusions_are_all_stored_once_in_one_session(
    tmp_path: Path, services: MemoryServices, write: str | int, count: int
) -> None:
    services.honcho.plan_fault("slow", "/sessions$", seconds=0.3)
    services.honcho.plan_fault("after", "/conclusions$", times=1)
    wishes = [f"fact {number}" for number in range(count)]
    async with RunningGateway(tmp_path, services.config("honcho", honcho={"write": write})) as t:
        session = (await t.send_message("let us begin")).session

        async def conclude(some: list[str]) -> None:
            for wish in some:
                assert await t.app.session_admin.add_note(session, wish)

        def from_a_thread(some: list[str]) -> None:
            asyncio.run_coroutine_threadsafe(conclude(some), loop).result()

        async def look() -> None:
            for _ in range(5):
                await t.app.memory_admin.search_memories("fact", agent="main", person="ada")

        loop = asyncio.get_running_loop()
        quarter = max(1, count // 4)
        parts = [wishes[at : at + quarter] for at in range(0, count, quarter)]
        await asyncio.gather(
            *(conclude(part) for part in parts[::2]),
            *(asyncio.to_thread(from_a_thread, part) for part in parts[1::2]),
            look(),
            *(t.send_and_wait(f"turn {number}") for number in range(3)),
        )
        await t.wait_until(lambda: len(services.honcho.list_conclusion_texts()) >= count)
        # with `session` or every third turn, some items stay pending
        await t.wait_until(lambda: not t.app.supervisor.tasks)
        assert sorted(services.honcho.list_conclusion_texts()) == sorted(wishes)
        in_order = [entry.body.text for entry in await t.read_entries(session) if isinstance(entry.body, Noted)]
        assert services.honcho.list_conclusion_texts() == in_order
        await t.assert_sound()
    assert services.honcho.state.created == list(dict.fromkeys(services.honcho.state.created))
    assert len(services.honcho.state.created) == 1


# -- scopes ------------------------------------------------------------------------------------------------------------


@every_write
async def test_only_conversations_create_a_session_at_the_service(
    tmp_path: Path, services: MemoryServices, write: str | int
) -> None:
    agents = {"main": {"memories": ["honcho"]}, "silent": {"memories": ["honcho"]}}
    memories = {"honcho": services.settings("honcho", write=write)}
    config = json.dumps({"agents": agents, "memories": memories, "people": [{"name": "ada"}]})
    gateway = RunningGateway(tmp_path, config)
    async with gateway as t:
        await t.send_and_wait("hello")
        await wait_until_stored_everywhere(t, services, ["hello"], ("honcho",), write=write)
        for command in ("/compress", "/status", "/new", "/title Tea", "/background think about it", "/new"):
            await t.send_message(command)
            await t.wait_until_idle()
        await t.send_message("/schedule every 2h drink water")
        await t.wait_until_idle()
        ((kept, schedule),) = await t.app.schedules._load_records()
        await t.app.schedules._fire(kept, schedule, schedule.made + 7_200)
        await t.send_and_wait("again")
        t.configure(config.replace('"silent"', '"quiet"'))
        await t.send_and_wait("and again")
        await t.send_message("/new")
        await t.wait_until_idle()
    async with gateway as t:
        await t.wait_until_idle()
        await t.send_and_wait("after a restart")
        await t.send_message("/new")
        await t.wait_until(lambda: "after a restart" in services.said_texts("honcho"))
    assert "drink water" in [row["content"] for row in services.honcho.state.messages], (
        "it writes to the chat it was created in"
    )
    assert len(services.honcho.state.created) == 1
    assert {peer for _, peer in services.honcho.state.peers} == {"ada", "main"}


@pytest.mark.parametrize("switch", ["/new", "/branch", "stop", "config"])
async def test_an_incomplete_batch_is_sent_once_under_its_own_session(
    tmp_path: Path, services: MemoryServices, switch: str
) -> None:
    config = services.config("hindsight", hindsight={"retain_every_n_turns": 3})
    t = RunningGateway(tmp_path, config)
    async with t:
        session = (await t.send_message("one")).session
        await t.wait_for_replies(session, 1)
        await t.send_and_wait("two")
        await t.wait_until(lambda: not t.app.supervisor.tasks)
        assert services.said_texts("hindsight") == []
        match switch:
            case "stop":
                pass
            case "config":
                t.configure(services.config("hindsight", hindsight={"retain_every_n_turns": 1}))
                await t.send_and_wait("three")
                await t.wait_until(lambda: len(services.said_texts("hindsight")) >= 3)
            case _:
                await t.send_message(switch)
                await t.wait_until(lambda: len(services.said_texts("hindsight")) >= 2)
    if switch == "stop":
        async with t:
            await t.wait_until(lambda: len(services.said_texts("hindsight")) >= 2)
            await t.wait_until(lambda: not t.app.supervisor.tasks)
    assert services.said_texts("hindsight") == (["one", "two", "three"] if switch == "config" else ["one", "two"])
    documents = services.hindsight.state.documents.values()
    assert all(f"key:{session}:" in " ".join(row["tags"]) for row in documents)
    assert all(f"session:{session}" in row["tags"] for row in documents)


async def test_the_session_name_at_the_service_is_recorded_once(tmp_path: Path, services: MemoryServices) -> None:
    async with RunningGateway(tmp_path, services.config("honcho")) as t:
        await t.send_and_wait("one")
        await t.send_and_wait("two")
        await t.wait_until(lambda: services.said_texts("honcho") == ["one", "two"])
        session = (await t.app.store.list_sessions())[0].id
        named = [it.change for it in await t.read_bodies(session, Changed) if isinstance(it.change, MemoryNameSet)]
        assert [it.name for it in named] == services.honcho.state.created
