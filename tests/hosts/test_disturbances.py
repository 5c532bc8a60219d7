"""Real hosts whose server processes are ended, which stop for longer than a lease, or which share a pooler: nothing is
lost, doubled or reordered. Smaller versions are in tests/stores/postgres."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psycopg
import pytest

from everhold.testing.kill import http_trial
from everhold.testing.kill.hosts_trial import LEASE_SECONDS, HostKillResult, HostTrial, KillableHosts
from everhold.testing.postgres_server import PostgresTestServer
from tests.hosts.trial_table import prove
from tests.stores.postgres import pooler

DISTURBANCES = int(os.environ.get("EVERHOLD_DISTURBANCES", "60"))
PER_RUN = int(os.environ.get("EVERHOLD_DISTURBANCES_PER_RUN", "10"))
FIRST = int(os.environ.get("EVERHOLD_FROM") or 0)
RUNS = range(FIRST, max(DISTURBANCES, FIRST + 1), PER_RUN)


class EndedProcesses(HostTrial):
    """A server process is ended about every second, whatever it is doing."""

    async def _break_things(self, pool: KillableHosts, trigger: http_trial.CallerTrigger, kills: int) -> None:
        while self.disturbances < kills:
            await asyncio.sleep(self.rng.choice((0.1, 0.5, 1.0)))
            self.disturbances += await asyncio.to_thread(end_server_process, self.store_url)


def end_server_process(url: str) -> int:
    """End any server process of the database but this one. Return how many were ended."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid() and backend_type = 'client backend' order by random() limit 1"
        )
        return len(found.fetchall())


class StoppedHosts(HostTrial):
    """A host is stopped for about as long as a lease, so that it sometimes has lost everything when it goes on."""

    async def _break_things(self, pool: KillableHosts, trigger: http_trial.CallerTrigger, kills: int) -> None:
        while self.disturbances < kills:
            if moment := self.rng.choice(("", "kept", "words")):
                await trigger.wait_for(moment, seconds=http_trial.MAX_TRIGGER_SECONDS)
            process = self.rng.choice(pool.running).process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(LEASE_SECONDS * self.rng.uniform(0.5, 2.0))
            process.send_signal(signal.SIGCONT)
            self.disturbances += 1
            await asyncio.sleep(self.rng.random())


@pytest.mark.prove
@pytest.mark.parametrize("seed", RUNS)
async def test_ended_server_processes_under_load(
    tmp_path: Path, postgres_server: PostgresTestServer, seed: int
) -> None:
    async def run() -> HostKillResult:
        with postgres_server.lend_store_database() as url:
            return await EndedProcesses(tmp_path, store_url=url, hosts=2, seed=seed).run(kills=3 * PER_RUN)

    await prove("server processes ended", seed, run)


@pytest.mark.prove
@pytest.mark.parametrize("seed", RUNS)
async def test_stopped_hosts_under_load(tmp_path: Path, postgres_server: PostgresTestServer, seed: int) -> None:
    async def run() -> HostKillResult:
        with postgres_server.lend_store_database() as url:
            return await StoppedHosts(tmp_path, store_url=url, hosts=3, seed=seed).run(kills=PER_RUN)

    await prove("hosts stopped", seed, run)


@pytest.mark.prove
@pytest.mark.parametrize("seed", RUNS)
async def test_kills_behind_a_pooler(tmp_path: Path, postgres_server: PostgresTestServer, seed: int) -> None:
    if pooler.find_pgbouncer() is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")

    async def run() -> HostKillResult:
        with postgres_server.lend_store_database() as url, pooler.run_pooler(postgres_server) as home:
            pooled = pooler.build_pooled_url(home, url)
            return await HostTrial(tmp_path, store_url=pooled, hosts=2, seed=seed).run(kills=PER_RUN)

    await prove("killed behind a pooler", seed, run)
