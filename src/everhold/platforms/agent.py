"""The platform on which agents write to each other. A message from one agent enters the other's ingress like any
message.

A chat location on this platform names a pair: `account` is the sending agent, `chat` the receiving one. Each agent has
its own session with the other. The ingress recognises a repeat by its key, so a send may be repeated.
"""

from __future__ import annotations

from typing import Final

from everhold.core.entries import ChatLocation
from everhold.errors import Refused, StoreFull, Transient
from everhold.ports.platform import AcceptMessage, DeliveryGuarantee, IncomingMessage, OutgoingMessage

NAME: Final = "agent"


class AgentPlatform:
    """Delivers messages of one agent to all other agents."""

    name = NAME
    delivery = DeliveryGuarantee.KEYED
    text_limit = 1_000_000
    visible_after = 0.0
    settle_seconds = 0.0

    def __init__(self, speaker: str, accept: AcceptMessage) -> None:
        self.account = speaker
        self._accept = accept

    async def listen(self, accept: AcceptMessage) -> None:
        """Do nothing, because `send` delivers the messages."""

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
            result = await self._accept(incoming)
        except StoreFull as error:  # the delivery worker can still write its own state in the reserved space
            raise Transient(f"{listener} could not accept it: {error.message}", remedy=error.remedy) from error
        if result.outcome in ("accepted", "duplicate"):
            return f"{result.session}:{result.seq}"
        if result.outcome == "denied":
            raise Refused(f"{listener} does not accept messages from {self.account}: {result.reason}")
        raise Transient(f"{listener} could not accept it: {result.outcome}")

    async def probe(self, out: OutgoingMessage) -> str | None:
        raise Refused("delivery to agents is keyed, so it is never probed")
