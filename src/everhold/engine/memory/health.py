"""The condition of every memory: its backlog and age, the last error, and when it is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct, structs

from everhold.core.consumers import BACKFILL_PREFIX, MEMORY_PREFIX, memory_consumer
from everhold.engine.effects import deliver_outside
from everhold.engine.gates import Gates
from everhold.engine.memory_client import MemoryClient, MemoryLiveness
from everhold.errors import EverholdError
from everhold.ports.memory import MemoryCapability, ProviderHealth
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import MemoryBacklog, ReceiptCount

HEALTH_DEADLINE_SECONDS: Final = 2.0
"""For a provider to report its health, because the status command waits for it."""


class MemoryCondition(Struct, frozen=True, kw_only=True):
    """The condition of one memory of one agent. Times are wall-clock times; None: never, or not since this process
    started.
    """

    memory: str
    agent: str
    state: Literal["healthy", "behind", "failing"]
    backlog: int = 0
    """The number of items that were not sent yet."""
    backlog_since: float | None = None
    """When the oldest of them was said."""
    stored_at: float | None = None
    """When it last stored something."""
    found_at: float | None = None
    """When it last answered a search."""
    error: str = ""
    """The last error."""
    failing_since: float | None = None
    """Since when it fails."""
    attempts: int = 0
    """How many attempts in a row failed."""
    next_attempt_at: float | None = None
    """When it is tried next."""
    recall_pause_seconds: float = 0.0
    """For how many seconds it is not asked to recall."""
    report: str = ""
    """What the provider reports."""
    remedy: str = ""
    """What a person must do, if waiting does not help."""
    hooks: dict[str, str] = {}
    """Hook -> the error of its last call."""
    delivery: str = ""
    """The declared delivery guarantee; empty if the provider is not there."""
    sent: int | None = None
    """Of a memory that never acknowledges: how many items were sent. None: the memory acknowledges."""
    confirmed: int = 0
    """How many of them appeared in search results. The others are unconfirmed."""


async def collect_conditions(
    gates: Gates, attached: Sequence[MemoryClient], *, agent: str = ""
) -> list[MemoryCondition]:
    """Return the condition of every memory that is in use or has a backlog; of one agent, if one is named."""
    backlogs = {
        (it.consumer.removeprefix(MEMORY_PREFIX), it.agent): it for it in await gates.store.list_backlogs(MEMORY_PREFIX)
    }
    there = {(it.instance, it.agent): it for it in attached}
    keys = sorted(key for key in {*backlogs, *there} if not agent or key[1] == agent)
    reports = await asyncio.gather(*(_ask_health(gates, there.get(key)) for key in keys))
    delivered = await _count_unacknowledged(gates, there)
    return [
        _build_condition(key, there.get(key), backlogs.get(key), health, delivered.get(key))
        for key, health in zip(keys, reports, strict=True)
    ]


async def _count_unacknowledged(
    gates: Gates, there: Mapping[tuple[str, str], MemoryClient]
) -> dict[tuple[str, str], ReceiptCount]:
    """Count what was sent to memories that never acknowledge. Others are not counted, because counting is slow."""
    silent = {key for key, it in there.items() if it.delivery is DeliveryGuarantee.UNACKNOWLEDGED}
    if not silent:
        return {}
    found = {key: ReceiptCount(consumer=memory_consumer(key[0]), agent=key[1], items=0, named=0) for key in silent}
    for prefix in (MEMORY_PREFIX, BACKFILL_PREFIX):
        for it in await gates.store.count_receipts(sorted({f"{prefix}{memory}" for memory, _ in silent})):
            key = (it.consumer.removeprefix(prefix), it.agent)
            if (sum_ := found.get(key)) is not None:
                found[key] = structs.replace(sum_, items=sum_.items + it.items, named=sum_.named + it.named)
    return found


def _build_condition(
    key: tuple[str, str],
    attached: MemoryClient | None,
    backlog: MemoryBacklog | None,
    health: ProviderHealth | None,
    delivered: ReceiptCount | None,
) -> MemoryCondition:
    liveness = attached.liveness if attached is not None else None
    failing = bool((liveness and liveness.is_failing) or (backlog and backlog.error) or (health and not health.healthy))
    error, since = _find_newest_failure(liveness)
    has_backlog = backlog is not None and backlog.items > 0
    return MemoryCondition(
        memory=key[0],
        agent=key[1],
        state="failing" if failing else "behind" if has_backlog else "healthy",
        backlog=backlog.items if backlog else 0,
        backlog_since=backlog.oldest if backlog else None,
        stored_at=liveness.store_calls.last_success_at if liveness else None,
        found_at=liveness.find_calls.last_success_at if liveness else None,
        error=(backlog.error if backlog else "") or (health.text if health and not health.healthy else "") or error,
        failing_since=since,
        attempts=backlog.attempts if backlog else 0,
        next_attempt_at=backlog.due if backlog and backlog.error else None,
        recall_pause_seconds=attached.get_recall_pause() if attached else 0.0,
        report=health.text if health else "",
        remedy=health.remedy if health else "",
        hooks=dict(liveness.hook_errors) if liveness else {},
        delivery=attached.delivery if attached else "",
        sent=delivered.items if delivered else None,
        confirmed=delivered.named if delivered else 0,
    )


def _find_newest_failure(liveness: MemoryLiveness | None) -> tuple[str, float | None]:
    """Return the newest failure, and since when calls have been failing."""
    calls = (
        [one for one in (liveness.store_calls, liveness.find_calls) if one.last_failure_at is not None]
        if liveness
        else []
    )
    if not calls:
        return "", None
    newest = max(calls, key=lambda one: (one.is_failing, one.last_failure_at or 0.0))
    return newest.error, min((one.failing_since for one in calls if one.failing_since is not None), default=None)


async def _ask_health(gates: Gates, attached: MemoryClient | None) -> ProviderHealth | None:
    if attached is None or not attached.has_capability(MemoryCapability.HEALTH):
        return None
    seconds = min(attached.deadline, HEALTH_DEADLINE_SECONDS)
    try:
        return await deliver_outside(f"health of {attached.instance}", attached.health, gates, deadline=seconds)
    except EverholdError as error:
        return ProviderHealth(healthy=False, text=str(error))
