"""Outages, crashes and wrong responses lose nothing, with every `write` setting and every delivery guarantee."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from everhold.core.entries import Changed, MemoryNameSet
from everhold.core.memory_pacing import SILENCE_SECONDS, parse_write_setting
from everhold.errors import InDoubt, Transient
from everhold.ports.memory import MemoryBatch, MemoryHit, MemoryQuery
from everhold.ports.platform import DeliveryGuarantee
from everhold.testing.fakes import FakeMemoryProvider, get_memory_text
from everhold.testing.gateway import InProcessGateway

DEADLINE = 5.0
writes = pytest.mark.parametrize("write", ["turn", "async", "session", 3])
sure = pytest.mark.parametrize("delivery", [DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT, DeliveryGuarantee.PROBE])


class UnreliableProvider(FakeMemoryProvider):
    """A service that can be down, and whose next writes fail in a chosen way."""

    def __init__(self, delivery: DeliveryGuarantee) -> None:
        super().__init__(delivery, deadline=DEADLINE, visible_after=1.0)
        self.down = False
        self.troubles: list[str] = []
        self.calls = 0

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        self.calls += 1
        if self.down:
            raise Transient("no route")
        trouble = self.troubles.pop(0) if self.troubles else ""
        match trouble:
            case "lie" | "reset":  # the service only claimed success, or the request never arrived
                raise InDoubt(trouble)
            case "late":  # the connection broke, but the request is carried out just before its deadline
                asyncio.get_running_loop().call_later(DEADLINE - 0.1, self._keep, batch)
                raise InDoubt(trouble)
        self._keep(batch)
        if trouble == "503":
            raise InDoubt(trouble)
        return {item.key: f"doc-{item.key}" for item in batch.items}

    def _keep(self, batch: MemoryBatch) -> None:
        for item in batch.items:
            self.receive_item(batch.name, item)

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return []

    def words(self) -> list[str]:
        return [get_memory_text(item).partition(" ")[0] for items in self.kept.values() for item in items]


def attached(gateway: InProcessGateway, delivery: DeliveryGuarantee, write: str | int) -> UnreliableProvider:
    provider = UnreliableProvider(delivery)
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings["pacing"] = {"a": parse_write_setting(write)}
    gateway.pass_time(1)  # items from before the start are not held back
    return provider


def wait_until_settled(gateway: InProcessGateway) -> None:
    """Wait until nothing is held back and all items have arrived."""
    gateway.run_until_idle(SILENCE_SECONDS + 60)


@sure
@writes
def test_an_outage_of_an_hour_loses_doubles_and_reorders_nothing(
    gateway: InProcessGateway, write: str | int, delivery: DeliveryGuarantee
) -> None:
    provider = attached(gateway, delivery, write)
    gateway.send_message("before")
    wait_until_settled(gateway)
    provider.down = True
    words = [f"w{number}" for number in range(12)]
    for word in words:
        gateway.send_message(word, rest=False)
        gateway.pass_time(300)
    assert provider.words() == ["before"]
    provider.down = False
    wait_until_settled(gateway)
    assert provider.words() == ["before", *words]
    assert provider.calls < 100, "an outage is waited out, not hammered at"
    gateway.assert_sound()


@sure
@writes
@pytest.mark.parametrize("trouble", ["503", "late", "lie", "reset"])
def test_an_item_is_stored_once_whatever_happened_to_the_response(
    gateway: InProcessGateway, write: str | int, delivery: DeliveryGuarantee, trouble: str
) -> None:
    provider = attached(gateway, delivery, write)
    provider.troubles = [trouble, "", trouble]
    for word in ("one", "two", "three", "four"):
        gateway.send_message(word)
    wait_until_settled(gateway)
    gateway.send_message("five")
    wait_until_settled(gateway)
    assert provider.words() == ["one", "two", "three", "four", "five"]
    assert not gateway.run(gateway.store.list_dead_letters())
    gateway.assert_sound()


@sure
@writes
def test_a_crash_between_send_and_response_stores_the_item_once(
    gateway: InProcessGateway, write: str | int, delivery: DeliveryGuarantee
) -> None:
    provider = attached(gateway, delivery, write)
    provider.troubles = ["503"]
    for word in ("one", "two"):
        gateway.send_message(word)
    gateway.send_message(
        "/new", rest=False
    )  # nothing is held back: the batch is sent, and the process is gone before the response
    gateway.pass_time(0.5)
    assert provider.words() == ["one", "two"][: len(provider.words())] != []
    gateway.crash()
    gateway.start()
    gateway.send_message("three")
    wait_until_settled(gateway)
    assert provider.words() == ["one", "two", "three"]
    gateway.assert_sound()


@writes
def test_only_conversation_is_stored_and_all_of_it_under_one_name(gateway: InProcessGateway, write: str | int) -> None:
    provider = attached(gateway, DeliveryGuarantee.KEYED, write)
    gateway.send_message("/status")
    wait_until_settled(gateway)
    assert (provider.calls, provider.kept) == (0, {}), "an empty batch sends nothing"
    session = gateway.send_message("one").session
    for command in ("/compress", "/new", "/title Tea", "/whoami"):
        gateway.send_message(command)
    wait_until_settled(gateway)
    gateway.crash()
    gateway.start()
    wait_until_settled(gateway)
    gateway.send_message("two")
    wait_until_settled(gateway)
    named = [it.change for it in gateway.read_bodies(session, Changed) if isinstance(it.change, MemoryNameSet)]
    assert [it.name for it in named] == list(provider.kept)
    assert provider.words() == ["one", "two"]


@writes
def test_two_people_in_one_thread_keep_separate_memories(gateway: InProcessGateway, write: str | int) -> None:
    provider = attached(gateway, DeliveryGuarantee.PROBE, write)
    said = [(who, f"w{number}") for number, who in enumerate(["ada", "bob"] * 4)]
    for number, (who, word) in enumerate(said):
        gateway.send_message(word, who=who, kind="thread")
        if number == 4:
            gateway.crash()
            gateway.start()
    wait_until_settled(gateway)
    heard = [
        (utterance.stamp.person, utterance.text)
        for items in provider.kept.values()
        for item in items
        for utterance in item.heard  # type: ignore[union-attr]
    ]
    assert heard == said
    assert len(provider.kept) == 1
    gateway.assert_sound()
