"""Load the part of the log that a context needs, and cache contexts."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Sequence
from sys import getsizeof
from typing import Final

import msgspec
from msgspec import Struct, structs

from everhold.core.compression import estimate_message_tokens
from everhold.core.context import (
    ContextSelection,
    RequestPrefix,
    SessionContext,
    TurnEntries,
    assemble_context,
    is_in_context,
    list_context_stubs,
    list_turn_stubs,
    render_messages,
    select_operations,
    shorten_stub,
    shorten_stubs,
    shorten_turn_stubs,
    start_request_prefix,
)
from everhold.core.entries import (
    Began,
    Changed,
    Ended,
    Entry,
    EntryKind,
    EntryPinned,
    Heard,
    Thought,
    Took,
    VerbatimMessage,
)
from everhold.core.people import PeopleDirectory, can_hear
from everhold.core.pins import build_pinned
from everhold.core.retry import retry_delay_seconds
from everhold.ports.model import ModelMessage
from everhold.ports.store import Operation, Session, SessionSnapshot, Store

MAX_CACHED_BYTES: Final = 32_000_000
"""The limit of all cached contexts together, because a few long ones take as much memory as many short ones."""
MAX_BLOB_BYTES: Final = 8_000_000
MAX_READ_THROUGH: Final = 5_000
"""A range of so many entries is read as a whole, which is faster than to select the ones that are needed."""
MAX_GAP: Final = 200
"""Messages that are nearer to each other are read together, with what is between them."""
STEP_KINDS: Final = tuple(kind for kind in EntryKind if kind is not EntryKind.HEARD)
"""The kinds of the entries that belong to an operation."""
PAGE_ENTRIES: Final = 10_000


class CachedContext(Struct, frozen=True, kw_only=True):
    """A context with values derived from it, and the state of the session it was loaded from."""

    context: SessionContext
    messages: tuple[ModelMessage, ...]
    tokens: int
    generation: int
    newest_turn: int
    """The newest turn in the context."""
    stubs: frozenset[int] = frozenset()
    """The entries that are shown as stubs."""
    size_bytes: int = 0
    """The memory of the texts in its entries."""

    def list_seqs(self, session: str) -> set[int]:
        """Return the entries of `session` in the context."""
        own = (exchange for exchange in self.context.turns if exchange.steps[0].session == session)
        return {entry.seq for exchange in own for entry in (*exchange.heard, *exchange.steps)}

    def with_turn(self, exchange: TurnEntries) -> CachedContext:
        """Return this context with one more turn of the session at its end."""
        stubs = self.stubs | list_turn_stubs(exchange)
        exchange = shorten_turn_stubs(exchange, stubs)
        last = SessionContext(turns=(exchange,))
        view = self.context + last
        if stubs == self.stubs:
            more = render_messages(last, stubs=stubs)
            shown, weight = self.messages + more, self.tokens + estimate_message_tokens(more)
        else:
            view = shorten_stubs(view, stubs)
            shown = render_messages(view, stubs=stubs)
            weight = estimate_message_tokens(shown)
        return CachedContext(
            context=view,
            messages=shown,
            tokens=weight,
            generation=self.generation,
            newest_turn=exchange.op,
            stubs=stubs,
            size_bytes=self.size_bytes + _measure_turn(exchange) if stubs == self.stubs else _measure_context(view),
        )


def _measure_context(view: SessionContext) -> int:
    return sum(map(_measure_turn, view.turns))


def _measure_turn(exchange: TurnEntries) -> int:
    """Return the memory of a turn's texts. One character may take four bytes, and then each of its text does."""
    size = 0
    for entry in (*exchange.heard, *exchange.steps):
        body = entry.body
        size += getsizeof(getattr(body, "text", ""))
        if isinstance(body, Heard):
            for piece in body.pieces:
                size += getsizeof(piece.text)
        elif isinstance(body, Thought):
            size += getsizeof(body.reasoning)
            for call in body.calls:
                size += len(msgspec.json.encode(call.arguments))
    return size


def build_cached_context(view: SessionContext, *, generation: int, newest: int) -> CachedContext:
    """Return a context with its derived values."""
    stubs = list_context_stubs(view)
    view = shorten_stubs(view, stubs)
    shown = render_messages(view, stubs=stubs)
    return CachedContext(
        context=view,
        messages=shown,
        tokens=estimate_message_tokens(shown),
        generation=generation,
        newest_turn=newest,
        stubs=stubs,
        size_bytes=_measure_context(view),
    )


EMPTY_CONTEXT: Final = build_cached_context(SessionContext(), generation=0, newest=0)


class ContextCache:
    """The contexts of active sessions, so that a turn only loads what is new.

    A cached context is used while the session's generation and newest turn are those it was loaded with. Otherwise it
    is loaded again.
    """

    def __init__(
        self, *, max_sessions: int = 512, max_bytes: int = MAX_CACHED_BYTES, max_blob_bytes: int = MAX_BLOB_BYTES
    ) -> None:
        self.max_sessions = max_sessions
        self.max_bytes = max_bytes
        self.max_blob_bytes = max_blob_bytes
        self._size_bytes = 0
        """The size of all cached contexts."""
        self._blob_bytes = 0
        self._contexts: OrderedDict[str, CachedContext] = OrderedDict()
        self._prefixes: dict[str, RequestPrefix] = {}
        self._stored_blobs: set[bytes] = set()
        self._turn_counts: Counter[str] = Counter()
        self._refused_compressions: dict[str, tuple[int, float]] = {}
        """Session -> how often its compression was refused, and until when it is not tried again."""

    def filter_unstored_blobs(self, blobs: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return those of `blobs` that this process has not stored yet. Prompts are the same in each turn."""
        return tuple([blob for blob in blobs if blob not in self._stored_blobs]) if blobs else ()

    def mark_blobs_stored(self, blobs: tuple[bytes, ...]) -> None:
        """Remember that `blobs` are committed."""
        if not blobs:
            return
        if len(self._stored_blobs) > 4 * self.max_sessions or self._blob_bytes > self.max_blob_bytes:
            self._stored_blobs.clear()
            self._blob_bytes = 0
        self._blob_bytes += sum(map(len, blobs))
        self._stored_blobs.update(blobs)

    def count_turn(self, session: str) -> int:
        """Count one more turn of a session in this process, and return the number."""
        self._turn_counts[session] += 1
        return self._turn_counts[session]

    def can_compress(self, session: str, now: float) -> bool:
        """Return whether the delay after refused compressions has passed."""
        return now >= self._refused_compressions.get(session, (0, 0.0))[1]

    def record_compression_refused(self, session: str, now: float, jitter: float) -> None:
        attempts = self._refused_compressions.get(session, (0, 0.0))[0] + 1
        self._refused_compressions[session] = (attempts, now + (retry_delay_seconds(attempts, jitter=jitter) or 300.0))

    def record_compressed(self, session: str) -> None:
        self._refused_compressions.pop(session, None)

    async def load_current(self, store: Store, glance: SessionSnapshot) -> CachedContext:
        """Return the session's current context."""
        session = glance.session
        seen = self.get_cached(glance)
        if seen is None:
            view = await load_context_at(store, session, at=session.last_seq + 1, shorten=True)
            seen = build_cached_context(view, generation=session.generation, newest=glance.newest_turn)
        self.put(session.id, seen)
        return seen

    def get_cached(self, glance: SessionSnapshot) -> CachedContext | None:
        """Return the cached context, if it is still current."""
        seen = self._contexts.get(glance.session.id)
        same = seen is not None and (seen.generation, seen.newest_turn) == (
            glance.session.generation,
            glance.newest_turn,
        )
        return seen if same else None

    def put(self, session: str, seen: CachedContext) -> None:
        before = self._contexts.get(session)
        self._size_bytes += seen.size_bytes - (0 if before is None else before.size_bytes)
        self._contexts[session] = seen
        self._contexts.move_to_end(session)
        while len(self._contexts) > self.max_sessions or (
            self._size_bytes > self.max_bytes and len(self._contexts) > 1
        ):
            evicted, gone = self._contexts.popitem(last=False)
            self._size_bytes -= gone.size_bytes
            self._prefixes.pop(evicted, None)

    def extend_prefix(self, session: str, shown: tuple[ModelMessage, ...], *, system: str) -> RequestPrefix:
        """Return the sealed prefix of a request that begins with these messages. Most of it is usually cached."""
        before = self._prefixes.get(session)
        sealed = None if before is None or before.system != system else before.extend_with(shown)
        if sealed is None:
            sealed = start_request_prefix(system).extend_with(shown)
            assert sealed is not None, "a prefix without messages begins every request"
        if session in self._contexts:
            self._prefixes[session] = sealed
        return sealed


async def load_context_at(
    store: Store,
    session: Session,
    *,
    at: int,
    compression: int | None = None,
    over: bool = False,
    since: int = 0,
    has_pins: bool = True,
    shorten: bool = False,
) -> SessionContext:
    """Return the context just before seq `at`; `compression` pins one (0: none). A branch starts with its parent's
    context.

    Turns that the parent had not finished when the branch was made are excluded (`over`); they continue in the parent.
    With `since`, operations that began before it are not loaded. A branch has taken over its parent's pins, so the
    parent's context is loaded without them (`has_pins`). With `shorten`, of the entries that are shown as stubs only
    the shown parts are loaded.
    """
    erased: set[int] = set()
    while True:
        selection = await select_context(store, session.id, at=at, compression=compression, over=over, erased=erased)
        if since:
            selection = structs.replace(selection, turns=tuple(it for it in selection.turns if it.op > since))
        view = await _load_selection(store, session.id, selection, shorten=shorten)
        if selection.compression is None or view.compression is not None:
            break
        erased.add(selection.compression.op)  # the compression was in force at that time, but its summary was erased
    if has_pins and not since:
        view = structs.replace(view, pins=await load_pinned(store, session.id, at=at))
    if selection.is_whole and session.parent and not since:
        parent = await store.get_session(session.parent)
        above = await load_context_at(
            store, parent, at=session.parent_at + 1, over=True, has_pins=False, shorten=shorten
        )
        return above + view
    return view


class PinnedEntry(Struct, frozen=True, kw_only=True):
    """A pin and the entry it names."""

    op: int
    """The operation that undoing removes the pin by."""
    pin: EntryPinned
    entry: Entry


async def list_pins(store: Store, session: str, *, at: int) -> list[PinnedEntry]:
    """Return the pins that were in force just before `at`. A context reset ends those before it."""
    pins = [pin for pin in await store.list_operations(session, types=("pin",), before=at) if is_in_context(pin, at)]
    if not pins:
        return []
    fresh = await _find_newest_operation(store, session, "context_reset", at=at)
    found = []
    for pin in pins:
        change = (await store.get_entry(session, pin.op)).body
        if pin.op > (fresh.op if fresh else 0) and isinstance(change, Changed):
            named = change.change
            assert isinstance(named, EntryPinned), "a pin among the operations is such a change"
            entry = await store.get_entry(named.session or session, named.seq)
            found.append(PinnedEntry(op=pin.op, pin=named, entry=entry))
    return found


async def load_pinned(store: Store, session: str, *, at: int) -> tuple[VerbatimMessage, ...]:
    """Return what the pins in force just before `at` show."""
    pinned = (build_pinned(one.entry) for one in await list_pins(store, session, at=at))
    return tuple(one for one in pinned if one is not None)


async def has_words_of_others(
    store: Store, session: Session, view: SessionContext, people: PeopleDirectory, *, audience: Collection[str]
) -> bool:
    """Return whether a context of a session shows a message that somebody of the audience did not hear. That happens if
    two identities wrote into one session while they were linked, and are not linked any more.
    """
    shown = [entry for exchange in view.turns for entry in exchange.heard]
    if (covering := view.compression) is not None:
        # the summary may repeat everything since the last reset
        resets = await store.list_operations(covering.session, types=("context_reset",), newest_first=True, limit=1)
        after = resets[0].op if resets else 0
        shown += await store.list_entries(covering.session, after=after, upto=covering.seq, kinds=(EntryKind.HEARD,))
    shown += [one.entry for one in await list_pins(store, session.id, at=session.last_seq + 1)]
    present = people.expand_audience(audience)
    return any(
        not can_hear(present, entry.body.stamp.audience, entry.at)
        for entry in shown
        if isinstance(entry.body, Heard) and entry.body.stamp.audience
    )


async def select_context(
    store: Store,
    session: str,
    *,
    at: int,
    compression: int | None = None,
    over: bool = False,
    erased: Collection[int] = (),
) -> ContextSelection:
    """Select the operations in the context, from the newest compression or context reset on. Ignores `erased`
    compressions.
    """
    fresh = await _find_newest_operation(store, session, "context_reset", at=at)
    if compression is None:
        newest = await _find_newest_operation(store, session, "compression", at=at, without=erased)
    else:
        newest = await _find_pinned_compression(store, session, 0 if compression in erased else compression)
    after = max(fresh.op if fresh else 0, newest.covers if newest else 0)
    turns = await store.list_operations(session, types=("turn",), after=after, before=at)
    marks = [operation for operation in (fresh, newest) if operation is not None]
    return select_operations([*marks, *turns], at=at, compression=compression, over=over)


async def _find_pinned_compression(store: Store, session: str, compression: int) -> Operation | None:
    found = (
        await store.list_operations(session, types=("compression",), after=compression - 1, before=compression + 1)
        if compression
        else []
    )
    return found[0] if found else None


async def _find_newest_operation(
    store: Store, session: str, what: str, *, at: int, without: Collection[int] = ()
) -> Operation | None:
    """Return the newest operation of a type that was in force just before `at`. Few are undone, so a small page is
    usually enough.
    """
    before = at
    while page := await store.list_operations(session, types=(what,), before=before, newest_first=True, limit=8):
        for operation in page:
            if (
                operation.state == "done"
                and operation.last < at
                and is_in_context(operation, at)
                and operation.op not in without
            ):
                return operation
        before = page[-1].op
    return None


async def _load_selection(store: Store, session: str, selection: ContextSelection, *, shorten: bool) -> SessionContext:
    entries = []
    if selection.compression is not None:
        compression = selection.compression
        entries += await store.list_entries(
            session, after=compression.op, upto=compression.last, kinds=(EntryKind.COMPRESSED,)
        )
    if selection.turns:
        last = max(turn.last or 0 for turn in selection.turns)
        running = any(not turn.last for turn in selection.turns)
        upto = None if running else last
        entries += await _load_turn_entries(store, session, selection.turns, upto=upto, shorten=shorten)
    return assemble_context(selection, entries)


async def _load_turn_entries(
    store: Store, session: str, turns: Sequence[Operation], *, upto: int | None, shorten: bool
) -> list[Entry]:
    if not shorten:
        return await list_turn_entries(store, session, turns, upto=upto)
    first = min(turn.first for turn in turns)
    end = (await store.get_session_head(session))[0] if upto is None else upto
    if end - first <= MAX_READ_THROUGH:
        return await _load_shortened_entries(store, session, first=first, upto=upto)
    found = {entry.seq: entry for entry in await list_turn_entries(store, session, turns, upto=upto)}
    _shorten_stubs_of(found, list(found.values()))
    return list(found.values())


async def list_turn_entries(
    store: Store, session: str, turns: Sequence[Operation], *, upto: int | None = None
) -> list[Entry]:
    """Return the entries of turns and the messages that they took, in order; perhaps also others between them.

    If many messages wait between the first message of a turn and its end, they are not read.
    """
    first = min(turn.first for turn in turns)
    end = (await store.get_session_head(session))[0] if upto is None else upto
    if end - first <= MAX_READ_THROUGH:
        return await store.list_entries(session, after=first - 1, upto=upto)
    begun = min(turn.op for turn in turns)
    steps = await store.list_entries(session, after=begun - 1, upto=upto, kinds=STEP_KINDS)
    ops = {turn.op for turn in turns}
    taken = sorted(
        seq
        for entry in steps
        if entry.op in ops and isinstance(entry.body, Began | Took)
        for seq in entry.body.takes
        if upto is None or seq <= upto
    )
    heard = [
        entry
        for start, stop in _group_near(taken)
        for entry in await store.list_entries(session, after=start - 1, upto=stop, kinds=(EntryKind.HEARD,))
    ]
    return sorted((*heard, *steps), key=lambda entry: entry.seq)


def _group_near(seqs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each group of seqs that are near each other."""
    start = 0
    for seq, following in itertools.zip_longest(seqs, seqs[1:], fillvalue=0):
        start = start or seq
        if not following or following - seq > MAX_GAP:
            yield start, seq
            start = 0


async def _load_shortened_entries(store: Store, session: str, *, first: int, upto: int | None) -> list[Entry]:
    """Load entries in pages. A turn's later entries say which messages and results are stubs, and only what is shown
    of these stays in memory."""
    found: dict[int, Entry] = {}
    after = first - 1
    while page := await store.read_log(session, after=after, upto=upto, limit=PAGE_ENTRIES):
        found.update((entry.seq, entry) for entry in page)
        after = page[-1].seq
        _shorten_stubs_of(found, page)
        if not page.has_more:
            break
    return list(found.values())


def _shorten_stubs_of(found: dict[int, Entry], steps: Sequence[Entry]) -> None:
    """Shorten what the steps of turns say is shown as a stub."""
    for entry in steps:
        if isinstance(entry.body, Thought | Ended) and entry.body.stubs:
            found.update((seq, shorten_stub(found[seq])) for seq in entry.body.stubs if seq in found)
