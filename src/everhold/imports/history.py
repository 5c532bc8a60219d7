"""Writes foreign conversations into the log: each row once, in order, with its time. Interrupted, it goes on where it
was: how far each foreign session was read is committed with what was read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from everhold.core.consumers import COMPRESSION, TURN
from everhold.core.entries import (
    OWN,
    AddressBound,
    Began,
    BranchedFrom,
    Changed,
    Compressed,
    ContextReset,
    Draft,
    Ended,
    Kind,
    MemoryNameSet,
    SessionTitled,
    Usage,
    clean,
)
from everhold.core.naming import hermes_filed
from everhold.errors import NotFound
from everhold.hermes.database import Database, Row, Session
from everhold.hermes.lineage import Chain
from everhold.hermes.transcript import META, Fold, Reading, light, read
from everhold.imports.conversations import AWAY, Conversation
from everhold.imports.turns import Voice, aside, drafts, pieces, text_of
from everhold.ports.store import Change, Opening, StateNamespace, StateWrite, Step
from everhold.stores.sqlite import SqliteStore

SOURCE: Final = "hermes"
BATCH: Final = 256
"""Entries of one commit, about."""
BATCH_BYTES: Final = 1 << 20


@dataclass
class Tally:
    """What became of the rows of a source."""

    sessions: int = 0
    conversations: int = 0
    messages: int = 0
    """Rows that became entries."""
    known: int = 0
    """Rows that were imported before."""
    copies: int = 0
    summaries: int = 0
    marks: int = 0
    undone: int = 0
    restored: int = 0
    """Rows that were archived unread there, and are in the conversation here."""
    branches: int = 0
    remarks: list[str] = field(default_factory=list)

    @property
    def accounted(self) -> int:
        return self.messages + self.known + self.copies + self.summaries + self.marks


@dataclass
class Ledger:
    """How far one foreign session was read."""

    session: str
    upto: int = 0
    used: tuple[int, int, int, float] = (0, 0, 0, 0.0)
    order: int = 0
    """The last number written for it here."""

    def encode(self) -> str:
        return json.dumps([self.session, self.upto, list(self.used), self.order])

    @classmethod
    def decode(cls, text: str) -> Ledger:
        session, upto, used, order = json.loads(text)
        return cls(session, upto, (used[0], used[1], used[2], used[3]), order)


class Historian:
    """Imports the conversations of one agent."""

    def __init__(
        self,
        store: SqliteStore,
        db: Database,
        *,
        agent: str,
        tally: Tally,
        advance: Callable[[int], None],
        filing: Sequence[str] = (),
    ) -> None:
        """`filing` are the memory instances that know each chat by the name it had there."""
        self.store = store
        self.db = db
        self.agent = agent
        self.tally = tally
        self.advance = advance
        self.filing = filing
        self.ledgers: dict[str, Ledger] = {}
        self.versions: dict[str, int] = {}
        """The versions of the records that say how far each session of theirs was read."""

    async def write(self, conversation: Conversation) -> str:
        """Bring one conversation up to date; its session here."""
        for id in conversation.ids:
            self.ledgers[id] = await self._ledger(id)
        known = next((self.ledgers[id].session for id in conversation.ids if self.ledgers[id].session), "")
        session = known or conversation.id
        log = _Log(self, conversation, session)
        await log.open()
        for chain in conversation.chains:
            await log.chain(chain)
        await log.bind()
        await log.file()
        self.tally.conversations += 1
        self.tally.sessions += len(conversation.ids)
        return session

    def record_key(self, id: str) -> str:
        """Where it is kept how far a session of theirs was read."""
        return f"{self.agent}:{id}"

    async def _ledger(self, id: str) -> Ledger:
        record = await self.store.get_state_record(StateNamespace.HERMES_IMPORT, self.record_key(id))
        self.versions[id] = 0 if record is None else record.version
        if record is None:
            return Ledger("")
        ledger = Ledger.decode(record.value)
        placed = await self._placed(id, ledger.upto, ledger.session)
        return ledger if placed else await self._recount(id, ledger)

    async def _recount(self, id: str, told: Ledger) -> Ledger:
        """How far it was read as the log has it: a log that was taken back keeps a ledger of what it has lost."""
        try:
            await self.store.get_session(told.session)
        except NotFound:
            return Ledger("")
        used = Usage()
        found = Ledger(told.session)
        for entry in await self.store.list_entries(told.session, kinds=(Kind.ENDED,)):
            if isinstance(entry.body, Ended) and entry.body.reason == _used_in(id):
                used, found.order = used + entry.body.usage, entry.seq
        found.used = (used.input - used.cached, used.cached, used.output, used.usd)
        for row in sorted((row.id for row in self.db.messages(id) if row.id < told.upto), reverse=True):
            if seq := await self._placed(id, row, told.session):
                found.upto, found.order = row, max(seq, found.order)
                break
        return found

    async def _placed(self, id: str, row: int, session: str) -> int:
        """The number a row has in a session here, 0 if it is not there."""
        placed = await self.store.find_entry_place(self.key(id)(row))
        return placed[1] if placed is not None and placed[0] == session else 0

    def key(self, session: str) -> Callable[[int], str]:
        return lambda row: f"{SOURCE}:{self.agent}:{session}:{row}"


def _used_in(session: str) -> str:
    return f"used in {session}"


class _Log:
    """The session here that a conversation becomes, while it is written."""

    def __init__(self, historian: Historian, conversation: Conversation, session: str) -> None:
        self.h = historian
        self.store = historian.store
        self.it = conversation
        self.id = session
        self.seq = 1
        self.generation = 0
        self.fold = 0
        self.last_turn = 0
        self.ops: dict[int, int] = {}
        """Row -> its operation, of what was written in this run."""
        self.batch: list[Draft] = []
        self.bytes = 0
        self.dirty = False
        self.overheard: list[int] = []
        """What was said to nobody and no turn has taken yet."""
        self.copied: set[int] = set()
        """Rows of a branch that are its parent's."""

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        try:
            there = await self.store.get_session(self.id)
        except NotFound:
            await self._create()
            return
        self.seq, self.generation = there.last_seq + 1, there.generation
        newest = await self.store.list_operations(self.id, types=("turn",), newest_first=True, limit=1)
        self.last_turn = newest[0].op if newest else 0
        folds = await self.store.list_operations(
            self.id, types=("compression",), states=("done",), newest_first=True, limit=1
        )
        self.fold = folds[0].op if folds and not folds[0].undone_at else 0
        self.overheard = [entry.seq for entry in await self.store.list_pending(self.id)]

    async def _create(self) -> None:
        at = self.it.root.started_at
        first: list[Draft] = []
        parent, parent_at = await self._branch_point()
        if parent:
            first.append(
                Draft(body=Changed(change=BranchedFrom(parent=parent, at=parent_at, by="import")), author="system")
            )
            self.h.tally.branches += 1
            address = str(self.it.address)
        else:
            address = await self._own_address()
            first.append(Draft(body=Changed(change=AddressBound(address=address, by="import")), author="system"))
        opens = Opening(agent=self.it.agent, address=address, parent=parent, parent_at=parent_at, bind=False)
        done = await self.store.commit(
            Change(step=Step.ACCEPT, session=self.id, at=at, opens=opens, entries=tuple(first))
        )
        self.seq = done.seqs[-1] + 1

    async def _own_address(self) -> str:
        """The chat's own; one that leads elsewhere already, since somebody has talked here before, is left alone."""
        address = str(self.it.address)
        taken = await self.store.resolve_address(address)
        if taken is None:
            return address
        self.h.tally.remarks.append(f"{address} has a session here already; the imported one is {self.id} (/resume)")
        self.it.routed = False
        return f"agent:{self.it.agent}:{AWAY}:dm:{self.it.root.id}"

    async def _branch_point(self) -> tuple[str, int]:
        """Where in its parent's log a branch began: behind the last turn of which it has a copy."""
        if not self.it.branch_of:
            return "", 0
        ledger = await self.h._ledger(self.it.branch_of)
        if not ledger.session:
            return "", 0
        if self.it.forked:
            return ledger.session, ledger.order
        point = 0
        for copy, original in self._copies_of(self.it.branch_of):
            self.copied.add(copy)
            placed = await self.store.find_entry_place(self.h.key(self.it.branch_of)(original))
            if placed is not None and placed[0] == ledger.session:
                point = max(point, placed[2] or 0)
        if not point:
            self.copied.clear()
            return "", 0
        (operation,) = await self.store.list_operations(ledger.session, after=point - 1, before=point + 1)
        return ledger.session, operation.last

    def _copies_of(self, parent: str) -> list[tuple[int, int]]:
        """Rows at the beginning of a branch with those of its parent that they are copies of."""
        mine = [light(row) for row in self.h.db.messages(self.it.root.id) if row.role != META]
        theirs = [light(row) for row in self.h.db.messages(parent) if row.role != META]
        found: list[tuple[int, int]] = []
        for original in (theirs, [row for row in theirs if row.live]):  # it may have been compressed since, or before
            same = takewhile(lambda pair: pair[0].seal == pair[1].seal, zip(mine, original, strict=False))
            pairs = [(copy.id, row.id) for copy, row in same]
            found = max(found, pairs, key=len)
        return found

    async def bind(self) -> None:
        """Lead the chat to the branch it was in, if it was."""
        if not self.it.routed or not self.it.branch_of:
            return
        address = str(self.it.address)
        previous = await self.store.resolve_address(address) or ""
        if previous != self.id:
            body = Changed(change=AddressBound(address=address, previous=previous, by="import"))
            await self._commit(Draft(body=body, author="system"), self.it.chains[-1].tip)

    async def file(self) -> None:
        """Memory services go on under the name that a chat had there, whatever its agent is called here."""
        tip = self.it.chains[-1].tip
        key = tip.session_key or self.it.root.session_key
        named = (await self.store.get_session(self.id)).names
        for instance in self.h.filing if key else ():
            if instance not in named:
                body = Changed(change=MemoryNameSet(memory=instance, name=hermes_filed(key)))
                await self._commit(Draft(body=body, author="system"), tip)

    # -- one chain ---------------------------------------------------------------------------------------------------

    async def chain(self, chain: Chain) -> None:
        ledgers = [self.h.ledgers[session.id] for session in chain.sessions]
        if self.it.branch_of and not self.copied:
            await self._remember_copies()
        reading = read(light(row) for id in chain.ids for row in self.h.db.messages(id) if row.id not in self.copied)
        begun = any(ledger.upto for ledger in ledgers)
        mine = max(ledger.order for ledger in ledgers)
        others = max((it.order for id, it in self.h.ledgers.items() if id in self.it.ids), default=0)
        if others and (not begun or mine < others) and self._has_news(chain, reading):
            self._add(Draft(body=Changed(change=ContextReset()), author="system", at=chain.root.started_at))
            self.generation += 1
        folds = {fold.row: fold for fold in reading.folds}
        starts = {fold.tail[0] for fold in reading.folds if fold.tail}
        starts |= {fold.unread[0] for fold in reading.folds if fold.unread}
        self.h.tally.restored += sum(
            row > self.h.ledgers[fold.session].upto for fold in reading.folds for row in fold.unread
        )
        for session in chain.sessions:
            await self._session(session, reading, folds, starts)
        await self._title(chain)

    def _has_news(self, chain: Chain, reading: Reading) -> bool:
        upto = {session.id: self.h.ledgers[session.id].upto for session in chain.sessions}
        newest = max([*reading.first, *(fold.row for fold in reading.folds)], default=0)
        return newest > max(upto.values(), default=0)

    async def _remember_copies(self) -> None:
        """On a later import: which rows of a branch are its parent's. The first one found out and committed it."""
        known = await self.store.get_session(self.id)
        if known.parent and not self.it.forked:
            await self._branch_point()

    async def _session(self, session: Session, reading: Reading, folds: dict[int, Fold], starts: set[int]) -> None:
        ledger = self.h.ledgers[session.id]
        ledger.session = self.id
        voice = Voice(agent=self.it.agent, place=self.it.place, stamp=self.it.stamp, key=self.h.key(session.id))
        run: list[Row] = []
        for row in self.h.db.messages(session.id):
            self.h.advance(1)
            if self._passes(row, reading, ledger):
                continue
            if row.id in folds:
                await self._pieces(run, starts, voice, session)
                run = []
                await self._fold(folds[row.id], row, voice, session)
                continue
            if row.role == "user" and run and run[-1].role != "user" and len(run) >= BATCH:
                await self._pieces(run, starts, voice, session)  # whole turns so far: a long session in bounded room
                run = []
            run.append(row)
        await self._pieces(run, starts, voice, session)
        await self._usage(session, ledger)
        await self._flush(session)

    def _passes(self, row: Row, reading: Reading, ledger: Ledger) -> bool:
        """Whether a row needs no entry; counted by why."""
        tally = self.h.tally
        if row.id <= ledger.upto and row.role != META and row.id not in reading.copies and row.id not in self.copied:
            tally.known += 1
        elif row.role == META:
            tally.marks += 1
        elif row.id in reading.copies or row.id in self.copied:
            tally.copies += 1
        else:
            return False
        return True

    async def _pieces(self, rows: list[Row], starts: set[int], voice: Voice, session: Session) -> None:
        for piece in pieces(rows, starts=starts):
            seq = self._next()
            made, op = drafts(
                piece, voice, seq=seq, fold=self.fold, generation=self.generation, overheard=self.overheard
            )
            self._add(*made)
            if not op:
                self.overheard += range(seq, seq + len(made))
            else:
                self.last_turn = op
                self.overheard = self.overheard if piece.undone else []
                self.ops.update(dict.fromkeys((row.id for row in piece.rows), op))
            if piece.undone:
                self.generation += 1
                self.h.tally.undone += len(piece.rows)
            self.h.tally.messages += len(piece.rows)
            self.h.ledgers[session.id].upto = max(row.id for row in piece.rows)
            if len(self.batch) >= BATCH or self.bytes >= BATCH_BYTES:
                await self._flush(session)

    async def _fold(self, fold: Fold, row: Row, voice: Voice, session: Session) -> None:
        self.h.tally.summaries += 1
        if self.it.forked and not fold.covers:
            # it stands for what a branch has from its parent, word for word
            self._add(aside(row, voice, about="imported: summary"))
        else:
            covers = await self._covers(fold, row)
            text = text_of(row.content) + await self._head(fold)
            body = Compressed(
                summary=clean(text)[0],
                covers=covers,
                based_on=self.fold,
                generation=self.generation,
                trigger="import",
                messages=len(fold.covers),
            )
            began = Began(type="compression", consumer=COMPRESSION, generation=self.generation, trigger="import")
            self.fold = self._next()
            self._add(
                Draft(body=began, author="system", at=row.timestamp),
                Draft(body=body, author="system", op=OWN, dedup=voice.key(row.id), at=row.timestamp),
                Draft(body=Ended(), author="system", op=OWN, at=row.timestamp),
            )
            self.generation += 1
        self.h.ledgers[session.id].upto = row.id
        await self._flush(session)

    async def _covers(self, fold: Fold, row: Row) -> int:
        """The last turn a summary stands for: none of it is behind the summary there."""
        last = await self._op(fold.covers[-1], fold) if fold.covers else 0
        if last and fold.tail and await self._op(fold.tail[0], fold) == last:
            before = await self.store.list_operations(self.id, types=("turn",), before=last, newest_first=True, limit=1)
            last = before[0].op if before else 0
        if last or self.last_turn:
            return last or (0 if fold.tail else self.last_turn)
        # what it sums up is gone there: a turn that holds nothing stands for it
        op = self._next()
        self._add(
            Draft(body=Began(type="turn", consumer=TURN, trigger="import"), author="system", at=row.timestamp),
            Draft(body=Ended(), author="system", op=OWN, at=row.timestamp),
        )
        self.last_turn = op
        return op

    async def _op(self, row: int, fold: Fold) -> int:
        if row in self.ops:
            return self.ops[row]
        for session in self.it.ids:
            placed = await self.store.find_entry_place(self.h.key(session)(row))
            if placed is not None and placed[0] == self.id:
                return placed[2] or await self._taker(placed[1])
        return 0

    async def _taker(self, seq: int) -> int:
        """The turn that took a message: the first that began behind it."""
        found = await self.store.list_operations(self.id, types=("turn",), after=seq, limit=1)
        return found[0].op if found else 0

    async def _head(self, fold: Fold) -> str:
        """What a compression there kept at the beginning goes with the summary: the first messages, word for word."""
        lines = []
        for id in fold.head:
            row = self.h.db.message(id)
            if row is not None and row.content:
                lines.append(f"{row.role}: {text_of(row.content)}")
        return "\n\n[The beginning, word for word:]\n" + "\n".join(lines) if lines else ""

    async def _usage(self, session: Session, ledger: Ledger) -> None:
        """What a session cost there, as far as it is not written down yet."""
        total = (session.input_tokens, session.cache_read_tokens, session.output_tokens, session.usd)
        more = tuple(max(0, new - old) for new, old in zip(total, ledger.used, strict=True))
        if not any(more):
            return
        usage = Usage(input=int(more[0]) + int(more[1]), cached=int(more[1]), output=int(more[2]), usd=float(more[3]))
        at = session.ended_at or session.started_at
        self._add(
            Draft(body=Began(type="job", consumer="import", trigger="import"), author="system", at=at),
            Draft(body=Ended(usage=usage, reason=_used_in(session.id)), author="system", op=OWN, at=at),
        )
        ledger.used = total
        self.dirty = True

    async def _title(self, chain: Chain) -> None:
        """What it was called there, once: the name it got here since, or an erased one, is not undone by an import."""
        title = clean(chain.title)[0]
        digest = hashlib.blake2b(title.encode(), digest_size=8).hexdigest()
        key = f"title:{SOURCE}:{self.id}:{digest}"
        if title and await self.store.find_entry_place(key) is None:
            change = Changed(change=SessionTitled(title=title))
            await self._commit(Draft(body=change, author="system", at=chain.root.started_at, dedup=key), chain.tip)

    # -- committing --------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        return self.seq + len(self.batch)

    def _add(self, *made: Draft) -> None:
        self.batch += made
        self.bytes += sum(len(getattr(draft.body, "text", "")) for draft in made)

    async def _commit(self, draft: Draft, session: Session) -> None:
        self._add(draft)
        await self._flush(session)

    async def _flush(self, session: Session) -> None:
        """Commit what is ready together with how far its source was read."""
        ledger = self.h.ledgers[session.id]
        if not self.batch and not self.dirty:
            return
        self.seq += len(self.batch)
        ledger.order = self.seq - 1
        key, versions = self.h.record_key(session.id), self.h.versions
        read = StateWrite(
            namespace=StateNamespace.HERMES_IMPORT, key=key, value=ledger.encode(), version=versions[session.id]
        )
        change = Change(
            step=Step.NOTE,
            session=self.id,
            at=session.started_at,
            entries=tuple(self.batch),
            state_writes=(read,),
            seen=self.seq - 1 - len(self.batch),
        )
        # A Conflict ends the import with a report: another import of the same home is at work.
        await self.store.commit(change)
        record = await self.store.get_state_record(StateNamespace.HERMES_IMPORT, key)
        versions[session.id] = 0 if record is None else record.version
        self.batch, self.bytes, self.dirty = [], 0, False
