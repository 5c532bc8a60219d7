"""Supermemory's tools, under the names people know. They see what whoever is present may know, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.entries import Noted
from everhold.memories.remote import search_for_tool
from everhold.memories.supermemory.client import Gone
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Effect, Result, Tool, ToolContext

if TYPE_CHECKING:
    from everhold.memories.supermemory.provider import SupermemoryMemory

MOST: Final = 20
NOBODY: Final = Result(text="It is not known who is present: nothing of Supermemory's can be shown here.", error=True)
Act = Callable[["SupermemoryMemory", str, ToolContext], Awaitable[Result]]


def tools_of(memory: SupermemoryMemory) -> Sequence[Tool]:
    tools: list[Tool] = [
        SupermemoryTool(memory, "supermemory_store", "Keep something for later.", "content", _store),
        SupermemoryTool(memory, "supermemory_search", "Search what was said and kept earlier.", "query", _search),
    ]
    if "{person}" in memory.settings.namespace:
        # a profile is a namespace's: where that is everybody's, there is none to show
        about = "What is known about whoever you talk with."
        tools.append(SupermemoryTool(memory, "supermemory_profile", about, "", _profile))
    return tools


class SupermemoryTool:
    """One of them. Running it again does no harm: what is stored is a note that commits with the result."""

    effect = Effect.PURE
    deadline = 15.0

    def __init__(self, memory: SupermemoryMemory, name: str, description: str, needs: str, act: Act) -> None:
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
        self._memory = memory
        self._needs = needs
        self._act = act

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        if not context.stamp.audience or context.agent != self._memory.agent:
            return NOBODY
        given = arguments.get(self._needs, "")
        if self._needs and (not isinstance(given, str) or not given.strip()):
            return Result(text=f"`{self._needs}` is missing.", error=True)
        return await self._act(self._memory, given.strip(), context)

    async def probe(self, context: ToolContext) -> Result | None:
        return None


async def _store(memory: SupermemoryMemory, given: str, context: ToolContext) -> Result:
    return Result(text="Kept; it will be delivered to Supermemory.", notes=(Noted(text=given),))


async def _search(memory: SupermemoryMemory, given: str, context: ToolContext) -> Result:
    return await search_for_tool(memory, given, context, limit=MOST)


async def _profile(memory: SupermemoryMemory, given: str, context: ToolContext) -> Result:
    ns = memory.namespace(context.stamp.audience)
    try:
        answer = await memory.client.ask("reading the profile", lambda sdk: sdk.profile(ns))
    except Gone:
        return Result(text="Nothing is known yet.")
    profile = answer.profile if answer is not None else None
    known = [*(profile.static or ()), *(profile.dynamic or ())] if profile is not None else []
    lines = [str(fact.memory) for fact in known if fact.memory]
    return Result(text="\n".join(lines) or "Nothing is known yet.")
