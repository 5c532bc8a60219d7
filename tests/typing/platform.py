"""A platform as a stranger would write it: listen, send, probe, and honesty about repeats."""

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
    """Letters come in from a list and go out to one."""

    name = "post"
    account = "main"
    delivery = DeliveryGuarantee.KEYED
    text_limit = 1_000
    visible_after = 0.0

    def __init__(self, letters: list[str]) -> None:
        self.letters = letters
        self.sent: dict[str, str] = {}
        self.verdicts: list[AcceptResult] = []

    async def listen(self, accept: AcceptMessage) -> None:
        for number, text in enumerate(self.letters):
            origin = ChatLocation(platform=self.name, account=self.account, chat="ada", message=str(number))
            self.verdicts.append(await accept(IncomingMessage(origin=origin, text=text, sender="ada")))

    async def send(self, out: OutgoingMessage) -> str:
        if not out.to.chat:
            raise Refused("a letter without an address")
        if out.text == "lost":
            raise InDoubt("nobody saw the postman come back")
        return self.sent.setdefault(out.key, out.text)

    async def probe(self, out: OutgoingMessage) -> str | None:
        return self.sent.get(out.key)


class DraftingPlatform(ListPlatform):
    """Shows what is being written."""

    async def draft(self, out: OutgoingMessage) -> str:
        return out.key

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        self.sent[remote] = out.text


class Boastful:
    """Claims what nobody can check."""

    name = "boast"
    account = "main"
    text_limit = 1_000

    async def listen(self, accept: AcceptMessage) -> None: ...

    async def send(self, out: OutgoingMessage) -> str:
        return ""

    async def probe(self, out: OutgoingMessage) -> str | None:
        return None


class Silent(ListPlatform):
    async def send(self, out: OutgoingMessage) -> None:  # type: ignore[override]  # the remote id is what edits need
        return None


good: Platform = ListPlatform([])
drafting: SupportsDrafts = DraftingPlatform([])
also: Platform = DraftingPlatform([])
boastful: Platform = Boastful()  # type: ignore[assignment]
plain: SupportsDrafts = ListPlatform([])  # type: ignore[assignment]
