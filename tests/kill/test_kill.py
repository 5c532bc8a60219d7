"""Kill -9, with everything the process talks to outside of it: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from statistics import median

import pytest

import everhold
from everhold.engine.supervisor import LEASE_SECONDS
from everhold.ports.store import Step
from everhold.testing.kill.gates import UNREACHED, KillGate, KillMoment, list_kill_gates
from everhold.testing.kill.mutants import MUTANTS
from everhold.testing.kill.trial import READY_SECONDS, KillTrial, KillTrialResult

KILLS = int(os.environ.get("EVERHOLD_KILLS", "1000"))
KILLS_A_STORM = 50
HARD_SECONDS = 10 * READY_SECONDS
TOURS = 20


def assert_no_failures(outcome: KillTrialResult) -> None:
    assert not outcome.failures, str(outcome)
    # a start computes for 0.3 s; one that reads the whole log computes for longer, however busy this machine is
    assert max(outcome.computed) < READY_SECONDS, str(outcome)
    # and one that waits for something, such as a lease, does so every time
    assert min(outcome.startup_seconds) < HARD_SECONDS, str(outcome)
    assert median(outcome.startup_seconds) < LEASE_SECONDS / 2, str(outcome)
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
    """Whether a process comes there more than once."""
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


async def test_what_runs_at_sigterm_is_resumed() -> None:
    async with KillTrial(3) as trial:
        life = await trial.start()
        await life.wait_until_ready()
        for step in (Step.TAKE, Step.CALL, Step.DRAFT, Step.COMPRESSION_BEGIN, Step.PAUSE):
            trial.people.provoke_commit(step)
        trial.people.start()
        await life.let_run(0.5)
        await trial.people.stop()
        await life.stop()
        outcome = await trial.finish_and_compare()
    assert_no_failures(outcome)


@pytest.mark.parametrize("bug", MUTANTS)
async def test_a_planted_bug_is_found(bug: str) -> None:
    mutant = MUTANTS[bug]
    async with KillTrial(4, mutant=bug) as trial:
        life = await trial.start(gate=mutant.gate)
        trial.people.open_chat(mutant.platform).write_message(mutant.says)
        assert await life.wait_until_killed()
        outcome = await trial.finish_and_compare()
    assert any(mutant.found_by in failure for failure in outcome.failures), str(outcome)


def test_steps_that_nobody_comes_to_are_used_nowhere() -> None:
    source = Path(everhold.__file__).parent
    rooms = [path for path in source.rglob("*.py") if "testing" not in path.parts and path.name != "store.py"]
    used = {name for path in rooms for name in re.findall(r"\bStep\.([A-Z_]+)", path.read_text())}
    assert not used & {step.name for step in UNREACHED}, "it can be reached now: teach testing/kill/people.py how"


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(100, 100 + -(-KILLS // KILLS_A_STORM)))
async def test_many_kills(seed: int) -> None:
    assert_no_failures(await run_random_kills(seed, KILLS_A_STORM))


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(1000, 1000 + TOURS))
async def test_many_kills_at_named_commits(seed: int) -> None:
    dice = random.Random(seed)
    stops = [
        KillGate(gate.step, gate.moment, nth=dice.choice((1, 1, 2, 3)) if can_repeat(gate) else 1)
        for gate in list_kill_gates()
    ]
    dice.shuffle(stops)
    assert_no_failures(await run_gate_tour(seed, stops))
