"""A consumer of the log that makes spans of operations and exports them. No turn waits for it.

Its cursor is a state record. It moves after the collector has taken the spans, so neither a crash nor a collector that
is down loses one. After a crash some are sent again, with the same ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from everhold.admin.trace_deliveries import DeliveryFollower, FollowedOperation
from everhold.core.entries import Entry, EntryKind, StoredRecord, Thought, list_consumed_seqs
from everhold.core.recall import MemoryAnswer
from everhold.core.recall_blobs import read_record
from everhold.core.trace_ids import make_trace_id
from everhold.errors import Conflict, EverholdError, NotFound
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.store import Change, StateNamespace, StateWrite, Step, Store
from everhold.telemetry.metric_registry import MetricRegistry
from everhold.telemetry.metrics import TRACE_EXPORTS_FAILED_TOTAL, TRACE_SPANS_TOTAL
from everhold.telemetry.traces.content import ContentCapture
from everhold.telemetry.traces.otlp import SpanExporter, TraceSettings
from everhold.telemetry.traces.spans import (
    ModelDescription,
    TracedOperation,
    TraceSpan,
    build_operation_spans,
    is_traced,
)

CURSOR_KEY: Final = "cursor"
PAGE_ENTRIES: Final = 500
MAX_KEPT_ENTRIES: Final = 5_000
"""Entries of running operations and unanswered messages that are kept. Without them, they are read again."""
MAX_KEPT_AGENTS: Final = 10_000
MAX_DELAY_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 2.0
"""How long a stop waits for the last spans."""


class TraceCursor(StoredRecord, frozen=True):
    """How far the log was exported."""

    pos: int
    """All spans of operations that ended up to here were taken by the collector."""
    followed: tuple[FollowedOperation, ...] = ()
    """Operations whose deliveries have no span yet."""


class _KeptEntries(Struct):
    """Entries that were read and may be needed again."""

    operations: dict[tuple[str, int], list[Entry]]
    heard: dict[tuple[str, int], Entry]
    count: int = 0

    def add(self, entry: Entry) -> None:
        if self.count >= MAX_KEPT_ENTRIES:
            self.operations.clear()
            self.heard.clear()
            self.count = 0
        if entry.kind is EntryKind.HEARD:
            self.heard[entry.session, entry.seq] = entry
            self.count += 1
        elif entry.op is not None:
            if entry.kind is EntryKind.BEGAN:
                self.operations[entry.session, entry.op] = []
            if (entries := self.operations.get((entry.session, entry.op))) is not None:
                entries.append(entry)
                self.count += 1

    def take_operation(self, session: str, op: int) -> list[Entry]:
        entries = self.operations.pop((session, op), [])
        self.count -= len(entries)
        return entries

    def take_heard(self, session: str, seq: int) -> Entry | None:
        entry = self.heard.pop((session, seq), None)
        self.count -= entry is not None
        return entry


class TraceExport:
    """Belongs to one process. On a store that hosts share, only the host that holds the lease runs it."""

    def __init__(
        self,
        store: Store,
        *,
        exporter: SpanExporter,
        settings: TraceSettings,
        describe_model: Callable[[str], ModelDescription],
        clock: Clock,
        log: EventLogger,
        metrics: MetricRegistry,
        redact: Callable[[str], str] = str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._exporter = exporter
        self._settings = settings
        self._describe_model = describe_model
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._sleep = sleep
        self._version = 0
        """Of the cursor's record. 0: it was not read."""
        self._saved: TraceCursor | None = None
        self._pos = 0
        """Entries up to here were read."""
        self._spans: list[TraceSpan] = []
        """Of what was read since the cursor moved."""
        self._behind_since: float | None = None
        self._is_failing = False
        self._kept = _KeptEntries({}, {})
        self._agents: dict[str, str] = {}
        self._deliveries = DeliveryFollower(store, clock=clock)
        self._capture = ContentCapture(redact) if settings.captures_content else None

    @property
    def captures_content(self) -> bool:
        """Whether what was said is in the spans."""
        return self._capture is not None

    def get_seconds_behind(self) -> float:
        """Return how old the oldest entry is whose spans were not exported; 0 if all were."""
        return 0.0 if self._behind_since is None else max(0.0, self._clock.now() - self._behind_since)

    async def run(self) -> None:
        """Export what is committed, until cancelled."""
        self._version = 0
        failures = 0
        while True:
            failures = 0 if await self.export_new() else failures + 1
            delay = self._settings.delay_seconds
            await self._sleep(delay if not failures else max(delay, min(MAX_DELAY_SECONDS, 2.0**failures)))

    async def close(self) -> None:
        """Export what was committed last, if the collector answers soon."""
        try:
            if self._version:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.export_new()
        except (TimeoutError, EverholdError) as error:
            self._log.info("traces.unexported", error=error)
        finally:
            await asyncio.to_thread(self._exporter.close)

    async def export_new(self) -> bool:
        """Export the spans of all operations that ended since. Return whether the collector took them."""
        if not self._version:
            await self._load_cursor()
        if not await self._flush():
            return False
        while page := await self._store.read_feed(after=self._pos, limit=PAGE_ENTRIES):
            for entry in page:
                if self._behind_since is None:
                    self._behind_since = entry.at
                await self._read(entry)
                if len(self._spans) >= self._settings.batch_spans and not await self._flush():
                    return False
            await asyncio.sleep(0)  # let other tasks run
        self._spans += await self._deliveries.collect_spans()
        if not await self._flush():
            return False
        self._behind_since = None
        return True

    async def _read(self, entry: Entry) -> None:
        self._kept.add(entry)
        if entry.kind is EntryKind.ENDED and entry.op is not None:
            self._spans += await self._build_spans(entry, entry.op)
        self._pos = entry.pos

    # -- the cursor

    async def _load_cursor(self) -> None:
        """Read the cursor. The first export begins with what is committed from now on."""
        record = await self._store.get_state_record(StateNamespace.TRACE_EXPORT, CURSOR_KEY)
        self._kept, self._spans, self._behind_since = _KeptEntries({}, {}), [], None
        if record is None:
            self._pos = await self._store.last_pos()
            await self._save_cursor()
            return
        self._version = record.version
        self._saved = msgspec.json.decode(record.value, type=TraceCursor)
        self._deliveries.restore(self._saved.followed)
        # it is behind the end if the store was restored to an earlier time
        self._pos = min(self._saved.pos, await self._store.last_pos())

    async def _save_cursor(self) -> None:
        """Not durable at once, because a cursor that a power failure sets back repeats spans with the same ids."""
        cursor = TraceCursor(self._pos, self._deliveries.followed)
        if cursor == self._saved:
            return
        value = msgspec.json.encode(cursor).decode()
        write = StateWrite(namespace=StateNamespace.TRACE_EXPORT, key=CURSOR_KEY, value=value, version=self._version)
        change = Change(step=Step.STATE, session="", at=self._clock.now(), state_writes=(write,), durable=False)
        try:
            await self._store.commit(change)
        except Conflict:  # another host wrote it; read it again
            self._version = 0
            return
        self._version += 1
        self._saved = cursor

    async def _flush(self) -> bool:
        """Send the spans, and move the cursor. Return whether the collector took or refused them."""
        if self._spans:
            outcome = await self._exporter.export(self._spans)
            if outcome == "failed":
                self._metrics.count(TRACE_EXPORTS_FAILED_TOTAL)
                if not self._is_failing:
                    self._log.warning("traces.failing", spans=len(self._spans))
                self._is_failing = True
                return False
            self._is_failing = False
            self._metrics.count(TRACE_SPANS_TOTAL, outcome, amount=len(self._spans))
            if outcome == "rejected":
                self._log.error("traces.rejected", spans=len(self._spans), remedy="see the collector's log")
            self._spans = []
        if self._deliveries.skipped:
            self._metrics.count(TRACE_SPANS_TOTAL, "skipped", amount=self._deliveries.skipped)
            self._deliveries.skipped = 0
        await self._save_cursor()
        return True

    # -- spans

    async def _build_spans(self, ended: Entry, op: int) -> list[TraceSpan]:
        entries = self._kept.take_operation(ended.session, op)
        if not self._exporter.is_sampled(make_trace_id(ended.session, op)):
            return []
        if not entries:  # it began before this process read the log
            found = await self._store.list_entries(ended.session, after=op - 1, upto=ended.seq)
            entries = [entry for entry in found if entry.op == op]
        if not is_traced(entries):
            return []
        try:
            agent = await self._find_agent(ended.session)
        except NotFound:
            return []
        traced = TracedOperation(
            session=ended.session,
            agent=agent,
            op=op,
            entries=entries,
            heard=await self._find_heard(ended.session, entries),
            recalls=await self._load_recalls(entries),
        )
        self._deliveries.add(ended.session, op, entries)
        return build_operation_spans(traced, self._describe_model, capture=self._capture)

    async def _find_agent(self, session: str) -> str:
        agent = self._agents.get(session)
        if agent is None:
            if len(self._agents) >= MAX_KEPT_AGENTS:
                self._agents.clear()
            agent = self._agents[session] = (await self._store.get_session(session)).agent
        return agent

    async def _find_heard(self, session: str, entries: list[Entry]) -> list[Entry]:
        seqs = list_consumed_seqs(entries)
        return [self._kept.take_heard(session, seq) or await self._store.get_entry(session, seq) for seq in seqs]

    async def _load_recalls(self, entries: list[Entry]) -> dict[str, Mapping[str, MemoryAnswer]]:
        digests = {entry.body.why for entry in entries if isinstance(entry.body, Thought) and entry.body.why}
        found: dict[str, Mapping[str, MemoryAnswer]] = {}
        for digest in digests:
            data = await self._store.get_blob(digest)
            if data is not None:  # otherwise it was erased
                found[digest] = read_record(data).answers
        return found
