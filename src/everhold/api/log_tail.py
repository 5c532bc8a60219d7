"""The growing end of the log: wakes whoever watches it, and passes on replies while they are made.

All of it is a hint within one process. What was committed is read from the log; a lost hint costs `POLL_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from everhold.core.entries import Entry, EntryBody
from everhold.ports.store import Change, Step, Store

POLL_SECONDS: Final = 2.0
MAX_PIECES: Final = 2_000
"""What a watcher that does not keep up can have waiting; older pieces are dropped, as they may be."""

MAX_RENDERED_ENTRIES: Final = 256
_SETTLING_STEPS: Final = frozenset({Step.BEGIN, Step.THINK, Step.END, Step.PAUSE})
"""Commits after which what had grown is in the log, or is begun anew."""


class ReplyPiece(NamedTuple):
    """Some words of a reply that is being made. Lossy: the reply itself is what gets committed."""

    session: str
    op: int
    text: str
    reset: bool = False
    """What came before was no part of the reply after all: another model begins it anew."""
    at: int = 0
    """How many characters of the answer came before."""


class LogWatch:
    """One watcher's bell, and the pieces it has not seen yet. It is rung from `with` to the end of it."""

    def __init__(self, tail: LogTail, session: str, until: tuple[type[EntryBody], ...] = ()) -> None:
        self.session = session
        self.until = until
        """Nothing is of interest but commits with such an entry; if there are none, everything is."""
        self.grown = False
        """The log grew, which is for the watcher to take back before it looks."""
        self._tail = tail
        self._notified = False
        self._waiting: asyncio.Future[None] | None = None
        self._pieces: deque[ReplyPiece] = deque(maxlen=MAX_PIECES)

    def __enter__(self) -> LogWatch:
        self._tail.watches[self] = None
        return self

    def __exit__(self, *_: object) -> None:
        self._tail.watches.pop(self, None)

    def is_affected_by(self, change: Change) -> bool:
        if self.session and self.session != change.session:
            return False
        if not self.until:
            return True
        for draft in change.entries:  # noqa: SIM110  # for every commit: a generator costs more than the loop
            if isinstance(draft.body, self.until):
                return True
        return False

    def notify(self) -> None:
        self.grown = self._notified = True
        self._wake_waiter()

    def add_piece(self, piece: ReplyPiece) -> None:
        self._pieces.append(piece)
        self._notified = True
        self._wake_waiter()

    def take_pieces(self) -> list[ReplyPiece]:
        """What came since the last look. Look here and into the log, then wait."""
        self._notified = False
        found = list(self._pieces)
        self._pieces.clear()
        return found

    async def wait(self, seconds: float) -> bool:
        """Until something happens, or for `seconds`; whether something did."""
        if not self._notified:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            alarm = loop.call_later(seconds, self._wake_waiter)
            try:
                await self._waiting
            finally:
                alarm.cancel()
        return self._notified

    def _wake_waiter(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class _GrowingReply:
    """An answer in the making."""

    def __init__(self, op: int) -> None:
        self.op = op
        self.texts: list[str] = []
        self.size = 0

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.size += len(text)


class LogTail:
    """One per process. Told of every commit, and of every piece of a reply."""

    def __init__(self) -> None:
        self.closed = False
        self.commits: Counter[str] = Counter()
        """How many there were of each step, since this process started."""
        self._end = 0
        self.watches: dict[LogWatch, None] = {}
        """In the order in which they came: a set would ring them in another one with every run."""
        self._shown: dict[tuple[int, bool], bytes] = {}
        self._growing: dict[str, _GrowingReply] = {}

    def on_commit(self, change: Change) -> None:
        """Something was written: for the store to call after each commit."""
        self.commits[change.step] += 1
        if change.step in _SETTLING_STEPS:
            self._growing.pop(change.session, None)
        if change.entries:
            for watch in self.watches:
                if watch.is_affected_by(change):
                    watch.notify()

    def on_reply_text(self, session: str, op: int, text: str | None) -> None:
        """More of a reply; None: it begins anew. Called from inside a model's answer: never waits, never fails."""
        growing = self._growing.get(session)
        if growing is None or growing.op != op or text is None:
            growing = self._growing[session] = _GrowingReply(op)
        piece = ReplyPiece(session, op, text or "", reset=text is None, at=growing.size)
        growing.add(piece.text)
        for watch in self.watches:
            if not watch.until and (not watch.session or watch.session == session):
                watch.add_piece(piece)

    def get_growing_reply(self, session: str) -> list[ReplyPiece]:
        """The answer that is being made there, as far as it has come: for whoever comes late."""
        growing = self._growing.get(session)
        return (
            [ReplyPiece(session, growing.op, "".join(growing.texts))] if growing is not None and growing.texts else []
        )

    def render_entry(self, entry: Entry, show: Callable[[Entry], bytes]) -> bytes:
        """What `show` makes of an entry; made once for everybody who watches."""
        key = (entry.pos, entry.body is None)  # what is erased looks different from then on
        if key not in self._shown:
            if len(self._shown) >= MAX_RENDERED_ENTRIES:
                self._shown.clear()
            self._shown[key] = show(entry)
        return self._shown[key]

    def watch(self, session: str = "", *, until: tuple[type[EntryBody], ...] = ()) -> LogWatch:
        """A watch over one session, or over all."""
        return LogWatch(self, session, until)

    async def find_end_pos(self, store: Store) -> int:
        """The position of the newest entry there is."""
        self._end = await _find_newest_pos(store, self._end)
        return self._end

    def close(self) -> None:
        """The house closes: everybody who watches may go."""
        self.closed = True
        for watch in self.watches:
            watch.notify()

    @property
    def watchers(self) -> int:
        return len(self.watches)


async def _find_newest_pos(store: Store, low: int) -> int:
    """The highest position, found by halving: a store tells what comes after a place, not how far it goes."""
    high = low + 1
    while page := await store.read_feed(after=high, limit=1):
        low, high = page[0].pos, max(high, page[0].pos) * 2
    while high > low:
        middle = (low + high) // 2
        if page := await store.read_feed(after=middle, limit=1):
            low = page[0].pos
        else:
            high = middle
    return low
