"""The fakes that plug-in authors get are as unkind as the world."""

from __future__ import annotations

import pytest

from everhold.core.entries import Place, Stamp
from everhold.errors import InDoubt, Transient
from everhold.ports.memory import Batch, Note
from everhold.ports.model import Message, Request
from everhold.ports.platform import Delivery, Outgoing
from everhold.ports.tool import Effect, ToolContext
from everhold.testing.fakes import FakePlatform, FakeProvider, FakeTool, ScriptedModel

OUT = Outgoing(to=Place(platform="fake", chat="c"), text="hello", key="s:1:0")
NOTE = Note(key="s:2:note", session="s", agent="main", seq=2, text="a fact", author="ada", at=0.0, stamp=Stamp())
CONTEXT = ToolContext(session="s", agent="main", op=1, key="s:1:1:c", stamp=Stamp())


@pytest.mark.parametrize("delivery, shown", [(Delivery.KEYED, 1), (Delivery.PROBE, 2), (Delivery.BLIND, 2)])
async def test_only_a_keyed_platform_recognises_a_repeat(delivery: Delivery, shown: int) -> None:
    platform = FakePlatform(delivery)
    platform.faults.lose()
    with pytest.raises(InDoubt):
        await platform.send(OUT)
    assert await platform.probe(OUT) is not None
    await platform.send(OUT)
    assert len(platform.shown) == shown


async def test_a_failure_before_anything_happened_leaves_nothing_behind() -> None:
    platform = FakePlatform()
    platform.faults.fail(Transient("not now", retry_after=5), times=2)
    for _ in range(2):
        with pytest.raises(Transient):
            await platform.send(OUT)
    assert platform.shown == []
    await platform.send(OUT)
    assert [out.text for out in platform.shown] == ["hello"]


@pytest.mark.parametrize(
    "delivery, kept", [(Delivery.KEYED, 1), (Delivery.UPSERT, 1), (Delivery.PROBE, 2), (Delivery.BLIND, 2)]
)
async def test_a_provider_keeps_what_its_delivery_says(delivery: Delivery, kept: int) -> None:
    provider = FakeProvider(delivery)
    for _ in range(2):
        await provider.store(Batch(name="s", items=(NOTE,)))
    assert len(provider.kept["s"]) == kept
    assert provider.writes == [("s", NOTE.key)] * 2


async def test_what_was_stored_is_found_by_a_probe_only_after_its_time() -> None:
    provider = FakeProvider(Delivery.PROBE, visible_after=3600.0)
    batch = Batch(name="s", items=(NOTE,))
    await provider.store(batch)
    assert await provider.probe(batch) == []
    provider.visible_after = 0.0
    assert await provider.probe(batch) == [NOTE.key]


@pytest.mark.parametrize("effect, done", [(Effect.PURE, 2), (Effect.KEYED, 1), (Effect.PROBE, 2), (Effect.ONCE, 2)])
async def test_a_tool_does_again_what_only_a_key_prevents(effect: Effect, done: int) -> None:
    tool = FakeTool("it", effect)
    tool.faults.lose()
    with pytest.raises(InDoubt):
        await tool.run({}, CONTEXT)
    await tool.run({}, CONTEXT)
    assert tool.started[CONTEXT.key] == 2
    assert tool.done[CONTEXT.key] == done
    assert await tool.probe(CONTEXT) is not None


async def test_a_model_answers_by_its_script_and_remembers_what_it_was_asked() -> None:
    model = ScriptedModel()
    pieces: list[str] = []
    request = Request(system="", messages=(Message(role="user", text="hi"),))
    answer = await model.answer(request, on_text=pieces.append)
    assert answer.text == "".join(pieces) == "You said: hi"
    assert model.asked == [request]
