"""The table of reservations: what running calls may still take from budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from everhold.core.budget import BudgetHold, BudgetRefusal, BudgetUse, find_refusal
from everhold.stores.postgres.statements import PgConnection

_NOW: Final = "coalesce(%(now)s::float8, extract(epoch from clock_timestamp())::float8)"
# A reservation that began in the future has ended, too: the clock went back, and nobody knows how long it lasts.
_ALIVE: Final = f"lease_since <= {_NOW} and {_NOW} < lease_since + lease_wait"
_SET_ASYNCHRONOUS: Final = "select set_config('synchronous_commit', 'off', true)"
_LOCK_BUDGETS: Final = (
    "insert into budget_locks(budget) select unnest(%(budgets)s::text[]) "
    "on conflict (budget) do update set budget = excluded.budget"
)
"""The budgets are in order, so that two reservations do not wait for each other."""
# One statement, so that a cost that is committed and released meanwhile is seen at least once.
_SELECT_USES: Final = f"""
select budget, sum(spent_usd), sum(spent_tokens)::bigint, sum(usd), sum(tokens)::bigint, bool_or(own) from (
  select budget, usd as spent_usd, tokens as spent_tokens, 0::float8 as usd, 0::bigint as tokens, false as own
  from spending where budget = any(%(budgets)s) and day = %(day)s
  union all
  select budget, 0, 0, usd, tokens, id = %(id)s from reservations where budget = any(%(budgets)s) and {_ALIVE}
) uses group by budget"""
_INSERT: Final = f"""
with ended as (delete from reservations where budget = any(%(budgets)s) and not ({_ALIVE}))
insert into reservations(budget, id, usd, tokens, lease_since, lease_wait)
select unnest(%(wanted)s::text[]), %(id)s, %(usd)s, %(tokens)s, {_NOW}, %(lease)s on conflict do nothing"""
RENEW: Final = f"""
with renewed as (
  update reservations set lease_since = {_NOW}, lease_wait = %(lease)s where id = any(%(ids)s) and {_ALIVE} returning id
) select count(distinct id) from renewed"""
RELEASE: Final = "delete from reservations where id = any(%(ids)s)"


async def reserve(
    connection: PgConnection, holds: Sequence[BudgetHold], values: Mapping[str, Any]
) -> BudgetRefusal | None:
    """Reserve an amount in all budgets, or in none. `values` has `id`, `day`, `usd`, `tokens`, `lease` and `now`."""
    budgets = sorted({budget for hold in holds for budget in hold.counted})
    given = {**values, "budgets": budgets, "wanted": sorted({hold.budget for hold in holds})}
    async with connection.transaction():
        await connection.execute(_SET_ASYNCHRONOUS)
        await connection.execute(_LOCK_BUDGETS, given)
        rows = await (await connection.execute(_SELECT_USES, given)).fetchall()
        if any(row[5] for row in rows):
            return None  # it is a repeat
        uses = {
            row[0]: BudgetUse(
                spent_usd=float(row[1]),
                spent_tokens=int(row[2]),
                reserved_usd=float(row[3]),
                reserved_tokens=int(row[4]),
            )
            for row in rows
        }
        refusal = find_refusal(holds, uses, usd=values["usd"], tokens=values["tokens"])
        if refusal is None:
            await connection.execute(_INSERT, given)
        return refusal
