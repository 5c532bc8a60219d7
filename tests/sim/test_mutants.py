"""A simulator that finds nothing proves nothing: every planted bug is found."""

from __future__ import annotations

import pytest

from everhold.testing.sim import tally
from everhold.testing.sim.mutants import MUTANTS

FOUND: dict[str, tuple[int, ...]] = {
    "ack-first": (6, 48, 53),
    "no-dedup": (0, 1, 2),
    "dedup-edits": (1, 2, 4),
    "split-end": (38, 75, 125),
    "cursor": (1, 3, 9),
    "reform": (94, 115, 149),
    "no-fence": (0, 2, 4),
    "late-result": (39, 74, 80),
    "no-hold": (8, 9, 10),
    "rerun-once": (5, 33, 58),
    "resend-held": (0, 4, 5),
    "no-clamp": (9, 13, 23),
    "fold-anyway": (138, 331, 441),
    "erased-back": (59, 66, 195),
    "short-wait": (7, 10, 19),
    "unmarked": (399, 545, 668),
    "stale-view": (53, 59, 72),
    "two-sessions": (19, 24, 35),
    "old-client": (1, 2, 7),
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
