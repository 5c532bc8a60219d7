"""A simulator that finds nothing proves nothing: every planted bug is found."""

from __future__ import annotations

import pytest

from everhold.testing.sim import statistics
from everhold.testing.sim.mutants import MUTANTS

FOUND: dict[str, tuple[int, ...]] = {
    "ack-first": (47,),
    "kept-first": (166,),
    "forgets-keys": (2,),
    "reply-first": (3,),
    "no-dedup": (0,),
    "dedup-edits": (1,),
    "split-end": (4,),
    "cursor": (0,),
    "reform": (36,),
    "no-fence": (3,),
    "late-result": (90,),
    "no-hold": (3,),
    "rerun-once": (6,),
    "half-answer": (98,),
    "half-shown": (12,),
    "resend-held": (5,),
    "no-clamp": (18,),
    "own-lease": (67,),
    "fold-anyway": (621,),
    "erased-back": (59,),
    "shown-stays": (39,),
    "shown-back": (374,),
    "short-wait": (19,),
    "unmarked": (175,),
    "park-batch": (7,),
    "rest-in-head": (7,),
    "stale-view": (25,),
    "two-sessions": (19,),
    "accept-unsynced": (0,),
    "end-unsynced": (877,),
    "call-unsynced": (1250,),
    "flight-unsynced": (99,),
    "old-client": (2,),
}
"""Seeds that found each bug, on Python 3.11. Schedules change with flow: then others find it nearby."""

NEARBY = 250
"""How far a bug is searched for when its recorded seeds no longer find it."""
MOST = 5_000


def test_every_planted_bug_has_been_found() -> None:
    assert FOUND.keys() == MUTANTS.keys()


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found(bug: str) -> None:
    found = statistics.play_seeds([*FOUND[bug], *range(NEARBY)], bug=bug, until_found=True)
    assert found.failures, f"{MUTANTS[bug].description}: survives {found.schedules} schedules"


@pytest.mark.prove
@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found_from_the_first_seed_on(bug: str) -> None:
    found = statistics.play_seeds(range(MOST), bug=bug, until_found=True)
    assert found.failures, f"{MUTANTS[bug].description}: survives {found.schedules} schedules"
