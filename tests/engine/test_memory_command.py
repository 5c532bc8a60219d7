"""`/memory`: what is kept in mind, what an answer rested on, and what is taken back."""

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
    gateway.runtimes.settings.update(recalls=("a", "late"), recall_seconds=0.5, recall_tokens=tokens)
    return finding


def ask(gateway: InProcessGateway, text: str = "/memory why", **more: object) -> str:
    gateway.send_message(text, rest=False, **more)
    gateway.pass_time(1)
    return gateway.list_shown_texts()[-1]


class TestWhy:
    def test_it_tells_what_was_recalled_from_where_and_what_was_left_out(self, gateway: InProcessGateway) -> None:
        finding = recalling(gateway, tokens=40)
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
        assert "Facts I kept in mind:" in said
        assert "“likes tea”" in said
        assert (
            f"- a, ada, 1970-01-01 00:00 UTC, entry {first.seq} of {first.session}: “the boiler was repaired in May”"
            in said
        )
        assert "because something shown says the same: 1" in said
        assert "for want of room: 1" in said
        assert "No answer within 0.5 s: late" in said
        assert "tokens used" in said

    def test_it_is_recorded_with_the_turn_and_outlives_the_process(self, gateway: InProcessGateway) -> None:
        recalling(gateway).answers = [MemoryHit(text="known from afar", person="ada")]
        add_memory_tools(gateway)
        session = gateway.send_message("hello", rest=False).session
        gateway.pass_time(2)
        assert all(body.why for body in gateway.read_bodies(session, Thought))
        gateway.crash()
        gateway.start()
        add_memory_tools(gateway)
        assert "“known from afar”" in ask(gateway)

    def test_it_tells_those_who_were_not_there_nothing(self, gateway: InProcessGateway) -> None:
        recalling(gateway).answers = [MemoryHit(text="known from afar", person="ada")]
        add_memory_tools(gateway)
        session = gateway.send_message("hello", rest=False).session
        gateway.pass_time(2)
        stored = gateway.run(gateway.store.get_session(session))
        assert gateway.run(find_recall_record(gateway.store, stored, present=("person:ada",))) is not None
        assert gateway.run(find_recall_record(gateway.store, stored, present=("person:ada", "person:bob"))) is None
        assert gateway.run(find_recall_record(gateway.store, stored, present=())) is None

    def test_what_was_erased_since_is_not_told_again(self, gateway: InProcessGateway) -> None:
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

    def test_an_erasure_takes_the_records_made_since_with_it(self, gateway: InProcessGateway) -> None:
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

    def test_without_any_recall_it_says_so(self, gateway: InProcessGateway) -> None:
        assert "Nothing was recalled" in ask(gateway)


class TestNoting:
    def test_a_note_is_the_persons_and_reaches_the_provider(self, gateway: InProcessGateway) -> None:
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

    def test_nothing_is_not_noted(self, gateway: InProcessGateway) -> None:
        add_memory_tools(gateway)
        session = gateway.send_message("/memory note   ").session
        assert gateway.read_bodies(session, Noted) == []
        assert gateway.list_shown_texts()[-1].startswith("Say what to note")

    def test_it_lists_the_facts_and_how_to_use_it(self, gateway: InProcessGateway) -> None:
        add_memory_tools(gateway)
        gateway.send_message(asked_for(add("likes tea")))
        gateway.send_message("/memory")
        assert "(user): likes tea" in gateway.list_shown_texts()[-1]
        gateway.send_message("/memory", who="bob", chat="bobs")
        assert "tea" not in gateway.list_shown_texts()[-1]
        gateway.send_message("/memory nonsense")
        assert "/memory why" in gateway.list_shown_texts()[-1]


class TestForgetting:
    def test_a_fact_and_a_note_are_taken_back_and_providers_hear_of_it(self, gateway: InProcessGateway) -> None:
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
        assert "nothing that contains that" in gateway.list_shown_texts()[-1]

    def test_somebody_elses_are_not_even_found(self, gateway: InProcessGateway) -> None:
        facts = add_memory_tools(gateway)
        gateway.send_message(asked_for(add("likes tea")))
        gateway.send_message("/memory forget tea", who="bob", chat="bobs")
        assert "nothing that contains that" in gateway.list_shown_texts()[-1]
        assert len(gateway.run(facts.list_valid("main", ("person:ada",)))) == 1

    def test_what_was_noted_lately_is_listed_until_it_is_taken_back(self, gateway: InProcessGateway) -> None:
        for number in range(7):
            gateway.send_message(f"/memory note note number {number}")
        listed = ask(gateway, "/memory")
        assert [f"note number {number}" in listed for number in range(7)] == [False] * 2 + [True] * 5
        gateway.send_message("/memory forget number 6")
        assert "number 6" not in ask(gateway, "/memory")
        assert "number" not in ask(gateway, "/memory", who="bob", chat="bobs")


class TestSearch:
    def test_it_finds_what_a_turn_would_be_shown_and_writes_nothing(self, gateway: InProcessGateway) -> None:
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

    def test_nothing_is_said_when_there_is_nothing(self, gateway: InProcessGateway) -> None:
        recalling(gateway).answers = []
        assert ask(gateway, "/memory search boiler").startswith("Nothing was found.")
        assert "Say what to look for" in ask(gateway, "/memory search")

    def test_without_recall_it_says_so(self, gateway: InProcessGateway) -> None:
        assert "recall is off" in ask(gateway, "/memory search boiler")
