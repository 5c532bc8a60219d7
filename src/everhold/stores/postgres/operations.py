"""The table of operations: reading. `saving` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everhold.ports.store import Operation

COLUMNS: Final = (
    "session, op, type, state, first, last, consumer, fence, attempts, paused, blocking, covers, undone_at, "
    "compression, stop"
)
SELECT_RUNNING: Final = f"select {COLUMNS} from operations where session = %s and state = 'running' order by op"
SELECT_RUNNING_OF: Final = (
    f"select {COLUMNS} from operations where session = any(%s::text[]) and state = 'running' order by session, op"
)
SELECT_RESTARTED: Final = (
    f"select {COLUMNS} from operations where state = 'running' and type = 'turn' and attempts >= %s "
    "order by session, op"
)
_FIELDS: Final = Operation.__struct_fields__


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
    where = ["session = %s", "op > %s"]
    values: list[Any] = [session, after]
    if before is not None:
        where.append("op < %s")
        values.append(before)
    if tuple(states) == ("running",):
        states = ()
        where.append("state = 'running'")
    for column, chosen in (("type", types), ("state", states)):
        if chosen:
            where.append(f"{column} = any(%s::text[])")
            values.append(list(chosen))
    sql = f"select {COLUMNS} from operations where {' and '.join(where)} order by op{' desc' if newest_first else ''}"
    if limit is not None:
        sql += " limit %s"
        values.append(limit)
    return sql, values


def parse_operation_row(row: Sequence[Any]) -> Operation:
    return Operation(**dict(zip(_FIELDS, row, strict=True)))
