"""When to try again, and when to stop trying. Numbers only: it waits for nobody."""

from __future__ import annotations

from typing import Final

from everhold.ports.platform import Delivery

FIRST_WAIT_SECONDS: Final = 1.0
LONGEST_WAIT_SECONDS: Final = 300.0
MOST_ATTEMPTS: Final = 2_030
"""At the longest wait this is a week: an outage is waited out, a dead service is not waited for."""


def wait_seconds(attempt: int, *, jitter: float) -> float | None:
    """Seconds to wait after failed `attempt` (from 1), or None to park the item. `jitter` is in [0, 1)."""
    assert attempt >= 1
    if attempt >= MOST_ATTEMPTS:
        return None
    # 2**20 is far beyond the longest wait already; without the bound the power itself would grow without end
    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(attempt - 1, 20))
    return float(wait * (0.5 + jitter / 2))


def resolution(delivery: Delivery, *, policy: str) -> str:
    """What to do about an item whose answer was lost: `resend`, `probe`, `gamble` (resend, and count it) or `hold`."""
    if delivery in (Delivery.KEYED, Delivery.UPSERT):
        return "resend"
    if delivery is Delivery.PROBE:
        return "probe"
    return "hold" if policy == "hold" else "gamble"


def must_hold(delivery: Delivery) -> bool:
    """Whether a predecessor's request that is still on the wire could do harm if it lands after ours."""
    return delivery is not Delivery.KEYED
