"""State records: every write and every delete names the version it read, and a mismatch leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from everhold.errors import Conflict
from everhold.ports.store import StateNamespace, StateRecord, StateWrite, Step
from everhold.testing.contracts.store_scenario import StoreScenario, store_promise

KEY = "k"


def write(value: str | None, version: int, *, key: str = KEY, scope: str = "p:a") -> StateWrite:
    return StateWrite(namespace=StateNamespace.PLATFORM_OFFSET, scope=scope, key=key, value=value, version=version)


async def keep(scene: StoreScenario, *writes: StateWrite) -> None:
    await scene.commit(session="", step=Step.STATE, state_writes=writes)


async def read(scene: StoreScenario, key: str = KEY, *, scope: str = "p:a") -> StateRecord:
    record = await scene.store.get_state_record(StateNamespace.PLATFORM_OFFSET, key, scope=scope)
    assert record is not None, f"there is no record {key}"
    return record


class StateContract:
    @store_promise
    async def test_a_state_record_needs_no_session_and_is_found_by_its_whole_name(self, scene: StoreScenario) -> None:
        await keep(scene, write("7", 0))
        record = await read(scene)
        assert (record.scope, record.key, record.value) == ("p:a", KEY, "7")
        assert record.version > 0
        store = scene.store
        assert await store.get_state_record(StateNamespace.PLATFORM_OFFSET, KEY, scope="p:b") is None
        assert await store.get_state_record(StateNamespace.PLATFORM_OFFSET, KEY) is None
        assert await store.get_state_record(StateNamespace.SCHEDULE, KEY, scope="p:a") is None

    @store_promise
    async def test_each_write_raises_the_version_by_one(self, scene: StoreScenario) -> None:
        await keep(scene, write("1", 0))
        first = await read(scene)
        await keep(scene, first.replace_with("2"))
        second = await read(scene)
        assert (second.value, second.version) == ("2", first.version + 1)
        await keep(scene, second.replace_with("2"))
        assert (await read(scene)).version == first.version + 2, "the same value again is a write, too"

    @store_promise
    async def test_a_write_under_another_version_is_refused_with_all_that_came_with_it(
        self, scene: StoreScenario
    ) -> None:
        await keep(scene, write("1", 0))
        first = await read(scene)
        await scene.commit_heard("two", state_writes=(first.replace_with("2"),))
        second = await read(scene)
        for late in (first.version, second.version + 1, 0):
            for value in ("3", None):
                with pytest.raises(Conflict):
                    await scene.commit_heard("three", dedup="d", state_writes=(write(value, late),), blobs=(b"never",))
        assert await read(scene) == second
        assert await scene.read_texts() == ["two"]

    @store_promise
    async def test_of_several_writes_all_are_made_or_none(self, scene: StoreScenario) -> None:
        await keep(scene, write("1", 0, key="a"), write("1", 0, key="b"))
        a, b = await read(scene, "a"), await read(scene, "b")
        await keep(scene, b.replace_with("2"))
        with pytest.raises(Conflict):
            await keep(scene, a.replace_with("3"), b.replace_with("3"))
        assert ((await read(scene, "a")).value, (await read(scene, "b")).value) == ("1", "2")

    @store_promise
    async def test_what_must_not_exist_is_written_only_where_nothing_is(self, scene: StoreScenario) -> None:
        await keep(scene, write("1", 0))
        with pytest.raises(Conflict):
            await keep(scene, write("2", 0))
        assert (await read(scene)).value == "1"
        with pytest.raises(Conflict):
            await keep(scene, write("2", 7, key="nobody"))
        await keep(scene, write(None, 0, key="nobody"))
        assert [it.key for it in await scene.store.list_state_records()] == [KEY]

    @store_promise
    async def test_a_deleted_record_is_gone_and_its_versions_never_come_again(self, scene: StoreScenario) -> None:
        await keep(scene, write("1", 0))
        first = await read(scene)
        await keep(scene, first.replace_with("2"))
        await keep(scene, (await read(scene)).replace_with(None))
        assert await scene.store.list_state_records() == []
        with pytest.raises(Conflict):
            await keep(scene, first.replace_with("3"))
        await keep(scene, write("anew", 0))
        anew = await read(scene)
        assert anew.version > first.version + 1
        for value in ("late", None):
            with pytest.raises(Conflict):
                await keep(scene, first.replace_with(value))
        assert await read(scene) == anew

    @store_promise
    async def test_of_two_writers_who_read_the_same_one_is_told(self, scene: StoreScenario) -> None:
        await keep(scene, write("0", 0))
        before = await read(scene)
        done = await asyncio.gather(
            *(scene.commit_heard(text, state_writes=(before.replace_with(text),)) for text in ("one", "two", "three")),
            return_exceptions=True,
        )
        assert [isinstance(it, Conflict) for it in done].count(True) == 2
        assert [(await read(scene)).value] == await scene.read_texts()

    @store_promise
    async def test_writers_who_name_the_version_that_the_one_before_makes_all_succeed(
        self, scene: StoreScenario
    ) -> None:
        await keep(scene, write("0", 0))
        version = (await read(scene)).version
        texts = ["one", "two", "three"]
        await asyncio.gather(
            *(scene.commit_heard(text, state_writes=(write(text, version + n),)) for n, text in enumerate(texts))
        )
        assert (await read(scene)).value == "three"
        assert await scene.read_texts() == texts

    @store_promise
    async def test_a_record_is_written_even_when_all_that_it_came_with_is_known(self, scene: StoreScenario) -> None:
        await scene.commit_heard("hi", dedup=KEY, state_writes=(write("1", 0),))
        await scene.commit_heard("hi", dedup=KEY, state_writes=((await read(scene)).replace_with("2"),))
        assert (await read(scene)).value == "2"
        with pytest.raises(Conflict):
            await scene.commit_heard("hi", dedup=KEY, state_writes=(write("3", 0),))

    @store_promise
    async def test_records_are_listed_by_namespace_and_scope(self, scene: StoreScenario) -> None:
        await keep(
            scene, *(write("v", 0, scope=scope, key=key) for scope, key in (("p:a", "2"), ("p:a", "1"), ("p:b", "3")))
        )
        await keep(scene, StateWrite(namespace=StateNamespace.SCHEDULE, key="x", value="v", version=0))
        offsets = StateNamespace.PLATFORM_OFFSET
        assert [it.key for it in await scene.store.list_state_records(offsets, scope="p:a")] == ["1", "2"]
        assert [it.key for it in await scene.store.list_state_records(offsets)] == ["1", "2", "3"]
        assert [it.key for it in await scene.store.list_state_records(offsets, scope="")] == []
        found = await scene.store.list_state_records()
        assert [(it.namespace, it.key) for it in found] == [
            (offsets, "1"),
            (offsets, "2"),
            (offsets, "3"),
            (StateNamespace.SCHEDULE, "x"),
        ]
