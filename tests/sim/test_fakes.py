"""The fakes for plug-in authors fail as real services do."""

from __future__ import annotations

import pytest

from everhold.core.entries import ChatLocation, Stamp
from everhold.errors import InDoubt, Transient
from everhold.ports.memory import MemoryBatch, MemoryNote
from everhold.ports.model import ModelMessage, ModelRequest
from everhold.ports.platform import DeliveryGuarantee, OutgoingMessage
from everhold.ports.tool import ToolContext, ToolEffect
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakePlatform, FakeTool

OUT = OutgoingMessage(to=ChatLocation(platform="fake", chat="c"), text="hello", key="s:1:0")
NOTE = MemoryNote(key="s:2:note", session="s", agent="main", seq=2, text="a fact", author="ada", at=0.0, stamp=Stamp())
CONTEXT = ToolContext(session="s", agent="main", op=1, key="s:1:1:c", stamp=Stamp())


@pytest.mark.parametrize(
    "delivery, shown", [(DeliveryGuarantee.KEYED, 1), (DeliveryGuarantee.PROBE, 2), (DeliveryGuarantee.BLIND, 2)]
)
async def test_only_a_keyed_platform_recognises_a_repeat(delivery: DeliveryGuarantee, shown: int) -> None:
    platform = FakePlatform(delivery)
    platform.faults.lose_next_answer()
    with pytest.raises(InDoubt):
        await platform.send(OUT)
    assert await platform.probe(OUT) is not None
    await platform.send(OUT)
    assert len(platform.shown_messages) == shown


async def test_a_failure_before_the_work_has_no_effect() -> None:
    platform = FakePlatform()
    platform.faults.fail_next(Transient("not now", retry_after=5), times=2)
    for _ in range(2):
        with pytest.raises(Transient):
            await platform.send(OUT)
    assert platform.shown_messages == []
    await platform.send(OUT)
    assert [out.text for out in platform.shown_messages] == ["hello"]


@pytest.mark.parametrize(
    "delivery, kept",
    [
        (DeliveryGuarantee.KEYED, 1),
        (DeliveryGuarantee.UPSERT, 1),
        (DeliveryGuarantee.PROBE, 2),
        (DeliveryGuarantee.BLIND, 2),
    ],
)
async def test_a_fake_provider_follows_its_delivery_guarantee(delivery: DeliveryGuarantee, kept: int) -> None:
    provider = FakeMemoryProvider(delivery)
    for _ in range(2):
        await provider.store(MemoryBatch(name="s", items=(NOTE,)))
    assert len(provider.kept["s"]) == kept
    assert provider.writes == [("s", NOTE.key)] * 2


async def test_a_probe_finds_a_stored_item_only_after_the_visibility_lag() -> None:
    provider = FakeMemoryProvider(DeliveryGuarantee.PROBE, visible_after=3600.0)
    batch = MemoryBatch(name="s", items=(NOTE,))
    await provider.store(batch)
    assert await provider.probe(batch) == []
    provider.visible_after = 0.0
    assert await provider.probe(batch) == [NOTE.key]


@pytest.mark.parametrize(
    "effect, done", [(ToolEffect.PURE, 2), (ToolEffect.KEYED, 1), (ToolEffect.PROBE, 2), (ToolEffect.ONCE, 2)]
)
async def test_a_fake_tool_repeats_its_effect_unless_it_knows_the_key(effect: ToolEffect, done: int) -> None:
    tool = FakeTool("it", effect)
    tool.faults.lose_next_answer()
    with pytest.raises(InDoubt):
        await tool.run({}, CONTEXT)
    await tool.run({}, CONTEXT)
    assert tool.started[CONTEXT.key] == 2
    assert tool.done[CONTEXT.key] == done
    assert await tool.probe(CONTEXT) is not None


async def test_a_fake_model_follows_its_script_and_records_requests() -> None:
    model = FakeModel()
    pieces: list[str] = []
    request = ModelRequest(system="", messages=(ModelMessage(role="user", text="hi"),))
    answer = await model.answer(request, on_text=pieces.append)
    assert answer.text == "".join(pieces) == "You said: hi"
    assert model.requests == [request]
