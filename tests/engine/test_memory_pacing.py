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


def writing(gateway: InProcessGateway, write: str | int) -> BatchRecordingProvider:
    provider = BatchRecordingProvider()
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings["paces"] = {"a": parse_write_setting(write)}
    gateway.pass_time(1)  # what was said up to the start is not held back
    return provider


def test_every_n_turns_are_one_batch(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 3)
    for word in "one two three four five six seven".split():
        gateway.send_message(word)
    assert provider.batches == [["one", "two", "three"], ["four", "five", "six"]]
    gateway.assert_sound()


def test_more_turns_than_usually_go_together_are_one_batch_all_the_same(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 25)
    for number in range(25):
        assert not provider.batches
        gateway.send_message(str(number))
    assert provider.batches == [[str(number) for number in range(25)]]


def test_what_is_no_turn_does_not_count(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 2)
    gateway.send_message("one")
    for command in ("/status", "/title X", "/whoami"):
        gateway.send_message(command)
    assert not provider.batches
    gateway.send_message("two")
    assert provider.batches == [["one", "two"]]


def test_a_batch_that_does_not_fill_goes_when_nobody_speaks_any_more(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 5)
    gateway.send_message("one")
    gateway.run_until_idle(SILENCE_SECONDS / 2)
    gateway.send_message("two")
    gateway.run_until_idle(SILENCE_SECONDS - 10)
    assert not provider.batches
    gateway.run_until_idle(20)
    assert provider.batches == [["one", "two"]]
    gateway.run_until_idle(SILENCE_SECONDS * 3)
    assert len(provider.batches) == 1


def test_async_gathers_what_comes_in_quick_succession(gateway: InProcessGateway) -> None:
    provider = writing(gateway, "async")
    gateway.send_message("one")
    gateway.send_message("two")
    assert not provider.batches
    gateway.run_until_idle(BATCHING_SECONDS + 0.5)
    gateway.send_message("three")
    gateway.run_until_idle(BATCHING_SECONDS + 0.5)
    assert provider.batches == [["one", "two"], ["three"]]


@pytest.mark.parametrize("turn", ["/new", "/branch", "/resume", "/compress here 0"])
@pytest.mark.parametrize("write", [10, "session"])
def test_where_the_talk_takes_a_turn_nothing_is_held_back(
    gateway: InProcessGateway, write: str | int, turn: str
) -> None:
    provider = writing(gateway, write)
    gateway.runtimes.summariser = FakeModel(lambda _: ModelResponse(text="They talked."))
    other = gateway.send_message("elsewhere", chat="other").session
    assert not provider.batches
    gateway.send_message("one")
    gateway.send_message("two " + "and so on " * 200)
    gateway.send_message(f"{turn} {other}" if turn == "/resume" else turn)
    assert provider.batches == [["one", "two"]]
    gateway.send_message("three")
    assert len(provider.batches) == 1
    gateway.assert_sound()


def test_a_note_does_not_wait_and_overtakes_nothing(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 10)
    noting = FakeTool(
        "note", ToolEffect.KEYED, act=lambda *_: ToolResult(text="", notes=(Noted(text="noted", stamp=Stamp()),))
    )
    gateway.runtimes.tools["note"] = noting
    gateway.send_message("one")
    gateway.runtimes.model = FakeModel(
        [ModelResponse(calls=(ToolCall(id="1", tool="note"),)), ModelResponse(text="done")]
    )
    gateway.send_message("two")
    assert provider.batches == [["one", "noted"]]
    gateway.run_until_idle(SILENCE_SECONDS + 1)
    assert provider.batches == [["one", "noted"], ["two"]]


def test_after_a_kill_what_was_held_back_goes_at_once(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 10)
    gateway.send_message("one")
    gateway.send_message("two")
    gateway.crash()
    gateway.pass_time(5)
    assert not provider.batches
    gateway.start()
    gateway.run_until_idle()
    assert provider.batches == [["one", "two"]]
    gateway.send_message("three")
    assert len(provider.batches) == 1  # what comes after is held back again
    gateway.assert_sound()


def test_a_clean_stop_hands_over_first_and_begins_nothing_new(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 10)
    gateway.send_message("one")
    assert gateway.process is not None
    gateway.run(gateway.process.supervisor.drain(30.0))
    assert provider.batches == [["one"]]
    gateway.send_message("two", rest=False)
    gateway.pass_time(60)
    assert gateway.list_shown_texts() == ["You said: one"]
    gateway.crash()
    gateway.start()
    gateway.run_until_idle()
    assert gateway.list_shown_texts() == ["You said: one", "You said: two"]
    gateway.run_until_idle(SILENCE_SECONDS + 1)
    assert provider.batches == [["one"], ["two"]]


def test_a_stop_does_not_wait_for_a_memory_that_fails(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 10)
    gateway.send_message("one")
    provider.faults.fail_next(Transient("down"), times=100)
    before = gateway.loop.time()
    assert gateway.process is not None
    gateway.run(gateway.process.supervisor.drain(30.0))
    assert gateway.loop.time() - before < 2
    gateway.crash()
    provider.faults = type(provider.faults)()
    gateway.start()
    gateway.run_until_idle(400)
    assert provider.batches == [["one"]]


def test_after_a_change_of_configuration_nothing_of_before_is_held_back(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 10)
    gateway.send_message("one")
    replaced = BatchRecordingProvider()
    gateway.runtimes.memories["a"] = replaced
    assert gateway.process is not None
    gateway.run(gateway.process.supervisor.release_held_memories())
    gateway.run_until_idle()
    assert not provider.batches
    assert replaced.batches == [["one"]]


def test_sessions_fill_their_own_batches_under_their_own_names(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 2)
    here = gateway.send_message("here1", chat="x").session
    there = gateway.send_message("there1", chat="y").session
    assert not provider.batches
    gateway.send_message("here2", chat="x")
    gateway.send_message("there2", chat="y")
    assert provider.batches == [["here1", "here2"], ["there1", "there2"]]
    assert provider.names == [here, there]


def test_a_batch_that_failed_is_repeated_as_it_was_however_much_is_said_meanwhile(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 2)
    provider.faults.fail_next(Transient("down"), times=3)
    for word in ("one", "two", "three"):
        gateway.send_message(word)
    gateway.run_until_idle(60)
    assert provider.batches == [["one", "two"]]
    gateway.send_message("four")
    assert provider.batches == [["one", "two"], ["three", "four"]]


def test_nothing_said_is_nothing_sent(gateway: InProcessGateway) -> None:
    provider = writing(gateway, "session")
    for command in ("/new", "/status", "/new", "/branch"):
        gateway.send_message(command)
    gateway.run_until_idle(SILENCE_SECONDS * 2)
    assert not provider.batches
    assert not provider.kept


def test_a_clock_that_goes_back_holds_nothing_back_for_ever(gateway: InProcessGateway) -> None:
    provider = writing(gateway, "session")
    gateway.clock.skew += 315_360_000.0
    gateway.send_message("one")
    gateway.clock.skew -= 315_360_000.0
    gateway.run_until_idle(SILENCE_SECONDS * 2)
    assert provider.batches == [["one"]]
