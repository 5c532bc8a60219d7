"""Adds up what both stores measure."""

from __future__ import annotations

from collections.abc import Iterable

from everhold.ports.measurements import ConsumerBacklog


def add_up_backlogs(rows: Iterable[tuple[str, int, float | None]]) -> list[ConsumerBacklog]:
    """Return one backlog for each consumer, from rows with a consumer, its items and the time of the oldest."""
    found: dict[str, ConsumerBacklog] = {}
    for consumer, items, oldest in rows:
        before = found.get(consumer, ConsumerBacklog(consumer=consumer, items=0, oldest_at=None))
        times = [it for it in (oldest, before.oldest_at) if it is not None]
        found[consumer] = ConsumerBacklog(
            consumer=consumer, items=before.items + items, oldest_at=min(times, default=None)
        )
    return list(found.values())
