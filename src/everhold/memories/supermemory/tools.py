"""Supermemory's tools, under Supermemory's own names. They show only what the people present may see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.entries import Noted
from everhold.core.roles import ToolAccess
from everhold.memories.remote import search_for_tool
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult

if TYPE_CHECKING:
    from everhold.memories.supermemory.provider import SupermemoryMemory

MAX_RESULTS: Final = 20
AUDIENCE_UNKNOWN: Final = ToolResult(
    text="The audience of this chat is unknown, so nothing from Supermemory can be shown here.", error=True
)
SupermemoryAction = Callable[["SupermemoryMemory", str, ToolContext], Awaitable[ToolResult]]


def build_tools(memory: SupermemoryMemory) -> Sequence[Tool]:
    tools: list[Tool] = [
        SupermemoryTool(memory, "supermemory_store", "Store something for later.", "content", _run_store),
        SupermemoryTool(memory, "supermemory_search", "Search what was said and stored earlier.", "query", _run_search),
    ]
    if memory.has_profiles:
        about = "Show what is known about the person you are talking to."
        tools.append(SupermemoryTool(memory, "supermemory_profile", about, "", _run_profile))
    return tools


class SupermemoryTool:
    """One Supermemory tool. Running it again is safe, because it stores by a note that commits with the result."""

    effect = ToolEffect.PURE
    deadline = 15.0

    def __init__(
        self, memory: SupermemoryMemory, name: str, description: str, needs: str, act: SupermemoryAction
    ) -> None:
        self.spec = ToolSpec(
            name=name,
            description=description,
            parameters={
                "type": "object",
                "properties": {needs: {"type": "string"}} if needs else {},
                "required": [needs] if needs else [],
                "additionalProperties": False,
            },
        )
        self.access = ToolAccess.NOTE if act is _run_store else ToolAccess.READ
        self._memory = memory
        self.shows_hits = act is not _run_profile
        self._required_argument = needs
        self._act = act

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if not context.stamp.audience or context.agent != self._memory.agent:
            return AUDIENCE_UNKNOWN
        given = arguments.get(self._required_argument, "")
        if self._required_argument and (not isinstance(given, str) or not given.strip()):
            return ToolResult(text=f"`{self._required_argument}` is missing.", error=True)
        return await self._act(self._memory, given.strip(), context)

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


async def _run_store(memory: SupermemoryMemory, given: str, context: ToolContext) -> ToolResult:
    return ToolResult(text="Stored; it will be delivered to Supermemory.", notes=(Noted(text=given),))


async def _run_search(memory: SupermemoryMemory, given: str, context: ToolContext) -> ToolResult:
    return await search_for_tool(memory, given, context, limit=MAX_RESULTS)


async def _run_profile(memory: SupermemoryMemory, given: str, context: ToolContext) -> ToolResult:
    lines = [line for ns in memory.list_present_namespaces(context) for line in await memory.read_profile(ns)]
    return ToolResult(text="\n".join(dict.fromkeys(lines)) or "Nothing is known yet.")
