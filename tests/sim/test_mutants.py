"""The simulator finds every planted bug."""

from __future__ import annotations

import pytest

from everhold.testing.sim import statistics
from everhold.testing.sim.mutants import MUTANTS

FOUND: dict[str, tuple[int, ...]] = {
    "ack-first": (1,),
    "confirm-first": (16,),
    "forgets-keys": (2,),
    "reply-first": (297,),
    "no-dedup": (0,),
    "dedup-edits": (1,),
    "split-end": (115,),
    "cursor": (0,),
    "new-batch-on-retry": (19,),
    "no-fence": (0,),
    "late-result": (33,),
    "no-hold": (3,),
    "rerun-once": (60,),
    "truncated-answer": (4,),
    "draft-stays": (1,),
    "draft-unrecorded": (38,),
    "resend-held": (4,),
    "no-clamp": (7,),
    "own-lease": (19,),
    "stale-compression": (36,),
    "erased-back": (7,),
    "recall-record-stays": (2,),
    "recall-record-returns": (5,),
    "short-wait": (19,),
    "unmarked": (71,),
    "dead-letter-batch": (2,),
    "rest-not-stored": (7,),
    "stale-context": (1,),
    "two-sessions": (19,),
    "accept-unsynced": (6,),
    "end-unsynced": (6,),
    "call-unsynced": (5,),
    "send-unsynced": (1,),
    "old-identity": (15,),
    "person-at-write": (15,),
    "present-peer": (0,),
    "unlink-ignored": (10,),
    "erasure-assumed": (2,),
    "one-identity": (29,),
    "no-tombstones": (2,),
    "old-client": (0,),
}
"""Seeds that find each bug with its settings, on Python 3.11. A change of the engine changes the schedules; then other
seeds find it."""

NEARBY = 250
"""How many seeds are searched when the recorded ones no longer find a bug."""
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
