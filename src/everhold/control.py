"""What a person in charge may do and see: look, undo, stop, erase, replay, audit. Two mouths speak for it: cli and web.

Everything that changes something is a commit like any other, as an operation of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.core import compression, consumers
from everhold.core.audit import PROMISES, Count, Finding, audit, one_session_each
from everhold.core.context import View, assemble, build, choose, fingerprint, messages, stubbed
from everhold.core.entries import (
    OWN,
    AddressBound,
    Began as _Began,
    Body,
    Changed,
    Compressed,
    CompressionRequested,
    Draft,
    Ended,
    Entry,
    Erased,
    Kind,
    Noted,
    Stamp,
    Thought,
    Took,
)
from everhold.core.wording import describe_count
from everhold.errors import Conflict, Misuse, NotFound
from everhold.flow import access, amend, health
from everhold.flow.gates import Bells, Gates
from everhold.flow.records import Records
from everhold.flow.runtime import Runtimes
from everhold.flow.view import view_at
from everhold.home import append_line
from everhold.ports.model import Request, ToolSpec
from everhold.ports.platform import Accept as Door, Incoming, Verdict
from everhold.ports.store import Change, ConsumerCursor, DeadLetter, Operation, Session, Step, Wakeup

PAGE = 1_000
SNAPSHOT = ".snapshot."
"""Between a session's id and the compression before which its context is looked at."""


class Context(Struct, frozen=True, kw_only=True):
    """What a model was, or would be, shown. `exact`: it is what the recorded digest says; None: nothing to compare."""

    session: str
    at: int
    request: Request
    exact: bool | None
    reason: str = ""


class Report(Struct, frozen=True, kw_only=True):
    """An audit's outcome."""

    findings: list[Finding]
    checked: Count
    sessions: int

    @property
    def broken(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "broken"]

    def lines(self) -> list[dict[str, Any]]:
        """One line per promise: whether it holds, and on what evidence."""
        return [
            {
                "promise": promise,
                "text": text,
                "holds": not any(finding.promise == promise for finding in self.broken),
                "evidence": self._evidence(promise),
                "doubts": sum(f.promise == promise and f.level == "doubt" for f in self.findings),
            }
            for promise, text in PROMISES.items()
        ]

    def _evidence(self, promise: str) -> str:
        """What was looked at for a promise, in numbers: an audit that saw nothing proves nothing."""
        sessions, turns = _of(self.sessions, "session"), _of(self.checked.turns, "turn")
        seen, doubts = self.checked, sum(f.promise == promise and f.level == "doubt" for f in self.findings)
        return {
            "P1": f"{sessions}: an entry is in its own, a summary stands for the view it was made of",
            "P2": f"{_of(seen.heard, 'message')}, {turns}: nothing is taken twice, no call lacks its result",
            "P3": f"{turns}, {_of(seen.folds, 'compression')}: never two at once, nothing is written after an end",
            "P4": f"{_of(doubts, 'write')} given up on or in doubt: the others arrived or are on their way",
            "P5": f"{seen.entries} entries: messages, replies and notes say whom they are for",
            "P6": f"{sessions}: each begins with somebody speaking, a branch or a binding",
            "P7": "a log cannot show this; tests do",
            "P8": f"{seen.entries} entries: no gap, each as its digest says, derived rows agree",
        }[promise]


LAST_FOLDS: Final = 3
"""How many compressions a glance shows."""


class Control:
    """One per home. `erasures` is the file beside the database that outlives any backup of it; `holding` tells where in
    the log all words of a text stand, the newest so many places first.
    """

    def __init__(
        self,
        gates: Gates,
        *,
        bells: Bells,
        accept: Door,
        runtimes: Runtimes,
        erasures: Path | None = None,
        holding: Callable[[str, int], Awaitable[Sequence[tuple[str, int]]]] | None = None,
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.bells = bells
        self.accept = accept
        self.runtimes = runtimes
        self.erasures = erasures
        self.holding = holding

    # -- looking -----------------------------------------------------------------------------------------------------

    async def find(self, name: str) -> Session:
        """The session that an id, a unique prefix, a title, an address or `last` means."""
        if SNAPSHOT in name:
            raise Misuse(
                f"{name} is a snapshot: a name for what a session's context was, to look at and nothing else",
                remedy=f"`everhold sessions context {name}` shows it; its session is {name.partition(SNAPSHOT)[0]}",
            )
        found = await self.store.find_sessions(name)
        if not found:
            raise NotFound(f"there is no session {name!r}", remedy="`everhold sessions list` shows those there are")
        if len(found) > 1:
            some = ", ".join(sorted(found)[:5])
            raise Misuse(f"{name!r} may mean {len(found)} sessions: {some}", remedy="give more of the id")
        return await self.store.get_session(found[0])

    async def entries(self, session: str, *, after: int = 0) -> AsyncIterator[Entry]:
        """A session's log, page by page; others get their turn in between."""
        while page := await self.store.list_entries(session, after=after, limit=PAGE):
            for entry in page:
                yield entry
            after = page[-1].seq
            await asyncio.sleep(0)

    async def sessions(self, *, limit: int) -> list[Session]:
        """The newest sessions, newest first."""
        return await self.store.list_sessions(limit=limit, newest_first=True)

    async def addresses(self, session: Session) -> list[str]:
        """The addresses that lead to a session now."""
        ever = [session.address]
        for entry in await self.store.list_entries(session.id, kinds=(Kind.CHANGED,)):
            if isinstance(entry.body, Changed) and isinstance(entry.body.change, AddressBound):
                ever.append(entry.body.change.address)
        return [address for address in dict.fromkeys(ever) if await self.store.resolve_address(address) == session.id]

    async def folds(self, name: str) -> list[tuple[Operation, Entry]]:
        """A session's summaries, oldest first, each with the operation that made it."""
        session = await self.find(name)
        made = {op.op: op for op in await self.store.list_operations(session.id, types=("compression",))}
        found = await self.store.list_entries(session.id, kinds=(Kind.COMPRESSED,))
        return [(made[entry.op], entry) for entry in found if entry.op is not None]

    async def search(self, text: str, *, limit: int = 50) -> list[Entry]:
        """What was said that contains all words of `text`, whoever it was for: the newest, by session."""
        if self.holding is None:
            raise Misuse("there is nothing to search with here", remedy="open the home with its index")
        sessions: dict[str, list[Entry]] = {}
        for session, seq in await self.holding(text, limit):
            entry = await self.store.get_entry(session, seq)
            if entry.body is not None:
                sessions.setdefault(session, []).append(entry)
        return [entry for hits in sessions.values() for entry in sorted(hits, key=lambda hit: hit.seq)]

    async def context(self, name: str, *, at: int | None = None) -> Context:
        """The context of the thought at, or next after, seq `at`; without it, what the next turn would be shown.

        What is shown is built again from the log and compared with the digest recorded when it was sent.
        """
        name, _, moment = name.partition(SNAPSHOT)
        session = await self.find(name)
        if moment:
            return await self._snapshot(session, moment)
        if at is None:
            return await self._shown(session, at=session.last_seq + 1)
        thought = await self._thought(session, at)
        assert isinstance(thought.body, Thought)
        assert thought.op is not None
        operation = (await self.store.list_operations(session.id, after=thought.op - 1, before=thought.op + 1))[0]
        entries = await self.store.list_entries(session.id, after=operation.first - 1, upto=thought.seq - 1)
        mine = [entry for entry in entries if entry.op == thought.op]
        pins = [
            e.body.compression for e in mine if isinstance(e.body, _Began | Took) and e.body.compression is not None
        ]
        prefix = await self._prefix(session, thought.op, pins)
        current = assemble(choose([msgspec.structs.replace(operation, undone_at=0)], at=thought.seq), entries)
        stubs = frozenset(thought.body.stubs)
        prompt = await self.store.get_blob(thought.body.prompt) if thought.body.prompt else b""
        offered = await self.store.get_blob(thought.body.tools) if thought.body.tools else b"[]"
        recalled = await self.store.get_blob(thought.body.recall) if thought.body.recall else b""
        shown = messages(prefix, stubs=stubs) + messages(current, stubs=stubs, recalled=(recalled or b"").decode())
        request = build(
            shown,
            system=(prompt or b"").decode(),
            tools=msgspec.json.decode(offered or b"[]", type=tuple[ToolSpec, ...]),
        )
        exact = fingerprint(request) == thought.body.request
        reason = "" if exact else "something it contained was erased, or is no longer known"
        return Context(session=session.id, at=thought.seq, request=request, exact=exact, reason=reason)

    async def _prefix(self, session: Session, op: int, pins: list[int]) -> View:
        """What came before a turn, under the fold it pinned; one pinned on the way stands for all before it."""
        if len(pins) > 1 and pins[-1]:
            fold = await self.store.list_entries(session.id, after=pins[-1], kinds=())
            folded = next(entry for entry in fold if entry.op == pins[-1] and entry.kind == "compressed")
            return View(fold=folded)
        return await view_at(self.store, session, at=op, fold=pins[0] if pins else None)

    async def _thought(self, session: Session, at: int) -> Entry:
        for entry in await self.store.list_entries(session.id, after=at - 1, limit=PAGE):
            if isinstance(entry.body, Thought):
                return entry
        raise NotFound(f"no model was asked at or after entry {at} of session {session.id}")

    async def _snapshot(self, session: Session, moment: str) -> Context:
        """The context as it was just before a compression took effect."""
        folds = await self.store.list_operations(session.id, types=("compression",), states=("done",))
        fold = next((operation for operation in folds if str(operation.op) == moment), None)
        if fold is None:
            raise NotFound(
                f"session {session.id} has no snapshot {moment}", remedy="`everhold sessions compressions` lists them"
            )
        return await self._shown(session, at=fold.last)

    async def _shown(self, session: Session, *, at: int) -> Context:
        """What the agent, as it is now, would be shown at seq `at`."""
        runtime = self.runtimes.runtime(session.agent, session.choices)
        view = await view_at(self.store, session, at=at)
        tools = tuple(tool.spec for tool in runtime.tools.values())
        request = build(messages(view, stubs=stubbed(view)), system=runtime.system, tools=tools)
        return Context(session=session.id, at=at, request=request, exact=None)

    async def status(self) -> dict[str, Any]:
        """Health at a glance."""
        lanes = await self.store.list_cursors(waiting=True)
        parked = await self.store.list_dead_letters()
        return {
            "pending": await self.store.count_waiting(),
            "waiting": summarize_waiting(lanes),
            "dead_letters": len(parked),
            "in_doubt": sum(item.in_doubt for item in parked) + await self.store.count_receipts_in_doubt(),
            "failing": sorted({lane.consumer for lane in lanes if lane.error}),
            "compressions": [fold_json(entry) for entry in await self.store.list_compressions(limit=LAST_FOLDS)],
            "memories": [
                msgspec.to_builtins(it) for it in await health.conditions(self.gates, self.runtimes.attached())
            ],
        }

    async def audit(self, name: str | None = None) -> Report:
        """Check the promises on the store and say on what evidence."""
        sessions = [await self.find(name)] if name else [s async for s in self._all()]
        findings: list[Finding] = []
        checked = Count()
        for session in sessions:
            entries = [entry async for entry in self.entries(session.id)]
            found, count = audit(session.id, entries)
            findings += found
            checked += count
        findings += one_session_each(sessions)
        for text in await self.store.verify(sessions[0].id if name and sessions else None):
            findings.append(Finding(promise="P8", session="", text=text))
        for item in await self.store.list_dead_letters(session=sessions[0].id if name and sessions else ""):
            kind = "P4" if item.consumer.startswith(consumers.MEMORY_PREFIX) else "P2"
            doubt = "may have arrived" if item.in_doubt else "given up"
            text = f"{item.consumer}: entry {item.seq} {doubt}: {item.reason}"
            findings.append(Finding(promise=kind, session=item.session, text=text, seq=item.seq, level="doubt"))
        return Report(findings=findings, checked=checked, sessions=len(sessions))

    async def _all(self) -> AsyncIterator[Session]:
        after = ""
        while page := await self.store.list_sessions(limit=500, after=after):
            for session in page:
                yield session
            after = page[-1].id
            await asyncio.sleep(0)

    # -- doing -------------------------------------------------------------------------------------------------------

    async def send(self, incoming: Incoming) -> Verdict:
        return await self.accept(incoming)

    async def undo(self, name: str, *, what: str = "turn", count: int = 1, by: str = "operator") -> str:
        if what not in ("turn", "compress"):
            raise Misuse(f"{what!r} cannot be undone", remedy="say `turn` or `compress`")
        while True:
            session = await self.find(name)
            amendment = await amend.undo(self.store, session, what=what, count=count)
            if await self._amend(session, amendment, by=by, trigger="undo"):
                return amendment.say

    async def stop(self, name: str, *, by: str = "operator") -> str:
        while True:
            session = await self.find(name)
            amendment = await amend.stop(self.store, session)
            if await self._amend(session, amendment, by=by, trigger="stop"):
                return amendment.say

    async def compress(
        self, name: str, *, keep: int | None = None, focus: str = "", preview: bool = False, by: str = "operator"
    ) -> str:
        """Ask for a compression; what came of it. With `preview` only what it would do."""
        session = await self.find(name)
        runtime = self.runtimes.runtime(session.agent, session.choices)
        view = await view_at(self.store, session, at=session.last_seq + 1)
        plan = compression.plan(view, keep=runtime.keep if keep is None else keep, session=session.id)
        if plan is None:
            return "There is nothing to compress."
        if preview:
            return compression.preview(plan)
        wanted = amend.Amendment(bodies=(Changed(change=CompressionRequested(keep=keep, focus=focus)),), say="")
        while not await self._amend(
            session, wanted, by=by, trigger="compress", wakes=(Wakeup(consumer=consumers.COMPRESSION),)
        ):
            session = await self.find(name)
        asked_at = session.last_seq
        with self.bells.listening(session.id) as bell:
            while (
                lane := await self.store.get_cursor(consumers.COMPRESSION, session.id)
            ) is None or lane.processed_seq <= asked_at:
                await self.gates.sleep(1.0, bell=bell)
                bell.clear()
        # one that was under way may have left nothing for another
        folds = await self.store.list_operations(session.id, types=("compression",))
        ended = [operation for operation in folds if operation.last > asked_at]
        return await self._compressed(session.id, ended[-1]) if ended else "There is nothing to compress."

    async def _compressed(self, session: str, operation: Operation) -> str:
        for entry in await self.store.list_entries(session, after=operation.op, upto=operation.last):
            if isinstance(entry.body, Compressed):
                body = entry.body
                return (
                    f"Compressed {describe_count(body.messages, 'message')}: "
                    f"{body.tokens_before} tokens are now {body.tokens_after}."
                )
            if isinstance(entry.body, Ended) and entry.op == operation.op:
                return f"Not compressed: {entry.body.reason}. Everything is as it was."
        return "Compressed."

    async def diff(self, name: str, *, fold: int) -> dict[str, Any]:
        """What a compression replaced, and with what."""
        session = await self.find(name)
        entry = next(
            (
                e
                for e in await self.store.list_entries(session.id, after=fold, kinds=(Kind.COMPRESSED,))
                if e.op == fold
            ),
            None,
        )
        if entry is None or not isinstance(entry.body, Compressed):
            raise NotFound(
                f"session {session.id} has no compression {fold}", remedy="`everhold sessions compressions` lists them"
            )
        before = await view_at(self.store, session, at=entry.seq)
        part = View(
            fold=before.fold, exchanges=tuple(e for e in before.exchanges if e.op <= entry.body.covers or not e.steps)
        )
        return {
            "session": session.id,
            "compression": fold,
            "replaced": [msgspec.to_builtins(message) for message in messages(part)],
            "by": [msgspec.to_builtins(message) for message in messages(View(fold=entry))],
        }

    async def note(self, name: str, text: str, *, by: str = "operator", stamp: Stamp | None = None) -> int:
        """Remember a fact in a session; its seq. Acknowledged after commit, whatever the providers do."""
        session = await self.find(name)
        noted = Noted(text=text, stamp=stamp or await access.spoke_last(self.store, session))
        entries = (Draft(body=noted, author=by),)
        wakes = self.runtimes.runtime(session.agent, session.choices).remembers()
        done = await self.store.commit(
            Change(step=Step.NOTE, session=session.id, at=self.gates.clock.now(), entries=entries, wakeups=wakes)
        )
        self.bells.ring(session.id)
        return done.seqs[0]

    async def erase(
        self, name: str, seqs: Sequence[int], *, by: str = "operator", why: str = "", records: Records | None = None
    ) -> tuple[int, ...]:
        """Remove the words of these entries for good, with all that repeats them: here, in branches, and in records of
        what was recalled, wherever. What went. Who erases more than this hands in `records`, to be read once.
        """
        session = await self.find(name)
        gone = await self._erase(session.id, seqs, by=by, why=why, records=records)
        await self._erase_inherited(session.id, by=by, why=why)
        return gone

    async def _erase(
        self, id: str, seqs: Sequence[int], *, by: str, why: str, records: Records | None = None
    ) -> tuple[int, ...]:
        records = records or Records(self.store)
        while True:
            session = await self.store.get_session(id)
            plan = await amend.erasure(self.store, session, seqs, by=by, why=why)
            await self._write_down(session.id, plan.seqs)
            repeating = await records.repeating(session.id, plan.exchanges)
            ended = Ended(outcome="erased", reason="something it had read was erased")
            try:
                await self.store.commit(
                    Change(
                        step=Step.ERASE,
                        session=session.id,
                        at=self.gates.clock.now(),
                        entries=(
                            *(Draft(body=body, author=by) for body in plan.bodies),
                            *(Draft(body=ended, author="system", op=op) for op in plan.ends),
                        ),
                        seen=session.last_seq,
                        # what else those operations had been asked is answered by new ones
                        wakeups=(Wakeup(consumer=consumers.TURN),) if plan.ends else (),
                        erase=plan.seqs,
                        drop_blobs=plan.blobs + repeating,
                        read=records.upto,
                    )
                )
            except Conflict:
                continue
            self.bells.ring(session.id)
            return plan.seqs

    async def _erase_inherited(self, parent: str, *, by: str, why: str) -> None:
        """Let the branches of `parent` forget what was erased in it. Safe to repeat: what they made later stays."""
        for entry in await self.store.list_entries(parent, kinds=(Kind.ERASED,)):
            if isinstance(entry.body, Erased) and entry.body.seqs:
                await self._clear_branches(parent, min(entry.body.seqs), before=entry.pos, by=by, why=why)

    async def _clear_branches(self, parent: str, first: int, *, before: int, by: str, why: str) -> None:
        for branch in await self.store.list_branches(parent):
            if branch.parent_at < first:
                continue  # it branched off before the first of them was there
            folds = await self.store.list_entries(branch.id, kinds=(Kind.COMPRESSED,))
            summaries = [entry.seq for entry in folds if entry.body is not None and entry.pos < before]
            running = await self.store.list_operations(branch.id, states=("running",))
            old = [op for op in running if (await self.store.get_entry(branch.id, op.op)).pos < before]
            if summaries or old:
                # what runs there may have read it; a summary, or the branching itself, stands for what it saw
                await self._erase(branch.id, summaries, by=by, why=why)
            await self._clear_branches(branch.id, 0, before=before, by=by, why=why)

    async def _write_down(self, session: str, seqs: tuple[int, ...]) -> None:
        """Note an erasure beside the database, before it is done: a backup put back is made to forget again.

        Each entry with its seal, which tells nothing about it: behind an older copy the same number may be another's.
        """
        if self.erasures is None:
            return
        seals = [_seal(await self.store.get_entry(session, seq)) for seq in seqs]
        record = {"session": session, "seqs": seqs, "seals": seals, "at": self.gates.clock.now()}
        append_line(self.erasures, msgspec.json.encode(record))

    def written_down(self, about: bytes = b"") -> list[dict[str, Any]]:
        """What the erasures' file lists, or those of its lines that hold `about`.

        One that a power cut or a full disk left torn says nothing: nothing is erased before its line is on the disk.
        """
        found = []
        lines = self.erasures.read_bytes().splitlines() if self.erasures is not None and self.erasures.exists() else []
        for number, line in enumerate(lines, start=1):
            if about in line and line.strip():
                try:
                    found.append(msgspec.json.decode(line, type=dict[str, Any]))
                except msgspec.DecodeError as error:
                    self.gates.log.warning(
                        "erasures.unreadable", file=str(self.erasures), line=number, error=str(error)
                    )
        return found

    async def reapply_erasures(self) -> int:
        """Forget again what the erasures' file lists and the store still holds; how many entries."""
        wanted: dict[str, dict[int, set[str]]] = {}
        for record in self.written_down():
            for seq, seal in zip(record["seqs"], record.get("seals") or [""] * len(record["seqs"]), strict=True):
                wanted.setdefault(record["session"], {}).setdefault(seq, set()).add(seal)
        again = 0
        for session, seqs in wanted.items():
            try:
                known = await self.store.get_session(session)
            except NotFound:
                continue
            held = [await self.store.get_entry(session, seq) for seq in sorted(seqs) if seq <= known.last_seq]
            left = [e.seq for e in held if e.body is not None and seqs[e.seq] & {"", _seal(e)}]
            if left:
                again += len(await self.erase(session, left, by="system", why="erased before; the store was restored"))
            # whoever erased may have fallen before the branches were done
            await self._erase_inherited(session, by="system", why="erased in the session it branched off")
        return again

    async def replay(self, ids: Sequence[int] = ()) -> int:
        """Send parked items again; all of them unless told which. How many."""
        chosen = list(ids) or [item.id for item in await self.store.list_dead_letters()]
        count = await self.store.replay_dead_letters(chosen, at=self.gates.clock.now()) if chosen else 0
        self.bells.work.set()
        return count

    async def _amend(
        self, session: Session, amendment: amend.Amendment, *, by: str, trigger: str, wakes: tuple[Wakeup, ...] = ()
    ) -> bool:
        """Commit an amendment as an operation; False if the session moved and it must be decided anew."""
        if not amendment.bodies:
            return True
        runtime = self.runtimes.runtime(session.agent, session.choices)
        bodies: tuple[Body, ...] = amend.command(amendment.bodies, trigger=trigger)
        try:
            await self.store.commit(
                Change(
                    step=Step.COMMAND,
                    session=session.id,
                    at=self.gates.clock.now(),
                    entries=tuple(Draft(body=body, author=by, op=OWN) for body in bodies),
                    seen=session.last_seq,
                    wakeups=runtime.remembers() + wakes,
                )
            )
        except Conflict:
            return False
        self.bells.ring(session.id)
        return True


def _seal(entry: Entry) -> str:
    """What an entry is recognised by, whether it was erased or not."""
    return entry.digest.hex()[:32]


def _of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# -- what users see ---------------------------------------------------------------------------------------------


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry as users and programs see it."""
    return {
        "pos": entry.pos,
        "seq": entry.seq,
        "kind": str(entry.kind),
        "op": entry.op,
        "author": entry.author,
        "at": entry.at,
        "body": msgspec.to_builtins(entry.body) if entry.body is not None else None,
    }


def summarize_waiting(cursors: Sequence[ConsumerCursor]) -> list[dict[str, Any]]:
    """One row per consumer that has work: in how many sessions, since when, and what went wrong there last."""
    rows: dict[str, dict[str, Any]] = {}
    for cursor in cursors:
        row = rows.setdefault(
            cursor.consumer, {"consumer": cursor.consumer, "sessions": 0, "since": None, "attempts": 0, "error": ""}
        )
        row["sessions"] += 1
        row["since"] = min((at for at in (row["since"], cursor.since) if at is not None), default=None)
        row["attempts"] = max(row["attempts"], cursor.attempts)
        row["error"] = row["error"] or cursor.error
    return [rows[consumer] for consumer in sorted(rows)]


def fold_json(entry: Entry) -> dict[str, Any]:
    """A compression at a glance; of one that was erased only that it was."""
    folded = entry.body if isinstance(entry.body, Compressed) else Compressed(summary="", covers=0)
    return {
        "session": entry.session,
        "op": entry.op,
        "at": entry.at,
        "messages": folded.messages,
        "tokens_before": folded.tokens_before,
        "tokens_after": folded.tokens_after,
        "trigger": folded.trigger,
        "model": folded.model,
    }


def session_json(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "address": session.address,
        "agent": session.agent,
        "title": session.title,
        "last_seq": session.last_seq,
        "pending": session.pending,
        "state": session.running or "idle",
        "compressed_upto": session.compressed_upto,
    }


def parked_json(item: DeadLetter) -> dict[str, Any]:
    return {
        "id": item.id,
        "consumer": item.consumer,
        "session": item.session,
        "seq": item.seq,
        "part": item.part,
        "reason": item.reason,
        "in_doubt": item.in_doubt,
        "at": item.at,
    }
