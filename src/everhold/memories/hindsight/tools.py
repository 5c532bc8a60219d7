"""Hindsight's tools, under Hindsight's own names. They show only what the people present may see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.entries import Noted
from everhold.memories.hindsight.client import HindsightNotFound
from everhold.memories.scope import make_safe_id
from everhold.ports.memory import MemoryQuery
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult

if TYPE_CHECKING:
    from everhold.memories.hindsight.provider import HindsightMemory

MAX_RESULTS: Final = 20
AUDIENCE_UNKNOWN: Final = ToolResult(
    text="The audience of this chat is unknown, so nothing from Hindsight can be shown here.", error=True
)
HindsightAction = Callable[["HindsightMemory", dict[str, Any], ToolContext], Awaitable[ToolResult]]


def build_tools(memory: HindsightMemory) -> Sequence[Tool]:
    query = {"type": "string", "description": "What to search for, or to reflect on."}
    return (
        HindsightTool(
            memory,
            "hindsight_retain",
            "Store something for later. Hindsight extracts facts and people from it and connects them.",
            {
                "content": {"type": "string", "description": "What to store, in self-contained sentences."},
                "context": {"type": "string", "description": "What it is about, in a few words."},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            _run_retain,
            required="content",
        ),
        HindsightTool(
            memory,
            "hindsight_recall",
            "Search what was said and stored, in this and earlier conversations.",
            {"query": query},
            _run_recall,
            required="query",
        ),
        HindsightTool(
            memory,
            "hindsight_reflect",
            "Ask a question that needs reasoning over many memories. Slow: use recall first.",
            {"query": query},
            _run_reflect,
            required="query",
            deadline=memory.settings.reflect_seconds,
        ),
    )


class HindsightTool:
    """One Hindsight tool. Running it again is safe, because it stores by a note that commits with the result."""

    effect = ToolEffect.PURE

    def __init__(
        self,
        memory: HindsightMemory,
        name: str,
        description: str,
        properties: dict[str, Any],
        act: HindsightAction,
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

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if not context.stamp.audience or context.agent != self._memory.agent:
            return AUDIENCE_UNKNOWN
        given = arguments.get(self._required)
        if not isinstance(given, str) or not given.strip():
            return ToolResult(text=f"`{self._required}` is missing.", error=True)
        return await self._act(self._memory, arguments, context)

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


async def _run_retain(memory: HindsightMemory, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    tags = arguments.get("tags")
    given = [tag for tag in tags if isinstance(tag, str) and tag.strip()] if isinstance(tags, list) else []
    about = arguments.get("context")
    text = arguments["content"].strip()
    if isinstance(about, str) and about.strip():
        text = f"{about.strip()}: {text}"
    note = Noted(text=text, tags=tuple(make_safe_id(tag) for tag in given))
    return ToolResult(text="Stored; it will be delivered to Hindsight.", notes=(note,))


async def _run_recall(memory: HindsightMemory, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    found = await memory.find(
        MemoryQuery(
            text=arguments["query"],
            agent=context.agent,
            session=context.session,
            name=memory.session_names.get(context.session, context.session),
            audience=context.stamp.audience,
            person=context.stamp.person,
            limit=MAX_RESULTS,
        )
    )
    return ToolResult(text="\n\n".join(it.text for it in found) or "Nothing was found.")


async def _run_reflect(memory: HindsightMemory, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    audience = context.stamp.audience
    bank = memory.get_bank(audience, memory.session_names.get(context.session, context.session))
    try:
        answer = await memory.client.call(
            "reflecting",
            lambda sdk: sdk.areflect(
                bank,
                arguments["query"],
                budget="low",
                tags=list(memory.build_present_tags(audience)),
                tags_match="all_strict",
            ),
        )
    except HindsightNotFound:
        return ToolResult(text="Nothing is known here yet.")
    return ToolResult(text=answer.text)
