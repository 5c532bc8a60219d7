"""The table of spending: what was spent per budget and day."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from everhold.ports.store import BudgetSpend


def add_spends(cur: apsw.Cursor, spends: Iterable[BudgetSpend]) -> None:
    cur.executemany(
        "insert into spending(budget, day, usd, tokens) values (?, ?, ?, ?) "
        "on conflict(budget, day) do update set usd = usd + excluded.usd, tokens = tokens + excluded.tokens",
        [(one.budget, one.day, one.usd, one.tokens) for one in spends],
    )


def read_spend(cur: apsw.Cursor, budget: str, day: str) -> BudgetSpend:
    row = cur.execute("select usd, tokens from spending where budget = ? and day = ?", (budget, day)).get
    usd, tokens = (0.0, 0) if row is None else row
    return BudgetSpend(budget=budget, day=day, usd=usd, tokens=tokens)


def list_spends(cur: apsw.Cursor, prefix: str, day: str) -> list[BudgetSpend]:
    found = cur.execute(
        "select budget, usd, tokens from spending where substr(budget, 1, ?) = ? and day = ? order by budget",
        (len(prefix), prefix, day),
    )
    return [BudgetSpend(budget=row[0], day=day, usd=row[1], tokens=row[2]) for row in found]
