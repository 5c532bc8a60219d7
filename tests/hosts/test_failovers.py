"""A synchronous pair of servers fails over under load: nothing is lost, doubled or reordered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everhold.testing.kill.failover_trial import run_failovers, run_pair_thread
from everhold.testing.kill.hosts_trial import HostKillResult
from everhold.testing.postgres_server import find_obstacle
from tests.hosts.trial_table import prove

FAILOVERS = int(os.environ.get("EVERHOLD_FAILOVERS", "50"))
FIRST = int(os.environ.get("EVERHOLD_FROM") or 0)
FAILOVERS_PER_RUN = 5


@pytest.mark.prove
@pytest.mark.parametrize("first", range(FIRST, FAILOVERS, FAILOVERS_PER_RUN))
async def test_failovers_under_load(tmp_path: Path, first: int) -> None:
    if obstacle := find_obstacle():
        pytest.skip(obstacle)

    async def run() -> HostKillResult:
        with run_pair_thread() as servers:
            return await run_failovers(tmp_path, servers, hosts=2, failovers=FAILOVERS_PER_RUN, seed=first)

    await prove("failovers of a synchronous pair", first, run)
