"""Adds to a copy of the store what another file has after it: the entries whose digests are right, and their files.

The other file may be damaged. An entry counts only if its digest matches. An entry that cannot be read leaves an erased
entry in its place, so that the numbers of the others stay as they were. It works on copies only, never on a live file.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from everhold.core.consumers import TURN
from everhold.core.entries import EntryDraft, EntryKind, Erased, compute_entry_digest, decode_body
from everhold.ports.clock import RandomSource
from everhold.ports.store import Change, Step, Wakeup
from everhold.stores.sqlite import commit, cursors, rebuild
from everhold.stores.sqlite.connect import fetch_rows

_COLUMNS: Final = "pos, session, seq, kind, op, author, at, version, body, salt, digest, dedup"
_SESSION_COLUMNS: Final = "id, agent, address, created, parent, parent_at"
_MERGED_TABLES: Final = ("cursors", "receipts", "dead_letters", "spending", "people_log", "peers")
"""What does not follow from the entries, and only grows. Newer rows replace older ones with the same key."""
_REPLACED_TABLES: Final = ("state_records", "state_floor", "persons", "identities")
"""What does not follow from the entries, and also shrinks. The newer table replaces the older one."""
LOST_TEXT: Final = "could not be read from the damaged store"
MAX_NAMED: Final = 20


class SalvageResult(NamedTuple):
    entries: int
    """How many entries were added."""
    upto_pos: int
    left_out: list[str]
    """What could not be added, as sentences."""


class _SourceRow(NamedTuple):
    pos: int
    session: str
    seq: int
    kind: str
    op: int | None
    author: str
    at: float
    version: int
    body: str | None
    salt: bytes | None
    digest: bytes
    dedup: str | None


def add_newer_entries(
    target: apsw.Connection, sources: Sequence[tuple[apsw.Connection, int]], *, at: float, chance: RandomSource
) -> SalvageResult:
    """Add to `target` what the sources have after it, one after the other, in one transaction. The number beside a
    source is the pos at which it ended."""
    cur = target.cursor()
    target.execute("begin immediate")
    try:
        found = _EntrySalvage(cur, at=at, chance=chance).run(sources)
        target.execute("commit")
    except BaseException:
        if target.in_transaction:
            target.execute("rollback")
        raise
    return found


class _EntrySalvage:
    source: apsw.Connection

    def __init__(self, cur: apsw.Cursor, *, at: float, chance: RandomSource) -> None:
        self.cur = cur
        self.at = at
        self.chance = chance
        self.left_out: list[str] = []
        self.free_positions: list[int] = []
        """Positions of entries that cannot be read, or were never used."""
        self.gaps: dict[str, list[int]] = defaultdict(list)

    def run(self, sources: Sequence[tuple[apsw.Connection, int]]) -> SalvageResult:
        added = sum(self._add_source(source, last_pos) for source, last_pos in sources)
        if added:
            rebuild.rebuild_derived_rows(self.cur)
            for session, lost in self.gaps.items():
                self._record_gap(session, tuple(lost))
            rebuild.fit_cursors(self.cur, at=self.at)
            self._wake_running()
        upto: int = self.cur.execute("select max(pos) from entries").get or 0
        return SalvageResult(added, upto, self.left_out)

    def _add_source(self, source: apsw.Connection, last_pos: int) -> int:
        """Add what one source has after the copy. Return the number of entries."""
        self.source = source
        self.free_positions = []
        base_pos: int = self.cur.execute("select max(pos) from entries").get or 0
        rows = self._read_rows(base_pos, last_pos)
        by_session: dict[str, list[_SourceRow]] = defaultdict(list)
        for row in rows:
            by_session[row.session].append(row)
        added = 0
        for session in sorted(by_session):
            count, lost = self._add_session(session, sorted(by_session[session], key=lambda row: row.seq))
            added += count
            if lost:
                self.gaps[session] += lost
        if added:
            self._copy_blobs()
            self._replace_tables()
            self._apply_erasures(base_pos)
        return added

    def _read_rows(self, base_pos: int, last_pos: int) -> list[_SourceRow]:
        """Read the entries one by one, because a damaged page hides only those that are on it."""
        rows: list[_SourceRow] = []
        unreadable = wrong = 0
        reading = self.source.cursor()
        for pos in range(base_pos + 1, last_pos + 1):
            try:
                found = fetch_rows(reading, f"select {_COLUMNS} from entries where pos = ?", (pos,))
            except (apsw.Error, UnicodeDecodeError):
                unreadable += 1
                self.free_positions.append(pos)
                continue
            if not found:
                self.free_positions.append(pos)
            elif isinstance(found[0][1], str) and isinstance(found[0][2], int) and _is_right(_SourceRow(*found[0])):
                rows.append(_SourceRow(*found[0]))
            else:
                wrong += 1
                self.free_positions.append(pos)
        if unreadable:
            self.left_out.append(f"{unreadable} entries after pos {base_pos} cannot be read")
        if wrong:
            self.left_out.append(f"{wrong} entries after pos {base_pos} are not what was written: wrong digests")
        return rows

    def _add_session(self, session: str, rows: list[_SourceRow]) -> tuple[int, list[int]]:
        """Add the entries of a session. Return their number, and the seqs whose entries are lost."""
        next_seq = self._open_session(session)
        if next_seq is None:
            self.left_out.append(f"session {session}: {len(rows)} entries, because its own row cannot be read")
            return 0, []
        added, lost, last_pos = 0, list[int](), 0
        for row in rows:
            if row.seq < next_seq:
                continue
            for seq in range(next_seq, row.seq):
                if (pos := self._take_free_position(last_pos, row.pos)) is None:
                    self.left_out.append(f"session {session}: entries from {seq} on, because their order is unknown")
                    return added, lost
                self._insert(_build_lost_row(pos, session, seq, row.at))
                lost.append(seq)
                last_pos = pos
            self._insert(row)
            added, next_seq, last_pos = added + 1, row.seq + 1, row.pos
        self.cur.execute("update sessions set next_seq = ? where id = ?", (next_seq, session))
        if lost:
            named = ", ".join(map(str, lost[:MAX_NAMED]))
            self.left_out.append(f"session {session}: entries {named}{' and more' if len(lost) > MAX_NAMED else ''}")
        return added, lost

    def _open_session(self, session: str) -> int | None:
        """Return the next seq of a session. Create it if it is newer than the copy."""
        known: int | None = self.cur.execute("select next_seq from sessions where id = ?", (session,)).get
        if known is not None:
            return known
        try:
            found = self.source.execute(f"select {_SESSION_COLUMNS} from sessions where id = ?", (session,)).fetchall()
        except (apsw.Error, UnicodeDecodeError):
            return None
        if not found:
            return None
        self.cur.execute(f"insert into sessions({_SESSION_COLUMNS}) values (?, ?, ?, ?, ?, ?)", found[0])
        return 1

    def _take_free_position(self, after: int, before: int) -> int | None:
        place = bisect_right(self.free_positions, after)
        if place < len(self.free_positions) and self.free_positions[place] < before:
            return self.free_positions.pop(place)
        return None

    def _insert(self, row: _SourceRow) -> None:
        try:
            self.cur.execute(f"insert into entries({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        except apsw.ConstraintError:  # another entry has its key; the text stays, the key is not needed twice
            self.cur.execute(
                f"insert into entries({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row._replace(dedup=None)
            )

    def _copy_blobs(self) -> None:
        missing = 0
        for digest in self._list_blobs():
            if self.cur.execute("select 1 from blobs where digest = ?", (digest,)).get is not None:
                continue
            try:
                data = self.source.execute("select data from blobs where digest = ?", (digest,)).get
            except apsw.Error:
                data = None
            if isinstance(data, bytes) and hashlib.sha256(data).hexdigest() == digest:
                self.cur.execute("insert into blobs(digest, data) values (?, ?)", (digest, data))
            else:
                missing += 1
        if missing:
            self.left_out.append(f"{missing} files")

    def _list_blobs(self) -> Iterator[str]:
        try:
            for (digest,) in self.source.execute("select digest from blobs"):
                yield digest
        except (apsw.Error, UnicodeDecodeError):
            self.left_out.append("some files, because their list cannot be read completely")

    def _replace_tables(self) -> None:
        for table in (*_MERGED_TABLES, *_REPLACED_TABLES):
            try:
                rows = fetch_rows(self.source.cursor(), f"select * from {table}")
            except (apsw.Error, UnicodeDecodeError):
                self.left_out.append(
                    f"{table}: cannot be read completely, so it is as in the copy{_EFFECTS.get(table, '')}"
                )
                continue
            if table in _REPLACED_TABLES:
                self.cur.execute(f"delete from {table}")
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self.cur.executemany(f"insert or replace into {table} values ({marks})", rows)
        for table in ("cursors", "receipts", "dead_letters"):
            self.cur.execute(f"delete from {table} where session not in (select id from sessions)")
        for table in ("receipts", "dead_letters"):
            self.cur.execute(f"delete from {table} where seq >= (select next_seq from sessions where id = session)")

    def _apply_erasures(self, base_pos: int) -> None:
        """Erase in the copy what was erased after it was made."""
        sql = "select session, body from entries where kind = ? and pos > ? and body is not null order by pos"
        for session, text in fetch_rows(self.cur, sql, (EntryKind.ERASED, base_pos)):
            body = decode_body(EntryKind.ERASED, text)
            assert isinstance(body, Erased)
            self.cur.executemany(
                "update entries set body = null, salt = null where session = ? and seq = ?",
                [(session, seq) for seq in body.seqs],
            )

    def _record_gap(self, session: str, seqs: tuple[int, ...]) -> None:
        gone = EntryDraft(body=Erased(seqs=seqs, by="system", why=LOST_TEXT), author="system")
        change = Change(step=Step.ERASE, session=session, at=self.at, entries=(gone,), erase=seqs)
        commit.apply_change(self.cur, change, self.chance, now=self.at)

    def _wake_running(self) -> None:
        """Make the turns due that were running, because the cursors may be older."""
        sql = "select distinct o.session, s.next_seq - 1 from operations o join sessions s on s.id = o.session "
        for session, last in fetch_rows(self.cur, f"{sql} where o.state = 'running' and o.consumer = '{TURN}'"):
            cursors.apply_wakeups(self.cur, session, (Wakeup(consumer=TURN),), before=last, at=self.at)


_EFFECTS: Final = {
    "cursors": "; what was delivered since then may be delivered again",
    "receipts": "; what was delivered since then may be delivered again",
}


def _is_right(row: _SourceRow) -> bool:
    """Return whether an entry is what was written. Of an erased one nothing can be checked, and nothing is left."""
    if row.kind not in set(EntryKind):
        return False
    if row.body is None or row.salt is None:
        return row.body is None and row.salt is None
    try:
        expected = compute_entry_digest(
            salt=row.salt,
            session=row.session,
            seq=row.seq,
            kind=row.kind,
            op=row.op,
            author=row.author,
            at=row.at,
            body=row.body,
        )
        return expected == row.digest and decode_body(EntryKind(row.kind), row.body) is not None
    except (TypeError, ValueError, AttributeError, msgspec.MsgspecError):
        return False


def _build_lost_row(pos: int, session: str, seq: int, at: float) -> _SourceRow:
    """An erased entry in the place of one that is lost. It may have been the beginning of an operation, and an erased
    beginning is what makes the rest of that operation readable without it."""
    digest: Any = bytes(32)
    return _SourceRow(pos, session, seq, EntryKind.BEGAN, None, "system", at, 1, None, None, digest, None)
