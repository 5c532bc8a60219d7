"""The `write` setting decides only when a memory is called. No item is lost, doubled or misfiled."""

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
    gateway.runtimes.settings["pacing"] = {"a": parse_write_setting(write)}
    gateway.pass_time(1)  # items from before the start are not held back
    return provider


def test_every_n_turns_form_one_batch(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 3)
    for word in "one two three four five six seven".split():
        gateway.send_message(word)
    assert provider.batches == [["one", "two", "three"], ["four", "five", "six"]]
    gateway.assert_sound()


def test_an_interval_larger_than_the_usual_batch_still_gives_one_batch(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 25)
    for number in range(25):
        assert not provider.batches
        gateway.send_message(str(number))
    assert provider.batches == [[str(number) for number in range(25)]]


def test_entries_that_are_no_turns_do_not_count(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 2)
    gateway.send_message("one")
    for command in ("/status", "/title X", "/whoami"):
        gateway.send_message(command)
    assert not provider.batches
    gateway.send_message("two")
    assert provider.batches == [["one", "two"]]


def test_an_incomplete_batch_is_sent_when_the_session_is_idle(gateway: InProcessGateway) -> None:
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


def test_async_collects_turns_in_quick_succession(gateway: InProcessGateway) -> None:
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
def test_a_context_change_sends_the_held_batch(gateway: InProcessGateway, write: str | int, turn: str) -> None:
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


def test_a_note_is_sent_at_once_and_in_order(gateway: InProcessGateway) -> None:
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


def test_a_held_batch_is_sent_after_a_kill(gateway: InProcessGateway) -> None:
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
    assert len(provider.batches) == 1  # later items are held back again
    gateway.assert_sound()


def test_a_clean_stop_sends_held_batches_and_starts_nothing_new(gateway: InProcessGateway) -> None:
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


def test_a_stop_does_not_wait_for_a_failing_memory(gateway: InProcessGateway) -> None:
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


def test_a_changed_configuration_sends_held_batches(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 10)
    gateway.send_message("one")
    replaced = BatchRecordingProvider()
    gateway.runtimes.memories["a"] = replaced
    assert gateway.process is not None
    gateway.run(gateway.process.supervisor.release_held_memories())
    gateway.run_until_idle()
    assert not provider.batches
    assert replaced.batches == [["one"]]


def test_each_session_fills_its_own_batch_under_its_own_name(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 2)
    here = gateway.send_message("here1", chat="x").session
    there = gateway.send_message("there1", chat="y").session
    assert not provider.batches
    gateway.send_message("here2", chat="x")
    gateway.send_message("there2", chat="y")
    assert provider.batches == [["here1", "here2"], ["there1", "there2"]]
    assert provider.names == [here, there]


def test_a_failed_batch_is_repeated_unchanged_despite_new_messages(gateway: InProcessGateway) -> None:
    provider = writing(gateway, 2)
    provider.faults.fail_next(Transient("down"), times=3)
    for word in ("one", "two", "three"):
        gateway.send_message(word)
    gateway.run_until_idle(60)
    assert provider.batches == [["one", "two"]]
    gateway.send_message("four")
    assert provider.batches == [["one", "two"], ["three", "four"]]


def test_a_silent_session_sends_nothing(gateway: InProcessGateway) -> None:
    provider = writing(gateway, "session")
    for command in ("/new", "/status", "/new", "/branch"):
        gateway.send_message(command)
    gateway.run_until_idle(SILENCE_SECONDS * 2)
    assert not provider.batches
    assert not provider.kept


def test_a_clock_that_goes_back_does_not_hold_a_batch_for_ever(gateway: InProcessGateway) -> None:
    provider = writing(gateway, "session")
    gateway.clock.skew += 315_360_000.0
    gateway.send_message("one")
    gateway.clock.skew -= 315_360_000.0
    gateway.run_until_idle(SILENCE_SECONDS * 2)
    assert provider.batches == [["one"]]
