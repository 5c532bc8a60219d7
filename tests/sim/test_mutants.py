"""A simulator that finds nothing proves nothing: every planted bug is found."""

from __future__ import annotations

import pytest

from everhold.testing.sim import tally
from everhold.testing.sim.mutants import MUTANTS

FOUND: dict[str, tuple[int, ...]] = dict.fromkeys(MUTANTS, ())
"""Seeds that find each bug, the first ones from 0 on. When flow changes, so do schedules: see `search`."""

NEARBY = 400
"""How far a bug is searched for when its recorded seeds no longer find it."""
MOST = 5_000


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found(bug: str) -> None:
    found = tally.count([*FOUND[bug], *range(NEARBY)], bug=bug, until_found=True)
    assert found.failures, f"{MUTANTS[bug].about}: survives {found.schedules} schedules"


@pytest.mark.prove
@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found_from_the_first_seed_on(bug: str) -> None:
    found = tally.count(range(MOST), bug=bug, until_found=True)
    assert found.failures, f"{MUTANTS[bug].about}: survives {found.schedules} schedules"
