"""The memory destination: sends a session's exchanges and notes to one memory, under the names and stamps of their
time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import structs

from everhold.core import consumers
from everhold.core.context import assemble_context, select_operations
from everhold.core.entries import (
    Began,
    Changed,
    Ended,
    Entry,
    EntryBody,
    EntryDraft,
    EntryKind,
    Heard,
    MemoryNameSet,
    Noted,
    Notified,
    OperationsUndone,
    Said,
    Stamp,
    Took,
)
from everhold.core.erasure import PlaceErasure
from everhold.core.exchange import (
    MEMORY_KINDS,
    build_exchange,
    build_job_result,
    build_note,
    build_retraction,
    fingerprint_batch,
    get_original_key,
    is_memory_entry,
    list_stamp_identities,
)
from everhold.core.forgetting import get_stamp
from everhold.core.memory_naming import SessionOrigin
from everhold.core.memory_pacing import MemoryPacing, PendingItem, select_due_items
from everhold.core.people import PeopleDirectory, can_hear
from everhold.core.session_rebuild import SessionRebuild
from everhold.engine.context_cache import list_turn_entries
from everhold.engine.effects import deliver_outside
from everhold.engine.gates import Gates
from everhold.engine.memory.peers import PeerLookup, PeerRegistry
from everhold.engine.memory.rebuilds import order_rebuild
from everhold.engine.memory.rekey_orders import locate_item
from everhold.engine.memory.session_switch import MAX_ENTRIES_BACK, build_session_switch, is_session_switch
from everhold.engine.memory_client import MemoryClient
from everhold.engine.outbox.delivery import BatchScan, DeliveryBatch, FailureNotice
from everhold.engine.state_updates import load_people_at
from everhold.errors import EverholdError, Transient
from everhold.ports.memory import (
    Exchange,
    JobResult,
    MemoryBatch,
    MemoryCapability,
    MemoryItem,
    MemoryNote,
    MemoryRetraction,
)
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Claim, DeliveryItem, InFlightBatch, Operation, Session, Wakeup

MAX_BATCH_ITEMS: Final = 20
PAGE_ENTRIES: Final = 200
NOTICE_AT_ATTEMPT: Final = 3
"""After so many failed attempts the chat gets a notice. A short outage is not worth one."""
OUTAGE_TEXT: Final = (
    "My memory {memory} is not answering. "
    "Nothing is lost: our messages are stored, and I send them there when it is back."
)
HOOK_DEADLINE_SECONDS: Final = 10.0
"""For hooks of a provider that nothing else depends on."""
READ_KINDS: Final = (*MEMORY_KINDS, EntryKind.COMPRESSED)


DeliverableItem: TypeAlias = MemoryItem | JobResult


class MemoryDestination:
    """Sends one session's exchanges and notes to one provider, in order, in batches."""

    delivered_event = "memory.stored"
    dead_letter_event = "memory.dead_lettered"

    def __init__(
        self,
        gates: Gates,
        provider: MemoryClient,
        *,
        current_provider: Callable[[], MemoryClient | None],
        in_doubt_policy: str,
        instance: str = "",
        choose_name: Callable[[SessionOrigin], str] = lambda origin: origin.session,
        pacing: MemoryPacing | None = None,
        released_upto: float = float("-inf"),
        sends_notices: bool = False,
        wakeups_for: Callable[[Sequence[EntryBody]], tuple[Wakeup, ...]] = lambda _: (),
        upto: int | None = None,
        peers: PeerRegistry | None = None,
        on_rebuild: Callable[[], None] | None = None,
    ) -> None:
        """`now` returns the provider before every call, because it may have been replaced.

        Items up to the time `released` are not held back, whatever the pacing. Entries after `upto` are ignored.
        `on_rebuild` is called after a rebuild was ordered; without it none is.
        """
        self.on_rebuild = on_rebuild
        self.upto = upto
        self.peers = peers
        self.gates = gates
        self.store = gates.store
        self.provider = provider
        self.current_provider = current_provider
        self.instance = instance
        self.choose_name = choose_name
        self.in_doubt_policy = in_doubt_policy
        self.pacing = pacing or MemoryPacing()
        self.released_upto = released_upto
        self.sends_notices = sends_notices
        self.wakeups_for = wakeups_for
        self.switch_entries: dict[int, Entry] = {}
        """Session switches among the scanned entries."""

    @property
    def batch_items(self) -> int:
        """How many items are sent together."""
        return MAX_BATCH_ITEMS

    @property
    def delivery(self) -> DeliveryGuarantee:
        return self.provider.delivery

    @property
    def deadline(self) -> float:
        return self.provider.deadline

    @property
    def late_seconds(self) -> float:
        return self.deadline

    @property
    def visible_after(self) -> float:
        return self.provider.visible_after

    @property
    def rebuilds_in_flight(self) -> bool:
        return False  # the exchanges of a batch are recorded nowhere else

    @property
    def probes_before_resend(self) -> bool:
        delivery = self.provider.delivery
        return delivery is DeliveryGuarantee.PROBE or (
            delivery is DeliveryGuarantee.UNACKNOWLEDGED and self.provider.has_capability(MemoryCapability.PROBE)
        )

    async def next_batch(self, claim: Claim, *, after: int, done: Sequence[DeliveryItem] = ()) -> BatchScan:
        session = await self.store.get_session(claim.session)
        upto = session.last_seq if self.upto is None else self.upto
        if not self._refresh_provider():
            return BatchScan(batch=None, scanned_upto_seq=after)  # the rest stays due and waits
        most = max(self.batch_items, min(self.pacing.turns_per_batch, PAGE_ENTRIES))
        while True:
            page = await self.store.list_entries(
                claim.session, after=after, upto=upto, kinds=READ_KINDS, limit=PAGE_ENTRIES
            )
            ready, wait = await self._select_ready(session, page)
            self.switch_entries.update({entry.seq: entry for entry in ready if is_session_switch(entry)})
            places = await self._select_places(session, [entry for entry in ready if is_memory_entry(entry)])
            items: list[tuple[int, DeliverableItem]] = []
            lookup = self._make_lookup(session)
            for entry in places[:most]:
                memory = await self._build_item(session, entry, lookup, jobs=self._receives_jobs)
                if memory is not None:
                    items.append((memory.seq if isinstance(memory, JobResult) else entry.seq, memory))
            more = len(page) == PAGE_ENTRIES or len(places) > most
            if items or not more:
                batch, rest = await self._take_same_name(session, items, lookup) if items else (None, False)
                return BatchScan(
                    batch=batch,
                    scanned_upto_seq=upto,
                    generation=session.generation,
                    has_more=more or rest,
                    passed_upto_seq=ready[-1].seq if ready and not more and not rest else 0,
                    wait_seconds=wait,
                )
            after = (places[most - 1] if len(places) > most else page[-1]).seq

    async def _select_places(self, session: Session, places: list[Entry]) -> list[Entry]:
        """Return those of these places that produce an item. Here it is all of them."""
        return places

    async def _select_ready(self, session: Session, page: Sequence[Entry]) -> tuple[list[Entry], float]:
        """Return the items of a page that are sent now, and after how many seconds the rest is sent, if there is a
        rest.
        """
        found = [entry for entry in page if is_memory_entry(entry) or is_session_switch(entry)]
        if len(page) == PAGE_ENTRIES or self.pacing.turns_per_batch == 1 or not found:
            return found, 0.0
        ops = [entry.op for entry in found if entry.op is not None] or [0]
        ended = await self._list_operations(session.id, min(ops), max(ops), jobs=self._receives_jobs)
        what = {op.op: op.type for op in ended}
        # An ended operation that is not a turn produces no item. It neither fills a batch nor waits for one.
        found = [entry for entry in found if entry.kind is not EntryKind.ENDED or entry.op in what]
        waiting = [
            PendingItem(entry.at, urgent=entry.kind is not EntryKind.ENDED or what.get(entry.op or 0) == "job")
            for entry in found
        ]
        verdict = select_due_items(self.pacing, waiting, now=self.gates.clock.now(), released=self.released_upto)
        return found[: verdict.count], verdict.seconds

    async def build_notice(self, claim: Claim, *, attempts: int) -> FailureNotice:
        """Notify the chat, once in every long outage, that its memory does not answer."""
        if attempts != NOTICE_AT_ATTEMPT or not self.sends_notices:
            return FailureNotice()
        latest = (await self.store.get_session(claim.session)).last_seq
        heard = await self.store.list_entries(
            claim.session, after=max(0, latest - MAX_ENTRIES_BACK), kinds=(EntryKind.HEARD,)
        )
        to = next((e.body.origin for e in reversed(heard) if isinstance(e.body, Heard) and e.body.asks), None)
        if to is None:
            return FailureNotice()
        notice = Notified(text=(text := OUTAGE_TEXT.format(memory=self.instance)), about="memory", to=to, parts=(text,))
        return FailureNotice(entries=(EntryDraft(body=notice, author="system"),), wakeups=self.wakeups_for((notice,)))

    async def announce_switches(self, claim: Claim, *, upto: int) -> None:
        """Notify the provider of session switches, if everything before them is done."""
        for seq in sorted(self.switch_entries):
            provider = self.current_provider()
            if seq > upto or provider is None or not provider.has_capability(MemoryCapability.SESSION_SWITCHED):
                continue
            session = await self.store.get_session(claim.session)
            switch = await build_session_switch(
                self.store,
                session,
                self.switch_entries[seq],
                memory=self.instance,
                naming=self._name_session,
            )
            seconds = min(provider.deadline, HOOK_DEADLINE_SECONDS)
            try:
                await deliver_outside(
                    f"session_switched of {self.instance}",
                    lambda provider=provider, switch=switch: provider.session_switched(switch),  # type: ignore[misc]
                    self.gates,
                    deadline=seconds,
                )
            except EverholdError as error:
                log = self.gates.log.bind(session=claim.session, memory=self.instance)
                log.warning("memory.hook_failed", hook="session_switched", error=str(error))
                provider.record_hook("session_switched", str(error))
            else:
                provider.record_hook("session_switched", "")

    async def rebuild_batch(self, claim: Claim, in_flight: InFlightBatch) -> DeliveryBatch | None:
        session = await self.store.get_session(claim.session)
        lookup = self._make_lookup(session, in_flight)
        items = []
        for item in in_flight.items:
            entry = await self.store.get_entry(claim.session, item.seq)
            if (memory := await self._build_item(session, entry, lookup)) is not None:
                items.append((item.seq, memory))
        if not items:
            return None
        # A dead letter has no batch in flight any more, but it keeps the name of its time.
        name = in_flight.name or _find_name_at(
            await self._list_names(session.id) or [(0, self._choose_name(session, items))], items[0][0]
        )
        return self._build_batch(items, upto=in_flight.upto, name=name, peers=lookup.list_used())

    def _make_lookup(self, session: Session, in_flight: InFlightBatch | None = None) -> PeerLookup:
        """Return what finds the peers of a batch. A batch that may have been sent keeps the peers it was sent with."""
        stored = in_flight.peers if in_flight is not None else ()
        return PeerLookup(self.peers, self.instance, session.agent, stored)

    async def _name_session(self, session: Session, stamp: Stamp) -> str:
        """Return the name that a session will get."""
        peer = await self.peers.find_current_peer(self.instance, session.agent, stamp.person) if self.peers else ""
        return self.choose_name(build_session_origin(session, stamp, peer=peer))

    async def deliver(self, delivery_batch: DeliveryBatch) -> Mapping[str, str]:
        assert isinstance(delivery_batch.payload, MemoryBatch)
        batch = await self._add_earlier_versions(delivery_batch.payload)
        await self._order_rebuilds(batch)
        if (
            not self._refresh_provider()
        ):  # checked last, because the provider may be replaced while something else is awaited
            raise Transient(f"memory {self.instance} is not attached")
        return await self.provider.store(batch)

    async def _order_rebuilds(self, batch: MemoryBatch) -> None:
        """Record, before the memory hears of an undo, which of its sessions have to be stored anew."""
        retractions = [item for item in batch.items if isinstance(item, MemoryRetraction)]
        on_rebuild = self.on_rebuild
        if not retractions or on_rebuild is None or not self.provider.has_capability(MemoryCapability.RENEW_SESSION):
            return
        for item in retractions:
            for rebuild in await self._plan_rebuilds(batch, item):
                await self.gates.retry_write(functools.partial(order_rebuild, self.gates, rebuild))
        on_rebuild()

    async def _plan_rebuilds(self, batch: MemoryBatch, retraction: MemoryRetraction) -> list[SessionRebuild]:
        """Return a rebuild for each memory session that an undone exchange was stored in."""
        entries = await self.store.list_entries(retraction.session)
        keys_by_name: dict[str, dict[str, None]] = {}
        for key in retraction.keys:
            keys_by_name.setdefault(batch.names_of.get(key, batch.name), {})[get_original_key(key)] = None
        stamps = [stamp for entry in entries if (stamp := get_stamp(entry)) is not None]
        return [
            SessionRebuild(
                place=PlaceErasure(agent=retraction.agent, memory=self.instance),
                name=name,
                keys=tuple(keys),
                members=tuple(sorted({member for stamp in stamps for member in stamp.audience})),
                since=_find_first_time(entries, {int(key.rpartition(":")[2]) for key in keys}),
            )
            for name, keys in keys_by_name.items()
        ]

    async def find_arrived(self, delivery_batch: DeliveryBatch) -> Sequence[str]:
        assert isinstance(delivery_batch.payload, MemoryBatch)
        batch = await self._add_earlier_versions(delivery_batch.payload)
        if (
            not self._refresh_provider()
        ):  # checked last, because the provider may be replaced while something else is awaited
            raise Transient(f"memory {self.instance} is not attached")
        return await self.provider.probe(batch)

    async def _add_earlier_versions(self, batch: MemoryBatch) -> MemoryBatch:
        """Add the earlier versions of facts at the last moment. They are not part of what a retry must repeat, because
        they may have been erased.
        """
        replaced: dict[str, str] = {}
        heard_by: dict[str, tuple[str, ...]] = {}
        peers_of: dict[str, dict[str, str]] = {}
        moved: dict[str, str] = {}
        names_of: dict[str, str] = {}
        for item in batch.items:
            if isinstance(item, MemoryRetraction):
                for at, exchange in await self._find_retracted(item):
                    heard_by[exchange.key], peers_of[exchange.key] = exchange.stamp.audience, exchange.peers
                    names = await self._list_names(item.session)
                    if names and (name := _find_name_at(names, at)) != batch.name:
                        names_of[exchange.key] = name
            if not isinstance(item, MemoryNote) or item.action == "add":
                continue
            if item.supersedes:
                session, seq, _ = item.supersedes.rsplit(":", 2)
                entry: Entry | None = await self.store.get_entry(session, int(seq))
            else:
                entry = await self._find_last_version(item) if item.fact else None
            old = entry.body if entry is not None else None
            if entry is not None and isinstance(old, Noted) and old.text:
                key = item.supersedes or item.fact
                note = await self._build_item(await self.store.get_session(entry.session), entry)
                if isinstance(note, MemoryNote):
                    located = await locate_item(self.store, self.instance, note, note.seq)
                    if key == note.key:
                        key = moved[note.key] = located.key
                    peers_of[key] = located.peers
                replaced[key] = old.text
                # A note cannot take back another note whose audience includes people who are not in its own audience.
                present = (await self.store.get_people()).expand_audience(item.stamp.audience)
                if can_hear(present, old.stamp.audience, item.at):
                    heard_by[key] = old.stamp.audience
        if not replaced and not heard_by:
            return batch
        items = tuple(_follow_moves(item, moved, heard_by) for item in batch.items)
        return structs.replace(
            batch, items=items, replaced=replaced, heard_by=heard_by, peers_of=peers_of, names_of=names_of
        )

    async def _find_retracted(self, retraction: MemoryRetraction) -> list[tuple[int, Exchange]]:
        """Return the retracted exchanges with their entries, as far as they are still known. One that was moved to
        another peer is returned as it was, and as it is now.
        """
        session = await self.store.get_session(retraction.session)
        found: list[tuple[int, Exchange]] = []
        for key in retraction.keys:
            op = int(key.rpartition(":")[2])
            for turn in await self.store.list_operations(session.id, types=("turn",), after=op - 1, before=op + 1):
                memory = (
                    await self._build_item(session, await self.store.get_entry(session.id, turn.last))
                    if turn.last
                    else None
                )
                if isinstance(memory, Exchange):
                    now = await locate_item(self.store, self.instance, memory, turn.last)
                    both = [memory] if now.key == memory.key else [memory, now]
                    found += [(turn.last, it) for it in both if isinstance(it, Exchange)]
        return found

    async def _find_last_version(self, note: MemoryNote) -> Entry | None:
        """Return the entry that noted a fact in another session."""
        last: Entry | None = None
        after = 0
        while page := await self.store.list_notes(after=after, limit=PAGE_ENTRIES):
            for entry in page:
                if (entry.session, entry.seq) == (note.session, note.seq):
                    return last
                body = entry.body
                if isinstance(body, Noted) and body.fact == note.fact:
                    last = None if body.action == "remove" else entry
            after = page[-1].pos
        return last

    def _refresh_provider(self) -> bool:
        """Use the provider that is configured now; return whether there is one."""
        provider = self.current_provider()
        self.provider = provider or self.provider
        return provider is not None

    async def _take_same_name(
        self, session: Session, items: list[tuple[int, DeliverableItem]], lookup: PeerLookup
    ) -> tuple[DeliveryBatch, bool]:
        """Return the first of `items` that have the same name, jobs separate from the rest, and whether others are
        left.

        The name is chosen and recorded when a session's first item is stored, and then kept. A name that was set later
        applies from there on.
        """
        names = await self._list_names(session.id)
        records: tuple[EntryDraft, ...] = ()
        if not names:
            name = self._choose_name(session, items)
            records = (
                EntryDraft(body=Changed(change=MemoryNameSet(memory=self.instance, name=name)), author="system"),
            )
            names = [(0, name)]
        first = _find_name_at(names, items[0][0])
        alike = isinstance(items[0][1], JobResult)
        same = list(
            itertools.takewhile(
                lambda item: _find_name_at(names, item[0]) == first and isinstance(item[1], JobResult) == alike, items
            )
        )
        batch = self._build_batch(same, name=first, records=records, peers=lookup.list_used())
        return batch, len(same) < len(items)

    def _choose_name(self, session: Session, items: list[tuple[int, DeliverableItem]]) -> str:
        """Choose the name of a session by its first item."""
        item = items[0][1]
        stamp = _get_item_stamp(item)
        peer = "" if isinstance(item, MemoryRetraction) else item.peers.get(stamp.person, "")
        return self.choose_name(build_session_origin(session, stamp, peer=peer))

    async def _list_names(self, session: str) -> list[tuple[int, str]]:
        found = [
            (entry.seq, entry.body.change)
            for entry in await self.store.list_entries(session, kinds=(EntryKind.CHANGED,))
            if isinstance(entry.body, Changed)
            and isinstance(entry.body.change, MemoryNameSet)
            and entry.body.change.memory == self.instance
        ]
        return _follow_rebuilds(found)

    def _build_batch(
        self,
        items: list[tuple[int, DeliverableItem]],
        *,
        name: str,
        upto: int | None = None,
        records: tuple[EntryDraft, ...] = (),
        peers: tuple[tuple[str, str], ...] = (),
    ) -> DeliveryBatch:
        memories = tuple(memory for _, memory in items)
        jobs = tuple(memory for memory in memories if isinstance(memory, JobResult))
        others = tuple(memory for memory in memories if not isinstance(memory, JobResult))
        return DeliveryBatch(
            items=tuple(DeliveryItem(seq=seq, key=memory.key) for seq, memory in items),
            processed_upto_seq=upto if upto is not None else items[-1][0],
            digest=fingerprint_batch(name, memories),
            payload=MemoryBatch(name=name, items=others, jobs=jobs),
            name=name,
            records=records,
            peers=peers,
        )

    @property
    def _receives_jobs(self) -> bool:
        return self.provider.has_capability(MemoryCapability.JOBS)

    async def _list_operations(self, session: str, first: int, last: int, *, jobs: bool) -> list[Operation]:
        """Return the operations that memories receive: turns, and tasks if `jobs`. Reviews only leave notes."""
        what = ("turn", "job") if jobs else ("turn",)
        found = await self.store.list_operations(session, types=what, after=first - 1, before=last + 1)
        return [op for op in found if op.type == "turn" or op.consumer == consumers.TASKS]

    async def _build_item(
        self, session: Session, entry: Entry, lookup: PeerLookup | None = None, *, jobs: bool = True
    ) -> DeliverableItem | None:
        """Return the item of an entry. An exchange is built from the entries of its turn as they were at its end. A job
        belongs to the entry that reports it, so nothing of it is left after that entry is erased.
        """
        lookup = lookup or self._make_lookup(session)
        match entry.body:
            case Noted():
                await self._load_peers(lookup, [entry])
                return build_note(entry, agent=session.agent, find_peer=lookup.find)
            case Heard():
                await self._load_peers(lookup, [entry])
                return build_job_result(entry, agent=session.agent, find_peer=lookup.find)
            case Ended() if entry.op is not None:
                found = await self._list_operations(session.id, entry.op, entry.op, jobs=jobs)
                if not found:
                    return None
                turn = found[0]
                if turn.type == "job":
                    return await self._build_job(session, entry, lookup)
                entries = await list_turn_entries(self.store, session.id, [turn], upto=entry.seq)
                # As it was when it ended. A later undo is sent as a separate item.
                selection = select_operations([turn], at=entry.seq + 1)
                ended = assemble_context(selection, entries).turns
                if not ended:
                    return None
                await self._load_peers(lookup, entries)
                return build_exchange(
                    session=session.id,
                    agent=session.agent,
                    op=entry.op,
                    heard=ended[0].heard,
                    steps=ended[0].steps,
                    people=await self._load_people_then(entries, entry.op),
                    parent=session.parent,
                    find_peer=lookup.find,
                )
            case Changed(change=OperationsUndone(ops=ops)):
                turns = [
                    op.op
                    for each in ops
                    for op in await self.store.list_operations(
                        session.id, types=("turn",), after=each - 1, before=each + 1
                    )
                ]
                return build_retraction(entry, agent=session.agent, turns=turns)
            case _:
                return None

    async def _load_people_then(self, entries: Sequence[Entry], op: int) -> PeopleDirectory:
        """Return the people of the time when a turn began. They matter only if its messages had several audiences."""
        audiences = {it.body.stamp.audience for it in entries if isinstance(it.body, Heard | Said)}
        if len(audiences) < 2:
            return PeopleDirectory()
        epoch = next((it.body.people for it in entries if it.seq == op and isinstance(it.body, Began)), 0)
        return await load_people_at(self.store, epoch)

    async def _build_job(self, session: Session, ended: Entry, lookup: PeerLookup) -> JobResult | None:
        """Return the result of a task, which is heard right after the end of its job."""
        heard = await self.store.list_entries(session.id, after=ended.seq, upto=ended.seq + 1, kinds=(EntryKind.HEARD,))
        await self._load_peers(lookup, heard)
        return build_job_result(heard[0], agent=session.agent, find_peer=lookup.find) if heard else None

    async def _load_peers(self, lookup: PeerLookup, entries: Sequence[Entry]) -> None:
        await lookup.load(
            (identity, entry.pos)
            for entry in entries
            if isinstance(entry.body, Heard | Said | Noted)
            for identity in list_stamp_identities(entry.body.stamp)
        )


def build_session_origin(session: Session, stamp: Stamp, *, peer: str = "") -> SessionOrigin:
    """Return what is known of a session when its first item is stored or searched. `peer` is how the memory calls the
    person.
    """
    # A session with a directory belongs to a terminal, which has no chat to name it after.
    gateway = not stamp.directory
    return SessionOrigin(
        session=session.id,
        owner=peer or stamp.person,
        title=stamp.title,
        address=session.address if gateway else "",
        directory=stamp.directory,
        repo=stamp.repo,
    )


def _follow_moves(item: MemoryItem, moved: Mapping[str, str], known: Mapping[str, object]) -> MemoryItem:
    """Return an item that names others by the keys that they have now."""
    match item:
        case MemoryNote(supersedes=key) if moved.get(key, key) != key:
            return structs.replace(item, supersedes=moved[key])
        case MemoryRetraction(keys=keys):
            again = [it for it in known if it.partition("@")[0] in keys and it not in keys]
            return structs.replace(item, keys=(*keys, *again)) if again else item
        case _:
            return item


def _follow_rebuilds(names: Sequence[tuple[int, MemoryNameSet]]) -> list[tuple[int, str]]:
    """Return the names, each as the one that its session was last stored under."""
    latest: dict[str, str] = {}
    for _, change in reversed(names):
        if change.replaces:
            latest[change.replaces] = latest.get(change.name, change.name)
    return [(seq, latest.get(change.name, change.name)) for seq, change in names]


def _find_first_time(entries: Sequence[Entry], ops: Collection[int]) -> float:
    """Return when the first word that these turns take was said; earlier if the clock was set back since."""
    taken = [seq for it in entries if isinstance(it.body, Began | Took) and it.op in ops for seq in it.body.takes]
    first = min((*taken, *ops), default=0)
    return min((it.at for it in entries if it.seq >= first), default=0.0)


def _get_item_stamp(memory: DeliverableItem) -> Stamp:
    return memory.stamp if not isinstance(memory, MemoryRetraction) else Stamp()


def _find_name_at(names: list[tuple[int, str]], seq: int) -> str:
    """Return the name in force at an entry; entries before the first name have the first name."""
    before = [name for at, name in names if at <= seq]
    return before[-1] if before else names[0][1]
