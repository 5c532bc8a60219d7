"""Watches every commit, claim and arrival as it happens, and notes what must never happen. Changes nothing.

It keeps its own books on who holds which lane and who was told to wait, from what it has seen: never from the tables
that the store under test keeps about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw
import msgspec

from everhold.core.entries import Erased, Heard
from everhold.errors import Overloaded, Transient
from everhold.ports.store import Change, Claim, Committed
from everhold.testing.sim.world import NOBODY, SENT, World

if TYPE_CHECKING:
    from everhold.testing.sim.process import Process

TOKEN: Final = re.compile(r"\bc\d+\.m\d+(?:e\d+)?\b")
"""What a simulated message is called, wherever it turns up."""
SECRET: Final = re.compile(r"\bhush-[0-9a-f]{8}\b")
"""What a simulated message says that may have to be erased."""

PATIENCE: Final = 0.05
"""Seconds that clocks and commits may differ by."""
SECRETS_IN_HAND: Final = 45.0
"""How long after an erasure a request may arrive that was already being made when it happened."""


class Told(NamedTuple):
    """Somebody was asked to wait."""

    lane: str
    session: str
    seconds: float


class Wait(NamedTuple):
    since: float
    until: float


class Busy(Transient):
    """A far side that names a time."""

    def __init__(self, told: Told) -> None:
        super().__init__(f"come back in {told.seconds:.0f} s", retry_after=told.seconds)
        self.told = told


class BusyModel(Overloaded):
    def __init__(self, told: Told) -> None:
        super().__init__(f"come back in {told.seconds:.0f} s", retry_after=told.seconds)
        self.told = told


class Witness:
    """Books on one schedule."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.problems: list[str] = []
        self.complaints: list[str] = []
        """Errors the system itself reported: a part of it fell."""
        self.holders: dict[tuple[str, str], tuple[str, int]] = {}
        self.session_of: dict[str, str] = {}
        """token -> the session it was heard in."""
        self.erased: dict[str, float] = {}
        """secret -> when its erasure was committed."""
        self.secrets: dict[tuple[str, int], str] = {}
        self.linked: list[str] = []
        """Identities that somebody was told are linked."""
        self.on_commit: list[Callable[[Change], None]] = []
        """Who wants to hear of commits, to do something at the worst moment."""
        self.on_recall: list[Callable[[str], None]] = []
        """Likewise of what memories tell."""
        self._told: dict[tuple[str, str, int], Wait] = {}
        """lane, session, fence under which somebody was told to wait -> how long."""
        self._firm: dict[tuple[str, str], Wait] = {}
        self._look = self._open()
        self._pos = 0

    def problem(self, text: str) -> None:
        self.problems.append(text)
        self.world.tell("WITNESS", text)

    def settle(self) -> None:
        """Bring the write-ahead log home, as the disk's own housekeeping."""
        self._look.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def close(self) -> None:
        self._look.close()

    def wake(self) -> None:
        """After a power cut: look at what is left. Nobody holds anything any more."""
        self._look = self._open()
        self._pos = self._look.execute("select max(pos) from entries").get or 0
        self.holders.clear()

    def _open(self) -> apsw.Connection:
        look = apsw.Connection(str(self.world.disk), flags=apsw.SQLITE_OPEN_READWRITE)
        look.pragma("synchronous", "OFF")
        return look

    def sessions(self) -> list[str]:
        return [row[0] for row in self._look.execute("select id from sessions order by id")]

    def heard(self, id: str, text: str) -> None:
        """A caller was given `text` as the reply to its message: by then it stands in the log."""
        origins = "select e.body from entries e where e.kind = ?"
        said = [row[0] for row in self._look.execute(origins, ("said",))]
        if not any(row is None or msgspec.json.decode(row)["text"] in text for row in said):
            self.problem(f"the caller of {id} was told {text!r} before it was in the log")

    # -- commits

    def committed(self, process: Process, change: Change, done: Committed) -> None:
        kinds = ",".join(draft.kind for draft in change.entries)
        mark = " (known)" if done.duplicate else ""
        reader = f" for {change.claim.consumer}" if change.claim else ""
        where = f"{change.session} {','.join(map(str, done.seqs))}" if change.entries else change.session
        self.world.tell(process.name, f"commits {change.step}{reader} {where} {kinds}{mark}")
        self.world.stats["commits"] += 1
        self._one_session(change)
        self._held(process, change)
        self._waits(change)
        for hear in self.on_commit:
            hear(change)
        if done.duplicate:
            return
        for seq, draft in zip(done.seqs, change.entries, strict=True):
            if isinstance(draft.body, Heard):
                for token in TOKEN.findall(draft.body.text):
                    self.session_of.setdefault(token, change.session)
                for secret in SECRET.findall(draft.body.text):
                    self.secrets[change.session, seq] = secret
            elif isinstance(draft.body, Erased):
                for each in draft.body.seqs:
                    if (change.session, each) in self.secrets:
                        self.erased.setdefault(self.secrets[change.session, each], self.world.loop.time())

    def _one_session(self, change: Change) -> None:
        found: list[tuple[int, str]] = self._look.execute(
            "select pos, session from entries where pos > ?", (self._pos,)
        ).fetchall()  # type: ignore[assignment]  # the columns are what the schema says
        if found:
            self._pos = found[-1][0]
        if others := {session for _, session in found} - {change.session}:
            self.problem(f"the commit {change.step} of {change.session} also wrote to {', '.join(sorted(others))}")

    def _held(self, process: Process, change: Change) -> None:
        claim = change.claim
        if claim is None:
            return
        holder = self.holders.get((claim.consumer, claim.session))
        if holder != (process.name, claim.fence):
            self.problem(
                f"{process.name} committed {change.step} for {claim.consumer} of {claim.session} under fence "
                f"{claim.fence}, but the lane is held by {holder}"
            )
        if change.cursor is not None and change.cursor.release:
            self.holders.pop((claim.consumer, claim.session), None)

    def claimed(self, process: Process, claims: list[Claim]) -> None:
        for claim in claims:
            lane = (claim.consumer, claim.session)
            before = self.holders.get(lane)
            over = f" over from {before[0]}" if before else ""
            self.world.tell(process.name, f"takes {claim.consumer} of {claim.session}{over} (fence {claim.fence})")
            if before is not None:
                self.world.stats["take-overs"] += 1
                self._not_from_itself(process, claim, before)
            self.holders[lane] = (process.name, claim.fence)

    def _not_from_itself(self, process: Process, claim: Claim, before: tuple[str, int]) -> None:
        """Whatever the clock says: a process knows best whom it has at work."""
        at_work = {(worker.name, worker.fence) for worker in process.workers.values()}
        if before[0] == process.name and (claim.name, before[1]) in at_work:
            self.problem(
                f"{process.name} took {claim.consumer} of {claim.session} from somebody of its own at work there"
            )

    # -- waits that others ask for

    def told(self, claim: Claim | None, error: BaseException) -> None:
        """Whoever acts under `claim` has the far side's word."""
        if isinstance(error, Busy | BusyModel) and claim is not None:
            told, now = error.told, self.world.loop.time()
            if (told.lane, told.session) == (claim.consumer, claim.session):
                self._told[told.lane, told.session, claim.fence] = Wait(since=now, until=now + told.seconds)

    def _waits(self, change: Change) -> None:
        """From the commit that puts its lane off, whoever was told to wait has to."""
        claim = change.claim
        if claim is None or change.cursor is None or change.cursor.wait is None:
            return
        wait = self._told.pop((claim.consumer, claim.session, claim.fence), None)
        if wait is not None:
            self._firm[claim.consumer, claim.session] = wait

    def arrives(self, lane: str, session: str, text: str) -> None:
        """A request reached a far side. Whoever holds the lane must have waited as long as they were told."""
        sent = SENT.get(NOBODY)
        wait = self._firm.get((lane, session))
        holder = self.holders.get((lane, session))
        if (
            wait is not None
            and holder == (sent.process, sent.fence)
            and wait.since + PATIENCE < sent.at < wait.until - PATIENCE
            and not self.world.jumped_forward_since(wait.since)
        ):
            early = wait.until - sent.at
            self.problem(f"{lane} of {session} asked again {early:.1f} s before the far side wanted to hear of it")
        for secret in SECRET.findall(text):
            gone = self.erased.get(secret)
            # whoever stood still while it was erased learns of it only with its next commit
            if gone is not None and sent.at > max(gone, self.world.woke.get(sent.process, 0.0)) + SECRETS_IN_HAND:
                self.problem(f"{secret}, erased at {gone:.3f} s, was sent to {lane} at {sent.at:.3f} s")

    # -- quiet

    def unfinished(self) -> str:
        """What is still to be done, in a few words; empty when all is quiet."""
        for what, sql in (
            ("cursors are due", "select count(*) from cursors where due is not null"),
            ("messages are pending", "select count(*) from pending where asks = 1"),
            ("operations run", "select count(*) from operations where state = 'running'"),
        ):
            if count := self._look.execute(sql).get:
                return f"{count} {what}"
        return ""
