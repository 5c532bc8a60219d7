"""A memory that was added later receives older turns once, in order and at a limited rate, also after crashes."""

from __future__ import annotations

from typing import Any

import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.errors import InvalidRequest, NotFound, Transient
from everhold.ports.memory import Exchange, MemoryNote
from everhold.testing.fakes import FakeMemoryProvider
from everhold.testing.gateway import InProcessGateway

from .memory_tools import add, add_memory_tools, asked_for


def memory(gateway: InProcessGateway) -> MemoryAdmin:
    return MemoryAdmin(gateway.control, agents=lambda: ["main"])


def backfill(gateway: InProcessGateway, **options: Any) -> dict[str, Any]:
    return gateway.run(memory(gateway).backfill_memory("late", **options))


def words(provider: FakeMemoryProvider) -> list[str]:
    return [item.heard[0].text for items in provider.kept.values() for item in items if isinstance(item, Exchange)]


def late(gateway: InProcessGateway) -> FakeMemoryProvider:
    """A memory is attached now."""
    provider = FakeMemoryProvider()
    gateway.runtimes.memories = {**gateway.runtimes.memories, "late": provider}
    return provider


def test_older_turns_are_sent_once_and_in_order(gateway: InProcessGateway) -> None:
    for number in range(5):
        gateway.send_message(f"old {number}")
    provider = late(gateway)
    gateway.send_message("new")
    assert words(provider) == ["new"]
    plan = backfill(gateway)
    assert (plan["items"], plan["sessions"], plan["requests"], plan["begun"]) == (5, 1, 1, False)
    gateway.run_until_idle()
    assert words(provider) == ["new"]
    backfill(gateway, really=True)
    gateway.run_until_idle(60)
    assert words(provider) == ["new", *(f"old {number}" for number in range(5))]
    assert len(provider.writes) == 6
    assert backfill(gateway, really=True)["items"] == 0
    gateway.run_until_idle(60)
    assert len(provider.writes) == 6
    gateway.assert_sound()


def test_an_inactive_session_is_sent_completely(gateway: InProcessGateway) -> None:
    gateway.send_message("one", chat="1")
    gateway.send_message("two", chat="2")
    provider = late(gateway)
    assert backfill(gateway, really=True)["sessions"] == 2
    gateway.run_until_idle(60)
    assert sorted(words(provider)) == ["one", "two"]
    gateway.send_message("three", chat="1")
    assert sorted(words(provider)) == ["one", "three", "two"]
    assert backfill(gateway)["items"] == 0


def test_a_backfill_respects_its_rate(gateway: InProcessGateway) -> None:
    for number in range(45):
        gateway.send_message(f"old {number}")
    provider = late(gateway)
    began = gateway.clock.now()
    assert backfill(gateway, really=True, per_minute=60)["minutes"] == 0.8
    gateway.pass_time(1)
    assert len(words(provider)) == 20
    gateway.pass_time(17)
    assert len(words(provider)) == 20
    while len(words(provider)) < 45:
        gateway.pass_time(1)
    assert gateway.clock.now() - began >= 40
    assert words(provider) == [f"old {number}" for number in range(45)]


def test_a_backfill_can_be_limited_to_a_period(gateway: InProcessGateway) -> None:
    gateway.send_message("long ago")
    gateway.pass_time(1_000)
    middle = gateway.clock.now()
    gateway.send_message("then")
    gateway.pass_time(1_000)
    end = gateway.clock.now()
    gateway.send_message("lately")
    provider = late(gateway)
    backfill(gateway, since=middle, until=end, really=True)
    gateway.run_until_idle(60)
    assert words(provider) == ["then"]


def test_a_second_backfill_sends_what_the_first_left_out(gateway: InProcessGateway) -> None:
    times = []
    for text in ("long ago", "then", "lately"):
        times.append(gateway.clock.now())
        gateway.send_message(text)
        gateway.pass_time(1_000)
    provider = late(gateway)
    gateway.send_message("new")
    backfill(gateway, since=times[2], really=True)
    gateway.run_until_idle(60)
    backfill(gateway, since=times[1], until=times[2], really=True)
    gateway.run_until_idle(60)
    assert words(provider) == ["new", "lately", "then"]
    assert backfill(gateway, really=True)["items"] == 1
    gateway.run_until_idle(60)
    assert words(provider) == ["new", "lately", "then", "long ago"]
    assert backfill(gateway)["items"] == 0
    assert len(provider.writes) == 4
    gateway.assert_sound()


def test_the_rest_of_a_long_log_is_sent_once_through_a_crash(gateway: InProcessGateway) -> None:
    times = []
    for number in range(70):
        times.append(gateway.clock.now())
        gateway.send_message(f"old {number}")
        gateway.pass_time(10)
    provider = late(gateway)
    backfill(gateway, since=times[30], until=times[40], really=True)
    gateway.run_until_idle(60)
    assert backfill(gateway, really=True)["items"] == 60
    gateway.pass_time(5)
    assert len(provider.writes) == 30
    gateway.crash()
    gateway.start()
    gateway.run_until_idle(600)
    assert sorted(words(provider)) == sorted(f"old {number}" for number in range(70))
    assert len(provider.writes) == 70
    gateway.assert_sound()


def test_an_erased_turn_is_not_counted_as_remaining(gateway: InProcessGateway) -> None:
    session = gateway.send_message("forget this").session
    gateway.send_message("keep this")
    provider = late(gateway)
    gateway.run(gateway.control.erase_entries(session, [1, 3, 4]))
    backfill(gateway, really=True)
    gateway.run_until_idle(60)
    assert words(provider) == ["keep this"]
    assert backfill(gateway)["items"] == 0


def test_an_undone_or_erased_turn_is_skipped(gateway: InProcessGateway) -> None:
    add_memory_tools(gateway)
    gateway.send_message("hello")
    gateway.send_message("my pin is 4711")
    gateway.send_message("/memory note the safe code is 991")
    gateway.send_message("/memory note the door is green")
    gateway.send_message(asked_for(add("Ada drives a Saab")))
    gateway.send_message(
        asked_for(("memory", {"action": "replace", "old_text": "Saab", "content": "Ada drives a Volvo"}))
    )
    gateway.send_message("undone before")
    gateway.send_message("/undo")
    provider = late(gateway)
    gateway.send_message("new")
    before = backfill(gateway)
    gateway.send_message("/undo 4")
    gateway.send_message("/memory forget safe code")
    after = backfill(gateway, really=True)
    assert (before["items"], after["items"]) == (7, 3)
    assert after["tokens"] < before["tokens"]
    handed = len(provider.writes)
    gateway.run_until_idle(60)
    assert len(provider.writes) - handed == after["items"]
    past = [item for items in provider.kept.values() for item in items][handed:]
    assert [item.heard[0].text for item in past if isinstance(item, Exchange)] == ["hello"]
    assert [item.text for item in past if isinstance(item, MemoryNote)] == ["the door is green", "Ada drives a Volvo"]
    assert backfill(gateway)["items"] == 0
    gateway.assert_sound()


def test_a_backfill_continues_after_a_crash_and_an_outage(gateway: InProcessGateway) -> None:
    for number in range(45):
        gateway.send_message(f"old {number}")
    provider = late(gateway)
    provider.faults.succeed_next()
    provider.faults.fail_next(Transient("down"), times=6)
    backfill(gateway, really=True)
    gateway.pass_time(25)
    assert len(words(provider)) == 20
    gateway.crash()
    gateway.start()
    gateway.send_message("new")
    gateway.run_until_idle(600)
    gateway.run_until_idle(600)
    assert sorted(words(provider)) == sorted(["new", *(f"old {number}" for number in range(45))])
    assert len(provider.writes) == 46
    gateway.assert_sound()


def test_invalid_arguments_are_refused(gateway: InProcessGateway) -> None:
    gateway.send_message("hello")
    with pytest.raises(NotFound, match="nowhere"):
        gateway.run(memory(gateway).backfill_memory("nowhere"))
    late(gateway)
    with pytest.raises(InvalidRequest):
        backfill(gateway, per_minute=0)
