"""A memory can receive its items again, in order and under the same keys, also after crashes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.core.entries import EntryKind
from everhold.errors import InvalidRequest, NotFound, Transient
from everhold.ports.memory import Exchange, MemoryBatch, MemoryCapability
from everhold.ports.platform import DeliveryGuarantee
from everhold.testing.fakes import FakeMemoryProvider
from everhold.testing.gateway import InProcessGateway


class ForgetfulProvider(FakeMemoryProvider):
    """Takes everything, and may forget it again without a word."""

    capabilities = frozenset({MemoryCapability.RETRACT})

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        await super().store(batch)
        return {item.key: "" for item in batch.items}

    def forget_all(self) -> None:
        self.kept, self.arrived = {}, {}


class SearchableProvider(ForgetfulProvider):
    capabilities = frozenset({MemoryCapability.RETRACT, MemoryCapability.PROBE})


def attach(gateway: InProcessGateway, provider: FakeMemoryProvider) -> FakeMemoryProvider:
    gateway.runtimes.memories = {"a": provider}
    return provider


def replay(gateway: InProcessGateway, **options: Any) -> dict[str, Any]:
    memory = MemoryAdmin(gateway.control, agents=lambda: ["main"])
    return gateway.run(memory.resend_memory("a", **{"since": 0.0, **options}))


def words(provider: FakeMemoryProvider) -> list[str]:
    return [item.heard[0].text for items in provider.kept.values() for item in items if isinstance(item, Exchange)]


def test_lost_items_are_resent_in_order_under_their_own_keys(
    gateway: InProcessGateway,
) -> None:
    provider = ForgetfulProvider(DeliveryGuarantee.UNACKNOWLEDGED)
    attach(gateway, provider)
    for number in range(45):
        gateway.send_message(f"turn {number}")
    before = list(provider.writes)
    provider.forget_all()
    plan = replay(gateway, really=False)
    assert (plan["items"], plan["sessions"], plan["begun"]) == (45, 1, False)
    assert "twice" in plan["repeats"]
    gateway.run_until_idle()
    assert words(provider) == []
    assert replay(gateway)["items"] == 45
    gateway.run_until_idle(60)
    assert words(provider) == [f"turn {number}" for number in range(45)]
    assert provider.writes == before * 2, "the same names and keys"
    assert gateway.run(gateway.store.list_dead_letters(state="replaying")) == []
    assert gateway.run(gateway.store.list_dead_letters()) == []
    gateway.assert_sound()


def test_resend_covers_only_items_since_the_given_time(gateway: InProcessGateway) -> None:
    provider = ForgetfulProvider(DeliveryGuarantee.UNACKNOWLEDGED)
    attach(gateway, provider)
    gateway.send_message("long ago")
    gateway.pass_time(1_000)
    middle = gateway.clock.now()
    gateway.send_message("lately", chat="1")
    gateway.send_message("just now")
    provider.forget_all()
    found = replay(gateway, since=middle)
    assert (found["items"], found["sessions"]) == (2, 2)
    gateway.run_until_idle(60)
    assert sorted(words(provider)) == ["just now", "lately"]


@pytest.mark.parametrize("delivery", [DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT, DeliveryGuarantee.PROBE])
def test_a_resend_with_a_safe_guarantee_doubles_nothing(gateway: InProcessGateway, delivery: DeliveryGuarantee) -> None:
    provider = attach(gateway, FakeMemoryProvider(delivery))
    for number in range(5):
        gateway.send_message(f"turn {number}")
    lost = next(item for items in provider.kept.values() for item in items if words(provider)[2] in str(item))
    for items in provider.kept.values():
        items[:] = [item for item in items if item.key != lost.key]
    del provider.arrived[lost.key]
    replay(gateway)
    gateway.run_until_idle(60)
    assert sorted(words(provider)) == [f"turn {number}" for number in range(5)]
    if delivery is DeliveryGuarantee.PROBE:
        assert len(provider.writes) == 6, "the memory is probed before the resend"
    gateway.assert_sound()


def test_a_searchable_memory_does_not_get_items_it_already_has(gateway: InProcessGateway) -> None:
    provider = SearchableProvider(DeliveryGuarantee.UNACKNOWLEDGED)
    attach(gateway, provider)
    for number in range(3):
        gateway.send_message(f"turn {number}")
    assert "probed first" in replay(gateway)["repeats"]
    gateway.run_until_idle(60)
    assert len(provider.writes) == 3
    provider.forget_all()
    replay(gateway)
    gateway.run_until_idle(60)
    assert words(provider) == ["turn 0", "turn 1", "turn 2"]


def test_a_resend_waits_until_the_memory_can_be_searched(gateway: InProcessGateway) -> None:
    provider = SearchableProvider(DeliveryGuarantee.UNACKNOWLEDGED)
    attach(gateway, provider)
    for number in range(3):
        gateway.send_message(f"turn {number}")
    provider.forget_all()
    provider.faults.fail_next(Transient("it cannot be searched"), times=4)
    replay(gateway)
    gateway.run_until_idle(5)
    assert words(provider) == []
    gateway.run_until_idle(300)
    assert words(provider) == ["turn 0", "turn 1", "turn 2"]
    assert len(provider.writes) == 6
    gateway.assert_sound()


def test_status_shows_confirmed_and_unknown_items(gateway: InProcessGateway) -> None:
    provider = SearchableProvider(DeliveryGuarantee.UNACKNOWLEDGED)
    gateway.runtimes.memories = {"a": provider, "b": FakeMemoryProvider()}
    memory = MemoryAdmin(gateway.control, agents=lambda: ["main"])
    for number in range(3):
        gateway.send_message(f"turn {number}")

    def known() -> tuple[object, ...]:
        row, other = gateway.run(memory.collect_status())["memories"]
        assert other["sent"] is None, "a memory with acknowledgements has no such counts"
        assert "confirmed" not in other
        return row["delivery"], row["sent"], row["confirmed"], row["unknown"], row["replaying"]

    assert known() == ("unacknowledged", 3, 0, 3, 0)
    condition = next(it for it in gateway.run(gateway.control.collect_status())["memories"] if it["memory"] == "a")
    assert (condition["delivery"], condition["sent"], condition["confirmed"]) == ("unacknowledged", 3, 0)
    replay(gateway)
    assert known()[-1] == 3
    gateway.run_until_idle(60)
    assert known() == ("unacknowledged", 3, 3, 0, 0)
    assert len(provider.writes) == 3


def test_a_resend_continues_after_an_outage_and_a_crash_before_new_items(gateway: InProcessGateway) -> None:
    provider = ForgetfulProvider(DeliveryGuarantee.UNACKNOWLEDGED)
    attach(gateway, provider)
    for number in range(10):
        gateway.send_message(f"turn {number}")
    provider.forget_all()
    provider.faults.succeed_next(times=4)
    provider.faults.fail_next(Transient("down"), times=6)
    replay(gateway)
    gateway.pass_time(0.5)
    assert len(words(provider)) == 4
    gateway.crash()
    gateway.start()
    gateway.send_message("new")
    gateway.run_until_idle(900)
    gateway.run_until_idle(900)
    assert words(provider) == [*(f"turn {number}" for number in range(10)), "new"]
    gateway.assert_sound()


def test_two_resend_requests_send_once(gateway: InProcessGateway) -> None:
    provider = ForgetfulProvider(DeliveryGuarantee.UNACKNOWLEDGED)
    attach(gateway, provider)
    gateway.send_message("one")
    provider.forget_all()
    provider.faults.fail_next(Transient("down"), times=1)
    assert replay(gateway)["items"] == 1
    assert replay(gateway)["items"] == 0
    gateway.run_until_idle(60)
    assert words(provider) == ["one"]


def test_a_resend_does_not_send_erased_items(gateway: InProcessGateway) -> None:
    provider = ForgetfulProvider(DeliveryGuarantee.UNACKNOWLEDGED)
    attach(gateway, provider)
    gateway.send_message("my secret")
    gateway.send_message("harmless")
    session = gateway.run(gateway.store.find_sessions("last"))[0]
    provider.forget_all()
    entries = gateway.run(
        gateway.store.list_entries(session, kinds=(EntryKind.HEARD, EntryKind.THOUGHT, EntryKind.SAID))
    )
    secret = [entry.seq for entry in entries if "my secret" in str(entry.body)]
    gateway.run(gateway.control.erase_entries(session, secret, by="ada", why="asked"))
    replay(gateway)
    gateway.run_until_idle(60)
    assert "my secret" not in str(provider.kept)
    assert words(provider) == ["harmless"]


def test_a_resend_that_would_double_everything_is_refused(gateway: InProcessGateway) -> None:
    provider = attach(gateway, FakeMemoryProvider(DeliveryGuarantee.BLIND))
    gateway.send_message("one")
    with pytest.raises(InvalidRequest, match="twice"):
        replay(gateway)
    with pytest.raises(NotFound, match="nowhere"):
        gateway.run(MemoryAdmin(gateway.control, agents=lambda: ["main"]).resend_memory("nowhere", since=0.0))
    gateway.run_until_idle(60)
    assert len(provider.writes) == 1
