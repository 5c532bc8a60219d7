"""Checks of every commit, claim and request when it happens. They change nothing.

The witness records itself which process holds which cursor and which consumer must wait. It does not read this from the
tables of the store under test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw
import msgspec

from everhold.core.entries import Began, ChatLocation, EntryKind, Erased, Heard, Said, Took, decode_body
from everhold.core.erasure import PersonErasure
from everhold.core.people import PERSON_MEMBER
from everhold.errors import Overloaded, Transient
from everhold.ports.hosts import AccountClaim, make_account_name
from everhold.ports.memory import ErasureState, MemoryQuery
from everhold.ports.store import Change, Claim, CommitResult, StateNamespace, Step, split_state_scope
from everhold.testing.sim.people_record import PeopleRecord
from everhold.testing.sim.world import MAX_HANG_SECONDS, NO_ORIGIN, REQUEST_ORIGIN, SimWorld

if TYPE_CHECKING:
    from everhold.testing.sim.process import SimProcess

TOKEN_PATTERN: Final = re.compile(r"\bc\d+\.m\d+(?:e\d+)?\b")
"""The name of a simulated message, in any text."""
SECRET_PATTERN: Final = re.compile(r"\bhush-[0-9a-f]{8}\b")
"""A secret in a simulated message that may be erased later."""

POLL_OFFSET: Final = "updates"
"""The key of the offset of an account that one host at a time polls."""
TOLERANCE_SECONDS: Final = 0.05
"""The allowed difference between clocks and commits."""
FORGET_REASON: Final = "a person was forgotten"
PEOPLE_GRACE_SECONDS: Final = 1.0
"""`InvariantWitness.people_grace` on a store that answers at once."""
CALLS_PER_DECISION: Final = 40
"""The most calls of the store, each way, between a decision and its commit."""
ERASURE_GRACE_SECONDS: Final = 45.0
"""How long after an erasure a request may arrive that was in progress when the erasure was committed."""


class WaitRequest(NamedTuple):
    """A remote service asked a consumer to wait."""

    consumer: str
    session: str
    seconds: float


class WaitPeriod(NamedTuple):
    since: float
    until: float


class AliasEdit(NamedTuple):
    """An edit of the configuration of a memory: the name of a person there, or an empty text."""

    at: float
    peer: str


class ForgetOrder(NamedTuple):
    """The operator ordered to forget somebody. `heard` has the places of all messages by then, by their author."""

    at: float
    identity: str
    heard: Mapping[str, frozenset[tuple[str, int]]]


class BusyService(Transient):
    """A remote service names the time after which to retry."""

    def __init__(self, wait_request: WaitRequest) -> None:
        super().__init__(f"come back in {wait_request.seconds:.0f} s", retry_after=wait_request.seconds)
        self.wait_request = wait_request


class BusyModel(Overloaded):
    def __init__(self, wait_request: WaitRequest) -> None:
        super().__init__(f"come back in {wait_request.seconds:.0f} s", retry_after=wait_request.seconds)
        self.wait_request = wait_request


class InvariantWitness:
    """The records and checks of one schedule."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        profile = world.profile
        network = CALLS_PER_DECISION * profile.store_delay + (MAX_HANG_SECONDS if profile.partition else 0.0)
        self.people_grace = PEOPLE_GRACE_SECONDS + network
        """How long after a change of people a commit or a request may follow that was decided before it."""
        self.problems: list[str] = []
        self.complaints: list[str] = []
        """Errors that the processes logged."""
        self.holders: dict[tuple[str, str], tuple[str, int]] = {}
        self.lease_ends: dict[tuple[str, str], tuple[float, float]] = {}
        """(consumer, session) -> the beginning and the end of its lease, on the store's clock."""
        self.account_claims: dict[str, AccountClaim] = {}
        self.account_ends: dict[str, tuple[float, float]] = {}
        """Account -> the beginning and the end of its lease, on the store's clock."""
        self.offsets: dict[str, int] = {}
        """Scope of an account that one host polls -> its stored offset."""
        self.session_of: dict[str, str] = {}
        """token -> the session it was heard in."""
        self.erased: dict[str, float] = {}
        """secret -> when its erasure was committed."""
        self.secrets: dict[tuple[str, int], str] = {}
        self.heard_places: dict[tuple[ChatLocation, str], tuple[str, int]] = {}
        """(origin, revision) of every message that was committed -> its session and seq."""
        self.people = PeopleRecord(world)
        self.forgotten: set[str] = set()
        """Secrets that were erased because their author was forgotten."""
        self.forget_orders: list[ForgetOrder] = []
        self.places_to_erase: dict[str, frozenset[tuple[str, int]]] = {}
        """The id of a forgetting -> the messages that it has to erase."""
        self.aliases: dict[tuple[str, str], AliasEdit] = {}
        """(memory, identity) -> the last edit."""
        self.linked: list[str] = []
        """Identities whose link was confirmed to the operator."""
        self.list_memory_texts: Callable[[str], list[str]] = lambda memory: []
        """Returns the texts that a memory can find. The environment sets this function."""
        self.on_commit: list[Callable[[Change], None]] = []
        """Callbacks for commits, for interference at the worst moment."""
        self.on_recall: list[Callable[[str], None]] = []
        """Callbacks for recalled text."""
        self._requested_waits: dict[tuple[str, str, int], WaitPeriod] = {}
        """(consumer, session, fence) that was asked to wait -> how long."""
        self._mandatory_waits: dict[tuple[str, str], WaitPeriod] = {}
        self._connection = self._open_connection()
        self._pos = 0
        self._unexplained: dict[str, str] = {}
        """Sessions of entries that no recorded commit of the current batch wrote -> the commit that found them."""

    def report_problem(self, text: str) -> None:
        self.problems.append(text)
        self.world.record("WITNESS", text)

    def checkpoint_wal(self) -> None:
        """Move the write-ahead log into the database, as a checkpoint does in use."""
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def close(self) -> None:
        self._connection.close()

    def reopen(self) -> None:
        """Reopen the database after a power cut. No process holds a cursor any more."""
        self._connection = self._open_connection()
        self._pos = self._connection.execute("select max(pos) from entries").get or 0
        self.people.drop_lost(self._connection)
        self.holders.clear()
        self._requested_waits.clear()  # a claim may be lost, and its fence is used again

    def _open_connection(self) -> apsw.Connection:
        look = apsw.Connection(str(self.world.disk), flags=apsw.SQLITE_OPEN_READWRITE)
        look.pragma("synchronous", "OFF")
        return look

    def list_sessions(self) -> list[str]:
        return [row[0] for row in self._connection.execute("select id from sessions order by id")]

    def list_state_keys(self, namespace: str) -> list[str]:
        found = self._connection.execute("select key from state_records where namespace = ? order by key", (namespace,))
        return [row[0] for row in found]

    def check_reply(self, id: str, text: str) -> None:
        """Check that a reply is in the log when a caller receives it."""
        query = "select body from entries where kind in ('said', 'notified')"  # a turn may have only a notice
        said = [row[0] for row in self._connection.execute(query)]
        if not any(row is None or msgspec.json.decode(row)["text"] in text for row in said):
            self.report_problem(f"the caller of {id} received {text!r} before it was in the log")

    # -- commits

    def record_commit(self, process: SimProcess, change: Change, done: CommitResult) -> None:
        kinds = ",".join(draft.kind for draft in change.entries)
        mark = " (known)" if done.duplicate else ""
        consumer = f" for {change.claim.consumer}" if change.claim else ""
        where = f"{change.session} {','.join(map(str, done.seqs))}" if change.entries else change.session
        self.world.record(process.name, f"commits {change.step}{consumer} {where} {kinds}{mark}")
        self.world.stats["commits"] += 1
        self._explain_entries(change)
        self._check_holder(process, change)
        self._record_mandatory_wait(change)
        self.people.read_events(self._connection)
        self._check_reply_after_unlink(process, change)
        self._check_peers(process, change)
        self._check_erasure(change)
        self._check_offset(process, change)
        for callback in self.on_commit:
            callback(change)
        if done.duplicate:
            return
        for seq, draft in zip(done.seqs, change.entries, strict=True):
            if isinstance(draft.body, Heard):
                self.heard_places[draft.body.origin, draft.body.revision] = (change.session, seq)
                for token in TOKEN_PATTERN.findall(draft.body.text):
                    self.session_of.setdefault(token, change.session)
                for secret in SECRET_PATTERN.findall(draft.body.text):
                    self.secrets[change.session, seq] = secret
            elif isinstance(draft.body, Erased):
                for each in draft.body.seqs:
                    if (change.session, each) in self.secrets:
                        self.erased.setdefault(self.secrets[change.session, each], self.world.loop.time())
                        if draft.body.why == FORGET_REASON:
                            self.forgotten.add(self.secrets[change.session, each])

    def _explain_entries(self, change: Change) -> None:
        """Find the entries since the last commit. Those of other sessions must belong to the same batch."""
        found: list[tuple[int, str]] = self._connection.execute(
            "select pos, session from entries where pos > ?", (self._pos,)
        ).fetchall()  # type: ignore[assignment]  # the columns are what the schema says
        if found:
            self._pos = found[-1][0]
        for _, session in found:
            self._unexplained[session] = f"{change.step} of {change.session}"
        self._unexplained.pop(change.session, None)

    def finish_batch(self) -> None:
        """Check that the commits of a batch wrote only to their own sessions."""
        for session, commit in self._unexplained.items():
            self.report_problem(f"the commit {commit} also wrote to {session}")
        self._unexplained.clear()

    def _check_holder(self, process: SimProcess, change: Change) -> None:
        claim = change.claim
        if claim is None:
            return
        holder = self.holders.get((claim.consumer, claim.session))
        if holder != (process.name, claim.fence):
            self.report_problem(
                f"{process.name} committed {change.step} for {claim.consumer} of {claim.session} under fence "
                f"{claim.fence}, but the cursor is held by {holder}"
            )
        if change.cursor is not None and change.cursor.release:
            self.holders.pop((claim.consumer, claim.session), None)

    def record_claims(self, process: SimProcess, claims: list[Claim], *, lease: float) -> None:
        now = self.world.now()
        for claim in claims:
            cursor = (claim.consumer, claim.session)
            before = self.holders.get(cursor)
            if before is not None and process.is_remote and before[0] != process.name:
                self._check_lease_ended(f"{claim.consumer} of {claim.session}", before[0], self.lease_ends.get(cursor))
            self.lease_ends[cursor] = (now, now + lease)
            over = f" over from {before[0]}" if before else ""
            self.world.record(process.name, f"takes {claim.consumer} of {claim.session}{over} (fence {claim.fence})")
            if before is not None:
                self.world.stats["take-overs"] += 1
                self._check_not_own_worker(process, claim, before)
            self.holders[cursor] = (process.name, claim.fence)

    def _check_not_own_worker(self, process: SimProcess, claim: Claim, before: tuple[str, int]) -> None:
        """Check that a process does not take a cursor from its own running worker, whatever the clock says."""
        at_work = {(worker.name, worker.fence) for worker in process.workers.values()}
        if before[0] == process.name and (claim.name, before[1]) in at_work:
            self.report_problem(f"{process.name} took {claim.consumer} of {claim.session} from its own running worker")

    def record_renewal(self, claims: list[Claim], count: int, *, owner: str, lease: float) -> None:
        now = self.world.now()
        for claim in claims:
            cursor = (claim.consumer, claim.session)
            if self.holders.get(cursor, ("", 0))[0] == owner:
                self.lease_ends[cursor] = (now, now + lease)

    def _check_lease_ended(self, what: str, holder: str, lease: tuple[float, float] | None) -> None:
        """Check that what a host takes from another one has a lease that ended on the store's clock."""
        now = self.world.now()
        if lease is not None and lease[0] <= now < lease[1] - TOLERANCE_SECONDS:
            self.report_problem(f"{what} was taken from {holder}, whose lease lasts {lease[1] - now:.1f} s more")

    # -- accounts

    def record_account_claim(self, claim: AccountClaim | None, *, lease: float) -> None:
        if claim is None:
            return
        former = self.account_claims.get(claim.account)
        if former is not None and former.owner != claim.owner:
            self._check_lease_ended(claim.account, former.owner, self.account_ends.get(claim.account))
            self.world.stats["accounts taken over"] += 1
        self.world.record(claim.owner, f"receives for {claim.account} (fence {claim.fence})")
        self.account_claims[claim.account] = claim
        self.account_ends[claim.account] = (self.world.now(), self.world.now() + lease)

    def record_account_renewal(self, claims: list[AccountClaim], *, lease: float) -> None:
        for claim in claims:
            if self.account_claims.get(claim.account) == claim:
                self.account_ends[claim.account] = (self.world.now(), self.world.now() + lease)

    def record_account_release(self, claim: AccountClaim, done: bool) -> None:
        if done and self.account_claims.get(claim.account) == claim:
            del self.account_claims[claim.account]
            self.world.stats["accounts released"] += 1

    def _check_offset(self, process: SimProcess, change: Change) -> None:
        """Check that only the holder of a polled account moves its offset, and never back."""
        for write in change.state_writes:
            if write.namespace is not StateNamespace.PLATFORM_OFFSET or write.key != POLL_OFFSET or not write.value:
                continue
            platform, account = split_state_scope(write.scope)
            holder = self.account_claims.get(make_account_name(platform, account))
            if holder is None or holder.owner != process.name:
                self.report_problem(
                    f"{process.name} moved the offset of {write.scope} under {change.account}, "
                    f"but the account is held by {holder}"
                )
            before = self.offsets.get(write.scope, 0)
            self.offsets[write.scope] = int(write.value)
            if int(write.value) < before:
                self.report_problem(f"{process.name} moved the offset of {write.scope} back to {write.value}")

    # -- people

    def _has_just_woken(self, process: str) -> bool:
        """Return whether a process was stalled a moment ago, so that it may act on what it read before."""
        return self.world.loop.time() - self.world.woke_at.get(process, float("-inf")) < self.people_grace

    def _check_reply_after_unlink(self, process: SimProcess, change: Change) -> None:
        """Check that no turn replies that began before an unlink of one of its senders."""
        if change.step is not Step.END or not any(isinstance(draft.body, Said) for draft in change.entries):
            return
        epoch, senders = self._read_turn(change.session, change.op or 0)
        for parting in self.people.partings:
            late = self.world.loop.time() - parting.at > self.people_grace and not self._has_just_woken(process.name)
            if parting.n > epoch and late and senders & parting.identities:
                names = ", ".join(sorted(senders & parting.identities))
                self.report_problem(
                    f"turn {change.op} of {change.session} replied, although {names} was unlinked while it ran"
                )

    def _read_turn(self, session: str, op: int) -> tuple[int, set[str]]:
        """Return the epoch of the people at the beginning of a turn, and the identities whose messages it took."""
        epoch = 0
        takes: list[int] = []
        for kind, body in self._connection.execute(
            "select kind, body from entries where session = ? and op = ? and kind in ('began', 'took')", (session, op)
        ):
            match decode_body(EntryKind(kind), body):
                case Began(people=people, takes=taken):
                    epoch, takes = people, [*takes, *taken]
                case Took(takes=taken):
                    takes += taken
        marks = ",".join("?" * len(takes))
        rows = self._connection.execute(
            f"select author from entries where session = ? and seq in ({marks})", (session, *takes)
        )
        return epoch, {author.removeprefix(PERSON_MEMBER) for (author,) in rows}

    def _check_peers(self, process: SimProcess, change: Change) -> None:
        """Check that a message is committed with the alias that its sender has in each memory."""
        if change.step is not Step.ACCEPT or self._has_just_woken(process.name):
            return
        for draft in change.entries:
            for (memory, identity), edit in self.aliases.items():
                if draft.author != f"{PERSON_MEMBER}{identity}" or not isinstance(draft.body, Heard) or not edit.peer:
                    continue
                query = "select peer from peers where memory = ? and identity = ? order by from_pos desc limit 1"
                peer = self._connection.execute(query, (memory, identity)).get
                if peer != edit.peer and self.world.loop.time() - edit.at > self.people_grace:
                    self.report_problem(f"{memory} calls {identity} {peer!r}, but is configured to say {edit.peer!r}")

    def _check_erasure(self, change: Change) -> None:
        """Check what the gateway stores about a forgetting: whom it is about, and what it says about each memory."""
        for write in change.state_writes:
            if write.namespace is not StateNamespace.ERASURE or write.value is None:
                continue
            erasure = msgspec.json.decode(write.value, type=PersonErasure)
            if erasure.id not in self.places_to_erase:
                self._check_forgotten_identities(erasure)
            for place in erasure.places:
                if place.state is ErasureState.CONFIRMED:
                    self.check_deleted(place.memory, erasure)

    def _check_forgotten_identities(self, erasure: PersonErasure) -> None:
        """Check that a forgetting includes all identities that the person had when it was ordered."""
        orders = [it for it in self.forget_orders if it.identity in erasure.identities]
        heard = [orders[-1].heard.get(it, frozenset()) for it in erasure.identities] if orders else []
        self.places_to_erase[erasure.id] = frozenset().union(*heard)
        moments = self.people.list_moments_since(min((it.at for it in orders), default=0.0))
        groups = [self.people.list_same_person(erasure.identities[0], moment) for moment in moments]
        if set(erasure.identities) not in groups:
            self.report_problem(f"{list(erasure.identities)} are forgotten, but the person is {sorted(groups[0])}")

    def record_forget_order(self, identity: str) -> None:
        heard: dict[str, set[tuple[str, int]]] = {}
        for author, session, seq in self._connection.execute(
            "select author, session, seq from entries where kind = 'heard' and body is not null"
        ):
            heard.setdefault(author.removeprefix(PERSON_MEMBER), set()).add((session, seq))
        places = {author: frozenset(found) for author, found in heard.items()}
        self.forget_orders.append(ForgetOrder(self.world.loop.time(), identity, places))

    def check_deleted(self, memory: str, erasure: PersonErasure) -> None:
        """Check that a memory which has confirmed a forgetting has nothing that was erased for it."""
        erased = {self.secrets.get(place, "") for place in self.places_to_erase.get(erasure.id, ())} & self.forgotten
        for text in self.list_memory_texts(memory):
            for secret in SECRET_PATTERN.findall(text):
                if secret in erased:
                    self.report_problem(f"{memory} has confirmed a deletion and still has {secret}")

    def check_present(self, query: MemoryQuery) -> None:
        """Check that a search is for all identities of the people present, as they were when it was sent."""
        sent = REQUEST_ORIGIN.get(NO_ORIGIN)
        if self.world.woke_at.get(sent.process, float("-inf")) > sent.sent_at - self.people_grace:
            return
        found = [frozenset(group) for group in query.present.groups]
        for directory in self.people.list_directories_since(sent.sent_at - self.people_grace):
            if found == [frozenset(group) for group in directory.expand_audience(query.audience).groups]:
                return
        self.report_problem(f"a search for {query.audience} was sent for {query.present.list_members()}")

    # -- requested waits

    def record_wait_request(self, claim: Claim | None, error: BaseException) -> None:
        """Record that the remote service asked the holder of `claim` to wait."""
        if isinstance(error, BusyService | BusyModel) and claim is not None:
            request, now = error.wait_request, self.world.loop.time()
            if (request.consumer, request.session) == (claim.consumer, claim.session):
                self._requested_waits[request.consumer, request.session, claim.fence] = WaitPeriod(
                    since=now, until=now + request.seconds
                )

    def _record_mandatory_wait(self, change: Change) -> None:
        """Make a requested wait mandatory from the commit that delays its cursor."""
        claim = change.claim
        if claim is None or change.cursor is None or change.cursor.wait is None:
            return
        wait = self._requested_waits.pop((claim.consumer, claim.session, claim.fence), None)
        if wait is not None:
            self._mandatory_waits[claim.consumer, claim.session] = wait

    def check_arrival(self, cursor: str, session: str, text: str) -> None:
        """Check a request that reached a remote service: the requested wait is over, and no erased secret is in it."""
        sent = REQUEST_ORIGIN.get(NO_ORIGIN)
        wait = self._mandatory_waits.get((cursor, session))
        holder = self.holders.get((cursor, session))
        if (
            wait is not None
            and holder == (sent.process, sent.fence)
            and wait.since + TOLERANCE_SECONDS < sent.sent_at < wait.until - TOLERANCE_SECONDS
            and not self.world.jumped_forward_since(wait.since)
        ):
            early = wait.until - sent.sent_at
            self.report_problem(f"{cursor} of {session} asked again {early:.1f} s before the end of the requested wait")
        for secret in SECRET_PATTERN.findall(text):
            gone = self.erased.get(secret)
            # a process that stalled during the erasure learns of it only with its next commit
            if (
                gone is not None
                and sent.sent_at > max(gone, self.world.woke_at.get(sent.process, 0.0)) + ERASURE_GRACE_SECONDS
            ):
                self.report_problem(f"{secret}, erased at {gone:.3f} s, was sent to {cursor} at {sent.sent_at:.3f} s")

    # -- remaining work

    def describe_unfinished(self) -> str:
        """Describe the remaining work; empty when there is none."""
        for what, sql in (
            ("cursors are due", "select count(*) from cursors where due is not null"),
            ("messages are pending", "select count(*) from pending where asks = 1"),
            ("operations run", "select count(*) from operations where state = 'running'"),
        ):
            if count := self._connection.execute(sql).get:
                return f"{count} {what}"
        return ""
