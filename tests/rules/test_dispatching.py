"""Due lanes are looked for when there may be some, and then at once; never only to find nothing."""

from __future__ import annotations

from typing import Any

import pytest

from everhold.errors import StoreBusy, StoreError, StoreFull, Transient
from everhold.ports.store import Step
from everhold.testing.house import House

from .conftest import HeldModel, Trouble


def looks(house: House) -> list[dict[str, Any]]:
    """What is asked for due lanes from here on by whoever hands out work; nobody looks without being told to."""
    assert house.process is not None
    process, asked = house.process, list[dict[str, Any]]()
    process.supervisor.poll = 1e6
    house.say("wake up")
    real = process.disk.next_due

    async def next_due(**options: Any) -> float | None:
        if "skip" in options:
            asked.append(options)
        return await real(**options)

    process.disk.next_due = next_due  # type: ignore[method-assign]
    return asked


def test_a_turn_that_leaves_nothing_behind_has_nobody_look(house: House) -> None:
    asked = looks(house)
    house.say("hello")
    house.tick(60.0)
    assert len(house.heard_back()) == 2
    assert asked == []


def test_what_came_during_a_turn_is_taken_up_at_its_end(house: House) -> None:
    house.furniture.model = held = HeldModel()
    held.free = True
    looks(house)
    held.free = False
    house.say("one", rest=False)
    house.tick()
    house.say("two", rest=False)
    house.tick()
    held.free = True
    house.tick(5.0)
    assert len(house.heard_back()) == 3


def test_whoever_waits_for_a_place_gets_it_when_one_is_free(house: House) -> None:
    house.furniture.model = held = HeldModel()
    held.free = True
    looks(house)
    assert house.process is not None
    house.process.supervisor.most_per_reader = 1
    held.free = False
    for chat in ("a", "b", "c"):
        house.say("hello", chat=chat, rest=False)
    house.tick(1.0)
    assert len(held.asked) == 2
    held.free = True
    house.tick(5.0)
    assert len(house.heard_back()) == 4


def test_what_could_not_be_delivered_is_tried_again_in_time(house: House) -> None:
    looks(house)
    house.platform.faults.fail(Transient("later"), times=2)
    house.say("hello", rest=False)
    house.tick(120.0)
    assert len(house.heard_back()) == 2


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
def test_once_there_is_room_everything_goes_on_within_seconds(house: House, error: StoreError) -> None:
    """Fault tests 5 and 6: whoever hands out work, keeps leases or works waits for the store, however long."""
    assert house.process is not None
    house.process.supervisor.most_per_reader = 1  # so that somebody has to be looked for
    house.furniture.model = held = HeldModel()
    house.say("one", chat="a", rest=False)
    house.say("two", chat="b", rest=False)
    house.tick()
    trouble = Trouble(house, error).with_all("claim", "renew", "hasten").with_commits(*(set(Step) - {Step.ACCEPT}))
    held.free = True
    house.tick(600)
    assert house.heard_back() == []
    trouble.over = True
    house.tick(5)
    assert sorted(house.heard_back()) == ["at last", "at last"]
    house.sound()


@pytest.mark.parametrize("jump", [3_600.0, -3_600.0])
def test_a_clock_that_is_set_gives_nobody_else_what_is_worked_on_here(house: House, jump: float) -> None:
    assert house.process is not None
    house.furniture.model = held = HeldModel()
    house.say("hello", rest=False)
    house.tick()
    house.clock.skew += jump
    house.tick(house.process.supervisor.poll)
    assert house.run(house.store.claim(owner="peer", at=house.clock.now, lease=60.0, limit=9)) == []
    held.free = True
    house.rest(5)
    assert house.heard_back() == ["at last"]
