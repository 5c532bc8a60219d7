"""Reads the part of the log that a context needs: the window, not the history."""

from __future__ import annotations

from everhold.core.context import Selection, View, assemble, choose, live
from everhold.core.entries import Kind
from everhold.ports.store import Operation, Session, Store


async def view_at(store: Store, session: Session, *, at: int, fold: int | None = None) -> View:
    """The view just before seq `at`; `fold` pins one (0: none). A branch starts with its parent's view."""
    selection = await select(store, session.id, at=at, fold=fold)
    view = await _load(store, session.id, selection)
    if selection.whole and session.parent:
        parent = await store.session(session.parent)
        return await view_at(store, parent, at=session.parent_at + 1) + view
    return view


async def select(store: Store, session: str, *, at: int, fold: int | None = None) -> Selection:
    """Which operations are in the view, found through the newest fold and fresh context."""
    fresh = await _newest(store, session, "fresh", at=at)
    if fold is None:
        newest = await _newest(store, session, "fold", at=at)
    else:
        newest = (await store.operations(session, after=fold - 1, before=fold + 1) or [None])[0] if fold else None
    after = max(fresh.op if fresh else 0, newest.covers if newest else 0)
    turns = await store.operations(session, what=("turn",), after=after, before=at)
    marks = [operation for operation in (fresh, newest) if operation is not None]
    return choose([*marks, *turns], at=at, fold=fold)


async def _newest(store: Store, session: str, what: str, *, at: int) -> Operation | None:
    """The newest one that was in force just before `at`. Undone ones are few, so a small page nearly always does."""
    before = at
    while page := await store.operations(session, what=(what,), before=before, newest_first=True, limit=8):
        for operation in page:
            if operation.state == "done" and operation.last < at and live(operation, at):
                return operation
        before = page[-1].op
    return None


async def _load(store: Store, session: str, selection: Selection) -> View:
    entries = []
    if selection.fold is not None:
        fold = selection.fold
        entries += await store.entries(session, after=fold.op, upto=fold.last, kinds=(Kind.FOLDED,))
    if selection.turns:
        first = min(turn.first for turn in selection.turns)
        last = max(turn.last or 0 for turn in selection.turns)
        running = any(not turn.last for turn in selection.turns)
        entries += await store.entries(session, after=first - 1, upto=None if running else last)
    return assemble(selection, entries)
