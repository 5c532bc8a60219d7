"""When to try again, and when to stop trying. Numbers only: it waits for nobody."""

from __future__ import annotations

from typing import Final

from everhold.ports.platform import DeliveryGuarantee

FIRST_DELAY_SECONDS: Final = 1.0
MAX_DELAY_SECONDS: Final = 300.0
MAX_ATTEMPTS: Final = 2_030
"""At the longest wait this is a week: an outage is waited out, a dead service is not waited for."""


def retry_delay_seconds(attempt: int, *, jitter: float) -> float | None:
    """Seconds to wait after failed `attempt` (from 1), or None to park the item. `jitter` is in [0, 1)."""
    assert attempt >= 1
    if attempt >= MAX_ATTEMPTS:
        return None
    # 2**20 is far beyond the longest wait already; without the bound the power itself would grow without end
    wait = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(attempt - 1, 20))
    return float(wait * (0.5 + jitter / 2))


def resolve_in_doubt(delivery: DeliveryGuarantee, *, policy: str) -> str:
    """What to do about an item whose answer was lost: `resend`, `probe`, `gamble` (resend, and count it) or `hold`."""
    if delivery in (DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT):
        return "resend"
    if delivery is DeliveryGuarantee.PROBE:
        return "probe"
    return "hold" if policy == "hold" else "gamble"


def is_late_arrival_harmful(delivery: DeliveryGuarantee) -> bool:
    """Whether a predecessor's request that is still on the wire could do harm if it lands after ours."""
    return delivery is not DeliveryGuarantee.KEYED
