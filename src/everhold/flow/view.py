"""Reads the part of the log that a context needs: the window, not the history."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from typing import Final

from msgspec import Struct, structs

from everhold.core.compression import tokens
from everhold.core.context import (
    Exchange,
    Sealed,
    Selection,
    View,
    assemble,
    choose,
    live,
    marked,
    messages,
    seal,
    stubbed,
)
from everhold.core.entries import Kind
from everhold.core.retry import wait_seconds
from everhold.ports.model import Message
from everhold.ports.store import Glance, Operation, Session, Store


class Seen(Struct, frozen=True, kw_only=True):
    """A view with what follows from it, and what it was read from."""

    view: View
    messages: tuple[Message, ...]
    tokens: int
    generation: int
    newest: int
    """The newest turn in it."""
    seqs: frozenset[int]
    """The session's own entries in it."""
    stubs: frozenset[int] = frozenset()
    """Those that are shown as stubs."""

    def plus(self, exchange: Exchange) -> Seen:
        """This with one more turn of the session at its end."""
        last = View(exchanges=(exchange,))
        view, stubs = self.view + last, self.stubs | marked(exchange)
        if stubs == self.stubs:
            more = messages(last, stubs=stubs)
            shown, weight = self.messages + more, self.tokens + tokens(more)
        else:
            shown = messages(view, stubs=stubs)
            weight = tokens(shown)
        return Seen(
            view=view,
            messages=shown,
            tokens=weight,
            generation=self.generation,
            newest=exchange.op,
            seqs=self.seqs.union(_seqs(exchange)),
            stubs=stubs,
        )


def see(view: View, session: str, *, generation: int, newest: int) -> Seen:
    """A view of `session`, with what follows from it."""
    stubs = stubbed(view)
    shown = messages(view, stubs=stubs)
    own = (exchange for exchange in view.exchanges if exchange.steps[0].session == session)
    seqs = frozenset(seq for exchange in own for seq in _seqs(exchange))
    return Seen(
        view=view,
        messages=shown,
        tokens=tokens(shown),
        generation=generation,
        newest=newest,
        seqs=seqs,
        stubs=stubs,
    )


NOTHING: Final = see(View(), "", generation=0, newest=0)


def _seqs(exchange: Exchange) -> list[int]:
    return [entry.seq for entry in (*exchange.heard, *exchange.steps)]


class Views:
    """The views of sessions that are talking, so that a turn costs what is new in it.

    Only a shortcut: what is kept is used while the session's generation and its newest turn are the ones it was read
    under, and read again otherwise.
    """

    def __init__(self, *, most: int = 512) -> None:
        self.most = most
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._sealed: dict[str, Sealed] = {}
        self._kept: set[bytes] = set()
        self._turns: Counter[str] = Counter()
        self._refused: dict[str, tuple[int, float]] = {}
        """Sessions whose compression was refused: how often, and until when it is not tried again."""

    def unkept(self, blobs: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Those of `blobs` that this process has not stored yet: prompts are the same turn after turn."""
        return tuple(blob for blob in blobs if blob not in self._kept)

    def kept(self, blobs: tuple[bytes, ...]) -> None:
        """`blobs` are committed."""
        if len(self._kept) > 4 * self.most:
            self._kept.clear()
        self._kept.update(blobs)

    def count(self, session: str) -> int:
        """One more turn of a session in this process; how many there were."""
        self._turns[session] += 1
        return self._turns[session]

    def may_fold(self, session: str, now: float) -> bool:
        """Whether a compression that was refused has been left alone for long enough."""
        return now >= self._refused.get(session, (0, 0.0))[1]

    def fold_refused(self, session: str, now: float, jitter: float) -> None:
        attempts = self._refused.get(session, (0, 0.0))[0] + 1
        self._refused[session] = (attempts, now + (wait_seconds(attempts, jitter=jitter) or 300.0))

    def folded(self, session: str) -> None:
        self._refused.pop(session, None)

    async def now(self, store: Store, glance: Glance) -> Seen:
        """The session's view as it stands."""
        session = glance.session
        seen = self.known(glance)
        if seen is None:
            view = await view_at(store, session, at=session.last_seq + 1)
            seen = see(view, session.id, generation=session.generation, newest=glance.newest_turn)
        self.keep(session.id, seen)
        return seen

    def known(self, glance: Glance) -> Seen | None:
        """The view that was kept, if it is the session's still."""
        seen = self._seen.get(glance.session.id)
        same = seen is not None and (seen.generation, seen.newest) == (glance.session.generation, glance.newest_turn)
        return seen if same else None

    def keep(self, session: str, seen: Seen) -> None:
        self._seen[session] = seen
        self._seen.move_to_end(session)
        while len(self._seen) > self.most:
            gone, _ = self._seen.popitem(last=False)
            self._sealed.pop(gone, None)

    def sealed(self, session: str, shown: tuple[Message, ...], *, system: str) -> Sealed:
        """The beginning of a request that shows these messages first, sealed: most of it was shown before."""
        before = self._sealed.get(session)
        sealed = None if before is None or before.system != system else before.plus(shown)
        if sealed is None:
            sealed = seal(system).plus(shown)
            assert sealed is not None, "whatever is shown begins with nothing"
        if session in self._seen:
            self._sealed[session] = sealed
        return sealed


async def view_at(
    store: Store, session: Session, *, at: int, fold: int | None = None, over: bool = False, since: int = 0
) -> View:
    """The view just before seq `at`; `fold` pins one (0: none). A branch starts with its parent's view.

    What the parent had not finished when the branch was made (`over`) is not part of it: it goes on over there. Who
    wants only what was begun after `since` need not wait for the rest to be read.
    """
    erased: set[int] = set()
    while True:
        selection = await select(store, session.id, at=at, fold=fold, over=over, erased=erased)
        if since:
            selection = structs.replace(selection, turns=tuple(it for it in selection.turns if it.op > since))
        view = await _load(store, session.id, selection)
        if selection.fold is None or view.fold is not None:
            break
        erased.add(selection.fold.op)  # it was in force at that time; what it stood for is told by the originals
    if selection.whole and session.parent and not since:
        parent = await store.get_session(session.parent)
        return await view_at(store, parent, at=session.parent_at + 1, over=True) + view
    return view


async def select(
    store: Store,
    session: str,
    *,
    at: int,
    fold: int | None = None,
    over: bool = False,
    erased: Collection[int] = (),
) -> Selection:
    """Which operations are in the view, found through the newest fold and fresh context. Passes over `erased` folds."""
    fresh = await _newest(store, session, "context_reset", at=at)
    if fold is None:
        newest = await _newest(store, session, "compression", at=at, without=erased)
    else:
        newest = await _pinned(store, session, 0 if fold in erased else fold)
    after = max(fresh.op if fresh else 0, newest.covers if newest else 0)
    turns = await store.list_operations(session, types=("turn",), after=after, before=at)
    marks = [operation for operation in (fresh, newest) if operation is not None]
    return choose([*marks, *turns], at=at, fold=fold, over=over)


async def _pinned(store: Store, session: str, fold: int) -> Operation | None:
    found = (
        await store.list_operations(session, types=("compression",), after=fold - 1, before=fold + 1) if fold else []
    )
    return found[0] if found else None


async def _newest(store: Store, session: str, what: str, *, at: int, without: Collection[int] = ()) -> Operation | None:
    """The newest one that was in force just before `at`. Undone ones are few, so a small page nearly always does."""
    before = at
    while page := await store.list_operations(session, types=(what,), before=before, newest_first=True, limit=8):
        for operation in page:
            if (
                operation.state == "done"
                and operation.last < at
                and live(operation, at)
                and operation.op not in without
            ):
                return operation
        before = page[-1].op
    return None


async def _load(store: Store, session: str, selection: Selection) -> View:
    entries = []
    if selection.fold is not None:
        fold = selection.fold
        entries += await store.list_entries(session, after=fold.op, upto=fold.last, kinds=(Kind.COMPRESSED,))
    if selection.turns:
        first = min(turn.first for turn in selection.turns)
        last = max(turn.last or 0 for turn in selection.turns)
        running = any(not turn.last for turn in selection.turns)
        entries += await store.list_entries(session, after=first - 1, upto=None if running else last)
    return assemble(selection, entries)
