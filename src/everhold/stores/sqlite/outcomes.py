"""What lanes leave behind: receipts of what arrived, and the dead letters of what did not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw

from everhold.ports.store import Parked, Receipt, Wake
from everhold.stores.sqlite import lanes


def receive(cur: apsw.Cursor, receipts: Iterable[Receipt], *, at: float) -> None:
    cur.executemany(
        "insert or replace into receipts(session, seq, part, reader, key, remote, doubtful, at) "
        "values (?, ?, ?, ?, ?, ?, ?, ?)",
        [(one.session, one.seq, one.part, one.reader, one.key, one.remote, one.doubtful, at) for one in receipts],
    )


def park(cur: apsw.Cursor, letters: Iterable[Parked], *, at: float) -> None:
    cur.executemany(
        "insert into parked(reader, session, seq, part, key, reason, doubtful, at, state) "
        "values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (one.reader, one.session, one.seq, one.part, one.key, one.reason, one.doubtful, at, one.state)
            for one in letters
        ],
    )


def unpark(cur: apsw.Cursor, ids: Iterable[int]) -> None:
    """These went again and are settled, one way or the other."""
    cur.executemany("update parked set state = 'replayed' where id = ?", [(id,) for id in ids])


def drop(cur: apsw.Cursor, session: str, gone: Iterable[int], touched: Iterable[int]) -> None:
    """Dead letters of what was erased are none any more; no reason given for one, here or by a lane, repeats it."""
    cur.executemany(
        "update parked set state = 'dropped', reason = '' where session = ? and seq = ? and state = 'parked'",
        [(session, seq) for seq in gone],
    )
    scrubbed = "something of it was erased since"
    cur.executemany(
        "update parked set reason = ? where session = ? and seq = ? and reason <> ''",
        [(scrubbed, session, seq) for seq in (*gone, *touched)],
    )
    cur.execute("update lanes set error = ? where session = ? and error <> ''", (scrubbed, session))


def replay(cur: apsw.Cursor, ids: Sequence[int], *, at: float) -> int:
    """Hand dead letters back to their lanes, which take them up before anything new."""
    count = 0
    for id in ids:
        row = cur.execute(
            "update parked set state = 'replaying' where id = ? and state = 'parked' returning session, reader", (id,)
        ).get
        if row is None:
            continue
        session, reader = row
        last = cur.execute("select next_seq - 1 from sessions where id = ?", (session,)).get or 0
        lanes.wake(cur, session, (Wake(reader=reader),), before=last, at=at)
        count += 1
    return count


# -- reading -----------------------------------------------------------------------------------------------------------

_PARKED: Final = "id, reader, session, seq, part, key, reason, doubtful, at, state"
HANDED: Final = (
    "select r.reader, s.agent, count(*), sum(r.remote <> '') from receipts r join sessions s on s.id = r.session "
    "where r.reader in (select value from json_each(?)) group by 1, 2 order by 1, 2"
)
_RECEIPTS: Final = "session, seq, part, reader, key, remote, doubtful, at"


def parked_query(*, session: str, reader: str, state: str) -> tuple[str, list[Any]]:
    wanted = (("state", state), ("session", session), ("reader", reader))
    chosen = [(column, value) for column, value in wanted if value]
    where = " and ".join(f"{column} = ?" for column, _ in chosen) or "true"
    return f"select {_PARKED} from parked where {where} order by id", [value for _, value in chosen]


def parked_of(row: Sequence[Any]) -> Parked:
    id, reader, session, seq, part, key, reason, doubtful, at, state = row
    return Parked(
        id=id, reader=reader, session=session, seq=seq, part=part, key=key, reason=reason, doubtful=bool(doubtful),
        at=at, state=state,
    )  # fmt: skip


def receipts_query(session: str, *, seq: int | None, reader: str) -> tuple[str, list[Any]]:
    where, values = "session = ?", [session]  # type: tuple[str, list[Any]]
    if seq is not None:
        where += " and seq = ?"
        values.append(seq)
    if reader:
        where += " and reader = ?"
        values.append(reader)
    return f"select {_RECEIPTS} from receipts where {where} order by seq, part, reader", values


def receipt_of(row: Sequence[Any]) -> Receipt:
    session, seq, part, reader, key, remote, doubtful, at = row
    return Receipt(
        session=session, seq=seq, part=part, reader=reader, key=key, remote=remote, doubtful=bool(doubtful), at=at
    )
