"""The `send` tool: an agent writes to another agent, if its configuration allows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everhold.core.address import parse_address
from everhold.core.entries import ChatLocation
from everhold.core.policy import ToolReach
from everhold.core.roles import ToolAccess
from everhold.errors import InvalidRequest
from everhold.ports.model import ToolSpec
from everhold.ports.tool import SendRequest, ToolContext, ToolEffect, ToolResult

MAX_TEXT_CHARS: Final = 20_000


class SendTool:
    """Sends a message to another conversation. The message commits with the call's result and the outbox delivers it,
    so a repeated run before the commit has no effect: the tool is pure."""

    effect = ToolEffect.PURE
    access = ToolAccess.ACT
    deadline = 5.0

    def __init__(self, agent: str, allowed: Sequence[str]) -> None:
        self.agent = agent
        self.allowed = tuple(allowed)
        self.spec = ToolSpec(
            name="send",
            description=(
                "Send a message to another agent or chat. The answer, if there is one, arrives in your conversation "
                f"with them, not here. You may write to: {', '.join(self.allowed)}."
            ),
            parameters={
                "type": "object",
                "properties": {
                    "to": {"type": "string", "enum": list(self.allowed)},
                    "text": {"type": "string", "maxLength": MAX_TEXT_CHARS},
                },
                "required": ["to", "text"],
                "additionalProperties": False,
            },
        )

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach.OWN  # `send_to` decides to whom it may write

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        to, text = arguments.get("to"), arguments.get("text")
        if not isinstance(to, str) or not isinstance(text, str) or not text.strip():
            return ToolResult(text="Name the recipient (`to`) and the message (`text`).", error=True)
        if to not in self.allowed:
            return ToolResult(
                text=f"You may not write to {to[:200]!r}, only to: {', '.join(self.allowed)}.", error=True
            )
        if len(text) > MAX_TEXT_CHARS:
            return ToolResult(
                text=f"The text has {len(text)} characters; at most {MAX_TEXT_CHARS} can be sent at once.", error=True
            )
        request = SendRequest(text=text, to=self._resolve_location(to), hops=context.hops + 1)
        return ToolResult(text=f"Sent to {to}.", send_requests=(request,))

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    def _resolve_location(self, to: str) -> ChatLocation:
        if to.startswith("agent:") and to.count(":") == 1:
            return ChatLocation(platform="agent", account=self.agent, chat=to.removeprefix("agent:"))
        address = parse_address(to)
        if address.platform == "agent":
            raise InvalidRequest(f"{to!r} is a conversation between agents", remedy="write agent:NAME")
        return ChatLocation(
            platform=address.platform,
            account=address.account or address.agent,
            chat=address.chat,
            thread=address.thread,
        )
