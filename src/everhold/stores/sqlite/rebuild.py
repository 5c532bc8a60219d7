"""Rolls a copy of the store back to an earlier pos. It works on copies only, never on the live file.

The code that writes derived rows also rebuilds them from the entries. Two things cannot be derived: the cursors, which
are kept but limited to the end of the log, and the seqs of removed entries. Those seqs are never used again, because
remote services know items by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import apsw
import msgspec

from everhold.core.consumers import TURN
from everhold.core.entries import (
    AddressBound,
    Changed,
    Ended,
    EntryBody,
    EntryDraft,
    EntryKind,
    Erased,
    Notified,
    Returned,
    Thought,
    decode_body,
)
from everhold.core.turn import UNKNOWN_OUTCOME_TEXT
from everhold.errors import Conflict, LeaseLost, NotFound
from everhold.ports.clock import RandomSource
from everhold.ports.store import Change, InFlightBatch, Step, Wakeup
from everhold.stores.sqlite import bindings, commit, cursors, operations, sessions
from everhold.stores.sqlite.connect import fetch_rows

_DERIVED_TABLES: Final = ("pending", "operations", "bindings")
_batches: Final = msgspec.json.Decoder(InFlightBatch)


class RollbackResult(NamedTuple):
    """What a rollback removed."""

    kept_upto_pos: int
    entries: int
    sessions: int
    stopped_operations: int
    """Operations that were running at that pos. They are ended, because their further effects are unknown."""


def find_pos_at(db: apsw.Connection, moment: float) -> int:
    """The last pos that was written by `moment`, which is the one before the first later entry."""
    after = db.execute("select min(pos) from entries where at > ?", (moment,)).get
    if after is None:
        return int(db.execute("select max(pos) from entries").get or 0)
    return int(after) - 1


def roll_back(db: apsw.Connection, pos: int, *, at: float, chance: RandomSource) -> RollbackResult:
    """Remove everything after `pos` in one transaction. If `pos` lies inside a commit, that commit stays complete."""
    cur = db.cursor()
    db.execute("begin immediate")
    try:
        done = _roll_back(cur, _find_commit_end(cur, pos), at=at, chance=chance)
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise
    return done


def skip_used_seqs(db: apsw.Connection, lasts: Mapping[str, int], *, at: float, chance: RandomSource, why: str) -> int:
    """Continue sessions after the seqs that they had reached in another copy. Return the number of skipped seqs.

    The skipped seqs become erased entries, followed by an `erased` entry with the reason. So there is no gap, nothing
    to deliver, and no key is used twice.
    """
    cur = db.cursor()
    count = 0
    db.execute("begin immediate")
    try:
        for session, last in sorted(lasts.items()):
            row = cur.execute("select next_seq from sessions where id = ?", (session,)).get
            if row is None or row > last:
                continue
            seqs = tuple(range(row, last + 1))
            blank = EntryDraft(body=Notified(text="", about="restored"), author="system")
            filling = Change(step=Step.ERASE, session=session, at=at, entries=(blank,) * len(seqs))
            commit.apply_change(cur, filling, chance, now=at)
            gone = EntryDraft(body=Erased(seqs=seqs, by="system", why=why), author="system")
            commit.apply_change(
                cur, Change(step=Step.ERASE, session=session, at=at, entries=(gone,), erase=seqs), chance, now=at
            )
            count += len(seqs)
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise
    return count


def _find_commit_end(cur: apsw.Cursor, pos: int) -> int:
    """The end of the commit that contains `pos`: consecutive entries of one session with the same time."""
    here = cur.execute("select session, at from entries where pos = ?", (pos,)).get
    while here is not None and cur.execute("select session, at from entries where pos = ?", (pos + 1,)).get == here:
        pos += 1
    return pos


def _roll_back(cur: apsw.Cursor, pos: int, *, at: float, chance: RandomSource) -> RollbackResult:
    removed_count = cur.execute("select count(*) from entries where pos > ?", (pos,)).get
    if not removed_count:
        return RollbackResult(kept_upto_pos=pos, entries=0, sessions=0, stopped_operations=0)
    before = cur.execute("select count(*) from sessions").get
    erasures = _list_erasures(cur, pos)
    cur.execute("delete from sessions where (select min(pos) from entries where session = sessions.id) > ?", (pos,))
    cur.execute("delete from entries where pos > ?", (pos,))
    cur.execute(
        "update sessions set next_seq = 1 + coalesce((select max(seq) from entries where session = sessions.id), 0)"
    )
    for table in ("cursors", "dead_letters", "receipts"):
        cur.execute(f"delete from {table} where session not in (select id from sessions)")
    for table in ("dead_letters", "receipts"):
        cur.execute(f"delete from {table} where seq >= (select next_seq from sessions where id = session)")
    rebuild_derived_rows(cur)
    fit_cursors(cur, at=at)
    stopped = _stop_running(cur, at=at, chance=chance)
    _repeat_erasures(cur, erasures, at=at, chance=chance)
    left = cur.execute("select count(*) from sessions").get
    return RollbackResult(kept_upto_pos=pos, entries=removed_count, sessions=before - left, stopped_operations=stopped)


def _list_erasures(cur: apsw.Cursor, pos: int) -> list[tuple[str, Erased]]:
    """What was erased after `pos`, by session. It stays erased, because the bodies are gone."""
    sql = "select session, body from entries where kind = ? and pos > ? and body is not null order by pos"
    found = [
        (session, decode_body(EntryKind.ERASED, text))
        for session, text in fetch_rows(cur, sql, (EntryKind.ERASED, pos))
    ]
    return [(session, body) for session, body in found if isinstance(body, Erased)]


def _repeat_erasures(cur: apsw.Cursor, erasures: list[tuple[str, Erased]], *, at: float, chance: RandomSource) -> None:
    """Say again in each log what was erased in it, because the entries that said so were removed."""
    for session, body in erasures:
        empty = {
            seq for (seq,) in fetch_rows(cur, "select seq from entries where session = ? and body is null", (session,))
        }
        seqs = tuple(seq for seq in body.seqs if seq in empty)
        if seqs:
            said = EntryDraft(body=msgspec.structs.replace(body, seqs=seqs), author="system")
            change = Change(step=Step.ERASE, session=session, at=at, entries=(said,), erase=seqs)
            commit.apply_change(cur, change, chance, now=at)


def rebuild_derived_rows(cur: apsw.Cursor) -> None:
    """Delete all derived rows and write them again from the entries."""
    kept = {
        (session, op): (fence, attempts, paused)
        for session, op, fence, attempts, paused in fetch_rows(
            cur, "select session, op, fence, attempts, paused from operations"
        )
    }
    for table in _DERIVED_TABLES:
        cur.execute(f"delete from {table}")
    cur.execute("update sessions set generation = 0, erasures = 0, title = '', choices = '{}', names = '{}'")
    for session, address, kind, text in fetch_rows(
        cur,
        "select s.id, s.address, e.kind, e.body from sessions s left join entries e on e.session = s.id and e.seq = 1 "
        "where s.parent = '' order by s.created, s.id",
    ):
        if bindings.resolve_address(cur, address) is None and not _is_address_bound(kind, text):
            bindings.bind_new_session(cur, address, session)
    incomplete = {
        session
        for (session,) in fetch_rows(
            cur,
            "select distinct session from entries where body is null "
            "and kind in ('began', 'took', 'ended', 'compressed', 'changed')",
        )
    }
    reading = cur.connection.cursor()
    for session, seq, kind, op, text in reading.execute(
        "select session, seq, kind, op, body from entries where body is not null or kind = 'heard' order by pos"
    ):
        if text is None:
            # An operation may have taken the message before it was erased. If none did, its erasure clears the row.
            cur.execute("insert into pending(session, seq, asks) values (?, ?, 0)", (session, seq))
            continue
        try:
            _derive_entry(cur, session, seq, op, decode_body(EntryKind(kind), text))
        except (Conflict, LeaseLost, NotFound):
            if session not in incomplete:
                raise  # in an incomplete session, an entry may depend on an erased one, so errors are expected
    for (session, op), state in kept.items():
        cur.execute(
            "update operations set fence = ?, attempts = ?, paused = ? where session = ? and op = ?",
            (*state, session, op),
        )


def _is_address_bound(kind: str | None, text: str | None) -> bool:
    """Return whether a session's first entry binds its address. Then opening the session did not bind it."""
    if kind != EntryKind.CHANGED or text is None:
        return False
    body = decode_body(EntryKind.CHANGED, text)
    return isinstance(body, Changed) and isinstance(body.change, AddressBound)


def _derive_entry(cur: apsw.Cursor, session: str, seq: int, op: int | None, body: EntryBody) -> None:
    if isinstance(body, Erased):
        operations.clear_pending(cur, session, body.seqs)
        operations.hide_operations(cur, session, seq, body.compressions)
        sessions.raise_generation(cur, session, by=1, erasures=1)
        return
    raised = commit.apply_derived_rows(cur, Change(step=Step.NOTE, session=session, at=0.0), seq, op, body)
    if raised:
        sessions.raise_generation(cur, session, by=raised, erasures=0)


def fit_cursors(cur: apsw.Cursor, *, at: float) -> None:
    """Limit cursors to the end of the log, and drop batches in flight that reach beyond it."""
    cur.execute(
        "update cursors set owner = '', "
        "processed_seq = min(processed_seq, (select next_seq - 1 from sessions where id = cursors.session)), "
        "start_seq = min(start_seq, (select next_seq - 1 from sessions where id = cursors.session))"
    )
    sql = "select c.session, c.consumer, c.in_flight, s.next_seq from cursors c join sessions s on s.id = c.session"
    for session, consumer, text, next_seq in fetch_rows(cur, f"{sql} where c.in_flight is not null"):
        batch = _batches.decode(text)
        if batch.upto >= next_seq or any(item.seq >= next_seq for item in batch.items):
            cur.execute(
                "update cursors set in_flight = null, attempts = 0, error = '' where session = ? and consumer = ?",
                (session, consumer),
            )
    for (session,) in fetch_rows(cur, "select distinct session from pending where asks"):
        last = cur.execute("select next_seq - 1 from sessions where id = ?", (session,)).get
        cursors.apply_wakeups(cur, session, (Wakeup(consumer=TURN),), before=last, at=at)


def _stop_running(cur: apsw.Cursor, *, at: float, chance: RandomSource) -> int:
    running = fetch_rows(cur, "select session, op, type from operations where state = 'running' order by session, op")
    for session, op, type in running:
        ended = EntryDraft(
            body=Ended(outcome="interrupted", reason="the store was rolled back to this point"), author="system", op=op
        )
        drafts = (*_close_open_calls(cur, session, op), ended) if type == "turn" else (ended,)
        commit.apply_change(cur, Change(step=Step.END, session=session, at=at, op=op, entries=drafts), chance, now=at)
    return len(running)


def _close_open_calls(cur: apsw.Cursor, session: str, op: int) -> list[EntryDraft]:
    """Return a result with unknown outcome for every call without one, because every call needs a result."""
    sql = "select kind, body from entries where session = ? and op = ? and body is not null order by seq"
    tools: dict[str, str] = {}
    for kind, text in fetch_rows(cur, sql, (session, op)):
        match decode_body(EntryKind(kind), text):
            case Thought(calls=calls):
                tools = {call.id: call.tool for call in calls}
            case Returned(call=call):
                tools.pop(call, None)
    return [
        EntryDraft(
            body=Returned(call=call, text=UNKNOWN_OUTCOME_TEXT, error=True, unknown=True), author=f"tool:{tool}", op=op
        )
        for call, tool in tools.items()
    ]
