"""A memory that came later is handed what was said before: once, in order, at a rate, whatever happens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from everhold.errors import Misuse, NotFound, Transient
from everhold.memory import Memory
from everhold.ports.memory import Exchange, Note
from everhold.testing.fakes import FakeProvider
from everhold.testing.house import House

from .noting import add, asked_for, furnish


def memory(house: House) -> Memory:
    return Memory(house.control, agents=lambda: ["main"])


def backfill(house: House, **options: Any) -> dict[str, Any]:
    return house.run(memory(house).backfill("late", **options))


def words(provider: FakeProvider) -> list[str]:
    return [item.heard[0].text for items in provider.kept.values() for item in items if isinstance(item, Exchange)]


def late(house: House) -> FakeProvider:
    """A memory is attached now."""
    provider = FakeProvider()
    house.furniture.memories = {**house.furniture.memories, "late": provider}
    return provider


def test_what_was_said_before_is_handed_over_once_and_in_order(house: House) -> None:
    for number in range(5):
        house.say(f"old {number}")
    provider = late(house)
    house.say("new")
    assert words(provider) == ["new"]
    plan = backfill(house)
    assert (plan["items"], plan["sessions"], plan["requests"], plan["begun"]) == (5, 1, 1, False)
    house.rest()
    assert words(provider) == ["new"]
    backfill(house, really=True)
    house.rest(60)
    assert words(provider) == ["new", *(f"old {number}" for number in range(5))]
    assert len(provider.writes) == 6
    assert backfill(house, really=True)["items"] == 0
    house.rest(60)
    assert len(provider.writes) == 6
    house.sound()


def test_a_session_nobody_speaks_in_any_more_is_handed_over_whole(house: House) -> None:
    house.say("one", chat="1")
    house.say("two", chat="2")
    provider = late(house)
    assert backfill(house, really=True)["sessions"] == 2
    house.rest(60)
    assert sorted(words(provider)) == ["one", "two"]
    house.say("three", chat="1")
    assert sorted(words(provider)) == ["one", "three", "two"]
    assert backfill(house)["items"] == 0


def test_it_takes_its_time(house: House) -> None:
    for number in range(45):
        house.say(f"old {number}")
    provider = late(house)
    began = house.clock.now()
    assert backfill(house, really=True, per_minute=60)["minutes"] == 0.8
    house.tick(1)
    assert len(words(provider)) == 20
    house.tick(17)
    assert len(words(provider)) == 20
    while len(words(provider)) < 45:
        house.tick(1)
    assert house.clock.now() - began >= 40
    assert words(provider) == [f"old {number}" for number in range(45)]


def test_only_a_part_if_somebody_says_so(house: House) -> None:
    house.say("long ago")
    house.tick(1_000)
    middle = house.clock.now()
    house.say("then")
    house.tick(1_000)
    end = house.clock.now()
    house.say("lately")
    provider = late(house)
    backfill(house, since=middle, until=end, really=True)
    house.rest(60)
    assert words(provider) == ["then"]


def test_what_a_part_left_out_is_handed_over_when_somebody_asks_for_the_rest(house: House) -> None:
    times = []
    for text in ("long ago", "then", "lately"):
        times.append(house.clock.now())
        house.say(text)
        house.tick(1_000)
    provider = late(house)
    house.say("new")
    backfill(house, since=times[2], really=True)
    house.rest(60)
    backfill(house, since=times[1], until=times[2], really=True)
    house.rest(60)
    assert words(provider) == ["new", "lately", "then"]
    assert backfill(house, really=True)["items"] == 1
    house.rest(60)
    assert words(provider) == ["new", "lately", "then", "long ago"]
    assert backfill(house)["items"] == 0
    assert len(provider.writes) == 4
    house.sound()


def test_the_rest_of_a_long_past_goes_once_around_what_is_there_and_through_a_crash(house: House) -> None:
    times = []
    for number in range(70):
        times.append(house.clock.now())
        house.say(f"old {number}")
        house.tick(10)
    provider = late(house)
    backfill(house, since=times[30], until=times[40], really=True)
    house.rest(60)
    assert backfill(house, really=True)["items"] == 60
    house.tick(5)
    assert len(provider.writes) == 30
    house.crash()
    house.start()
    house.rest(600)
    assert sorted(words(provider)) == sorted(f"old {number}" for number in range(70))
    assert len(provider.writes) == 70
    house.sound()


def test_a_turn_of_which_nothing_is_left_is_not_counted_for_ever(house: House) -> None:
    session = house.say("forget this").session
    house.say("keep this")
    provider = late(house)
    house.run(house.control.erase(session, [1, 3, 4]))
    backfill(house, really=True)
    house.rest(60)
    assert words(provider) == ["keep this"]
    assert backfill(house)["items"] == 0


def test_what_was_undone_or_taken_back_meanwhile_is_passed_over(house: House) -> None:
    furnish(house)
    house.say("hello")
    house.say("my pin is 4711")
    house.say("/memory note the safe code is 991")
    house.say("/memory note the door is green")
    house.say(asked_for(add("Ada drives a Saab")))
    house.say(asked_for(("memory", {"action": "replace", "old_text": "Saab", "content": "Ada drives a Volvo"})))
    house.say("undone before")
    house.say("/undo")
    provider = late(house)
    house.say("new")
    before = backfill(house)
    house.say("/undo 4")
    house.say("/memory forget safe code")
    after = backfill(house, really=True)
    assert (before["items"], after["items"]) == (7, 3)
    assert after["tokens"] < before["tokens"]
    handed = len(provider.writes)
    house.rest(60)
    assert len(provider.writes) - handed == after["items"]
    past = [item for items in provider.kept.values() for item in items][handed:]
    assert [item.heard[0].text for item in past if isinstance(item, Exchange)] == ["hello"]
    assert [item.text for item in past if isinstance(item, Note)] == ["the door is green", "Ada drives a Volvo"]
    assert backfill(house)["items"] == 0
    house.sound()


def test_it_goes_on_after_a_crash_and_an_outage(house: House) -> None:
    for number in range(45):
        house.say(f"old {number}")
    provider = late(house)
    provider.faults.work()
    provider.faults.fail(Transient("down"), times=6)
    backfill(house, really=True)
    house.tick(25)
    assert len(words(provider)) == 20
    house.crash()
    house.start()
    house.say("new")
    house.rest(600)
    house.rest(600)
    assert sorted(words(provider)) == sorted(["new", *(f"old {number}" for number in range(45))])
    assert len(provider.writes) == 46
    house.sound()


def test_it_says_what_makes_no_sense(house: House) -> None:
    house.say("hello")
    with pytest.raises(NotFound, match="nowhere"):
        house.run(memory(house).backfill("nowhere"))
    late(house)
    with pytest.raises(Misuse):
        backfill(house, per_minute=0)
