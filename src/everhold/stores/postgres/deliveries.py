"""The tables of receipts, dead letters, state records and spending: reading. `saving` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everhold.ports.store import BudgetSpend, DeadLetter, Receipt, StateNamespace, StateRecord

SELECT_RECEIPT_COUNTS: Final = (
    "select r.consumer, s.agent, count(*), count(*) filter (where r.remote <> '') from receipts r "
    "join sessions s on s.id = r.session where r.consumer = any(%s::text[]) group by 1, 2 order by 1, 2"
)
SELECT_STATE: Final = (
    "select namespace, scope, key, value, version from state_records where namespace = %s and scope = %s and key = %s"
)
SELECT_STATES: Final = (
    "select namespace, scope, key, value, version from state_records "
    "where (%(namespace)s::text is null or namespace = %(namespace)s) "
    "and (%(scope)s::text is null or scope = %(scope)s) order by namespace, scope, key"
)
SELECT_SPEND: Final = "select sum(usd), sum(tokens)::bigint from spending where budget = %s and day = %s"
SELECT_SPENDS: Final = (
    "select budget, sum(usd), sum(tokens)::bigint from spending where starts_with(budget, %s) and day = %s "
    "group by budget order by budget"
)
_RECEIPT_COLUMNS: Final = "session, seq, part, consumer, key, remote, in_doubt, at"
_DEAD_LETTER_COLUMNS: Final = "id, consumer, session, seq, part, key, reason, in_doubt, at, state"


def build_receipts_query(session: str, *, seq: int | None, consumer: str) -> tuple[str, list[Any]]:
    where, values = "session = %s", [session]  # type: tuple[str, list[Any]]
    if seq is not None:
        where += " and seq = %s"
        values.append(seq)
    if consumer:
        where += " and consumer = %s"
        values.append(consumer)
    return f"select {_RECEIPT_COLUMNS} from receipts where {where} order by seq, part, consumer", values


def parse_receipt_row(row: Sequence[Any]) -> Receipt:
    session, seq, part, consumer, key, remote, in_doubt, at = row
    return Receipt(
        session=session, seq=seq, part=part, consumer=consumer, key=key, remote=remote, in_doubt=in_doubt, at=at
    )


def build_dead_letters_query(*, session: str, consumer: str, state: str) -> tuple[str, list[Any]]:
    wanted = (("state", state), ("session", session), ("consumer", consumer))
    chosen = [(column, value) for column, value in wanted if value]
    where = " and ".join(f"{column} = %s" for column, _ in chosen) or "true"
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
        in_doubt=in_doubt,
        at=at,
        state=state,
    )


def parse_state_row(row: Sequence[Any]) -> StateRecord:
    namespace, scope, key, value, version = row
    return StateRecord(namespace=StateNamespace(namespace), scope=scope, key=key, value=value, version=version)


def parse_spend_row(budget: str, day: str, row: Sequence[Any]) -> BudgetSpend:
    usd, tokens = row
    return BudgetSpend(budget=budget, day=day, usd=usd or 0.0, tokens=tokens or 0)
