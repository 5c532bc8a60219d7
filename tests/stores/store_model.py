"""A simple model of the store in plain Python, with lists and dictionaries, for comparison with the real one."""

from __future__ import annotations

from dataclasses import dataclass, field

from everhold.errors import Conflict, LeaseLost, NotFound


@dataclass
class ModelOperation:
    type: str
    takes: list[int]
    first: int
    consumer: str = ""
    fence: int = 0
    attempts: int = 1
    paused: bool = False
    blocking: bool = False
    state: str = "running"
    last: int = 0
    covers: int = 0
    undone_at: int = 0


@dataclass
class Cursor:
    processed_seq: int
    since: float | None = None
    wait: float = 0.0
    mandatory: bool = False
    attempts: int = 0
    owner: str = ""
    lease_since: float = 0.0
    lease: float = 0.0
    fence: int = 0

    def held(self, now: float) -> bool:
        return self.owner != "" and self.lease_since <= now < self.lease_since + self.lease

    def due(self, now: float) -> bool:
        if self.since is None:
            return False
        return now >= self.since + self.wait or (now < self.since and not self.mandatory)


@dataclass
class ModelLog:
    entries: list[tuple[str, bool]] = field(default_factory=list)
    """(kind, asks) by seq - 1."""
    pending: set[int] = field(default_factory=set)
    erased: set[int] = field(default_factory=set)
    ops: dict[int, ModelOperation] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    generation: int = 0
    title: str = ""


class StoreModel:
    def __init__(self, sessions: list[str]) -> None:
        self.logs = {session: ModelLog() for session in sessions}
        self.keys: dict[str, tuple[str, int, str]] = {}
        self.bindings = {f"test:{session}": session for session in sessions}
        self.state: dict[str, tuple[str, int]] = {}
        """State records by key: value and version."""
        self.state_floor = 0
        """The highest version of any record that was deleted."""

    # -- writing

    def append(self, session: str, kind: str, *, asks: bool = False) -> int:
        log = self.logs[session]
        log.entries.append((kind, asks))
        return len(log.entries)

    def hear(
        self, session: str, text: str, key: str | None, *, at: float, wake: tuple[str, float, bool] | None
    ) -> tuple[str, int, bool, bool]:
        """(session, seq, duplicate, differs)"""
        if key is not None and key in self.keys:
            where, seq, before = self.keys[key]
            return where, seq, True, before != text and seq not in self.logs[where].erased
        before_this = len(self.logs[session].entries)
        seq = self.append(session, "heard", asks=True)
        self.logs[session].pending.add(seq)
        if key is not None:
            self.keys[key] = (session, seq, text)
        if wake is not None:
            self.wake(session, *wake, at=at, before=before_this)
        return session, seq, False, False

    def begin(self, session: str, what: str, takes: list[int], *, consumer: str, fence: int, blocking: bool) -> int:
        log = self.logs[session]
        if len(set(takes)) != len(takes) or not set(takes) <= log.pending:
            raise Conflict("not pending")
        for op in log.ops.values():
            if op.state != "running":
                continue
            if (what == "turn" or blocking) and (op.type == "turn" or op.blocking):
                raise Conflict("a turn runs")
            if what == op.type == "compression":
                raise Conflict("a compression runs")
        log.pending -= set(takes)
        seq = self.append(session, "began")
        log.ops[seq] = ModelOperation(what, list(takes), min([*takes, seq]), consumer, fence, blocking=blocking)
        return seq

    def guard(self, session: str, number: int, fence: int | None) -> ModelOperation:
        op = self.logs[session].ops.get(number)
        if op is None or op.state != "running" or (fence is not None and op.fence != fence):
            raise LeaseLost("not running, or another fence")
        return op

    def take(self, session: str, number: int, takes: list[int], fence: int | None) -> None:
        op = self.guard(session, number, fence)
        log = self.logs[session]
        if len(set(takes)) != len(takes) or not set(takes) <= log.pending:
            raise Conflict("not pending")
        log.pending -= set(takes)
        op.takes += takes
        self.append(session, "took")

    def end(self, session: str, number: int, outcome: str, fence: int | None) -> None:
        op = self.guard(session, number, fence)
        op.state = outcome
        op.last = self.append(session, "ended")
        if outcome in ("released", "erased"):
            self.release_messages(session, op)

    def compress(self, session: str, number: int, covers: int, generation: int, fence: int | None) -> None:
        if generation != self.logs[session].generation:
            raise Conflict("the view changed")
        op = self.guard(session, number, fence)
        self.append(session, "compressed")
        op.covers = covers
        self.logs[session].generation += 1
        op.state, op.last = "done", self.append(session, "ended")

    def undo(self, session: str, numbers: list[int], *, again: bool) -> None:
        log = self.logs[session]
        if not set(numbers) <= set(log.ops):
            raise NotFound("no such operation")
        seq = self.append(session, "changed")
        log.generation += 1
        turns = [n for n in numbers if log.ops[n].type == "turn" and not log.ops[n].undone_at]
        for n in numbers:
            log.ops[n].undone_at = log.ops[n].undone_at or seq
            if again:
                self.release_messages(session, log.ops[n])
        for op in log.ops.values():
            if op.type == "compression" and turns and op.covers >= min(turns) and not op.undone_at:
                op.undone_at = seq

    def reset_context(self, session: str) -> None:
        seq = self.append(session, "changed")
        self.logs[session].ops[seq] = ModelOperation("context_reset", [], seq, attempts=0, state="done", last=seq)
        self.logs[session].generation += 1

    def erase(self, session: str, seq: int) -> None:
        log = self.logs[session]
        self.append(session, "erased")
        log.erased.add(seq)
        log.pending.discard(seq)
        log.generation += 1

    def bind(self, session: str, address: str, previous: str) -> None:
        if self.bindings.get(address, "") != previous:
            raise Conflict("led elsewhere")
        self.append(session, "changed")
        self.bindings[address] = session

    def release_messages(self, session: str, op: ModelOperation) -> None:
        log = self.logs[session]
        log.pending |= {seq for seq in op.takes if seq not in log.erased}

    # -- state records

    def get_state_version(self, key: str) -> int:
        return self.state[key][1] if key in self.state else 0

    def write_state(self, key: str, value: str | None, version: int) -> None:
        if version != self.get_state_version(key):
            raise Conflict("another version")
        if value is not None:
            self.state[key] = (value, version + 1 if version else self.state_floor + 1)
        elif version:
            del self.state[key]
            self.state_floor = max(self.state_floor, version)

    # -- cursors

    def wake(self, session: str, consumer: str, wait: float, mandatory: bool, *, at: float, before: int) -> None:
        cursor = self.logs[session].cursors.setdefault(consumer, Cursor(before))
        if cursor.since is not None:
            if cursor.mandatory or cursor.attempts or at + wait >= cursor.since + cursor.wait:
                return
        cursor.since, cursor.wait, cursor.mandatory = at, wait, mandatory

    def claim(self, owner: str, at: float, lease: float, limit: int) -> list[tuple[str, str, int, bool]]:
        """(session, consumer, fence, taken over)"""
        cursors = [
            (session, consumer, cursor)
            for session, log in self.logs.items()
            for consumer, cursor in log.cursors.items()
        ]
        for _, _, cursor in cursors:
            if cursor.since is not None and cursor.mandatory and cursor.since > at:
                cursor.since = at
        ready = [one for one in cursors if one[2].due(at) and not one[2].held(at)]
        ready.sort(key=lambda one: ((one[2].since or 0.0) + one[2].wait, one[0], one[1]))
        claims = []
        for session, consumer, cursor in ready[:limit]:
            cursor.fence += 1
            claims.append((session, consumer, cursor.fence, cursor.owner != ""))
            cursor.owner, cursor.lease_since, cursor.lease = owner, at, lease
            for op in self.logs[session].ops.values():
                if op.state == "running" and op.consumer == consumer:
                    op.fence = cursor.fence
                    op.attempts += 0 if op.paused else 1
                    op.paused = False
        return claims

    def holds(self, session: str, consumer: str, owner: str, fence: int) -> Cursor:
        cursor = self.logs[session].cursors.get(consumer)
        if cursor is None or cursor.owner != owner or cursor.fence != fence:
            raise LeaseLost("not yours")
        return cursor

    def next_due(self, at: float) -> float | None:
        waits = []
        for log in self.logs.values():
            for cursor in log.cursors.values():
                if cursor.since is None or cursor.held(at):
                    continue
                if cursor.since > at:
                    waits.append(cursor.wait if cursor.mandatory else 0.0)
                else:
                    waits.append(max(0.0, cursor.since + cursor.wait - at))
        return min(waits, default=None)
