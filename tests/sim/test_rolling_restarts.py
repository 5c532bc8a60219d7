"""Hosts are replaced one after another, again and again, while people write: nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio

import pytest

from everhold.testing.sim.mutants import MUTANTS
from everhold.testing.sim.profile import make_rolling_settings
from everhold.testing.sim.run import SimOutcome, run_seed
from tests.hosts.trial_table import prove

MINUTE = 60.0
DAY = 24 * 60 * MINUTE


def roll(seed: int, *, seconds: float, every: float, bug: str = "") -> SimOutcome:
    parts = MUTANTS[bug].parts if bug else None
    settings = make_rolling_settings(seconds=seconds, roll_seconds=every)
    return run_seed(seed, hosts=True, parts=parts, settings=settings)


def assert_rolled(found: SimOutcome, *, seconds: float, every: float) -> None:
    assert not found.problems, "\n".join([f"seed {found.seed}", *found.problems])
    assert found.seconds >= seconds
    assert found.stats["drains"] >= 0.9 * seconds / every, found.stats


def test_hosts_are_replaced_every_two_minutes() -> None:
    assert_rolled(roll(1, seconds=20 * MINUTE, every=2 * MINUTE), seconds=20 * MINUTE, every=2 * MINUTE)


def test_a_new_host_that_ends_the_leases_of_the_others_is_found() -> None:
    assert roll(1, seconds=20 * MINUTE, every=2 * MINUTE, bug="shared-revoke").problems


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(3))
async def test_a_day_of_rolling_restarts(seed: int) -> None:
    async def run() -> SimOutcome:
        found = await asyncio.to_thread(roll, seed, seconds=DAY, every=10 * MINUTE)
        assert_rolled(found, seconds=DAY, every=10 * MINUTE)
        return found

    await prove("24 simulated hours of rolling restarts", seed, run)
