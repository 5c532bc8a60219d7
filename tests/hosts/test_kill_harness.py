"""The kill trials of tests/kill, unchanged, on PostgreSQL: kill -9 at random moments and at each named commit."""

from __future__ import annotations

import os

import pytest

from everhold.testing.kill.gates import KILL_MOMENTS, KillGate, list_kill_gates
from everhold.testing.kill.mutants import MUTANTS
from everhold.testing.kill.trial import KillTrial, KillTrialResult
from everhold.testing.postgres_server import PostgresTestServer
from tests.hosts.trial_table import prove

KILLS = int(os.environ.get("EVERHOLD_HOST_KILLS", "300"))
KILLS_PER_RUN = 10
GATES_PER_RUN = 8
TOUR = [gate for moment in KILL_MOMENTS for gate in list_kill_gates(is_shared=True) if gate.moment == moment]


async def kill_at_random(server: PostgresTestServer, *, seed: int, kills: int) -> KillTrialResult:
    with server.lend_store_database() as url:
        async with KillTrial(seed, store_url=url) as trial:
            await trial.kill_at_random(kills)
            return await trial.finish_and_compare()


async def kill_at_gates(server: PostgresTestServer, *, seed: int, gates: list[KillGate]) -> KillTrialResult:
    with server.lend_store_database() as url:
        async with KillTrial(seed, store_url=url) as trial:
            await trial.kill_at_gates(gates)
            return await trial.finish_and_compare()


async def test_a_few_kills_lose_double_and_reorder_nothing(postgres_server: PostgresTestServer) -> None:
    found = await kill_at_random(postgres_server, seed=1, kills=4)
    assert not found.failures, str(found)
    assert found.counts["kills"] >= 4


async def test_a_planted_bug_is_found(postgres_server: PostgresTestServer) -> None:
    bug = "acknowledges before commit"
    mutant = MUTANTS[bug]
    with postgres_server.lend_store_database() as url:
        async with KillTrial(4, mutant=bug, store_url=url) as trial:
            process = await trial.start(gate=mutant.gate)
            trial.people.open_chat(mutant.platform).write_message(mutant.says)
            assert await process.wait_until_killed()
            found = await trial.finish_and_compare()
    assert any(mutant.found_by in failure for failure in found.failures), str(found)


@pytest.mark.prove
@pytest.mark.parametrize("run", range(-(-KILLS // KILLS_PER_RUN)))
async def test_many_kills(postgres_server: PostgresTestServer, run: int) -> None:
    await prove(
        "kill trial on PostgreSQL", run, lambda: kill_at_random(postgres_server, seed=100 + run, kills=KILLS_PER_RUN)
    )


@pytest.mark.prove
@pytest.mark.parametrize("run", range(-(-len(TOUR) // GATES_PER_RUN)))
async def test_a_kill_at_each_named_commit(postgres_server: PostgresTestServer, run: int) -> None:
    gates = TOUR[run * GATES_PER_RUN :][:GATES_PER_RUN]
    await prove(
        "named commits on PostgreSQL", run, lambda: kill_at_gates(postgres_server, seed=1000 + run, gates=gates)
    )
