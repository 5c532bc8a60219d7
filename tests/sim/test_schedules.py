"""Seeded schedules of the real engine with the real SQL: no fault breaks a promise."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everhold.ports.hosts import AccountClaim, HostRecord, HostVersion
from everhold.ports.store import Change, Step, Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom
from everhold.testing.kill.gates import add_kill_points
from everhold.testing.sim import statistics
from everhold.testing.sim.mutants import MUTANTS
from everhold.testing.sim.process import GatedStore
from everhold.testing.sim.profile import APPROVAL_AIMS, CRASH_AIMS, UNREACHED_STEPS, draw_profile
from everhold.testing.sim.run import run_seed
from tests.stores.home import list_writing_methods

SEEDS = Path(__file__).with_name("seeds.txt")
HOST_SEEDS = Path(__file__).with_name("host_seeds.txt")
SCHEDULES = 300
HOST_SCHEDULES = 60
APPROVAL_SCHEDULES = 48
CHUNKS = 10
FROM = int(os.environ.get("EVERHOLD_FROM", "0"))
MANY = int(os.environ.get("EVERHOLD_SEEDS", "10000"))
TRIES = 150
RARE = {
    (Step.BACKLINK, "before"): 31,
    (Step.SPEND, "before"): 19,
    (Step.TAKE, "before"): 10,
    (Step.COMPRESSION_BEGIN, "after"): 9,
    (Step.SPEND, "after"): 8,
    (Step.STATE, "after"): 7,
}
"""Which of a target's schedules crashed there first, on Python 3.11. If it misses, the test tries the others."""


def split_range(first: int, end: int, *, chunks: int) -> list[range]:
    """Split first..end into `chunks` ranges."""
    count = max(0, end - first)
    return [range(first + count * number // chunks, first + count * (number + 1) // chunks) for number in range(chunks)]


@pytest.mark.parametrize("seeds", split_range(0, SCHEDULES, chunks=CHUNKS), ids=str)
def test_no_promise_is_broken(seeds: range) -> None:
    found = statistics.play_seeds(seeds)
    statistics.save_failed_seeds(SEEDS, found.failures)
    assert not found.failures, "\n".join(found.format_table())


def test_seeds_that_failed_once_pass() -> None:
    found = statistics.play_seeds(statistics.load_failed_seeds(SEEDS))
    assert not found.failures, "\n".join(found.format_table())


@pytest.mark.prove
@pytest.mark.parametrize("seeds", split_range(FROM, MANY, chunks=20), ids=str)
def test_no_promise_is_broken_in_many_schedules(seeds: range) -> None:
    found = statistics.play_seeds(seeds)
    statistics.save_failed_seeds(SEEDS, found.failures)
    assert not found.failures, "\n".join(found.format_table())


# -- several hosts on one store ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", split_range(0, HOST_SCHEDULES, chunks=5), ids=str)
def test_no_promise_is_broken_by_several_hosts(seeds: range) -> None:
    found = statistics.play_seeds(seeds, hosts=True)
    statistics.save_failed_seeds(HOST_SEEDS, found.failures)
    assert not found.failures, "\n".join(found.format_table())


def test_seeds_of_several_hosts_that_failed_once_pass() -> None:
    found = statistics.play_seeds(statistics.load_failed_seeds(HOST_SEEDS), hosts=True)
    assert not found.failures, "\n".join(found.format_table())


@pytest.mark.prove
@pytest.mark.parametrize("seeds", split_range(FROM, MANY, chunks=20), ids=str)
def test_no_promise_is_broken_by_several_hosts_in_many_schedules(seeds: range) -> None:
    found = statistics.play_seeds(seeds, hosts=True)
    statistics.save_failed_seeds(HOST_SEEDS, found.failures)
    assert not found.failures, "\n".join(found.format_table())


# -- calls that need permission ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", split_range(0, APPROVAL_SCHEDULES, chunks=4), ids=str)
def test_no_promise_is_broken_when_calls_need_permission(seeds: range) -> None:
    found = statistics.play_seeds(seeds, approvals=True)
    assert not found.failures, "\n".join(found.format_table())


@pytest.mark.prove
@pytest.mark.parametrize("seeds", split_range(FROM, MANY, chunks=20), ids=str)
def test_no_promise_is_broken_when_calls_need_permission_in_many_schedules(seeds: range) -> None:
    found = statistics.play_seeds(seeds, approvals=True)
    assert not found.failures, "\n".join(found.format_table())


def test_requests_are_answered_from_everywhere_and_every_commit_of_theirs_is_crashed() -> None:
    missing: set[object] = {"answers in a chat", "answers of the operator", "policies edited", "rules revoked"}
    missing |= set(APPROVAL_AIMS)
    for seed in range(120):
        outcome = run_seed(seed, approvals=True)
        missing -= {what for what, count in outcome.stats.items() if count}
        missing -= {aim for aim, count in outcome.crashed.items() if count}
        if not missing:
            return
    raise AssertionError(f"never in 120 schedules: {sorted(map(str, missing))}")


def test_hosts_pass_the_gates_that_only_they_have_and_meet_every_fault() -> None:
    missing: set[object] = {*statistics.HOST_FAULT_NAMES, Step.ACCOUNT_LEASE, Step.HOST_RECORD, Step.RENEW}
    for seed in range(40):
        outcome = run_seed(seed, hosts=True)
        missing -= {fault for fault, count in outcome.stats.items() if count}
        missing -= {gate for gate, _ in outcome.passed}
        if not missing:
            return
    raise AssertionError(f"never in 40 schedules: {sorted(map(str, missing))}")


def test_a_seed_of_several_hosts_is_the_same_schedule_every_time() -> None:
    first = run_seed(3, hosts=True)
    assert first.profile.mode == "hosts"
    assert first.profile.hosts >= 2
    assert first.trace == run_seed(3, hosts=True).trace != run_seed(3).trace


# -- gates -------------------------------------------------------------------------------------------------------------


def test_every_step_is_a_crash_target_or_excluded_with_a_reason() -> None:
    assert {step for step, _ in CRASH_AIMS} | set(UNREACHED_STEPS) == set(Step)
    assert all(reason for reason in UNREACHED_STEPS.values())


HOST = HostRecord(id="me", name="one", version=HostVersion("1.0", 1))
WRITES: dict[str, tuple[Step, Callable[[Store], Awaitable[object]]]] = {
    "commit": (Step.NOTE, lambda store: store.commit(Change(step=Step.NOTE, session="", at=1.0))),
    "claim_cursors": (Step.CLAIM, lambda store: store.claim_cursors(owner="me", lease=1.0, limit=1)),
    "renew_leases": (Step.RENEW, lambda store: store.renew_leases([], owner="me", lease=1.0)),
    "revoke_leases": (Step.REVOKE_LEASES, lambda store: store.revoke_leases(owner="me")),
    "claim_account": (Step.ACCOUNT_LEASE, lambda store: store.claim_account("a", owner="me", lease=1.0)),
    "renew_accounts": (Step.ACCOUNT_LEASE, lambda store: store.renew_accounts([], lease=1.0)),
    "release_account": (Step.ACCOUNT_LEASE, lambda store: store.release_account(AccountClaim("a", "me", 1))),
    "register_host": (Step.HOST_RECORD, lambda store: store.register_host(HOST, lease=1.0)),
    "renew_host": (Step.HOST_RECORD, lambda store: store.renew_host("me", lease=1.0)),
    "remove_host": (Step.HOST_RECORD, lambda store: store.remove_host("me")),
    "reserve_spending": (
        Step.SPEND,
        lambda store: store.reserve_spending([], id="1", day="d", usd=1.0, tokens=1, lease=1.0),
    ),
    "renew_reservations": (Step.SPEND, lambda store: store.renew_reservations([], lease=1.0)),
    "release_reservations": (Step.SPEND, lambda store: store.release_reservations([])),
    "retry_now": (Step.RETRY_NOW, lambda store: store.retry_now()),
    "replay_dead_letters": (Step.REPLAY, lambda store: store.replay_dead_letters([])),
    "drop_dead_letters": (Step.REPLAY, lambda store: store.drop_dead_letters([])),
}
"""Every writing method of the port, and its step."""


class RecordingProcess:
    """A process, its world and its kill switch, which only record the passed gates."""

    name = "p"
    is_remote = False

    def __init__(self, disk: SqliteStore) -> None:
        self.disk = disk
        self.chance = SeededRandom()
        self.world = self.witness = self
        self.profile = draw_profile(0)
        self.stats: Counter[str] = Counter()
        self.passed: list[tuple[str, str]] = []

    async def pass_gate(self, name: str, moment: str) -> None:
        self.passed.append((name, moment))

    async def wait_until_alive(self) -> None: ...

    def draw_chance(self, likely: float) -> bool:
        return False

    def record(self, who: str, what: str) -> None: ...

    def on_commit(self, hint: object) -> None: ...

    def record_claims(self, by: object, claims: object, *, lease: float) -> None: ...

    def record_renewal(self, claims: object, count: int, *, owner: str, lease: float) -> None: ...

    def record_account_claim(self, claim: object, *, lease: float) -> None: ...

    def record_account_renewal(self, claims: object, *, lease: float) -> None: ...

    def record_account_release(self, claim: object, done: bool) -> None: ...

    def record_commit(self, by: object, change: object, done: object) -> None: ...

    def kill_switch(self, step: Step, moment: str) -> None:
        self.passed.append((step, moment))


@pytest.mark.parametrize("method", sorted(list_writing_methods()))
def test_every_writing_method_passes_a_crash_gate(tmp_path: Path, method: str) -> None:
    async def play() -> None:
        store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom(), inline=True)
        step, write = WRITES[method]
        simulated, killed = RecordingProcess(store), RecordingProcess(store)
        await write(GatedStore(simulated))  # type: ignore[arg-type]  # the part of a process that it uses
        add_kill_points(store, killed.kill_switch)
        await write(store)
        assert simulated.passed == killed.passed == [(step, "before"), (step, "after")]
        await store.close()

    asyncio.run(play())


@pytest.mark.parametrize("part", range(4))
def test_every_commit_is_crashed_before_and_after(part: int) -> None:
    """The targets come from the enum of steps, so this test covers a new step."""
    for number, aim in list(enumerate(CRASH_AIMS))[part::4]:
        for turn in [RARE.get(aim, 0), *range(TRIES)]:
            outcome = run_seed(number + turn * len(CRASH_AIMS))
            assert outcome.profile.aim == aim
            assert not outcome.problems, f"seed {outcome.seed}: {outcome.problems}"
            passed = {step for step, _ in outcome.passed}
            assert not passed & set(UNREACHED_STEPS), "a step of UNREACHED_STEPS was reached: remove it from the list"
            if outcome.crashed[aim]:
                break
        else:
            raise AssertionError(f"no process crashed {aim[1]} {aim[0]} in {TRIES} schedules with this target")


# -- repeatability -----------------------------------------------------------------------------------------------------


def test_a_seed_is_the_same_schedule_every_time() -> None:
    assert run_seed(17).trace == run_seed(17).trace != run_seed(18).trace


def trace_with_hash_seed(script: str, hash_seed: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", f"from everhold.testing.sim.run import run_seed; {script}"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_seed_is_the_same_schedule_in_every_process() -> None:
    script = "print(*(run_seed(seed).trace for seed in range(6)))"
    traces = {trace_with_hash_seed(script, hash_seed) for hash_seed in ("1", "2")}
    assert traces == {" ".join(run_seed(seed).trace for seed in range(6)) + "\n"}


def test_a_seed_of_several_hosts_is_the_same_schedule_in_every_process() -> None:
    """In seed 30048 a message settles the peers of two memories, which must be in the same order in every process."""
    script = "print(run_seed(30048, hosts=True).trace)"
    assert trace_with_hash_seed(script, "0") == trace_with_hash_seed(script, "1")


def test_a_failing_seed_prints_its_last_events() -> None:
    found = statistics.play_seeds(range(3), bug="no-dedup")
    table = list(found.format_table())
    seed = next(iter(found.failures))
    heads = [line for line in table if f"seed {seed} " in line]
    assert "ended" in heads[0]
    assert table[table.index(heads[0]) + 1] in run_seed(seed, parts=MUTANTS["no-dedup"].parts).lines
    assert f"WRONG: {found.failures[seed][-1]}" in table


def test_a_story_is_printed() -> None:
    story = subprocess.run(
        [sys.executable, "-m", "everhold.testing.sim", "--story", "3"], capture_output=True, text=True, check=True
    ).stdout
    assert "commits accept" in story
    assert "commits begin for turn" in story
    assert run_seed(3).trace in story


def test_every_kind_of_fault_occurs() -> None:
    """Every fault of the table occurs."""
    missing = set(statistics.FAULT_NAMES)
    for seed in range(100):
        missing -= {fault for fault, count in run_seed(seed).stats.items() if count}
        if not missing:
            return
    raise AssertionError(f"never in 100 schedules: {sorted(missing)}")
