"""Fake remote services in one process: a model, platforms, memory providers and tools, with planned faults.

A fake keeps everything that reached it, also when its caller crashes, so a test can compare the log with what arrived.
It fails as real services do: an unkeyed one accepts a repeat, and an answer may be lost after the work was done. It
uses the time of the running loop, so virtual time works.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everhold.core.entries import ModelUsage
from everhold.errors import InDoubt
from everhold.ports.memory import (
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
)
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse, ToolSpec
from everhold.ports.platform import AcceptMessage, AcceptResult, DeliveryGuarantee, IncomingMessage, OutgoingMessage
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult


class FaultQueue:
    """The planned faults, one per call, in order. When none is left, calls succeed."""

    def __init__(self) -> None:
        self._next: deque[tuple[Exception | None, bool]] = deque()

    def fail_next(self, error: Exception, *, times: int = 1) -> None:
        """Plan to raise `error` before the call has an effect."""
        self._next.extend([(error, False)] * times)

    def lose_next_answer(self, error: Exception | None = None, *, times: int = 1) -> None:
        """Plan to do the work, then raise `error` (InDoubt) instead of answering."""
        self._next.extend([(error or InDoubt("the answer was lost"), True)] * times)

    def succeed_next(self, *, times: int = 1) -> None:
        """Plan `times` successful calls."""
        self._next.extend([(None, False)] * times)

    def begin_call(self) -> Exception | None:
        """Start a call: raise its planned error, or return the error to raise at its end."""
        error, done = self._next.popleft() if self._next else (None, False)
        if error is not None and not done:
            raise error
        return error


def _raise_if_failed(error: Exception | None) -> None:
    if error is not None:
        raise error


# -- the model ---------------------------------------------------------------------------------------------------------


def echo_last_message(request: ModelRequest) -> ModelResponse:
    """Answer with the last message."""
    last = next(
        (message for message in reversed(request.messages) if message.role == "user"), ModelMessage(role="user")
    )
    return ModelResponse(text=f"You said: {last.text}", model="echo", usage=ModelUsage(input=10, output=5))


class FakeModel:
    """Answers from a list, in order, or with a function of the request."""

    def __init__(
        self,
        script: Callable[[ModelRequest], ModelResponse] | Sequence[ModelResponse] = echo_last_message,
        *,
        name: str = "scripted",
        context_tokens: int = 100_000,
    ) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self.faults = FaultQueue()
        self.requests: list[ModelRequest] = []
        self._by_request = script if callable(script) else None
        self._answers = deque(() if callable(script) else script)

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        self.requests.append(request)
        lost = self.faults.begin_call()
        answer = self._by_request(request) if self._by_request else self._answers.popleft()
        if on_text is not None and answer.text:
            on_text(answer.text)
        _raise_if_failed(lost)
        return answer


# -- platforms ---------------------------------------------------------------------------------------------------------


class FakePlatform:
    """One account. It delivers users' messages until they are acknowledged, and records the sent messages."""

    def __init__(
        self,
        delivery: DeliveryGuarantee = DeliveryGuarantee.KEYED,
        *,
        name: str = "fake",
        account: str = "main",
        text_limit: int = 4_000,
        file_limit: int = 1_000_000,
        visible_after: float = 0.0,
        settle_seconds: float = 5.0,
    ) -> None:
        self.delivery = delivery
        self.name = name
        self.account = account
        self.text_limit = text_limit
        self.file_limit = file_limit
        self.visible_after = visible_after
        self.settle_seconds = settle_seconds
        self.faults = FaultQueue()
        self.shown_messages: list[OutgoingMessage] = []
        """The messages that users see, in the order of their arrival."""
        self.arrived: dict[str, tuple[str, float]] = {}
        """key -> (remote id, when it first arrived)."""
        self.verdicts: list[AcceptResult] = []
        self._updates: list[IncomingMessage] = []
        self._acknowledged = 0
        self._news = asyncio.Event()

    def write_message(self, incoming: IncomingMessage) -> None:
        """Write a message as a user."""
        self._updates.append(incoming)
        self._news.set()

    async def listen(self, accept: AcceptMessage) -> None:
        while True:
            while self._acknowledged < len(self._updates):
                self.verdicts.append(await accept(self._updates[self._acknowledged]))
                self._acknowledged += 1
            self._news.clear()
            await self._news.wait()

    async def send(self, out: OutgoingMessage) -> str:
        lost = self.faults.begin_call()
        remote = self.receive_sent(out)
        _raise_if_failed(lost)
        return remote

    async def probe(self, out: OutgoingMessage) -> str | None:
        lost = self.faults.begin_call()
        remote, at = self.arrived.get(out.key, (None, 0.0))
        _raise_if_failed(lost)
        return remote if at + self.visible_after <= asyncio.get_running_loop().time() else None

    def receive_sent(self, out: OutgoingMessage) -> str:
        """Receive a message, as the service does in a send."""
        if self.delivery is DeliveryGuarantee.KEYED and out.key in self.arrived:
            return self.arrived[out.key][0]
        self.shown_messages.append(out)
        remote = f"{self.name}-{len(self.shown_messages)}"
        self.arrived.setdefault(out.key, (remote, asyncio.get_running_loop().time()))
        return remote


# -- memory ------------------------------------------------------------------------------------------------------------


class FakeMemoryProvider:
    """Stores memories per session name, in the order of their arrival."""

    capabilities = frozenset({MemoryCapability.PROBE, MemoryCapability.RETRACT})

    def __init__(
        self,
        delivery: DeliveryGuarantee = DeliveryGuarantee.KEYED,
        *,
        deadline: float = 30.0,
        visible_after: float = 0.0,
    ) -> None:
        self.delivery = delivery
        self.deadline = deadline
        self.visible_after = visible_after
        self.faults = FaultQueue()
        self.kept: dict[str, list[MemoryItem]] = {}
        self.arrived: dict[str, float] = {}
        """key -> when it first arrived."""
        self.writes: list[tuple[str, str]] = []
        """(session name, key) of every write, repeats included."""
        self.replaced: dict[str, str] = {}
        """key -> the text of the superseded note, as it was received."""
        self.heard_by: dict[str, tuple[str, ...]] = {}
        """key -> the audience of the retracted or replaced item, as it was received."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        lost = self.faults.begin_call()
        self.replaced |= batch.replaced
        self.heard_by |= batch.heard_by
        for item in batch.items:
            self.receive_item(batch.name, item)
        _raise_if_failed(lost)
        return {item.key: f"doc-{item.key}" for item in batch.items}

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        lost = self.faults.begin_call()
        words = set(query.text.lower().split())
        found = [
            MemoryHit(text=text, session=item.session, key=item.key, at=item.at, score=float(hits))
            for item in self.kept.get(query.name, [])
            if (hits := len(words & set((text := get_memory_text(item)).lower().split())))
        ]
        _raise_if_failed(lost)
        return sorted(found, key=lambda one: -one.score)[: query.limit]

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        lost = self.faults.begin_call()
        latest = asyncio.get_running_loop().time() - self.visible_after
        there = [item.key for item in batch.items if self.arrived.get(item.key, latest + 1) <= latest]
        _raise_if_failed(lost)
        return there

    def receive_item(self, name: str, item: MemoryItem) -> None:
        """Receive one item, as the service does in a store."""
        kept = self.kept.setdefault(name, [])
        self.writes.append((name, item.key))
        known = item.key in self.arrived
        self.arrived.setdefault(item.key, asyncio.get_running_loop().time())
        if known and self.delivery is DeliveryGuarantee.KEYED:
            return
        if known and self.delivery is DeliveryGuarantee.UPSERT:
            kept[:] = [item if one.key == item.key else one for one in kept]
            return
        kept.append(item)


def get_memory_text(item: MemoryItem) -> str:
    """Return the text of a memory item of any kind."""
    match item:
        case Exchange(heard=heard, said=said):
            return " ".join(each.text for each in (*heard, *said))
        case MemoryNote(text=text):
            return text
        case _:
            return ""


# -- tools -------------------------------------------------------------------------------------------------------------


class FakeTool:
    """A tool with any effect that counts its runs and effects by key."""

    def __init__(
        self,
        name: str,
        effect: ToolEffect,
        *,
        deadline: float = 30.0,
        act: Callable[[dict[str, Any], ToolContext], ToolResult] | None = None,
    ) -> None:
        self.spec = ToolSpec(name=name, description=f"a {effect} tool", parameters={"type": "object"})
        self.effect = effect
        self.deadline = deadline
        self.faults = FaultQueue()
        self.started: Counter[str] = Counter()
        """key -> how often it ran."""
        self.done: Counter[str] = Counter()
        """key -> how often it had an effect."""
        self.results: dict[str, ToolResult] = {}
        self._act = act or (lambda _arguments, context: ToolResult(text=f"{name} did {context.key}"))

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        lost = self.faults.begin_call()
        self.started[context.key] += 1
        if not (self.effect is ToolEffect.KEYED and context.key in self.results):
            self.results[context.key] = self._act(arguments, context)
            self.done[context.key] += 1
        _raise_if_failed(lost)
        return self.results[context.key]

    async def probe(self, context: ToolContext) -> ToolResult | None:
        lost = self.faults.begin_call()
        _raise_if_failed(lost)
        return self.results.get(context.key)
