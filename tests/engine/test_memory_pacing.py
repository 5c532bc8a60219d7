"""`write: N` and its like decide when a memory is called, and nothing else: no word is lost, doubled or misfiled."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from everhold.core.entries import Noted, Stamp, ToolCall
from everhold.core.memory_pacing import BATCHING_SECONDS, SILENCE_SECONDS, parse_write_setting
from everhold.errors import Transient
from everhold.ports.memory import MemoryBatch
from everhold.ports.model import ModelResponse
from everhold.ports.tool import ToolEffect, ToolResult
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakeTool, get_memory_text
from everhold.testing.gateway import InProcessGateway


class BatchRecordingProvider(FakeMemoryProvider):
    """Remembers what came together."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.names: list[str] = []

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        receipts = await super().store(batch)
        self.batches.append([get_memory_text(item).partition(" ")[0] for item in batch.items])
        self.names.append(batch.name)
        return receipts


def writing(house: InProcessGateway, write: str | int) -> BatchRecordingProvider:
    provider = BatchRecordingProvider()
    house.runtimes.memories["a"] = provider
    house.runtimes.settings["paces"] = {"a": parse_write_setting(write)}
    house.pass_time(1)  # what was said up to the start is not held back
    return provider


def test_every_n_turns_are_one_batch(house: InProcessGateway) -> None:
    provider = writing(house, 3)
    for word in "one two three four five six seven".split():
        house.send_message(word)
    assert provider.batches == [["one", "two", "three"], ["four", "five", "six"]]
    house.assert_sound()


def test_more_turns_than_usually_go_together_are_one_batch_all_the_same(house: InProcessGateway) -> None:
    provider = writing(house, 25)
    for number in range(25):
        assert not provider.batches
        house.send_message(str(number))
    assert provider.batches == [[str(number) for number in range(25)]]


def test_what_is_no_turn_does_not_count(house: InProcessGateway) -> None:
    provider = writing(house, 2)
    house.send_message("one")
    for command in ("/status", "/title X", "/whoami"):
        house.send_message(command)
    assert not provider.batches
    house.send_message("two")
    assert provider.batches == [["one", "two"]]


def test_a_batch_that_does_not_fill_goes_when_nobody_speaks_any_more(house: InProcessGateway) -> None:
    provider = writing(house, 5)
    house.send_message("one")
    house.run_until_idle(SILENCE_SECONDS / 2)
    house.send_message("two")
    house.run_until_idle(SILENCE_SECONDS - 10)
    assert not provider.batches
    house.run_until_idle(20)
    assert provider.batches == [["one", "two"]]
    house.run_until_idle(SILENCE_SECONDS * 3)
    assert len(provider.batches) == 1


def test_async_gathers_what_comes_in_quick_succession(house: InProcessGateway) -> None:
    provider = writing(house, "async")
    house.send_message("one")
    house.send_message("two")
    assert not provider.batches
    house.run_until_idle(BATCHING_SECONDS + 0.5)
    house.send_message("three")
    house.run_until_idle(BATCHING_SECONDS + 0.5)
    assert provider.batches == [["one", "two"], ["three"]]


@pytest.mark.parametrize("turn", ["/new", "/branch", "/resume", "/compress here 0"])
@pytest.mark.parametrize("write", [10, "session"])
def test_where_the_talk_takes_a_turn_nothing_is_held_back(house: InProcessGateway, write: str | int, turn: str) -> None:
    provider = writing(house, write)
    house.runtimes.summariser = FakeModel(lambda _: ModelResponse(text="They talked."))
    other = house.send_message("elsewhere", chat="other").session
    assert not provider.batches
    house.send_message("one")
    house.send_message("two " + "and so on " * 200)
    house.send_message(f"{turn} {other}" if turn == "/resume" else turn)
    assert provider.batches == [["one", "two"]]
    house.send_message("three")
    assert len(provider.batches) == 1
    house.assert_sound()


def test_a_note_does_not_wait_and_overtakes_nothing(house: InProcessGateway) -> None:
    provider = writing(house, 10)
    noting = FakeTool(
        "note", ToolEffect.KEYED, act=lambda *_: ToolResult(text="", notes=(Noted(text="noted", stamp=Stamp()),))
    )
    house.runtimes.tools["note"] = noting
    house.send_message("one")
    house.runtimes.model = FakeModel(
        [ModelResponse(calls=(ToolCall(id="1", tool="note"),)), ModelResponse(text="done")]
    )
    house.send_message("two")
    assert provider.batches == [["one", "noted"]]
    house.run_until_idle(SILENCE_SECONDS + 1)
    assert provider.batches == [["one", "noted"], ["two"]]


def test_after_a_kill_what_was_held_back_goes_at_once(house: InProcessGateway) -> None:
    provider = writing(house, 10)
    house.send_message("one")
    house.send_message("two")
    house.crash()
    house.pass_time(5)
    assert not provider.batches
    house.start()
    house.run_until_idle()
    assert provider.batches == [["one", "two"]]
    house.send_message("three")
    assert len(provider.batches) == 1  # what comes after is held back again
    house.assert_sound()


def test_a_clean_stop_hands_over_first_and_begins_nothing_new(house: InProcessGateway) -> None:
    provider = writing(house, 10)
    house.send_message("one")
    assert house.process is not None
    house.run(house.process.supervisor.drain(30.0))
    assert provider.batches == [["one"]]
    house.send_message("two", rest=False)
    house.pass_time(60)
    assert house.list_shown_texts() == ["You said: one"]
    house.crash()
    house.start()
    house.run_until_idle()
    assert house.list_shown_texts() == ["You said: one", "You said: two"]
    house.run_until_idle(SILENCE_SECONDS + 1)
    assert provider.batches == [["one"], ["two"]]


def test_a_stop_does_not_wait_for_a_memory_that_fails(house: InProcessGateway) -> None:
    provider = writing(house, 10)
    house.send_message("one")
    provider.faults.fail_next(Transient("down"), times=100)
    before = house.loop.time()
    assert house.process is not None
    house.run(house.process.supervisor.drain(30.0))
    assert house.loop.time() - before < 2
    house.crash()
    provider.faults = type(provider.faults)()
    house.start()
    house.run_until_idle(400)
    assert provider.batches == [["one"]]


def test_after_a_change_of_configuration_nothing_of_before_is_held_back(house: InProcessGateway) -> None:
    provider = writing(house, 10)
    house.send_message("one")
    replaced = BatchRecordingProvider()
    house.runtimes.memories["a"] = replaced
    assert house.process is not None
    house.run(house.process.supervisor.release_held_memories())
    house.run_until_idle()
    assert not provider.batches
    assert replaced.batches == [["one"]]


def test_sessions_fill_their_own_batches_under_their_own_names(house: InProcessGateway) -> None:
    provider = writing(house, 2)
    here = house.send_message("here1", chat="x").session
    there = house.send_message("there1", chat="y").session
    assert not provider.batches
    house.send_message("here2", chat="x")
    house.send_message("there2", chat="y")
    assert provider.batches == [["here1", "here2"], ["there1", "there2"]]
    assert provider.names == [here, there]


def test_a_batch_that_failed_is_repeated_as_it_was_however_much_is_said_meanwhile(house: InProcessGateway) -> None:
    provider = writing(house, 2)
    provider.faults.fail_next(Transient("down"), times=3)
    for word in ("one", "two", "three"):
        house.send_message(word)
    house.run_until_idle(60)
    assert provider.batches == [["one", "two"]]
    house.send_message("four")
    assert provider.batches == [["one", "two"], ["three", "four"]]


def test_nothing_said_is_nothing_sent(house: InProcessGateway) -> None:
    provider = writing(house, "session")
    for command in ("/new", "/status", "/new", "/branch"):
        house.send_message(command)
    house.run_until_idle(SILENCE_SECONDS * 2)
    assert not provider.batches
    assert not provider.kept


def test_a_clock_that_goes_back_holds_nothing_back_for_ever(house: InProcessGateway) -> None:
    provider = writing(house, "session")
    house.clock.skew += 315_360_000.0
    house.send_message("one")
    house.clock.skew -= 315_360_000.0
    house.run_until_idle(SILENCE_SECONDS * 2)
    assert provider.batches == [["one"]]
