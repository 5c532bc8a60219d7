"""What undo, retry, stop and erase write: the bodies of a change to a session's view. Nothing is ever deleted by it,
but by `erase`, which removes the words and keeps their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from everhold.core import forgetting
from everhold.core.context import IN_VIEW, live
from everhold.core.entries import (
    Began,
    Body,
    Changed,
    Compressed,
    Ended,
    Entry,
    Erased,
    Kind,
    Noted,
    OperationsUndone,
    StopRequested,
    Thought,
    Took,
)
from everhold.errors import Misuse, NotFound
from everhold.ports.store import Operation, Session, Store

ERASABLE: Final = (
    Kind.HEARD,
    Kind.THOUGHT,
    Kind.CALLED,
    Kind.RETURNED,
    Kind.NOTED,
    Kind.SAID,
    Kind.NOTIFIED,
    Kind.COMPRESSED,
)
"""Kinds that hold somebody's words. The others hold the session together; of them only some changes say something."""


class Amendment(Struct, frozen=True, kw_only=True):
    """Bodies to commit, and what to say about it. No bodies: there was nothing to do."""

    bodies: tuple[Body, ...] = ()
    say: str


async def undo(store: Store, session: Session, *, what: str = "turn", count: int = 1, again: bool = False) -> Amendment:
    """Take back the newest turns, or the newest fold. `again`: answer their messages once more."""
    if what == "compress":
        folds = await newest(store, session, "compression", 1)
        if not folds:
            return Amendment(say="There is no compression to undo.")
        undone = OperationsUndone(ops=(folds[0].op,))
        return Amendment(bodies=(Changed(change=undone),), say="The compression is undone; the originals are back.")
    if session.running == "turn":
        return Amendment(say="A turn is running. /stop it first.")
    turns = await newest(store, session, "turn", count)
    if not turns:
        return Amendment(say="There is nothing to undo.")
    undone = OperationsUndone(ops=tuple(sorted(turn.op for turn in turns)), again=again)
    taken = f"Took back {len(turns)} turn{'s' if len(turns) > 1 else ''}."
    return Amendment(bodies=(Changed(change=undone),), say="Trying again." if again else taken)


async def stop(store: Store, session: Session) -> Amendment:
    """Ask for the running turn to end."""
    for operation in await store.list_operations(session.id, types=("turn",), states=("running",)):
        return Amendment(bodies=(Changed(change=StopRequested(op=operation.op)),), say="Stopping.")
    return Amendment(say="Nothing is running.")


async def newest(store: Store, session: Session, what: str, count: int) -> list[Operation]:
    """The newest operations of a kind that are over and in the view: a fresh context hides what came before it."""
    found: list[Operation] = []
    before: int | None = None
    at = session.last_seq + 1
    marks = await store.list_operations(session.id, types=("context_reset",), newest_first=True, limit=8)
    fresh = next((mark.op for mark in marks if live(mark, at)), 0)
    while len(found) < count and (
        page := await store.list_operations(
            session.id, types=(what,), after=fresh, before=before, newest_first=True, limit=max(8, count)
        )
    ):
        found += [op for op in page if live(op, at) and op.state in IN_VIEW and op.state != "running"]
        before = page[-1].op
    return found[:count]


class Erasure(Struct, frozen=True, kw_only=True):
    """Everything that has to go with some entries."""

    seqs: tuple[int, ...]
    bodies: tuple[Body, ...]
    ends: tuple[int, ...]
    """Running operations that saw it: they end."""
    blobs: tuple[str, ...]
    exchanges: tuple[int, ...]
    """The entries, and those of the exchanges they belong to: a memory may know one of them as the place of all."""


async def erasure(store: Store, session: Session, seqs: Sequence[int], *, by: str, why: str) -> Erasure:
    """Plan the removal of `seqs`: with the folds and recorded requests that contain them, and whoever is at it."""
    entries = {entry.seq: entry for entry in await store.list_entries(session.id)}
    missing = [seq for seq in seqs if seq not in entries]
    if missing:
        raise NotFound(f"session {session.id} has no entry {missing[0]}")
    structure = [seq for seq in seqs if not erasable(entries[seq])]
    if structure:
        raise Misuse(
            f"entry {structure[0]} of session {session.id} is {entries[structure[0]].kind}: it holds no words to erase",
            remedy=f"erase entries of these kinds: {', '.join(ERASABLE)}",
        )
    operations = await store.list_operations(session.id)
    holders = _holders(entries.values(), set(seqs))
    # an operation that began at or after the first of them may have had it in its context
    first = min(seqs, default=0)
    # a summary holds what it covers, and what the summary it was made from held
    summaries = [entries[seq].op or 0 for seq in seqs if entries[seq].kind is Kind.COMPRESSED]
    folds = tuple(
        op.op
        for op in operations
        if op.type == "compression"
        and op.state == "done"
        and (any(holder <= op.covers for holder in holders) or any(op.op >= fold for fold in summaries))
        and op.last > first
    )
    jobs = {op.op for op in operations if op.type == "job"}
    gone = set(seqs)
    blobs: set[str] = set()
    for entry in entries.values():
        if isinstance(entry.body, Compressed) and entry.op in folds:
            gone.add(entry.seq)
        if isinstance(entry.body, Thought) and entry.seq >= first:
            blobs.update(blob for blob in (entry.body.recall, entry.body.why) if blob)
        if isinstance(entry.body, Noted) and not gone.isdisjoint(entry.body.cites):
            gone.add(entry.seq)
        # what a job thought of may repeat whatever it had read, and need not say where that stood
        if isinstance(entry.body, Thought) and entry.op in jobs and entry.seq > first:
            gone.add(entry.seq)
    running = tuple(op.op for op in operations if op.state == "running" and op.op >= min(holders, default=first))
    erased = Erased(seqs=tuple(sorted(gone)), compressions=folds, by=by, why=why)
    return Erasure(
        seqs=erased.seqs,
        bodies=(erased,),
        ends=running,
        blobs=tuple(sorted(blobs)),
        exchanges=tuple(sorted(gone | _held(entries.values(), holders))),
    )


def erasable(entry: Entry) -> bool:
    """Whether an entry holds words. Of changes only those do that somebody put into words."""
    if entry.kind is Kind.CHANGED:
        return entry.body is None or forgetting.wordy(entry)
    return entry.kind in ERASABLE


def _holders(entries: Iterable[Entry], seqs: set[int]) -> set[int]:
    """The operations that contain or consumed any of `seqs`."""
    holders: set[int] = set()
    for entry in entries:
        takes = entry.body.takes if isinstance(entry.body, Began | Took) else ()
        if entry.op is not None and (entry.seq in seqs or not seqs.isdisjoint(takes)):
            holders.add(entry.op)
    return holders


def _held(entries: Iterable[Entry], ops: set[int]) -> set[int]:
    """What these operations contain or consumed."""
    held: set[int] = set()
    for entry in entries:
        if entry.op in ops:
            held |= {entry.seq, *(entry.body.takes if isinstance(entry.body, Began | Took) else ())}
    return held


def command(
    bodies: tuple[Body, ...], *, trigger: str, takes: tuple[int, ...] = (), reader: str = ""
) -> tuple[Body, ...]:
    """Bodies as an operation of their own."""
    return (Began(type="command", takes=takes, consumer=reader, trigger=trigger), *bodies, Ended())
