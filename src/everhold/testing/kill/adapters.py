"""The adapters of the killed process: platforms, memories, tools and a model whose services are in the test process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from everhold.core.entries import ChatLocation, Noted
from everhold.errors import Refused
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryQuery,
    ProviderDeletion,
)
from everhold.ports.model import ModelRequest, ModelResponse, ToolSpec
from everhold.ports.platform import AcceptMessage, DeliveryGuarantee, IncomingMessage, OutgoingMessage, PlatformOffset
from everhold.ports.tool import SendRequest, ToolContext, ToolEffect, ToolResult
from everhold.testing.kill import world
from everhold.testing.kill.json_lines import KillClient


class KillPlatformAdapter:
    """Polls with an offset, and requests later updates only when all earlier ones are committed."""

    account = "main"
    text_limit = world.TEXT_LIMIT_CHARS

    def __init__(self, remote: KillClient, name: str, delivery: DeliveryGuarantee) -> None:
        self.remote = remote
        self.name = name
        self.delivery = delivery
        self.visible_after = world.VISIBLE_AFTER_SECONDS if delivery is DeliveryGuarantee.PROBE else 0.0
        self.settle_seconds = world.VISIBLE_AFTER_SECONDS

    async def listen(self, accept: AcceptMessage) -> None:
        offset = 0
        while True:
            for number, incoming in await self.fetch_updates(offset):
                await accept(incoming)
                offset = number + 1

    async def fetch_updates(self, offset: int) -> list[tuple[int, IncomingMessage]]:
        found = await self.remote.call(f"platform/{self.name}", "poll", {"offset": offset})
        return [(number, self._assign_position(number, told)) for number, told in found]

    def _assign_position(self, number: int, told: object) -> IncomingMessage:
        offset = PlatformOffset(key="offset", value=str(number + 1))
        return msgspec.structs.replace(msgspec.convert(told, IncomingMessage), offset=offset)

    async def send(self, out: OutgoingMessage) -> str:
        return str(await self._call_remote("send", out))

    async def probe(self, out: OutgoingMessage) -> str | None:
        remote: str | None = await self._call_remote("probe", out)
        return remote

    async def draft(self, out: OutgoingMessage) -> str:
        return str(await self._call_remote("draft", out))

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        await self._call_remote("revise", out, remote=remote)

    async def _call_remote(self, do: str, out: OutgoingMessage, **given: object) -> Any:
        return await self.remote.call(f"platform/{self.name}", do, {"out": out, **given})


class KillMemoryAdapter:
    capabilities = frozenset({MemoryCapability.PROBE, MemoryCapability.RETRACT, MemoryCapability.FORGET})
    deadline = world.DEADLINE_SECONDS

    def __init__(self, remote: KillClient, name: str, delivery: DeliveryGuarantee) -> None:
        self.remote = remote
        self.name = name
        self.delivery = delivery
        self.visible_after = world.VISIBLE_AFTER_SECONDS if delivery is DeliveryGuarantee.PROBE else 0.0

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        kept: dict[str, str] = await self._call_remote("store", batch)
        return kept

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        there: list[str] = await self._call_remote("probe", batch)
        return there

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return ()

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        named: list[str] = await self.remote.call(f"memory/{self.name}", "forget", {"keys": target.keys, "items": []})
        return [ProviderDeletion(id=key, what=f"the item {key}", count=1) for key in named]

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        keys = [it.id for it in deletions]
        there = await self.remote.call(f"memory/{self.name}", "list", {"keys": keys, "items": []})
        return {key: ErasureState.ASKED if key in there else ErasureState.CONFIRMED for key in keys}

    async def _call_remote(self, do: str, batch: MemoryBatch) -> Any:
        items = [(type(item).__name__, item) for item in batch.items]
        return await self.remote.call(f"memory/{self.name}", do, {"name": batch.name, "items": items})


class KillToolAdapter:
    deadline = world.DEADLINE_SECONDS

    def __init__(self, remote: KillClient, name: str, effect: ToolEffect) -> None:
        self.remote = remote
        self.spec = ToolSpec(name=name, description=f"a {effect} tool", parameters={"type": "object"})
        self.effect = effect

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        text = str(await self._call_remote("run", context, message=arguments["for"]))
        notes: tuple[Noted, ...] = ()
        sayings: tuple[SendRequest, ...] = ()
        if self.spec.name == "note":
            notes = (Noted(text=text),)
        if self.spec.name == "tell":
            sayings = (SendRequest(text="a word on the way", to=context.origin or ChatLocation(platform="keyed")),)
        return ToolResult(text=text, notes=notes, send_requests=sayings)

    async def probe(self, context: ToolContext) -> ToolResult | None:
        done = await self._call_remote("probe", context, message="")
        return None if done is None else ToolResult(text=str(done))

    async def _call_remote(self, do: str, context: ToolContext, *, message: str) -> Any:
        return await self.remote.call(f"tool/{self.spec.name}", do, {"key": context.key, "message": message})


class KillModelAdapter:
    name = "world"
    context_tokens = world.CONTEXT_TOKENS

    def __init__(self, remote: KillClient) -> None:
        self.remote = remote

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        told = await self.remote.call("model/world", "answer", {"request": request}, on_piece=on_text)
        if told is None:
            raise Refused("the model said nothing")
        return msgspec.convert(told, ModelResponse)
