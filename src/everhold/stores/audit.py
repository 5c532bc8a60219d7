"""Audits a database in one snapshot: the log, the derived rows, cursors, receipts, dead letters, recall and budgets.

Each log is read once, entry by entry, so memory does not grow with the store. What the promises mean is decided in
`core`; this module reads the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from everhold.core import consumers
from everhold.core.approval_audit import RuleHistory
from everhold.core.approvals import ApprovalRecord, decode_approval, decode_rule
from everhold.core.audit import (
    AuditCounts,
    AuditFinding,
    LogAudit,
    ReportProgress,
    StoreAudit,
    find_duplicate_openings,
)
from everhold.core.cost_audit import CostAudit
from everhold.core.delivery_audit import AuditedBackfill, AuditedCursor, DeliveryAudit, SettledItem
from everhold.core.entries import Began, Entry, EntryKind, Heard, Noted, Said, Thought, decode_body
from everhold.core.recall_audit import CitedStamp, PeopleHistory, find_leaks
from everhold.core.recall_blobs import read_record
from everhold.ports.store import InFlightBatch, StateNamespace
from everhold.stores import verify
from everhold.stores.snapshot import SnapshotReader

PROGRESS_ENTRIES: Final = 2_000
"""The number of entries between two reports of the progress."""
MAX_CITED: Final = 50_000
"""How many cited entries are kept in memory."""
_AUDIENCE_KINDS: Final = frozenset({EntryKind.HEARD, EntryKind.SAID, EntryKind.NOTED})
_DEAD_LETTER_STATES: Final = "('dead', 'replaying', 'replayed', 'dropped')"
_REPLAYED: Final = "replayed"
_batches: Final = msgspec.json.Decoder(InFlightBatch)


def audit_snapshot(reader: SnapshotReader, session: str | None, report_progress: ReportProgress) -> StoreAudit:
    """Audit one session, or the whole store. `reader` sees one snapshot."""
    return _SnapshotAuditor(reader, report_progress).run(session)


class _SnapshotAuditor:
    def __init__(self, reader: SnapshotReader, report_progress: ReportProgress) -> None:
        self.reader = reader
        self.report_progress = report_progress
        self.contradictions: list[str] = []
        self.findings: list[AuditFinding] = []
        self.checked = AuditCounts()
        self.costs = CostAudit()
        self.people = PeopleHistory(verify.list_people_events(reader))
        self._cited: dict[tuple[str, int], CitedStamp | None] = {}
        self._audiences: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._present_blobs: set[str] = set()
        self._done = 0
        self._total = 0
        self._approvals = self._list_approvals()
        self._rule_history = RuleHistory()

    def run(self, session: str | None) -> StoreAudit:
        where, values = ("", ()) if session is None else (" where id = ?", (session,))
        count = "select count(*) from entries" + ("" if session is None else " where session = ?")
        self._total = self.reader.fetch_value(count, values)
        for id, agent in self.reader.iterate_rows(f"select id, agent from sessions{where} order by id", values):
            self._audit_session(id, agent)
        self._list_dead_letters(session)
        if session is None:
            self._check_rules()
            self.findings += find_duplicate_openings(self._iter_doubly_opened())
            self.findings += self.costs.compare(
                self.reader.fetch_rows(
                    "select budget, cast(sum(tokens) as bigint), sum(usd) from spending group by budget"
                )
            )
            self.contradictions += verify.find_global_contradictions(self.reader)
        self.report_progress(self._total, self._total)
        return StoreAudit(contradictions=self.contradictions, findings=self.findings, checked=self.checked)

    def _audit_session(self, id: str, agent: str) -> None:
        rows = verify.SessionVerifier(id)
        log = LogAudit(id)
        deliveries = DeliveryAudit(id)
        self.costs.begin_session(agent)
        epochs: dict[int, int] = {}
        for row in self.reader.iterate_rows(verify.SELECT_LOG, (id,)):
            self._count_entry()
            entry = rows.add_row(row)
            if entry is None:
                log.is_cut_off = True
                continue
            log.check_entry(entry)
            deliveries.add_entry(entry)
            self.costs.add_entry(entry)
            self._check_files(entry)
            match entry.body:
                case Began(type="turn", people=epoch):
                    epochs = {entry.seq: epoch}  # only one turn runs at a time
                case Thought():
                    self._check_request_blobs(entry, entry.body)
                    if entry.body.why:
                        self._check_recall(entry, entry.body.why, agent, epochs.get(entry.op or 0, 0))
        log.check_end()
        self._rule_history += log.approvals.rules
        if not log.is_cut_off:
            log.approvals.check_records(self._approvals.pop(id, {}))
        self.contradictions += rows.finish(self.reader)
        self.findings += log.findings
        self.checked += log.count_checked()
        if not log.is_cut_off:
            self._check_choices(rows)
            if text := rows.describe_wrong_parent(self.reader):
                self.findings.append(AuditFinding(promise="P6", session=id, text=text))
            self.checked += self._check_deliveries(id, deliveries)
            self.findings += deliveries.findings

    def _list_approvals(self) -> dict[str, dict[str, ApprovalRecord]]:
        """Return the records of requests, by session."""
        found: dict[str, dict[str, ApprovalRecord]] = {}
        sql = "select key, value from state_records where namespace = ?"
        for key, value in self.reader.fetch_rows(sql, (StateNamespace.APPROVAL.value,)):
            record = decode_approval(value)
            found.setdefault(record.session, {})[key] = record
        return found

    def _check_rules(self) -> None:
        """Compare the remembered rules and their uses with the answers that made them."""
        for text, entry in self._rule_history.find_unfounded_uses():
            self.findings.append(AuditFinding(promise="P9", session=entry.session, text=text, seq=entry.seq))
        sql = "select key, value from state_records where namespace = ?"
        stored = self.reader.fetch_rows(sql, (StateNamespace.APPROVAL_RULE.value,))
        rules = {str(key): decode_rule(value) for key, value in stored}
        for text, session in self._rule_history.find_unfounded_rules(rules):
            self.findings.append(AuditFinding(promise="P9", session=session, text=text))

    def _check_choices(self, rows: verify.SessionVerifier) -> None:
        outdated, count = rows.list_outdated_choices(self.reader)
        for name in outdated:
            text = f"the setting {name!r} was changed, but another value is in force"
            self.findings.append(AuditFinding(promise="P7", session=rows.id, text=text))
        self.checked += AuditCounts(choices=count)

    def _count_entry(self) -> None:
        self._done += 1
        if self._done % PROGRESS_ENTRIES == 0:
            self.report_progress(self._done, self._total)

    def _iter_doubly_opened(self) -> Iterator[tuple[str, str, str]]:
        """Yield agent, address and id of the sessions whose address opened another one, the earliest first."""
        yield from self.reader.iterate_rows(
            "select agent, address, id from sessions where parent = '' and (agent, address) in ("
            "select agent, address from sessions where parent = '' group by agent, address having count(*) > 1) "
            "order by created, id"
        )

    # -- deliveries --------------------------------------------------------------------------------------------------

    def _check_deliveries(self, session: str, deliveries: DeliveryAudit) -> AuditCounts:
        cursors = [self._parse_cursor(row) for row in self.reader.fetch_rows(self._select_cursors(), (session,))]
        orders = (
            (memory, self._find_backfill(memory, session))
            for memory in {consumers.get_memory_name(it.consumer) for it in cursors}
            if memory
        )
        return deliveries.check(
            cursors,
            self._iter_settled(session),
            backfills={memory: order for memory, order in orders if order is not None},
            has_key=self._has_key,
        )

    def _select_cursors(self) -> str:
        start = "start_seq" if self.reader.has_start_seq else "processed_seq"
        return (
            f"select consumer, {start}, processed_seq, in_flight, due is not null or owner <> '' "
            "from cursors where session = ?"
        )

    def _parse_cursor(self, row: Any) -> AuditedCursor:
        consumer, start, processed, text, waiting = row
        try:
            batch = None if text is None else _batches.decode(text)
        except msgspec.DecodeError:
            batch = None  # reported as a contradiction
        again = batch is not None and not batch.replays
        return AuditedCursor(
            consumer=consumer,
            start_seq=start,
            processed_seq=processed,
            in_flight_upto=0 if batch is None else batch.upto,
            in_flight_items=tuple((it.seq, it.part) for it in batch.items) if batch is not None and again else (),
            is_waiting=bool(waiting),
        )

    def _iter_settled(self, session: str) -> Iterator[SettledItem]:
        for row in self.reader.iterate_rows(
            "select consumer, seq, part, in_doubt from receipts where session = ?", (session,)
        ):
            yield SettledItem(row[0], row[1], row[2], bool(row[3]))
        sql = "select consumer, seq, part, state from dead_letters where state in "
        for row in self.reader.iterate_rows(f"{sql}{_DEAD_LETTER_STATES} and session = ?", (session,)):
            # A reply that was replayed has a receipt. A memory receives nothing of what was undone before its replay.
            if row[3] != _REPLAYED or consumers.get_memory_name(row[0]):
                yield SettledItem(row[0], row[1], row[2], is_receipt=False)

    def _list_dead_letters(self, session: str | None) -> None:
        """List the dead letters that wait for a decision."""
        sql = "select consumer, session, seq, reason, in_doubt from dead_letters where state = 'dead'"
        own, values = ("", ()) if session is None else (" and session = ?", (session,))
        for consumer, id, seq, reason, in_doubt in self.reader.iterate_rows(f"{sql}{own} order by id", values):
            text = f"{consumer}: entry {seq} {'may have arrived' if in_doubt else 'given up'}: {reason}"
            promise = "P4" if consumers.get_memory_name(consumer) else "P2"
            self.findings.append(AuditFinding(promise=promise, session=id, text=text, seq=seq, level="doubt"))

    def _find_backfill(self, memory: str, session: str) -> AuditedBackfill | None:
        text = self.reader.fetch_value(
            "select value from state_records where namespace = ? and scope = '' and key = ?",
            (StateNamespace.BACKFILL.value, f"{memory}:{session}"),
        )
        if text is None:
            return None
        upto, _, after, stood = map(int, text.split(" "))
        return AuditedBackfill(after=after, upto=upto, stood=stood)

    def _has_key(self, key: str) -> bool:
        return self.reader.fetch_value("select 1 from entries where dedup = ?", (key,)) is not None

    # -- blobs ------------------------------------------------------------------------------------------------------

    def _check_files(self, entry: Entry) -> None:
        """Check that the files of a message are there."""
        files = entry.body.attachments if isinstance(entry.body, Heard | Said) else ()
        for file in files:
            self._check_blob(entry, file.blob, f"the file {file.name or file.blob!r}")

    def _check_request_blobs(self, entry: Entry, thought: Thought) -> None:
        """Check that what a thought was asked with is there, so that its request can be shown."""
        for digest, what in ((thought.prompt, "the prompt"), (thought.tools, "the list of tools")):
            if digest and digest not in self._present_blobs and self._check_blob(entry, digest, what):
                if len(self._present_blobs) >= MAX_CITED:
                    self._present_blobs.clear()
                self._present_blobs.add(digest)

    def _check_blob(self, entry: Entry, digest: str, what: str) -> bool:
        """Return whether a blob is there. An erasure also takes blobs that other entries have."""
        if self.reader.fetch_value("select 1 from blobs where digest = ?", (digest,)) is not None:
            return True
        erased = self.reader.fetch_value("select 1 from entries where kind = 'erased' limit 1") is not None
        text = f"{what} of entry {entry.seq} is missing"
        level = "doubt" if erased else "broken"
        self.findings.append(AuditFinding(promise="P8", session=entry.session, text=text, seq=entry.seq, level=level))
        return False

    # -- recall ------------------------------------------------------------------------------------------------------

    def _check_recall(self, thought: Entry, why: str, agent: str, epoch: int) -> None:
        data = self.reader.fetch_value("select data from blobs where digest = ?", (why,))
        if data is None:
            return  # erased together with an entry that it repeated
        try:
            record = read_record(data)
        except msgspec.DecodeError as error:
            self._add_leak(thought, f"the recall record {why} cannot be decoded: {error}", promise="P8")
            return
        lines, compared = find_leaks(
            record,
            session=thought.session,
            agent=agent,
            cite=self._cite,
            list_directories=lambda: self.people.list_directories(epoch),
        )
        for line in lines:
            self._add_leak(thought, line)
        self.checked += AuditCounts(recalled=compared)

    def _add_leak(self, thought: Entry, text: str, *, promise: str = "P5") -> None:
        self.findings.append(AuditFinding(promise=promise, session=thought.session, text=text, seq=thought.seq))

    def _cite(self, session: str, seq: int) -> CitedStamp | None:
        place = (session, seq)
        if place not in self._cited:
            if len(self._cited) >= MAX_CITED:
                self._cited.clear()
                self._audiences.clear()
            self._cited[place] = self._read_stamp(session, seq)
        return self._cited[place]

    def _read_stamp(self, session: str, seq: int) -> CitedStamp | None:
        row = self.reader.fetch_value(
            "select s.agent, e.kind, e.at, e.body from entries e join sessions s on s.id = e.session "
            "where e.session = ? and e.seq = ?",
            (session, seq),
        )
        if row is None or row[3] is None or row[1] not in _AUDIENCE_KINDS:
            return None
        try:
            body = decode_body(EntryKind(row[1]), row[3])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # reported as a contradiction
        assert isinstance(body, Heard | Said | Noted)
        audience = self._audiences.setdefault(body.stamp.audience, body.stamp.audience)
        return CitedStamp(row[0], audience, row[2])
