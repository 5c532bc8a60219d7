"""A platform as a stranger would write it: listen, send, probe, and honesty about repeats."""

from __future__ import annotations

from everhold import Accept, Delivery, Drafting, Incoming, InDoubt, Outgoing, Place, Platform, Refused, Verdict


class Postbox:
    """Letters come in from a list and go out to one."""

    name = "post"
    account = "main"
    delivery = Delivery.KEYED
    text_limit = 1_000
    visible_after = 0.0

    def __init__(self, letters: list[str]) -> None:
        self.letters = letters
        self.sent: dict[str, str] = {}
        self.verdicts: list[Verdict] = []

    async def listen(self, accept: Accept) -> None:
        for number, text in enumerate(self.letters):
            origin = Place(platform=self.name, account=self.account, chat="ada", message=str(number))
            self.verdicts.append(await accept(Incoming(origin=origin, text=text, sender="ada")))

    async def send(self, out: Outgoing) -> str:
        if not out.to.chat:
            raise Refused("a letter without an address")
        if out.text == "lost":
            raise InDoubt("nobody saw the postman come back")
        return self.sent.setdefault(out.key, out.text)

    async def probe(self, out: Outgoing) -> str | None:
        return self.sent.get(out.key)


class Blackboard(Postbox):
    """Shows what is being written."""

    async def draft(self, out: Outgoing) -> str:
        return out.key

    async def revise(self, remote: str, out: Outgoing) -> None:
        self.sent[remote] = out.text


class Boastful:
    """Claims what nobody can check."""

    name = "boast"
    account = "main"
    text_limit = 1_000

    async def listen(self, accept: Accept) -> None: ...

    async def send(self, out: Outgoing) -> str:
        return ""

    async def probe(self, out: Outgoing) -> str | None:
        return None


class Silent(Postbox):
    async def send(self, out: Outgoing) -> None:  # type: ignore[override]  # the remote id is what edits need
        return None


good: Platform = Postbox([])
drafting: Drafting = Blackboard([])
also: Platform = Blackboard([])
boastful: Platform = Boastful()  # type: ignore[assignment]
plain: Drafting = Postbox([])  # type: ignore[assignment]
