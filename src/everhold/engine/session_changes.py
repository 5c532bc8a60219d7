"""What undo, retry, stop and erase write: the bodies of a change to a session's view. Nothing is ever deleted by it,
but by `erase`, which removes the words and keeps their place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from everhold.core import forgetting
from everhold.core.context import VISIBLE_OUTCOMES, is_in_context
from everhold.core.entries import (
    Began,
    Changed,
    Compressed,
    Ended,
    Entry,
    EntryBody,
    EntryKind,
    Erased,
    Heard,
    Noted,
    OperationsUndone,
    StopRequested,
    Thought,
    Took,
)
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.store import Operation, Session, Store

ERASABLE_KINDS: Final = (
    EntryKind.HEARD,
    EntryKind.THOUGHT,
    EntryKind.CALLED,
    EntryKind.RETURNED,
    EntryKind.NOTED,
    EntryKind.SAID,
    EntryKind.NOTIFIED,
    EntryKind.COMPRESSED,
)
"""Kinds that hold somebody's words. The others hold the session together; of them only some changes say something."""


class SessionAmendment(Struct, frozen=True, kw_only=True):
    """Bodies to commit, and what to say about it. No bodies: there was nothing to do."""

    bodies: tuple[EntryBody, ...] = ()
    reply: str


async def plan_undo(
    store: Store, session: Session, *, what: str = "turn", count: int = 1, again: bool = False
) -> SessionAmendment:
    """Take back the newest turns, or the newest fold. `again`: answer their messages once more."""
    if what == "compress":
        compressions = await list_newest_operations(store, session, "compression", 1)
        if not compressions:
            return SessionAmendment(reply="There is no compression to undo.")
        undone = OperationsUndone(ops=(compressions[0].op,))
        return SessionAmendment(
            bodies=(Changed(change=undone),), reply="The compression is undone; the originals are back."
        )
    if session.running == "turn":
        return SessionAmendment(reply="A turn is running. /stop it first.")
    turns = await list_newest_operations(store, session, "turn", count)
    if not turns:
        if not await _has_waiting_message(store, session):
            return SessionAmendment(reply="There is nothing to undo.")
        if again:
            return SessionAmendment(reply="Your message is kept, and it is tried again without being asked.")
        return SessionAmendment(
            reply="Your message has no answer yet that could be undone. /stop puts the message aside."
        )
    undone = OperationsUndone(ops=tuple(sorted(turn.op for turn in turns)), again=again)
    taken = f"Took back {len(turns)} turn{'s' if len(turns) > 1 else ''}."
    return SessionAmendment(bodies=(Changed(change=undone),), reply="Trying again." if again else taken)


async def _has_waiting_message(store: Store, session: Session) -> bool:
    """Whether a message waits for its turn, for example because the model is away."""
    return any(
        isinstance(entry.body, Heard) and entry.body.command is None for entry in await store.list_pending(session.id)
    )


async def plan_stop(store: Store, session: Session) -> SessionAmendment:
    """Ask for the running turn to end."""
    for operation in await store.list_operations(session.id, types=("turn",), states=("running",)):
        return SessionAmendment(bodies=(Changed(change=StopRequested(op=operation.op)),), reply="Stopping.")
    return SessionAmendment(reply="Nothing is running.")


async def list_newest_operations(store: Store, session: Session, what: str, count: int) -> list[Operation]:
    """The newest operations of a kind that are over and in the view: a fresh context hides what came before it."""
    found: list[Operation] = []
    before: int | None = None
    at = session.last_seq + 1
    marks = await store.list_operations(session.id, types=("context_reset",), newest_first=True, limit=8)
    fresh = next((mark.op for mark in marks if is_in_context(mark, at)), 0)
    while len(found) < count and (
        page := await store.list_operations(
            session.id, types=(what,), after=fresh, before=before, newest_first=True, limit=max(8, count)
        )
    ):
        found += [op for op in page if is_in_context(op, at) and op.state in VISIBLE_OUTCOMES and op.state != "running"]
        before = page[-1].op
    return found[:count]


class ErasurePlan(Struct, frozen=True, kw_only=True):
    """Everything that has to go with some entries."""

    seqs: tuple[int, ...]
    bodies: tuple[EntryBody, ...]
    ops_to_end: tuple[int, ...]
    """Running operations that saw it: they end."""
    blobs: tuple[str, ...]
    exchanges: tuple[int, ...]
    """The entries, and those of the exchanges they belong to: a memory may know one of them as the place of all."""


async def plan_erasure(store: Store, session: Session, seqs: Sequence[int], *, by: str, why: str) -> ErasurePlan:
    """Plan the removal of `seqs`: with the folds and recorded requests that contain them, and whoever is at it."""
    entries = {entry.seq: entry for entry in await store.list_entries(session.id)}
    _check_erasable(entries, seqs, session=session.id)
    operations = await store.list_operations(session.id)
    holders = _find_operations_with(entries.values(), set(seqs))
    # an operation that began at or after the first of them may have had it in its context
    first = min(seqs, default=0)
    # a summary holds what it covers, and what the summary it was made from held
    summaries = [entries[seq].op or 0 for seq in seqs if entries[seq].kind is EntryKind.COMPRESSED]
    compressions = tuple(
        op.op
        for op in operations
        if op.type == "compression"
        and op.state == "done"
        and (any(holder <= op.covers for holder in holders) or any(op.op >= compression for compression in summaries))
        and op.last > first
    )
    jobs = {op.op for op in operations if op.type == "job"}
    gone, blobs = _find_copies(entries.values(), seqs, folds=compressions, jobs=jobs)
    running = tuple(op.op for op in operations if op.state == "running" and op.op >= min(holders, default=first))
    erased = Erased(seqs=tuple(sorted(gone)), compressions=compressions, by=by, why=why)
    return ErasurePlan(
        seqs=erased.seqs,
        bodies=(erased,),
        ops_to_end=running,
        blobs=tuple(sorted(blobs)),
        exchanges=tuple(sorted(gone | _find_entries_of(entries.values(), holders))),
    )


def _check_erasable(entries: Mapping[int, Entry], seqs: Sequence[int], *, session: str) -> None:
    missing = [seq for seq in seqs if seq not in entries]
    if missing:
        raise NotFound(f"session {session} has no entry {missing[0]}")
    structure = [seq for seq in seqs if not is_erasable(entries[seq])]
    if structure:
        raise InvalidRequest(
            f"entry {structure[0]} of session {session} is {entries[structure[0]].kind}: it holds no words to erase",
            remedy=f"erase entries of these kinds: {', '.join(ERASABLE_KINDS)}",
        )


def _find_copies(
    entries: Iterable[Entry], seqs: Sequence[int], *, folds: Collection[int], jobs: Collection[int]
) -> tuple[set[int], set[str]]:
    """The entries that repeat words of `seqs`, with `seqs` themselves, and the recorded requests that may hold them."""
    first = min(seqs, default=0)
    gone = set(seqs)
    blobs: set[str] = set()
    for entry in entries:
        if isinstance(entry.body, Compressed) and entry.op in folds:
            gone.add(entry.seq)
        if isinstance(entry.body, Thought) and entry.seq >= first:
            blobs.update(blob for blob in (entry.body.recall, entry.body.why) if blob)
        if isinstance(entry.body, Noted) and not gone.isdisjoint(entry.body.cites):
            gone.add(entry.seq)
        # what a job thought of may repeat whatever it had read, and need not say where that stood
        if isinstance(entry.body, Thought) and entry.op in jobs and entry.seq > first:
            gone.add(entry.seq)
    return gone, blobs


def is_erasable(entry: Entry) -> bool:
    """Whether an entry holds words. Of changes only those do that somebody put into words."""
    if entry.kind is EntryKind.CHANGED:
        return entry.body is None or forgetting.has_text(entry)
    return entry.kind in ERASABLE_KINDS


def _find_operations_with(entries: Iterable[Entry], seqs: set[int]) -> set[int]:
    """The operations that contain or consumed any of `seqs`."""
    holders: set[int] = set()
    for entry in entries:
        takes = entry.body.takes if isinstance(entry.body, Began | Took) else ()
        if entry.op is not None and (entry.seq in seqs or not seqs.isdisjoint(takes)):
            holders.add(entry.op)
    return holders


def _find_entries_of(entries: Iterable[Entry], ops: set[int]) -> set[int]:
    """What these operations contain or consumed."""
    held: set[int] = set()
    for entry in entries:
        if entry.op in ops:
            held |= {entry.seq, *(entry.body.takes if isinstance(entry.body, Began | Took) else ())}
    return held


def wrap_as_command(
    bodies: tuple[EntryBody, ...], *, trigger: str, takes: tuple[int, ...] = (), consumer: str = ""
) -> tuple[EntryBody, ...]:
    """Bodies as an operation of their own."""
    return (Began(type="command", takes=takes, consumer=consumer, trigger=trigger), *bodies, Ended())
