"""A person is forgotten permanently, in the log and in all data derived from it. What cannot be erased is named."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import zlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.admin.forgetting import BackupHolding
from everhold.admin.memory import MemoryAdmin
from everhold.core import memory_naming
from everhold.core.entries import Attachment, Heard, Said, TextPiece
from everhold.core.erasure import PersonErasure
from everhold.core.people import IdentityProof, PeoplePlanner
from everhold.core.recall_blobs import PACKED
from everhold.engine.state_updates import update_people
from everhold.errors import Refused, Transient
from everhold.memories.builtin import BuiltinMemory, MemoryIndex
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryNote,
    MemoryQuery,
    ProviderDeletion,
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

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        self.faults.begin_call()
        self.asked += target.identities
        deleted = 0
        for name, items in self.kept.items():
            left = [item for item in items if not self.is_of(item, target.identities)]
            deleted += len(items) - len(left)
            self.kept[name] = left
        kept = [
            ProviderDeletion(id=line, what=line, state=ErasureState.CANNOT, reason="it has no means")
            for line in self.keeps
        ]
        return [ProviderDeletion(id=" ".join(target.identities), what="what they said", count=deleted), *kept]

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        self.faults.begin_call()
        return {
            it.id: ErasureState.ASKED
            if any(self.is_of(item, it.id.split()) for items in self.kept.values() for item in items)
            else ErasureState.CONFIRMED
            for it in deletions
        }

    @staticmethod
    def is_of(item: object, identities: Collection[str]) -> bool:
        return isinstance(item, Exchange | MemoryNote) and item.stamp.person in identities

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
    """Deletes slowly, and returns the items until they are deleted."""

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        await asyncio.sleep(5)
        return await super().forget(target)

    async def find(self, query: MemoryQuery) -> list[MemoryHit]:
        return [MemoryHit(text=self.words, person="ada")] if self.words else []


class IncapableProvider(FakeMemoryProvider):
    """A provider that can do neither."""


def memory(gateway: InProcessGateway, **more: Any) -> MemoryAdmin:
    return MemoryAdmin(gateway.control, agents=lambda: ("main", "other"), **more)


def save_store(gateway: InProcessGateway) -> dict[str, bytes]:
    """Return a copy of the store's files."""
    return {file.name: file.read_bytes() for file in gateway.path.glob("log.db*")}


def put_store_back(gateway: InProcessGateway, copy: dict[str, bytes]) -> None:
    """Replace the store by a copy of it, and start again."""
    gateway.crash()
    for file in gateway.path.glob("log.db*"):
        file.unlink()
    for name, data in copy.items():
        (gateway.path / name).write_bytes(data)
    gateway.start()


def link(gateway: InProcessGateway, identity: str, *others: str, label: str = "") -> str:
    """Make one person of several identities, and return the person's id."""

    def plan(planner: PeoplePlanner) -> None:
        person = planner.get_person(identity)
        for other in others:
            planner.link_identity(other, person, IdentityProof.OPERATOR)
        if label:
            planner.name_person(person, label)

    now = gateway.clock.now()
    gateway.run(update_people(gateway.store, chance=gateway.chance, at=now, by="operator", plan=plan))
    found = gateway.run(gateway.store.get_people()).find_person(identity)
    assert found is not None
    return found.id


def builtin(gateway: InProcessGateway) -> MemoryIndex:
    """The real index over the gateway's log, as a memory that is asked about every message."""
    index = MemoryIndex(gateway.path / "index.db", inline=True, embeddings="table")
    gateway.runtimes.memories["builtin"] = BuiltinMemory(index=index, store=gateway.store, agent="main")
    gateway.runtimes.settings.update(
        recall_memories=("builtin", *(n for n in gateway.runtimes.memories if n != "builtin"))
    )
    gateway.runtimes.settings["recall_seconds"] = 1.0
    return index


def everywhere(path: Path, word: str) -> list[str]:
    """The files that hold a word, in any of the forms it is stored in."""
    forms = (word.encode(), word.encode().hex().encode(), word.encode("utf-16-le"))
    plain = [file.name for file in path.rglob("*") if file.is_file() and any(it in file.read_bytes() for it in forms)]
    return [*plain, *(f"a blob of {file.name}" for file in path.rglob("log.db") if holds_packed(file, word))]


def holds_packed(file: Path, word: str) -> bool:
    """Whether what is recorded of recall, which is stored compressed, holds a word."""
    with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as db:
        blobs = [bytes(data) for (data,) in db.execute("select data from blobs")]
    return any(word.encode() in zlib.decompress(data[1:]) for data in blobs if data.startswith(PACKED))


async def collected(found: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [it async for it in found]


def live(gateway: InProcessGateway) -> str:
    return " ".join(
        str(entry.body) for s in gateway.run(gateway.store.list_sessions()) for entry in gateway.read_log(s.id)
    )


def tell_everything(gateway: InProcessGateway) -> None:
    """Ada's secret is put into every place that stores text. Bob writes messages too."""
    gateway.send_message(f"my secret is {CANARY}")
    gateway.send_message(asked_for(add(f"keeps {CANARY}")))
    gateway.send_message(f"/memory note {CANARY} again")
    gateway.send_message(f"/title all about {CANARY}")
    gateway.send_message(f"what about {CANARY}?", chat="second")
    gateway.send_message("/memory why", chat="second")
    gateway.send_message(f"/background look into {CANARY}", chat="second")
    gateway.send_message("/compress here 0")
    gateway.send_message(f"hello all, {CANARY} it is", chat="room", kind="group")
    gateway.send_message(f"I am bob and like {OTHER}", chat="room", kind="group", who="bob")
    gateway.send_message(f"private to bob: {OTHER}", chat="bobs", who="bob")


class TestForgetting:
    def test_a_plan_lists_everything_and_changes_nothing(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.memories = {"a": ForgettingProvider(), "b": IncapableProvider()}
        index = builtin(gateway)
        add_memory_tools(gateway)
        tell_everything(gateway)
        before = live(gateway)
        plan = gateway.run(memory(gateway, backups=lambda _: BackupHolding(3, 1_800_000_000.0)).plan_forgetting("ada"))
        assert live(gateway) == before
        assert not plan.done
        assert len(plan.sessions) == 3
        assert [going.alone for going in plan.sessions] == [True, True, False]
        assert plan.entry_count > 10
        assert plan.recalls > 0
        assert {(it.place, it.state) for it in plan.places if it.agent in ("", "main")} == {
            ("log", "planned"),
            ("builtin", "planned"),
            ("a", "planned"),
            ("b", "planned"),
            ("backups", "cannot"),
        }
        (backups,) = [it for it in plan.places if it.place == "backups"]
        assert (backups.until, backups.parts[0].what) == (1_800_000_000.0, "3 backups contain it")
        assert "2027-01-15" in backups.parts[0].reason
        gateway.run(index.close())

    def test_no_file_contains_a_word_of_the_person_afterwards(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.memories = {"a": ForgettingProvider(), "b": IncapableProvider()}
        index = builtin(gateway)
        add_memory_tools(gateway)
        tell_everything(gateway)
        assert CANARY in live(gateway)
        assert {name.partition(".")[0] for name in everywhere(gateway.path, CANARY)} == {"log", "index"}
        report = gateway.run(memory(gateway).forget_person("ada"))
        gateway.run_until_idle()
        assert CANARY not in live(gateway)
        assert everywhere(gateway.path, CANARY) == []
        provider = gateway.runtimes.memories["a"]
        assert isinstance(provider, ForgettingProvider)
        assert CANARY not in provider.words
        assert provider.asked
        assert any(line.startswith("b (agent main), cannot: ") for line in report.remains)
        # words of other people stay
        assert OTHER in live(gateway)
        assert OTHER in provider.words
        gateway.assert_sound()
        gateway.run(index.close())

    def test_the_person_s_schedules_are_deleted(self, gateway: InProcessGateway) -> None:
        gateway.send_message(f"/schedule daily 09:00 {CANARY}")
        gateway.send_message(f"/schedule daily 10:00 {OTHER}", chat="bobs", who="bob")
        kept = gateway.run(gateway.store.list_state_records(StateNamespace.SCHEDULE))
        exported = gateway.run(collected(memory(gateway).export_person("ada")))
        assert [CANARY in str(it) for it in exported if it["from"] == "schedules"] == [True]
        forgetful = memory(gateway)
        forgetful.control.erasures = gateway.path / "erasures.log"
        assert gateway.run(forgetful.plan_forgetting("ada")).schedules == 1
        assert gateway.run(forgetful.forget_person("ada")).schedules == 1
        left = gateway.run(gateway.store.list_state_records(StateNamespace.SCHEDULE))
        assert [OTHER in it.value for it in left] == [True]
        assert everywhere(gateway.path, CANARY) == []
        now = gateway.clock.now()
        (again,) = [it for it in kept if CANARY in it.value]  # as in a restored backup
        write = msgspec.structs.replace(again.replace_with(again.value), version=0)
        (known,) = gateway.run(gateway.store.list_state_records(StateNamespace.ERASURE))
        writes = (write, known.replace_with(None))
        gateway.run(gateway.store.commit(Change(step=Step.STATE, session="", at=now, state_writes=writes)))
        gateway.run(forgetful.resume_erasures())
        assert gateway.run(gateway.store.list_state_records(StateNamespace.SCHEDULE)) == left

    def test_schedules_made_since_are_kept_when_a_forgetting_begins_again(self, gateway: InProcessGateway) -> None:
        """The person came back before the store was restored from before the forgetting."""
        gateway.send_message("/schedule daily 09:00 the old one")
        gateway.pass_time(5.0)
        admin = memory(gateway)
        position = gateway.run(gateway.store.last_pos())
        admin.records.file_begin(PersonErasure(identities=("ada",), at=gateway.clock.now(), upto_pos=position))
        gateway.pass_time(5.0)
        gateway.send_message("/schedule daily 09:00 the new one")
        gateway.run(admin.resume_erasures(restored=True))
        (kept,) = gateway.run(gateway.store.list_state_records(StateNamespace.SCHEDULE))
        assert "the new one" in kept.value

    def test_a_forgetting_that_only_the_file_knows_erases_what_was_said_before_the_clock_went_back(
        self, gateway: InProcessGateway
    ) -> None:
        tell_everything(gateway)
        gateway.clock.skew -= 315_360_000.0
        admin = memory(gateway)
        admin.control.erasures = gateway.path / "erasures.log"
        position = gateway.run(gateway.store.last_pos())
        # as after a crash between the line and the record
        admin.records.file_begin(PersonErasure(identities=("ada",), at=gateway.clock.now(), upto_pos=position))
        assert gateway.run(admin.resume_erasures()) > 0
        assert CANARY not in str([entry.body for entry in gateway.run(gateway.store.read_feed(after=0))])

    def test_a_restored_log_that_is_shorter_keeps_what_is_said_later(self, gateway: InProcessGateway) -> None:
        tell_everything(gateway)
        admin = memory(gateway)
        admin.control.erasures = gateway.path / "erasures.log"
        position = gateway.run(gateway.store.last_pos())
        admin.records.file_begin(PersonErasure(identities=("ada",), at=gateway.clock.now(), upto_pos=position + 1_000))
        gateway.run(admin.resume_erasures(restored=True))
        gateway.pass_time(5.0)
        back = gateway.send_message("I am back", rest=False)
        gateway.run(admin.finish_unfinished())
        assert "I am back" in str(gateway.read_log(back.session))

    def test_an_index_of_an_unused_memory_is_erased_too(self, gateway: InProcessGateway) -> None:
        index = builtin(gateway)
        tell_everything(gateway)
        gateway.run(index.wipe_erased(gateway.store))
        assert "index.db" in {name.removesuffix("-wal") for name in everywhere(gateway.path, CANARY)}
        del gateway.runtimes.memories["builtin"]
        gateway.runtimes.settings.update(recall_memories=())
        report = gateway.run(memory(gateway, wipe_index=lambda: index.wipe_erased(gateway.store)).forget_person("ada"))
        assert report.done
        assert everywhere(gateway.path, CANARY) == []
        gateway.run(index.close())

    def test_an_index_that_cannot_be_wiped_is_named_and_retried(self, gateway: InProcessGateway) -> None:
        async def full() -> None:
            raise OSError("no room")

        tell_everything(gateway)
        report = gateway.run(memory(gateway, wipe_index=full).forget_person("ada"))
        assert not report.done
        assert any(line.startswith("the search index: ") for line in report.remains)
        again = memory(gateway)
        gateway.run(again.finish_unfinished())
        assert gateway.run(again.collect_status())["forgetting"] == []

    def test_a_crash_between_erasing_and_wiping_is_completed_by_the_next_process(
        self, gateway: InProcessGateway
    ) -> None:
        """The rows are deleted and their bytes are still beside the file, so the next process has to wipe them."""

        class Falling(MemoryIndex):
            def _wipe_files(self) -> None:
                """It is killed just before."""

        index = Falling(gateway.path / "index.db", inline=True, embeddings="table")
        gateway.send_message(f"my secret is {CANARY}")
        gateway.run(index.catch_up(gateway.store))
        gateway.run(memory(gateway).forget_person("ada"))
        gateway.run(index.catch_up(gateway.store))
        assert everywhere(gateway.path, CANARY) == ["index.db-wal"]
        after = MemoryIndex(gateway.path / "index.db", inline=True, embeddings="table")
        gateway.run(after.catch_up(gateway.store))
        assert everywhere(gateway.path, CANARY) == []
        gateway.run(after.close())
        gateway.run(index.close())

    def test_a_rebuilt_index_and_a_restart_bring_nothing_back(self, gateway: InProcessGateway) -> None:
        index = builtin(gateway)
        add_memory_tools(gateway)
        tell_everything(gateway)
        gateway.run(memory(gateway).forget_person("ada"))
        gateway.crash()
        gateway.start()
        gateway.run(gateway.control.reapply_erasures())
        add_memory_tools(gateway)
        gateway.run(index.rebuild())
        index = builtin(gateway)
        gateway.send_message(f"do you know {CANARY[:-4]} something?", chat="new")
        assert CANARY not in "".join(message.text for message in gateway.runtimes.model.requests[-1].messages)
        gateway.run(index.close())

    def test_a_memory_name_made_from_a_title_is_erased_with_it(self, gateway: InProcessGateway) -> None:
        provider = ForgettingProvider()
        gateway.runtimes.memories = {"a": provider}
        gateway.runtimes.settings["choose_memory_name"] = lambda _memory, origin: (
            memory_naming.choose_memory_name(origin, memory_naming.NamingRule()).text
        )
        gateway.send_message(f"/title all about {CANARY}")
        session = gateway.send_message("hello").session
        assert CANARY in gateway.run(gateway.store.get_session(session)).names["a"]
        gateway.run(memory(gateway).forget_person("ada"))
        assert gateway.run(gateway.store.get_session(session)).names == {}
        assert everywhere(gateway.path, CANARY) == []
        gateway.assert_sound()
        # later items use the name that is known then
        assert gateway.send_message("hello again").session == session
        name = gateway.run(gateway.store.get_session(session)).names["a"]
        assert name
        assert CANARY not in name
        gateway.assert_sound()

    def test_a_memory_name_not_made_from_a_title_stays(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.memories = {"a": ForgettingProvider()}
        session = gateway.send_message("hello").session
        before = gateway.run(gateway.store.get_session(session)).names
        assert before
        gateway.run(memory(gateway).forget_person("ada"))
        assert gateway.run(gateway.store.get_session(session)).names == before

    def test_messages_after_the_erasure_are_kept(self, gateway: InProcessGateway) -> None:
        add_memory_tools(gateway)
        gateway.send_message("one")
        gateway.run(memory(gateway).forget_person("ada"))
        session = gateway.send_message("two").session
        assert [body.text for body in gateway.read_bodies(session, Heard)] == ["two"]
        gateway.run(memory(gateway).finish_unfinished())
        assert [body.text for body in gateway.read_bodies(session, Heard)] == ["two"]

    def test_every_identity_of_the_person_is_included(self, gateway: InProcessGateway) -> None:
        add_memory_tools(gateway)
        gateway.send_message(f"{CANARY} here", who="telegram:7", chat="t")
        gateway.send_message(f"{CANARY} there", who="ada")
        link(gateway, "ada", "telegram:7", label="Ada L.")
        report = gateway.run(memory(gateway).forget_person("Ada L."))
        assert report.names == ("ada", "telegram:7")
        assert CANARY not in live(gateway)

    def test_an_answer_to_another_person_that_repeats_the_text_is_erased(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = gateway.runtimes.summariser = FakeModel(
            lambda request: ModelResponse(
                text=f"as ada said, {CANARY}" if "who" in request.messages[-1].text else "fine"
            )
        )
        group: dict[str, Any] = {"chat": "room", "kind": "group"}
        session = gateway.send_message(f"the word is {CANARY}", **group).session
        gateway.send_message("how are you?", who="bob", **group)
        gateway.send_message("who knows?", who="bob", **group)
        report = gateway.run(memory(gateway).forget_person("ada"))
        assert [going.repeated for going in report.sessions] == [2]
        assert [body.text for body in gateway.read_bodies(session, Heard)] == ["how are you?", "who knows?"]
        assert [body.text for body in gateway.read_bodies(session, Said)] == ["fine"]
        gateway.assert_sound()

    def test_a_quote_by_another_person_does_not_make_the_words_theirs(self, gateway: InProcessGateway) -> None:
        """A reply in a group quotes the message that it answers, without a decision of anybody."""
        gateway.runtimes.model = gateway.runtimes.summariser = FakeModel(
            lambda request: ModelResponse(
                text=f"as ada said, {CANARY}" if "who" in request.messages[-1].text else "fine"
            )
        )
        group: dict[str, Any] = {"chat": "room", "kind": "group"}
        session = gateway.send_message(f"the word is {CANARY}", **group).session
        quote = TextPiece(source="quoted", by="ada", name="Ada", text=f"the word is {CANARY}")
        quoting = gateway.send_message("really?", who="bob", pieces=(quote,), **group)
        forward = TextPiece(source="forwarded", by="ada", name="Ada", text=f"the word is {CANARY}")
        forwarding = gateway.send_message("", who="bob", chat="bobs", pieces=(forward,))
        gateway.send_message("who knows?", who="bob", **group)
        plan = gateway.run(memory(gateway).plan_forgetting("ada"))
        report = gateway.run(memory(gateway).forget_person("ada"))
        assert CANARY not in "".join(body.text for body in gateway.read_bodies(session, Said))
        # the quotes belong to bob, and the report says that there are some, and where
        for told in (plan, report):
            (line,) = [it for it in told.remains if "quoted or forwarded" in it]
            assert f"{quoting.session}:{quoting.seq}" in line
            assert f"{forwarding.session}:{forwarding.seq}" in line
        gateway.assert_sound()

    def test_no_quote_is_reported_if_there_is_none(self, gateway: InProcessGateway) -> None:
        gateway.send_message("hello", pieces=(TextPiece(source="quoted", by="ada", own=True, text="my own"),))
        gateway.send_message("hello", who="bob", pieces=(TextPiece(source="quoted", by="cleo", text="hers"),))
        report = gateway.run(memory(gateway).forget_person("ada"))
        assert not [it for it in report.remains if "quoted or forwarded" in it]

    def test_the_name_of_the_person_is_nowhere_afterwards(self, gateway: InProcessGateway) -> None:
        gateway.send_message("hello")
        gateway.send_message("hello", chat="second", who="eve")
        link(gateway, "eve", label="Marzipanella")
        link(gateway, "ada", label="Zephyrine")
        gateway.send_message("hello again")
        assert everywhere(gateway.path, "Zephyrine")
        gateway.run(memory(gateway).forget_person("Zephyrine"))
        assert not everywhere(gateway.path, "Zephyrine")
        assert everywhere(gateway.path, "Marzipanella")
        assert gateway.run(gateway.store.get_people()).find_label("eve") == "Marzipanella"
        gateway.assert_sound()

    def test_attachments_are_erased_unless_another_person_sent_the_same(self, gateway: InProcessGateway) -> None:
        def put(data: bytes) -> str:
            import hashlib

            gateway.run(gateway.store.commit(Change(step=Step.STATE, session="", at=1.0, blobs=(data,))))
            return hashlib.sha256(data).hexdigest()

        hers, shared = put(CANARY.encode()), put(b"a picture of both")
        gateway.send_message("mine", attachments=(Attachment(blob=hers), Attachment(blob=shared)))
        gateway.send_message("mine, too", attachments=(Attachment(blob=shared),), who="bob", chat="bobs")
        gateway.run(memory(gateway).forget_person("ada"))
        assert gateway.run(gateway.store.get_blob(hers)) is None
        assert gateway.run(gateway.store.get_blob(shared)) is not None

    def test_recall_records_of_other_people_are_erased(self, gateway: InProcessGateway) -> None:
        finding = FindingProvider()
        gateway.runtimes.memories = {"a": finding}
        gateway.runtimes.settings.update(recall_memories=("a",), recall_seconds=1.0)
        add_memory_tools(gateway)
        gateway.send_message("hello")
        finding.answers = [MemoryHit(text=f"ada keeps {CANARY}", person="ada")]
        session = gateway.send_message("what is new?", who="bob", chat="bobs").session
        assert everywhere(gateway.path, CANARY)
        report = gateway.run(memory(gateway).forget_person("ada"))
        assert report.recalls
        assert everywhere(gateway.path, CANARY) == []
        assert [body.text for body in gateway.read_bodies(session, Heard)] == ["what is new?"]
        gateway.assert_sound()

    def test_dead_letters_of_the_person_are_erased_with_their_reasons(self, gateway: InProcessGateway) -> None:
        provider = ForgettingProvider()
        provider.faults.fail_next(Refused(f"I will not take {CANARY}"), times=5)
        gateway.runtimes.memories = {"a": provider}
        add_memory_tools(gateway)
        session = gateway.send_message(f"/memory note {CANARY}").session
        assert gateway.run(gateway.store.list_dead_letters())
        gateway.run(memory(gateway).forget_person("ada"))
        assert gateway.run(gateway.store.list_dead_letters()) == []
        assert everywhere(gateway.path, CANARY) == []
        assert gateway.run(gateway.control.replay_dead_letters()) == 0
        gateway.run_until_idle()
        assert CANARY not in provider.words
        assert session


class TestInTheMiddle:
    def test_a_turn_that_read_the_text_writes_nothing_of_it(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = held = HeldModel()
        session = gateway.send_message(f"tell me about {CANARY}", rest=False).session
        gateway.pass_time()
        gateway.run(memory(gateway).forget_person("ada"))
        held.text = f"{CANARY} is an island"
        held.free = True
        gateway.run_until_idle()
        assert CANARY not in live(gateway)
        assert CANARY not in "".join(gateway.list_shown_texts())
        assert [entry.body for entry in gateway.read_log(session) if entry.kind in ("heard", "said")] == [None]
        gateway.assert_sound()

    def test_an_in_flight_batch_is_settled_before_the_provider_is_asked_to_forget(
        self, gateway: InProcessGateway
    ) -> None:
        provider = ForgettingProvider()
        gateway.runtimes.memories = {"a": provider}
        add_memory_tools(gateway)
        provider.faults.lose_next_answer(times=1)
        gateway.send_message(f"remember {CANARY}", rest=False)
        gateway.pass_time(0.5)
        assert CANARY in provider.words
        gateway.run(memory(gateway).forget_person("ada"))
        gateway.run_until_idle(120)
        assert CANARY not in provider.words

    def test_a_write_that_arrives_late_is_deleted_too(self, gateway: InProcessGateway) -> None:
        provider = TardyProvider()
        gateway.runtimes.memories = {"a": provider}
        add_memory_tools(gateway)
        gateway.send_message(f"remember {CANARY}", rest=False)
        gateway.pass_time(0.5)
        assert CANARY not in provider.words
        assert gateway.run(memory(gateway).forget_person("ada")).done
        gateway.run_until_idle(60)
        assert provider.writes
        assert CANARY not in provider.words

    def test_a_dead_process_s_request_is_waited_for_before_the_provider_is_asked(
        self, gateway: InProcessGateway
    ) -> None:
        """Its request can be carried out until its deadline, also by a keyed destination (rule 15)."""
        provider = TardyProvider()
        provider.seconds = provider.deadline - 1
        gateway.runtimes.memories = {"a": provider}
        add_memory_tools(gateway)
        session = gateway.send_message(f"remember {CANARY}", rest=False).session
        gateway.pass_time(0.5)
        seqs = [entry.seq for entry in gateway.read_log(session) if entry.kind in ("heard", "thought", "said")]
        gateway.run(gateway.control.erase_entries(session, seqs))
        gateway.crash()
        gateway.start()
        assert gateway.run(memory(gateway).forget_person("ada")).done
        gateway.run_until_idle(60)
        assert provider.writes
        assert CANARY not in provider.words

    def test_a_recall_during_the_erasure_leaves_no_record(self, gateway: InProcessGateway) -> None:
        provider = ReluctantProvider()
        gateway.runtimes.memories = {"a": provider}
        gateway.runtimes.settings.update(recall_memories=("a",), recall_seconds=1.0)
        add_memory_tools(gateway)
        gateway.send_message(f"remember {CANARY}")
        forgetting = gateway.loop.create_task(memory(gateway).forget_person("ada"))
        gateway.pass_time(1)
        session = gateway.send_message("what is new?", who="bob", chat="bobs", rest=False).session
        gateway.pass_time(2)
        assert everywhere(gateway.path, CANARY)  # it was recalled once more, for another person
        gateway.pass_time(10)
        assert forgetting.result().done
        assert everywhere(gateway.path, CANARY) == []
        assert [body.text for body in gateway.read_bodies(session, Heard)] == ["what is new?"]
        gateway.assert_sound()

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("number", range(1, 16))
    def test_an_erasure_interrupted_by_a_crash_is_finished_by_the_next_process(
        self, gateway: InProcessGateway, number: int, after: bool
    ) -> None:
        provider = ForgettingProvider()
        gateway.runtimes.memories = {"a": provider}
        index = builtin(gateway)
        add_memory_tools(gateway)
        tell_everything(gateway)
        die_at_nth(gateway, Step.ERASE, number, after=after)
        task = gateway.loop.create_task(memory(gateway).forget_person("ada"))
        gateway.pass_time(5)
        assert not task.done()
        gateway.start()
        add_memory_tools(gateway)
        builtin(gateway)
        again = memory(gateway)
        gateway.run(again.resume_erasures())
        gateway.run(gateway.control.reapply_erasures())
        assert gateway.run(again.collect_status())["forgetting"] == [["ada"]]
        assert CANARY not in live(gateway)
        gateway.run(again.finish_unfinished())
        gateway.run_until_idle()
        assert gateway.run(again.collect_status())["forgetting"] == []
        assert everywhere(gateway.path, CANARY) == []
        assert CANARY not in provider.words
        gateway.assert_sound()
        gateway.run(index.close())

    def test_an_unavailable_provider_is_asked_again(self, gateway: InProcessGateway) -> None:
        provider = ForgettingProvider()
        gateway.runtimes.memories = {"a": provider}
        add_memory_tools(gateway)
        builtin(gateway)
        gateway.send_message(f"remember {CANARY}")
        provider.faults.fail_next(Transient("away"), times=2)
        report = gateway.run(memory(gateway).forget_person("ada"))
        assert not report.done
        assert any("away" in line and "everhold retries" in line for line in report.remains)
        assert CANARY in provider.words
        gateway.run(memory(gateway).finish_unfinished())
        assert CANARY not in provider.words
        assert gateway.run(memory(gateway).collect_status())["forgetting"] == []

    def test_the_erasure_is_retried_until_every_provider_has_confirmed(self, gateway: InProcessGateway) -> None:
        provider = ForgettingProvider()
        gateway.runtimes.memories = {"a": provider}
        add_memory_tools(gateway)
        gateway.send_message(f"remember {CANARY}")
        keeping = memory(gateway)
        gateway.loop.create_task(keeping.keep_finishing_unfinished())
        gateway.pass_time(1)
        provider.faults.fail_next(Transient("away"), times=3)
        assert not gateway.run(keeping.forget_person("ada")).done
        gateway.pass_time(60)
        assert CANARY not in provider.words
        assert gateway.run(keeping.collect_status())["forgetting"] == []
        # A person who comes later is recorded for a later erasure, too.
        gateway.send_message(f"I am bob and like {OTHER}", chat="bobs", who="bob")
        provider.faults.fail_next(Transient("away"), times=1)
        assert not gateway.run(keeping.forget_person("bob")).done
        gateway.pass_time(60)
        assert OTHER not in provider.words

    def test_a_restored_backup_is_erased_again(self, gateway: InProcessGateway) -> None:
        add_memory_tools(gateway)
        tell_everything(gateway)
        copy = save_store(gateway)
        gateway.run(memory(gateway).forget_person("ada"))
        put_store_back(gateway, copy)
        assert CANARY in live(gateway)
        assert gateway.run(gateway.control.reapply_erasures()) > 0
        assert CANARY not in live(gateway)
        gateway.assert_sound()


def die_at_nth(gateway: InProcessGateway, step: Step, number: int, *, after: bool) -> None:
    assert gateway.process is not None
    process, real, count = gateway.process, gateway.process.disk.commit, 0

    async def commit(change: Change) -> Any:
        nonlocal count
        count += change.step is step
        if change.step is step and count == number:
            process.disk.commit = real  # type: ignore[method-assign]
            crash_at_step(gateway, step, after=after)
            return await process.disk.commit(change)
        return await real(change)

    process.disk.commit = commit  # type: ignore[method-assign]


class TestExport:
    def test_an_export_contains_exactly_the_person_s_data(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.memories = {"a": ForgettingProvider(), "b": IncapableProvider()}
        index = builtin(gateway)
        add_memory_tools(gateway)
        tell_everything(gateway)

        async def collect() -> list[dict[str, Any]]:
            return [record async for record in memory(gateway).export_person("ada")]

        records = gateway.run(collect())
        # the built-in memory has only entries of the log
        assert {record["from"] for record in records} == {"log", "a", "b"}
        assert CANARY in str(records)
        assert OTHER not in str(records)
        assert any(record["from"] == "a" and CANARY in record["text"] for record in records if "text" in record)
        assert any(record["from"] == "b" and "missing" in record for record in records)
        kinds = {record["kind"] for record in records if record["from"] == "log"}
        assert kinds == {"heard", "said", "noted"}
        gateway.run(index.close())
