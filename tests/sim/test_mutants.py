"""The simulator finds every planted bug."""

from __future__ import annotations

import pytest

from everhold.testing.sim import statistics
from everhold.testing.sim.mutants import MUTANTS

FOUND: dict[str, tuple[int, ...]] = {
    "ack-first": (56,),
    "confirm-first": (2688,),
    "forgets-keys": (2,),
    "reply-first": (3,),
    "no-dedup": (0,),
    "dedup-edits": (1,),
    "split-end": (50,),
    "cursor": (0,),
    "new-batch-on-retry": (15,),
    "no-fence": (3,),
    "late-result": (9,),
    "no-hold": (5,),
    "rerun-once": (36,),
    "truncated-answer": (98,),
    "draft-stays": (1,),
    "draft-unrecorded": (38,),
    "resend-held": (5,),
    "no-clamp": (7,),
    "own-lease": (3,),
    "stale-compression": (124,),
    "erased-back": (114,),
    "recall-record-stays": (115,),
    "recall-record-returns": (301,),
    "short-wait": (19,),
    "unmarked": (20,),
    "dead-letter-batch": (7,),
    "rest-not-stored": (33,),
    "stale-context": (36,),
    "two-sessions": (19,),
    "accept-unsynced": (0,),
    "end-unsynced": (697,),
    "call-unsynced": (1319,),
    "send-unsynced": (138,),
    "old-identity": (15,),
    "person-at-write": (15,),
    "present-peer": (0,),
    "unlink-ignored": (251,),
    "erasure-assumed": (27,),
    "one-identity": (29,),
    "no-tombstones": (2,),
    "old-client": (2,),
}
"""Seeds that find each bug, on Python 3.11. A change of the engine changes the schedules; then nearby seeds find it."""

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
