"""A simulator that finds nothing proves nothing: every planted bug is found."""

from __future__ import annotations

import pytest

from everhold.testing.sim import tally
from everhold.testing.sim.mutants import MUTANTS

FOUND: dict[str, tuple[int, ...]] = {
    "ack-first": (12, 48),
    "no-dedup": (0, 1, 2),
    "dedup-edits": (1, 2, 4),
    "split-end": (3, 5),
    "cursor": (0, 1, 3),
    "reform": (567, 721, 851, 1333, 1663, 2082, 2290, 2866),
    "no-fence": (2, 3, 6),
    "late-result": (36, 39),
    "no-hold": (3, 8, 9),
    "rerun-once": (6, 10, 58),
    "resend-held": (5, 12, 13),
    "no-clamp": (7, 9),
    "fold-anyway": (220, 257),
    "erased-back": (118,),
    "shown-stays": (8, 39),
    "shown-back": (203, 296, 301),
    "short-wait": (6, 19),
    "unmarked": (389, 588),
    "park-batch": (7, 12, 16),
    "rest-in-head": (7, 19, 67),
    "stale-view": (1,),
    "two-sessions": (19, 24, 35),
    "accept-unsynced": (0,),
    "end-unsynced": (654,),
    "call-unsynced": (2245,),
    "flight-unsynced": (6,),
    "old-client": (2, 7),
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
