"""Platforms whose clients read the log themselves (terminal, HTTP). A committed entry counts as delivered."""

from __future__ import annotations

from everhold.errors import Refused
from everhold.ports.platform import AcceptMessage, DeliveryGuarantee, OutgoingMessage


class PullPlatform:
    """One such platform. Its server brings the messages in; nothing has to be sent."""

    delivery = DeliveryGuarantee.KEYED
    text_limit = 1_000_000
    visible_after = 0.0
    settle_seconds = 0.0

    def __init__(self, name: str, account: str = "") -> None:
        self.name = name
        self.account = account

    async def listen(self, accept: AcceptMessage) -> None:
        """Do nothing, because the server brings the messages."""

    async def send(self, out: OutgoingMessage) -> str:
        """Return the key. Only called for a reply from another kind of platform; the client finds it in the log."""
        return out.key

    async def probe(self, out: OutgoingMessage) -> str | None:
        raise Refused(f"delivery to {self.name} is keyed, so it is never probed")
