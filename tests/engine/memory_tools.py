"""A house whose agent has the memory tools and does with them what people tell it, word for word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from everhold.core.entries import ToolCall
from everhold.engine.facts import FactCache
from everhold.ports.memory import MemoryHit, MemoryQuery
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.tool import Tool, ToolEffect, ToolResult
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway
from everhold.tools.memory import build_memory_tools


def asked_for(*calls: tuple[str, dict[str, Any]]) -> str:
    """A message that makes the agent call these tools, each round one list of them."""
    return "!" + json.dumps([list(calls)])


def rounds(*each: list[tuple[str, dict[str, Any]]]) -> str:
    return "!" + json.dumps(each)


def obey_last_order(request: ModelRequest) -> ModelResponse:
    """Calls what the last order of a person says, a round at a time; then repeats what came back."""
    orders = [number for number, message in enumerate(request.messages) if message.text.startswith("!")]
    if not orders or any(m.role == "user" and m.name != "memory" for m in request.messages[orders[-1] + 1 :]):
        return ModelResponse(text="ok")
    since = request.messages[orders[-1] + 1 :]
    done = sum(message.role == "assistant" for message in since)
    plan = json.loads(request.messages[orders[-1]].text[1:])
    if done < len(plan):
        return ModelResponse(
            calls=tuple(
                ToolCall(id=f"{done}-{n}", tool=tool, arguments=args) for n, (tool, args) in enumerate(plan[done])
            )
        )
    return ModelResponse(text=" / ".join(message.text for message in since if message.role == "tool"))


def add_memory_tools(
    gateway: InProcessGateway, *, notices: bool = True, page: str = "", limits: dict[str, int] | None = None
) -> FactCache:
    """Give the agent its memory tools, and `fetch`, which returns a page."""
    facts = FactCache(gateway.store)
    tools: dict[str, Tool] = dict(build_memory_tools(facts, limits=limits or {"user": 200, "memory": 200}))
    gateway.runtimes.tools = {
        **tools,
        "fetch": FakeTool("fetch", ToolEffect.PURE, act=lambda _a, _c: ToolResult(text=page)),
    }
    gateway.runtimes.model = gateway.runtimes.summariser = FakeModel(obey_last_order)
    gateway.runtimes.settings.update(facts=facts, memory_notices=notices)
    gateway.runtimes.memories = gateway.runtimes.memories or {"a": FindingProvider()}
    return facts


def add(text: str, target: str = "user") -> tuple[str, dict[str, Any]]:
    return "memory", {"action": "add", "target": target, "content": text}


def shown(gateway: InProcessGateway, turn: int = -1) -> str:
    """All that the model was shown."""
    return "\n".join(message.text for message in gateway.runtimes.model.requests[turn].messages)


class FindingProvider(FakeMemoryProvider):
    """Finds what a test hands it, whoever asks: what may be shown is not its business."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[MemoryHit] = []

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return self.answers
