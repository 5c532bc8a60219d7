"""Whenever a memory is written, an outage, a crash or a lie costs nothing: every `write`, every way to stay safe."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from everhold.core.entries import Changed, MemoryNameSet
from everhold.core.pace import REST_SECONDS, pace_of
from everhold.errors import InDoubt, Transient
from everhold.ports.memory import Batch, Found, Query
from everhold.ports.platform import Delivery
from everhold.testing.fakes import FakeProvider, wording
from everhold.testing.house import House

DEADLINE = 5.0
writes = pytest.mark.parametrize("write", ["turn", "async", "session", 3])
sure = pytest.mark.parametrize("delivery", [Delivery.KEYED, Delivery.UPSERT, Delivery.PROBE])


class Unreliable(FakeProvider):
    """A service that can be away, and whose next writes go wrong in a way of its choosing."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery, deadline=DEADLINE, visible_after=1.0)
        self.down = False
        self.troubles: list[str] = []
        self.calls = 0

    async def store(self, batch: Batch) -> Mapping[str, str]:
        self.calls += 1
        if self.down:
            raise Transient("no route")
        trouble = self.troubles.pop(0) if self.troubles else ""
        match trouble:
            case "lie" | "reset":  # what it said it kept was looked for, or the request never arrived
                raise InDoubt(trouble)
            case "late":  # the connection broke; it is carried out all the same, just before it may not be any more
                asyncio.get_running_loop().call_later(DEADLINE - 0.1, self._keep, batch)
                raise InDoubt(trouble)
        self._keep(batch)
        if trouble == "503":
            raise InDoubt(trouble)
        return {item.key: f"doc-{item.key}" for item in batch.items}

    def _keep(self, batch: Batch) -> None:
        for item in batch.items:
            self.receive(batch.name, item)

    async def find(self, query: Query) -> Sequence[Found]:
        return []

    def words(self) -> list[str]:
        return [wording(item).partition(" ")[0] for items in self.kept.values() for item in items]


def attached(house: House, delivery: Delivery, write: str | int) -> Unreliable:
    provider = Unreliable(delivery)
    house.furniture.memories["a"] = provider
    house.furniture.settings["paces"] = {"a": pace_of(write)}
    house.tick(1)  # what was said up to the start is not held back
    return provider


def settle(house: House) -> None:
    """Nothing is held back any more, and whatever was waited for has come."""
    house.rest(REST_SECONDS + 60)


@sure
@writes
def test_an_hour_s_outage_loses_doubles_and_disorders_nothing(
    house: House, write: str | int, delivery: Delivery
) -> None:
    provider = attached(house, delivery, write)
    house.say("before")
    settle(house)
    provider.down = True
    words = [f"w{number}" for number in range(12)]
    for word in words:
        house.say(word, rest=False)
        house.tick(300)
    assert provider.words() == ["before"]
    provider.down = False
    settle(house)
    assert provider.words() == ["before", *words]
    assert provider.calls < 100, "an outage is waited out, not hammered at"
    house.sound()


@sure
@writes
@pytest.mark.parametrize("trouble", ["503", "late", "lie", "reset"])
def test_whatever_became_of_an_answer_it_is_there_once(
    house: House, write: str | int, delivery: Delivery, trouble: str
) -> None:
    provider = attached(house, delivery, write)
    provider.troubles = [trouble, "", trouble]
    for word in ("one", "two", "three", "four"):
        house.say(word)
    settle(house)
    house.say("five")
    settle(house)
    assert provider.words() == ["one", "two", "three", "four", "five"]
    assert not house.run(house.store.list_dead_letters())
    house.sound()


@sure
@writes
def test_a_crash_between_sending_and_hearing_back(house: House, write: str | int, delivery: Delivery) -> None:
    provider = attached(house, delivery, write)
    provider.troubles = ["503"]
    for word in ("one", "two"):
        house.say(word)
    house.say("/new", rest=False)  # nothing is held back: it leaves, and nobody is there to hear what became of it
    house.tick(0.5)
    assert provider.words() == ["one", "two"][: len(provider.words())] != []
    house.crash()
    house.start()
    house.say("three")
    settle(house)
    assert provider.words() == ["one", "two", "three"]
    house.sound()


@writes
def test_nothing_but_talk_is_filed_and_all_of_it_under_one_name(house: House, write: str | int) -> None:
    provider = attached(house, Delivery.KEYED, write)
    house.say("/status")
    settle(house)
    assert (provider.calls, provider.kept) == (0, {}), "an empty batch sends nothing"
    session = house.say("one").session
    for command in ("/compress", "/new", "/title Tea", "/whoami"):
        house.say(command)
    settle(house)
    house.crash()
    house.start()
    settle(house)
    house.say("two")
    settle(house)
    named = [it.change for it in house.bodies(session, Changed) if isinstance(it.change, MemoryNameSet)]
    assert [it.name for it in named] == list(provider.kept)
    assert provider.words() == ["one", "two"]


@writes
def test_two_people_in_one_thread_keep_their_own_words(house: House, write: str | int) -> None:
    provider = attached(house, Delivery.PROBE, write)
    said = [(who, f"w{number}") for number, who in enumerate(["ada", "bob"] * 4)]
    for number, (who, word) in enumerate(said):
        house.say(word, who=who, kind="thread")
        if number == 4:
            house.crash()
            house.start()
    settle(house)
    heard = [
        (utterance.stamp.person, utterance.text)
        for items in provider.kept.values()
        for item in items
        for utterance in item.heard  # type: ignore[union-attr]
    ]
    assert heard == said
    assert len(provider.kept) == 1
    house.sound()
