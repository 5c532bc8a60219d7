"""The tables of operations and pending messages: begin, end, release, undo."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import apsw

from everhold.core.entries import RELEASING_OUTCOMES, Began, EntryKind, Heard, OperationsUndone, Took, decode_body
from everhold.errors import Conflict, LeaseLost, NotFound
from everhold.ports.store import Claim, Operation
from everhold.stores.sqlite.connect import fetch_rows

_INSERT_PENDING: Final = "insert into pending(session, seq, asks) values (?, ?, ?)"
_DELETE_PENDING: Final = "delete from pending where session = ? and seq = ?"


# -- conditions --------------------------------------------------------------------------------------------------------


def check_operation(cur: apsw.Cursor, session: str, op: int, claim: Claim | None) -> None:
    """Raise LeaseLost if an operation has ended, or runs under another fence."""
    row = cur.execute("select state, fence from operations where session = ? and op = ?", (session, op)).get
    if row is None or row[0] != "running":
        raise LeaseLost(f"session {session}: operation {op} is not running")
    if claim is not None and row[1] != claim.fence:
        raise LeaseLost(f"session {session}: operation {op} is under fence {row[1]}, not {claim.fence}")


# -- writing -----------------------------------------------------------------------------------------------------------


def add_pending(cur: apsw.Cursor, session: str, seq: int, heard: Heard) -> None:
    cur.execute(_INSERT_PENDING, (session, seq, heard.asks))


def add_pending_messages(cur: apsw.Cursor, heard: Sequence[tuple[str, int, bool]]) -> None:
    """Add pending messages of several sessions: session, seq, and whether the message asks for an answer."""
    cur.executemany(_INSERT_PENDING, heard)


def begin_operation(cur: apsw.Cursor, session: str, seq: int, began: Began, *, fence: int) -> None:
    consume_pending(cur, session, began.takes)
    try:
        cur.execute(
            "insert into operations(session, op, type, state, first, consumer, fence, attempts, blocking, compression) "
            "values (?, ?, ?, 'running', ?, ?, ?, 1, ?, ?)",
            (
                session,
                seq,
                began.type,
                min((*began.takes, seq)),
                began.consumer,
                fence,
                began.blocking,
                began.compression,
            ),
        )
    except apsw.ConstraintError as error:
        raise Conflict(f"session {session}: no {began.type} can begin while another operation runs") from error


def consume_pending(cur: apsw.Cursor, session: str, takes: Sequence[int]) -> None:
    for seq in takes:
        cur.execute(_DELETE_PENDING, (session, seq))
        if cur.connection.changes() != 1:
            raise Conflict(f"session {session}: entry {seq} is not pending")


def end_operation(cur: apsw.Cursor, session: str, seq: int, op: int | None, outcome: str) -> None:
    cur.execute(
        "update operations set state = ?, last = ? where session = ? and op = ? and state = 'running'",
        (outcome, seq, session, op),
    )
    if cur.connection.changes() != 1:
        raise LeaseLost(f"session {session}: operation {op} is not running")
    if outcome in RELEASING_OUTCOMES and op is not None:
        _release_consumed(cur, session, op)


def set_covered(cur: apsw.Cursor, session: str, op: int | None, covers: int) -> None:
    cur.execute("update operations set covers = ? where session = ? and op = ?", (covers, session, op))


def insert_context_reset(cur: apsw.Cursor, session: str, seq: int) -> None:
    """Add a context reset to the operations, where the selection of the context finds it."""
    cur.execute(
        "insert into operations(session, op, type, state, first, last) values (?, ?, 'context_reset', 'done', ?, ?)",
        (session, seq, seq, seq),
    )


def insert_pin(cur: apsw.Cursor, session: str, seq: int) -> None:
    """Add a pin to the operations, where the selection of the context finds it, and where it can be undone."""
    cur.execute(
        "insert into operations(session, op, type, state, first, last) values (?, ?, 'pin', 'done', ?, ?)",
        (session, seq, seq, seq),
    )


def undo_operations(cur: apsw.Cursor, session: str, seq: int, undone: OperationsUndone) -> None:
    """Remove operations from the context, and with a turn every compression that covers it."""
    turns = []
    for op in undone.ops:
        row = cur.execute("select type, undone_at from operations where session = ? and op = ?", (session, op)).get
        if row is None:
            raise NotFound(f"session {session} has no operation {op} to undo")
        if row == ("turn", 0):
            turns.append(op)
        if undone.again:
            _release_consumed(cur, session, op)
    hide_operations(cur, session, seq, undone.ops)
    if turns:
        cur.execute(
            "update operations set undone_at = ? where session = ? and type = 'compression' and undone_at = 0 "
            "and covers >= ?",
            (seq, session, min(turns)),
        )


def hide_operations(cur: apsw.Cursor, session: str, seq: int, ops: Iterable[int]) -> None:
    for op in ops:
        cur.execute(
            "update operations set undone_at = ? where session = ? and op = ? and undone_at = 0", (seq, session, op)
        )


def request_stop(cur: apsw.Cursor, session: str, op: int) -> None:
    """Record that `op` should stop. An ended operation is not changed."""
    cur.execute("update operations set stop = 1 where session = ? and op = ? and state = 'running'", (session, op))


def pause_operation(cur: apsw.Cursor, session: str, op: int) -> None:
    cur.execute("update operations set paused = 1 where session = ? and op = ?", (session, op))


def clear_pending(cur: apsw.Cursor, session: str, seqs: Iterable[int]) -> None:
    """Remove erased messages from the pending ones."""
    cur.executemany(_DELETE_PENDING, ((session, seq) for seq in seqs))


def find_ended_seqs(cur: apsw.Cursor, session: str, seqs: Collection[int]) -> set[int]:
    """The `ended` seq of every operation that consumed or contains any of `seqs`. Exchanges are stored under these."""
    touched = set()
    ended: dict[int, int] = {}
    for op, seq, kind, text in fetch_rows(
        cur,
        "select op, seq, kind, case when kind in ('began', 'took') then body end from entries "
        "where session = ? and op is not null",
        (session,),
    ):
        if kind == "ended":
            ended[op] = seq
        if seq in seqs or (text is not None and not set(seqs).isdisjoint(_decode_takes(kind, text))):
            touched.add(op)
    return {ended[op] for op in touched if op in ended}


def _release_consumed(cur: apsw.Cursor, session: str, op: int) -> None:
    """Make the messages that `op` consumed pending again, except for erased ones."""
    found = fetch_rows(
        cur,
        "select kind, body from entries where session = ? and seq >= ? and op = ? and kind in ('began', 'took') "
        "and body is not null",
        (session, op, op),
    )
    for taken in [seq for kind, text in found for seq in _decode_takes(kind, text)]:
        text = cur.execute("select body from entries where session = ? and seq = ?", (session, taken)).get
        if text is not None:
            heard = decode_body(EntryKind.HEARD, text)
            assert isinstance(heard, Heard)
            cur.execute(
                "insert or ignore into pending(session, seq, asks) values (?, ?, ?)", (session, taken, heard.asks)
            )


def _decode_takes(kind: str, text: str) -> tuple[int, ...]:
    body = decode_body(EntryKind(kind), text)
    assert isinstance(body, Began | Took)
    return body.takes


# -- reading -----------------------------------------------------------------------------------------------------------

_COLUMNS: Final = (
    "session, op, type, state, first, last, consumer, fence, attempts, paused, blocking, covers, undone_at, "
    "compression, stop"
)

SELECT_RESTARTED: Final = (
    f"select {_COLUMNS} from operations indexed by operations_running "
    "where state = 'running' and type = 'turn' and attempts >= ? order by session, op"
)


def build_operations_query(
    session: str,
    *,
    types: Sequence[str],
    after: int,
    before: int | None,
    states: Sequence[str],
    newest_first: bool,
    limit: int | None,
) -> tuple[str, list[Any]]:
    where = ["session = ?", "op > ?"]
    values: list[Any] = [session, after]
    if before is not None:
        where.append("op < ?")
        values.append(before)
    table = "operations"
    if tuple(states) == ("running",):
        # Running operations have an index of their own. The planner uses it only if the query names it.
        table, states = "operations indexed by operations_running", ()
        where.append("state = 'running'")
    for column, chosen in (("type", types), ("state", states)):
        if chosen:
            where.append(f"{column} in ({', '.join('?' * len(chosen))})")
            values.extend(chosen)
    sql = f"select {_COLUMNS} from {table} where {' and '.join(where)} order by op{' desc' if newest_first else ''}"
    if limit is not None:
        sql += " limit ?"
        values.append(limit)
    return sql, values


def parse_operation_row(row: Sequence[Any]) -> Operation:
    (
        session,
        op,
        type,
        state,
        first,
        last,
        consumer,
        fence,
        attempts,
        paused,
        blocking,
        covers,
        undone_at,
        compression,
        stop,
    ) = row
    return Operation(
        session=session,
        op=op,
        type=type,
        state=state,
        first=first,
        last=last,
        consumer=consumer,
        fence=fence,
        attempts=attempts,
        paused=bool(paused),
        blocking=bool(blocking),
        covers=covers,
        undone_at=undone_at,
        compression=compression,
        stop=bool(stop),
    )
