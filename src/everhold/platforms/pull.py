"""Places whose people read the log themselves (a terminal, HTTP): what is committed there is delivered."""

from __future__ import annotations

from everhold.errors import Refused
from everhold.ports.platform import AcceptMessage, DeliveryGuarantee, OutgoingMessage


class PullPlatform:
    """One such place. Its messages come in through whoever serves it; nothing has to be sent."""

    delivery = DeliveryGuarantee.KEYED
    text_limit = 1_000_000
    visible_after = 0.0

    def __init__(self, name: str, account: str = "") -> None:
        self.name = name
        self.account = account

    async def listen(self, accept: AcceptMessage) -> None:
        """Nothing to do: messages are brought."""

    async def send(self, out: OutgoingMessage) -> str:
        """Only reached when a reply was meant for another kind of place; its reader finds it in the log."""
        return out.key

    async def probe(self, out: OutgoingMessage) -> str | None:
        raise Refused(f"{self.name} is keyed: it never needs to be asked")
