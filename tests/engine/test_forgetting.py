"""A person is forgotten: in the log and in whatever was made of it, for good, and what cannot go is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.core import memory_naming
from everhold.core.entries import Attachment, Heard, Said
from everhold.errors import Refused, Transient
from everhold.memories.builtin import BuiltinMemory, MemoryIndex
from everhold.ports.memory import (
    Exchange,
    ForgetResult,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryNote,
    MemoryQuery,
)
from everhold.ports.model import ModelResponse
from everhold.ports.store import Change, StateNamespace, Step
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, get_memory_text
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel
from .memory_tools import FindingProvider, add, add_memory_tools, asked_for
from .test_operations import crash_at_step

CANARY = "zanzibar7391"
OTHER = "quokka2248"


class ForgettingProvider(FakeMemoryProvider):
    """A provider that can delete, and tell, what belongs to a person."""

    capabilities = frozenset({MemoryCapability.FORGET, MemoryCapability.EXPORT})

    def __init__(self, *, keeps: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.keeps = keeps
        self.asked: list[str] = []

    async def forget(self, person: str) -> ForgetResult:
        self.faults.begin_call()
        self.asked.append(person)
        deleted = 0
        for name, items in self.kept.items():
            left = [
                item for item in items if not (isinstance(item, Exchange | MemoryNote) and item.stamp.person == person)
            ]
            deleted += len(items) - len(left)
            self.kept[name] = left
        return ForgetResult(deleted=deleted, kept=self.keeps)

    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        for items in self.kept.values():
            for item in items:
                if isinstance(item, Exchange | MemoryNote) and item.stamp.person == person:
                    yield MemoryHit(text=get_memory_text(item), key=item.key, person=person)

    @property
    def words(self) -> str:
        return " ".join(get_memory_text(item) for items in self.kept.values() for item in items)


class TardyProvider(ForgettingProvider):
    """Carries out a write some time after it was asked to."""

    seconds = 5.0

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        await asyncio.sleep(self.seconds)
        return await super().store(batch)


class ReluctantProvider(ForgettingProvider):
    """Takes its time to delete, and goes on telling everybody until it has."""

    async def forget(self, person: str) -> ForgetResult:
        await asyncio.sleep(5)
        return await super().forget(person)

    async def find(self, query: MemoryQuery) -> list[MemoryHit]:
        return [MemoryHit(text=self.words, person="ada")] if self.words else []


class IncapableProvider(FakeMemoryProvider):
    """A provider that can do neither."""


def memory(house: InProcessGateway, **more: Any) -> MemoryAdmin:
    return MemoryAdmin(house.control, agents=lambda: ("main", "other"), **more)


def builtin(house: InProcessGateway) -> MemoryIndex:
    """The real index over the house's log, as a memory that is asked about every message."""
    index = MemoryIndex(house.path / "index.db", inline=True, embeddings="table")
    house.runtimes.memories["builtin"] = BuiltinMemory(index=index, store=house.store, agent="main")
    house.runtimes.settings.update(recalls=("builtin", *(n for n in house.runtimes.memories if n != "builtin")))
    house.runtimes.settings["recall_seconds"] = 1.0
    return index


def everywhere(path: Path, word: str) -> list[str]:
    """The files that hold a word, in any of the forms it is stored in."""
    forms = (word.encode(), word.encode().hex().encode(), word.encode("utf-16-le"))
    return [file.name for file in path.rglob("*") if file.is_file() and any(it in file.read_bytes() for it in forms)]


async def collected(found: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [it async for it in found]


def live(house: InProcessGateway) -> str:
    return " ".join(str(entry.body) for s in house.run(house.store.list_sessions()) for entry in house.read_log(s.id))


def tell_everything(house: InProcessGateway) -> None:
    """Ada leaves her word wherever words are kept; Bob speaks, too."""
    house.send_message(f"my secret is {CANARY}")
    house.send_message(asked_for(add(f"keeps {CANARY}")))
    house.send_message(f"/memory note {CANARY} again")
    house.send_message(f"/title all about {CANARY}")
    house.send_message(f"what about {CANARY}?", chat="second")
    house.send_message("/memory why", chat="second")
    house.send_message(f"/background look into {CANARY}", chat="second")
    house.send_message("/compress here 0")
    house.send_message(f"hello all, {CANARY} it is", chat="room", kind="group")
    house.send_message(f"I am bob and like {OTHER}", chat="room", kind="group", who="bob")
    house.send_message(f"private to bob: {OTHER}", chat="bobs", who="bob")


class TestForgetting:
    def test_the_plan_changes_nothing_and_names_everything(self, house: InProcessGateway) -> None:
        house.runtimes.memories = {"a": ForgettingProvider(), "b": IncapableProvider()}
        index = builtin(house)
        add_memory_tools(house)
        tell_everything(house)
        before = live(house)
        plan = house.run(memory(house, backups=lambda: 3).plan_forgetting("ada"))
        assert live(house) == before
        assert not plan.done
        assert len(plan.sessions) == 3
        assert [going.alone for going in plan.sessions] == [True, True, False]
        assert plan.entry_count > 10
        assert plan.recalls > 0
        assert {(reach.memory, reach.can) for reach in plan.providers if reach.agent == "main"} == {
            ("builtin", True),
            ("a", True),
            ("b", False),
        }
        assert any("3 backups" in line for line in plan.remains)
        house.run(index.close())

    def test_no_file_holds_a_word_of_it_afterwards(self, house: InProcessGateway) -> None:
        house.runtimes.memories = {"a": ForgettingProvider(), "b": IncapableProvider()}
        index = builtin(house)
        add_memory_tools(house)
        tell_everything(house)
        assert CANARY in live(house)
        assert {name.partition(".")[0] for name in everywhere(house.path, CANARY)} == {"log", "index"}
        report = house.run(memory(house).forget_person("ada"))
        house.run_until_idle()
        assert CANARY not in live(house)
        assert everywhere(house.path, CANARY) == []
        provider = house.runtimes.memories["a"]
        assert isinstance(provider, ForgettingProvider)
        assert CANARY not in provider.words
        assert provider.asked
        assert any("b (agent main): it cannot delete" in line for line in report.remains)
        # and nobody else's are touched
        assert OTHER in live(house)
        assert OTHER in provider.words
        house.assert_sound()
        house.run(index.close())

    def test_what_they_had_scheduled_is_never_said_again(self, house: InProcessGateway) -> None:
        house.send_message(f"/schedule daily 09:00 {CANARY}")
        house.send_message(f"/schedule daily 10:00 {OTHER}", chat="bobs", who="bob")
        kept = house.run(house.store.list_state_records(StateNamespace.SCHEDULE))
        exported = house.run(collected(memory(house).export_person("ada")))
        assert [CANARY in str(it) for it in exported if it["from"] == "schedules"] == [True]
        forgetful = memory(house)
        forgetful.control.erasures = house.path / "erasures.log"
        assert house.run(forgetful.plan_forgetting("ada")).schedules == 1
        assert house.run(forgetful.forget_person("ada")).schedules == 1
        left = house.run(house.store.list_state_records(StateNamespace.SCHEDULE))
        assert [OTHER in it.value for it in left] == [True]
        assert everywhere(house.path, CANARY) == []
        now = house.clock.now()
        (again,) = [it for it in kept if CANARY in it.value]  # as a copy of the store has it that was put back
        write = msgspec.structs.replace(again.replace_with(again.value), version=0)
        house.run(house.store.commit(Change(step=Step.STATE, session="", at=now, state_writes=(write,))))
        house.run(forgetful.resume_erasures())
        assert house.run(house.store.list_state_records(StateNamespace.SCHEDULE)) == left

    def test_an_index_that_no_agent_asks_lets_go_of_it_too(self, house: InProcessGateway) -> None:
        index = builtin(house)
        tell_everything(house)
        house.run(index.wipe_erased(house.store))
        assert "index.db" in {name.removesuffix("-wal") for name in everywhere(house.path, CANARY)}
        del house.runtimes.memories["builtin"]
        house.runtimes.settings.update(recalls=())
        report = house.run(memory(house, wipe=lambda: index.wipe_erased(house.store)).forget_person("ada"))
        assert report.done
        assert everywhere(house.path, CANARY) == []
        house.run(index.close())

    def test_an_index_that_cannot_be_wiped_is_named_and_tried_again(self, house: InProcessGateway) -> None:
        async def full() -> None:
            raise OSError("no room")

        tell_everything(house)
        report = house.run(memory(house, wipe=full).forget_person("ada"))
        assert not report.done
        assert any(line.startswith("the search index: ") for line in report.remains)
        again = memory(house)
        house.run(again.finish_unfinished())
        assert not again._read_unfinished()

    def test_a_fall_between_erasing_and_wiping_is_made_up_for(self, house: InProcessGateway) -> None:
        """The rows are gone and their bytes still beside the file: whoever opens it next has to know."""

        class Falling(MemoryIndex):
            def _wipe_files(self) -> None:
                """It is killed just before."""

        index = Falling(house.path / "index.db", inline=True, embeddings="table")
        house.send_message(f"my secret is {CANARY}")
        house.run(index.catch_up(house.store))
        house.run(memory(house).forget_person("ada"))
        house.run(index.catch_up(house.store))
        assert everywhere(house.path, CANARY) == ["index.db-wal"]
        after = MemoryIndex(house.path / "index.db", inline=True, embeddings="table")
        house.run(after.catch_up(house.store))
        assert everywhere(house.path, CANARY) == []
        house.run(after.close())
        house.run(index.close())

    def test_it_does_not_come_back_with_a_rebuilt_index_or_a_restart(self, house: InProcessGateway) -> None:
        index = builtin(house)
        add_memory_tools(house)
        tell_everything(house)
        house.run(memory(house).forget_person("ada"))
        house.crash()
        house.start()
        house.run(house.control.reapply_erasures())
        add_memory_tools(house)
        house.run(index.rebuild())
        index = builtin(house)
        house.send_message(f"do you know {CANARY[:-4]} something?", chat="new")
        assert CANARY not in "".join(message.text for message in house.runtimes.model.requests[-1].messages)
        house.run(index.close())

    def test_a_name_that_was_made_of_a_title_goes_with_it(self, house: InProcessGateway) -> None:
        provider = ForgettingProvider()
        house.runtimes.memories = {"a": provider}
        house.runtimes.settings["naming"] = lambda _memory, origin: (
            memory_naming.choose_memory_name(origin, memory_naming.NamingRule()).text
        )
        house.send_message(f"/title all about {CANARY}")
        session = house.send_message("hello").session
        assert CANARY in house.run(house.store.get_session(session)).names["a"]
        house.run(memory(house).forget_person("ada"))
        assert house.run(house.store.get_session(session)).names == {}
        assert everywhere(house.path, CANARY) == []
        house.assert_sound()
        # what comes later is filed under what is known then
        assert house.send_message("hello again").session == session
        name = house.run(house.store.get_session(session)).names["a"]
        assert name
        assert CANARY not in name
        house.assert_sound()

    def test_a_name_that_was_made_of_no_title_stays(self, house: InProcessGateway) -> None:
        house.runtimes.memories = {"a": ForgettingProvider()}
        session = house.send_message("hello").session
        before = house.run(house.store.get_session(session)).names
        assert before
        house.run(memory(house).forget_person("ada"))
        assert house.run(house.store.get_session(session)).names == before

    def test_what_is_said_afterwards_is_kept(self, house: InProcessGateway) -> None:
        add_memory_tools(house)
        house.send_message("one")
        house.run(memory(house).forget_person("ada"))
        session = house.send_message("two").session
        assert [body.text for body in house.read_bodies(session, Heard)] == ["two"]
        house.run(memory(house).finish_unfinished())
        assert [body.text for body in house.read_bodies(session, Heard)] == ["two"]

    def test_every_name_a_person_goes_by_is_meant(self, house: InProcessGateway) -> None:
        add_memory_tools(house)
        house.send_message(f"{CANARY} here", who="telegram:7", chat="t")
        house.send_message(f"{CANARY} there", who="ada")
        report = house.run(memory(house, people=lambda person: (person, "telegram:7")).forget_person("ada"))
        assert report.names == ("ada", "telegram:7")
        assert CANARY not in live(house)

    def test_the_answer_to_somebody_else_that_repeats_it_goes_and_the_rest_stays(self, house: InProcessGateway) -> None:
        house.runtimes.model = house.runtimes.summariser = FakeModel(
            lambda request: ModelResponse(
                text=f"as ada said, {CANARY}" if "who" in request.messages[-1].text else "fine"
            )
        )
        group: dict[str, Any] = {"chat": "room", "kind": "group"}
        session = house.send_message(f"the word is {CANARY}", **group).session
        house.send_message("how are you?", who="bob", **group)
        house.send_message("who knows?", who="bob", **group)
        report = house.run(memory(house).forget_person("ada"))
        assert [going.repeated for going in report.sessions] == [2]
        assert [body.text for body in house.read_bodies(session, Heard)] == ["how are you?", "who knows?"]
        assert [body.text for body in house.read_bodies(session, Said)] == ["fine"]
        house.assert_sound()

    def test_attachments_go_unless_somebody_else_sent_the_same(self, house: InProcessGateway) -> None:
        def put(data: bytes) -> str:
            import hashlib

            house.run(house.store.commit(Change(step=Step.STATE, session="", at=1.0, blobs=(data,))))
            return hashlib.sha256(data).hexdigest()

        hers, shared = put(CANARY.encode()), put(b"a picture of both")
        house.send_message("mine", attachments=(Attachment(blob=hers), Attachment(blob=shared)))
        house.send_message("mine, too", attachments=(Attachment(blob=shared),), who="bob", chat="bobs")
        house.run(memory(house).forget_person("ada"))
        assert house.run(house.store.get_blob(hers)) is None
        assert house.run(house.store.get_blob(shared)) is not None

    def test_what_somebody_else_was_shown_of_it_is_not_on_record_any_more(self, house: InProcessGateway) -> None:
        finding = FindingProvider()
        house.runtimes.memories = {"a": finding}
        house.runtimes.settings.update(recalls=("a",), recall_seconds=1.0)
        add_memory_tools(house)
        house.send_message("hello")
        finding.answers = [MemoryHit(text=f"ada keeps {CANARY}", person="ada")]
        session = house.send_message("what is new?", who="bob", chat="bobs").session
        assert everywhere(house.path, CANARY)
        report = house.run(memory(house).forget_person("ada"))
        assert report.recalls
        assert everywhere(house.path, CANARY) == []
        assert [body.text for body in house.read_bodies(session, Heard)] == ["what is new?"]
        house.assert_sound()

    def test_dead_letters_of_it_are_gone_and_their_reasons_say_nothing(self, house: InProcessGateway) -> None:
        provider = ForgettingProvider()
        provider.faults.fail_next(Refused(f"I will not take {CANARY}"), times=5)
        house.runtimes.memories = {"a": provider}
        add_memory_tools(house)
        session = house.send_message(f"/memory note {CANARY}").session
        assert house.run(house.store.list_dead_letters())
        house.run(memory(house).forget_person("ada"))
        assert house.run(house.store.list_dead_letters()) == []
        assert everywhere(house.path, CANARY) == []
        assert house.run(house.control.replay_dead_letters()) == 0
        house.run_until_idle()
        assert CANARY not in provider.words
        assert session


class TestInTheMiddle:
    def test_a_turn_that_has_read_it_writes_nothing_of_it(self, house: InProcessGateway) -> None:
        house.runtimes.model = held = HeldModel()
        session = house.send_message(f"tell me about {CANARY}", rest=False).session
        house.pass_time()
        house.run(memory(house).forget_person("ada"))
        held.text = f"{CANARY} is an island"
        held.free = True
        house.run_until_idle()
        assert CANARY not in live(house)
        assert CANARY not in "".join(house.list_shown_texts())
        assert [entry.body for entry in house.read_log(session) if entry.kind in ("heard", "said")] == [None]
        house.assert_sound()

    def test_a_batch_on_its_way_is_settled_before_the_provider_is_asked(self, house: InProcessGateway) -> None:
        provider = ForgettingProvider()
        house.runtimes.memories = {"a": provider}
        add_memory_tools(house)
        provider.faults.lose_next_answer(times=1)
        house.send_message(f"remember {CANARY}", rest=False)
        house.pass_time(0.5)
        assert CANARY in provider.words
        house.run(memory(house).forget_person("ada"))
        house.run_until_idle(120)
        assert CANARY not in provider.words

    def test_a_write_that_lands_late_is_deleted_all_the_same(self, house: InProcessGateway) -> None:
        provider = TardyProvider()
        house.runtimes.memories = {"a": provider}
        add_memory_tools(house)
        house.send_message(f"remember {CANARY}", rest=False)
        house.pass_time(0.5)
        assert CANARY not in provider.words
        assert house.run(memory(house).forget_person("ada")).done
        house.run_until_idle(60)
        assert provider.writes
        assert CANARY not in provider.words

    def test_what_a_dead_process_sent_is_waited_for_before_the_provider_is_asked(self, house: InProcessGateway) -> None:
        """Its request can be carried out until its deadline, at a far side that knows keys, too (rule 15)."""
        provider = TardyProvider()
        provider.seconds = provider.deadline - 1
        house.runtimes.memories = {"a": provider}
        add_memory_tools(house)
        session = house.send_message(f"remember {CANARY}", rest=False).session
        house.pass_time(0.5)
        seqs = [entry.seq for entry in house.read_log(session) if entry.kind in ("heard", "thought", "said")]
        house.run(house.control.erase_entries(session, seqs))
        house.crash()
        house.start()
        assert house.run(memory(house).forget_person("ada")).done
        house.run_until_idle(60)
        assert provider.writes
        assert CANARY not in provider.words

    def test_what_a_provider_still_told_meanwhile_is_not_on_record_afterwards(self, house: InProcessGateway) -> None:
        provider = ReluctantProvider()
        house.runtimes.memories = {"a": provider}
        house.runtimes.settings.update(recalls=("a",), recall_seconds=1.0)
        add_memory_tools(house)
        house.send_message(f"remember {CANARY}")
        forgetting = house.loop.create_task(memory(house).forget_person("ada"))
        house.pass_time(1)
        session = house.send_message("what is new?", who="bob", chat="bobs", rest=False).session
        house.pass_time(2)
        assert everywhere(house.path, CANARY)  # it was shown once more, to somebody else
        house.pass_time(10)
        assert forgetting.result().done
        assert everywhere(house.path, CANARY) == []
        assert [body.text for body in house.read_bodies(session, Heard)] == ["what is new?"]
        house.assert_sound()

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_whoever_falls_in_the_middle_is_finished_by_the_next(
        self, house: InProcessGateway, number: int, after: bool
    ) -> None:
        provider = ForgettingProvider()
        house.runtimes.memories = {"a": provider}
        index = builtin(house)
        add_memory_tools(house)
        tell_everything(house)
        die_at_nth(house, Step.ERASE, number, after=after)
        task = house.loop.create_task(memory(house).forget_person("ada"))
        house.pass_time(5)
        assert not task.done()
        house.start()
        add_memory_tools(house)
        builtin(house)
        again = memory(house)
        house.run(house.control.reapply_erasures())
        assert house.run(again.collect_status())["forgetting"] == [["ada"]]
        assert house.run(again.resume_erasures()) == 1
        assert CANARY not in live(house)
        house.run(again.finish_unfinished())
        house.run_until_idle()
        assert house.run(again.collect_status())["forgetting"] == []
        assert everywhere(house.path, CANARY) == []
        assert CANARY not in provider.words
        house.assert_sound()
        house.run(index.close())

    def test_a_provider_that_is_away_is_asked_again(self, house: InProcessGateway) -> None:
        provider = ForgettingProvider()
        house.runtimes.memories = {"a": provider}
        add_memory_tools(house)
        builtin(house)
        house.send_message(f"remember {CANARY}")
        provider.faults.fail_next(Transient("away"), times=2)
        report = house.run(memory(house).forget_person("ada"))
        assert not report.done
        assert any("away" in line and "asked again" in line for line in report.remains)
        assert CANARY in provider.words
        house.run(memory(house).finish_unfinished())
        assert CANARY not in provider.words
        assert house.run(memory(house).collect_status())["forgetting"] == []

    def test_it_is_tried_again_by_itself_until_everybody_has_confirmed(self, house: InProcessGateway) -> None:
        provider = ForgettingProvider()
        house.runtimes.memories = {"a": provider}
        add_memory_tools(house)
        house.send_message(f"remember {CANARY}")
        keeping = memory(house)
        house.loop.create_task(keeping.keep_finishing_unfinished())
        house.pass_time(1)
        provider.faults.fail_next(Transient("away"), times=3)
        assert not house.run(keeping.forget_person("ada")).done
        house.pass_time(60)
        assert CANARY not in provider.words
        assert house.run(keeping.collect_status())["forgetting"] == []
        # and whoever comes later is not forgotten to be forgotten
        house.send_message(f"I am bob and like {OTHER}", chat="bobs", who="bob")
        provider.faults.fail_next(Transient("away"), times=1)
        assert not house.run(keeping.forget_person("bob")).done
        house.pass_time(60)
        assert OTHER not in provider.words

    def test_a_backup_put_back_forgets_again(self, house: InProcessGateway) -> None:
        add_memory_tools(house)
        tell_everything(house)
        copy = {file.name: file.read_bytes() for file in house.path.glob("log.db*")}
        house.run(memory(house).forget_person("ada"))
        house.crash()
        for file in house.path.glob("log.db*"):
            file.unlink()
        for name, data in copy.items():
            (house.path / name).write_bytes(data)
        house.start()
        assert CANARY in live(house)
        assert house.run(house.control.reapply_erasures()) > 0
        assert CANARY not in live(house)
        house.assert_sound()


def die_at_nth(house: InProcessGateway, step: Step, number: int, *, after: bool) -> None:
    assert house.process is not None
    process, real, count = house.process, house.process.disk.commit, 0

    async def commit(change: Change) -> Any:
        nonlocal count
        count += change.step is step
        if change.step is step and count == number:
            process.disk.commit = real  # type: ignore[method-assign]
            crash_at_step(house, step, after=after)
            return await process.disk.commit(change)
        return await real(change)

    process.disk.commit = commit  # type: ignore[method-assign]


class TestExport:
    def test_it_tells_all_that_is_theirs_and_nothing_else(self, house: InProcessGateway) -> None:
        house.runtimes.memories = {"a": ForgettingProvider(), "b": IncapableProvider()}
        index = builtin(house)
        add_memory_tools(house)
        tell_everything(house)

        async def collect() -> list[dict[str, Any]]:
            return [record async for record in memory(house).export_person("ada")]

        records = house.run(collect())
        # what the built-in memory has stands in the log
        assert {record["from"] for record in records} == {"log", "a", "b"}
        assert CANARY in str(records)
        assert OTHER not in str(records)
        assert any(record["from"] == "a" and CANARY in record["text"] for record in records if "text" in record)
        assert any(record["from"] == "b" and "missing" in record for record in records)
        kinds = {record["kind"] for record in records if record["from"] == "log"}
        assert kinds == {"heard", "said", "noted"}
        house.run(index.close())
