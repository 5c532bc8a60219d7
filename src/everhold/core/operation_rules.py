"""What entries do to the operations and pending messages of a working set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from everhold.core.entries import RELEASING_OUTCOMES, Began, OperationsUndone
from everhold.core.store_rows import OperationRow, WorkingSet
from everhold.errors import Conflict, LeaseLost, NotFound
from everhold.ports.store import Claim


def check_operation(work: WorkingSet, session: str, op: int, claim: Claim | None) -> None:
    """Raise LeaseLost if an operation has ended, or runs under another fence."""
    running = work.operations.get((session, op))
    if running is None or running.state != "running":
        raise LeaseLost(f"session {session}: operation {op} is not running")
    if claim is not None and running.fence != claim.fence:
        raise LeaseLost(f"session {session}: operation {op} is under fence {running.fence}, not {claim.fence}")


def begin_operation(work: WorkingSet, session: str, seq: int, began: Began, *, fence: int) -> None:
    consume_pending(work, session, began.takes)
    if any(excludes_operation(running, began) for running in work.find_running(session)):
        raise Conflict(f"session {session}: no {began.type} can begin while another operation runs")
    row = OperationRow(
        session=session,
        op=seq,
        type=began.type,
        state="running",
        first=min((*began.takes, seq)),
        consumer=began.consumer,
        fence=fence,
        attempts=1,
        blocking=began.blocking,
        compression=began.compression,
    )
    work.operations.put((session, seq), row)
    work.running.put(session, (*work.running.get(session, ()), seq))


def excludes_operation(running: OperationRow, began: Began) -> bool:
    """Return whether an operation cannot begin while `running` runs."""
    if began.type == "turn" or began.blocking:
        return running.type == "turn" or running.blocking or running.type == began.type == "compression"
    return running.type == began.type == "compression"


def consume_pending(work: WorkingSet, session: str, takes: Iterable[int]) -> None:
    for seq in takes:
        if (session, seq) not in work.pending:
            raise Conflict(f"session {session}: entry {seq} is not pending")
        work.pending.drop((session, seq))


def end_operation(work: WorkingSet, session: str, seq: int, op: int | None, outcome: str) -> None:
    row = None if op is None else work.operations.get((session, op))
    if op is None or row is None or row.state != "running":
        raise LeaseLost(f"session {session}: operation {op} is not running")
    work.operations.put((session, op), structs.replace(row, state=outcome, last=seq))
    work.running.put(session, tuple(one for one in work.running.get(session, ()) if one != op))
    if outcome in RELEASING_OUTCOMES:
        release_consumed(work, session, op)


def release_consumed(work: WorkingSet, session: str, op: int) -> None:
    """Make the messages that `op` consumed pending again, except for erased ones."""
    log = work.logs[session]
    for seq in log.takes.get(op, ()):
        asks = log.asks.get(seq)
        if asks is not None and (session, seq) not in work.pending:
            work.pending.put((session, seq), asks)


def set_covered(work: WorkingSet, session: str, op: int | None, covers: int) -> None:
    row = None if op is None else work.operations.get((session, op))
    if row is not None:
        work.operations.put((session, row.op), structs.replace(row, covers=covers))


def insert_finished_operation(work: WorkingSet, session: str, seq: int, type: str) -> None:
    """Add a context reset or a pin to the operations, where the selection of the context finds it."""
    row = OperationRow(session=session, op=seq, type=type, state="done", first=seq, last=seq)
    work.operations.put((session, seq), row)


def undo_operations(work: WorkingSet, session: str, seq: int, undone: OperationsUndone) -> None:
    """Remove operations from the context, and with a turn every compression that covers it."""
    turns = []
    for op in undone.ops:
        row = work.operations.get((session, op))
        if row is None:
            raise NotFound(f"session {session} has no operation {op} to undo")
        if row.type == "turn" and not row.undone_at:
            turns.append(op)
        if undone.again:
            release_consumed(work, session, op)
    hide_operations(work, session, seq, undone.ops)
    if turns:
        covering = [
            row.op
            for row in work.operations.values()
            if row.session == session and row.type == "compression" and row.covers >= min(turns)
        ]
        hide_operations(work, session, seq, covering)


def hide_operations(work: WorkingSet, session: str, seq: int, ops: Sequence[int]) -> None:
    for op in ops:
        row = work.operations.get((session, op))
        if row is not None and not row.undone_at:
            work.operations.put((session, op), structs.replace(row, undone_at=seq))


def request_stop(work: WorkingSet, session: str, op: int) -> None:
    """Record that `op` should stop. An ended operation is not changed."""
    row = work.operations.get((session, op))
    if row is not None and row.state == "running":
        work.operations.put((session, op), structs.replace(row, stop=True))


def pause_operation(work: WorkingSet, session: str, op: int) -> None:
    row = work.operations.get((session, op))
    if row is not None:
        work.operations.put((session, op), structs.replace(row, paused=True))


def find_ended_seqs(work: WorkingSet, session: str, seqs: set[int]) -> set[int]:
    """The `ended` seq of every operation that consumed or contains any of `seqs`. Exchanges are stored under these."""
    log = work.logs[session]
    touched = {op for op, takes in log.takes.items() if not seqs.isdisjoint(takes)}
    touched.update(op for seq in seqs if (op := log.ops.get(seq)) is not None)
    return {log.ended[op] for op in touched if op in log.ended}
