"""A memory that came later is handed what was said before: once, in order, at a rate, whatever happens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.errors import InvalidRequest, NotFound, Transient
from everhold.ports.memory import Exchange, MemoryNote
from everhold.testing.fakes import FakeMemoryProvider
from everhold.testing.gateway import InProcessGateway

from .memory_tools import add, add_memory_tools, asked_for


def memory(house: InProcessGateway) -> MemoryAdmin:
    return MemoryAdmin(house.control, agents=lambda: ["main"])


def backfill(house: InProcessGateway, **options: Any) -> dict[str, Any]:
    return house.run(memory(house).backfill_memory("late", **options))


def words(provider: FakeMemoryProvider) -> list[str]:
    return [item.heard[0].text for items in provider.kept.values() for item in items if isinstance(item, Exchange)]


def late(house: InProcessGateway) -> FakeMemoryProvider:
    """A memory is attached now."""
    provider = FakeMemoryProvider()
    house.runtimes.memories = {**house.runtimes.memories, "late": provider}
    return provider


def test_what_was_said_before_is_handed_over_once_and_in_order(house: InProcessGateway) -> None:
    for number in range(5):
        house.send_message(f"old {number}")
    provider = late(house)
    house.send_message("new")
    assert words(provider) == ["new"]
    plan = backfill(house)
    assert (plan["items"], plan["sessions"], plan["requests"], plan["begun"]) == (5, 1, 1, False)
    house.run_until_idle()
    assert words(provider) == ["new"]
    backfill(house, really=True)
    house.run_until_idle(60)
    assert words(provider) == ["new", *(f"old {number}" for number in range(5))]
    assert len(provider.writes) == 6
    assert backfill(house, really=True)["items"] == 0
    house.run_until_idle(60)
    assert len(provider.writes) == 6
    house.assert_sound()


def test_a_session_nobody_speaks_in_any_more_is_handed_over_whole(house: InProcessGateway) -> None:
    house.send_message("one", chat="1")
    house.send_message("two", chat="2")
    provider = late(house)
    assert backfill(house, really=True)["sessions"] == 2
    house.run_until_idle(60)
    assert sorted(words(provider)) == ["one", "two"]
    house.send_message("three", chat="1")
    assert sorted(words(provider)) == ["one", "three", "two"]
    assert backfill(house)["items"] == 0


def test_it_takes_its_time(house: InProcessGateway) -> None:
    for number in range(45):
        house.send_message(f"old {number}")
    provider = late(house)
    began = house.clock.now()
    assert backfill(house, really=True, per_minute=60)["minutes"] == 0.8
    house.pass_time(1)
    assert len(words(provider)) == 20
    house.pass_time(17)
    assert len(words(provider)) == 20
    while len(words(provider)) < 45:
        house.pass_time(1)
    assert house.clock.now() - began >= 40
    assert words(provider) == [f"old {number}" for number in range(45)]


def test_only_a_part_if_somebody_says_so(house: InProcessGateway) -> None:
    house.send_message("long ago")
    house.pass_time(1_000)
    middle = house.clock.now()
    house.send_message("then")
    house.pass_time(1_000)
    end = house.clock.now()
    house.send_message("lately")
    provider = late(house)
    backfill(house, since=middle, until=end, really=True)
    house.run_until_idle(60)
    assert words(provider) == ["then"]


def test_what_a_part_left_out_is_handed_over_when_somebody_asks_for_the_rest(house: InProcessGateway) -> None:
    times = []
    for text in ("long ago", "then", "lately"):
        times.append(house.clock.now())
        house.send_message(text)
        house.pass_time(1_000)
    provider = late(house)
    house.send_message("new")
    backfill(house, since=times[2], really=True)
    house.run_until_idle(60)
    backfill(house, since=times[1], until=times[2], really=True)
    house.run_until_idle(60)
    assert words(provider) == ["new", "lately", "then"]
    assert backfill(house, really=True)["items"] == 1
    house.run_until_idle(60)
    assert words(provider) == ["new", "lately", "then", "long ago"]
    assert backfill(house)["items"] == 0
    assert len(provider.writes) == 4
    house.assert_sound()


def test_the_rest_of_a_long_past_goes_once_around_what_is_there_and_through_a_crash(house: InProcessGateway) -> None:
    times = []
    for number in range(70):
        times.append(house.clock.now())
        house.send_message(f"old {number}")
        house.pass_time(10)
    provider = late(house)
    backfill(house, since=times[30], until=times[40], really=True)
    house.run_until_idle(60)
    assert backfill(house, really=True)["items"] == 60
    house.pass_time(5)
    assert len(provider.writes) == 30
    house.crash()
    house.start()
    house.run_until_idle(600)
    assert sorted(words(provider)) == sorted(f"old {number}" for number in range(70))
    assert len(provider.writes) == 70
    house.assert_sound()


def test_a_turn_of_which_nothing_is_left_is_not_counted_for_ever(house: InProcessGateway) -> None:
    session = house.send_message("forget this").session
    house.send_message("keep this")
    provider = late(house)
    house.run(house.control.erase_entries(session, [1, 3, 4]))
    backfill(house, really=True)
    house.run_until_idle(60)
    assert words(provider) == ["keep this"]
    assert backfill(house)["items"] == 0


def test_what_was_undone_or_taken_back_meanwhile_is_passed_over(house: InProcessGateway) -> None:
    add_memory_tools(house)
    house.send_message("hello")
    house.send_message("my pin is 4711")
    house.send_message("/memory note the safe code is 991")
    house.send_message("/memory note the door is green")
    house.send_message(asked_for(add("Ada drives a Saab")))
    house.send_message(
        asked_for(("memory", {"action": "replace", "old_text": "Saab", "content": "Ada drives a Volvo"}))
    )
    house.send_message("undone before")
    house.send_message("/undo")
    provider = late(house)
    house.send_message("new")
    before = backfill(house)
    house.send_message("/undo 4")
    house.send_message("/memory forget safe code")
    after = backfill(house, really=True)
    assert (before["items"], after["items"]) == (7, 3)
    assert after["tokens"] < before["tokens"]
    handed = len(provider.writes)
    house.run_until_idle(60)
    assert len(provider.writes) - handed == after["items"]
    past = [item for items in provider.kept.values() for item in items][handed:]
    assert [item.heard[0].text for item in past if isinstance(item, Exchange)] == ["hello"]
    assert [item.text for item in past if isinstance(item, MemoryNote)] == ["the door is green", "Ada drives a Volvo"]
    assert backfill(house)["items"] == 0
    house.assert_sound()


def test_it_goes_on_after_a_crash_and_an_outage(house: InProcessGateway) -> None:
    for number in range(45):
        house.send_message(f"old {number}")
    provider = late(house)
    provider.faults.succeed_next()
    provider.faults.fail_next(Transient("down"), times=6)
    backfill(house, really=True)
    house.pass_time(25)
    assert len(words(provider)) == 20
    house.crash()
    house.start()
    house.send_message("new")
    house.run_until_idle(600)
    house.run_until_idle(600)
    assert sorted(words(provider)) == sorted(["new", *(f"old {number}" for number in range(45))])
    assert len(provider.writes) == 46
    house.assert_sound()


def test_it_says_what_makes_no_sense(house: InProcessGateway) -> None:
    house.send_message("hello")
    with pytest.raises(NotFound, match="nowhere"):
        house.run(memory(house).backfill_memory("nowhere"))
    late(house)
    with pytest.raises(InvalidRequest):
        backfill(house, per_minute=0)
