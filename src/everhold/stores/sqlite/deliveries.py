"""The tables of deliveries: receipts of delivered items, and dead letters of items that consumers gave up on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw

from everhold.ports.store import DeadLetter, Receipt, Wakeup
from everhold.stores.sqlite import cursors

SELECT_RECEIPT_COUNTS: Final = (
    "select r.consumer, s.agent, count(*), sum(r.remote <> '') from receipts r join sessions s on s.id = r.session "
    "where r.consumer in (select value from json_each(?)) group by 1, 2 order by 1, 2"
)
_RECEIPT_COLUMNS: Final = "session, seq, part, consumer, key, remote, in_doubt, at"
_DEAD_LETTER_COLUMNS: Final = "id, consumer, session, seq, part, key, reason, in_doubt, at, state"


def insert_receipts(cur: apsw.Cursor, receipts: Iterable[Receipt], *, at: float) -> None:
    cur.executemany(
        "insert or replace into receipts(session, seq, part, consumer, key, remote, in_doubt, at) "
        "values (?, ?, ?, ?, ?, ?, ?, ?)",
        [(one.session, one.seq, one.part, one.consumer, one.key, one.remote, one.in_doubt, at) for one in receipts],
    )


def build_receipts_query(session: str, *, seq: int | None, consumer: str) -> tuple[str, list[Any]]:
    where, values = "session = ?", [session]  # type: tuple[str, list[Any]]
    if seq is not None:
        where += " and seq = ?"
        values.append(seq)
    if consumer:
        where += " and consumer = ?"
        values.append(consumer)
    return f"select {_RECEIPT_COLUMNS} from receipts where {where} order by seq, part, consumer", values


def parse_receipt_row(row: Sequence[Any]) -> Receipt:
    session, seq, part, consumer, key, remote, in_doubt, at = row
    return Receipt(
        session=session, seq=seq, part=part, consumer=consumer, key=key, remote=remote, in_doubt=bool(in_doubt), at=at
    )


def add_dead_letters(cur: apsw.Cursor, letters: Iterable[DeadLetter], *, at: float) -> None:
    cur.executemany(
        "insert into dead_letters(consumer, session, seq, part, key, reason, in_doubt, at, state) "
        "values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (one.consumer, one.session, one.seq, one.part, one.key, one.reason, one.in_doubt, at, one.state)
            for one in letters
        ],
    )


def settle_dead_letters(cur: apsw.Cursor, ids: Iterable[int]) -> None:
    """Mark dead letters whose replay is finished, whatever its outcome."""
    cur.executemany("update dead_letters set state = 'replayed' where id = ?", [(id,) for id in ids])


def drop_erased_dead_letters(cur: apsw.Cursor, session: str, gone: Iterable[int], touched: Iterable[int]) -> None:
    """Drop the dead letters of erased entries, and remove errors, here and in cursors, that may repeat their text."""
    cur.executemany(
        "update dead_letters set state = 'dropped', reason = '' where session = ? and seq = ? and state = 'dead'",
        [(session, seq) for seq in gone],
    )
    scrubbed = "something of it was erased since"
    cur.executemany(
        "update dead_letters set reason = ? where session = ? and seq = ? and reason <> ''",
        [(scrubbed, session, seq) for seq in (*gone, *touched)],
    )
    cur.execute("update cursors set error = ? where session = ? and error <> ''", (scrubbed, session))


def replay_dead_letters(cur: apsw.Cursor, ids: Sequence[int], *, at: float) -> int:
    """Make dead letters `replaying`, and their cursors due. Consumers replay them before anything new."""
    count = 0
    for id in ids:
        row = cur.execute(
            "update dead_letters set state = 'replaying' where id = ? and state = 'dead' returning session, consumer",
            (id,),
        ).get
        if row is None:
            continue
        session, consumer = row
        last = cur.execute("select next_seq - 1 from sessions where id = ?", (session,)).get or 0
        cursors.apply_wakeups(cur, session, (Wakeup(consumer=consumer),), before=last, at=at)
        count += 1
    return count


def drop_dead_letters(cur: apsw.Cursor, ids: Sequence[int]) -> int:
    """Mark these dead letters as dropped. One that is being replayed stays."""
    sql = "update dead_letters set state = 'dropped' where id = ? and state = 'dead' returning id"
    return sum(cur.execute(sql, (id,)).get is not None for id in ids)


def build_dead_letters_query(*, session: str, consumer: str, state: str) -> tuple[str, list[Any]]:
    wanted = (("state", state), ("session", session), ("consumer", consumer))
    chosen = [(column, value) for column, value in wanted if value]
    where = " and ".join(f"{column} = ?" for column, _ in chosen) or "true"
    return f"select {_DEAD_LETTER_COLUMNS} from dead_letters where {where} order by id", [value for _, value in chosen]


def parse_dead_letter_row(row: Sequence[Any]) -> DeadLetter:
    id, consumer, session, seq, part, key, reason, in_doubt, at, state = row
    return DeadLetter(
        id=id,
        consumer=consumer,
        session=session,
        seq=seq,
        part=part,
        key=key,
        reason=reason,
        in_doubt=bool(in_doubt),
        at=at,
        state=state,
    )
