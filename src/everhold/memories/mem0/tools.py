"""Mem0's tools, under Mem0's own names. They show only what the people present may see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.entries import Noted
from everhold.core.roles import ToolAccess
from everhold.memories.remote import search_for_tool
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult

if TYPE_CHECKING:
    from everhold.memories.mem0.provider import Mem0Memory

MAX_RESULTS: Final = 20
AUDIENCE_UNKNOWN: Final = ToolResult(
    text="The audience of this chat is unknown, so nothing from Mem0 can be shown here.", error=True
)


def build_tools(memory: Mem0Memory) -> Sequence[Tool]:
    return (Mem0Tool(memory, "mem0_search"), Mem0Tool(memory, "mem0_add"))


class Mem0Tool:
    """One Mem0 tool. Running it again is safe, because it stores by a note that commits with the result."""

    effect = ToolEffect.PURE
    deadline = 15.0
    shows_hits = True

    def __init__(self, memory: Mem0Memory, name: str) -> None:
        adds = name == "mem0_add"
        self.required_argument = "content" if adds else "query"
        about = "What to store, in a self-contained sentence." if adds else "What to search for."
        self.spec = ToolSpec(
            name=name,
            description="Store a fact for later." if adds else "Search what was said and stored earlier.",
            parameters={
                "type": "object",
                "properties": {self.required_argument: {"type": "string", "description": about}},
                "required": [self.required_argument],
                "additionalProperties": False,
            },
        )
        self.access = ToolAccess.NOTE if adds else ToolAccess.READ
        self._memory = memory

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        memory = self._memory
        if not context.stamp.audience or context.agent != memory.agent:
            return AUDIENCE_UNKNOWN
        given = arguments.get(self.required_argument)
        if not isinstance(given, str) or not given.strip():
            return ToolResult(text=f"`{self.required_argument}` is missing.", error=True)
        if self.required_argument == "content":
            return ToolResult(text="Stored; it will be delivered to Mem0.", notes=(Noted(text=given.strip()),))
        return await search_for_tool(memory, given, context, limit=MAX_RESULTS)

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None
