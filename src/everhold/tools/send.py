"""The `send` tool: an agent writes to another agent, if its configuration says it may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everhold.core.address import parse
from everhold.core.entries import Place
from everhold.errors import Misuse
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Effect, Result, Saying, ToolContext

LONGEST: Final = 20_000


class Send:
    """Says something somewhere else. What it says commits with its result and is delivered by voice, so a run that is
    repeated before that commit has said nothing yet: it is pure.
    """

    effect = Effect.PURE
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
                    "text": {"type": "string", "maxLength": LONGEST},
                },
                "required": ["to", "text"],
                "additionalProperties": False,
            },
        )

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        to, text = arguments.get("to"), arguments.get("text")
        if not isinstance(to, str) or not isinstance(text, str) or not text.strip():
            return Result(text="Say whom to send it to (`to`) and what (`text`).", error=True)
        if to not in self.allowed:
            return Result(text=f"You may not write to {to!r}, only to: {', '.join(self.allowed)}.", error=True)
        if len(text) > LONGEST:
            return Result(text=f"That is {len(text)} characters; at most {LONGEST} can be sent at once.", error=True)
        saying = Saying(text=text, to=self._place(to), hops=context.hops + 1)
        return Result(text=f"Sent to {to}.", sayings=(saying,))

    async def probe(self, context: ToolContext) -> Result | None:
        return None

    def _place(self, to: str) -> Place:
        if to.startswith("agent:") and to.count(":") == 1:
            return Place(platform="agent", account=self.agent, chat=to.removeprefix("agent:"))
        address = parse(to)
        if address.platform == "agent":
            raise Misuse(f"{to!r} is a conversation between agents", remedy="write agent:NAME")
        return Place(
            platform=address.platform,
            account=address.account or address.agent,
            chat=address.chat,
            thread=address.thread,
        )
