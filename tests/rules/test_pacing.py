"""`write: N` and its like decide when a memory is called, and nothing else: no word is lost, doubled or misfiled."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from everhold.core.entries import Call, Noted, Stamp
from everhold.core.pace import GATHER_SECONDS, REST_SECONDS, pace_of
from everhold.errors import Transient
from everhold.ports.memory import Batch
from everhold.ports.model import Answer
from everhold.ports.tool import Effect, Result
from everhold.testing.fakes import FakeProvider, FakeTool, ScriptedModel, wording
from everhold.testing.house import House


class Batched(FakeProvider):
    """Remembers what came together."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.names: list[str] = []

    async def store(self, batch: Batch) -> Mapping[str, str]:
        receipts = await super().store(batch)
        self.batches.append([wording(item).partition(" ")[0] for item in batch.items])
        self.names.append(batch.name)
        return receipts


def writing(house: House, write: str | int) -> Batched:
    provider = Batched()
    house.furniture.memories["a"] = provider
    house.furniture.settings["paces"] = {"a": pace_of(write)}
    house.tick(1)  # what was said up to the start is not held back
    return provider


def test_every_n_turns_are_one_batch(house: House) -> None:
    provider = writing(house, 3)
    for word in "one two three four five six seven".split():
        house.say(word)
    assert provider.batches == [["one", "two", "three"], ["four", "five", "six"]]
    house.sound()


def test_more_turns_than_usually_go_together_are_one_batch_all_the_same(house: House) -> None:
    provider = writing(house, 25)
    for number in range(25):
        assert not provider.batches
        house.say(str(number))
    assert provider.batches == [[str(number) for number in range(25)]]


def test_what_is_no_turn_does_not_count(house: House) -> None:
    provider = writing(house, 2)
    house.say("one")
    for command in ("/status", "/title X", "/whoami"):
        house.say(command)
    assert not provider.batches
    house.say("two")
    assert provider.batches == [["one", "two"]]


def test_a_batch_that_does_not_fill_goes_when_nobody_speaks_any_more(house: House) -> None:
    provider = writing(house, 5)
    house.say("one")
    house.rest(REST_SECONDS / 2)
    house.say("two")
    house.rest(REST_SECONDS - 10)
    assert not provider.batches
    house.rest(20)
    assert provider.batches == [["one", "two"]]
    house.rest(REST_SECONDS * 3)
    assert len(provider.batches) == 1


def test_async_gathers_what_comes_in_quick_succession(house: House) -> None:
    provider = writing(house, "async")
    house.say("one")
    house.say("two")
    assert not provider.batches
    house.rest(GATHER_SECONDS + 0.5)
    house.say("three")
    house.rest(GATHER_SECONDS + 0.5)
    assert provider.batches == [["one", "two"], ["three"]]


@pytest.mark.parametrize("turn", ["/new", "/branch", "/resume", "/compress here 0"])
@pytest.mark.parametrize("write", [10, "session"])
def test_where_the_talk_takes_a_turn_nothing_is_held_back(house: House, write: str | int, turn: str) -> None:
    provider = writing(house, write)
    house.furniture.summariser = ScriptedModel(lambda _: Answer(text="They talked."))
    other = house.say("elsewhere", chat="other").session
    assert not provider.batches
    house.say("one")
    house.say("two " + "and so on " * 200)
    house.say(f"{turn} {other}" if turn == "/resume" else turn)
    assert provider.batches == [["one", "two"]]
    house.say("three")
    assert len(provider.batches) == 1
    house.sound()


def test_a_note_does_not_wait_and_overtakes_nothing(house: House) -> None:
    provider = writing(house, 10)
    noting = FakeTool("note", Effect.KEYED, act=lambda *_: Result(text="", notes=(Noted(text="noted", stamp=Stamp()),)))
    house.furniture.tools["note"] = noting
    house.say("one")
    house.furniture.model = ScriptedModel([Answer(calls=(Call(id="1", tool="note"),)), Answer(text="done")])
    house.say("two")
    assert provider.batches == [["one", "noted"]]
    house.rest(REST_SECONDS + 1)
    assert provider.batches == [["one", "noted"], ["two"]]


def test_after_a_kill_what_was_held_back_goes_at_once(house: House) -> None:
    provider = writing(house, 10)
    house.say("one")
    house.say("two")
    house.crash()
    house.tick(5)
    assert not provider.batches
    house.start()
    house.rest()
    assert provider.batches == [["one", "two"]]
    house.say("three")
    assert len(provider.batches) == 1  # what comes after is held back again
    house.sound()


def test_a_clean_stop_hands_over_first_and_begins_nothing_new(house: House) -> None:
    provider = writing(house, 10)
    house.say("one")
    assert house.process is not None
    house.run(house.process.supervisor.drain(30.0))
    assert provider.batches == [["one"]]
    house.say("two", rest=False)
    house.tick(60)
    assert house.heard_back() == ["You said: one"]
    house.crash()
    house.start()
    house.rest()
    assert house.heard_back() == ["You said: one", "You said: two"]
    house.rest(REST_SECONDS + 1)
    assert provider.batches == [["one"], ["two"]]


def test_a_stop_does_not_wait_for_a_memory_that_fails(house: House) -> None:
    provider = writing(house, 10)
    house.say("one")
    provider.faults.fail(Transient("down"), times=100)
    before = house.loop.time()
    assert house.process is not None
    house.run(house.process.supervisor.drain(30.0))
    assert house.loop.time() - before < 2
    house.crash()
    provider.faults = type(provider.faults)()
    house.start()
    house.rest(400)
    assert provider.batches == [["one"]]


def test_after_a_change_of_configuration_nothing_of_before_is_held_back(house: House) -> None:
    provider = writing(house, 10)
    house.say("one")
    replaced = Batched()
    house.furniture.memories["a"] = replaced
    assert house.process is not None
    house.run(house.process.supervisor.release())
    house.rest()
    assert not provider.batches
    assert replaced.batches == [["one"]]


def test_sessions_fill_their_own_batches_under_their_own_names(house: House) -> None:
    provider = writing(house, 2)
    here = house.say("here1", chat="x").session
    there = house.say("there1", chat="y").session
    assert not provider.batches
    house.say("here2", chat="x")
    house.say("there2", chat="y")
    assert provider.batches == [["here1", "here2"], ["there1", "there2"]]
    assert provider.names == [here, there]


def test_a_batch_that_failed_is_repeated_as_it_was_however_much_is_said_meanwhile(house: House) -> None:
    provider = writing(house, 2)
    provider.faults.fail(Transient("down"), times=3)
    for word in ("one", "two", "three"):
        house.say(word)
    house.rest(60)
    assert provider.batches == [["one", "two"]]
    house.say("four")
    assert provider.batches == [["one", "two"], ["three", "four"]]


def test_nothing_said_is_nothing_sent(house: House) -> None:
    provider = writing(house, "session")
    for command in ("/new", "/status", "/new", "/branch"):
        house.say(command)
    house.rest(REST_SECONDS * 2)
    assert not provider.batches
    assert not provider.kept


def test_a_clock_that_goes_back_holds_nothing_back_for_ever(house: House) -> None:
    provider = writing(house, "session")
    house.clock.skew += 315_360_000.0
    house.say("one")
    house.clock.skew -= 315_360_000.0
    house.rest(REST_SECONDS * 2)
    assert provider.batches == [["one"]]
