"""Notifies watchers of new entries, and passes on the text of replies while the model produces it.

Entries are read from the log, and a lost hint delays a watcher by `POLL_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

from everhold.core.entries import Entry, EntryKind
from everhold.ports.hosts import CommitHint, CommitNotifier, ReplyPiece
from everhold.ports.store import Step, Store

POLL_SECONDS: Final = 2.0
MAX_PIECES: Final = 2_000
"""The limit of pieces that wait for a slow watcher. Older pieces are dropped, because pieces may be lost."""

MAX_REMOTE_REPLIES: Final = 1_000
MAX_RENDERED_ENTRIES: Final = 256
MAX_RENDERED_BYTES: Final = 4 << 20
_SETTLING_STEPS: Final[frozenset[str]] = frozenset({Step.BEGIN, Step.THINK, Step.END, Step.PAUSE})
"""Commits after which the text so far is in the log, or the reply starts again."""


class LogWatch:
    """The notifications of one watcher, and the pieces it has not read yet. It is active inside its `with` block."""

    def __init__(self, tail: LogTail, session: str, until: tuple[EntryKind, ...] = ()) -> None:
        self.session = session
        self.until = until
        """Only commits with such an entry notify this watch; if empty, all commits and pieces do."""
        self.grown = False
        """The log has new entries. The watcher sets it to False before it reads."""
        self._tail = tail
        self._notified = False
        self._waiting: asyncio.Future[None] | None = None
        self._pieces: deque[ReplyPiece] = deque(maxlen=MAX_PIECES)

    def __enter__(self) -> LogWatch:
        self._tail.watches[self] = None
        if not self.until:
            self._tail.announce_watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._tail.watches.pop(self, None)

    def is_affected_by(self, hint: CommitHint) -> bool:
        if self.session and self.session != hint.session:
            return False
        if not self.until:
            return True
        for kind in hint.kinds:  # noqa: SIM110  # runs for every commit, and a generator is slower than the loop
            if kind in self.until:
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
        """Return the pieces since the last call. A watcher calls this and reads the log before it waits."""
        self._notified = False
        found = list(self._pieces)
        self._pieces.clear()
        return found

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification, for at most `seconds`. Returns whether there was one."""
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
    """The text so far of a reply that the model is producing."""

    def __init__(self, op: int) -> None:
        self.op = op
        self.texts: list[str] = []
        self.size = 0

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.size += len(text)


class LogTail:
    """Receives every commit and every piece of a reply. There is one per process.

    Implements `ports.hosts.ReplyTextExchange`.
    """

    def __init__(self, notifier: CommitNotifier | None = None) -> None:
        """`notifier` passes the text of growing replies between the hosts of one store."""
        self._notifier = notifier
        if notifier is not None:
            notifier.connect_texts(self)
        self._reply_waits = 0
        self._no_reply_wait = asyncio.Event()
        self._no_reply_wait.set()
        self.closed = False
        self.commits: Counter[str] = Counter()
        """The number of commits of this process since it started, by step."""
        self._end = 0
        self.watches: dict[LogWatch, None] = {}
        """A dict because its order is the same in every run, unlike that of a set."""
        self._shown: dict[tuple[int, bool], bytes] = {}
        self._shown_bytes = 0
        self._growing: dict[str, _GrowingReply] = {}
        self._remote: dict[str, _GrowingReply] = {}
        """The replies that grow on other hosts, by session."""

    def on_commit(self, hint: CommitHint) -> None:
        """Notify the watchers of a commit."""
        if not hint.is_remote:
            self.commits[hint.step] += 1
        if hint.step in _SETTLING_STEPS:
            self._growing.pop(hint.session, None)
            self._remote.pop(hint.session, None)
        if hint.kinds:
            for watch in self.watches:
                if watch.is_affected_by(hint):
                    watch.notify()

    def on_reply_text(self, session: str, op: int, text: str | None) -> None:
        """Pass on more text of a reply; None starts it again. Called during a model call, so it must not wait."""
        growing = self._growing.get(session)
        if growing is None or growing.op != op or text is None:
            growing = self._growing[session] = _GrowingReply(op)
        piece = ReplyPiece(session, op, text or "", reset=text is None, at=growing.size)
        growing.add(piece.text)
        self._show_piece(piece)
        if self._notifier is not None:
            self._notifier.publish_text(piece)

    def _show_piece(self, piece: ReplyPiece) -> None:
        for watch in self.watches:
            if not watch.until and (not watch.session or watch.session == piece.session):
                watch.add_piece(piece)

    # -- growing replies of other hosts ------------------------------------------------------------------------------

    def receive_text(self, piece: ReplyPiece) -> None:
        """Pass on the text of a reply that grows on another host. Repeated text, or text after a gap, is left out."""
        growing = self._remote.get(piece.session)
        if growing is None or growing.op != piece.op or piece.reset:
            if piece.at:
                return  # its beginning is missing
            while len(self._remote) >= MAX_REMOTE_REPLIES:
                self._remote.pop(next(iter(self._remote)))
            growing = self._remote[piece.session] = _GrowingReply(piece.op)
        known = growing.size - piece.at
        if known < 0 or known >= len(piece.text) > 0:
            return
        piece = piece._replace(text=piece.text[known:], at=growing.size)
        growing.add(piece.text)
        self._show_piece(piece)

    def list_growing(self, session: str) -> list[ReplyPiece]:
        sessions = [session] if session else list(self._growing)
        return [
            ReplyPiece(one, growing.op, "".join(growing.texts))
            for one in sessions
            if (growing := self._growing.get(one)) is not None and growing.texts
        ]

    def list_watched(self) -> set[str]:
        return {watch.session for watch in self.watches if not watch.until}

    def announce_watch(self) -> None:
        """Tell other hosts that a watcher of growing replies has come."""
        if self._notifier is not None:
            self._notifier.announce_watch()

    def get_growing_reply(self, session: str) -> list[ReplyPiece]:
        """Return the text so far of the session's growing reply, for a watcher that starts late."""
        growing = self._growing.get(session) or self._remote.get(session)
        return (
            [ReplyPiece(session, growing.op, "".join(growing.texts))] if growing is not None and growing.texts else []
        )

    def render_entry(self, entry: Entry, show: Callable[[Entry], bytes]) -> bytes:
        """Return `show(entry)`, computed once for all watchers."""
        key = (entry.pos, entry.body is None)  # erasure changes how an entry is rendered
        shown = self._shown.get(key)
        if shown is None:
            shown = show(entry)
            if len(self._shown) >= MAX_RENDERED_ENTRIES or self._shown_bytes > MAX_RENDERED_BYTES:
                self._shown.clear()
                self._shown_bytes = 0
            self._shown[key] = shown
            self._shown_bytes += len(shown)
        return shown

    def watch(self, session: str = "", *, until: tuple[EntryKind, ...] = ()) -> LogWatch:
        """Return a watch over one session, or over all."""
        return LogWatch(self, session, until)

    async def find_end_pos(self, store: Store) -> int:
        """Return the pos of the newest entry."""
        self._end = await _find_newest_pos(store, self._end)
        return self._end

    @contextlib.contextmanager
    def count_reply_wait(self) -> Iterator[None]:
        """Count a request that waits for a reply, for the length of a block."""
        self._reply_waits += 1
        self._no_reply_wait.clear()
        try:
            yield
        finally:
            self._reply_waits -= 1
            if not self._reply_waits:
                self._no_reply_wait.set()

    async def finish_reply_waits(self, seconds: float) -> None:
        """Wait until no request waits for a reply, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._no_reply_wait.wait()

    def close(self) -> None:
        """End all watches, because the gateway stops."""
        self.closed = True
        for watch in self.watches:
            watch.notify()

    @property
    def watchers(self) -> int:
        return len(self.watches)


async def _find_newest_pos(store: Store, low: int) -> int:
    """Return the highest pos, found by bisection because a store has no operation for it."""
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
