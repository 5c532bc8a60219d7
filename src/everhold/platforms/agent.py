"""Agents that write to each other: what one says arrives at the other's door, like anybody's message.

A place on this platform belongs to a pair: `account` is the agent that speaks, `chat` the one that is spoken to. Each
side has a session of its own with the other. The door recognises a repeat by the key, so a send may be repeated.
"""

from __future__ import annotations

from typing import Final

from everhold.core.entries import ChatLocation
from everhold.errors import Refused, StoreFull, Transient
from everhold.ports.platform import AcceptMessage, DeliveryGuarantee, IncomingMessage, OutgoingMessage

NAME: Final = "agent"


class AgentPlatform:
    """The way from one agent to all others."""

    name = NAME
    delivery = DeliveryGuarantee.KEYED
    text_limit = 1_000_000
    visible_after = 0.0

    def __init__(self, speaker: str, accept: AcceptMessage) -> None:
        self.account = speaker
        self._accept = accept

    async def listen(self, accept: AcceptMessage) -> None:
        """Nothing to do: messages are brought by `send`."""

    async def send(self, out: OutgoingMessage) -> str:
        listener = out.to.chat
        incoming = IncomingMessage(
            origin=ChatLocation(platform=NAME, account=listener, chat=self.account, message=out.key),
            text=out.text,
            sender=self.account,
            name=self.account,
            agent=listener,
            bot=True,
            hops=out.hops,
        )
        try:
            verdict = await self._accept(incoming)
        except StoreFull as error:  # the lane itself may find room for what it has to write
            raise Transient(f"{listener} could not take it: {error.message}", remedy=error.remedy) from error
        if verdict.outcome in ("accepted", "duplicate"):
            return f"{verdict.session}:{verdict.seq}"
        if verdict.outcome == "denied":
            raise Refused(f"{listener} does not hear {self.account}: {verdict.reason}")
        raise Transient(f"{listener} could not take it: {verdict.outcome}")

    async def probe(self, out: OutgoingMessage) -> str | None:
        raise Refused("agents are reached by key: nobody has to ask")
