"""Hypothesis drives the SQLite store and a naive model of it side by side, and they must never disagree."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from everhold.core.entries import (
    AddressBound,
    Began,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    EntryDraft,
    Erased,
    Noted,
    OperationsUndone,
    Thought,
    Took,
)
from everhold.errors import EverholdError
from everhold.ports.store import (
    Change,
    Claim,
    CursorUpdate,
    Operation,
    RetryDelay,
    SessionOpening,
    StateNamespace,
    StateWrite,
    Step,
    Wakeup,
)
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom, make_heard
from tests.stores.store_model import ModelOperation, StoreModel

T = TypeVar("T")
SESSIONS = ["s", "t"]
CONSUMERS = ["compression", "turn", "platform"]

sessions = st.sampled_from(SESSIONS)
consumers = st.sampled_from(CONSUMERS)
waits = st.sampled_from([0.0, 0.0, 5.0, 50.0])


def now(step: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        step.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("an inline store must not wait")


class StoreMachine(RuleBasedStateMachine):
    template: Path
    """An empty database, copied for each run, because creating one takes longer than most runs."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="everhold-machine-"))
        shutil.copy(self.template, self.home / "log.db")
        self.model = StoreModel(SESSIONS)
        self.clock = 1000.0
        self.store = SqliteStore.open(
            self.home / "log.db", chance=SeededRandom(), now=lambda: self.clock, inline=True, synchronous="OFF"
        )
        self.claims: list[Claim] = []

    @initialize()
    def open(self) -> None:
        for session in SESSIONS:
            opens = SessionOpening(agent="main", address=f"test:{session}")
            now(self.store.commit(Change(step=Step.ACCEPT, session=session, at=self.clock, opens=opens)))

    def teardown(self) -> None:
        assert now(self.store.verify()) == []
        now(self.store.close())
        shutil.rmtree(self.home)

    def both(self, change: Change, expected: Callable[[], T]) -> T | None:
        """Commit, and apply the same to the model. Both succeed, or both raise the same kind of error."""
        refusal: type[EverholdError] | None = None
        wanted: T | None = None
        try:
            wanted = expected()
        except EverholdError as error:
            refusal = type(error)
        if refusal is not None:
            with pytest.raises(refusal):
                now(self.store.commit(change))
            return None
        now(self.store.commit(change))
        return wanted

    def change(self, session: str, *drafts: EntryDraft, **rest: Any) -> Change:
        return Change(step=Step.NOTE, session=session, at=self.clock, entries=drafts, **rest)

    def pick(self, data: st.DataObject, claims: bool = True) -> Claim | None:
        held = [None, *self.claims] if claims else [None]
        return data.draw(st.sampled_from(held), "claim")

    # -- time

    @rule(seconds=st.sampled_from([0.0, 1.0, 10.0, 60.0, 3600.0, -1.0, -100.0, -3600.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock = max(0.0, self.clock + seconds)

    # -- messages

    @rule(
        session=sessions,
        text=st.sampled_from(["a", "b"]),
        key=st.one_of(st.none(), st.sampled_from(["k1", "k2", "k3"])),
        wake=st.one_of(st.none(), st.tuples(consumers, waits, st.booleans())),
    )
    def hear(self, session: str, text: str, key: str | None, wake: tuple[str, float, bool] | None) -> None:
        wakes = () if wake is None else (Wakeup(consumer=wake[0], wait=RetryDelay(seconds=wake[1], mandatory=wake[2])),)
        draft = EntryDraft(body=make_heard(text), author="person:ada", dedup=key)
        done = now(self.store.commit(self.change(session, draft, wakeups=wakes)))
        wanted = self.model.hear(session, text, key, at=self.clock, wake=wake)
        assert (done.session, done.seqs[0], done.duplicate, done.differs) == wanted

    # -- state records

    @rule(
        key=st.sampled_from(["k1", "k2"]),
        value=st.sampled_from(["a", "b", None]),
        by=st.sampled_from([0, 0, 0, -1, 1, None]),
        session=st.sampled_from(["", *SESSIONS]),
    )
    def write_state(self, key: str, value: str | None, by: int | None, session: str) -> None:
        """Write or delete with the present version or with another one. `by` None: the record must not exist."""
        version = 0 if by is None else max(0, self.model.get_state_version(key) + by)
        write = StateWrite(namespace=StateNamespace.SCHEDULE, key=key, value=value, version=version)
        draft = () if not session else (EntryDraft(body=Noted(text="with it"), author="person:ada"),)

        def expected() -> None:
            self.model.write_state(key, value, version)
            if session:
                self.model.append(session, "noted")

        self.both(self.change(session, *draft, state_writes=(write,)), expected)

    @rule(session=sessions, data=st.data())
    def erase(self, session: str, data: st.DataObject) -> None:
        log = self.model.logs[session]
        hearable = [n for n, (kind, _) in enumerate(log.entries, 1) if kind == "heard" and n not in log.erased]
        if not hearable:
            return
        seq = data.draw(st.sampled_from(hearable))
        draft = EntryDraft(body=Erased(seqs=(seq,)), author="person:ada")
        self.both(self.change(session, draft, erase=(seq,)), lambda: self.model.erase(session, seq))

    # -- operations

    @rule(session=sessions, what=st.sampled_from(["turn", "turn", "compression", "command"]), data=st.data())
    def begin(self, session: str, what: Any, data: st.DataObject) -> None:
        log = self.model.logs[session]
        takes = data.draw(st.lists(st.sampled_from(sorted(log.pending) or [1]), max_size=3, unique=True), "takes")
        blocking = what == "compression" and data.draw(st.booleans(), "blocking")
        claim = self.pick(data)
        consumer = "compression" if what == "compression" else "turn"
        body = Began(type=what, takes=tuple(takes), consumer=consumer, blocking=blocking)

        def expected() -> int:
            if claim is not None:
                self.model.holds(claim.session, claim.consumer, claim.cursor.owner, claim.fence)
            fence = 0 if claim is None else claim.fence
            return self.model.begin(session, what, takes, consumer=consumer, fence=fence, blocking=blocking)

        self.both(self.change(session, EntryDraft(body=body, author="agent:main"), claim=claim), expected)

    def running(self, data: st.DataObject, what: str = "") -> tuple[str, int] | None:
        ops = [
            (session, number)
            for session, log in self.model.logs.items()
            for number, op in log.ops.items()
            if not what or op.type == what
        ]
        ops.sort(key=lambda one: self.model.logs[one[0]].ops[one[1]].state != "running")
        return data.draw(st.sampled_from(ops[:3]), "op") if ops else None

    def checked(self, claim: Claim | None) -> int | None:
        if claim is None:
            return None
        self.model.holds(claim.session, claim.consumer, claim.cursor.owner, claim.fence)
        return claim.fence

    @rule(data=st.data(), outcome=st.sampled_from(["done", "failed", "released", "released"]))
    def end(self, data: st.DataObject, outcome: Any) -> None:
        if (chosen := self.running(data)) is None:
            return
        session, op = chosen
        claim = self.pick(data)
        draft = EntryDraft(body=Ended(outcome=outcome), author="agent:main", op=op)
        self.both(
            self.change(session, draft, op=op, claim=claim),
            lambda: self.model.end(session, op, outcome, self.checked(claim)),
        )

    @rule(data=st.data())
    def steer(self, data: st.DataObject) -> None:
        if (chosen := self.running(data, "turn")) is None:
            return
        session, op = chosen
        pending = sorted(self.model.logs[session].pending) or [1]
        takes = data.draw(st.lists(st.sampled_from(pending), min_size=1, max_size=2, unique=True), "takes")
        claim = self.pick(data)
        draft = EntryDraft(body=Took(takes=tuple(takes)), author="agent:main", op=op)
        self.both(
            self.change(session, draft, op=op, claim=claim),
            lambda: self.model.take(session, op, takes, self.checked(claim)),
        )

    @rule(data=st.data())
    def think(self, data: st.DataObject) -> None:
        if (chosen := self.running(data, "turn")) is None:
            return
        session, op = chosen
        claim = self.pick(data)

        def expected() -> None:
            self.model.guard(session, op, self.checked(claim))
            self.model.append(session, "thought")

        draft = EntryDraft(body=Thought(text="hm"), author="agent:main", op=op)
        self.both(self.change(session, draft, op=op, claim=claim), expected)

    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        if (chosen := self.running(data)) is None:
            return
        session, op = chosen

        def expected() -> None:
            self.model.guard(session, op, None).paused = True

        self.both(self.change(session, op=op, pause=True), expected)

    @rule(data=st.data(), stale=st.integers(0, 1))
    def finish_compression(self, data: st.DataObject, stale: int) -> None:
        if (chosen := self.running(data, "compression")) is None:
            return
        session, op = chosen
        log = self.model.logs[session]
        turns = [number for number, one in log.ops.items() if one.type == "turn" and one.state != "running"]
        covers = data.draw(st.sampled_from(turns or [0]), "covers")
        generation = log.generation - stale
        drafts = (
            EntryDraft(body=Compressed(summary="so far", covers=covers), author="system", op=op),
            EntryDraft(body=Ended(), author="system", op=op),
        )
        self.both(
            self.change(session, *drafts, op=op, generation=generation),
            lambda: self.model.compress(session, op, covers, generation, None),
        )

    @rule(session=sessions, again=st.booleans(), data=st.data())
    def undo(self, session: str, again: bool, data: st.DataObject) -> None:
        over = [number for number, op in self.model.logs[session].ops.items() if op.state != "running"]
        chosen = data.draw(st.lists(st.sampled_from([*over, 999]), min_size=1, max_size=2, unique=True), "ops")
        body = Changed(change=OperationsUndone(ops=tuple(chosen), again=again))
        self.both(
            self.change(session, EntryDraft(body=body, author="person:ada")),
            lambda: self.model.undo(session, chosen, again=again),
        )

    @rule(session=sessions)
    def reset_context(self, session: str) -> None:
        draft = EntryDraft(body=Changed(change=ContextReset()), author="person:ada")
        self.both(self.change(session, draft), lambda: self.model.reset_context(session))

    @rule(
        session=sessions, address=st.sampled_from(["test:s", "test:t", "x"]), previous=st.sampled_from(["s", "t", ""])
    )
    def bind(self, session: str, address: str, previous: str) -> None:
        body = Changed(change=AddressBound(address=address, previous=previous))
        self.both(
            self.change(session, EntryDraft(body=body, author="person:ada")),
            lambda: self.model.bind(session, address, previous),
        )

    # -- cursors

    @rule(owner=st.sampled_from(["me", "you"]), limit=st.integers(1, 3))
    def claim(self, owner: str, limit: int) -> None:
        wanted = self.model.claim(owner, self.clock, 60.0, limit)
        found = now(self.store.claim_cursors(owner=owner, lease=60.0, limit=limit))
        assert [(one.session, one.consumer, one.fence, one.taken_over) for one in found] == wanted
        self.claims = (found + self.claims)[:4]

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), release=st.booleans(), looked_short=st.integers(0, 1))
    def go_idle(self, data: st.DataObject, release: bool, looked_short: int) -> None:
        claim = data.draw(st.sampled_from(self.claims), "claim")
        last = len(self.model.logs[claim.session].entries)
        idle_at = last - looked_short

        def expected() -> None:
            cursor = self.model.holds(claim.session, claim.consumer, claim.cursor.owner, claim.fence)
            cursor.wait, cursor.mandatory = 0.0, False
            cursor.since = None if last <= idle_at else self.clock
            cursor.attempts = 0
            cursor.processed_seq = idle_at
            if release:
                cursor.owner = ""

        update = CursorUpdate(idle_at=idle_at, release=release, attempts=0, processed_seq=idle_at)
        self.both(self.change(claim.session, claim=claim, cursor=update), expected)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), wait=waits, mandatory=st.booleans(), release=st.booleans())
    def fail(self, data: st.DataObject, wait: float, mandatory: bool, release: bool) -> None:
        claim = data.draw(st.sampled_from(self.claims), "claim")

        def expected() -> None:
            cursor = self.model.holds(claim.session, claim.consumer, claim.cursor.owner, claim.fence)
            cursor.since, cursor.wait, cursor.mandatory = self.clock, wait, mandatory
            cursor.attempts = 1
            if release:
                cursor.owner = ""

        update = CursorUpdate(wait=RetryDelay(seconds=wait, mandatory=mandatory), attempts=1, release=release)
        self.both(self.change(claim.session, claim=claim, cursor=update), expected)

    @rule(owner=st.sampled_from(["me", "you"]))
    def renew(self, owner: str) -> None:
        held = [cursor for log in self.model.logs.values() for cursor in log.cursors.values() if cursor.owner == owner]
        for cursor in held:
            cursor.lease_since, cursor.lease = self.clock, 60.0
        assert now(self.store.renew_leases(self.claims, owner=owner, lease=60.0)) == len(held)

    @rule(owner=st.sampled_from(["me", "you"]))
    def revoke_leases(self, owner: str) -> None:
        held = [
            cursor
            for log in self.model.logs.values()
            for cursor in log.cursors.values()
            if cursor.owner and cursor.owner != owner
        ]
        for cursor in held:
            cursor.lease = 0.0
        assert now(self.store.revoke_leases(owner=owner)) == len(held)

    # -- what must always hold

    @invariant()
    def they_agree(self) -> None:
        for session, log in self.model.logs.items():
            found = now(self.store.get_session(session))
            assert (found.last_seq, found.generation, found.pending) == (
                len(log.entries),
                log.generation,
                len(log.pending),
            )
            assert {entry.seq for entry in now(self.store.list_pending(session))} == log.pending
            ops = {one.op: _row(one) for one in now(self.store.list_operations(session))}
            assert ops == {number: _row(op) for number, op in log.ops.items()}
            stored_cursors = {
                one.consumer: (
                    one.processed_seq,
                    one.since,
                    one.wait,
                    one.mandatory,
                    one.attempts,
                    one.owner,
                    one.fence,
                )
                for one in now(self.store.list_cursors(session=session))
            }
            assert stored_cursors == {
                consumer: (one.processed_seq, one.since, one.wait, one.mandatory, one.attempts, one.owner, one.fence)
                for consumer, one in log.cursors.items()
            }
        records = now(self.store.list_state_records(StateNamespace.SCHEDULE))
        assert {it.key: (it.value, it.version) for it in records} == self.model.state
        assert now(self.store.get_next_due()) == self.model.next_due(self.clock)
        for address, session in self.model.bindings.items():
            assert now(self.store.resolve_address(address)) == session


def _row(op: ModelOperation | Operation) -> tuple[object, ...]:
    return (
        op.type,
        op.state,
        op.first,
        op.last,
        op.fence,
        op.attempts,
        op.paused,
        op.covers,
        op.undone_at,
        op.consumer,
        op.blocking,
    )


def run(home: Path, *, examples: int, steps: int, derandomize: bool) -> None:
    store = SqliteStore.open(home / "empty.db", chance=SeededRandom(), inline=True)
    now(store.close())
    StoreMachine.template = home / "empty.db"
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_store_behaves_like_the_model(tmp_path: Path) -> None:
    run(tmp_path, examples=150, steps=40, derandomize=True)


@pytest.mark.prove
@pytest.mark.timeout(0)
@pytest.mark.parametrize("_", range(10))
def test_the_store_behaves_like_the_model_in_long_runs(tmp_path: Path, _: int) -> None:
    run(tmp_path, examples=400, steps=80, derandomize=False)
