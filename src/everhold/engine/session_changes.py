"""Plan undo, retry, stop and erasure: the bodies that change a session. Only an erasure deletes anything, and it keeps
the entries' places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from everhold.core import forgetting
from everhold.core.approvals import APPROVAL_NOTICE
from everhold.core.context import VISIBLE_OUTCOMES, is_in_context
from everhold.core.entries import (
    Began,
    Changed,
    Compressed,
    Ended,
    Entry,
    EntryBody,
    EntryKind,
    EntryPinned,
    Erased,
    Heard,
    Noted,
    Notified,
    OperationsUndone,
    Returned,
    StopRequested,
    Thought,
    Took,
)
from everhold.core.pins import build_pinned, count_pin_tokens, weigh_pins
from everhold.core.wording import describe_count
from everhold.engine.context_cache import PinnedEntry, list_pins
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.store import Operation, Session, Store

PinCheck: TypeAlias = Callable[[PinnedEntry], bool]

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
"""Kinds whose bodies hold words. Of the other kinds only some changes hold words."""


class SessionAmendment(Struct, frozen=True, kw_only=True):
    """Bodies to commit, and the reply. Without bodies there is nothing to do."""

    bodies: tuple[EntryBody, ...] = ()
    reply: str


async def plan_undo(
    store: Store, session: Session, *, what: str = "turn", count: int = 1, again: bool = False, hard_tokens: int = 0
) -> SessionAmendment:
    """Take back the newest turns, or the newest compression. `again`: answer their messages again. `hard_tokens`: where
    the conversation is compressed again although a person undid it.
    """
    if what == "compress":
        compressions = await list_newest_operations(store, session, "compression", 1)
        if not compressions:
            return SessionAmendment(reply="There is no compression to undo.")
        undone = OperationsUndone(ops=(compressions[0].op,))
        return SessionAmendment(
            bodies=(Changed(change=undone),),
            reply="The compression is undone; the originals are back. The conversation is compressed again only when "
            f"it reaches the hard limit of {hard_tokens:,} tokens, or when somebody asks for it with /compress.",
        )
    if session.running == "turn":
        return SessionAmendment(reply="A turn is running. /stop it first.")
    turns = await list_newest_operations(store, session, "turn", count)
    if not turns:
        if not await _has_waiting_message(store, session):
            return SessionAmendment(reply="There is nothing to undo.")
        if again:
            return SessionAmendment(reply="Your message is kept, and I retry it automatically.")
        return SessionAmendment(
            reply="Your message has no answer yet, so there is nothing to undo. /stop puts the message aside."
        )
    undone = OperationsUndone(ops=tuple(sorted(turn.op for turn in turns)), again=again)
    taken = f"Took back {len(turns)} turn{'s' if len(turns) > 1 else ''}."
    return SessionAmendment(bodies=(Changed(change=undone),), reply="Trying again." if again else taken)


async def _has_waiting_message(store: Store, session: Session) -> bool:
    """Return whether a message waits for its turn, for example because the model is unavailable."""
    return any(it.command is None for it in await store.scan_pending(session.id))


async def plan_pin(store: Store, session: Session, seq: int, *, by: str, window: int) -> SessionAmendment:
    """Pin an entry of a session. `window` is the size of the model's."""
    pins = await list_pins(store, session.id, at=session.last_seq + 1)
    if any((one.pin.session or session.id, one.pin.seq) == (session.id, seq) for one in pins):
        return SessionAmendment(reply=f"Entry {seq} is already pinned.")
    try:
        wanted = build_pinned(await store.get_entry(session.id, seq))
    except NotFound:
        return SessionAmendment(reply=f"This session has no entry {seq}. /pins lists what is pinned.")
    if wanted is None:
        return SessionAmendment(
            reply=f"Entry {seq} has no words to pin. A message, a reply or the result of a tool can be pinned."
        )
    shown = [shown for one in pins if (shown := build_pinned(one.entry)) is not None]
    most, used, more = count_pin_tokens(window), weigh_pins(shown), weigh_pins([wanted])
    if used + more > most:
        return SessionAmendment(
            reply=f"Entry {seq} was not pinned: it takes about {more:,} tokens, and the pins of a session may take "
            f"{most:,}, of which {max(0, most - used):,} are free. /unpin removes a pin."
        )
    return SessionAmendment(
        bodies=(Changed(change=EntryPinned(seq=seq, by=by)),),
        reply=f"Pinned entry {seq}. It stays in view word for word until /unpin {seq}. Who pinned it, and an owner of "
        "this chat, may unpin it.",
    )


async def plan_unpin(
    store: Store, session: Session, seq: int | None, *, can_remove: PinCheck | None = None
) -> SessionAmendment:
    """Remove the pin of entry `seq`, or all pins; only those that `can_remove` allows."""
    pins = [
        one for one in await list_pins(store, session.id, at=session.last_seq + 1) if seq is None or one.pin.seq == seq
    ]
    if not pins:
        return SessionAmendment(reply="Nothing is pinned." if seq is None else f"Entry {seq} is not pinned.")
    allowed = [one for one in pins if can_remove is None or can_remove(one)]
    if not allowed:
        return SessionAmendment(reply="Somebody else pinned this. An owner of this chat can unpin it.")
    undone = OperationsUndone(ops=tuple(one.op for one in allowed))
    return SessionAmendment(bodies=(Changed(change=undone),), reply=f"Removed {describe_count(len(allowed), 'pin')}.")


async def plan_stop(store: Store, session: Session) -> SessionAmendment:
    """Ask the running turn to end."""
    for operation in await store.list_operations(session.id, types=("turn",), states=("running",)):
        return SessionAmendment(bodies=(Changed(change=StopRequested(op=operation.op)),), reply="Stopping.")
    return SessionAmendment(reply="Nothing is running.")


async def list_newest_operations(store: Store, session: Session, what: str, count: int) -> list[Operation]:
    """Return the newest operations of a type that have ended and are in the context. A context reset hides the
    operations before it.
    """
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
    """Everything that an erasure of some entries includes."""

    seqs: tuple[int, ...]
    bodies: tuple[EntryBody, ...]
    ops_to_end: tuple[int, ...]
    """Running operations that read the entries. They end."""
    blobs: tuple[str, ...]
    exchanges: tuple[int, ...]
    """The entries, and the entries of their exchanges, because a memory may store an exchange under any of them."""


async def plan_erasure(store: Store, session: Session, seqs: Sequence[int], *, by: str, why: str) -> ErasurePlan:
    """Plan the erasure of `seqs`, with the compressions, recorded requests and running operations that contain them."""
    entries = {entry.seq: entry for entry in await store.list_entries(session.id)}
    _check_erasable(entries, seqs, session=session.id)
    operations = await store.list_operations(session.id)
    holders = _find_operations_with(entries.values(), set(seqs))
    # An operation that began at or after the first of them may have had it in its context.
    first = min(seqs, default=0)
    # A summary contains what it covers, and what the summary it was based on contained.
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
    gone, blobs = _find_copies(entries.values(), seqs, compressions=compressions, jobs=jobs)
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
            f"entry {structure[0]} of session {session} is {entries[structure[0]].kind}: it contains no words to erase",
            remedy=f"erase entries of these kinds: {', '.join(ERASABLE_KINDS)}",
        )


def _find_copies(
    entries: Iterable[Entry], seqs: Sequence[int], *, compressions: Collection[int], jobs: Collection[int]
) -> tuple[set[int], set[str]]:
    """Return the entries that repeat words of `seqs`, with `seqs` themselves, and the recorded requests that may
    contain them.
    """
    first = min(seqs, default=0)
    entries = tuple(entries)
    gone = set(seqs)
    gone.update(_find_shown_calls(entries, gone))
    blobs: set[str] = set()
    for entry in entries:
        if isinstance(entry.body, Compressed) and entry.op in compressions:
            gone.add(entry.seq)
        if isinstance(entry.body, Thought) and entry.seq >= first:
            blobs.update(blob for blob in (entry.body.recall, entry.body.why) if blob)
        if isinstance(entry.body, Noted) and not gone.isdisjoint(entry.body.cites):
            gone.add(entry.seq)
        # A thought of a job may repeat anything the job has read, without citing it, and so may what follows from it.
        if isinstance(entry.body, Thought | Returned) and entry.op in jobs and entry.seq > first:
            gone.add(entry.seq)
        if isinstance(entry.body, Heard) and entry.body.delegated and entry.seq > first:
            gone.add(entry.seq)
    return gone, blobs


def _find_shown_calls(entries: Sequence[Entry], gone: Collection[int]) -> set[int]:
    """Return the notices that show the arguments of calls in `gone`."""
    asked = {it.op for it in entries if it.kind is EntryKind.APPROVAL_REQUESTED}
    shown = [it for it in entries if isinstance(it.body, Notified) and it.body.about == APPROVAL_NOTICE]
    thoughts = {it.op for it in entries if it.seq in gone and it.kind is EntryKind.THOUGHT and it.op in asked}
    return {it.seq for it in shown if it.op in thoughts}


def is_erasable(entry: Entry) -> bool:
    """Return whether an entry holds words. Of the changes only some do."""
    if entry.kind is EntryKind.CHANGED:
        return entry.body is None or forgetting.has_text(entry)
    return entry.kind in ERASABLE_KINDS


def _find_operations_with(entries: Iterable[Entry], seqs: set[int]) -> set[int]:
    """Return the operations that contain or consumed any of `seqs`."""
    holders: set[int] = set()
    for entry in entries:
        takes = entry.body.takes if isinstance(entry.body, Began | Took) else ()
        if entry.op is not None and (entry.seq in seqs or not seqs.isdisjoint(takes)):
            holders.add(entry.op)
    return holders


def _find_entries_of(entries: Iterable[Entry], ops: set[int]) -> set[int]:
    """Return the entries that these operations contain or consumed."""
    held: set[int] = set()
    for entry in entries:
        if entry.op in ops:
            held |= {entry.seq, *(entry.body.takes if isinstance(entry.body, Began | Took) else ())}
    return held


def wrap_as_command(
    bodies: tuple[EntryBody, ...], *, trigger: str, takes: tuple[int, ...] = (), consumer: str = ""
) -> tuple[EntryBody, ...]:
    """Return the bodies as a separate operation."""
    return (Began(type="command", takes=takes, consumer=consumer, trigger=trigger), *bodies, Ended())
