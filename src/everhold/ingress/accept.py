"""Accept messages of platforms: commit, then acknowledge. A message is stored before its platform is told so."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from everhold.core.access import AdmissionDecision, compute_audience, format_sender_name, is_acknowledgement, is_notice
from everhold.core.address import Address, derive_address
from everhold.core.commands import MESSAGE_COMMANDS, find_mistyped_command, parse_command
from everhold.core.consumers import BACKLINKS, COMMANDS, TURN
from everhold.core.entries import (
    AddressBound,
    Changed,
    ChatLocation,
    EntryDraft,
    Heard,
    Stamp,
    strip_surrogates,
    strip_surrogates_deep,
)
from everhold.core.ids import make_session_id
from everhold.core.people import PERSON_ID_BYTES, PERSON_MEMBER, make_person_id
from everhold.core.provenance import can_start_turn
from everhold.core.quotas import QuotaRefusal
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.memory.peers import PeerRegistry
from everhold.engine.session_access import find_session_start, is_foreign_session
from everhold.engine.state_updates import update_state_record
from everhold.errors import Conflict, OutcomeUnknown
from everhold.ingress.quotas import MessageCharge, MessageQuotas
from everhold.ingress.shared_records import SharedRecords
from everhold.ports.platform import SCHEDULED_EVENT, UNPARSED_EVENT, AcceptResult, IncomingMessage
from everhold.ports.store import (
    Change,
    CommitResult,
    FirstSeen,
    PeerRecord,
    SessionOpening,
    StateNamespace,
    StateWrite,
    Step,
    Wakeup,
    make_state_scope,
)
from everhold.telemetry.metrics import ACCEPT_SECONDS

AdmitMessage: TypeAlias = Callable[[IncomingMessage], Awaitable[AdmissionDecision]]
"""Decides who the sender is and whether the message is accepted, by the configuration and the known people."""

MAX_KNOWN_CHATS: Final = 10_000
MOST_CONFLICTS: Final = 1_000
"""How often in a row other writers may commit before one message. Of colliding commits one always succeeds."""
_WAKEUPS: Final = {consumer: (Wakeup(consumer=consumer),) for consumer in (TURN, COMMANDS)}


class KnownChat(NamedTuple):
    """The session that an address led to at its last message. It is a cache: a commit refuses outdated values."""

    session: str
    stamp: Stamp
    author: str
    bound: tuple[str, str]
    left: str = ""
    """The session of another person that the address led to before."""


class OffsetVersion:
    """The version of a platform offset after all commits in progress with it."""

    def __init__(self, version: int) -> None:
        self.version = version


class DecisionOutdated(Exception):
    """A shared state record was written since a message was admitted, so it has to be admitted again."""


class QuotaExceeded(Exception):
    """A quota refuses a message."""

    def __init__(self, refusal: QuotaRefusal) -> None:
        super().__init__(refusal.quota)
        self.refusal = refusal


class MessageAcceptor:
    """Accepts messages, one commit per message. A repeated delivery is recognised; an edit is a new message."""

    def __init__(
        self,
        gates: Gates,
        *,
        admit: AdmitMessage,
        wakeups: Wakeups,
        peers: PeerRegistry | None = None,
        quotas: MessageQuotas | None = None,
        shared_records: SharedRecords | None = None,
        tell: Callable[[ChatLocation, str], None] = lambda _to, _text: None,
    ) -> None:
        """`peers` records how memories call the speaker, in the commit of the first message. `tell` sends an answer
        that belongs to no session. `shared_records` are those that `admit` decides by."""
        self.peers = peers
        self.shared_records = shared_records
        self.quotas = quotas
        self.tell = tell
        self.gates = gates
        self.admit = admit
        self.wakeups = wakeups
        self._known_chats: dict[tuple[object, ...], KnownChat] = {}
        """By everything that determines an address and a stamp."""
        self._offsets: dict[tuple[str, str], OffsetVersion] = {}
        """By scope and key."""

    async def __call__(self, incoming: IncomingMessage) -> AcceptResult:
        incoming, since = sanitize_ids(incoming), self.gates.clock.monotonic()
        for _ in range(MOST_CONFLICTS):
            try:
                result = await self._accept_admitted(incoming, await self.admit(incoming))
                self.gates.metrics.observe(
                    ACCEPT_SECONDS, self.gates.clock.monotonic() - since, incoming.origin.platform
                )
                return result
            except DecisionOutdated:
                continue
        raise _build_unsettled(incoming)

    async def _accept_admitted(self, incoming: IncomingMessage, admission: AdmissionDecision) -> AcceptResult:
        if admission.refusal or admission.ignored:
            return await self._leave_out(incoming, admission)
        charge = self.quotas.find_charge(incoming, admission) if self.quotas is not None else None
        if charge is None:
            return await self._commit_repeatedly(incoming, admission)
        try:
            await self._take_charge(charge, incoming)
            result = await self._commit_repeatedly(incoming, admission, charge=charge)
        except QuotaExceeded as error:
            return await self._limit(incoming, charge, error.refusal)
        except BaseException:
            charge.give_back()
            raise
        if result.outcome != "accepted":
            charge.give_back()  # it was counted when it came first
        return result

    async def hold(
        self, incoming: IncomingMessage, build_write: Callable[[AdmissionDecision], StateWrite]
    ) -> tuple[AcceptResult, StateWrite | None]:
        """Admit a message and store it with `build_write` instead of accepting it. Return the write if it was stored.
        `release` accepts it later."""
        incoming = sanitize_ids(incoming)
        for _ in range(MOST_CONFLICTS):
            try:
                return await self._hold_admitted(incoming, await self.admit(incoming), build_write)
            except DecisionOutdated:
                continue
        raise _build_unsettled(incoming)

    async def _hold_admitted(
        self,
        incoming: IncomingMessage,
        admission: AdmissionDecision,
        build_write: Callable[[AdmissionDecision], StateWrite],
    ) -> tuple[AcceptResult, StateWrite | None]:
        if admission.refusal or admission.ignored:
            return await self._leave_out(incoming, admission), None
        if await self._is_stored(incoming):
            await self.commit_offset_only(incoming)
            return AcceptResult(outcome="duplicate"), None
        charge = self.quotas.find_charge(incoming, admission) if self.quotas is not None else None
        write = build_write(admission)
        try:
            if charge is not None:
                await self._take_charge(charge, incoming)
            await self._commit_held(incoming, admission, write)
        except QuotaExceeded as error:
            assert charge is not None
            return await self._limit(incoming, charge, error.refusal), None
        except BaseException:
            if charge is not None:
                charge.give_back()
            raise
        return AcceptResult(outcome="held"), write

    async def release(
        self, incoming: IncomingMessage, admission: AdmissionDecision, *, more_bytes: int = 0
    ) -> AcceptResult:
        """Accept a message that was held, with the decision that was made then. No quota refuses it any more.
        `more_bytes` were not known when it was held, and are charged now. An identity may have been unlinked since, so
        its session is looked up again. Raises DecisionOutdated if `admission` names an outdated `state_version`."""
        incoming = sanitize_ids(incoming)
        admission = structs.replace(admission, people_version=(await self.gates.store.get_people()).version)
        charge = self.quotas.find_charge(incoming, admission) if self.quotas is not None else None
        result = await self._commit_repeatedly(incoming, admission, charge=charge, is_held=True)
        if charge is not None and self.quotas is not None and more_bytes > 0 and result.outcome == "accepted":
            await self.quotas.add_bytes(charge, more_bytes)
        return result

    async def load_state_version(self) -> int | None:
        """Return the version of the shared state records by which a held message may be released now."""
        if self.shared_records is None:
            return None
        await self.shared_records.refresh()
        return self.shared_records.version

    async def _take_charge(self, charge: MessageCharge, incoming: IncomingMessage) -> None:
        """Raise QuotaExceeded if a quota refuses the message. A repeated message is not refused, because it is stored
        already."""
        assert self.quotas is not None
        refusal = await self.quotas.take(charge)
        if refusal is not None and not await self._is_stored(incoming):
            raise QuotaExceeded(refusal)

    async def _is_stored(self, incoming: IncomingMessage) -> bool:
        key = build_dedup_key(incoming)
        return key is not None and await self.gates.store.find_entry_place(key) is not None

    async def _limit(self, incoming: IncomingMessage, charge: MessageCharge, refusal: QuotaRefusal) -> AcceptResult:
        """Record that a quota refused a message, confirm it to the platform, and tell the sender once."""
        assert self.quotas is not None
        origin, reason = incoming.origin, refusal.explain()
        charge.give_back_stored()
        self.quotas.record_refusal(refusal)
        await self.commit_offset_only(incoming)
        if charge.is_local:
            pass  # the response of the request tells it
        elif charge.asks and await self.quotas.should_tell(refusal):
            self.tell(origin, reason)
            self.gates.log.warning(
                "message.limited",
                platform=origin.platform,
                account=origin.account,
                chat=origin.chat,
                quota=refusal.quota.value,
                subject=str(refusal.subject),
            )
        return AcceptResult(outcome="limited", reason=reason, retry_after=refusal.retry_after)

    async def _leave_out(self, incoming: IncomingMessage, admission: AdmissionDecision) -> AcceptResult:
        """Confirm a message to its platform that is not stored."""
        if admission.refusal:
            origin = incoming.origin
            self.gates.log.info(
                "message.denied",
                platform=origin.platform,
                account=origin.account,
                chat=origin.chat,
                reason=admission.refusal,
            )
            await self.commit_offset_only(incoming)
            return AcceptResult(outcome="denied", reason=admission.refusal)
        await self.commit_offset_only(incoming)
        return AcceptResult(outcome="ignored")

    async def _commit_repeatedly(
        self,
        incoming: IncomingMessage,
        admission: AdmissionDecision,
        *,
        charge: MessageCharge | None = None,
        is_held: bool = False,
    ) -> AcceptResult:
        for attempt in range(MOST_CONFLICTS):
            try:
                return await self._commit(incoming, admission, charge, is_held=is_held)
            except Conflict:
                await self._check_decision(admission)
                # Another writer opened the session or moved the offset first. What it wrote can be read now.
                if attempt == MOST_CONFLICTS - 1 or not await self._still_holds(incoming.state_write):
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _check_decision(self, admission: AdmissionDecision) -> None:
        """Raise DecisionOutdated if a shared state record was written since the message was admitted."""
        if self._find_state_seen(admission) is not None:
            assert self.shared_records is not None
            await self.shared_records.refresh()
            if self.shared_records.version != admission.state_version:
                raise DecisionOutdated

    def _find_state_seen(self, admission: AdmissionDecision) -> int | None:
        """Return the state version that a commit of this decision names."""
        return None if self.shared_records is None else admission.state_version

    async def _commit_held(self, incoming: IncomingMessage, admission: AdmissionDecision, write: StateWrite) -> None:
        try:
            await self.commit_offset_only(incoming, write, state_seen=self._find_state_seen(admission))
        except Conflict:
            await self._check_decision(admission)
            raise

    async def commit_offset_only(
        self, incoming: IncomingMessage, *writes: StateWrite, state_seen: int | None = None
    ) -> None:
        """Commit the platform offset without an entry, because the message is not stored, or is stored in `writes`."""
        at = self.gates.clock.now()
        if incoming.state_write is not None:
            writes += (incoming.state_write,)
        if writes:
            await self.gates.store.commit(
                Change(step=Step.STATE, session="", at=at, state_writes=writes, state_seen=state_seen)
            )
        if (offset := incoming.offset) is not None:
            await update_state_record(
                self.gates.store,
                StateNamespace.PLATFORM_OFFSET,
                offset.key,
                scope=make_state_scope(incoming.origin.platform, incoming.origin.account),
                at=at,
                decide=lambda _: offset.value,
                account=offset.claim,
            )

    async def _still_holds(self, write: StateWrite | None) -> bool:
        """Return whether the record still has the version that `write` names. If not, a retry would not help."""
        if write is None:
            return True
        record = await self.gates.store.get_state_record(write.namespace, write.key, scope=write.scope)
        return (0 if record is None else record.version) == write.version

    async def _move_offset(self, incoming: IncomingMessage) -> tuple[tuple[StateWrite, ...], OffsetVersion | None]:
        """Return the write of the platform offset that goes with a message, and the version it is based on."""
        assert incoming.offset is not None
        key = _get_offset_place(incoming)
        known = self._offsets.get(key)
        if known is None:
            record = await self.gates.store.get_state_record(StateNamespace.PLATFORM_OFFSET, key[1], scope=key[0])
            # Several tasks may have read it at once; all continue from the version of the first.
            known = self._offsets.get(key) or OffsetVersion(0 if record is None else record.version)
            if known.version:
                if len(self._offsets) >= MAX_KNOWN_CHATS:
                    self._offsets.clear()
                self._offsets[key] = known
        write = StateWrite(
            namespace=StateNamespace.PLATFORM_OFFSET,
            key=key[1],
            scope=key[0],
            value=incoming.offset.value,
            version=known.version,
        )
        # The store commits in order, so the next message can name the version that this one makes.
        known.version += 1
        return (write,), known

    def _forget_offset(self, incoming: IncomingMessage, known: OffsetVersion | None) -> None:
        """Forget the cached offset after another writer moved it, unless it was read again since."""
        if known is not None:
            key = _get_offset_place(incoming)
            if self._offsets.get(key) is known:
                del self._offsets[key]

    async def _commit(
        self,
        incoming: IncomingMessage,
        admission: AdmissionDecision,
        charge: MessageCharge | None = None,
        *,
        is_held: bool = False,
    ) -> AcceptResult:
        gates, origin = self.gates, incoming.origin
        at = gates.clock.now()
        whereabouts = (
            admission,
            incoming.kind,
            origin.platform,
            origin.account,
            origin.chat,
            origin.thread,
            incoming.sender,
            incoming.directory,
            incoming.repo,
        )
        known = self._known_chats.get(whereabouts)
        opens: SessionOpening | None = None
        new = False
        if known is None:
            known, opens = await self._find_or_open_session(incoming, admission, at)
            new = True
            if opens is not None and charge is not None and self.quotas is not None:
                refusal = await self.quotas.take_conversation(charge, force=is_held)
                if refusal is not None and not await self._is_stored(incoming):
                    raise QuotaExceeded(refusal)
        session, stamp, author, bound, left = known
        body = build_heard(incoming, stamp, admission)
        wakeup = COMMANDS if body.command else TURN
        entries: tuple[EntryDraft, ...] = (EntryDraft(body=body, author=author, dedup=build_dedup_key(incoming)),)
        if left:
            rebound = Changed(change=AddressBound(address=stamp.address, previous=left, by="unlink"))
            entries = (EntryDraft(body=rebound, author="system"), *entries)
        peers: Sequence[PeerRecord] = ()
        if self.peers is not None:
            peers = await self.peers.list_first_records(
                admission.agent, admission.identity, people_version=admission.people_version
            )
        state_writes: tuple[StateWrite, ...] = ()
        known_offset: OffsetVersion | None = None
        if incoming.offset is not None:
            state_writes, known_offset = await self._move_offset(incoming)
        if incoming.state_write is not None:
            state_writes += (incoming.state_write,)
        # A worker is reserved from here on, so nothing may fail before the commit.
        wakeups = self.wakeups.reserve_workers(session, _WAKEUPS[wakeup]) if body.asks else ()
        if left:
            wakeups += (Wakeup(consumer=BACKLINKS),)
        change = Change(
            step=Step.ACCEPT,
            session=session,
            at=at,
            opens=opens,
            bound=bound if opens is None and not left else None,
            entries=entries,
            wakeups=wakeups,
            state_writes=state_writes,
            account=None if incoming.offset is None else incoming.offset.claim,
            state_seen=self._find_state_seen(admission),
            first_seen=self._make_first_seen(admission) if admission.is_new_identity else (),
            peers=tuple(peers),
            blobs=incoming.files,
        )
        try:
            done = await (
                self._commit_and_start_workers(change) if wakeups and wakeups[0].owner else gates.store.commit(change)
            )
        except Conflict:
            self._known_chats.pop(whereabouts, None)
            self._forget_offset(incoming, known_offset)
            raise
        if new and not left:
            if len(self._known_chats) >= MAX_KNOWN_CHATS:
                self._known_chats.clear()
            self._known_chats[whereabouts] = known
        if done.duplicate:
            outcome = "differs" if done.differs else "duplicate"
            if done.differs:
                gates.log.warning("message.conflicting", session=done.session, seq=done.seqs[-1])
            return AcceptResult(outcome=outcome, session=done.session, seq=done.seqs[-1])
        if opens is not None:
            gates.log.info("session.bound", session=session, address=stamp.address)
        gates.log.info("message.accepted", session=session, seq=done.seqs[-1], asks=body.asks)
        if wakeup != TURN or not done.claims:  # otherwise the turn of the session begins now and reads everything
            self.wakeups.notify(session, work=body.asks and not done.claims)
        return AcceptResult(outcome="accepted", session=session, seq=done.seqs[-1])

    def _make_first_seen(self, admission: AdmissionDecision) -> tuple[FirstSeen, ...]:
        """Return what makes the person of an identity that was never heard before."""
        person = make_person_id(self.gates.chance.bytes(PERSON_ID_BYTES))
        return (FirstSeen(identity=admission.identity, person=person),)

    async def _find_or_open_session(
        self, incoming: IncomingMessage, admission: AdmissionDecision, at: float
    ) -> tuple[KnownChat, SessionOpening | None]:
        """Return the session of a message, and the session to open if there is none yet."""
        gates, origin = self.gates, incoming.origin
        place = derive_address(
            agent=admission.agent,
            platform=origin.platform,
            account=origin.account,
            kind=incoming.kind,
            chat=admission.chat or origin.chat,
            thread=origin.thread,
            sender=incoming.sender,
            group=admission.group,
            threads=admission.threads,
            apart=admission.separate_conversation,
        )
        address = str(place)
        found = await gates.store.get_bound_session(address)
        left = "" if found is None or not await self._is_foreign(found[0], admission, place) else found[0]
        if left:
            found = await self._find_earlier_session(address, admission)
        session, title = found or (make_session_id(at, gates.chance.bytes(10)), "")
        stamp = Stamp(
            person=admission.identity,
            audience=compute_audience(place, admission.identity),
            address=address,
            title=title,
            directory=incoming.directory,
            repo=incoming.repo,
        )
        known = KnownChat(session, stamp, f"person:{admission.identity}", (address, title), left)
        opens = SessionOpening(agent=admission.agent, address=address, bind=not left)
        return known, opens if found is None else None

    async def _is_foreign(self, session: str, admission: AdmissionDecision, place: Address) -> bool:
        """Return whether a direct chat leads to the session of another person, because an identity was unlinked."""
        store = self.gates.store
        people = await store.get_people()
        if place.kind != "dm" or not people.has_parted_since(admission.identity):
            return False
        return await is_foreign_session(store, await store.get_session(session), people, (admission.identity,))

    async def _find_earlier_session(self, address: str, admission: AdmissionDecision) -> tuple[str, str] | None:
        """Return the session that the sender had at an address before it led to another person's, with its title."""
        store = self.gates.store
        people = await store.get_people()
        authors = people.list_same_authors(f"{PERSON_MEMBER}{admission.identity}")
        found = await store.list_sessions_begun_by(authors=authors, agent=admission.agent, address=address)
        for session in found:
            owner, began_at = await find_session_start(store, session)
            author = owner.removeprefix(PERSON_MEMBER)
            if session.address == address and people.belongs_to(author, admission.identity, at=began_at):
                return session.id, session.title
        return None

    async def _commit_and_start_workers(self, change: Change) -> CommitResult:
        """Commit, and start workers for the claimed cursors, even if the caller was cancelled."""
        loop = asyncio.get_running_loop()
        committed: asyncio.Future[CommitResult] = loop.create_future()
        task = loop.create_task(self.gates.store.commit(change))
        task.add_done_callback(functools.partial(self._on_committed, change, committed))
        return await committed

    def _on_committed(
        self, change: Change, committed: asyncio.Future[CommitResult], task: asyncio.Task[CommitResult]
    ) -> None:
        """Start the reserved workers, and pass the result to the caller if it still waits."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(error, OutcomeUnknown):
            self.wakeups.expect_strays()
        self.wakeups.start_reserved(change.session, change.wakeups, () if error else task.result().claims)
        if committed.done():
            return
        if task.cancelled():
            committed.cancel()
        elif error is not None:
            committed.set_exception(error)
        else:
            committed.set_result(task.result())


def _build_unsettled(incoming: IncomingMessage) -> Conflict:
    origin = incoming.origin
    return Conflict(f"the state records that decide about {origin.platform}/{origin.account} keep changing")


def _get_offset_place(incoming: IncomingMessage) -> tuple[str, str]:
    """Return the scope and the key of the platform offset."""
    assert incoming.offset is not None
    return make_state_scope(incoming.origin.platform, incoming.origin.account), incoming.offset.key


def build_heard(incoming: IncomingMessage, stamp: Stamp, admission: AdmissionDecision) -> Heard:
    """Return the entry of a message."""
    text, mangled = strip_surrogates(incoming.text)
    sender, bot, attachments = incoming.sender, incoming.bot, incoming.attachments
    name = format_sender_name(strip_surrogates(incoming.name)[0], sender=sender) if incoming.name else ""
    # A message that is not addressed to the agent gets no answer, and neither do acknowledgements and error notices of
    # bots.
    idle = incoming.notice or (bot and (is_acknowledgement(text) or is_notice(text)))
    command = admission.command
    ordered = command is not None
    pieces = incoming.pieces
    own = not pieces or bool(incoming.hook) or can_start_turn(text, attachments, pieces, direct=incoming.kind == "dm")
    meant = ordered or (own and (incoming.addressed or admission.always_answered))
    asks = meant and admission.asks and (ordered or not idle) and incoming.event != UNPARSED_EVENT
    if asks and not ordered and not bot and not incoming.is_automatic:
        command = parse_command(text) or find_mistyped_command(text)
    busy = ""
    if command is not None and command.name in MESSAGE_COMMANDS and (command.argument or attachments):
        busy, text, command = command.name, command.argument, None
    return Heard(
        origin=incoming.origin,
        text=text,
        asks=asks,
        sender=name,
        speaker=sender,
        bot=bot,
        hops=max(incoming.hops, admission.hops),
        revision=incoming.revision,
        command=command,
        attachments=tuple(map(strip_surrogates_deep, attachments)) if attachments else (),
        mangled=mangled,
        scheduled=incoming.event == SCHEDULED_EVENT,
        busy=busy,
        stamp=stamp,
        pieces=tuple(map(strip_surrogates_deep, pieces)) if pieces else (),
        role=admission.role,
        via=incoming.via,
        hook=incoming.hook,
        trace=incoming.trace,
    )


def sanitize_ids(incoming: IncomingMessage) -> IncomingMessage:
    """Return the message with ids that can be stored: invalid code points are replaced, always in the same way."""
    origin = incoming.origin
    parts = (origin.platform, origin.account, origin.chat, origin.thread, origin.message, incoming.sender)
    if "".join(parts).isascii() or not any(strip_surrogates(part)[1] for part in parts):
        return incoming
    place = ChatLocation(*(strip_surrogates(part)[0] for part in parts[:5]))
    return structs.replace(incoming, origin=place, sender=strip_surrogates(incoming.sender)[0])


def build_dedup_key(incoming: IncomingMessage) -> str | None:
    """Return the key that identifies a repeated delivery. A source without message ids does not repeat messages."""
    origin = incoming.origin
    if not origin.message:
        return None
    parts = (origin.platform, origin.account, origin.chat, origin.message, incoming.event, incoming.revision)
    return msgspec.json.encode(parts).decode()
