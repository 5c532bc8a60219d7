"""A platform by another author: listen, send, probe, and a delivery guarantee."""

from __future__ import annotations

from everhold import (
    AcceptMessage,
    AcceptResult,
    ChatLocation,
    DeliveryGuarantee,
    IncomingMessage,
    InDoubt,
    OutgoingMessage,
    Platform,
    Refused,
    SupportsDrafts,
)


class ListPlatform:
    """Receives messages from a list and records sent ones."""

    name = "post"
    account = "main"
    delivery = DeliveryGuarantee.KEYED
    text_limit = 1_000
    visible_after = 0.0
    settle_seconds = 0.0

    def __init__(self, incoming: list[str]) -> None:
        self.incoming = incoming
        self.sent: dict[str, str] = {}
        self.results: list[AcceptResult] = []

    async def listen(self, accept: AcceptMessage) -> None:
        for number, text in enumerate(self.incoming):
            origin = ChatLocation(platform=self.name, account=self.account, chat="ada", message=str(number))
            self.results.append(await accept(IncomingMessage(origin=origin, text=text, sender="ada")))

    async def send(self, out: OutgoingMessage) -> str:
        if not out.to.chat:
            raise Refused("the message has no chat")
        if out.text == "lost":
            raise InDoubt("the answer was lost")
        return self.sent.setdefault(out.key, out.text)

    async def probe(self, out: OutgoingMessage) -> str | None:
        return self.sent.get(out.key)


class DraftingPlatform(ListPlatform):
    """Shows drafts."""

    async def draft(self, out: OutgoingMessage) -> str:
        return out.key

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        self.sent[remote] = out.text


class NoGuaranteePlatform:
    """Has no delivery guarantee."""

    name = "no-guarantee"
    account = "main"
    text_limit = 1_000

    async def listen(self, accept: AcceptMessage) -> None: ...

    async def send(self, out: OutgoingMessage) -> str:
        return ""

    async def probe(self, out: OutgoingMessage) -> str | None:
        return None


class NoReceiptPlatform(ListPlatform):
    async def send(self, out: OutgoingMessage) -> None:  # type: ignore[override]  # edits need the remote id
        return None


good: Platform = ListPlatform([])
drafting: SupportsDrafts = DraftingPlatform([])
also: Platform = DraftingPlatform([])
no_guarantee: Platform = NoGuaranteePlatform()  # type: ignore[assignment]
plain: SupportsDrafts = ListPlatform([])  # type: ignore[assignment]
