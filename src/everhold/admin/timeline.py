"""The operations of a session as rows of a timeline: what each did, when, for how long, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from everhold.core.entries import Began, Compressed, Ended, Entry, EntryKind, ModelUsage, Returned, Thought, Took
from everhold.ports.store import Operation, Store

MAX_PAGE_ENTRIES = 4_000
"""Entries that are read for one page. Operations that need more come with the next page."""
_KINDS = (
    EntryKind.BEGAN, EntryKind.TOOK, EntryKind.THOUGHT, EntryKind.CALLED, EntryKind.RETURNED, EntryKind.COMPRESSED,
    EntryKind.ENDED, EntryKind.SAID, EntryKind.NOTED,
)  # fmt: skip


class TimelineCall(Struct, frozen=True, kw_only=True):
    """A tool call of an operation."""

    seq: int
    tool: str
    began_at: float
    ended_at: float | None
    state: str
    """`running`, `done`, `failed` or `unknown`."""


class TimelineRow(Struct, frozen=True, kw_only=True):
    """One operation."""

    op: int
    type: str
    state: str
    first: int
    last: int
    attempts: int
    undone_at: int
    covers: int
    took: tuple[int, ...]
    """The messages that it consumed."""
    asked_at: float | None
    """When the first of them was accepted."""
    began_at: float
    ended_at: float | None
    reason: str
    trigger: str
    model: str
    usage: ModelUsage
    thoughts: tuple[int, ...]
    """The seqs of its model calls."""
    calls: tuple[TimelineCall, ...]
    notes: int
    tokens_before: int = 0
    tokens_after: int = 0
    messages: int = 0


async def list_timeline(store: Store, session: str, *, before: int | None, limit: int) -> list[TimelineRow]:
    """Return the newest operations before the operation `before`, newest first."""
    found = await store.list_operations(session, before=before, newest_first=True, limit=limit)
    operations = [op for op in found if op.type not in ("pin", "context_reset")] or list(found)
    if not operations:
        return []
    rows: list[TimelineRow] = []
    budget = MAX_PAGE_ENTRIES
    for operation in operations:
        upto = operation.last or None
        entries = await store.list_entries(session, after=operation.op - 1, upto=upto, kinds=_KINDS, limit=budget)
        mine = [entry for entry in entries if entry.op == operation.op]
        rows.append(await _build_row(store, operation, mine))
        budget -= len(entries)
        if budget <= 0:
            break
    return rows


async def _build_row(store: Store, operation: Operation, entries: Sequence[Entry]) -> TimelineRow:
    took = tuple(seq for entry in entries if isinstance(entry.body, Began | Took) for seq in entry.body.takes)
    asked = (await store.get_entry(operation.session, took[0])).at if took else None
    began = next((entry for entry in entries if isinstance(entry.body, Began)), None)
    ended = next((entry for entry in entries if isinstance(entry.body, Ended)), None)
    compressed = next((entry.body for entry in entries if isinstance(entry.body, Compressed)), None)
    thoughts = [entry for entry in entries if isinstance(entry.body, Thought)]
    model = next((entry.body.model for entry in reversed(thoughts) if isinstance(entry.body, Thought)), "")
    usage = sum((entry.body.usage for entry in thoughts if isinstance(entry.body, Thought)), ModelUsage())
    if ended is not None and isinstance(ended.body, Ended) and not thoughts:
        usage = ended.body.usage
    began_at = entries[0].at if entries else (await store.get_entry(operation.session, operation.op)).at
    return TimelineRow(
        op=operation.op,
        type=operation.type,
        state=operation.state,
        first=operation.first,
        last=operation.last,
        attempts=operation.attempts,
        undone_at=operation.undone_at,
        covers=operation.covers,
        took=took,
        asked_at=asked,
        began_at=began_at,
        ended_at=ended.at if ended is not None else None,
        reason=ended.body.reason if ended is not None and isinstance(ended.body, Ended) else "",
        trigger=began.body.trigger if began is not None and isinstance(began.body, Began) else "",
        model=model or (compressed.model if compressed else ""),
        usage=usage,
        thoughts=tuple(entry.seq for entry in thoughts),
        calls=tuple(_list_calls(entries)),
        notes=sum(entry.kind is EntryKind.NOTED for entry in entries),
        tokens_before=compressed.tokens_before if compressed else 0,
        tokens_after=compressed.tokens_after if compressed else 0,
        messages=compressed.messages if compressed else 0,
    )


def _list_calls(entries: Sequence[Entry]) -> Iterable[TimelineCall]:
    results: dict[tuple[int, str], Entry] = {}
    thought = 0
    for entry in entries:
        if entry.kind is EntryKind.THOUGHT:
            thought = entry.seq
        elif isinstance(entry.body, Returned):
            results.setdefault((thought, entry.body.call), entry)
    for entry in entries:
        for call in entry.body.calls if isinstance(entry.body, Thought) else ():
            result = results.get((entry.seq, call.id))
            state = "running"
            if result is not None and isinstance(result.body, Returned):
                state = "unknown" if result.body.unknown else "failed" if result.body.error else "done"
            yield TimelineCall(
                seq=entry.seq,
                tool=call.tool,
                began_at=entry.at,
                ended_at=None if result is None else result.at,
                state=state,
            )
