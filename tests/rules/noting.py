"""A house whose agent has the memory tools and does with them what people tell it, word for word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from everhold.core.entries import Call
from everhold.flow.facts import Facts
from everhold.ports.memory import Found, Query
from everhold.ports.model import Answer, Request
from everhold.ports.tool import Effect, Result, Tool
from everhold.testing.fakes import FakeProvider, FakeTool, ScriptedModel
from everhold.testing.house import House
from everhold.tools.memory import memory_tools


def asked_for(*calls: tuple[str, dict[str, Any]]) -> str:
    """A message that makes the agent call these tools, each round one list of them."""
    return "!" + json.dumps([list(calls)])


def rounds(*each: list[tuple[str, dict[str, Any]]]) -> str:
    return "!" + json.dumps(each)


def obey(request: Request) -> Answer:
    """Calls what the last order of a person says, a round at a time; then repeats what came back."""
    orders = [number for number, message in enumerate(request.messages) if message.text.startswith("!")]
    if not orders or any(m.role == "user" and m.name != "memory" for m in request.messages[orders[-1] + 1 :]):
        return Answer(text="ok")
    since = request.messages[orders[-1] + 1 :]
    done = sum(message.role == "assistant" for message in since)
    plan = json.loads(request.messages[orders[-1]].text[1:])
    if done < len(plan):
        return Answer(
            calls=tuple(Call(id=f"{done}-{n}", tool=tool, arguments=args) for n, (tool, args) in enumerate(plan[done]))
        )
    return Answer(text=" / ".join(message.text for message in since if message.role == "tool"))


def furnish(house: House, *, notices: bool = True, page: str = "", limits: dict[str, int] | None = None) -> Facts:
    """Give the agent its memory tools, and `fetch`, which returns a page."""
    facts = Facts(house.store)
    tools: dict[str, Tool] = dict(memory_tools(facts, limits=limits or {"user": 200, "memory": 200}))
    house.furniture.tools = {**tools, "fetch": FakeTool("fetch", Effect.PURE, act=lambda _a, _c: Result(text=page))}
    house.furniture.model = house.furniture.summariser = ScriptedModel(obey)
    house.furniture.settings.update(facts=facts, memory_notices=notices)
    house.furniture.memories = house.furniture.memories or {"a": Finding()}
    return facts


def add(text: str, target: str = "user") -> tuple[str, dict[str, Any]]:
    return "memory", {"action": "add", "target": target, "content": text}


def shown(house: House, turn: int = -1) -> str:
    """All that the model was shown."""
    return "\n".join(message.text for message in house.furniture.model.asked[turn].messages)


class Finding(FakeProvider):
    """Finds what a test hands it, whoever asks: what may be shown is not its business."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Found] = []

    async def find(self, query: Query) -> Sequence[Found]:
        return self.answers
