"""What operators do with sessions: inspect, undo, stop, compress, note, erase, replay. The API calls it.

Every change is an ordinary commit, as an operation of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from everhold.admin import audit, status
from everhold.admin.context_parts import ContextPart, PartDifference, compare_parts, list_parts
from everhold.admin.entry_deliveries import EntryDelivery, list_deliveries
from everhold.admin.session_overview import ARCHIVED_SETTING
from everhold.admin.timeline import TimelineRow, list_timeline
from everhold.core import compression, consumers
from everhold.core.audit import ReportProgress
from everhold.core.context import (
    SessionContext,
    assemble_context,
    build_model_request,
    fingerprint_request,
    list_context_stubs,
    render_messages,
    select_operations,
)
from everhold.core.entries import (
    OWN_OPERATION,
    AddressBound,
    Began,
    Changed,
    Compressed,
    CompressionRequested,
    Ended,
    Entry,
    EntryBody,
    EntryDraft,
    EntryKind,
    Erased,
    Noted,
    SessionTitled,
    SettingChosen,
    Stamp,
    Thought,
    Took,
)
from everhold.core.pins import build_pinned
from everhold.core.wording import describe_count
from everhold.engine import session_access, session_changes
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.context_cache import PinnedEntry, list_pins, list_turn_entries, load_context_at, load_pinned
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.recall_records import RecallRecords, load_recalled_text
from everhold.errors import Conflict, InvalidRequest, NotFound
from everhold.infra.home import append_line
from everhold.ports.model import ModelRequest, ToolSpec
from everhold.ports.platform import AcceptMessage, AcceptResult, IncomingMessage
from everhold.ports.store import (
    Change,
    DeadLetter,
    Operation,
    Session,
    StateNamespace,
    StateRecord,
    StateWrite,
    Step,
    Wakeup,
)

SNAPSHOT_MARK = ".snapshot."
"""In the name of a snapshot, separates the session's id from the compression before which the context is shown."""


class ShownContext(Struct, frozen=True, kw_only=True):
    """The request that a model received or would receive. `exact`: whether it matches the recorded digest; None: there
    is no digest to compare with."""

    session: str
    at: int
    request: ModelRequest
    exact: bool | None
    reason: str = ""
    parts: tuple[ContextPart, ...] = ()
    """What the request consists of, in its order."""


class SessionAdmin:
    """One per home. `erasures` is a file beside the database, which a restore of the database does not replace.
    `search_index` returns the newest places in the log that contain all words of a text.
    """

    def __init__(
        self,
        gates: Gates,
        *,
        wakeups: Wakeups,
        accept: AcceptMessage,
        runtimes: AgentRuntimes,
        erasures: Path | None = None,
        search_index: Callable[[str, int], Awaitable[Sequence[tuple[str, int]]]] | None = None,
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.wakeups = wakeups
        self.accept = accept
        self.runtimes = runtimes
        self.erasures = erasures
        self.search_index = search_index
        self.on_audit: Callable[[audit.AuditReport], None] = _ignore_report
        """Receives the result of every audit of the whole store."""

    # -- reading -----------------------------------------------------------------------------------------------------

    async def find_session(self, name: str) -> Session:
        """The session that an id, a unique prefix, a title, an address or `last` means."""
        if SNAPSHOT_MARK in name:
            raise InvalidRequest(
                f"{name} is a snapshot of a session's context, which can only be shown",
                remedy=f"`everhold sessions context {name}` shows it; "
                f"its session is {name.partition(SNAPSHOT_MARK)[0]}",
            )
        found = await self.store.find_sessions(name)
        if not found:
            raise NotFound(f"there is no session {name!r}", remedy="`everhold sessions list` lists the sessions")
        if len(found) > 1:
            some = ", ".join(sorted(found)[:5])
            raise InvalidRequest(f"{name!r} may mean {len(found)} sessions: {some}", remedy="give more of the id")
        return await self.store.get_session(found[0])

    def read_entries(self, session: str, *, after: int = 0) -> AsyncIterator[Entry]:
        """A session's log. It is read in pages, and other tasks run between them."""
        return audit.read_entries(self.store, session, after=after)

    async def list_sessions(self, *, limit: int) -> list[Session]:
        """The newest sessions, newest first."""
        return await self.store.list_sessions(limit=limit, newest_first=True)

    async def list_addresses(self, session: Session) -> list[str]:
        """The addresses that lead to a session now."""
        ever = [session.address]
        for entry in await self.store.list_entries(session.id, kinds=(EntryKind.CHANGED,)):
            if isinstance(entry.body, Changed) and isinstance(entry.body.change, AddressBound):
                ever.append(entry.body.change.address)
        return [address for address in dict.fromkeys(ever) if await self.store.resolve_address(address) == session.id]

    async def list_compressions(self, name: str) -> list[tuple[Operation, Entry]]:
        """A session's summaries, oldest first, each with the operation that made it."""
        session = await self.find_session(name)
        made = {op.op: op for op in await self.store.list_operations(session.id, types=("compression",))}
        found = await self.store.list_entries(session.id, kinds=(EntryKind.COMPRESSED,))
        return [(made[entry.op], entry) for entry in found if entry.op is not None]

    async def search_entries(self, text: str, *, limit: int = 50) -> list[Entry]:
        """The newest entries that contain all words of `text`, whatever their audience, by session."""
        if self.search_index is None:
            raise InvalidRequest("there is no search index", remedy="open the home with its index")
        sessions: dict[str, list[Entry]] = {}
        for session, seq in await self.search_index(text, limit):
            entry = await self.store.get_entry(session, seq)
            if entry.body is not None:
                sessions.setdefault(session, []).append(entry)
        return [entry for hits in sessions.values() for entry in sorted(hits, key=lambda hit: hit.seq)]

    async def load_context(self, name: str, *, at: int | None = None) -> ShownContext:
        """The context of the `thought` at, or next after, seq `at`; without `at`, the context of the next turn.

        The request is built again from the log and compared with the digest that was recorded when it was sent.
        """
        name, _, moment = name.partition(SNAPSHOT_MARK)
        session = await self.find_session(name)
        if moment:
            return await self._load_snapshot(session, moment)
        if at is None:
            return await self._load_shown(session, at=session.last_seq + 1)
        thought = await self._find_thought(session, at)
        assert isinstance(thought.body, Thought)
        assert thought.op is not None
        operation = (await self.store.list_operations(session.id, after=thought.op - 1, before=thought.op + 1))[0]
        entries = await list_turn_entries(self.store, session.id, [operation], upto=thought.seq - 1)
        mine = [entry for entry in entries if entry.op == thought.op]
        chosen = [
            e.body.compression for e in mine if isinstance(e.body, Began | Took) and e.body.compression is not None
        ]
        prefix = await self._load_prefix(session, thought.op, chosen)
        then = msgspec.structs.replace(operation, undone_at=0, state="running")  # as it was when the model was asked
        current = assemble_context(select_operations([then], at=thought.seq), entries)
        stubs = frozenset(thought.body.stubs)
        prompt = await self.store.get_blob(thought.body.prompt) if thought.body.prompt else b""
        offered = await self.store.get_blob(thought.body.tools) if thought.body.tools else b"[]"
        recalled, _ = await load_recalled_text(self.store, thought.body.recall)
        shown = render_messages(prefix, stubs=stubs) + render_messages(current, stubs=stubs, recalled=recalled or "")
        system, tools = (prompt or b"").decode(), msgspec.json.decode(offered or b"[]", type=tuple[ToolSpec, ...])
        request = build_model_request(shown, system=system, tools=tools)
        parts = list_parts(prefix + current, stubs=stubs, system=system, tools=tools, recalled=recalled or "")
        exact = fingerprint_request(request) == thought.body.request
        reason = "" if exact else "a part of it was erased or is no longer known"
        return ShownContext(
            session=session.id, at=thought.seq, request=request, exact=exact, reason=reason, parts=parts
        )

    async def compare_contexts(self, name: str, *, before: int, after: int) -> tuple[PartDifference, ...]:
        """Return what became of each part of the context between two thoughts."""
        return compare_parts(
            (await self.load_context(name, at=before)).parts, (await self.load_context(name, at=after)).parts
        )

    async def list_timeline(self, name: str, *, before: int | None = None, limit: int = 50) -> list[TimelineRow]:
        """The newest operations of a session, newest first."""
        return await list_timeline(self.store, (await self.find_session(name)).id, before=before, limit=limit)

    async def list_deliveries(self, name: str, seq: int) -> list[EntryDelivery]:
        """Where an entry is on its way to each platform account and memory."""
        session = await self.find_session(name)
        await self.store.get_entry(session.id, seq)  # raises NotFound
        return await list_deliveries(self.store, session.id, seq)

    async def _load_prefix(self, session: Session, op: int, chosen: list[int]) -> SessionContext:
        """The context before a turn, with the compression that its `began` chose. A compression that was chosen during
        the turn replaces everything before it but the pins."""
        if len(chosen) > 1 and chosen[-1]:
            compression = await self.store.list_entries(session.id, after=chosen[-1], kinds=())
            compressed = next(entry for entry in compression if entry.op == chosen[-1] and entry.kind == "compressed")
            return SessionContext(compression=compressed, pins=await load_pinned(self.store, session.id, at=op))
        return await load_context_at(self.store, session, at=op, compression=chosen[0] if chosen else None)

    async def _find_thought(self, session: Session, at: int) -> Entry:
        for entry in await self.store.list_entries(session.id, after=at - 1, limit=audit.PAGE_ENTRIES):
            if isinstance(entry.body, Thought):
                return entry
        raise NotFound(
            f"no model was asked at or after entry {at} of session {session.id}",
            remedy="name an earlier entry, or none for the context of the next turn",
        )

    async def _load_snapshot(self, session: Session, moment: str) -> ShownContext:
        """The context as it was just before a compression took effect."""
        compressions = await self.store.list_operations(session.id, types=("compression",), states=("done",))
        compression = next((operation for operation in compressions if str(operation.op) == moment), None)
        if compression is None:
            raise NotFound(
                f"session {session.id} has no snapshot {moment}", remedy="`everhold sessions compressions` lists them"
            )
        return await self._load_shown(session, at=compression.last)

    async def _load_shown(self, session: Session, *, at: int) -> ShownContext:
        """The request that the agent, with its present settings, would send at seq `at`."""
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        view = await load_context_at(self.store, session, at=at)
        tools = tuple(tool.spec for tool in runtime.tools.values())
        stubs = list_context_stubs(view)
        request = build_model_request(render_messages(view, stubs=stubs), system=runtime.system, tools=tools)
        parts = list_parts(view, stubs=stubs, system=runtime.system, tools=tools)
        return ShownContext(session=session.id, at=at, request=request, exact=None, parts=parts)

    async def collect_status(self) -> dict[str, Any]:
        return await status.collect_status(self.gates, self.runtimes)

    async def audit_store(
        self, name: str | None = None, report_progress: ReportProgress = lambda done, total: None
    ) -> audit.AuditReport:
        """Audit one session, or the whole store."""
        session = await self.find_session(name) if name else None
        report = await audit.audit_store(self.store, session, report_progress)
        if session is None:
            self.on_audit(report)
        return report

    # -- writing -----------------------------------------------------------------------------------------------------

    async def send_message(self, incoming: IncomingMessage) -> AcceptResult:
        return await self.accept(incoming)

    async def undo_turns(self, name: str, *, what: str = "turn", count: int = 1, by: str = "operator") -> str:
        if what not in ("turn", "compress"):
            raise InvalidRequest(f"{what!r} cannot be undone", remedy="say `turn` or `compress`")
        while True:
            session = await self.find_session(name)
            runtime = self.runtimes.get_runtime(session.agent, session.choices)
            amendment = await session_changes.plan_undo(
                self.store, session, what=what, count=count, hard_tokens=runtime.hard_limit_tokens
            )
            if await self._commit_amendment(session, amendment, by=by, trigger="undo"):
                return amendment.reply

    async def rename_session(self, name: str, title: str, *, by: str = "operator") -> None:
        """Give a session a title, as `/title` does."""
        await self._change_session(name, Changed(change=SessionTitled(title=title)), by=by, trigger="title")

    async def archive_session(self, name: str, *, archived: bool = True, by: str = "operator") -> None:
        """Hide a session from lists, or show it again. It stays as it is otherwise, and a message to it is answered."""
        choice = SettingChosen(setting=ARCHIVED_SETTING, value="yes" if archived else "")
        await self._change_session(name, Changed(change=choice), by=by, trigger="archive")

    async def _change_session(self, name: str, body: Changed, *, by: str, trigger: str) -> None:
        amendment = session_changes.SessionAmendment(bodies=(body,), reply="")
        while not await self._commit_amendment(await self.find_session(name), amendment, by=by, trigger=trigger):
            pass

    async def plan_session_erasure(self, name: str) -> session_changes.ErasurePlan:
        """Return what an erasure of all words of a session includes. Nothing is changed."""
        session = await self.find_session(name)
        seqs = await self._list_erasable_seqs(session.id)
        return await session_changes.plan_erasure(self.store, session, seqs, by="", why="")

    async def _list_erasable_seqs(self, session: str) -> list[int]:
        """The entries of a session that have words that are not erased yet."""
        return [
            entry.seq
            async for entry in self.read_entries(session)
            if entry.body is not None and session_changes.is_erasable(entry)
        ]

    async def pin_entry(self, name: str, seq: int, *, by: str = "operator") -> str:
        while True:
            session = await self.find_session(name)
            window = self.runtimes.get_runtime(session.agent, session.choices).models[0].context_tokens
            amendment = await session_changes.plan_pin(self.store, session, seq, by=by, window=window)
            if await self._commit_amendment(session, amendment, by=by, trigger="pin"):
                return amendment.reply

    async def unpin_entry(self, name: str, seq: int | None, *, by: str = "operator") -> str:
        """Remove the pin of an entry, or all pins of a session."""
        while True:
            session = await self.find_session(name)
            amendment = await session_changes.plan_unpin(self.store, session, seq)
            if await self._commit_amendment(session, amendment, by=by, trigger="unpin"):
                return amendment.reply

    async def list_pins(self, name: str) -> list[PinnedEntry]:
        """The pins of a session, oldest first. Erased entries are left out."""
        session = await self.find_session(name)
        pins = await list_pins(self.store, session.id, at=session.last_seq + 1)
        return [one for one in pins if build_pinned(one.entry) is not None]

    async def stop_turn(self, name: str, *, by: str = "operator") -> str:
        while True:
            session = await self.find_session(name)
            amendment = await session_changes.plan_stop(self.store, session)
            if await self._commit_amendment(session, amendment, by=by, trigger="stop"):
                return amendment.reply

    async def compress_session(
        self, name: str, *, keep: int | None = None, focus: str = "", preview: bool = False, by: str = "operator"
    ) -> str:
        """Request a compression and return its result as text. With `preview`, return what it would do."""
        session = await self.find_session(name)
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        view = await load_context_at(self.store, session, at=session.last_seq + 1)
        plan = compression.plan_compression(
            view,
            keep=runtime.keep_turns if keep is None else keep,
            session=session.id,
            window=runtime.models[0].context_tokens,
        )
        if plan is None:
            return "There is nothing to compress."
        if preview:
            return compression.render_preview(plan)
        wanted = session_changes.SessionAmendment(
            bodies=(Changed(change=CompressionRequested(keep=keep, focus=focus)),), reply=""
        )
        while not await self._commit_amendment(
            session, wanted, by=by, trigger="compress", wakeups=(Wakeup(consumer=consumers.COMPRESSION),)
        ):
            session = await self.find_session(name)
        asked_at = session.last_seq
        with self.wakeups.subscribe(session.id) as event:
            while (
                cursor := await self.store.get_cursor(consumers.COMPRESSION, session.id)
            ) is None or cursor.processed_seq <= asked_at:
                await self.gates.sleep(1.0, wakeup=event)
                event.clear()
        # a compression that was running already may have left nothing to do
        compressions = await self.store.list_operations(session.id, types=("compression",))
        ended = [operation for operation in compressions if operation.last > asked_at]
        return await self._render_compressed(session.id, ended[-1]) if ended else "There is nothing to compress."

    async def _render_compressed(self, session: str, operation: Operation) -> str:
        for entry in await self.store.list_entries(session, after=operation.op, upto=operation.last):
            if isinstance(entry.body, Compressed):
                body = entry.body
                return (
                    f"Compressed {describe_count(body.messages, 'message')}: "
                    f"{body.tokens_before} tokens are now {body.tokens_after}."
                )
            if isinstance(entry.body, Ended) and entry.op == operation.op and entry.body.outcome != "done":
                return f"Not compressed: {entry.body.reason or entry.body.outcome}. Nothing was changed."
        return "Compressed. Its summary was erased since."

    async def diff_compression(self, name: str, *, compression: int) -> dict[str, Any]:
        """The messages that a compression replaced, and those that replace them."""
        session = await self.find_session(name)
        entry = next(
            (
                e
                for e in await self.store.list_entries(session.id, after=compression, kinds=(EntryKind.COMPRESSED,))
                if e.op == compression
            ),
            None,
        )
        if entry is None or not isinstance(entry.body, Compressed):
            raise NotFound(
                f"session {session.id} has no compression {compression}",
                remedy="`everhold sessions compressions` lists them",
            )
        before = await load_context_at(self.store, session, at=entry.seq)
        part = SessionContext(
            compression=before.compression,
            turns=tuple(e for e in before.turns if e.op <= entry.body.covers or not e.steps),
        )
        return {
            "session": session.id,
            "compression": compression,
            "replaced": [msgspec.to_builtins(message) for message in render_messages(part)],
            "by": [msgspec.to_builtins(message) for message in render_messages(SessionContext(compression=entry))],
        }

    async def add_note(self, name: str, text: str, *, by: str = "operator", stamp: Stamp | None = None) -> int:
        """Add a note to a session and return its seq. It does not wait for the delivery to memories."""
        session = await self.find_session(name)
        noted = Noted(text=text, stamp=stamp or await session_access.find_last_stamp(self.store, session))
        entries = (EntryDraft(body=noted, author=by),)
        wakeups = self.runtimes.get_runtime(session.agent, session.choices).list_memory_wakeups()
        done = await self.store.commit(
            Change(step=Step.NOTE, session=session.id, at=self.gates.clock.now(), entries=entries, wakeups=wakeups)
        )
        self.wakeups.notify(session.id)
        return done.seqs[0]

    async def erase_entries(
        self,
        name: str,
        seqs: Sequence[int],
        *,
        by: str = "operator",
        why: str = "",
        records: RecallRecords | None = None,
    ) -> tuple[int, ...]:
        """Erase these entries and everything that repeats them: in this session, in its branches, and in recall records
        of any session. Return the erased seqs. A caller that erases several sessions passes `records`, so that the
        recall records are read only once.
        """
        session = await self.find_session(name)
        gone = await self._erase_in_session(session.id, seqs, by=by, why=why, records=records, is_recorded=True)
        await self._erase_in_branches(session.id, by=by, why=why)
        await self._drop_erasure_record(session.id)
        return gone

    async def _build_erasure_record(self, session: str) -> StateWrite:
        """Return the record that the branches of a session may still have something that was erased in it. It is for
        a store that several hosts use, because no file of a host that died would tell the others."""
        known = await self.store.get_state_record(StateNamespace.ENTRY_ERASURE, session)
        version = 0 if known is None else known.version
        return StateWrite(namespace=StateNamespace.ENTRY_ERASURE, key=session, value="erased", version=version)

    async def _drop_erasure_record(self, session: str) -> None:
        known = (
            None
            if self.store.is_exclusive
            else await self.store.get_state_record(StateNamespace.ENTRY_ERASURE, session)
        )
        if known is not None:
            await self._commit_dropped(known)

    async def _commit_dropped(self, record: StateRecord) -> None:
        with contextlib.suppress(Conflict):  # another erasure has begun, and its branches are not done
            change = Change(
                step=Step.ERASE, session="", at=self.gates.clock.now(), state_writes=(record.replace_with(None),)
            )
            await self.store.commit(change)

    async def list_interrupted_erasures(self) -> list[str]:
        """The sessions of which entries are being erased, or were when a host died."""
        return [it.key for it in await self.store.list_state_records(StateNamespace.ENTRY_ERASURE)]

    async def finish_interrupted_erasures(self) -> None:
        """Erase in branches what a host that died left there. It is safe beside an erasure that is under way, because
        the record is only dropped if nothing was erased since it was read."""
        for record in await self.store.list_state_records(StateNamespace.ENTRY_ERASURE):
            with contextlib.suppress(NotFound):
                await self._erase_in_branches(record.key, by="system", why="erased in the session it branched off")
            await self._commit_dropped(record)

    async def _erase_in_session(
        self,
        id: str,
        seqs: Sequence[int],
        *,
        by: str,
        why: str,
        records: RecallRecords | None = None,
        is_recorded: bool = False,
    ) -> tuple[int, ...]:
        records = records or RecallRecords(self.store)
        while True:
            session = await self.store.get_session(id)
            plan = await session_changes.plan_erasure(self.store, session, seqs, by=by, why=why)
            await self.record_erasure(session.id, plan.seqs)
            repeating = await records.find_repeating_blobs(session.id, plan.exchanges)
            unfinished = (
                (await self._build_erasure_record(session.id),) if is_recorded and not self.store.is_exclusive else ()
            )
            ended = Ended(outcome="erased", reason="an entry that it had read was erased")
            try:
                await self.store.commit(
                    Change(
                        step=Step.ERASE,
                        session=session.id,
                        at=self.gates.clock.now(),
                        entries=(
                            *(EntryDraft(body=body, author=by) for body in plan.bodies),
                            *(EntryDraft(body=ended, author="system", op=op) for op in plan.ops_to_end),
                        ),
                        seen=session.last_seq,
                        # new operations answer the other messages of the ended ones
                        wakeups=(Wakeup(consumer=consumers.TURN),) if plan.ops_to_end else (),
                        erase=plan.seqs,
                        drop_blobs=plan.blobs + repeating,
                        read=records.read_upto_pos,
                        state_writes=unfinished,
                    )
                )
            except Conflict:
                continue
            self.wakeups.notify(session.id)
            return plan.seqs

    async def _erase_in_branches(self, parent: str, *, by: str, why: str) -> None:
        """Erase in the branches of `parent` what depends on its erased entries. Safe to repeat, because summaries that
        were made after the erasure stay."""
        for entry in await self.store.list_entries(parent, kinds=(EntryKind.ERASED,)):
            if isinstance(entry.body, Erased) and entry.body.seqs:
                await self._erase_branch_summaries(parent, min(entry.body.seqs), before=entry.pos, by=by, why=why)

    async def _erase_branch_summaries(self, parent: str, first: int, *, before: int, by: str, why: str) -> None:
        for branch in await self.store.list_branches(parent):
            if branch.parent_at < first:
                continue  # it branched off before the first erased entry existed
            compressions = await self.store.list_entries(branch.id, kinds=(EntryKind.COMPRESSED,))
            summaries = [entry.seq for entry in compressions if entry.body is not None and entry.pos < before]
            running = await self.store.list_operations(branch.id, states=("running",))
            old = [op for op in running if (await self.store.get_entry(branch.id, op.op)).pos < before]
            if summaries or old:
                # a running operation may have read an erased entry, and a summary may repeat it
                await self._erase_in_session(branch.id, summaries, by=by, why=why)
            await self._erase_branch_summaries(branch.id, 0, before=before, by=by, why=why)

    async def record_erasure(self, session: str, seqs: tuple[int, ...]) -> None:
        """Record an erasure in the file beside the database before it is done, so that it is repeated after a restore.

        Each entry is recorded with a prefix of its digest, which reveals nothing about its content, because after a
        restore the same seq may belong to another entry.
        """
        if self.erasures is None:
            return
        seals = [_identify_entry(await self.store.get_entry(session, seq)) for seq in seqs]
        record = {"session": session, "seqs": seqs, "seals": seals, "at": self.gates.clock.now()}
        append_line(self.erasures, msgspec.json.encode(record))

    def read_erasures(self, about: bytes = b"") -> list[dict[str, Any]]:
        """The records of the erasures file, or those whose line contains `about`.

        An incomplete line after a power cut or on a full disk is skipped, because nothing is erased before its line is
        on disk.
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
        """Erase again the entries that the erasures file lists and the store still contains. Return their number."""
        wanted: dict[str, dict[int, set[str]]] = {}
        for record in self.read_erasures():
            for seq, seal in zip(record["seqs"], record.get("seals") or [""] * len(record["seqs"]), strict=True):
                wanted.setdefault(record["session"], {}).setdefault(seq, set()).add(seal)
        again = 0
        for session, seqs in wanted.items():
            try:
                known = await self.store.get_session(session)
            except NotFound:
                continue
            held = [await self.store.get_entry(session, seq) for seq in sorted(seqs) if seq <= known.last_seq]
            left = [e.seq for e in held if e.body is not None and seqs[e.seq] & {"", _identify_entry(e)}]
            if left:
                again += len(
                    await self.erase_entries(session, left, by="system", why="erased before; the store was restored")
                )
            # the process may have crashed before the branches were done
            await self._erase_in_branches(session, by="system", why="erased in the session it branched off")
        return again

    async def replay_dead_letters(self, ids: Sequence[int] = ()) -> int:
        """Replay dead letters, all of them unless `ids` are given. Return their number."""
        chosen = list(ids) or [item.id for item in await self.store.list_dead_letters()]
        count = await self.store.replay_dead_letters(chosen) if chosen else 0
        self.wakeups.work_available.set()
        return count

    async def retry_waiting(self) -> int:
        """Make everything due that waits after a failure. Return the number of cursors."""
        count = await self.store.retry_now()
        self.wakeups.work_available.set()
        return count

    async def drop_dead_letters(self, ids: Sequence[int]) -> int:
        """Give up these dead letters for good. Return their number."""
        return await self.store.drop_dead_letters(ids) if ids else 0

    async def _commit_amendment(
        self,
        session: Session,
        amendment: session_changes.SessionAmendment,
        *,
        by: str,
        trigger: str,
        wakeups: tuple[Wakeup, ...] = (),
    ) -> bool:
        """Commit an amendment as an operation. Return False if the session has changed, so that it must be planned
        again."""
        if not amendment.bodies:
            return True
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        bodies: tuple[EntryBody, ...] = session_changes.wrap_as_command(amendment.bodies, trigger=trigger)
        try:
            await self.store.commit(
                Change(
                    step=Step.COMMAND,
                    session=session.id,
                    at=self.gates.clock.now(),
                    entries=tuple(EntryDraft(body=body, author=by, op=OWN_OPERATION) for body in bodies),
                    seen=session.last_seq,
                    wakeups=runtime.list_memory_wakeups() + wakeups,
                )
            )
        except Conflict:
            return False
        self.wakeups.notify(session.id)
        return True


def _identify_entry(entry: Entry) -> str:
    """A prefix of the entry's digest, which identifies it even after it was erased."""
    return entry.digest.hex()[:32]


# -- rendering ---------------------------------------------------------------------------------------------------------


def render_entry(entry: Entry) -> dict[str, Any]:
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


def render_session(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "address": session.address,
        "agent": session.agent,
        "title": session.title,
        "last_seq": session.last_seq,
        "pending": session.pending,
        "state": session.running or "idle",
        "archived": ARCHIVED_SETTING in session.choices,
        "compressed_upto": session.compressed_upto,
    }


def render_dead_letter(item: DeadLetter) -> dict[str, Any]:
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


def _ignore_report(report: audit.AuditReport) -> None: ...
