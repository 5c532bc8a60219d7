"""`/memory`: facts, the recalled items of an answer, and removal of notes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from everhold.core.entries import Noted, Thought
from everhold.engine.commands.memory import find_recall_record
from everhold.ports.memory import MemoryHit, MemoryNote, MemoryQuery
from everhold.testing.fakes import FakeMemoryProvider
from everhold.testing.gateway import InProcessGateway

from .memory_tools import FindingProvider, add, add_memory_tools, asked_for, shown


class SlowProvider(FakeMemoryProvider):
    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        await asyncio.sleep(60)
        return ()


def recalling(gateway: InProcessGateway, *, tokens: int = 1_700) -> FindingProvider:
    finding = FindingProvider()
    gateway.runtimes.memories = {"a": finding, "late": SlowProvider()}
    gateway.runtimes.settings.update(recall_memories=("a", "late"), recall_seconds=0.5, recall_tokens=tokens)
    return finding


def ask(gateway: InProcessGateway, text: str = "/memory why", **more: object) -> str:
    gateway.send_message(text, rest=False, **more)
    gateway.pass_time(1)
    return gateway.list_shown_texts()[-1]


class TestWhy:
    def test_why_lists_recalled_items_their_sources_and_omissions(self, gateway: InProcessGateway) -> None:
        finding = recalling(gateway, tokens=100)
        add_memory_tools(gateway)
        first = gateway.send_message("the boiler was repaired in May", rest=False)
        gateway.pass_time(1)
        gateway.send_message(asked_for(add("likes tea")), rest=False)
        gateway.pass_time(1)
        gateway.send_message("/new", rest=False)
        gateway.pass_time(1)
        finding.answers = [
            MemoryHit(
                text="the boiler was repaired in May", session=first.session, seq=first.seq, person="ada", at=5.0
            ),
            MemoryHit(text="the boiler was repaired in may!", person="bob"),
            MemoryHit(text="a long story " * 40, session="elsewhere", seq=7, person="ada"),
        ]
        gateway.send_message("when was the boiler repaired?", rest=False)
        gateway.pass_time(1)
        said = ask(gateway)
        assert "Facts in the prompt:" in said
        assert "“likes tea”" in said
        assert (
            f"- a, ada, 1970-01-01 00:00 UTC, entry {first.seq} of {first.session}: “the boiler was repaired in May”"
            in said
        )
        assert "duplicates of shown items: 1" in said
        assert "over the token limit: 1" in said
        assert "No answer within 0.5 s: late" in said
        assert " tokens." in said

    def test_recall_is_recorded_with_the_turn_and_survives_a_restart(self, gateway: InProcessGateway) -> None:
        recalling(gateway).answers = [MemoryHit(text="known from afar", person="ada")]
        add_memory_tools(gateway)
        session = gateway.send_message("hello", rest=False).session
        gateway.pass_time(2)
        assert all(body.why for body in gateway.read_bodies(session, Thought))
        gateway.crash()
        gateway.start()
        add_memory_tools(gateway)
        assert "“known from afar”" in ask(gateway)

    def test_why_shows_nothing_to_people_outside_the_audience(self, gateway: InProcessGateway) -> None:
        recalling(gateway).answers = [MemoryHit(text="known from afar", person="ada")]
        add_memory_tools(gateway)
        session = gateway.send_message("hello", rest=False).session
        gateway.pass_time(2)
        stored = gateway.run(gateway.store.get_session(session))
        assert gateway.run(find_recall_record(gateway.store, stored, audience=("person:ada",))) is not None
        assert gateway.run(find_recall_record(gateway.store, stored, audience=("person:ada", "person:bob"))) is None
        assert gateway.run(find_recall_record(gateway.store, stored, audience=())) is None

    def test_why_does_not_show_erased_entries(self, gateway: InProcessGateway) -> None:
        finding = recalling(gateway)
        add_memory_tools(gateway)
        first = gateway.send_message("the key is under the mat", chat="one", rest=False)
        gateway.pass_time(1)
        finding.answers = [
            MemoryHit(text="the key is under the mat", session=first.session, seq=first.seq, person="ada")
        ]
        gateway.send_message("where is the key?", chat="two", rest=False)
        gateway.pass_time(1)
        assert "mat" in ask(gateway, chat="two")
        gateway.run(gateway.control.erase_entries(first.session, [first.seq]))
        assert "mat" not in ask(gateway, chat="two")

    def test_an_erasure_removes_later_recall_records(self, gateway: InProcessGateway) -> None:
        recalling(gateway).answers = [MemoryHit(text="known from afar", person="ada")]
        add_memory_tools(gateway)
        first = gateway.send_message("hello", rest=False)
        gateway.pass_time(2)
        thoughts = gateway.read_bodies(first.session, Thought)
        assert all(gateway.run(gateway.store.get_blob(it.why)) for it in thoughts)
        gateway.run(gateway.control.erase_entries(first.session, [first.seq]))
        assert [gateway.run(gateway.store.get_blob(blob)) for it in thoughts for blob in (it.why, it.recall)] == [
            None,
            None,
        ]

    def test_why_without_a_recall_is_answered(self, gateway: InProcessGateway) -> None:
        assert "Nothing was recalled" in ask(gateway)


class TestNoting:
    def test_a_note_belongs_to_its_person_and_reaches_the_provider(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.memories = {"a": FakeMemoryProvider()}
        add_memory_tools(gateway)
        session = gateway.send_message("/memory note the key is under the mat").session
        assert gateway.list_shown_texts() == ["Noted."]
        (entry,) = [entry for entry in gateway.read_log(session) if isinstance(entry.body, Noted)]
        assert entry.author == "person:ada"
        provider = gateway.runtimes.memories["a"]
        assert isinstance(provider, FakeMemoryProvider)
        assert [item.text for item in provider.kept[session] if isinstance(item, MemoryNote)] == [
            "the key is under the mat"
        ]
        gateway.assert_sound()

    def test_an_empty_note_is_refused(self, gateway: InProcessGateway) -> None:
        add_memory_tools(gateway)
        session = gateway.send_message("/memory note   ").session
        assert gateway.read_bodies(session, Noted) == []
        assert gateway.list_shown_texts()[-1].startswith("Add a text of at most")

    def test_the_command_lists_facts_and_its_usage(self, gateway: InProcessGateway) -> None:
        add_memory_tools(gateway)
        gateway.send_message(asked_for(add("likes tea")))
        gateway.send_message("/memory")
        assert "(user): likes tea" in gateway.list_shown_texts()[-1]
        gateway.send_message("/memory", who="bob", chat="bobs")
        assert "tea" not in gateway.list_shown_texts()[-1]
        gateway.send_message("/memory nonsense")
        assert "/memory why" in gateway.list_shown_texts()[-1]


class TestForgetting:
    def test_a_fact_and_a_note_are_removed_and_retracted_from_providers(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.memories = {"a": FakeMemoryProvider()}
        facts = add_memory_tools(gateway)
        session = gateway.send_message(asked_for(add("likes tea"))).session
        gateway.send_message("/memory note more about tea")
        gateway.send_message("/memory forget tea")
        assert gateway.list_shown_texts()[-1] == "Taken back:\n- likes tea\n- more about tea"
        assert gateway.run(facts.list_valid("main", ("person:ada",))) == []
        gateway.send_message("hello")
        assert "| likes tea" not in shown(gateway)
        provider = gateway.runtimes.memories["a"]
        assert isinstance(provider, FakeMemoryProvider)
        got = [(it.action, it.supersedes) for it in provider.kept[session] if isinstance(it, MemoryNote)]
        assert [action for action, _ in got] == ["add", "add", "remove", "remove"]
        assert all(old for action, old in got if action == "remove")
        gateway.send_message("/memory forget tea")
        assert "No fact or note contains that" in gateway.list_shown_texts()[-1]

    def test_items_of_other_people_are_not_found(self, gateway: InProcessGateway) -> None:
        facts = add_memory_tools(gateway)
        gateway.send_message(asked_for(add("likes tea")))
        gateway.send_message("/memory forget tea", who="bob", chat="bobs")
        assert "No fact or note contains that" in gateway.list_shown_texts()[-1]
        assert len(gateway.run(facts.list_valid("main", ("person:ada",)))) == 1

    def test_recent_notes_are_listed_until_they_are_removed(self, gateway: InProcessGateway) -> None:
        for number in range(7):
            gateway.send_message(f"/memory note note number {number}")
        listed = ask(gateway, "/memory")
        assert [f"note number {number}" in listed for number in range(7)] == [False] * 2 + [True] * 5
        gateway.send_message("/memory forget number 6")
        assert "number 6" not in ask(gateway, "/memory")
        assert "number" not in ask(gateway, "/memory", who="bob", chat="bobs")


class TestSearch:
    def test_search_shows_what_a_turn_would_recall_and_writes_nothing(self, gateway: InProcessGateway) -> None:
        finding = recalling(gateway)
        said = gateway.send_message("the boiler was repaired in May", rest=False)
        gateway.pass_time(1)
        finding.answers = [
            MemoryHit(text="the boiler was repaired in May", session=said.session, seq=said.seq, person="ada"),
            MemoryHit(text="the boiler is fine", person="ada", kind="reply", author="agent:main"),
        ]
        before = len(gateway.runtimes.model.requests)
        told = ask(gateway, "/memory search boiler")
        assert told.splitlines() == [
            "Found:",
            f"- a, ada, entry {said.seq} of {said.session}: “the boiler was repaired in May”",
            "- a, reply to ada: “the boiler is fine”",
            "No answer within 0.5 s: late",
        ]
        assert len(gateway.runtimes.model.requests) == before
        assert not [entry for entry in gateway.read_log(said.session) if entry.kind == "noted"]

    def test_an_empty_result_is_answered_with_a_notice(self, gateway: InProcessGateway) -> None:
        recalling(gateway).answers = []
        assert ask(gateway, "/memory search boiler").startswith("Nothing was found.")
        assert "Add words to search for" in ask(gateway, "/memory search")

    def test_search_without_recall_is_answered_with_a_notice(self, gateway: InProcessGateway) -> None:
        assert "recall is off" in ask(gateway, "/memory search boiler")
