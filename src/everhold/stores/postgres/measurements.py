"""Counts for monitoring: the queries, with sums by consumer, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everhold.core.consumers import PLATFORM_PREFIX
from everhold.ports.measurements import ConsumerBacklog, ConsumerLoad, StoreLoad
from everhold.stores.measurements import add_up_backlogs

# `free` is when a cursor may be claimed, so the lowest one is the oldest that waits for a worker.
SELECT_CONSUMERS: Final = """
with clock(now) as materialized (select coalesce(%(now)s::float8, extract(epoch from clock_timestamp())::float8)),
due as (select consumer, count(*) as due, min(free) as free from cursors where free is not null group by consumer),
failing as (
  select consumer, count(*) as failing from cursors where attempts > 0 and due is not null group by consumer
)
select due.consumer, due.due, coalesce(failing.failing, 0), greatest(0, clock.now - due.free)::float8
from clock, due left join failing on failing.consumer = due.consumer order by due.consumer
"""
SELECT_DEAD: Final = (
    "select consumer, count(*), count(*) filter (where in_doubt) from dead_letters where state = 'dead' "
    "group by consumer order by consumer"
)
SELECT_SUMS: Final = (
    "select (select count(*) from pending where asks), (select count(*) from receipts where in_doubt), "
    "pg_database_size(current_database())"
)
SELECT_OUTBOX: Final = """
select cursors.consumer, count(*), min(entries.at)
from cursors join entries on entries.session = cursors.session and entries.seq > cursors.processed_seq
where cursors.due is not null and starts_with(cursors.consumer, %s) and entries.kind in ('said', 'notified')
group by cursors.consumer order by cursors.consumer
"""
OUTBOX_VALUES: Final = (PLATFORM_PREFIX,)


def build_load(
    consumers: Sequence[Sequence[Any]], dead: Sequence[Sequence[Any]], sums: Sequence[Sequence[Any]]
) -> StoreLoad:
    """Return the load from the rows of the three queries."""
    pending, in_doubt, size = sums[0]
    return StoreLoad(
        consumers=tuple(
            ConsumerLoad(consumer=consumer, due=due, failing=failing, lag_seconds=lag)
            for consumer, due, failing, lag in consumers
        ),
        pending_messages=pending,
        dead_letters={consumer: count for consumer, count, _ in dead},
        dead_letters_in_doubt=sum(doubts for _, _, doubts in dead),
        receipts_in_doubt=in_doubt,
        size_bytes=size,
    )


def build_backlogs(memories: Sequence[Sequence[Any]], outbox: Sequence[Sequence[Any]]) -> list[ConsumerBacklog]:
    """Return the backlogs from the rows of `SELECT_BACKLOG` and `SELECT_OUTBOX`."""
    outboxes = ((consumer, items, oldest) for consumer, items, oldest in outbox)
    return add_up_backlogs([*((row[0], row[3], row[4]) for row in memories), *outboxes])
