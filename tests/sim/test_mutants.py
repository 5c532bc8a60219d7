"""A simulator that finds nothing proves nothing: every planted bug is found."""

from __future__ import annotations

import pytest

from everhold.testing.sim import tally
from everhold.testing.sim.mutants import MUTANTS

FOUND: dict[str, tuple[int, ...]] = {
    "ack-first": (35, 47),
    "no-dedup": (0, 1),
    "dedup-edits": (1, 4),
    "split-end": (56, 70),
    "cursor": (0, 1),
    "reform": (36, 115),
    "no-fence": (2, 3),
    "late-result": (90,),
    "no-hold": (4, 5),
    "rerun-once": (6, 39),
    "resend-held": (5, 12),
    "no-clamp": (7, 9),
    "fold-anyway": (49,),
    "erased-back": (59,),
    "shown-stays": (39, 52),
    "shown-back": (237, 374),
    "short-wait": (5, 6),
    "unmarked": (129, 175),
    "park-batch": (2, 6),
    "rest-in-head": (7, 9),
    "stale-view": (18, 25),
    "two-sessions": (19, 24),
    "accept-unsynced": (0, 23),
    "end-unsynced": (149, 877),
    "call-unsynced": (631, 2800),
    "flight-unsynced": (99, 103),
    "old-client": (1, 2),
}
"""The first seeds that found each bug, on Python 3.11. Schedules change with flow: then others find it nearby."""

NEARBY = 250
"""How far a bug is searched for when its recorded seeds no longer find it."""
MOST = 5_000


def test_every_planted_bug_has_been_found() -> None:
    assert FOUND.keys() == MUTANTS.keys()


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found(bug: str) -> None:
    found = tally.count([*FOUND[bug], *range(NEARBY)], bug=bug, until_found=True)
    assert found.failures, f"{MUTANTS[bug].about}: survives {found.schedules} schedules"


@pytest.mark.prove
@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found_from_the_first_seed_on(bug: str) -> None:
    found = tally.count(range(MOST), bug=bug, until_found=True)
    assert found.failures, f"{MUTANTS[bug].about}: survives {found.schedules} schedules"
