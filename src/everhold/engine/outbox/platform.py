"""The platform destination: delivers the replies of a session through one platform account. It reads committed entries,
never bindings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs

from everhold.core.attachments import format_unsent_file
from everhold.core.consumers import ReplyPart, get_reply_parts, place_consumer
from everhold.core.entries import (
    OUTAGE_NOTICE,
    Began,
    ChatLocation,
    Ended,
    Entry,
    EntryKind,
    Heard,
    Notified,
    Said,
)
from everhold.engine.outbox.delivery import BatchScan, DeliveryBatch, FailureNotice
from everhold.errors import InDoubt, Refused, TooLong, Transient
from everhold.ports.platform import DeliveryGuarantee, OutgoingMessage, Platform, can_draft
from everhold.ports.store import Claim, DeliveryItem, InFlightBatch, Receipt, Store

DRAFT_PART = -1
"""The part number of a draft, before all parts of the reply. The draft is stored under the operation, because the reply
has no seq while it is made.
"""

UNSENT_REMOTE_ID = "unsent"
"""Instead of the remote id of a draft that did not arrive."""

TURN_NOTICE = "turn"
"""The `about` of a notice that replaces a reply."""

SEND_DEADLINE_SECONDS = 30.0
"""After this deadline a send is given up. Leases last longer."""


class PlatformDestination:
    """Delivers one session's replies through one platform account, part by part."""

    delivered_event = "delivery.done"
    dead_letter_event = "delivery.dead_lettered"

    def __init__(
        self,
        store: Store,
        platform: Platform,
        *,
        in_doubt_policy: str,
        deadline: float = SEND_DEADLINE_SECONDS,
        late_seconds: float | None = None,
        drafts: bool = False,
    ) -> None:
        """`late_seconds`: how long a request of a former worker may still be carried out; by default until its
        deadline."""
        self.store = store
        self.platform = platform
        self.delivery = platform.delivery
        self.visible_after = platform.visible_after
        self.probes_before_resend = platform.delivery is DeliveryGuarantee.PROBE
        self.rebuilds_in_flight = platform.delivery is DeliveryGuarantee.KEYED
        self.deadline = deadline
        self.late_seconds = deadline if late_seconds is None else late_seconds
        self.in_doubt_policy = in_doubt_policy
        self.drafts = drafts

    async def next_batch(self, claim: Claim, *, after: int, done: Sequence[DeliveryItem] = ()) -> BatchScan:
        found = await self.store.read_replies(claim.session, after=after)
        upto, generation = found.last_seq, found.generation
        batch: DeliveryBatch | None = None
        for entry in found.entries:
            place, parts = list_entry_parts(entry)
            if place is None or place_consumer(place) != claim.consumer:
                continue
            if batch is not None:
                return BatchScan(batch=batch, scanned_upto_seq=upto, generation=generation, has_more=True)
            left = await self._list_undelivered_parts(claim, entry, len(parts), done)
            if left:
                batch = await self._build_batch(claim, entry, left[0], last=left[0] == left[-1])
                if len(left) > 1:
                    return BatchScan(batch=batch, scanned_upto_seq=upto, generation=generation, has_more=True)
        return BatchScan(batch=batch, scanned_upto_seq=upto, generation=generation)

    async def _list_undelivered_parts(
        self, claim: Claim, entry: Entry, parts: int, done: Sequence[DeliveryItem]
    ) -> list[int]:
        """Return the parts of an entry that are neither delivered nor given up. For an entry with one part the cursor
        is enough.
        """
        over = {item.part for item in done if item.seq == entry.seq}
        if parts > 1:
            over |= {
                r.part for r in await self.store.list_receipts(claim.session, seq=entry.seq, consumer=claim.consumer)
            }
            # Dead letters of every state count, because a replay sends them separately.
            given_up = await self.store.list_dead_letters(session=claim.session, consumer=claim.consumer, state="")
            over |= {dead_letter.part for dead_letter in given_up if dead_letter.seq == entry.seq}
        return [part for part in range(parts) if part not in over]

    async def rebuild_batch(self, claim: Claim, in_flight: InFlightBatch) -> DeliveryBatch | None:
        item = in_flight.items[0]
        entry = await self.store.get_entry(claim.session, item.seq)
        _, parts = list_entry_parts(entry)
        if item.part >= len(parts):
            return None  # erased since: nothing of it may be sent
        if in_flight.state == "unsent" and await self._is_undone(claim.session, entry):
            return None
        return await self._build_batch(claim, entry, item.part, last=in_flight.upto == entry.seq)

    async def deliver(self, delivery_batch: DeliveryBatch) -> Mapping[str, str]:
        out = delivery_batch.payload
        assert isinstance(out, OutgoingMessage)
        lost = delivery_batch.lost_draft
        if lost is None:
            return {out.key: await self._send(out)}
        draft = await self._find_lost_draft(structs.replace(out, key=lost.key, to=delivery_batch.draft_place or out.to))
        if not draft and (arrived := await self._find_earlier_edit(out, delivery_batch.draft_place or out.to)):
            return {out.key: arrived, lost.key: arrived}
        return {out.key: await self._send(structs.replace(out, edits=draft)), lost.key: draft or UNSENT_REMOTE_ID}

    async def _find_earlier_edit(self, out: OutgoingMessage, place: ChatLocation) -> str:
        """Return the remote id of the draft if an earlier attempt has replaced it by the reply and its answer was lost.
        Since then it has the key of the reply."""
        if self.delivery is not DeliveryGuarantee.PROBE:
            return ""
        try:
            return await self.platform.probe(structs.replace(out, to=place)) or ""
        except (InDoubt, Refused) as error:
            raise Transient(error.message) from error

    async def _send(self, out: OutgoingMessage) -> str:
        try:
            return await self.platform.send(out)
        except TooLong:
            if out.file is None:
                raise
            # The chat accepts less than was known when the reply was made.
            return await self.platform.send(structs.replace(out, file=None, text=format_unsent_file(out.file)))

    async def _find_lost_draft(self, draft: OutgoingMessage) -> str:
        """Return the remote id of a draft whose answer was lost, or an empty text if it did not arrive or nothing can
        tell. A keyed platform shows it if it did not arrive."""
        platform: object = self.platform
        try:
            if self.delivery is DeliveryGuarantee.PROBE:
                return await self.platform.probe(draft) or ""
            if self.delivery is DeliveryGuarantee.KEYED and can_draft(platform) and draft.file is None:
                return await platform.draft(draft)
        except (InDoubt, Refused) as error:
            raise Transient(error.message) from error  # the reply itself was not sent
        return ""

    async def find_arrived(self, delivery_batch: DeliveryBatch) -> Sequence[str]:
        assert isinstance(delivery_batch.payload, OutgoingMessage)
        return [delivery_batch.payload.key] if await self.platform.probe(delivery_batch.payload) is not None else []

    async def build_notice(self, claim: Claim, *, attempts: int) -> FailureNotice:
        return FailureNotice()  # there is no other way to reach the chat

    async def _build_batch(self, claim: Claim, entry: Entry, part: int, *, last: bool) -> DeliveryBatch:
        place, parts = list_entry_parts(entry)
        assert place is not None
        key = f"{claim.session}:{entry.seq}:{part}"
        hops = entry.body.hops if isinstance(entry.body, Said) else 0
        text, file = (what, None) if isinstance(what := parts[part], str) else ("", what)
        draft = await self._find_draft(claim, entry) if self.drafts and part == 0 else None
        lost = draft is not None and not draft.remote
        out = OutgoingMessage(
            to=place,
            text=text,
            key=key,
            edits=draft.remote if draft is not None else "",
            hops=hops,
            notice=isinstance(entry.body, Notified),
            file=file,
            choices=entry.body.choices if isinstance(entry.body, Notified) and part == len(parts) - 1 else (),
        )
        # Until its last part is sent, the cursor stays before the entry.
        upto = entry.seq if last else entry.seq - 1
        # The digest is stored, so it must not change when a later version renames a class or adds a field.
        said = msgspec.json.encode((key, place, file.blob if file else text))
        digest = hashlib.sha256(said).hexdigest()
        return DeliveryBatch(
            items=(DeliveryItem(seq=entry.seq, part=part, key=key),),
            processed_upto_seq=upto,
            digest=digest,
            payload=out,
            lost_draft=DeliveryItem(seq=draft.seq, part=DRAFT_PART, key=draft.key) if draft and lost else None,
            draft_place=await self._find_first_place(entry, place) if draft and lost else None,
        )

    async def _find_first_place(self, entry: Entry, place: ChatLocation) -> ChatLocation:
        """Return the place of the first message that the entry's turn took in this chat. The reply goes to the last
        one, which may be newer than the draft, and a probe looks back to the message that it is given."""
        assert entry.op is not None
        began = await self.store.get_entry(entry.session, entry.op)
        for seq in began.body.takes if isinstance(began.body, Began) else ():
            taken = (await self.store.get_entry(entry.session, seq)).body
            if isinstance(taken, Heard) and structs.replace(taken.origin, message=place.message) == place:
                return taken.origin
        return place

    async def _find_draft(self, claim: Claim, entry: Entry) -> Receipt | None:
        """Return the draft of this reply, if one was sent. The final text replaces it, or the notice that there is
        none.
        """
        ends = isinstance(entry.body, Notified) and (
            entry.body.about == TURN_NOTICE or await self._is_release_notice(entry)
        )
        if not (isinstance(entry.body, Said) or ends) or entry.op is None:
            return None
        draft = await find_draft_receipt(self.store, claim.session, entry.op, claim.consumer)
        return draft if draft is not None and (ends or await self._is_turn_reply(entry)) else None

    async def _is_release_notice(self, entry: Entry) -> bool:
        """Return whether the entry's turn was released. The later turn that answers does not know this draft."""
        if not (isinstance(entry.body, Notified) and entry.body.about == OUTAGE_NOTICE):
            return False
        following = await self.store.list_entries(
            entry.session, after=entry.seq, upto=entry.seq + 1, kinds=(EntryKind.ENDED,)
        )
        return any(isinstance(end.body, Ended) and end.op == entry.op for end in following)

    async def _is_turn_reply(self, entry: Entry) -> bool:
        """Return whether the entry is its turn's reply, which follows a thought. A message from a tool is separate and
        may be for another chat.
        """
        kinds = (EntryKind.THOUGHT, EntryKind.RETURNED)
        steps = await self.store.list_entries(entry.session, after=entry.op or 0, upto=entry.seq - 1, kinds=kinds)
        return next((step.kind for step in reversed(steps) if step.op == entry.op), None) is EntryKind.THOUGHT

    async def _is_undone(self, session: str, entry: Entry) -> bool:
        """Return whether the turn of this entry was undone. A notice stays valid if its turn is undone."""
        if not isinstance(entry.body, Said) or entry.op is None:
            return False
        found = await self.store.list_operations(session, after=entry.op - 1, before=entry.op + 1)
        return bool(found and found[0].undone_at)


async def find_draft_receipt(store: Store, session: str, op: int, consumer: str) -> Receipt | None:
    """Return the receipt of a turn's draft. Without a remote id it may have been sent, and its answer is missing."""
    receipts = await store.list_receipts(session, seq=op, consumer=consumer)
    return next((it for it in receipts if it.part == DRAFT_PART and it.remote != UNSENT_REMOTE_ID), None)


def list_entry_parts(entry: Entry) -> tuple[ChatLocation | None, tuple[ReplyPart, ...]]:
    """Return where an entry is delivered, and in which parts."""
    return get_reply_parts(entry.body)
