"""Follow what was said until every platform and memory has it, for the spans of deliveries.

A delivery may end long after its turn, so the operations that are followed are kept with the cursor of the export.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, structs

from everhold.core.consumers import MEMORY, PLATFORM, get_reply_parts, parse_consumer
from everhold.core.entries import Entry, StoredRecord
from everhold.core.exchange import is_memory_entry
from everhold.ports.clock import Clock
from everhold.ports.store import ConsumerCursor, Receipt, Store
from everhold.telemetry.traces.spans import TracedDelivery, TraceSpan, build_delivery_span

MAX_FOLLOWED: Final = 1_000
"""Operations. Of more, the oldest ones get no spans of deliveries."""
FIRST_DELAY_SECONDS: Final = 1.0
MAX_DELAY_SECONDS: Final = 300.0


class FollowedOperation(StoredRecord, frozen=True):
    """An operation whose replies or exchange are on their way."""

    session: str
    op: int
    at: float
    """When it ended."""
    replies: tuple[int, ...] = ()
    memory_items: tuple[int, ...] = ()
    exported: tuple[str, ...] = ()
    """The consumers whose spans are made."""

    def list_seqs(self, kind: str) -> tuple[int, ...]:
        return self.memory_items if kind == MEMORY else self.replies


class _FollowState(Struct):
    operation: FollowedOperation
    delay: float
    due: float


class DeliveryFollower:
    """Knows the operations in order. Its state is what `followed` returns."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._states: dict[tuple[str, int], _FollowState] = {}
        self.skipped = 0
        """Operations that were given up because there were too many."""

    @property
    def followed(self) -> tuple[FollowedOperation, ...]:
        return tuple(state.operation for state in self._states.values())

    def restore(self, operations: Sequence[FollowedOperation]) -> None:
        """Go on with the operations that a process before had left."""
        self._states.clear()
        for operation in operations:
            self._follow(operation)

    def add(self, session: str, op: int, entries: Sequence[Entry]) -> None:
        """Follow an operation that ended, if it said something or is remembered."""
        replies = tuple(entry.seq for entry in entries if get_reply_parts(entry.body)[0] is not None)
        items = tuple(entry.seq for entry in entries if is_memory_entry(entry))
        if replies or items:
            self._follow(
                FollowedOperation(session=session, op=op, at=entries[-1].at, replies=replies, memory_items=items)
            )

    def _follow(self, operation: FollowedOperation) -> None:
        if len(self._states) >= MAX_FOLLOWED:
            del self._states[next(iter(self._states))]
            self.skipped += 1
        now = self._clock.monotonic()
        self._states[operation.session, operation.op] = _FollowState(operation, FIRST_DELAY_SECONDS, now)

    async def collect_spans(self) -> list[TraceSpan]:
        """Return the spans of deliveries that ended since. What is not delivered is looked at less and less often."""
        spans: list[TraceSpan] = []
        due = [(key, state) for key, state in self._states.items() if self._clock.monotonic() >= state.due]
        cursors = {session: await self._list_cursors(session) for session in {key[0] for key, _ in due}}
        for key, state in due:
            made, is_settled = await self._look(state, cursors[key[0]])
            spans += made
            if is_settled:
                self._states.pop(key, None)
            else:
                state.due = self._clock.monotonic() + state.delay
                state.delay = min(state.delay * 2, MAX_DELAY_SECONDS)
        return spans

    async def _list_cursors(self, session: str) -> list[ConsumerCursor]:
        """Return the cursors of a session's platforms and memories."""
        found = await self._store.list_cursors(session=session)
        return [it for it in found if parse_consumer(it.consumer).kind in (PLATFORM, MEMORY)]

    async def _look(self, state: _FollowState, cursors: Sequence[ConsumerCursor]) -> tuple[list[TraceSpan], bool]:
        """Return the spans of the consumers that have settled since, and whether all have."""
        operation = state.operation
        spans: list[TraceSpan] = []
        is_settled = True
        for cursor in cursors:
            seqs = operation.list_seqs(parse_consumer(cursor.consumer).kind)
            if not seqs or cursor.consumer in operation.exported:
                continue
            if not _has_settled(cursor, seqs):
                is_settled = False
                continue
            spans += await self._build_span(operation, cursor.consumer, seqs)
            operation = structs.replace(operation, exported=(*operation.exported, cursor.consumer))
        state.operation = operation
        return spans, is_settled

    async def _build_span(self, operation: FollowedOperation, consumer: str, seqs: tuple[int, ...]) -> list[TraceSpan]:
        """Return the span of a consumer; none if it had nothing to deliver."""
        receipts: list[Receipt] = []
        for seq in seqs:
            receipts += await self._store.list_receipts(operation.session, seq=seq, consumer=consumer)
        letters = []
        if {it.seq for it in receipts} != set(seqs):
            given_up = await self._store.list_dead_letters(session=operation.session, consumer=consumer)
            letters = [it for it in given_up if it.seq in seqs]
        if not receipts and not letters:
            return []
        return [
            build_delivery_span(
                TracedDelivery(
                    session=operation.session,
                    op=operation.op,
                    consumer=consumer,
                    committed_at=operation.at,
                    receipts=receipts,
                    dead_letters=letters,
                )
            )
        ]


def _has_settled(cursor: ConsumerCursor, seqs: tuple[int, ...]) -> bool:
    """Return whether a consumer is done with these entries."""
    if cursor.in_flight is not None and any(item.seq in seqs for item in cursor.in_flight.items):
        return False
    return cursor.processed_seq >= max(seqs)
