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


def recalling(house: InProcessGateway, *, tokens: int = 1_700) -> FindingProvider:
    finding = FindingProvider()
    house.runtimes.memories = {"a": finding, "late": SlowProvider()}
    house.runtimes.settings.update(recalls=("a", "late"), recall_seconds=0.5, recall_tokens=tokens)
    return finding


def ask(house: InProcessGateway, text: str = "/memory why", **more: object) -> str:
    house.send_message(text, rest=False, **more)
    house.pass_time(1)
    return house.list_shown_texts()[-1]


class TestWhy:
    def test_it_tells_what_was_recalled_from_where_and_what_was_left_out(self, house: InProcessGateway) -> None:
        finding = recalling(house, tokens=40)
        add_memory_tools(house)
        first = house.send_message("the boiler was repaired in May", rest=False)
        house.pass_time(1)
        house.send_message(asked_for(add("likes tea")), rest=False)
        house.pass_time(1)
        house.send_message("/new", rest=False)
        house.pass_time(1)
        finding.answers = [
            MemoryHit(
                text="the boiler was repaired in May", session=first.session, seq=first.seq, person="ada", at=5.0
            ),
            MemoryHit(text="the boiler was repaired in may!", person="bob"),
            MemoryHit(text="a long story " * 40, session="elsewhere", seq=7, person="ada"),
        ]
        house.send_message("when was the boiler repaired?", rest=False)
        house.pass_time(1)
        said = ask(house)
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

    def test_it_is_recorded_with_the_turn_and_outlives_the_process(self, house: InProcessGateway) -> None:
        recalling(house).answers = [MemoryHit(text="known from afar", person="ada")]
        add_memory_tools(house)
        session = house.send_message("hello", rest=False).session
        house.pass_time(2)
        assert all(body.why for body in house.read_bodies(session, Thought))
        house.crash()
        house.start()
        add_memory_tools(house)
        assert "“known from afar”" in ask(house)

    def test_it_tells_those_who_were_not_there_nothing(self, house: InProcessGateway) -> None:
        recalling(house).answers = [MemoryHit(text="known from afar", person="ada")]
        add_memory_tools(house)
        session = house.send_message("hello", rest=False).session
        house.pass_time(2)
        stored = house.run(house.store.get_session(session))
        assert house.run(find_recall_record(house.store, stored, present=("person:ada",))) is not None
        assert house.run(find_recall_record(house.store, stored, present=("person:ada", "person:bob"))) is None
        assert house.run(find_recall_record(house.store, stored, present=())) is None

    def test_what_was_erased_since_is_not_told_again(self, house: InProcessGateway) -> None:
        finding = recalling(house)
        add_memory_tools(house)
        first = house.send_message("the key is under the mat", chat="one", rest=False)
        house.pass_time(1)
        finding.answers = [
            MemoryHit(text="the key is under the mat", session=first.session, seq=first.seq, person="ada")
        ]
        house.send_message("where is the key?", chat="two", rest=False)
        house.pass_time(1)
        assert "mat" in ask(house, chat="two")
        house.run(house.control.erase_entries(first.session, [first.seq]))
        assert "mat" not in ask(house, chat="two")

    def test_an_erasure_takes_the_records_made_since_with_it(self, house: InProcessGateway) -> None:
        recalling(house).answers = [MemoryHit(text="known from afar", person="ada")]
        add_memory_tools(house)
        first = house.send_message("hello", rest=False)
        house.pass_time(2)
        thoughts = house.read_bodies(first.session, Thought)
        assert all(house.run(house.store.get_blob(it.why)) for it in thoughts)
        house.run(house.control.erase_entries(first.session, [first.seq]))
        assert [house.run(house.store.get_blob(blob)) for it in thoughts for blob in (it.why, it.recall)] == [
            None,
            None,
        ]

    def test_without_any_recall_it_says_so(self, house: InProcessGateway) -> None:
        assert "Nothing was recalled" in ask(house)


class TestNoting:
    def test_a_note_is_the_persons_and_reaches_the_provider(self, house: InProcessGateway) -> None:
        house.runtimes.memories = {"a": FakeMemoryProvider()}
        add_memory_tools(house)
        session = house.send_message("/memory note the key is under the mat").session
        assert house.list_shown_texts() == ["Noted."]
        (entry,) = [entry for entry in house.read_log(session) if isinstance(entry.body, Noted)]
        assert entry.author == "person:ada"
        provider = house.runtimes.memories["a"]
        assert isinstance(provider, FakeMemoryProvider)
        assert [item.text for item in provider.kept[session] if isinstance(item, MemoryNote)] == [
            "the key is under the mat"
        ]
        house.assert_sound()

    def test_nothing_is_not_noted(self, house: InProcessGateway) -> None:
        add_memory_tools(house)
        session = house.send_message("/memory note   ").session
        assert house.read_bodies(session, Noted) == []
        assert house.list_shown_texts()[-1].startswith("Say what to note")

    def test_it_lists_what_is_kept_in_mind_and_how_to_use_it(self, house: InProcessGateway) -> None:
        add_memory_tools(house)
        house.send_message(asked_for(add("likes tea")))
        house.send_message("/memory")
        assert "(user): likes tea" in house.list_shown_texts()[-1]
        house.send_message("/memory", who="bob", chat="bobs")
        assert "tea" not in house.list_shown_texts()[-1]
        house.send_message("/memory nonsense")
        assert "/memory why" in house.list_shown_texts()[-1]


class TestForgetting:
    def test_a_fact_and_a_note_are_taken_back_and_providers_hear_of_it(self, house: InProcessGateway) -> None:
        house.runtimes.memories = {"a": FakeMemoryProvider()}
        facts = add_memory_tools(house)
        session = house.send_message(asked_for(add("likes tea"))).session
        house.send_message("/memory note more about tea")
        house.send_message("/memory forget tea")
        assert house.list_shown_texts()[-1] == "Taken back:\n- likes tea\n- more about tea"
        assert house.run(facts.list_valid("main", ("person:ada",))) == []
        house.send_message("hello")
        assert "| likes tea" not in shown(house)
        provider = house.runtimes.memories["a"]
        assert isinstance(provider, FakeMemoryProvider)
        got = [(it.action, it.supersedes) for it in provider.kept[session] if isinstance(it, MemoryNote)]
        assert [action for action, _ in got] == ["add", "add", "remove", "remove"]
        assert all(old for action, old in got if action == "remove")
        house.send_message("/memory forget tea")
        assert "nothing that contains that" in house.list_shown_texts()[-1]

    def test_somebody_elses_are_not_even_found(self, house: InProcessGateway) -> None:
        facts = add_memory_tools(house)
        house.send_message(asked_for(add("likes tea")))
        house.send_message("/memory forget tea", who="bob", chat="bobs")
        assert "nothing that contains that" in house.list_shown_texts()[-1]
        assert len(house.run(facts.list_valid("main", ("person:ada",)))) == 1

    def test_what_was_noted_lately_is_listed_until_it_is_taken_back(self, house: InProcessGateway) -> None:
        for number in range(7):
            house.send_message(f"/memory note note number {number}")
        listed = ask(house, "/memory")
        assert [f"note number {number}" in listed for number in range(7)] == [False] * 2 + [True] * 5
        house.send_message("/memory forget number 6")
        assert "number 6" not in ask(house, "/memory")
        assert "number" not in ask(house, "/memory", who="bob", chat="bobs")


class TestSearch:
    def test_it_finds_what_a_turn_would_be_shown_and_writes_nothing(self, house: InProcessGateway) -> None:
        finding = recalling(house)
        said = house.send_message("the boiler was repaired in May", rest=False)
        house.pass_time(1)
        finding.answers = [
            MemoryHit(text="the boiler was repaired in May", session=said.session, seq=said.seq, person="ada"),
            MemoryHit(text="the boiler is fine", person="ada", kind="reply", author="agent:main"),
        ]
        before = len(house.runtimes.model.requests)
        told = ask(house, "/memory search boiler")
        assert told.splitlines() == [
            "Found:",
            f"- a, ada, entry {said.seq} of {said.session}: “the boiler was repaired in May”",
            "- a, reply to ada: “the boiler is fine”",
            "No answer within 0.5 s: late",
        ]
        assert len(house.runtimes.model.requests) == before
        assert not [entry for entry in house.read_log(said.session) if entry.kind == "noted"]

    def test_nothing_is_said_when_there_is_nothing(self, house: InProcessGateway) -> None:
        recalling(house).answers = []
        assert ask(house, "/memory search boiler").startswith("Nothing was found.")
        assert "Say what to look for" in ask(house, "/memory search")

    def test_without_recall_it_says_so(self, house: InProcessGateway) -> None:
        assert "recall is off" in ask(house, "/memory search boiler")
