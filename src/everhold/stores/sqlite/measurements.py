"""Counts for monitoring. They run on a thread of their own, with sums by consumer from indexes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

from everhold.core.consumers import MEMORY_PREFIX, PLATFORM_PREFIX
from everhold.ports.measurements import ConsumerBacklog, ConsumerLoad, StoreLoad
from everhold.stores.measurements import add_up_backlogs
from everhold.stores.sqlite.connect import fetch_rows
from everhold.stores.sqlite.cursors import SELECT_BACKLOG

_COUNT_DUE: Final = (
    "select consumer, count(*) from cursors indexed by cursors_due where due is not null group by consumer"
)
_COUNT_FAILING: Final = (
    "select consumer, count(*) from cursors indexed by cursors_failing "
    "where attempts > 0 and due is not null group by consumer"
)
# In the order of the index, so that it ends at the first one that nobody holds. Few are held.
_FIND_OLDEST_DUE: Final = (
    "select due from cursors indexed by cursors_due where consumer = ? and due is not null "
    "and (owner = '' or lease_since + lease_wait <= ?) order by due limit 1"
)
_COUNT_DEAD: Final = (
    "select consumer, count(*), sum(in_doubt) from dead_letters indexed by dead_letters_counted "
    "where state = 'dead' group by consumer"
)
_COUNT_DOUBTS: Final = "select count(*) from receipts indexed by receipts_in_doubt where in_doubt <> 0"
_SELECT_OUTBOX: Final = """
select consumer, sum(items), min(oldest) from (
  select cursors.consumer, count(*) as items, min(entries.at) as oldest
  from cursors join entries on entries.session = cursors.session and entries.seq > cursors.processed_seq
  where cursors.due is not null and cursors.consumer >= :consumers and cursors.consumer < :beyond
    and entries.kind in ('said', 'notified')
  group by cursors.consumer, cursors.session
) group by consumer
"""


def measure_load(db: apsw.Connection, path: Path, *, now: float) -> StoreLoad:
    """Count what waits. It reads one row of an index for each waiting cursor, and no rows of tables."""
    cur = db.cursor()
    failing = dict(fetch_rows(cur, _COUNT_FAILING))
    dead = fetch_rows(cur, _COUNT_DEAD)
    consumers = []
    for consumer, due in fetch_rows(cur, _COUNT_DUE):
        oldest = fetch_rows(cur, _FIND_OLDEST_DUE, (consumer, now))
        lag = max(0.0, now - oldest[0][0]) if oldest else 0.0
        consumers.append(ConsumerLoad(consumer=consumer, due=due, failing=failing.get(consumer, 0), lag_seconds=lag))
    return StoreLoad(
        consumers=tuple(consumers),
        pending_messages=fetch_rows(cur, "select count(*) from pending where asks")[0][0],
        dead_letters={consumer: count for consumer, count, _ in dead},
        dead_letters_in_doubt=sum(in_doubt for _, _, in_doubt in dead),
        receipts_in_doubt=fetch_rows(cur, _COUNT_DOUBTS)[0][0],
        size_bytes=sum(_get_size(it) for it in (path, path.with_name(f"{path.name}-wal"))),
    )


def _get_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def measure_backlogs(db: apsw.Connection) -> list[ConsumerBacklog]:
    """Read every session in which a memory or a platform is behind."""
    cur = db.cursor()
    memories = fetch_rows(cur, SELECT_BACKLOG, _select_prefix(MEMORY_PREFIX))
    outbox = fetch_rows(cur, _SELECT_OUTBOX, _select_prefix(PLATFORM_PREFIX))
    return add_up_backlogs([*((row[0], row[3], row[4]) for row in memories), *outbox])


def _select_prefix(prefix: str) -> dict[str, str]:
    return {"consumers": prefix, "beyond": prefix[:-1] + chr(ord(prefix[-1]) + 1)}
