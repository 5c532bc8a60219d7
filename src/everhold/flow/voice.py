"""said -> platform: the courier of one platform account. Looks at what was committed, never at bindings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from msgspec import structs

from everhold.core.attachments import not_sent
from everhold.core.consumers import ReplyPart, get_reply_parts, place_consumer
from everhold.core.entries import OUTAGE, Ended, Entry, Kind, Notified, Place, Said
from everhold.errors import TooLong
from everhold.flow.lane import Load, Look, Notice
from everhold.ports.platform import Delivery, Outgoing, Platform
from everhold.ports.store import Claim, InFlightBatch, Item, Store

DRAFT = -1
"""A draft's place among the parts of a reply: before all of them. It is filed under the operation, since the reply has
no seq while it is made."""

TURN = "turn"
"""What a notice is about that stands in a reply's place."""

DEADLINE_SECONDS = 30.0
"""After this a send is given up on; leases outlive it."""


class Voice:
    """Delivers one session's replies through one platform account, part by part."""

    event = "delivery.done"
    parking = "delivery.parked"

    def __init__(
        self,
        store: Store,
        platform: Platform,
        *,
        policy: str,
        deadline: float = DEADLINE_SECONDS,
        drafts: bool = False,
    ) -> None:
        self.store = store
        self.platform = platform
        self.delivery = platform.delivery
        self.visible_after = platform.visible_after
        self.looks = platform.delivery is Delivery.PROBE
        self.anew = platform.delivery is Delivery.KEYED
        self.deadline = deadline
        self.policy = policy
        self.drafts = drafts

    async def next(self, claim: Claim, *, after: int, done: Sequence[Item] = ()) -> Look:
        upto, generation = await self.store.get_session_head(claim.session)
        load: Load | None = None
        for entry in await self.store.list_entries(
            claim.session, after=after, upto=upto, kinds=(Kind.SAID, Kind.NOTIFIED)
        ):
            place, parts = spoken(entry)
            if place is None or place_consumer(place) != claim.consumer or await self._undone(claim.session, entry):
                continue
            if load is not None:
                return Look(load=load, upto=upto, generation=generation, more=True)
            left = await self._left(claim, entry, len(parts), done)
            if left:
                load = await self._load(claim, entry, left[0], last=left[0] == left[-1])
                if len(left) > 1:
                    return Look(load=load, upto=upto, generation=generation, more=True)
        return Look(load=load, upto=upto, generation=generation)

    async def _left(self, claim: Claim, entry: Entry, parts: int, done: Sequence[Item]) -> list[int]:
        """The parts of an entry that are neither delivered nor given up. The position tells for those of one part."""
        over = {item.part for item in done if item.seq == entry.seq}
        if parts > 1:
            over |= {
                r.part for r in await self.store.list_receipts(claim.session, seq=entry.seq, consumer=claim.consumer)
            }
            # in whichever state: what somebody sends again goes by itself
            given_up = await self.store.list_dead_letters(session=claim.session, consumer=claim.consumer, state="")
            over |= {parked.part for parked in given_up if parked.seq == entry.seq}
        return [part for part in range(parts) if part not in over]

    async def again(self, claim: Claim, flight: InFlightBatch) -> Load | None:
        item = flight.items[0]
        entry = await self.store.get_entry(claim.session, item.seq)
        _, parts = spoken(entry)
        if item.part >= len(parts):
            return None  # erased since: nothing of it may leave
        if flight.state == "unsent" and await self._undone(claim.session, entry):
            return None
        return await self._load(claim, entry, item.part, last=flight.upto == entry.seq)

    async def deliver(self, load: Load) -> Mapping[str, str]:
        out = load.payload
        assert isinstance(out, Outgoing)
        try:
            return {out.key: await self.platform.send(out)}
        except TooLong:
            if out.file is None:
                raise
            # the place takes less than was known when the reply was made
            instead = structs.replace(out, file=None, text=not_sent(out.file))
            return {out.key: await self.platform.send(instead)}

    async def arrived(self, load: Load) -> Sequence[str]:
        assert isinstance(load.payload, Outgoing)
        return [load.payload.key] if await self.platform.probe(load.payload) is not None else []

    async def notice(self, claim: Claim, *, attempts: int) -> Notice:
        return Notice()  # whom should it tell, and how?

    async def _load(self, claim: Claim, entry: Entry, part: int, *, last: bool) -> Load:
        place, parts = spoken(entry)
        assert place is not None
        key = f"{claim.session}:{entry.seq}:{part}"
        hops = entry.body.hops if isinstance(entry.body, Said) else 0
        text, file = (what, None) if isinstance(what := parts[part], str) else ("", what)
        edits = await self._draft(claim, entry) if self.drafts and part == 0 else ""
        out = Outgoing(
            to=place,
            text=text,
            key=key,
            edits=edits,
            hops=hops,
            notice=isinstance(entry.body, Notified),
            file=file,
        )
        # until its last part has gone, the position stays before the entry
        upto = entry.seq if last else entry.seq - 1
        said = f"{key}\n{place}\n{file.blob if file else text}"
        digest = hashlib.sha256(said.encode()).hexdigest()
        return Load(items=(Item(seq=entry.seq, part=part, key=key),), upto=upto, digest=digest, payload=out)

    async def _draft(self, claim: Claim, entry: Entry) -> str:
        """The visible draft of this reply, if one was shown: the final text takes its place, or the word that there is
        none, or none yet.
        """
        ends = isinstance(entry.body, Notified) and (entry.body.about == TURN or await self._releases(entry))
        if not (isinstance(entry.body, Said) or ends) or entry.op is None:
            return ""
        shown = await self.store.list_receipts(claim.session, seq=entry.op, consumer=claim.consumer)
        remote = next((receipt.remote for receipt in shown if receipt.part == DRAFT), "")
        return remote if remote and (ends or await self._replies(entry)) else ""

    async def _releases(self, entry: Entry) -> bool:
        """Whether its turn is given back with it: whichever answers in the end knows nothing of this one's draft."""
        if not (isinstance(entry.body, Notified) and entry.body.about == OUTAGE):
            return False
        behind = await self.store.list_entries(entry.session, after=entry.seq, upto=entry.seq + 1, kinds=(Kind.ENDED,))
        return any(isinstance(end.body, Ended) and end.op == entry.op for end in behind)

    async def _replies(self, entry: Entry) -> bool:
        """Whether it is its turn's reply, which follows a thought. What a tool says is a message of its own, and may be
        for another chat.
        """
        kinds = (Kind.THOUGHT, Kind.RETURNED)
        steps = await self.store.list_entries(entry.session, after=entry.op or 0, upto=entry.seq - 1, kinds=kinds)
        return next((step.kind for step in reversed(steps) if step.op == entry.op), None) is Kind.THOUGHT

    async def _undone(self, session: str, entry: Entry) -> bool:
        """Whether the turn that said it was taken back; a notice stands whatever becomes of its turn."""
        if not isinstance(entry.body, Said) or entry.op is None:
            return False
        found = await self.store.list_operations(session, after=entry.op - 1, before=entry.op + 1)
        return bool(found and found[0].undone_at)


def spoken(entry: Entry) -> tuple[Place | None, tuple[ReplyPart, ...]]:
    """Where an entry is to be said, and in which parts."""
    return get_reply_parts(entry.body)
