"""A tool as a stranger would write it. It must say what running it twice would do."""

from __future__ import annotations

from typing import Any

from everhold import ChatLocation, SendRequest, Tool, ToolContext, ToolEffect, ToolResult, ToolSpec


class Doorbell:
    """Rings, and can be asked whether it rang."""

    spec = ToolSpec(name="ring", description="Rings at the door.", parameters={"type": "object", "properties": {}})
    effect = ToolEffect.PROBE
    deadline = 5.0

    def __init__(self) -> None:
        self.rung: dict[str, ToolResult] = {}

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        hall = ChatLocation(platform="fake", account="main", chat="hall")
        said = SendRequest(text=f"{context.stamp.person} is at the door", to=hall, hops=context.hops + 1)
        self.rung[context.key] = ToolResult(text="it rang", send_requests=(said,))
        return self.rung[context.key]

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return self.rung.get(context.key)


class Careless:
    """Does not say what a repeat would do."""

    spec = Doorbell.spec
    deadline = 5.0

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text="")

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


class Stringly(Doorbell):
    effect = "probe"  # type: ignore[assignment]  # an effect is one of four, not any word


good: Tool = Doorbell()
careless: Tool = Careless()  # type: ignore[assignment]
