"""The table of reservations: what running calls may still take from budgets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

import apsw
import msgspec

from everhold.core.budget import BudgetHold, BudgetRefusal, BudgetUse, find_refusal

# A reservation that began in the future has ended, too: the clock went back, and nobody knows how long it lasts.
_ALIVE: Final = "lease_since <= :at and :at < lease_since + lease_wait"
_DELETE_ENDED: Final = f"delete from reservations where not ({_ALIVE})"
_SELECT_SPENT: Final = (
    "select s.budget, s.usd, s.tokens from json_each(:budgets) j "
    "cross join spending s on s.budget = j.value and s.day = :day"
)
_SELECT_RESERVED: Final = (
    "select r.budget, sum(r.usd), sum(r.tokens) from json_each(:budgets) j "
    f"cross join reservations r on r.budget = j.value where {_ALIVE} group by r.budget"
)


def reserve(
    cur: apsw.Cursor,
    holds: Sequence[BudgetHold],
    *,
    id: str,
    day: str,
    usd: float,
    tokens: int,
    at: float,
    lease: float,
) -> BudgetRefusal | None:
    """Reserve an amount in all budgets, or in none."""
    if cur.execute("select 1 from reservations where id = ? limit 1", (id,)).get is not None:
        return None
    cur.execute(_DELETE_ENDED, {"at": at})
    budgets = sorted({budget for hold in holds for budget in hold.counted})
    refusal = find_refusal(holds, read_uses(cur, budgets, day=day, at=at), usd=usd, tokens=tokens)
    if refusal is None:
        cur.executemany(
            "insert into reservations(budget, id, usd, tokens, lease_since, lease_wait) values (?, ?, ?, ?, ?, ?)",
            [(hold.budget, id, usd, tokens, at, lease) for hold in holds],
        )
    return refusal


def read_uses(cur: apsw.Cursor, budgets: Sequence[str], *, day: str, at: float) -> dict[str, BudgetUse]:
    """Return what was spent and is reserved, by budget."""
    names = msgspec.json.encode(budgets).decode()
    spent: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    reserved: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for budget, usd, tokens in cur.execute(_SELECT_SPENT, {"budgets": names, "day": day}):
        spent[budget] = (usd, tokens)
    for budget, usd, tokens in cur.execute(_SELECT_RESERVED, {"budgets": names, "at": at}):
        reserved[budget] = (usd, tokens)
    return {
        budget: BudgetUse(
            spent_usd=spent[budget][0],
            spent_tokens=spent[budget][1],
            reserved_usd=reserved[budget][0],
            reserved_tokens=reserved[budget][1],
        )
        for budget in budgets
    }


def renew(cur: apsw.Cursor, ids: Collection[str], *, at: float, lease: float) -> int:
    """Extend reservations that have not ended. What one that has ended held may have been given to others."""
    count = 0
    for id in ids:
        cur.execute(
            f"update reservations set lease_since = :at, lease_wait = :lease where id = :id and {_ALIVE}",
            {"id": id, "at": at, "lease": lease},
        )
        count += cur.connection.changes() > 0
    return count


def release(cur: apsw.Cursor, ids: Collection[str]) -> None:
    cur.executemany("delete from reservations where id = ?", [(id,) for id in ids])
