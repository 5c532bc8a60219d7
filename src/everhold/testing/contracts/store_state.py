"""State records: every write and delete names the version it read, and after a mismatch nothing is written."""

from __future__ import annotations

import asyncio

import pytest

from everhold.errors import Conflict
from everhold.ports.store import SHARED_NAMESPACES, StateNamespace, StateRecord, StateWrite, Step
from everhold.testing.contracts.store_scenario import StoreScenario, store_promise

KEY = "k"


def write(value: str | None, version: int, *, key: str = KEY, scope: str = "p:a") -> StateWrite:
    return StateWrite(namespace=StateNamespace.PLATFORM_OFFSET, scope=scope, key=key, value=value, version=version)


async def keep(scenario: StoreScenario, *writes: StateWrite) -> None:
    await scenario.commit(session="", step=Step.STATE, state_writes=writes)


async def read(scenario: StoreScenario, key: str = KEY, *, scope: str = "p:a") -> StateRecord:
    record = await scenario.store.get_state_record(StateNamespace.PLATFORM_OFFSET, key, scope=scope)
    assert record is not None, f"there is no record {key}"
    return record


class StateContract:
    @store_promise
    async def test_a_state_record_needs_no_session_and_is_found_by_its_full_key(self, scenario: StoreScenario) -> None:
        await keep(scenario, write("7", 0))
        record = await read(scenario)
        assert (record.scope, record.key, record.value) == ("p:a", KEY, "7")
        assert record.version > 0
        store = scenario.store
        assert await store.get_state_record(StateNamespace.PLATFORM_OFFSET, KEY, scope="p:b") is None
        assert await store.get_state_record(StateNamespace.PLATFORM_OFFSET, KEY) is None
        assert await store.get_state_record(StateNamespace.SCHEDULE, KEY, scope="p:a") is None

    @store_promise
    async def test_each_write_raises_the_version_by_one(self, scenario: StoreScenario) -> None:
        await keep(scenario, write("1", 0))
        first = await read(scenario)
        await keep(scenario, first.replace_with("2"))
        second = await read(scenario)
        assert (second.value, second.version) == ("2", first.version + 1)
        await keep(scenario, second.replace_with("2"))
        assert (await read(scenario)).version == first.version + 2, "an equal value is a write too"

    @store_promise
    async def test_a_write_with_another_version_refuses_the_whole_change(self, scenario: StoreScenario) -> None:
        await keep(scenario, write("1", 0))
        first = await read(scenario)
        await scenario.commit_heard("two", state_writes=(first.replace_with("2"),))
        second = await read(scenario)
        for late in (first.version, second.version + 1, 0):
            for value in ("3", None):
                with pytest.raises(Conflict):
                    await scenario.commit_heard(
                        "three", dedup="d", state_writes=(write(value, late),), blobs=(b"never",)
                    )
        assert await read(scenario) == second
        assert await scenario.read_texts() == ["two"]

    @store_promise
    async def test_several_writes_are_all_made_or_none(self, scenario: StoreScenario) -> None:
        await keep(scenario, write("1", 0, key="a"), write("1", 0, key="b"))
        a, b = await read(scenario, "a"), await read(scenario, "b")
        await keep(scenario, b.replace_with("2"))
        with pytest.raises(Conflict):
            await keep(scenario, a.replace_with("3"), b.replace_with("3"))
        assert ((await read(scenario, "a")).value, (await read(scenario, "b")).value) == ("1", "2")

    @store_promise
    async def test_a_write_with_version_0_needs_a_missing_record(self, scenario: StoreScenario) -> None:
        await keep(scenario, write("1", 0))
        with pytest.raises(Conflict):
            await keep(scenario, write("2", 0))
        assert (await read(scenario)).value == "1"
        with pytest.raises(Conflict):
            await keep(scenario, write("2", 7, key="nobody"))
        await keep(scenario, write(None, 0, key="nobody"))
        assert [it.key for it in await scenario.store.list_state_records()] == [KEY]

    @store_promise
    async def test_a_deleted_record_never_reuses_its_versions(self, scenario: StoreScenario) -> None:
        await keep(scenario, write("1", 0))
        first = await read(scenario)
        await keep(scenario, first.replace_with("2"))
        await keep(scenario, (await read(scenario)).replace_with(None))
        assert await scenario.store.list_state_records() == []
        with pytest.raises(Conflict):
            await keep(scenario, first.replace_with("3"))
        await keep(scenario, write("new", 0))
        renewed = await read(scenario)
        assert renewed.version > first.version + 1
        for value in ("late", None):
            with pytest.raises(Conflict):
                await keep(scenario, first.replace_with(value))
        assert await read(scenario) == renewed

    @store_promise
    async def test_a_version_never_comes_again_though_a_lower_one_is_deleted_later(
        self, scenario: StoreScenario
    ) -> None:
        await keep(scenario, write("1", 0), write("1", 0, key="low"))
        first = await read(scenario)
        await keep(scenario, first.replace_with("2"))
        second = await read(scenario)
        await keep(scenario, second.replace_with(None))
        await keep(scenario, (await read(scenario, "low")).replace_with(None))
        await keep(scenario, write("new", 0))
        assert (await read(scenario)).version > second.version

    @store_promise
    async def test_a_write_changes_only_the_record_with_its_whole_name(self, scenario: StoreScenario) -> None:
        await self._change_one_of_several(scenario, "2")

    @store_promise
    async def test_a_delete_removes_only_the_record_with_its_whole_name(self, scenario: StoreScenario) -> None:
        await self._change_one_of_several(scenario, None)

    async def _change_one_of_several(self, scenario: StoreScenario, value: str | None) -> None:
        """Write to one of several records with the same key and version, and to places without a record."""
        other = StateWrite(namespace=StateNamespace.SCHEDULE, scope="p:a", key=KEY, value="1", version=0)
        await keep(scenario, write("1", 0), write("1", 0, scope="p:b"), other)
        before = await scenario.store.list_state_records()
        mine = await read(scenario)
        assert {record.version for record in before} == {mine.version}
        await keep(scenario, mine.replace_with(value))
        after = await scenario.store.list_state_records()
        assert [record for record in after if record.value == "1"] == [record for record in before if record != mine]
        for scope, namespace in (("p:c", StateNamespace.PLATFORM_OFFSET), ("p:b", StateNamespace.SCHEDULE)):
            late = StateWrite(namespace=namespace, scope=scope, key=KEY, value=value, version=mine.version)
            with pytest.raises(Conflict):
                await keep(scenario, late)
        assert await scenario.store.list_state_records() == after

    @store_promise
    async def test_of_two_writers_with_the_same_version_one_gets_a_conflict(self, scenario: StoreScenario) -> None:
        await keep(scenario, write("0", 0))
        before = await read(scenario)
        done = await asyncio.gather(
            *(
                scenario.commit_heard(text, state_writes=(before.replace_with(text),))
                for text in ("one", "two", "three")
            ),
            return_exceptions=True,
        )
        assert [isinstance(it, Conflict) for it in done].count(True) == 2
        assert [(await read(scenario)).value] == await scenario.read_texts()

    @store_promise
    async def test_writers_with_successive_versions_all_succeed(self, scenario: StoreScenario) -> None:
        await keep(scenario, write("0", 0))
        version = (await read(scenario)).version
        texts = ["one", "two", "three"]
        await asyncio.gather(
            *(scenario.commit_heard(text, state_writes=(write(text, version + n),)) for n, text in enumerate(texts))
        )
        assert (await read(scenario)).value == "three"
        assert await scenario.read_texts() == texts

    @store_promise
    async def test_a_record_is_written_although_its_message_is_a_duplicate(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("hi", dedup=KEY, state_writes=(write("1", 0),))
        await scenario.commit_heard("hi", dedup=KEY, state_writes=((await read(scenario)).replace_with("2"),))
        assert (await read(scenario)).value == "2"
        with pytest.raises(Conflict):
            await scenario.commit_heard("hi", dedup=KEY, state_writes=(write("3", 0),))

    @store_promise
    async def test_records_are_listed_by_namespace_and_scope(self, scenario: StoreScenario) -> None:
        await keep(
            scenario,
            *(write("v", 0, scope=scope, key=key) for scope, key in (("p:a", "2"), ("p:a", "1"), ("p:b", "3"))),
        )
        await keep(scenario, StateWrite(namespace=StateNamespace.SCHEDULE, key="x", value="v", version=0))
        offsets = StateNamespace.PLATFORM_OFFSET
        assert [it.key for it in await scenario.store.list_state_records(offsets, scope="p:a")] == ["1", "2"]
        assert [it.key for it in await scenario.store.list_state_records(offsets)] == ["1", "2", "3"]
        assert [it.key for it in await scenario.store.list_state_records(offsets, scope="")] == []
        found = await scenario.store.list_state_records()
        assert [(it.namespace, it.key) for it in found] == [
            (offsets, "1"),
            (offsets, "2"),
            (offsets, "3"),
            (StateNamespace.SCHEDULE, "x"),
        ]

    @store_promise
    async def test_every_write_of_a_shared_record_raises_the_state_version(self, scenario: StoreScenario) -> None:
        before = await scenario.store.get_state_version()
        await keep(scenario, write("7", 0))
        assert await scenario.store.get_state_version() == before, "an offset is no shared record"
        for namespace in sorted(SHARED_NAMESPACES):
            await keep(scenario, StateWrite(namespace=namespace, key=KEY, value="v", version=0))
            made = await scenario.store.get_state_record(namespace, KEY)
            assert made is not None
            versions = [await scenario.store.get_state_version()]
            for value in ("v", None):
                found = await scenario.store.get_state_record(namespace, KEY)
                assert found is not None
                await keep(scenario, found.replace_with(value))
                versions.append(await scenario.store.get_state_version())
            assert before < versions[0] < versions[1] < versions[2], namespace
            before = versions[2]

    @store_promise
    async def test_a_decision_by_an_outdated_copy_is_refused(self, scenario: StoreScenario) -> None:
        seen = await scenario.store.get_state_version()
        await scenario.commit_heard("one", state_seen=seen)
        halt = StateWrite(namespace=StateNamespace.CHAT_HALT, key=KEY, value="{}", version=0)
        await keep(scenario, halt)
        with pytest.raises(Conflict):
            await scenario.commit_heard("two", state_seen=seen)
        with pytest.raises(Conflict):
            await scenario.commit(session="", step=Step.STATE, state_writes=(write("7", 0),), state_seen=seen)
        bound = ("test:s", "")
        messages = (scenario.commit_heard(str(n), bound=bound, state_seen=seen) for n in range(3))
        refused = await asyncio.gather(*messages, return_exceptions=True)
        assert [type(it) for it in refused] == [Conflict] * 3, "also when several arrive at once"
        await scenario.commit_heard("three", bound=bound, state_seen=await scenario.store.get_state_version())
        assert await scenario.read_texts() == ["one", "three"]
