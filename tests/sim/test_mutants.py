"""The simulator finds every planted bug."""

from __future__ import annotations

import pytest

from everhold.testing.sim import statistics
from everhold.testing.sim.mutants import MUTANTS

FOUND: dict[str, tuple[int, ...]] = {
    "ack-first": (1,),
    "confirm-first": (25,),
    "forgets-keys": (2,),
    "reply-first": (3,),
    "no-dedup": (0,),
    "dedup-edits": (1,),
    "split-end": (4,),
    "cursor": (0,),
    "new-batch-on-retry": (82,),
    "no-fence": (3,),
    "late-result": (134,),
    "no-hold": (4,),
    "rerun-once": (3,),
    "truncated-answer": (97,),
    "draft-stays": (1,),
    "draft-unrecorded": (47,),
    "resend-held": (5,),
    "no-clamp": (0,),
    "own-lease": (0,),
    "stale-compression": (336,),
    "erased-back": (66,),
    "recall-record-stays": (460,),
    "recall-record-returns": (60,),
    "host-clock": (1,),
    "shared-host-clock": (0,),
    "shared-revoke": (0,),
    "offset-unfenced": (9,),
    "two-pollers": (0,),
    "account-early": (0,),
    "unsynced-unguarded": (11,),
    "unknown-repeated": (1,),
    "unknown-trusted": (1,),
    "pins-compressed": (138,),
    "pins-stay": (0,),
    "short-wait": (7,),
    "unmarked": (5,),
    "dead-letter-batch": (6,),
    "rest-not-stored": (209,),
    "stale-context": (2,),
    "two-sessions": (19,),
    "bulk-loses": (1,),
    "bulk-asleep": (13,),
    "accept-unsynced": (0,),
    "end-unsynced": (16,),
    "call-unsynced": (137,),
    "send-unsynced": (0,),
    "old-identity": (15,),
    "person-at-write": (15,),
    "present-peer": (0,),
    "unlink-ignored": (4,),
    "erasure-assumed": (27,),
    "one-identity": (17,),
    "no-tombstones": (3,),
    "old-client": (0,),
    "asks-nobody": (0,),
    "open-runs": (0,),
    "approved-twice": (57,),
    "request-forgotten": (0,),
    "decided-twice": (0,),
    "report-lost": (0,),
    "anybody-answers": (16,),
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
