"""The table of receipts: the remote ids of delivered items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw

from everhold.ports.store import Receipt

SELECT_RECEIPT_COUNTS: Final = (
    "select r.consumer, s.agent, count(*), sum(r.remote <> '') from receipts r join sessions s on s.id = r.session "
    "where r.consumer in (select value from json_each(?)) group by 1, 2 order by 1, 2"
)
_RECEIPT_COLUMNS: Final = "session, seq, part, consumer, key, remote, in_doubt, at"


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
