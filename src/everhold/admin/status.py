"""Collects the state of the queue, the deliveries and the memories for `status`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from everhold.core.entries import Compressed, Entry
from everhold.core.erasure import list_blocking_erasures
from everhold.core.turn import MAX_TURN_ATTEMPTS, compute_stable_seconds
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.gates import Gates
from everhold.engine.memory import health as memory_health
from everhold.engine.memory.rebuilds import load_rebuilds
from everhold.engine.memory.tombstones import load_erasures
from everhold.ports.store import ConsumerCursor, Store

MAX_LISTED_COMPRESSIONS: Final = 3


async def collect_status(gates: Gates, runtimes: AgentRuntimes) -> dict[str, Any]:
    """The gateway's state, as `status` shows it."""
    store = gates.store
    cursors = await store.list_cursors(waiting=True)
    dead_letters = await store.list_dead_letters()
    return {
        "pending": await store.count_waiting(),
        "waiting": summarize_waiting(cursors),
        "dead_letters": len(dead_letters),
        "in_doubt": sum(letter.in_doubt for letter in dead_letters) + await store.count_receipts_in_doubt(),
        "given_up": [
            {"session": turn.session, "starts": turn.attempts, "after_seconds": compute_stable_seconds(turn.attempts)}
            for turn in await store.list_restarted_turns(starts=MAX_TURN_ATTEMPTS + 1)
        ],
        "failing": sorted({cursor.consumer for cursor in cursors if cursor.error}),
        "compressions": [
            render_compression(entry) for entry in await store.list_compressions(limit=MAX_LISTED_COMPRESSIONS)
        ],
        "memories": [
            msgspec.to_builtins(condition)
            for condition in await memory_health.collect_conditions(gates, runtimes.list_memories())
        ],
        **await collect_erasures(store),
    }


async def collect_erasures(store: Store) -> dict[str, Any]:
    """The forgettings that are not finished, by id because a name is personal, and the rebuilds of sessions after an
    undo. A rebuild waits for the forgettings of its memory.
    """
    erasures = [it for it in await load_erasures(store) if it.is_open]
    return {
        "erasures": [
            {
                "id": it.id,
                "at": it.at,
                "state": it.state,
                "places": [
                    {"memory": place.memory, "agent": place.agent, "state": place.state, "problem": place.problem}
                    for place in it.places
                    if place.is_open
                ],
            }
            for it in erasures
        ],
        "rebuilds": [
            {
                "memory": it.place.memory,
                "agent": it.place.agent,
                "items": len(it.keys),
                "state": it.place.state,
                "problem": it.place.problem,
                "waits_for": [one.id for one in list_blocking_erasures(erasures, it.place.memory)],
            }
            for it in await load_rebuilds(store)
        ],
    }


def summarize_waiting(cursors: Sequence[ConsumerCursor]) -> list[dict[str, Any]]:
    """One row per consumer with waiting cursors: in how many sessions, since when, and the last error."""
    rows: dict[str, dict[str, Any]] = {}
    for cursor in cursors:
        row = rows.setdefault(
            cursor.consumer, {"consumer": cursor.consumer, "sessions": 0, "since": None, "attempts": 0, "error": ""}
        )
        row["sessions"] += 1
        row["since"] = min((at for at in (row["since"], cursor.since) if at is not None), default=None)
        row["attempts"] = max(row["attempts"], cursor.attempts)
        row["error"] = row["error"] or cursor.error
    return [rows[consumer] for consumer in sorted(rows)]


def render_compression(entry: Entry) -> dict[str, Any]:
    """A compression as `status` shows it. Of an erased one only the place is known."""
    compressed = entry.body if isinstance(entry.body, Compressed) else Compressed(summary="", covers=0)
    return {
        "session": entry.session,
        "op": entry.op,
        "at": entry.at,
        "messages": compressed.messages,
        "tokens_before": compressed.tokens_before,
        "tokens_after": compressed.tokens_after,
        "trigger": compressed.trigger,
        "model": compressed.model,
    }
