"""The process's hands: platforms, memories, tools and a model whose far sides are at the other end of a wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from everhold.core.entries import Noted, Place
from everhold.errors import Refused
from everhold.ports.memory import Batch, Capability, Found, Query
from everhold.ports.model import Answer, Request, ToolSpec
from everhold.ports.platform import Accept, Delivery, Incoming, Outgoing, PlatformOffset
from everhold.ports.tool import Effect, Result, Saying, ToolContext
from everhold.testing.kill import town
from everhold.testing.kill.wire import Far


class WirePlatform:
    """Polls with an offset, and asks for later news only once everything before it is committed."""

    account = "main"
    text_limit = town.TEXT_LIMIT

    def __init__(self, far: Far, name: str, delivery: Delivery) -> None:
        self.far = far
        self.name = name
        self.delivery = delivery
        self.visible_after = town.VISIBLE_AFTER if delivery is Delivery.PROBE else 0.0

    async def listen(self, accept: Accept) -> None:
        offset = 0
        while True:
            for number, incoming in await self.news(offset):
                await accept(incoming)
                offset = number + 1

    async def news(self, offset: int) -> list[tuple[int, Incoming]]:
        found = await self.far.ask(f"platform/{self.name}", "poll", {"offset": offset})
        return [(number, self._placed(number, told)) for number, told in found]

    def _placed(self, number: int, told: object) -> Incoming:
        offset = PlatformOffset(key="offset", value=str(number + 1))
        return msgspec.structs.replace(msgspec.convert(told, Incoming), offset=offset)

    async def send(self, out: Outgoing) -> str:
        return str(await self._do("send", out))

    async def probe(self, out: Outgoing) -> str | None:
        remote: str | None = await self._do("probe", out)
        return remote

    async def draft(self, out: Outgoing) -> str:
        return str(await self._do("draft", out))

    async def revise(self, remote: str, out: Outgoing) -> None:
        await self._do("revise", out, remote=remote)

    async def _do(self, do: str, out: Outgoing, **given: object) -> Any:
        return await self.far.ask(f"platform/{self.name}", do, {"out": out, **given})


class WireMemory:
    capabilities = frozenset({Capability.PROBE, Capability.RETRACT})
    deadline = town.DEADLINE

    def __init__(self, far: Far, name: str, delivery: Delivery) -> None:
        self.far = far
        self.name = name
        self.delivery = delivery
        self.visible_after = town.VISIBLE_AFTER if delivery is Delivery.PROBE else 0.0

    async def store(self, batch: Batch) -> Mapping[str, str]:
        kept: dict[str, str] = await self._do("store", batch)
        return kept

    async def probe(self, batch: Batch) -> Sequence[str]:
        there: list[str] = await self._do("probe", batch)
        return there

    async def find(self, query: Query) -> Sequence[Found]:
        return ()

    async def _do(self, do: str, batch: Batch) -> Any:
        items = [(type(item).__name__, item) for item in batch.items]
        return await self.far.ask(f"memory/{self.name}", do, {"name": batch.name, "items": items})


class WireTool:
    deadline = town.DEADLINE

    def __init__(self, far: Far, name: str, effect: Effect) -> None:
        self.far = far
        self.spec = ToolSpec(name=name, description=f"a {effect} tool", parameters={"type": "object"})
        self.effect = effect

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        text = str(await self._do("run", context, message=arguments["for"]))
        notes: tuple[Noted, ...] = ()
        sayings: tuple[Saying, ...] = ()
        if self.spec.name == "note":
            notes = (Noted(text=text),)
        if self.spec.name == "tell":
            sayings = (Saying(text="a word on the way", to=context.origin or Place(platform="keyed")),)
        return Result(text=text, notes=notes, sayings=sayings)

    async def probe(self, context: ToolContext) -> Result | None:
        done = await self._do("probe", context, message="")
        return None if done is None else Result(text=str(done))

    async def _do(self, do: str, context: ToolContext, *, message: str) -> Any:
        return await self.far.ask(f"tool/{self.spec.name}", do, {"key": context.key, "message": message})


class WireModel:
    name = "town"
    context_tokens = town.CONTEXT_TOKENS

    def __init__(self, far: Far) -> None:
        self.far = far

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        told = await self.far.ask("model/town", "answer", {"request": request}, on_piece=on_text)
        if told is None:
            raise Refused("the model said nothing")
        return msgspec.convert(told, Answer)
