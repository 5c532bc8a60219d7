"""Hindsight's tools, under Hindsight's own names. They show only what the people present may see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.entries import Noted
from everhold.core.peers import make_safe_id
from everhold.core.roles import ToolAccess
from everhold.memories.hindsight.client import HindsightNotFound
from everhold.memories.scope import get_present
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
        self.access = ToolAccess.NOTE if act is _run_retain else ToolAccess.READ
        self.deadline = deadline
        self.shows_hits = act is not _run_reflect
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
            present=context.present,
            peers=context.peers,
        )
    )
    return ToolResult(text="Nothing was found.", hits=tuple(found))


async def _run_reflect(memory: HindsightMemory, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    present = get_present(context).drop_reused_ids()
    name = memory.session_names.get(context.session, context.session)
    texts = []
    for bank in memory.list_present_banks(present, context.peers, name):
        try:
            answer = await memory.client.call(
                "reflecting",
                lambda sdk, bank=bank: sdk.areflect(
                    bank, arguments["query"], budget="low", **memory.build_tag_filter(present)
                ),
            )
        except HindsightNotFound:
            continue
        texts.append(answer.text)
    return ToolResult(text="\n\n".join(texts) or "Nothing is known here yet.")
