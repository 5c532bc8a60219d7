"""A memory that fails is loud: in the status, in the chat once, and before the model. And it costs nobody anything."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from everhold.core.entries import Notified
from everhold.errors import InDoubt, Refused, Transient
from everhold.flow.pulse import LONGEST_REST_SECONDS, MOST_FAILURES
from everhold.memory import Memory
from everhold.ports.memory import Batch, Found, Query
from everhold.ports.platform import Delivery
from everhold.testing.fakes import FakeProvider, Faults, wording
from everhold.testing.house import House


class Asked(FakeProvider):
    """Counts how often it is asked to find something; fails at that while it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.down = False

    async def find(self, query: Query) -> Sequence[Found]:
        self.asked += 1
        if self.down:
            raise Transient("no route")
        return []


@pytest.fixture
def provider(house: House) -> Asked:
    provider = Asked()
    house.furniture.memories["a"] = provider
    house.furniture.settings |= {"memory_notices": True, "recalls": ("a",), "recall_seconds": 0.5}
    house.tick(1)
    return provider


def down(provider: Asked) -> None:
    provider.faults.fail(Transient("no route"), times=1_000)


def back(provider: Asked) -> None:
    provider.faults = Faults()


def memory(house: House) -> dict[str, Any]:
    (found,) = house.run(house.control.status())["memories"]
    assert isinstance(found, dict)
    return found


def notices(house: House, session: str) -> list[str]:
    return [told.text for told in house.bodies(session, Notified) if told.about == "memory"]


def test_the_status_says_how_far_behind_a_memory_is_since_when_and_why(house: House, provider: Asked) -> None:
    house.say("one")
    well = memory(house)
    assert (well["state"], well["lag"], well["oldest"], well["error"]) == ("well", 0, None, "")
    assert well["stored"] is not None
    assert well["found"] is not None
    down(provider)
    said = house.clock.now()
    house.say("two", rest=False)
    house.tick(30)
    house.say("three", rest=False)
    house.tick(1)
    ill = memory(house)
    assert (ill["state"], ill["lag"], ill["error"]) == ("failing", 2, "no route")
    assert said <= ill["oldest"] < said + 1
    assert said <= ill["since"] < said + 1
    assert ill["stored"] == well["stored"]
    assert ill["attempts"] >= 3
    assert ill["again"] > house.clock.now()
    back(provider)
    house.rest(300)
    assert (memory(house)["state"], memory(house)["lag"]) == ("well", 0)
    assert memory(house)["stored"] > well["stored"]


def test_what_is_known_of_an_outage_survives_a_restart(house: House, provider: Asked) -> None:
    down(provider)
    house.say("one", rest=False)
    house.tick(30)
    house.crash()
    house.furniture._pulses.clear()  # the next process knows nothing
    house.furniture._known.clear()
    house.start()
    ill = memory(house)
    assert (ill["state"], ill["lag"], ill["error"]) == ("failing", 1, "no route")


def test_the_chat_hears_once_in_every_outage_that_lasts(house: House, provider: Asked) -> None:
    provider.faults.fail(Transient("a hiccup"), times=2)
    session = house.say("one").session
    house.rest(30)
    assert not notices(house, session)
    for outage in (1, 2):
        down(provider)
        for word in ("two", "three", "four"):
            house.say(word, rest=False)
            house.tick(600)
        assert len(notices(house, session)) == outage
        back(provider)
        house.rest(300)
    assert "Nothing is lost" in notices(house, session)[0]
    assert house.heard_back().count(notices(house, session)[0]) == 2
    assert len(provider.kept[session]) == 7
    house.sound()


class Unwell(FakeProvider):
    """Takes every write, says that something went wrong, and has kept nothing."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery, deadline=10.0)
        self.sends: list[float] = []
        self.well = False

    async def store(self, batch: Batch) -> Mapping[str, str]:
        self.sends.append(asyncio.get_running_loop().time())
        if not self.well:
            raise InDoubt("503")
        return await super().store(batch)


@pytest.mark.parametrize("delivery", [Delivery.KEYED, Delivery.UPSERT, Delivery.PROBE])
def test_one_that_never_says_whether_it_kept_something_is_asked_less_and_less_and_is_loud(
    house: House, delivery: Delivery
) -> None:
    provider = Unwell(delivery)
    house.furniture.memories["a"] = provider
    house.furniture.settings["memory_notices"] = True
    said = house.clock.now()
    session = house.say("one", rest=False).session
    house.tick(3_600)
    waits = [after - before for before, after in itertools.pairwise(provider.sends)]
    assert max(waits) > 150, "as with any outage"
    assert len(provider.sends) < 40
    assert len(notices(house, session)) == 1
    ill = memory(house)
    assert (ill["state"], ill["lag"], ill["error"]) == ("failing", 1, "503")
    (row,) = house.run(Memory(house.control, agents=lambda: ["main"]).status())["memories"]
    assert said <= row["since"] < said + 1
    provider.well = True
    house.rest(400)
    assert [wording(item).partition(" ")[0] for item in provider.kept[session]] == ["one"]
    house.sound()


def test_a_chat_that_wants_no_notices_gets_none(house: House, provider: Asked) -> None:
    house.furniture.settings["memory_notices"] = False
    down(provider)
    session = house.say("one", rest=False).session
    house.tick(600)
    assert not notices(house, session)


def test_the_outage_is_in_the_log_once_and_its_end_too(house: House, provider: Asked) -> None:
    down(provider)
    house.say("one", rest=False)
    house.tick(600)
    assert [line["error"] for line in house.diary.of("memory.failing")] == ["no route"]
    back(provider)
    house.rest(300)
    (well,) = house.diary.of("memory.well")
    assert int(str(well["failures"])) > 3


def test_the_model_is_told_that_memory_is_incomplete(house: House, provider: Asked) -> None:
    provider.down = True
    house.say("one", rest=False)
    house.tick(5)
    shown = "\n".join(message.text for message in house.furniture.model.asked[-1].messages)
    assert "Memory is incomplete right now: a" in shown
    assert "incomplete" not in house.furniture.model.asked[-1].system  # the prefix stays as it is
    provider.down = False
    house.rest(LONGEST_REST_SECONDS)
    house.say("two")
    assert "incomplete" not in house.furniture.model.asked[-1].messages[-1].text


def test_the_model_is_told_that_what_is_said_does_not_arrive(house: House, provider: Asked) -> None:
    down(provider)
    house.say("one", rest=False)
    house.tick(5)
    house.say("two", rest=False)
    house.tick(5)
    shown = "\n".join(message.text for message in house.furniture.model.asked[-1].messages)
    assert "Memory is behind right now: a takes nothing in" in shown
    back(provider)
    house.rest(300)
    house.say("three")
    assert "behind" not in house.furniture.model.asked[-1].messages[-1].text


def test_one_that_fails_to_find_again_and_again_is_left_alone_for_a_while(house: House, provider: Asked) -> None:
    provider.down = True
    for _ in range(MOST_FAILURES):
        house.say("hello")
    assert provider.asked == MOST_FAILURES
    house.say("hello")
    assert provider.asked == MOST_FAILURES
    assert 0 < memory(house)["rests"] <= LONGEST_REST_SECONDS
    provider.down = False
    house.rest(LONGEST_REST_SECONDS)
    house.say("hello")
    assert provider.asked == MOST_FAILURES + 1
    assert memory(house)["rests"] == 0
    house.say("hello")
    assert provider.asked == MOST_FAILURES + 2


def test_a_memory_that_is_left_alone_is_tried_now_and_then(house: House, provider: Asked) -> None:
    provider.down = True
    for _ in range(600):
        house.say("hello")
        house.tick(1)
    assert 10 < provider.asked < 30  # ten minutes, at most a minute between two tries


def test_what_a_provider_refuses_is_parked_and_no_outage(house: House, provider: Asked) -> None:
    provider.faults.fail(Refused("too long"))
    house.say("one")
    house.say("two")
    assert memory(house)["state"] == "well"
    (parked,) = house.run(house.store.list_dead_letters())
    assert parked.reason == "too long"


def test_status_in_the_chat_names_what_is_not_well(house: House, provider: Asked) -> None:
    house.say("/status")
    assert "memory" not in house.heard_back()[-1]
    down(provider)
    house.say("one", rest=False)
    house.tick(2)
    house.say("/status", rest=False)
    house.tick(0.5)
    assert any("memory a is failing, 1 not yet there" in text for text in house.heard_back())
