"""The store's promise: one atomic `commit` per change, and reads of what is committed.

A `Change` appends to one session and says under which conditions. The rows that make reading fast (pending messages,
operations, bindings, lanes) follow from the entries and are written in the same transaction; they can be rebuilt from
the log. Nothing in here names a database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from everhold.core.entries import Draft, Entry, Kind, Record

LANE: Final = "\t"
"""Between reader and session in the name of a lane; no reader's name has one."""


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
    FOLD_BEGIN = "fold.begin"
    FOLD_END = "fold.end"
    FLIGHT = "lane.flight"
    LANDED = "lane.landed"
    LATER = "lane.later"
    SETTLE = "lane.settle"
    TIE = "tie"
    ERASE = "erase"
    DRAFT = "draft"
    CLAIM = "claim"
    RENEW = "renew"
    SEIZE = "seize"
    HASTEN = "hasten"
    REPLAY = "replay"
    POSITION = "position"
    SPEND = "spend"
    PEOPLE = "people"


# -- lanes -------------------------------------------------------------------------------------------------------------


class Item(Record, frozen=True):
    """One thing in a flight: the entry and part it stands for, and the key by which a repeat is recognised."""

    seq: int
    key: str
    part: int = 0


class Flight(Record, frozen=True):
    """What a lane has handed over and not yet heard back about. A retry repeats exactly this.

    `state`: `unsent` is known not to have arrived; `flying` may have left; `doubt` left and its answer was lost;
    `void` contained something that was erased since.
    """

    items: tuple[Item, ...]
    upto: int
    """The lane's position once this flight is over."""
    digest: str
    """Of the payload, so that a retry that would send something else is noticed."""
    state: Literal["unsent", "flying", "doubt", "void"] = "flying"
    sends: int = 1
    name: str = ""
    """Under which name or identity the far side files it."""
    replays: tuple[int, ...] = ()
    """Parked items it is another try of."""
    behind: Flight | None = None
    """What is left of a batch that was refused: its items go after this one, each by itself."""


class Wait(Struct, frozen=True, kw_only=True):
    """Due when now ≥ since + seconds, or when now < since: clocks jump. A firm wait is never shortened."""

    seconds: float = 0.0
    firm: bool = False
    whom: str = ""
    """Whose wish it is, or who failed: whoever is going to ask somebody else need not wait. Empty: it concerns all."""


class Wake(Struct, frozen=True, kw_only=True):
    """Make a lane due. One that already waits firmly, or waits after a failure, is left as it is."""

    reader: str
    wait: Wait = Wait()
    whom: str = ""
    """Only if the lane waits for somebody else than this: then it does not any more, firmly or not."""
    start: int | None = None
    """Where a lane that is new begins to read; None: with what this change appends."""
    owner: str = ""
    """Who takes the lane at once, in the same commit, if it is due and nobody's."""
    lease: float = 0.0
    """For how many seconds."""


class Lane(Struct, frozen=True, kw_only=True):
    """One reader of one session, with its durable position."""

    reader: str
    session: str
    position: int = 0
    flight: Flight | None = None
    attempts: int = 0
    since: float | None = None
    """None: nothing to do."""
    wait: float = 0.0
    firm: bool = False
    owner: str = ""
    fence: int = 0
    error: str = ""
    whom: str = ""
    """Whom it waits for, if that matters."""


class Backlog(Struct, frozen=True, kw_only=True):
    """What one reader has yet to do for one agent, over all its sessions."""

    reader: str
    agent: str
    lanes: int
    items: int
    oldest: float | None
    """When the oldest of them was committed."""
    attempts: int
    """So often in a row the lane that failed most has failed."""
    error: str
    due: float | None
    """When the next of them is due."""


class Handed(Struct, frozen=True, kw_only=True):
    """What one reader has handed over for one agent, over all its sessions."""

    reader: str
    agent: str
    items: int
    named: int
    """Of how many the far side has given a name back."""


class Claim(Struct, frozen=True, kw_only=True):
    """A lane somebody may act for until its lease ends; every write names the fence."""

    lane: Lane
    agent: str
    taken_over: bool = False
    """The former holder never let go: what it had in flight may still arrive."""

    @property
    def reader(self) -> str:
        return self.lane.reader

    @property
    def session(self) -> str:
        return self.lane.session

    @property
    def fence(self) -> int:
        return self.lane.fence

    @property
    def name(self) -> str:
        """What the lane is called where one is named among readers."""
        return f"{self.lane.reader}{LANE}{self.lane.session}"


class LaneUpdate(Struct, frozen=True, kw_only=True):
    """What becomes of a claimed lane. None leaves a field as it is."""

    position: int | None = None
    flight: Flight | None = None
    landed: bool = False
    """The flight is over: forget it."""
    attempts: int | None = None
    error: str | None = None
    wait: Wait | None = None
    """When it is due again."""
    idle_at: int | None = None
    """The last seq that was looked at: the lane has nothing more to do unless the session has grown beyond it.

    With `wait` it has something to do, but not before that has passed; if the session has grown, it is due at once.
    """
    release: bool = False
    """Let go of the lease."""


class Parked(Struct, frozen=True, kw_only=True):
    """A dead letter: what a lane gave up on, and why. `doubtful`: it may have arrived all the same."""

    reader: str
    session: str
    seq: int
    part: int = 0
    key: str = ""
    reason: str = ""
    doubtful: bool = False
    at: float = 0.0
    id: int = 0
    state: Literal["parked", "replaying", "replayed", "dropped"] = "parked"
    """`replaying`: somebody asked for it to go again, and its lane takes it up before anything new."""


class Receipt(Struct, frozen=True, kw_only=True):
    """What the far side returned for one part: the ids that edits, probes and deletions need."""

    reader: str
    session: str
    seq: int
    part: int = 0
    key: str = ""
    remote: str = ""
    doubtful: bool = False
    """Sent more than once because nobody could tell whether the first had arrived."""
    at: float = 0.0


# -- one change --------------------------------------------------------------------------------------------------------


class Opening(Struct, frozen=True, kw_only=True):
    """Make the session in this very change. Its first address is bound with it."""

    agent: str
    address: str
    parent: str = ""
    parent_at: int = 0
    bind: bool = True
    """Bind the address with it; a branch takes it over with a `bind` of its own."""


class Position(Struct, frozen=True, kw_only=True):
    """How far a platform account has been read, or something else it must not forget. An empty value forgets it.

    Committed with, or after, all it covers.
    """

    platform: str
    account: str
    name: str
    value: str
    expects: str | None = None
    """If given, the value that has to be there still; otherwise nothing of the change is written (LeaseLost)."""


class Spend(Struct, frozen=True, kw_only=True):
    """What a call cost, against a purse (`agent:main`, `person:ada`) and a day."""

    purse: str
    day: str
    usd: float = 0.0
    tokens: int = 0


class Change(Struct, frozen=True, kw_only=True):
    """One commit. It appends to one session; every condition holds, or nothing is written."""

    step: Step
    session: str
    at: float
    entries: tuple[Draft, ...] = ()
    opens: Opening | None = None
    # conditions
    claim: Claim | None = None
    """Refused with LeaseLost unless the lane is still held under this fence."""
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
    """Refused with Conflict if a thought stands behind this position, in whichever session."""
    # the rest of the commit
    lane: LaneUpdate | None = None
    wakes: tuple[Wake, ...] = ()
    parks: tuple[Parked, ...] = ()
    unparks: tuple[int, ...] = ()
    """Dead letters (their ids) that went again and are settled."""
    receipts: tuple[Receipt, ...] = ()
    position: Position | None = None
    spends: tuple[Spend, ...] = ()
    blobs: tuple[bytes, ...] = ()
    records: tuple[bytes, ...] = ()
    """Blobs, too, but they repeat what was said elsewhere: not kept if anything was erased since `op` began."""
    erase: tuple[int, ...] = ()
    """Entries whose body and salt go; an `erased` entry must be among `entries`."""
    drop_blobs: tuple[str, ...] = ()
    pause: bool = False
    """The operation `op` waits on purpose: taking it up again is not another attempt."""
    redone: bool = False
    """Should a power cut take this commit, what it stands for is done again, and nobody sees a difference: it need not
    be on the disk before it is answered. A process that is killed does not lose it."""


class Committed(Struct, frozen=True, kw_only=True):
    """What a commit did. For a repeated dedup key: where the first one stands, and whether it said the same."""

    session: str
    seqs: tuple[int, ...] = ()
    pos: int = 0
    generation: int = 0
    duplicate: bool = False
    differs: bool = False
    claims: tuple[Claim, ...] = ()
    """The lanes that were taken with their waking. Somebody has to work on them now."""
    rests: bool = False
    """The claimed lane was let go of, and there is nothing left to do in it: nobody need look for it."""


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
    """`turn`, `fold`, or nothing."""
    folded_upto: int = 0
    choices: Mapping[str, str] = {}
    names: Mapping[str, str] = {}
    """memory instance -> the name it files this session under."""


class Cited(Struct, frozen=True, kw_only=True):
    """An entry, whose session it stands in, and whether it was said in a turn that is undone."""

    agent: str
    entry: Entry
    undone: bool = False
    """Of what was heard, the last turn that consumed it counts: what goes again is not undone."""


class Operation(Struct, frozen=True, kw_only=True):
    """One operation, as derived from its entries. `first` is the lowest seq that belongs to it."""

    session: str
    op: int
    what: str
    state: str
    """`running`, or an outcome."""
    first: int
    last: int
    """Its `ended`, 0 while it runs."""
    reader: str = ""
    fence: int = 0
    attempts: int = 0
    paused: bool = False
    blocking: bool = False
    covers: int = 0
    """A fold's mark."""
    undone_at: int = 0
    """The seq that took it out of the view, 0 if none did."""
    fold: int = 0
    """The fold pinned by its `began`."""
    stop: bool = False
    """Somebody asked for it to end."""


class Glance(Struct, frozen=True, kw_only=True):
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
    async def commit(self, change: Change) -> Committed:
        """Apply `change` whole or not at all; returns only once it is durable."""

    async def claim(
        self, *, owner: str, at: Now, lease: float, limit: int, skip: Sequence[str] = (), only: Sequence[str] = ()
    ) -> list[Claim]:
        """Take up to `limit` due lanes that nobody holds, the longest due first, each under a new fence.

        `skip` names readers that are busy, `only` the ones to look at; a name that ends with `*` stands for all that
        begin so. Nobody takes a lane from themselves that `skip` names (`Claim.name`), however its lease looks: a clock
        that was set says nothing about those who are at work here. Operations the lane left running come under the same
        fence; an attempt is counted unless they were paused. Give the clock itself as `at` where others claim, too:
        whoever stood still between looking at it and claiming would take what they hold for a thing of the future.
        """

    async def renew(self, claims: Collection[Claim], *, owner: str, at: float, lease: float) -> int:
        """Prolong the leases of `owner` on these lanes; how many of them it still holds."""

    async def seize(self, *, owner: str, at: float) -> int:
        """End every lease that is not `owner`'s: for a process that knows it is alone. How many there were."""

    async def hasten(self, *, at: float, held: Sequence[str] = ()) -> int:
        """Make due at once what waits after a failure: something was mended. A wait that the far side asked for stays.

        With `held`, instead: what these readers (a name that ends with `*` stands for all that begin so) hold back of
        their own accord. How many lanes that were.
        """

    async def replay(self, ids: Sequence[int], *, at: float) -> int:
        """Put parked items back in front of their lanes, which become due; how many."""

    # -- sessions and their logs
    async def session(self, id: str) -> Session: ...

    async def glance(self, id: str) -> Glance:
        """The session, what it has not consumed and what it is doing, all of one moment."""

    async def sessions(self, *, limit: int = 100, after: str = "", newest_first: bool = False) -> list[Session]:
        """Sessions in the order they were made, behind `after`; newest first: before it."""

    async def begun(
        self, *, author: str, agent: str = "", address: str = "", limit: int = 100, after: str = ""
    ) -> list[Session]:
        """Sessions that `author` spoke in first or branched off, and those made at `address`; of one agent or of all.
        Newest first, before `after`.
        """

    async def branches(self, id: str) -> list[Session]:
        """The sessions that branched off this one."""

    async def resolve(self, address: str) -> str | None:
        """The session an address leads to."""

    async def head(self, id: str) -> tuple[int, int]:
        """A session's last seq, and its generation: all that most of those need who go on reading."""

    async def whereto(self, address: str) -> tuple[str, str] | None:
        """The session an address leads to, and its title."""

    async def find_session(self, name: str) -> list[str]:
        """Session ids that an id, a unique prefix, a title, an address or `last` may mean: where somebody was heard
        last, since notes are filed where nobody talks."""

    async def entries(
        self,
        session: str,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: Sequence[Kind] = (),
        limit: int | None = None,
    ) -> list[Entry]: ...

    async def entry(self, session: str, seq: int) -> Entry: ...

    async def cited(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], Cited]:
        """Those of these places, session and seq, where an entry stands. All of them are read at once."""

    async def placed(self, dedup: str) -> tuple[str, int, int | None] | None:
        """Where the entry with this dedup key stands: session, seq, operation."""

    async def feed(self, *, after: int = 0, limit: int = 500) -> list[Entry]:
        """Entries of all sessions in commit order."""

    async def notes(self, *, after: int = 0, limit: int = 500) -> list[Entry]:
        """Notes and erasures of all sessions in commit order: what curated facts are folded from."""

    async def folds(self, *, limit: int) -> list[Entry]:
        """The newest folds of all sessions, the last one first."""

    async def waiting(self) -> int:
        """How many messages of all sessions wait for an answer."""

    async def pending(self, session: str, *, after: int = 0) -> list[Entry]:
        """Heard entries behind seq `after` that no operation has consumed, in order."""

    async def operations(
        self,
        session: str,
        *,
        what: Sequence[str] = (),
        after: int = 0,
        before: int | None = None,
        states: Sequence[str] = (),
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Operation]: ...

    # -- lanes and what they leave
    async def lane(self, reader: str, session: str) -> Lane | None: ...

    async def lanes(self, *, reader: str = "", session: str = "", waiting: bool = False) -> list[Lane]: ...

    async def backlog(self, readers: str) -> list[Backlog]:
        """What the lanes of readers that begin so have yet to hand over, by reader and agent. Exchanges and notes."""

    async def handed(self, readers: Sequence[str]) -> list[Handed]:
        """What these readers have receipts for, by reader and agent."""

    async def next_due(self, *, at: float, skip: Sequence[str] = (), only: Sequence[str] = ()) -> float | None:
        """Seconds until the next lane nobody holds becomes due (0: now), None if none waits."""

    async def parked(self, *, session: str = "", reader: str = "", state: str = "parked") -> list[Parked]:
        """Dead letters in `state` (empty: in any), oldest first."""

    async def gambled(self) -> int:
        """How many receipts are for something that may have arrived twice."""

    async def receipts(self, session: str, *, seq: int | None = None, reader: str = "") -> list[Receipt]: ...

    async def position(self, *, platform: str, account: str, name: str) -> str | None: ...

    async def positions(self, *, prefix: str, platform: str = "", account: str | None = None) -> list[Position]:
        """Every position whose name begins with `prefix`, of one account, one platform, or all, in order."""

    async def spent(self, purse: str, day: str) -> Spend: ...

    async def spending(self, purses: str, day: str) -> list[Spend]:
        """What every purse whose name begins so has given on a day, by name."""

    async def blob(self, digest: str) -> bytes | None: ...

    # -- people
    async def person_of(self, identity: str) -> str | None:
        """The person behind a platform identity."""

    async def identities(self, person: str) -> list[str]:
        """The platform identities that were linked to a person."""

    async def link(self, identity: str, person: str, *, at: float) -> None:
        """This identity is this person from now on; nobody's, if `person` is empty."""

    async def links(self) -> list[tuple[str, str]]:
        """(identity, person) of everybody who was linked, in order."""

    # -- the whole
    async def verify(self, session: str | None = None) -> list[str]:
        """Everything about the store that contradicts itself: gaps, digests, derived rows. Empty when sound."""

    async def close(self) -> None: ...
