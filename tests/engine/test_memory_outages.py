"""A failing memory is reported: in the status, in the chat once, and to the model. It delays nothing else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.core.entries import Notified
from everhold.engine.memory_client import MAX_FAILURES_IN_A_ROW, MAX_REST_SECONDS
from everhold.errors import InDoubt, Refused, Transient
from everhold.ports.memory import MemoryBatch, MemoryHit, MemoryQuery
from everhold.ports.platform import DeliveryGuarantee
from everhold.testing.fakes import FakeMemoryProvider, FaultQueue, get_memory_text
from everhold.testing.gateway import InProcessGateway


class CountingProvider(FakeMemoryProvider):
    """Counts how often it is asked to find something; fails at that while it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.down = False

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        self.asked += 1
        if self.down:
            raise Transient("no route")
        return []


@pytest.fixture
def provider(gateway: InProcessGateway) -> CountingProvider:
    provider = CountingProvider()
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings |= {"memory_notices": True, "recall_memories": ("a",), "recall_seconds": 0.5}
    gateway.pass_time(1)
    return provider


def down(provider: CountingProvider) -> None:
    provider.faults.fail_next(Transient("no route"), times=1_000)


def back(provider: CountingProvider) -> None:
    provider.faults = FaultQueue()


def memory(gateway: InProcessGateway) -> dict[str, Any]:
    (found,) = gateway.run(gateway.control.collect_status())["memories"]
    assert isinstance(found, dict)
    return found


def notices(gateway: InProcessGateway, session: str) -> list[str]:
    return [told.text for told in gateway.read_bodies(session, Notified) if told.about == "memory"]


def test_status_shows_the_backlog_its_age_and_the_error(gateway: InProcessGateway, provider: CountingProvider) -> None:
    gateway.send_message("one")
    well = memory(gateway)
    assert (well["state"], well["backlog"], well["backlog_since"], well["error"]) == ("healthy", 0, None, "")
    assert well["stored_at"] is not None
    assert well["found_at"] is not None
    down(provider)
    said = gateway.clock.now()
    gateway.send_message("two", rest=False)
    gateway.pass_time(30)
    gateway.send_message("three", rest=False)
    gateway.pass_time(1)
    ill = memory(gateway)
    assert (ill["state"], ill["backlog"], ill["error"]) == ("failing", 2, "no route")
    assert said <= ill["backlog_since"] < said + 1
    assert said <= ill["failing_since"] < said + 1
    assert ill["stored_at"] == well["stored_at"]
    assert ill["attempts"] >= 3
    assert ill["next_attempt_at"] > gateway.clock.now()
    (row,) = gateway.run(MemoryAdmin(gateway.control, agents=lambda: ["main"]).collect_status())["memories"]
    same = ("agent", "memory", "backlog", "backlog_since", "delivery", "sent", "report", "error")
    assert {key: row[key] for key in same} == {key: ill[key] for key in same}, "both states use one word per value"
    back(provider)
    gateway.run_until_idle(300)
    assert (memory(gateway)["state"], memory(gateway)["backlog"]) == ("healthy", 0)
    assert memory(gateway)["stored_at"] > well["stored_at"]


def test_an_outage_is_still_known_after_a_restart(gateway: InProcessGateway, provider: CountingProvider) -> None:
    down(provider)
    gateway.send_message("one", rest=False)
    gateway.pass_time(30)
    gateway.crash()
    gateway.runtimes._liveness.clear()  # the next process has no state in memory
    gateway.runtimes._memory_clients.clear()
    gateway.start()
    ill = memory(gateway)
    assert (ill["state"], ill["backlog"], ill["error"]) == ("failing", 1, "no route")


def test_a_long_outage_is_announced_once_in_the_chat(gateway: InProcessGateway, provider: CountingProvider) -> None:
    provider.faults.fail_next(Transient("a hiccup"), times=2)
    session = gateway.send_message("one").session
    gateway.run_until_idle(30)
    assert not notices(gateway, session)
    for outage in (1, 2):
        down(provider)
        for word in ("two", "three", "four"):
            gateway.send_message(word, rest=False)
            gateway.pass_time(600)
        assert len(notices(gateway, session)) == outage
        back(provider)
        gateway.run_until_idle(300)
    assert "Nothing is lost" in notices(gateway, session)[0]
    assert gateway.list_shown_texts().count(notices(gateway, session)[0]) == 2
    assert len(provider.kept[session]) == 7
    gateway.assert_sound()


class UnwellProvider(FakeMemoryProvider):
    """Accepts every write, reports an error, and stores nothing."""

    def __init__(self, delivery: DeliveryGuarantee) -> None:
        super().__init__(delivery, deadline=10.0)
        self.sends: list[float] = []
        self.well = False

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        self.sends.append(asyncio.get_running_loop().time())
        if not self.well:
            raise InDoubt("503")
        return await super().store(batch)


@pytest.mark.parametrize("delivery", [DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT, DeliveryGuarantee.PROBE])
def test_a_memory_that_never_confirms_is_probed_less_often_and_reported(
    gateway: InProcessGateway, delivery: DeliveryGuarantee
) -> None:
    provider = UnwellProvider(delivery)
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings["memory_notices"] = True
    said = gateway.clock.now()
    session = gateway.send_message("one", rest=False).session
    gateway.pass_time(3_600)
    waits = [after - before for before, after in itertools.pairwise(provider.sends)]
    assert max(waits) > 150, "as with any outage"
    assert len(provider.sends) < 40
    assert len(notices(gateway, session)) == 1
    ill = memory(gateway)
    assert (ill["state"], ill["backlog"], ill["error"]) == ("failing", 1, "503")
    (row,) = gateway.run(MemoryAdmin(gateway.control, agents=lambda: ["main"]).collect_status())["memories"]
    assert said <= row["backlog_since"] < said + 1
    provider.well = True
    gateway.run_until_idle(400)
    assert [get_memory_text(item).partition(" ")[0] for item in provider.kept[session]] == ["one"]
    gateway.assert_sound()


def test_a_chat_without_notices_gets_none(gateway: InProcessGateway, provider: CountingProvider) -> None:
    gateway.runtimes.settings["memory_notices"] = False
    down(provider)
    session = gateway.send_message("one", rest=False).session
    gateway.pass_time(600)
    assert not notices(gateway, session)


def test_an_outage_is_logged_once_at_its_start_and_its_end(
    gateway: InProcessGateway, provider: CountingProvider
) -> None:
    down(provider)
    gateway.send_message("one", rest=False)
    gateway.pass_time(600)
    assert [line["error"] for line in gateway.logger.find_events("memory.failing")] == ["no route"]
    back(provider)
    gateway.run_until_idle(300)
    (well,) = gateway.logger.find_events("memory.recovered")
    assert int(str(well["failures"])) > 3


def test_the_model_is_told_that_recall_is_incomplete(gateway: InProcessGateway, provider: CountingProvider) -> None:
    provider.down = True
    gateway.send_message("one", rest=False)
    gateway.pass_time(5)
    shown = "\n".join(message.text for message in gateway.runtimes.model.requests[-1].messages)
    assert "Memory is incomplete right now: a" in shown
    assert "incomplete" not in gateway.runtimes.model.requests[-1].system  # the prefix stays as it is
    provider.down = False
    gateway.run_until_idle(MAX_REST_SECONDS)
    gateway.send_message("two")
    assert "incomplete" not in gateway.runtimes.model.requests[-1].messages[-1].text


def test_the_model_is_told_that_messages_do_not_reach_the_memory(
    gateway: InProcessGateway, provider: CountingProvider
) -> None:
    down(provider)
    gateway.send_message("one", rest=False)
    gateway.pass_time(5)
    gateway.send_message("two", rest=False)
    gateway.pass_time(5)
    shown = "\n".join(message.text for message in gateway.runtimes.model.requests[-1].messages)
    assert "Memory is incomplete right now: a stores nothing new" in shown
    back(provider)
    gateway.run_until_idle(300)
    gateway.send_message("three")
    assert "behind" not in gateway.runtimes.model.requests[-1].messages[-1].text


def test_a_memory_with_repeated_find_failures_is_paused(gateway: InProcessGateway, provider: CountingProvider) -> None:
    provider.down = True
    for _ in range(MAX_FAILURES_IN_A_ROW):
        gateway.send_message("hello")
    assert provider.asked == MAX_FAILURES_IN_A_ROW
    gateway.send_message("hello")
    assert provider.asked == MAX_FAILURES_IN_A_ROW
    assert 0 < memory(gateway)["recall_pause_seconds"] <= MAX_REST_SECONDS
    provider.down = False
    gateway.run_until_idle(MAX_REST_SECONDS)
    gateway.send_message("hello")
    assert provider.asked == MAX_FAILURES_IN_A_ROW + 1
    assert memory(gateway)["recall_pause_seconds"] == 0
    gateway.send_message("hello")
    assert provider.asked == MAX_FAILURES_IN_A_ROW + 2


def test_a_slow_search_in_this_process_affects_one_turn_and_the_status_names_the_cause(
    gateway: InProcessGateway, provider: CountingProvider
) -> None:
    class HangingProvider(CountingProvider):
        is_in_process = True

        async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
            self.asked += 1
            if self.down:
                await asyncio.sleep(60)
            return []

    gateway.runtimes.memories["a"] = hanging = HangingProvider()
    hanging.down = True
    for _ in range(3 * MAX_FAILURES_IN_A_ROW):
        gateway.send_message("hello")
    assert hanging.asked == 3 * MAX_FAILURES_IN_A_ROW
    found = memory(gateway)
    assert (found["state"], found["error"]) == ("failing", "no answer to `find` in time")
    assert found["recall_pause_seconds"] == 0
    hanging.down = False
    gateway.send_message("hello")
    assert hanging.asked == 3 * MAX_FAILURES_IN_A_ROW + 1
    assert memory(gateway)["state"] == "healthy"


def test_a_paused_memory_is_probed_occasionally(gateway: InProcessGateway, provider: CountingProvider) -> None:
    provider.down = True
    for _ in range(600):
        gateway.send_message("hello")
        gateway.pass_time(1)
    assert 10 < provider.asked < 30  # ten minutes, at most a minute between two tries


def test_a_refused_item_is_dead_lettered_and_is_not_an_outage(
    gateway: InProcessGateway, provider: CountingProvider
) -> None:
    provider.faults.fail_next(Refused("too long"))
    gateway.send_message("one")
    gateway.send_message("two")
    assert memory(gateway)["state"] == "healthy"
    (dead_letter,) = gateway.run(gateway.store.list_dead_letters())
    assert dead_letter.reason == "too long"


def test_the_status_command_names_failing_memories(gateway: InProcessGateway, provider: CountingProvider) -> None:
    gateway.send_message("/status")
    assert "memory" not in gateway.list_shown_texts()[-1]
    down(provider)
    gateway.send_message("one", rest=False)
    gateway.pass_time(2)
    gateway.send_message("/status", rest=False)
    gateway.pass_time(0.5)
    assert any("memory a is failing, 1 not yet stored" in text for text in gateway.list_shown_texts())
