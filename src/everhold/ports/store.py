"""The store's promise: one atomic `commit` per change, and reads of what is committed.

A `Change` appends to one session and names its conditions. The rows that make reading fast (pending messages,
operations, bindings) follow from the entries and are written in the same transaction, so they can be rebuilt from the
log. Nothing in this module names a database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from everhold.core.entries import Entry, EntryDraft, EntryKind, StoredRecord

CURSOR_SEPARATOR: Final = "\t"
"""Separates consumer and session in the name of a cursor. No consumer's name contains it."""


class Step(StrEnum):
    """Every commit there is, by name. These are the crash points the simulator and the kill harness go through."""

    ACCEPT = "accept"
    BEGIN = "begin"
    TAKE = "take"
    THINK = "think"
    CALL = "call"
    RETURN = "return"
    PAUSE = "pause"
    END = "end"
    COMMAND = "command"
    NOTE = "note"
    JOB = "job"
    NOTICE = "notice"
    COMPRESSION_BEGIN = "compression.begin"
    COMPRESSION_END = "compression.end"
    DELIVERY_SEND = "delivery.send"
    DELIVERY_DONE = "delivery.done"
    DELIVERY_RETRY = "delivery.retry"
    CURSOR_SETTLE = "cursor.settle"
    BACKLINK = "backlink"
    ERASE = "erase"
    DRAFT = "draft"
    CLAIM = "claim"
    RENEW = "renew"
    REVOKE_LEASES = "revoke_leases"
    RETRY_NOW = "retry_now"
    REPLAY = "replay"
    STATE = "state"
    SPEND = "spend"
    PEOPLE = "people"


# -- cursors -----------------------------------------------------------------------------------------------------------


class DeliveryItem(StoredRecord, frozen=True):
    """One thing in a batch: the entry and part it stands for, and the key by which a repeat is recognised."""

    seq: int
    key: str
    part: int = 0


class InFlightBatch(StoredRecord, frozen=True):
    """What a consumer has sent to its destination without an answer so far. A retry repeats exactly this.

    `state`: `unsent` is known not to have arrived; `sent` may have left; `in_doubt` left and its answer was lost;
    `voided` contained something that was erased since.
    """

    items: tuple[DeliveryItem, ...]
    upto: int
    """The cursor's processed seq once this batch is done."""
    digest: str
    """Of the payload. A retry that would send something else is noticed by it."""
    state: Literal["unsent", "sent", "in_doubt", "voided"] = "sent"
    sends: int = 1
    name: str = ""
    """Under which name or identity the destination files it."""
    replays: tuple[int, ...] = ()
    """Dead letters that this batch tries again."""
    remaining: InFlightBatch | None = None
    """What is left of a batch that was refused. Its items follow this one, each by itself."""


class RetryDelay(Struct, frozen=True, kw_only=True):
    """Due when now ≥ since + seconds, or when now < since, because clocks jump. A mandatory one is never shortened."""

    seconds: float = 0.0
    mandatory: bool = False
    waits_for: str = ""
    """Who asked for the delay, or who failed. A consumer that will ask another one need not wait. Empty: all must."""


class Wakeup(Struct, frozen=True, kw_only=True):
    """Makes a cursor due. It leaves a cursor alone that has a mandatory delay, or a delay after a failure."""

    consumer: str
    wait: RetryDelay = RetryDelay()
    waits_for: str = ""
    """Only for a cursor that waits for another one than this. It stops waiting, even if the delay is mandatory."""
    start: int | None = None
    """Where a new cursor begins to read; None: with what this change appends."""
    owner: str = ""
    """Who claims the cursor in the same commit, if it is due and unclaimed."""
    lease: float = 0.0
    """For how many seconds."""


class ConsumerCursor(Struct, frozen=True, kw_only=True):
    """One consumer's durable state in one session."""

    consumer: str
    session: str
    processed_seq: int = 0
    in_flight: InFlightBatch | None = None
    attempts: int = 0
    since: float | None = None
    """None: there is nothing to do."""
    wait: float = 0.0
    mandatory: bool = False
    owner: str = ""
    fence: int = 0
    error: str = ""
    waits_for: str = ""
    """What it waits for, if that matters."""


class MemoryBacklog(Struct, frozen=True, kw_only=True):
    """What one consumer has yet to do for one agent, over all its sessions."""

    consumer: str
    agent: str
    cursors: int
    items: int
    oldest: float | None
    """When the oldest of them was committed."""
    attempts: int
    """How often in a row the cursor that failed most has failed."""
    error: str
    due: float | None
    """When the next of them is due."""


class ReceiptCount(Struct, frozen=True, kw_only=True):
    """What one consumer has delivered for one agent, over all its sessions."""

    consumer: str
    agent: str
    items: int
    named: int
    """How many of them the destination returned an id for."""


class Claim(Struct, frozen=True, kw_only=True):
    """The right to act for a cursor until its lease ends. Every write names the fence."""

    cursor: ConsumerCursor
    agent: str
    taken_over: bool = False
    """The former holder never released it, so what it had in flight may still arrive."""

    @property
    def consumer(self) -> str:
        return self.cursor.consumer

    @property
    def session(self) -> str:
        return self.cursor.session

    @property
    def fence(self) -> int:
        return self.cursor.fence

    @property
    def name(self) -> str:
        """What the cursor is called in a list of consumers."""
        return f"{self.cursor.consumer}{CURSOR_SEPARATOR}{self.cursor.session}"


class CursorUpdate(Struct, frozen=True, kw_only=True):
    """What becomes of a claimed cursor. None leaves a field as it is."""

    processed_seq: int | None = None
    in_flight: InFlightBatch | None = None
    clear_in_flight: bool = False
    """The batch in flight is done, so forget it."""
    attempts: int | None = None
    error: str | None = None
    wait: RetryDelay | None = None
    """When it is due again."""
    idle_at: int | None = None
    """The last seq that the worker looked at. The cursor has nothing to do unless the session has grown beyond it.

    With `wait` it has something to do, but not before that has passed. If the session has grown, it is due at once.
    """
    release: bool = False
    """End the lease."""


class DeadLetter(Struct, frozen=True, kw_only=True):
    """An item that a consumer gave up on, and why. `in_doubt`: it may have arrived all the same."""

    consumer: str
    session: str
    seq: int
    part: int = 0
    key: str = ""
    reason: str = ""
    in_doubt: bool = False
    at: float = 0.0
    id: int = 0
    state: Literal["dead", "replaying", "replayed", "dropped"] = "dead"
    """`replaying`: an operator asked for another try, and the consumer makes it before anything new."""


class Receipt(Struct, frozen=True, kw_only=True):
    """What the destination returned for one part: the ids that edits, probes and deletions need."""

    consumer: str
    session: str
    seq: int
    part: int = 0
    key: str = ""
    remote: str = ""
    in_doubt: bool = False
    """Sent more than once, because nobody could tell whether the first had arrived."""
    at: float = 0.0


# -- state records -----------------------------------------------------------------------------------------------------


class StateNamespace(StrEnum):
    """What a state record is about. There are no others."""

    PLATFORM_OFFSET = "platform_offset"
    SCHEDULE = "schedule"
    PAIRING_REQUEST = "pairing_request"
    PAIRING_GRANT = "pairing_grant"
    PAIRING_ATTEMPTS = "pairing_attempts"
    IDENTITY_LINK = "identity_link"
    DM_OWNER = "dm_owner"
    CHAT_ALIAS = "chat_alias"
    CHAT_HALT = "chat_halt"
    BACKFILL = "backfill"
    HERMES_IMPORT = "hermes_import"


class StateWrite(Struct, frozen=True, kw_only=True):
    """Writes or deletes one state record. Raises Conflict unless the record still has the version that was read."""

    namespace: StateNamespace
    key: str
    scope: str = ""
    """`platform:account` (see `make_state_scope`), or empty."""
    value: str | None
    """None deletes the record."""
    version: int
    """The version that was read; 0: there must be no such record."""


class StateRecord(Struct, frozen=True, kw_only=True):
    """A small versioned value outside the log. Each write raises the version by one; a key never gets one twice."""

    namespace: StateNamespace
    key: str
    scope: str = ""
    value: str
    version: int

    def replace_with(self, value: str | None) -> StateWrite:
        """The write that puts `value` in the place of what was read; None deletes it."""
        return StateWrite(namespace=self.namespace, key=self.key, scope=self.scope, value=value, version=self.version)


def make_state_scope(platform: str, account: str = "") -> str:
    """The scope of what concerns one account, or with an empty account one platform."""
    return f"{platform}:{account}"


def split_state_scope(scope: str) -> tuple[str, str]:
    """The platform and the account of a scope."""
    platform, _, account = scope.partition(":")
    return platform, account


# -- one change --------------------------------------------------------------------------------------------------------


class SessionOpening(Struct, frozen=True, kw_only=True):
    """Make the session in this very change. Its first address is bound with it."""

    agent: str
    address: str
    parent: str = ""
    parent_at: int = 0
    bind: bool = True
    """Bind the address with it; a branch takes it over with a `bind` of its own."""


class BudgetSpend(Struct, frozen=True, kw_only=True):
    """What a call cost, against a budget (`agent:main`, `person:ada`) and a day."""

    budget: str
    day: str
    usd: float = 0.0
    tokens: int = 0


class Change(Struct, frozen=True, kw_only=True):
    """One commit. It appends to one session; every condition holds, or nothing is written."""

    step: Step
    session: str
    at: float
    entries: tuple[EntryDraft, ...] = ()
    opens: SessionOpening | None = None
    # conditions
    claim: Claim | None = None
    """Raises LeaseLost unless the cursor is still held under this fence."""
    op: int | None = None
    """Refused with LeaseLost unless this operation is running under the claim's fence. Entries of the change belong to
    this one or to one that begins with them; only what is erased ends others, too: whoever had seen it."""
    generation: int | None = None
    """Refused with Conflict unless the view generation is still this."""
    seen: int | None = None
    """Refused with Conflict if the session has grown beyond this seq."""
    bound: tuple[str, str] | None = None
    """(address, title): refused with Conflict unless the address leads to this session, and that is its title."""
    read: int | None = None
    """Raises Conflict if any session has a `thought` after this pos."""
    # the rest of the commit
    cursor: CursorUpdate | None = None
    wakeups: tuple[Wakeup, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    replayed: tuple[int, ...] = ()
    """Dead letters (their ids) that were tried again and are settled."""
    receipts: tuple[Receipt, ...] = ()
    state_writes: tuple[StateWrite, ...] = ()
    """Raises Conflict unless every record still has the version that its write names."""
    spends: tuple[BudgetSpend, ...] = ()
    blobs: tuple[bytes, ...] = ()
    records: tuple[bytes, ...] = ()
    """Blobs, too, but they repeat what was said elsewhere: not kept if anything was erased since `op` began."""
    erase: tuple[int, ...] = ()
    """Entries whose body and salt go; an `erased` entry must be among `entries`."""
    drop_blobs: tuple[str, ...] = ()
    pause: bool = False
    """The operation `op` waits on purpose: taking it up again is not another attempt."""
    durable: bool = True
    """Whether the commit is on the disk before it is answered. False: if a power cut takes it, what it stands for is
    done again, and nobody sees a difference. A process that is killed does not lose it."""


class CommitResult(Struct, frozen=True, kw_only=True):
    """What a commit did. For a repeated dedup key: where the first one stands, and whether it said the same."""

    session: str
    seqs: tuple[int, ...] = ()
    pos: int = 0
    generation: int = 0
    duplicate: bool = False
    differs: bool = False
    claims: tuple[Claim, ...] = ()
    """The cursors that were claimed with their wakeups. The caller has to work on them now."""
    rests: bool = False
    """The claimed cursor was released, and it has nothing left to do."""


# -- what is read ------------------------------------------------------------------------------------------------------


class Session(Struct, frozen=True, kw_only=True):
    """A session as it stands. `generation` rises with whatever changes its view."""

    id: str
    agent: str
    address: str
    last_seq: int
    generation: int
    created: float
    title: str = ""
    parent: str = ""
    parent_at: int = 0
    pending: int = 0
    running: str = ""
    """`turn`, `compression`, or nothing."""
    compressed_upto: int = 0
    choices: Mapping[str, str] = {}
    names: Mapping[str, str] = {}
    """memory instance -> the name it files this session under."""


class CitedEntry(Struct, frozen=True, kw_only=True):
    """An entry, whose session it stands in, and whether it was said in a turn that is undone."""

    agent: str
    entry: Entry
    undone: bool = False
    """Of what was heard, the last turn that consumed it counts: what goes again is not undone."""


class Operation(Struct, frozen=True, kw_only=True):
    """One operation, as derived from its entries. `first` is the lowest seq that belongs to it."""

    session: str
    op: int
    type: str
    state: str
    """`running`, or an outcome."""
    first: int
    last: int
    """Its `ended`, 0 while it runs."""
    consumer: str = ""
    fence: int = 0
    attempts: int = 0
    paused: bool = False
    blocking: bool = False
    covers: int = 0
    """How far a compression reaches."""
    undone_at: int = 0
    """The seq that took it out of the view, 0 if none did."""
    compression: int = 0
    """The compression pinned by its `began`."""
    stop: bool = False
    """Somebody asked for it to end."""


class SessionSnapshot(Struct, frozen=True, kw_only=True):
    """A session at one moment: what whoever answers it has to know before deciding anything."""

    session: Session
    pending: list[Entry]
    running: list[Operation]
    newest_turn: int
    """The newest turn's operation, 0 if there is none."""


Now: TypeAlias = float | Callable[[], float]
"""A time, or the clock: then it is read when the store's turn to write has come."""


class Store(Protocol):
    """One append-only log per session, and what follows from it."""

    # -- writing
    async def commit(self, change: Change) -> CommitResult:
        """Apply `change` whole or not at all; returns only once it is durable."""

    async def claim_cursors(
        self, *, owner: str, at: Now, lease: float, limit: int, skip: Sequence[str] = (), only: Sequence[str] = ()
    ) -> list[Claim]:
        """Claim up to `limit` due cursors that nobody holds, the longest due first, each under a new fence.

        `skip` names consumers that are busy, `only` the ones to look at. A name that ends with `*` stands for all that
        begin with it. A process never takes over a cursor that `skip` names (`Claim.name`), whatever its lease says,
        because its own worker holds it and the clock may have been set. Operations that the cursor left running come
        under the same fence; an attempt is counted unless they were paused. Give the clock itself as `at` where other
        processes claim, too: a time that was read before a stall would make their leases look like future ones.
        """

    async def renew_leases(self, claims: Collection[Claim], *, owner: str, at: float, lease: float) -> int:
        """Prolong the leases of `owner` on these cursors; how many of them it still holds."""

    async def revoke_leases(self, *, owner: str, at: float) -> int:
        """End every lease that is not `owner`'s: for a process that knows it is alone. How many there were."""

    async def retry_now(self, *, at: float, held: Sequence[str] = ()) -> int:
        """Make due at once what waits after a failure, because something was repaired. Mandatory delays stay.

        With `held`, instead: what these consumers (a name that ends with `*` stands for all that begin with it) delay
        of their own accord. Returns the number of cursors.
        """

    async def replay_dead_letters(self, ids: Sequence[int], *, at: float) -> int:
        """Have dead letters tried again before anything new; their cursors become due. Returns their number."""

    # -- sessions and their logs
    async def get_session(self, id: str) -> Session: ...

    async def get_session_snapshot(self, id: str) -> SessionSnapshot:
        """The session, what it has not consumed and what it is doing, all of one moment."""

    async def list_sessions(self, *, limit: int = 100, after: str = "", newest_first: bool = False) -> list[Session]:
        """Sessions in the order they were made, behind `after`; newest first: before it."""

    async def list_sessions_begun_by(
        self, *, author: str, agent: str = "", address: str = "", limit: int = 100, after: str = ""
    ) -> list[Session]:
        """Sessions that `author` spoke in first or branched off, and those made at `address`; of one agent or of all.
        Newest first, before `after`.
        """

    async def list_branches(self, id: str) -> list[Session]:
        """The sessions that branched off this one."""

    async def resolve_address(self, address: str) -> str | None:
        """The session an address leads to."""

    async def get_session_head(self, id: str) -> tuple[int, int]:
        """A session's last seq, and its generation: all that most of those need who go on reading."""

    async def get_bound_session(self, address: str) -> tuple[str, str] | None:
        """The session an address leads to, and its title."""

    async def find_sessions(self, name: str) -> list[str]:
        """Session ids that an id, a unique prefix, a title, an address or `last` may mean: where somebody was heard
        last, since notes are filed where nobody talks."""

    async def list_entries(
        self,
        session: str,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: Sequence[EntryKind] = (),
        limit: int | None = None,
    ) -> list[Entry]: ...

    async def get_entry(self, session: str, seq: int) -> Entry: ...

    async def get_cited_entries(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], CitedEntry]:
        """Those of these places, session and seq, where an entry stands. All of them are read at once."""

    async def find_entry_place(self, dedup: str) -> tuple[str, int, int | None] | None:
        """Where the entry with this dedup key stands: session, seq, operation."""

    async def read_feed(self, *, after: int = 0, limit: int = 500) -> list[Entry]:
        """Entries of all sessions in commit order."""

    async def list_notes(self, *, after: int = 0, limit: int = 500) -> list[Entry]:
        """Notes and erasures of all sessions in commit order. Curated facts are derived from them."""

    async def list_compressions(self, *, limit: int) -> list[Entry]:
        """The newest compressions of all sessions, the last one first."""

    async def count_waiting(self) -> int:
        """How many messages of all sessions wait for an answer."""

    async def list_pending(self, session: str, *, after: int = 0) -> list[Entry]:
        """Heard entries behind seq `after` that no operation has consumed, in order."""

    async def list_operations(
        self,
        session: str,
        *,
        types: Sequence[str] = (),
        after: int = 0,
        before: int | None = None,
        states: Sequence[str] = (),
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Operation]: ...

    # -- cursors and what they leave
    async def get_cursor(self, consumer: str, session: str) -> ConsumerCursor | None: ...

    async def list_cursors(
        self, *, consumer: str = "", session: str = "", waiting: bool = False
    ) -> list[ConsumerCursor]: ...

    async def list_backlogs(self, prefix: str) -> list[MemoryBacklog]:
        """The exchanges and notes that consumers whose names begin with `prefix` have yet to deliver, by consumer and
        agent."""

    async def count_receipts(self, consumers: Sequence[str]) -> list[ReceiptCount]:
        """What these consumers have receipts for, by consumer and agent."""

    async def get_next_due(self, *, at: float, skip: Sequence[str] = (), only: Sequence[str] = ()) -> float | None:
        """Seconds until the next unclaimed cursor becomes due (0: now), None if none waits."""

    async def list_dead_letters(
        self, *, session: str = "", consumer: str = "", state: str = "dead"
    ) -> list[DeadLetter]:
        """Dead letters in `state` (empty: in any), oldest first."""

    async def count_receipts_in_doubt(self) -> int:
        """The number of receipts for something that may have arrived twice."""

    async def list_receipts(self, session: str, *, seq: int | None = None, consumer: str = "") -> list[Receipt]: ...

    async def get_state_record(self, namespace: StateNamespace, key: str, *, scope: str = "") -> StateRecord | None: ...

    async def list_state_records(
        self, namespace: StateNamespace | None = None, *, scope: str | None = None
    ) -> list[StateRecord]:
        """The records of one namespace (None: of all) and one scope (None: of all), in order."""

    async def get_spend(self, budget: str, day: str) -> BudgetSpend: ...

    async def list_spends(self, prefix: str, day: str) -> list[BudgetSpend]:
        """What was spent on a day against every budget whose name begins with `prefix`, by name."""

    async def get_blob(self, digest: str) -> bytes | None: ...

    # -- people
    async def get_person(self, identity: str) -> str | None:
        """The person behind a platform identity."""

    async def list_identities(self, person: str) -> list[str]:
        """The platform identities that were linked to a person."""

    async def link_identity(self, identity: str, person: str, *, at: float) -> None:
        """This identity is this person from now on; nobody's, if `person` is empty."""

    async def list_identity_links(self) -> list[tuple[str, str]]:
        """(identity, person) of everybody who was linked, in order."""

    # -- the whole
    async def verify(self, session: str | None = None) -> list[str]:
        """Everything about the store that contradicts itself: gaps, digests, derived rows. Empty when sound."""

    async def close(self) -> None: ...
