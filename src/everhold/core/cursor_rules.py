"""What wakeups, updates and releases do to the cursors of a working set."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from everhold.core.store_rows import CursorRow, WorkingSet
from everhold.errors import InvalidRequest, LeaseLost
from everhold.ports.store import Claim, ConsumerCursor, CursorUpdate, InFlightBatch, Wakeup


def check_claim(work: WorkingSet, claim: Claim) -> CursorRow:
    """Return the cursor's row. Raises LeaseLost unless it is still held under this claim's fence."""
    cursor = claim.cursor
    held = work.cursors.get((cursor.session, cursor.consumer))
    if held is None or held.owner != cursor.owner or held.fence != cursor.fence:
        raise LeaseLost(
            f"cursor {cursor.consumer} of session {cursor.session} is no longer held under fence {cursor.fence}"
        )
    return held


def is_lease_over(owner: str, lease_since: float, lease_wait: float, *, now: float) -> bool:
    """Return whether a cursor may be taken. A lease that begins in the future is over, because clocks jump."""
    return owner == "" or now >= lease_since + lease_wait or now < lease_since


def apply_wakeups(work: WorkingSet, session: str, wakeups: Iterable[Wakeup], *, before: int) -> tuple[Claim, ...]:
    """Make cursors due. A new one starts after `before` unless its wakeup names a start. Return the claims made."""
    claims: tuple[Claim, ...] = ()
    for wakeup in wakeups:
        key = (session, wakeup.consumer)
        stored = work.cursors.get(key)
        if wakeup.waits_for:
            _end_wait(work, stored, wakeup)
            continue
        cursor = _wake_cursor(stored, session, wakeup, before=before, now=work.now)
        if wakeup.owner and cursor.owner == "" and cursor.due is not None and cursor.due <= work.now:
            claims += (_claim_cursor(work, cursor, wakeup),)
        elif cursor is not stored:
            work.cursors.put(key, cursor)
    return claims


def _end_wait(work: WorkingSet, stored: CursorRow | None, wakeup: Wakeup) -> None:
    """Make a cursor due that waits for another service than the one of the wakeup."""
    if stored is not None and stored.due is not None and stored.waits_for not in ("", wakeup.waits_for):
        changed = structs.replace(
            stored, since=work.now, wait=0.0, due=work.now, mandatory=False, attempts=0, error="", waits_for=""
        )
        work.cursors.put((stored.session, stored.consumer), changed)


def _wake_cursor(stored: CursorRow | None, session: str, wakeup: Wakeup, *, before: int, now: float) -> CursorRow:
    wait = wakeup.wait
    due = now + wait.seconds
    if stored is None:
        start = before if wakeup.start is None else wakeup.start
        stored = CursorRow(session=session, consumer=wakeup.consumer, start_seq=start, processed_seq=start)
    elif stored.due is not None and (stored.mandatory or stored.attempts or due >= stored.due):
        return stored
    return structs.replace(stored, since=now, wait=wait.seconds, due=due, mandatory=wait.mandatory)


def _claim_cursor(work: WorkingSet, cursor: CursorRow, wakeup: Wakeup) -> Claim:
    claimed = structs.replace(
        cursor, owner=wakeup.owner, lease_since=work.now, lease_wait=wakeup.lease, fence=cursor.fence + 1
    )
    key = (claimed.session, claimed.consumer)
    work.cursors.put(key, claimed)
    for running in work.find_running(claimed.session):
        if running.consumer == claimed.consumer:
            resumed = structs.replace(
                running, fence=claimed.fence, attempts=running.attempts + (not running.paused), paused=False
            )
            work.operations.put((running.session, running.op), resumed)
    return Claim(
        cursor=build_consumer_cursor(claimed),
        agent=work.sessions[claimed.session].agent,
        has_replays=bool(work.replays.get(key)),
    )


def update_cursor(
    work: WorkingSet, held: CursorRow, wanted: CursorUpdate, *, had_replays: bool, grown_to: int | None
) -> bool:
    """Update a claimed cursor. `grown_to` is the last seq of its session that others appended.

    Return whether it was released with nothing left to do.
    """
    now = work.now
    key = (held.session, held.consumer)
    since, wait, due, mandatory, waits_for = held.since, held.wait, held.due, held.mandatory, held.waits_for
    if wanted.wait is not None:
        since, wait, due, mandatory = now, wanted.wait.seconds, now + wanted.wait.seconds, wanted.wait.mandatory
        waits_for = wanted.wait.waits_for
    if wanted.idle_at is not None:
        if grown_to is None:
            grown_to = work.sessions[held.session].next_seq - 1
        if grown_to > wanted.idle_at or (had_replays and work.replays.get(key)):
            since, wait, due, mandatory = now, 0.0, now, False
        elif wanted.wait is None:
            since, wait, due, mandatory = None, 0.0, None, False
    stored = work.cursors.get(key, held)
    changed = structs.replace(
        stored,
        processed_seq=held.processed_seq if wanted.processed_seq is None else wanted.processed_seq,
        in_flight=choose_in_flight(stored.in_flight, wanted),
        attempts=held.attempts if wanted.attempts is None else wanted.attempts,
        since=since,
        wait=wait,
        due=due,
        mandatory=mandatory,
        error=held.error if wanted.error is None else wanted.error,
        waits_for="" if due is None else waits_for,
        owner="" if wanted.release else held.owner,
    )
    work.cursors.put(key, changed)
    return wanted.release and due is None


def choose_in_flight(stored: InFlightBatch | None, wanted: CursorUpdate) -> InFlightBatch | None:
    """Return the batch in flight after an update."""
    if wanted.in_flight is None:
        return None if wanted.clear_in_flight else stored
    if wanted.clear_in_flight:
        raise InvalidRequest("a batch cannot be cleared in the change that sends it")
    in_flight = wanted.in_flight
    # The holder may not know that part of the batch was erased since it read the cursor.
    if (
        stored is not None
        and stored.state == "voided"
        and in_flight.state != "voided"
        and (stored.items, stored.digest) == (in_flight.items, in_flight.digest)
    ):
        return structs.replace(in_flight, state="voided")
    return in_flight


def void_in_flight(work: WorkingSet, session: str, gone: set[int]) -> None:
    """Mark every batch in flight of this session that contains one of the entries in `gone`."""
    for key, cursor in list(work.cursors.items()):
        batch = cursor.in_flight
        if key[0] == session and batch is not None and batch.state != "voided":
            if any(item.seq in gone for item in batch.items):
                voided = structs.replace(batch, state="voided")
                work.cursors.put(key, structs.replace(cursor, in_flight=voided))


def replace_errors(work: WorkingSet, session: str, text: str) -> None:
    """Replace the errors of a session's cursors, because they may repeat an erased text."""
    for key, cursor in list(work.cursors.items()):
        if key[0] == session and cursor.error:
            work.cursors.put(key, structs.replace(cursor, error=text))


def build_consumer_cursor(row: CursorRow) -> ConsumerCursor:
    return ConsumerCursor(
        consumer=row.consumer,
        session=row.session,
        processed_seq=row.processed_seq,
        in_flight=row.in_flight,
        attempts=row.attempts,
        since=row.since,
        wait=row.wait,
        mandatory=row.mandatory,
        owner=row.owner,
        fence=row.fence,
        error=row.error,
        waits_for=row.waits_for,
    )
