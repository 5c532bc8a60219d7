"""A tool by another author. It must declare its effect."""

from __future__ import annotations

from typing import Any

from everhold import ChatLocation, SendRequest, Tool, ToolContext, ToolEffect, ToolResult, ToolSpec


class RingTool:
    """Rings a bell. `probe` tells whether it rang."""

    spec = ToolSpec(name="ring", description="Rings at the door.", parameters={"type": "object", "properties": {}})
    effect = ToolEffect.PROBE
    deadline = 5.0

    def __init__(self) -> None:
        self.rung: dict[str, ToolResult] = {}

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        hall = ChatLocation(platform="fake", account="main", chat="hall")
        request = SendRequest(text=f"{context.stamp.person} is at the door", to=hall, hops=context.hops + 1)
        self.rung[context.key] = ToolResult(text="it rang", send_requests=(request,))
        return self.rung[context.key]

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return self.rung.get(context.key)


class NoEffectTool:
    """Does not declare its effect."""

    spec = RingTool.spec
    deadline = 5.0

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text="")

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


class StringEffectTool(RingTool):
    effect = "probe"  # type: ignore[assignment]  # an effect is a ToolEffect


good: Tool = RingTool()
no_effect: Tool = NoEffectTool()  # type: ignore[assignment]
