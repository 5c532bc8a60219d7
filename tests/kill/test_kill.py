"""Kill -9 a process whose remote services run outside of it: nothing is lost, doubled or reordered."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

import everhold
from everhold.ports.store import Step
from everhold.testing.kill.child import DRAIN_SECONDS
from everhold.testing.kill.gates import UNREACHED, KillGate, KillMoment, list_kill_gates
from everhold.testing.kill.mutants import MUTANTS
from everhold.testing.kill.trial import READY_SECONDS, KillTrial, KillTrialResult

FROM = int(os.environ.get("EVERHOLD_FROM", "0"))
KILLS = int(os.environ.get("EVERHOLD_KILLS", "1000"))
KILLS_PER_RUN = 50
TOURS = 20


def assert_no_failures(outcome: KillTrialResult) -> None:
    assert not outcome.failures, str(outcome)
    # a start uses 0.3 s of CPU; one that read the whole log would use more, however busy this machine is
    assert max(outcome.computed) < READY_SECONDS, str(outcome)
    # nor does it wait for something, such as a lease
    assert max(outcome.start_waits) < 0.5, str(outcome)
    assert max(outcome.stop_waits, default=0.0) < 2 * DRAIN_SECONDS, str(outcome)
    assert outcome.counts["messages"] > 20, str(outcome)


async def run_random_kills(seed: int, kills: int) -> KillTrialResult:
    async with KillTrial(seed) as trial:
        await trial.kill_at_random(kills)
        return await trial.finish_and_compare()


async def run_gate_tour(seed: int, stops: list[KillGate]) -> KillTrialResult:
    async with KillTrial(seed) as trial:
        await trial.kill_at_gates(stops)
        return await trial.finish_and_compare()


def can_repeat(gate: KillGate) -> bool:
    """Return whether a process reaches the gate more than once."""
    return gate.step not in (Step.REVOKE_LEASES, Step.RETRY_NOW, Step.REPLAY)


async def test_thirty_kills_lose_double_and_reorder_nothing() -> None:
    outcome = await run_random_kills(1, 30)
    assert_no_failures(outcome)
    assert outcome.counts["kills"] >= 30
    assert outcome.counts["resumed turns"], f"no kill met a running turn: {outcome}"


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.prove), "after"])
async def test_a_kill_at_any_named_commit_is_survived(moment: KillMoment) -> None:
    stops = [gate for gate in list_kill_gates() if gate.moment == moment]
    outcome = await run_gate_tour(2, stops)
    assert_no_failures(outcome)
    assert outcome.counts["kills"] >= len(stops)


async def test_a_turn_running_at_sigterm_is_resumed() -> None:
    async with KillTrial(3) as trial:
        process = await trial.start()
        await process.wait_until_ready()
        for step in (Step.TAKE, Step.CALL, Step.DRAFT, Step.COMPRESSION_BEGIN, Step.PAUSE):
            trial.people.provoke_commit(step)
        trial.people.start()
        await process.let_run(0.5)
        await trial.people.stop()
        await process.stop()
        outcome = await trial.finish_and_compare()
    assert_no_failures(outcome)
    assert outcome.stop_waits, "no process reported how it stopped"


@pytest.mark.parametrize("bug", MUTANTS)
async def test_a_planted_bug_is_found(bug: str) -> None:
    mutant = MUTANTS[bug]
    async with KillTrial(4, mutant=bug) as trial:
        process = await trial.start(gate=mutant.gate)
        trial.people.open_chat(mutant.platform).write_message(mutant.says)
        assert await process.wait_until_killed()
        outcome = await trial.finish_and_compare()
    assert any(mutant.found_by in failure for failure in outcome.failures), str(outcome)


def test_unreached_steps_are_not_used() -> None:
    source = Path(everhold.__file__).parent
    modules = [path for path in source.rglob("*.py") if "testing" not in path.parts and path.name != "store.py"]
    used = {name for path in modules for name in re.findall(r"\bStep\.([A-Z_]+)", path.read_text())}
    assert not used & {step.name for step in UNREACHED}, (
        "the step can be reached now: add to testing/kill/people.py how"
    )


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(100 + FROM // KILLS_PER_RUN, 100 + -(-KILLS // KILLS_PER_RUN)))
async def test_many_kills_lose_double_and_reorder_nothing(seed: int) -> None:
    assert_no_failures(await run_random_kills(seed, KILLS_PER_RUN))


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(1000 + TOURS * min(FROM, KILLS) // KILLS, 1000 + TOURS))
async def test_many_kills_at_named_commits_are_survived(seed: int) -> None:
    rng = random.Random(seed)
    stops = [
        KillGate(gate.step, gate.moment, nth=rng.choice((1, 1, 2, 3)) if can_repeat(gate) else 1)
        for gate in list_kill_gates()
    ]
    rng.shuffle(stops)
    assert_no_failures(await run_gate_tour(seed, stops))
