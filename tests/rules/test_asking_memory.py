"""`/memory`: what is kept in mind, what an answer rested on, and what is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from everhold.core.entries import Noted, Thought
from everhold.flow.memo import reason
from everhold.ports.memory import Found, Note, Query
from everhold.testing.fakes import FakeProvider
from everhold.testing.house import House

from .noting import Finding, add, asked_for, furnish, shown


class Slow(FakeProvider):
    async def find(self, query: Query) -> Sequence[Found]:
        await asyncio.sleep(60)
        return ()


def recalling(house: House, *, tokens: int = 1_700) -> Finding:
    finding = Finding()
    house.furniture.memories = {"a": finding, "late": Slow()}
    house.furniture.settings.update(recalls=("a", "late"), recall_seconds=0.5, recall_tokens=tokens)
    return finding


def ask(house: House, text: str = "/memory why", **more: object) -> str:
    house.say(text, rest=False, **more)
    house.tick(1)
    return house.heard_back()[-1]


class TestWhy:
    def test_it_tells_what_was_recalled_from_where_and_what_was_left_out(self, house: House) -> None:
        finding = recalling(house, tokens=40)
        furnish(house)
        first = house.say("the boiler was repaired in May", rest=False)
        house.tick(1)
        house.say(asked_for(add("likes tea")), rest=False)
        house.tick(1)
        house.say("/new", rest=False)
        house.tick(1)
        finding.answers = [
            Found(text="the boiler was repaired in May", session=first.session, seq=first.seq, person="ada", at=5.0),
            Found(text="the boiler was repaired in may!", person="bob"),
            Found(text="a long story " * 40, session="elsewhere", seq=7, person="ada"),
        ]
        house.say("when was the boiler repaired?", rest=False)
        house.tick(1)
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

    def test_it_is_recorded_with_the_turn_and_outlives_the_process(self, house: House) -> None:
        recalling(house).answers = [Found(text="known from afar", person="ada")]
        furnish(house)
        session = house.say("hello", rest=False).session
        house.tick(2)
        assert all(body.why for body in house.bodies(session, Thought))
        house.crash()
        house.start()
        furnish(house)
        assert "“known from afar”" in ask(house)

    def test_it_tells_those_who_were_not_there_nothing(self, house: House) -> None:
        recalling(house).answers = [Found(text="known from afar", person="ada")]
        furnish(house)
        session = house.say("hello", rest=False).session
        house.tick(2)
        stored = house.run(house.store.get_session(session))
        assert house.run(reason(house.store, stored, present=("person:ada",))) is not None
        assert house.run(reason(house.store, stored, present=("person:ada", "person:bob"))) is None
        assert house.run(reason(house.store, stored, present=())) is None

    def test_what_was_erased_since_is_not_told_again(self, house: House) -> None:
        finding = recalling(house)
        furnish(house)
        first = house.say("the key is under the mat", chat="one", rest=False)
        house.tick(1)
        finding.answers = [Found(text="the key is under the mat", session=first.session, seq=first.seq, person="ada")]
        house.say("where is the key?", chat="two", rest=False)
        house.tick(1)
        assert "mat" in ask(house, chat="two")
        house.run(house.control.erase(first.session, [first.seq]))
        assert "mat" not in ask(house, chat="two")

    def test_an_erasure_takes_the_records_made_since_with_it(self, house: House) -> None:
        recalling(house).answers = [Found(text="known from afar", person="ada")]
        furnish(house)
        first = house.say("hello", rest=False)
        house.tick(2)
        thoughts = house.bodies(first.session, Thought)
        assert all(house.run(house.store.get_blob(it.why)) for it in thoughts)
        house.run(house.control.erase(first.session, [first.seq]))
        assert [house.run(house.store.get_blob(blob)) for it in thoughts for blob in (it.why, it.recall)] == [
            None,
            None,
        ]

    def test_without_any_recall_it_says_so(self, house: House) -> None:
        assert "Nothing was recalled" in ask(house)


class TestNoting:
    def test_a_note_is_the_persons_and_reaches_the_provider(self, house: House) -> None:
        house.furniture.memories = {"a": FakeProvider()}
        furnish(house)
        session = house.say("/memory note the key is under the mat").session
        assert house.heard_back() == ["Noted."]
        (entry,) = [entry for entry in house.log(session) if isinstance(entry.body, Noted)]
        assert entry.author == "person:ada"
        provider = house.furniture.memories["a"]
        assert isinstance(provider, FakeProvider)
        assert [item.text for item in provider.kept[session] if isinstance(item, Note)] == ["the key is under the mat"]
        house.sound()

    def test_nothing_is_not_noted(self, house: House) -> None:
        furnish(house)
        session = house.say("/memory note   ").session
        assert house.bodies(session, Noted) == []
        assert house.heard_back()[-1].startswith("Say what to note")

    def test_it_lists_what_is_kept_in_mind_and_how_to_use_it(self, house: House) -> None:
        furnish(house)
        house.say(asked_for(add("likes tea")))
        house.say("/memory")
        assert "(user): likes tea" in house.heard_back()[-1]
        house.say("/memory", who="bob", chat="bobs")
        assert "tea" not in house.heard_back()[-1]
        house.say("/memory nonsense")
        assert "/memory why" in house.heard_back()[-1]


class TestForgetting:
    def test_a_fact_and_a_note_are_taken_back_and_providers_hear_of_it(self, house: House) -> None:
        house.furniture.memories = {"a": FakeProvider()}
        facts = furnish(house)
        session = house.say(asked_for(add("likes tea"))).session
        house.say("/memory note more about tea")
        house.say("/memory forget tea")
        assert house.heard_back()[-1] == "Taken back:\n- likes tea\n- more about tea"
        assert house.run(facts.holding("main", ("person:ada",))) == []
        house.say("hello")
        assert "| likes tea" not in shown(house)
        provider = house.furniture.memories["a"]
        assert isinstance(provider, FakeProvider)
        got = [(it.action, it.supersedes) for it in provider.kept[session] if isinstance(it, Note)]
        assert [action for action, _ in got] == ["add", "add", "remove", "remove"]
        assert all(old for action, old in got if action == "remove")
        house.say("/memory forget tea")
        assert "nothing that contains that" in house.heard_back()[-1]

    def test_somebody_elses_are_not_even_found(self, house: House) -> None:
        facts = furnish(house)
        house.say(asked_for(add("likes tea")))
        house.say("/memory forget tea", who="bob", chat="bobs")
        assert "nothing that contains that" in house.heard_back()[-1]
        assert len(house.run(facts.holding("main", ("person:ada",)))) == 1

    def test_what_was_noted_lately_is_listed_until_it_is_taken_back(self, house: House) -> None:
        for number in range(7):
            house.say(f"/memory note note number {number}")
        listed = ask(house, "/memory")
        assert [f"note number {number}" in listed for number in range(7)] == [False] * 2 + [True] * 5
        house.say("/memory forget number 6")
        assert "number 6" not in ask(house, "/memory")
        assert "number" not in ask(house, "/memory", who="bob", chat="bobs")


class TestSearch:
    def test_it_finds_what_a_turn_would_be_shown_and_writes_nothing(self, house: House) -> None:
        finding = recalling(house)
        said = house.say("the boiler was repaired in May", rest=False)
        house.tick(1)
        finding.answers = [
            Found(text="the boiler was repaired in May", session=said.session, seq=said.seq, person="ada"),
            Found(text="the boiler is fine", person="ada", kind="reply", author="agent:main"),
        ]
        before = len(house.furniture.model.asked)
        told = ask(house, "/memory search boiler")
        assert told.splitlines() == [
            "Found:",
            f"- a, ada, entry {said.seq} of {said.session}: “the boiler was repaired in May”",
            "- a, reply to ada: “the boiler is fine”",
            "No answer within 0.5 s: late",
        ]
        assert len(house.furniture.model.asked) == before
        assert not [entry for entry in house.log(said.session) if entry.kind == "noted"]

    def test_nothing_is_said_when_there_is_nothing(self, house: House) -> None:
        recalling(house).answers = []
        assert ask(house, "/memory search boiler").startswith("Nothing was found.")
        assert "Say what to look for" in ask(house, "/memory search")

    def test_without_recall_it_says_so(self, house: House) -> None:
        assert "recall is off" in ask(house, "/memory search boiler")
