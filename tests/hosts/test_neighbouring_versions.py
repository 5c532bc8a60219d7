"""Hosts of the version before the last migration work beside hosts of this one, on the same store."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from everhold.stores.postgres.migrate import list_migrations
from everhold.testing.kill import http_trial
from everhold.testing.kill.gateway import EVERHOLD, KillableGateway
from everhold.testing.kill.hosts_trial import HostKillResult, HostTrial, KillableHosts
from everhold.testing.postgres_server import PostgresTestServer
from tests.hosts import previous_version
from tests.hosts.trial_table import prove
from tests.stores.postgres.host_process import run_host
from tests.stores.postgres.scenario import fetch_value, open_hosts, open_session, read_texts


@pytest.fixture
def old_source(tmp_path: Path) -> Path:
    commit = previous_version.find_previous_commit()
    if not commit:
        pytest.skip("the version before the last migration is not in the history that is here")
    return previous_version.extract_source(commit, tmp_path / "previous")


async def test_a_host_of_the_previous_version_goes_on_while_the_schema_is_upgraded(
    postgres_server: PostgresTestServer, old_source: Path
) -> None:
    newest = list_migrations()[-1].version
    with postgres_server.lend_database() as url, run_host(url, environment={"PYTHONPATH": str(old_source)}) as old:
        assert "error" in old.ask("accept", "s", "first"), "the session does not exist, but the schema does"
        assert old.ask("where", "")["source"].startswith(str(old_source))
        assert fetch_value(url, "select schema_version from store_info") == newest - 1
        async with open_hosts(url) as (new,):
            assert fetch_value(url, "select schema_version from store_info") == newest
            await open_session(new, "s")
            assert old.ask("accept", "s", "first") == {"seqs": [1], "duplicate": False}
            assert old.ask("claim", "s")["fence"] == 1
            assert old.ask("begin", "s") == {"seqs": [2]}
            snapshot = await new.get_session_snapshot("s")
            assert (snapshot.session.running, snapshot.pending) == ("turn", [])
            assert await read_texts(new, "s") == ["first"]
            assert await new.verify() == []
        with run_host(url, environment={"PYTHONPATH": str(old_source)}) as again:  # an upgrade that is taken back
            assert again.ask("accept", "s", "second")["duplicate"] is False


class RollingUpgrade(HostTrial):
    """Hosts are replaced by the next version, one after another, and back, in order or by force."""

    async def _break_things(self, pool: KillableHosts, trigger: http_trial.CallerTrigger, kills: int) -> None:
        old = self.program
        for number in range(kills):
            for host in pool.hosts:
                await asyncio.sleep(1.0 + self.rng.random())
                await self._replace(host, (*EVERHOLD,) if number % 2 == 0 else (*old,))
        for host in pool.hosts:
            await self._replace(host, EVERHOLD)

    async def _replace(self, host: KillableGateway, program: tuple[str, ...]) -> None:
        by_force = self.rng.random() < 0.5
        await host.kill(signal.SIGKILL if by_force else signal.SIGTERM)
        self.kills += by_force
        self.drains += not by_force
        host.program = program
        await host.start()


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(3))
async def test_an_upgrade_host_by_host_under_load(
    tmp_path: Path, postgres_server: PostgresTestServer, old_source: Path, seed: int
) -> None:
    program = previous_version.build_program(old_source)

    async def run() -> HostKillResult:
        with postgres_server.lend_database() as url:
            trial = RollingUpgrade(tmp_path, store_url=url, hosts=2, seed=seed, program=program)
            found = await trial.run(kills=3)
            assert fetch_value(url, "select schema_version from store_info") == list_migrations()[-1].version
            return found

    await prove("upgrade host by host", seed, run)
