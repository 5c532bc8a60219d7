"""Writes conversations of hermes-agent into the log: each row once, in order, with its time. The progress in each
source session is committed together with the rows, so an interrupted import continues where it stopped.
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
    OWN_OPERATION,
    AddressBound,
    Began,
    BranchedFrom,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    EntryDraft,
    EntryKind,
    MemoryNameSet,
    ModelUsage,
    SessionTitled,
    strip_surrogates,
)
from everhold.core.memory_naming import build_hermes_session_name
from everhold.errors import NotFound
from everhold.hermes.importer.conversations import ImportedConversation
from everhold.hermes.importer.places import IMPORTED_PLATFORM
from everhold.hermes.importer.turns import ImportContext, extract_text, make_drafts, make_hidden_draft, split_turns
from everhold.hermes.reader.database import HermesDatabase, HermesMessage, HermesSession
from everhold.hermes.reader.lineage import SessionChain
from everhold.hermes.reader.transcript import (
    META_ROLE,
    HermesCompression,
    TranscriptReading,
    digest_message,
    read_transcript,
)
from everhold.ports.store import Change, SessionOpening, StateNamespace, StateWrite, Step, Store

SOURCE_NAME: Final = "hermes"
BATCH_ENTRIES: Final = 256
"""Approximate number of entries per commit."""
BATCH_BYTES: Final = 1 << 20


@dataclass
class ImportTally:
    """What the import did with the rows of a source."""

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
    """Rows that hermes-agent archived unread and that are part of the imported conversation."""
    branches: int = 0
    remarks: list[str] = field(default_factory=list)

    @property
    def accounted_rows(self) -> int:
        return self.messages + self.known + self.copies + self.summaries + self.marks


@dataclass
class ImportProgress:
    """The progress in one source session."""

    session: str
    read_upto: int = 0
    counted_usage: tuple[int, int, int, float] = (0, 0, 0, 0.0)
    last_seq: int = 0
    """The seq of the last entry written for it."""

    def encode(self) -> str:
        return json.dumps([self.session, self.read_upto, list(self.counted_usage), self.last_seq])

    @classmethod
    def decode(cls, text: str) -> ImportProgress:
        session, upto, used, order = json.loads(text)
        return cls(session, upto, (used[0], used[1], used[2], used[3]), order)


class ConversationImporter:
    """Imports the conversations of one agent."""

    def __init__(
        self,
        store: Store,
        db: HermesDatabase,
        *,
        agent: str,
        tally: ImportTally,
        advance: Callable[[int], None],
        named_memories: Sequence[str] = (),
    ) -> None:
        """`filing` are the memory instances that know each chat by its hermes-agent name."""
        self.store = store
        self.db = db
        self.agent = agent
        self.tally = tally
        self.advance = advance
        self.named_memories = named_memories
        self.progress: dict[str, ImportProgress] = {}
        self.versions: dict[str, int] = {}
        """The versions of the state records that hold the progress of each source session."""

    async def import_conversation(self, conversation: ImportedConversation) -> str:
        """Bring one conversation up to date and return its session."""
        for id in conversation.ids:
            self.progress[id] = await self._read_progress(id)
        known = next((self.progress[id].session for id in conversation.ids if self.progress[id].session), "")
        session = known or conversation.id
        log = _ConversationWriter(self, conversation, session)
        await log.open_session()
        for chain in conversation.chains:
            await log.write_chain(chain)
        await log.bind_address()
        await log.set_memory_names()
        self.tally.conversations += 1
        self.tally.sessions += len(conversation.ids)
        return session

    def record_key(self, id: str) -> str:
        """Return the key of the state record that holds the progress of a source session."""
        return f"{self.agent}:{id}"

    async def _read_progress(self, id: str) -> ImportProgress:
        record = await self.store.get_state_record(StateNamespace.HERMES_IMPORT, self.record_key(id))
        self.versions[id] = 0 if record is None else record.version
        if record is None:
            return ImportProgress("")
        ledger = ImportProgress.decode(record.value)
        placed = await self._find_seq(id, ledger.read_upto, ledger.session)
        return ledger if placed else await self._recount_progress(id, ledger)

    async def _recount_progress(self, id: str, progress: ImportProgress) -> ImportProgress:
        """Return the progress that the log confirms, because after a restore the state record may
        be ahead of the log.
        """
        try:
            await self.store.get_session(progress.session)
        except NotFound:
            return ImportProgress("")
        used = ModelUsage()
        found = ImportProgress(progress.session)
        for entry in await self.store.list_entries(progress.session, kinds=(EntryKind.ENDED,)):
            if isinstance(entry.body, Ended) and entry.body.reason == _make_usage_reason(id):
                used, found.last_seq = used + entry.body.usage, entry.seq
        found.counted_usage = (used.input - used.cached, used.cached, used.output, used.usd)
        for row in sorted((row.id for row in self.db.iter_messages(id) if row.id < progress.read_upto), reverse=True):
            if seq := await self._find_seq(id, row, progress.session):
                found.read_upto, found.last_seq = row, max(seq, found.last_seq)
                break
        return found

    async def _find_seq(self, id: str, row: int, session: str) -> int:
        """Return the seq of an imported row in a session; 0 if it is not there."""
        placed = await self.store.find_entry_place(self.make_dedup_key(id)(row))
        return placed[1] if placed is not None and placed[0] == session else 0

    def make_dedup_key(self, session: str) -> Callable[[int], str]:
        return lambda row: f"{SOURCE_NAME}:{self.agent}:{session}:{row}"


def _make_usage_reason(session: str) -> str:
    return f"used in {session}"


class _ConversationWriter:
    """The session of a conversation while it is being written."""

    def __init__(self, historian: ConversationImporter, conversation: ImportedConversation, session: str) -> None:
        self.importer = historian
        self.store = historian.store
        self.conversation = conversation
        self.session_id = session
        self.seq = 1
        self.generation = 0
        self.compression = 0
        self.last_turn = 0
        self.operation_by_row: dict[int, int] = {}
        """Row -> its operation, for rows written in this run."""
        self.batch: list[EntryDraft] = []
        self.batch_bytes = 0
        self.dirty = False
        self.overheard: list[int] = []
        """Overheard messages that no turn has consumed yet."""
        self.copied: set[int] = set()
        """Rows of a branch that belong to its parent."""

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def open_session(self) -> None:
        try:
            there = await self.store.get_session(self.session_id)
        except NotFound:
            await self._create_session()
            return
        self.seq, self.generation = there.last_seq + 1, there.generation
        newest = await self.store.list_operations(self.session_id, types=("turn",), newest_first=True, limit=1)
        self.last_turn = newest[0].op if newest else 0
        compressions = await self.store.list_operations(
            self.session_id, types=("compression",), states=("done",), newest_first=True, limit=1
        )
        self.compression = compressions[0].op if compressions and not compressions[0].undone_at else 0
        self.overheard = [entry.seq for entry in await self.store.list_pending(self.session_id)]

    async def _create_session(self) -> None:
        at = self.conversation.root.started_at
        first: list[EntryDraft] = []
        parent, parent_at = await self._find_branch_point()
        if parent:
            first.append(
                EntryDraft(body=Changed(change=BranchedFrom(parent=parent, at=parent_at, by="import")), author="system")
            )
            self.importer.tally.branches += 1
            address = str(self.conversation.address)
        else:
            address = await self._choose_address()
            first.append(EntryDraft(body=Changed(change=AddressBound(address=address, by="import")), author="system"))
        opens = SessionOpening(
            agent=self.conversation.agent, address=address, parent=parent, parent_at=parent_at, bind=False
        )
        done = await self.store.commit(
            Change(step=Step.ACCEPT, session=self.session_id, at=at, opens=opens, entries=tuple(first))
        )
        self.seq = done.seqs[-1] + 1

    async def _choose_address(self) -> str:
        """Return the chat's address. If the chat already has a session here, report it and return another."""
        address = str(self.conversation.address)
        taken = await self.store.resolve_address(address)
        if taken is None:
            return address
        self.importer.tally.remarks.append(
            f"{address} has a session here already; the imported one is {self.session_id} (/resume)"
        )
        self.conversation.routed = False
        return f"agent:{self.conversation.agent}:{IMPORTED_PLATFORM}:dm:{self.conversation.root.id}"

    async def _find_branch_point(self) -> tuple[str, int]:
        """Return the seq in the parent's log at which a branch began: after the last turn of which it has a copy."""
        if not self.conversation.branch_of:
            return "", 0
        ledger = await self.importer._read_progress(self.conversation.branch_of)
        if not ledger.session:
            return "", 0
        if self.conversation.forked:
            return ledger.session, ledger.last_seq
        point = 0
        for copy, original in self._find_copies(self.conversation.branch_of):
            self.copied.add(copy)
            placed = await self.store.find_entry_place(
                self.importer.make_dedup_key(self.conversation.branch_of)(original)
            )
            if placed is not None and placed[0] == ledger.session:
                point = max(point, placed[2] or 0)
        if not point:
            self.copied.clear()
            return "", 0
        (operation,) = await self.store.list_operations(ledger.session, after=point - 1, before=point + 1)
        return ledger.session, operation.last

    def _find_copies(self, parent: str) -> list[tuple[int, int]]:
        """Return the rows at the beginning of a branch, with the parent's rows of which they are copies."""
        own_digests = [
            digest_message(row)
            for row in self.importer.db.iter_messages(self.conversation.root.id)
            if row.role != META_ROLE
        ]
        parent_digests = [
            digest_message(row) for row in self.importer.db.iter_messages(parent) if row.role != META_ROLE
        ]
        found: list[tuple[int, int]] = []
        for original in (
            parent_digests,
            [row for row in parent_digests if row.live],
        ):  # the parent may have been compressed before or since
            same = takewhile(
                lambda pair: pair[0].content_hash == pair[1].content_hash, zip(own_digests, original, strict=False)
            )
            pairs = [(copy.id, row.id) for copy, row in same]
            found = max(found, pairs, key=len)
        return found

    async def bind_address(self) -> None:
        """Bind the chat to the branch if the branch was in use."""
        if not self.conversation.routed or not self.conversation.branch_of:
            return
        address = str(self.conversation.address)
        previous = await self.store.resolve_address(address) or ""
        if previous != self.session_id:
            body = Changed(change=AddressBound(address=address, previous=previous, by="import"))
            await self._commit_draft(EntryDraft(body=body, author="system"), self.conversation.chains[-1].tip)

    async def set_memory_names(self) -> None:
        """Keep the name that a chat had in memory services, independent of the agent's name here."""
        tip = self.conversation.chains[-1].tip
        key = tip.session_key or self.conversation.root.session_key
        named = (await self.store.get_session(self.session_id)).names
        for instance in self.importer.named_memories if key else ():
            if instance not in named:
                body = Changed(change=MemoryNameSet(memory=instance, name=build_hermes_session_name(key)))
                await self._commit_draft(EntryDraft(body=body, author="system"), tip)

    # -- one chain ---------------------------------------------------------------------------------------------------

    async def write_chain(self, chain: SessionChain) -> None:
        ledgers = [self.importer.progress[session.id] for session in chain.sessions]
        if self.conversation.branch_of and not self.copied:
            await self._restore_copies()
        reading = read_transcript(
            digest_message(row)
            for id in chain.ids
            for row in self.importer.db.iter_messages(id)
            if row.id not in self.copied
        )
        begun = any(ledger.read_upto for ledger in ledgers)
        mine = max(ledger.last_seq for ledger in ledgers)
        others = max(
            (it.last_seq for id, it in self.importer.progress.items() if id in self.conversation.ids), default=0
        )
        if others and (not begun or mine < others) and self._has_news(chain, reading):
            self._add_drafts(EntryDraft(body=Changed(change=ContextReset()), author="system", at=chain.root.started_at))
            self.generation += 1
        compressions = {compression.row: compression for compression in reading.compressions}
        starts = {compression.tail[0] for compression in reading.compressions if compression.tail}
        starts |= {compression.unread[0] for compression in reading.compressions if compression.unread}
        self.importer.tally.restored += sum(
            row > self.importer.progress[compression.session].read_upto
            for compression in reading.compressions
            for row in compression.unread
        )
        for session in chain.sessions:
            await self._write_session(session, reading, compressions, starts)
        await self._write_title(chain)

    def _has_news(self, chain: SessionChain, reading: TranscriptReading) -> bool:
        upto = {session.id: self.importer.progress[session.id].read_upto for session in chain.sessions}
        newest = max([*reading.first, *(compression.row for compression in reading.compressions)], default=0)
        return newest > max(upto.values(), default=0)

    async def _restore_copies(self) -> None:
        """Find out on a later import which rows of a branch belong to its parent. The first import committed that."""
        known = await self.store.get_session(self.session_id)
        if known.parent and not self.conversation.forked:
            await self._find_branch_point()

    async def _write_session(
        self,
        session: HermesSession,
        reading: TranscriptReading,
        compressions: dict[int, HermesCompression],
        starts: set[int],
    ) -> None:
        ledger = self.importer.progress[session.id]
        ledger.session = self.session_id
        context = ImportContext(
            agent=self.conversation.agent,
            location=self.conversation.location,
            stamp=self.conversation.stamp,
            key=self.importer.make_dedup_key(session.id),
        )
        run: list[HermesMessage] = []
        for row in self.importer.db.iter_messages(session.id):
            self.importer.advance(1)
            if self._is_skipped(row, reading, ledger):
                continue
            if row.id in compressions:
                await self._write_turns(run, starts, context, session)
                run = []
                await self._write_compression(compressions[row.id], row, context, session)
                continue
            if row.role == "user" and run and run[-1].role != "user" and len(run) >= BATCH_ENTRIES:
                await self._write_turns(
                    run, starts, context, session
                )  # commit whole turns, so that a long session needs little memory
                run = []
            run.append(row)
        await self._write_turns(run, starts, context, session)
        await self._write_usage(session, ledger)
        await self._flush_batch(session)

    def _is_skipped(self, row: HermesMessage, reading: TranscriptReading, ledger: ImportProgress) -> bool:
        """Whether a row needs no entry; count the reason."""
        tally = self.importer.tally
        if (
            row.id <= ledger.read_upto
            and row.role != META_ROLE
            and row.id not in reading.copies
            and row.id not in self.copied
        ):
            tally.known += 1
        elif row.role == META_ROLE:
            tally.marks += 1
        elif row.id in reading.copies or row.id in self.copied:
            tally.copies += 1
        else:
            return False
        return True

    async def _write_turns(
        self, rows: list[HermesMessage], starts: set[int], context: ImportContext, session: HermesSession
    ) -> None:
        for piece in split_turns(rows, starts=starts):
            seq = self._get_next_seq()
            made, op = make_drafts(
                piece,
                context,
                seq=seq,
                compression=self.compression,
                generation=self.generation,
                overheard=self.overheard,
            )
            self._add_drafts(*made)
            if not op:
                self.overheard += range(seq, seq + len(made))
            else:
                self.last_turn = op
                self.overheard = self.overheard if piece.undone else []
                self.operation_by_row.update(dict.fromkeys((row.id for row in piece.rows), op))
            if piece.undone:
                self.generation += 1
                self.importer.tally.undone += len(piece.rows)
            self.importer.tally.messages += len(piece.rows)
            self.importer.progress[session.id].read_upto = max(row.id for row in piece.rows)
            if len(self.batch) >= BATCH_ENTRIES or self.batch_bytes >= BATCH_BYTES:
                await self._flush_batch(session)

    async def _write_compression(
        self, compression: HermesCompression, row: HermesMessage, context: ImportContext, session: HermesSession
    ) -> None:
        self.importer.tally.summaries += 1
        if self.conversation.forked and not compression.covers:
            # it summarises what the branch has from its parent word for word
            self._add_drafts(make_hidden_draft(row, context, about="imported: summary"))
        else:
            covers = await self._find_covered_upto(compression, row)
            text = extract_text(row.content) + await self._format_head(compression)
            body = Compressed(
                summary=strip_surrogates(text)[0],
                covers=covers,
                based_on=self.compression,
                generation=self.generation,
                trigger="import",
                messages=len(compression.covers),
            )
            began = Began(type="compression", consumer=COMPRESSION, generation=self.generation, trigger="import")
            self.compression = self._get_next_seq()
            self._add_drafts(
                EntryDraft(body=began, author="system", at=row.timestamp),
                EntryDraft(body=body, author="system", op=OWN_OPERATION, dedup=context.key(row.id), at=row.timestamp),
                EntryDraft(body=Ended(), author="system", op=OWN_OPERATION, at=row.timestamp),
            )
            self.generation += 1
        self.importer.progress[session.id].read_upto = row.id
        await self._flush_batch(session)

    async def _find_covered_upto(self, compression: HermesCompression, row: HermesMessage) -> int:
        """Return the last turn that a summary covers: none of its rows is after the summary."""
        last = await self._find_operation(compression.covers[-1]) if compression.covers else 0
        if last and compression.tail and await self._find_operation(compression.tail[0]) == last:
            before = await self.store.list_operations(
                self.session_id, types=("turn",), before=last, newest_first=True, limit=1
            )
            last = before[0].op if before else 0
        if last or self.last_turn:
            return last or (0 if compression.tail else self.last_turn)
        # The summarised rows are gone in the source, so an empty turn stands for them.
        op = self._get_next_seq()
        self._add_drafts(
            EntryDraft(body=Began(type="turn", consumer=TURN, trigger="import"), author="system", at=row.timestamp),
            EntryDraft(body=Ended(), author="system", op=OWN_OPERATION, at=row.timestamp),
        )
        self.last_turn = op
        return op

    async def _find_operation(self, row: int) -> int:
        if row in self.operation_by_row:
            return self.operation_by_row[row]
        for session in self.conversation.ids:
            placed = await self.store.find_entry_place(self.importer.make_dedup_key(session)(row))
            if placed is not None and placed[0] == self.session_id:
                return placed[2] or await self._find_taking_turn(placed[1])
        return 0

    async def _find_taking_turn(self, seq: int) -> int:
        """Return the turn that consumed a message: the first that began after it."""
        found = await self.store.list_operations(self.session_id, types=("turn",), after=seq, limit=1)
        return found[0].op if found else 0

    async def _format_head(self, compression: HermesCompression) -> str:
        """Add the messages that a compression kept at the beginning to the summary, word for word."""
        lines = []
        for id in compression.head:
            row = self.importer.db.find_message(id)
            if row is not None and row.content:
                lines.append(f"{row.role}: {extract_text(row.content)}")
        return "\n\n[The beginning, word for word:]\n" + "\n".join(lines) if lines else ""

    async def _write_usage(self, session: HermesSession, ledger: ImportProgress) -> None:
        """Record what a session cost, as far as it is not recorded yet."""
        total = (session.input_tokens, session.cache_read_tokens, session.output_tokens, session.usd)
        more = tuple(max(0, new - old) for new, old in zip(total, ledger.counted_usage, strict=True))
        if not any(more):
            return
        usage = ModelUsage(
            input=int(more[0]) + int(more[1]), cached=int(more[1]), output=int(more[2]), usd=float(more[3])
        )
        at = session.ended_at or session.started_at
        self._add_drafts(
            EntryDraft(body=Began(type="job", consumer="import", trigger="import"), author="system", at=at),
            EntryDraft(
                body=Ended(usage=usage, reason=_make_usage_reason(session.id)), author="system", op=OWN_OPERATION, at=at
            ),
        )
        ledger.counted_usage = total
        self.dirty = True

    async def _write_title(self, chain: SessionChain) -> None:
        """Set the title once. A title that was changed or erased here since is kept."""
        title = strip_surrogates(chain.title)[0]
        digest = hashlib.blake2b(title.encode(), digest_size=8).hexdigest()
        key = f"title:{SOURCE_NAME}:{self.session_id}:{digest}"
        if title and await self.store.find_entry_place(key) is None:
            change = Changed(change=SessionTitled(title=title))
            await self._commit_draft(
                EntryDraft(body=change, author="system", at=chain.root.started_at, dedup=key), chain.tip
            )

    # -- committing --------------------------------------------------------------------------------------------------

    def _get_next_seq(self) -> int:
        return self.seq + len(self.batch)

    def _add_drafts(self, *made: EntryDraft) -> None:
        self.batch += made
        self.batch_bytes += sum(len(getattr(draft.body, "text", "")) for draft in made)

    async def _commit_draft(self, draft: EntryDraft, session: HermesSession) -> None:
        self._add_drafts(draft)
        await self._flush_batch(session)

    async def _flush_batch(self, session: HermesSession) -> None:
        """Commit the prepared entries together with the progress in their source."""
        ledger = self.importer.progress[session.id]
        if not self.batch and not self.dirty:
            return
        self.seq += len(self.batch)
        ledger.last_seq = self.seq - 1
        key, versions = self.importer.record_key(session.id), self.importer.versions
        read = StateWrite(
            namespace=StateNamespace.HERMES_IMPORT, key=key, value=ledger.encode(), version=versions[session.id]
        )
        change = Change(
            step=Step.NOTE,
            session=self.session_id,
            at=session.started_at,
            entries=tuple(self.batch),
            state_writes=(read,),
            seen=self.seq - 1 - len(self.batch),
        )
        # A Conflict ends the import with a report, because another import of the same home is running.
        await self.store.commit(change)
        record = await self.store.get_state_record(StateNamespace.HERMES_IMPORT, key)
        versions[session.id] = 0 if record is None else record.version
        self.batch, self.batch_bytes, self.dirty = [], 0, False
