"""The interface of the store: one atomic `commit` per change, and reads of committed data.

A `Change` appends to one session and names its conditions. The rows that make reading fast (pending messages,
operations, bindings) follow from the entries and are written in the same transaction, so they can be rebuilt from the
log. Nothing in this module names a database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, Protocol

from msgspec import Struct

from everhold.core.audit import ReportProgress, StoreAudit
from everhold.core.budget import BudgetHold, BudgetRefusal
from everhold.core.entries import Entry, EntryDraft, EntryKind, StoredRecord
from everhold.core.inbox import PendingMessage
from everhold.core.people import PeopleDirectory, PeopleEvent
from everhold.core.quotas import WaitingCount
from everhold.ports.hosts import AccountClaim, AccountLease, CommitNotifier, HostRecord, HostStatus
from everhold.ports.measurements import ConsumerBacklog, StoreLoad

CURSOR_SEPARATOR: Final = "\t"
"""Separates consumer and session in the name of a cursor. No consumer's name contains it."""


class Step(StrEnum):
    """The name of every kind of commit. These are the crash points of the simulator and the kill harness."""

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
    REQUEST = "request"
    DECIDE = "decide"
    ACTION_BEGIN = "action.begin"
    ACTION_END = "action.end"
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
    ACCOUNT_LEASE = "account.lease"
    HOST_RECORD = "host.record"


# -- cursors -----------------------------------------------------------------------------------------------------------


class DeliveryItem(StoredRecord, frozen=True):
    """One item of a batch: its entry and part, and the key by which a repeat is recognised."""

    seq: int
    key: str
    part: int = 0


class InFlightBatch(StoredRecord, frozen=True):
    """The batch that a consumer has sent to its destination without an answer so far. A retry repeats exactly this.

    `state`: `unsent` is known not to have arrived; `sent` may have left; `in_doubt` left and its answer was lost;
    `voided` contained something that was erased since.
    """

    items: tuple[DeliveryItem, ...]
    upto: int
    """The cursor's processed seq once this batch is done."""
    digest: str
    """Digest of the payload. It reveals a retry that would send something else."""
    state: Literal["unsent", "sent", "in_doubt", "voided"] = "sent"
    sends: int = 1
    name: str = ""
    """The name or identity under which the destination stores it."""
    peers: tuple[tuple[str, str], ...] = ()
    """Pairs of `pos identity` and the peer under which the batch sends what the identity said there."""
    replays: tuple[int, ...] = ()
    """Dead letters that this batch replays."""
    remaining: InFlightBatch | None = None
    """The rest of a batch that was refused. Its items are sent after this one, each by itself."""


class RetryDelay(Struct, frozen=True, kw_only=True):
    """Due when now ≥ since + seconds, or when now < since, because clocks jump. A mandatory delay is not shortened."""

    seconds: float = 0.0
    mandatory: bool = False
    waits_for: str = ""
    """The service that asked for the delay or failed. A consumer that will call another one need not wait. Empty: every
    consumer waits."""


class Wakeup(Struct, frozen=True, kw_only=True):
    """Makes a cursor due. It does not change a cursor that has a mandatory delay, or a delay after a failure."""

    consumer: str
    wait: RetryDelay = RetryDelay()
    waits_for: str = ""
    """Only for a cursor that waits for another service than this one. It stops waiting, even if its delay is
    mandatory."""
    start: int | None = None
    """The seq after which a new cursor begins; None: with the entries of this change."""
    owner: str = ""
    """The owner that claims the cursor in the same commit, if it is due and unclaimed."""
    lease: float = 0.0
    """Duration of that claim in seconds."""


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
    """The service it waits for, if that matters."""


class MemoryBacklog(Struct, frozen=True, kw_only=True):
    """What one memory consumer has yet to deliver for one agent, over all its sessions."""

    consumer: str
    agent: str
    cursors: int
    items: int
    oldest: float | None
    """When the oldest item was committed."""
    attempts: int
    """The highest number of failures in a row of any of the cursors."""
    error: str
    due: float | None
    """When the next cursor is due."""


class ReceiptCount(Struct, frozen=True, kw_only=True):
    """How many items one consumer has delivered for one agent, over all its sessions."""

    consumer: str
    agent: str
    items: int
    named: int
    """How many of them have a remote id."""


def name_cursor(session: str, consumer: str) -> str:
    """Return the name of a cursor, for a list of cursors that are held."""
    return f"{consumer}{CURSOR_SEPARATOR}{session}"


class Claim(Struct, frozen=True, kw_only=True):
    """The right to act for a cursor until its lease ends. Every write names the fence."""

    cursor: ConsumerCursor
    agent: str
    taken_over: bool = False
    """The former holder never released it, so its batch in flight may still arrive."""
    has_replays: bool = True
    """The cursor had dead letters to replay when it was claimed."""

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
        return name_cursor(self.cursor.session, self.cursor.consumer)


class CursorUpdate(Struct, frozen=True, kw_only=True):
    """The new state of a claimed cursor. None leaves a field as it is."""

    processed_seq: int | None = None
    in_flight: InFlightBatch | None = None
    clear_in_flight: bool = False
    """The batch in flight is done, so remove it."""
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
    """An item that a consumer gave up on, and the reason. `in_doubt`: it may have arrived."""

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
    """`replaying`: an operator asked for another attempt, and the consumer makes it before anything new."""


class Receipt(Struct, frozen=True, kw_only=True):
    """The remote id of one delivered part. Edits, probes and deletions need it. A draft has one from the moment when it
    is about to be sent; its remote id is empty until its answer arrives."""

    consumer: str
    session: str
    seq: int
    part: int = 0
    key: str = ""
    remote: str = ""
    in_doubt: bool = False
    """Sent more than once, because it was unknown whether the first attempt had arrived. For a draft: it may be visible
    beside the reply, because its answer was lost."""
    at: float = 0.0


# -- state records -----------------------------------------------------------------------------------------------------


class StateNamespace(StrEnum):
    """What a state record is about. The list is closed."""

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
    REKEY = "rekey"
    SESSION_REBUILD = "session_rebuild"
    HERMES_IMPORT = "hermes_import"
    ERASURE = "erasure"
    ENTRY_ERASURE = "entry_erasure"
    HELD_MESSAGE = "held_message"
    QUOTA = "quota"
    TOOL_PINS = "tool_pins"
    LOGIN = "login"
    LOGIN_CODE = "login_code"
    HOST_SETTINGS = "host_settings"
    STORE_KEY = "store_key"
    API_ANSWER = "api_answer"
    BACKFILL_RATE = "backfill_rate"
    TRACE_EXPORT = "trace_export"
    APPROVAL = "approval"
    APPROVAL_RULE = "approval_rule"
    INVITATION = "invitation"


SHARED_NAMESPACES: Final = frozenset(
    {StateNamespace.CHAT_HALT, StateNamespace.CHAT_ALIAS, StateNamespace.DM_OWNER, StateNamespace.TOOL_PINS}
)
"""The records that every process keeps a copy of and decides by. Each write to one of them raises the state version, so
a process notices that its copy is outdated."""


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
        """Return the write that replaces this version with `value`; None deletes the record."""
        return StateWrite(namespace=self.namespace, key=self.key, scope=self.scope, value=value, version=self.version)


def make_state_scope(platform: str, account: str = "") -> str:
    """Return the scope of one account, or with an empty account of one platform."""
    return f"{platform}:{account}"


def split_state_scope(scope: str) -> tuple[str, str]:
    """Return the platform and the account of a scope."""
    platform, _, account = scope.partition(":")
    return platform, account


# -- people ------------------------------------------------------------------------------------------------------------


class FirstSeen(Struct, frozen=True, kw_only=True):
    """Makes the person `person` for an identity, unless the identity has one already."""

    identity: str
    person: str


FROM_COMMIT: Final = -1
"""As `from_pos` of a new peer: the first entry of its commit, or the next one that is committed. The store fills it
in, so a peer never applies to an entry that was committed before it.
"""


class PeerRecord(Struct, frozen=True, kw_only=True):
    """The name of an identity in a memory of an agent, for entries from `from_pos` on."""

    memory: str
    agent: str
    identity: str
    peer: str
    from_pos: int = 0
    source: str = ""
    """Why it has this name: `pinned`, `alias`, `operator`, `person`, `label`, `identity`, or `hermes` for an imported
    one."""
    shared: bool = False
    """Several people use it, or nobody knows whose it is. It is recalled for nobody."""


# -- one change --------------------------------------------------------------------------------------------------------


class SessionOpening(Struct, frozen=True, kw_only=True):
    """Creates the session in the same change, and binds its first address."""

    agent: str
    address: str
    parent: str = ""
    parent_at: int = 0
    bind: bool = True
    """Bind the address in the same change. A branch binds it with an `AddressBound` entry instead."""


class BudgetSpend(Struct, frozen=True, kw_only=True):
    """An amount spent from a budget (`agent:main`, `person:ada`) on a day."""

    budget: str
    day: str
    usd: float = 0.0
    tokens: int = 0


class Change(Struct, frozen=True, kw_only=True):
    """One commit. It appends to one session. If a condition does not hold, nothing is written."""

    step: Step
    session: str
    at: float
    entries: tuple[EntryDraft, ...] = ()
    opens: SessionOpening | None = None
    # conditions
    claim: Claim | None = None
    """Raises LeaseLost unless the cursor is still held under this fence."""
    account: AccountClaim | None = None
    """Raises LeaseLost unless the account is still held under this fence. A change that moves an offset of an account
    which one host at a time receives for names it."""
    op: int | None = None
    """Raises LeaseLost unless this operation is running under the claim's fence. The entries of the change belong to
    this operation or to one that begins in the change. Only an erasure also ends other operations, namely those that
    had read an erased entry."""
    generation: int | None = None
    """Raises Conflict unless this is still the context's generation."""
    seen: int | None = None
    """Raises Conflict if the session has grown beyond this seq."""
    bound: tuple[str, str] | None = None
    """(address, title): raises Conflict unless the address leads to this session and the session has this title."""
    read: int | None = None
    """Raises Conflict if any session has a `thought` after this pos."""
    people_seen: int | None = None
    """Raises Conflict if the people changed after this epoch. Identities that were seen for the first time do not
    count, because nobody has become another person by them."""
    state_seen: int | None = None
    """Raises Conflict if a record of `SHARED_NAMESPACES` was written after this state version."""
    # the rest of the commit
    cursor: CursorUpdate | None = None
    wakeups: tuple[Wakeup, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    replayed: tuple[int, ...] = ()
    """The ids of dead letters that were replayed and are settled."""
    receipts: tuple[Receipt, ...] = ()
    state_writes: tuple[StateWrite, ...] = ()
    """Raises Conflict unless every record still has the version that its write names."""
    people: tuple[PeopleEvent, ...] = ()
    """Events of the people log. They need `people_epoch`."""
    people_epoch: int | None = None
    """Raises Conflict unless this is still the epoch of the people directory."""
    first_seen: tuple[FirstSeen, ...] = ()
    peers: tuple[PeerRecord, ...] = ()
    """Raises Conflict if an identity has another peer from the same entry on."""
    spends: tuple[BudgetSpend, ...] = ()
    blobs: tuple[bytes, ...] = ()
    records: tuple[bytes, ...] = ()
    """Blobs that repeat texts of other entries. They are not stored if anything was erased since `op` began."""
    erase: tuple[int, ...] = ()
    """Entries whose body and salt are removed. An `erased` entry must be among `entries`."""
    drop_blobs: tuple[str, ...] = ()
    pause: bool = False
    """The operation `op` waits on purpose, so resuming it is not counted as another attempt."""
    durable: bool = True
    """Whether the commit is on disk before `commit` returns. If False, a power cut may lose the commit; then the same
    work is done again without a visible difference. Killing the process does not lose it."""


class CommitResult(Struct, frozen=True, kw_only=True):
    """The result of a commit. For a repeated dedup key: the place of the first entry, and whether it differs."""

    session: str
    seqs: tuple[int, ...] = ()
    pos: int = 0
    generation: int = 0
    duplicate: bool = False
    differs: bool = False
    claims: tuple[Claim, ...] = ()
    """The cursors that were claimed with their wakeups. The caller has to process them now."""
    rests: bool = False
    """The claimed cursor was released and has nothing left to do."""


# -- what is read ------------------------------------------------------------------------------------------------------


class Session(Struct, frozen=True, kw_only=True):
    """A session's present state. `generation` rises when the selection of its context changes."""

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
    """memory instance -> the name under which it stores this session."""


PAGE_BYTES: Final = 1 << 20
"""A page of entries ends after the entry with which its bodies reach this size, however many were asked for."""


class EntryPage(list[Entry]):
    """Entries in order. A few large entries take as much memory as many small ones, so a page is bounded by both."""

    has_more: bool = False
    """More entries may follow at once."""


class CitedEntry(Struct, frozen=True, kw_only=True):
    """An entry, the agent of its session, and whether it belongs to an undone turn."""

    agent: str
    entry: Entry
    undone: bool = False
    """For a `heard` entry the last turn that consumed it counts, so a retried message is not undone."""


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
    """The last operation that a compression covers."""
    undone_at: int = 0
    """The seq of the entry that removed it from the context, 0 if there is none."""
    compression: int = 0
    """The compression pinned by its `began`."""
    stop: bool = False
    """A stop was requested."""


class SessionSnapshot(Struct, frozen=True, kw_only=True):
    """A session at one moment, as the turn worker needs it to decide what to do."""

    session: Session
    pending: list[Entry]
    """The first pending messages: at least as many as one turn takes, with one that asks among them if there is one."""
    has_more_pending: bool = False
    """Other messages are pending after these."""
    running: list[Operation]
    newest_turn: int
    """The op of the newest turn, 0 if there is none."""
    people: PeopleDirectory


class SessionReplies(Struct, frozen=True, kw_only=True):
    """What a session says to chats, and its head, all from the same moment."""

    last_seq: int
    generation: int
    entries: list[Entry]
    """The `said` and `notified` entries in order, without what was said by operations that were undone."""


class Store(Protocol):
    """One append-only log per session, and the rows that are derived from it.

    The store has a clock of its own, which decides when leases end and when cursors are due. Hosts have different
    clocks, so callers pass durations for these, never times. The time in a change is only recorded with its entries.
    """

    @property
    def is_exclusive(self) -> bool:
        """Whether no other process works on this store while it is open. Only then may a process end the leases of
        others when it starts, and release what others held back."""

    @property
    def schema_version(self) -> int:
        """The newest schema that this program knows."""

    @property
    def notifier(self) -> CommitNotifier:
        """Receives a hint for every change that `commit` applied, and those of other hosts."""

    # -- writing
    async def commit(self, change: Change) -> CommitResult:
        """Apply `change` completely or not at all. Returns once it is durable."""

    async def claim_cursors(
        self,
        *,
        owner: str,
        lease: float,
        limit: int,
        skip: Sequence[str] = (),
        only: Sequence[str] = (),
        held_back: Sequence[str] = (),
        list_held: Callable[[], Collection[str]] = list,
    ) -> list[Claim]:
        """Claim up to `limit` due and unclaimed cursors, the longest due first, each under a new fence.

        `skip` names consumers to leave out, `only` the ones to consider. A name that ends with `*` stands for all that
        begin with it. Operations that the cursor left running get the same fence; an attempt is counted unless they
        were paused. `held_back` names cursors (`name_cursor`) that must not be claimed from a process that ended.

        A process never takes a cursor from its own worker, whatever the lease says, because the clock may have been
        set. `list_held` returns the names of these cursors (`name_cursor`). It is called when the write begins, on
        the thread of the writer, because a worker may have started since.
        """

    async def renew_leases(self, claims: Collection[Claim], *, owner: str, lease: float) -> int:
        """Extend the leases of `owner` on these cursors. Return how many of them it still holds."""

    async def revoke_leases(self, *, owner: str) -> int:
        """End every lease of other owners. Return their number. Raises InvalidRequest unless the store is exclusive."""

    async def hand_over_leases(self, claims: Collection[Claim], *, owner: str) -> int:
        """End the leases of `owner` on these cursors, whose workers have ended without releasing them. Whoever claims
        one of them takes it over. Return their number."""

    async def claim_account(self, account: str, *, owner: str, lease: float) -> AccountClaim | None:
        """Claim an account that nobody or only `owner` holds, under a new fence. None: another owner holds it."""

    async def renew_accounts(self, claims: Collection[AccountClaim], *, lease: float) -> list[AccountClaim]:
        """Extend the leases of these accounts. Return those claims that are still held."""

    async def release_account(self, claim: AccountClaim) -> bool:
        """End the lease of an account, so that another host may claim it at once. False: it was lost before."""

    async def register_host(self, host: HostRecord, *, lease: float) -> list[HostStatus]:
        """Register a host for `lease` seconds. Return the other hosts that are alive. Hosts that ended long ago are
        forgotten."""

    async def renew_host(self, id: str, *, lease: float, is_draining: bool = False) -> bool:
        """Extend the registration of a host. False: it is not registered any more."""

    async def remove_host(self, id: str) -> None:
        """Remove a host that ends."""

    async def reserve_spending(
        self, holds: Sequence[BudgetHold], *, id: str, day: str, usd: float, tokens: int, lease: float
    ) -> BudgetRefusal | None:
        """Reserve what a call may cost in all these budgets, or in none of them and return why not.

        What all hosts spent on that day and have reserved counts. `core.budget.find_refusal` decides, in one step with
        the reservation. It ends with its lease, or when it is released. Repeating it with the same id changes nothing.
        """

    async def renew_reservations(self, ids: Collection[str], *, lease: float) -> int:
        """Extend these reservations of running calls. Return how many of them have not ended."""

    async def release_reservations(self, ids: Collection[str]) -> None:
        """End reservations, after the cost of their calls was committed or if there was none."""

    async def retry_now(self, *, held: Sequence[str] = ()) -> int:
        """Make cursors due that wait after a failure, because something was repaired. Mandatory delays stay.

        With `held`: instead, the cursors of these consumers that wait without a failure. A name that ends with `*`
        stands for all that begin with it. Return the number of cursors.
        """

    async def replay_dead_letters(self, ids: Sequence[int]) -> int:
        """Replay dead letters before anything new. Their cursors become due. Return their number."""

    async def drop_dead_letters(self, ids: Sequence[int]) -> int:
        """Mark dead letters as dropped: an operator decided that they are never delivered. Return their number."""

    # -- sessions and their logs
    async def get_session(self, id: str) -> Session: ...

    async def get_session_snapshot(self, id: str) -> SessionSnapshot:
        """The session, its first pending messages, its running operations and the people, all from the same moment."""

    async def list_sessions(self, *, limit: int = 100, after: str = "", newest_first: bool = False) -> list[Session]:
        """Sessions in the order of their creation, after the id `after`; with `newest_first` in reverse, before it."""

    async def list_sessions_begun_by(
        self, *, authors: Collection[str], agent: str = "", address: str = "", limit: int = 100, after: str = ""
    ) -> list[Session]:
        """Sessions whose first message or branch is by one of `authors`, and those created at `address`, of one agent
        or all. Newest first, before the id `after`.
        """

    async def list_branches(self, id: str) -> list[Session]:
        """The sessions that branched off this one."""

    async def resolve_address(self, address: str) -> str | None:
        """The session an address leads to."""

    async def get_session_head(self, id: str) -> tuple[int, int]:
        """A session's last seq and its generation, without the cost of `get_session`."""

    async def get_bound_session(self, address: str) -> tuple[str, str] | None:
        """The session an address leads to, and its title."""

    async def find_sessions(self, name: str) -> list[str]:
        """The ids of the sessions that an id, a prefix, a title, an address or `last` may mean. `last` is the session
        with the newest message, because notes may be stored in sessions without a conversation."""

    async def list_entries(
        self,
        session: str,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: Sequence[EntryKind] = (),
        limit: int | None = None,
    ) -> list[Entry]: ...

    async def read_replies(self, session: str, *, after: int = 0) -> SessionReplies:
        """What the session says to chats after a seq."""

    async def read_log(self, session: str, *, after: int = 0, upto: int | None = None, limit: int = 500) -> EntryPage:
        """Entries of one session in order, with bodies of about `PAGE_BYTES` at most. Empty at the end."""

    async def get_entry(self, session: str, seq: int) -> Entry: ...

    async def count_erasures(self, session: str) -> int:
        """How often entries of a session were erased; 0 if there is no such session."""

    async def get_cited_entries(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], CitedEntry]:
        """The entries that exist at these places (session, seq). All of them are read at once."""

    async def last_pos(self) -> int:
        """The pos of the newest entry; 0 if there is none."""

    async def find_latest_time(self) -> float:
        """The latest time of any entry; 0 if there is none. It is later than now if the clock was set back. It reads
        every entry.
        """

    async def find_entry_place(self, dedup: str) -> tuple[str, int, int | None] | None:
        """The session, seq and operation of the entry with this dedup key."""

    async def read_feed(self, *, after: int = 0, limit: int = 500) -> EntryPage:
        """Entries of all sessions in commit order, with bodies of about `PAGE_BYTES` at most. Empty at the end."""

    async def list_notes(self, *, after: int = 0, limit: int = 500) -> list[Entry]:
        """Notes and erasures of all sessions in commit order. Curated facts are derived from them."""

    async def list_compressions(self, *, limit: int) -> list[Entry]:
        """The newest compressions of all sessions, newest first."""

    async def count_waiting(self) -> int:
        """The number of messages of all sessions that wait for an answer."""

    async def list_waiting(self) -> list[WaitingCount]:
        """The messages of all sessions that wait for an answer, by author and address."""

    async def list_pending(self, session: str, *, after: int = 0) -> list[Entry]:
        """`heard` entries after seq `after` that no operation has consumed, in order. There may be very many."""

    async def scan_pending(self, session: str, *, after: int = 0) -> list[PendingMessage]:
        """The same without texts, for decisions about all of them."""

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

    async def list_restarted_turns(self, *, starts: int) -> list[Operation]:
        """The running turns of all sessions that were started at least so often."""

    # -- cursors, receipts, dead letters, state records
    async def get_cursor(self, consumer: str, session: str) -> ConsumerCursor | None: ...

    async def list_cursors(
        self, *, consumer: str = "", session: str = "", waiting: bool = False
    ) -> list[ConsumerCursor]: ...

    async def list_backlogs(self, prefix: str) -> list[MemoryBacklog]:
        """The exchanges and notes that consumers whose names begin with `prefix` have yet to deliver, by consumer and
        agent."""

    async def count_receipts(self, consumers: Sequence[str]) -> list[ReceiptCount]:
        """The number of receipts of these consumers, by consumer and agent."""

    async def list_account_leases(self) -> list[AccountLease]:
        """The accounts that somebody claimed and did not release, by name."""

    async def list_hosts(self) -> list[HostStatus]:
        """The registered hosts, in the order of their starts."""

    async def get_time(self) -> float:
        """The time on the store's clock."""

    async def get_next_due(self, *, skip: Sequence[str] = (), only: Sequence[str] = ()) -> float | None:
        """Seconds until the next unclaimed cursor becomes due (0: now), None if there is none."""

    async def list_dead_letters(
        self, *, session: str = "", consumer: str = "", state: str = "dead"
    ) -> list[DeadLetter]:
        """Dead letters in `state` (empty: in any), oldest first."""

    async def count_receipts_in_doubt(self) -> int:
        """The number of receipts for items that may have arrived twice."""

    async def list_receipts(self, session: str, *, seq: int | None = None, consumer: str = "") -> list[Receipt]: ...

    async def get_state_record(self, namespace: StateNamespace, key: str, *, scope: str = "") -> StateRecord | None: ...

    async def list_state_records(
        self, namespace: StateNamespace | None = None, *, scope: str | None = None
    ) -> list[StateRecord]:
        """The records of one namespace (None: of all) and one scope (None: of all), in order."""

    async def get_state_version(self) -> int:
        """The state version. Every write to a record of `SHARED_NAMESPACES` raises it."""

    async def get_spend(self, budget: str, day: str) -> BudgetSpend: ...

    async def list_spends(self, prefix: str, day: str) -> list[BudgetSpend]:
        """The spending of a day of every budget whose name begins with `prefix`, by name."""

    async def get_blob(self, digest: str) -> bytes | None: ...

    # -- people
    async def get_people(self) -> PeopleDirectory:
        """All people as they are now. The same object is returned until something changes."""

    async def list_people_events(self, *, after: int = 0, limit: int = 500) -> list[PeopleEvent]:
        """The people log, in order."""

    async def list_peers(
        self, *, memory: str = "", agent: str = "", identities: Collection[str] | None = None
    ) -> list[PeerRecord]:
        """The recorded peers of a memory and an agent (empty: of all), of these identities (None: of all), by identity,
        the oldest first."""

    # -- the whole store
    async def measure_load(self) -> StoreLoad:
        """Count what waits, by consumer. It costs one row of an index for each waiting cursor, off the event loop."""

    async def measure_backlogs(self) -> list[ConsumerBacklog]:
        """Find what memories and platforms have yet to receive. It reads every session that is behind, off the event
        loop."""

    async def verify(self, session: str | None = None) -> list[str]:
        """Contradictions in the store: gaps, wrong digests, wrong derived rows. Empty if the store is sound."""

    async def audit(
        self, session: str | None = None, report_progress: ReportProgress = lambda done, total: None
    ) -> StoreAudit:
        """Check the promises on one session or on the whole store. Everything is read in one snapshot, so work that
        goes on meanwhile causes no finding."""

    async def close(self) -> None: ...
