"""Hindsight's tools, under the names people know. They see what whoever is present may know, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.entries import Noted
from everhold.memories.hindsight.client import Gone
from everhold.memories.scope import handle
from everhold.ports.memory import Query
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Effect, Result, Tool, ToolContext

if TYPE_CHECKING:
    from everhold.memories.hindsight.provider import HindsightMemory

MOST: Final = 20
NOBODY: Final = Result(text="It is not known who is present: nothing of Hindsight's can be shown here.", error=True)
Act = Callable[["HindsightMemory", dict[str, Any], ToolContext], Awaitable[Result]]


def tools_of(memory: HindsightMemory) -> Sequence[Tool]:
    query = {"type": "string", "description": "What to look for, or to think about."}
    return (
        HindsightTool(
            memory,
            "hindsight_retain",
            "Keep something for later. Hindsight takes facts and people out of it and connects them.",
            {
                "content": {"type": "string", "description": "What to keep, in sentences that stand by themselves."},
                "context": {"type": "string", "description": "What it is about, in a few words."},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            _retain,
            required="content",
        ),
        HindsightTool(
            memory,
            "hindsight_recall",
            "Search what was said and kept, in this and earlier conversations.",
            {"query": query},
            _recall,
            required="query",
        ),
        HindsightTool(
            memory,
            "hindsight_reflect",
            "Ask a question that needs thinking over many memories. Slow: recall first.",
            {"query": query},
            _reflect,
            required="query",
            deadline=memory.settings.reflect_seconds,
        ),
    )


class HindsightTool:
    """One of them. Running it again does no harm: what is retained is a note that commits with the result."""

    effect = Effect.PURE

    def __init__(
        self,
        memory: HindsightMemory,
        name: str,
        description: str,
        properties: dict[str, Any],
        act: Act,
        *,
        required: str,
        deadline: float = 15.0,
    ) -> None:
        parameters = {
            "type": "object",
            "properties": properties,
            "required": [required],
            "additionalProperties": False,
        }
        self.spec = ToolSpec(name=name, description=description, parameters=parameters)
        self.deadline = deadline
        self._memory = memory
        self._act = act
        self._required = required

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        if not context.stamp.audience or context.agent != self._memory.agent:
            return NOBODY
        given = arguments.get(self._required)
        if not isinstance(given, str) or not given.strip():
            return Result(text=f"`{self._required}` is missing.", error=True)
        return await self._act(self._memory, arguments, context)

    async def probe(self, context: ToolContext) -> Result | None:
        return None


async def _retain(memory: HindsightMemory, arguments: dict[str, Any], context: ToolContext) -> Result:
    tags = arguments.get("tags")
    given = [tag for tag in tags if isinstance(tag, str) and tag.strip()] if isinstance(tags, list) else []
    about = arguments.get("context")
    text = arguments["content"].strip()
    if isinstance(about, str) and about.strip():
        text = f"{about.strip()}: {text}"
    note = Noted(text=text, tags=tuple(handle(tag) for tag in given))
    return Result(text="Kept; it will be delivered to Hindsight.", notes=(note,))


async def _recall(memory: HindsightMemory, arguments: dict[str, Any], context: ToolContext) -> Result:
    found = await memory.find(
        Query(
            text=arguments["query"],
            agent=context.agent,
            session=context.session,
            name=memory.names.get(context.session, context.session),
            audience=context.stamp.audience,
            person=context.stamp.person,
            limit=MOST,
        )
    )
    return Result(text="\n\n".join(it.text for it in found) or "Nothing was found.")


async def _reflect(memory: HindsightMemory, arguments: dict[str, Any], context: ToolContext) -> Result:
    audience = context.stamp.audience
    bank = memory.bank(audience, memory.names.get(context.session, context.session))
    try:
        answer = await memory.client.ask(
            "reflecting",
            lambda sdk: sdk.areflect(
                bank, arguments["query"], budget="low", tags=list(memory.company(audience)), tags_match="all_strict"
            ),
        )
    except Gone:
        return Result(text="Nothing is known here yet.")
    return Result(text=answer.text)
