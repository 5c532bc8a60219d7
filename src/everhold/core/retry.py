"""Compute when to retry, and when to give up. Nothing here waits."""

from __future__ import annotations

from typing import Final

from everhold.ports.platform import DeliveryGuarantee

FIRST_DELAY_SECONDS: Final = 1.0
MAX_DELAY_SECONDS: Final = 300.0
MAX_ATTEMPTS: Final = 2_030
"""At the longest delay this takes a week, so a long outage is survived and a dead service is given up."""


def retry_delay_seconds(attempt: int, *, jitter: float) -> float | None:
    """Return the seconds to wait after failed `attempt` (from 1), or None to give the item up. `jitter` is in [0, 1)."""
    assert attempt >= 1
    if attempt >= MAX_ATTEMPTS:
        return None
    # 2**20 is far beyond the longest delay; without the bound the power would grow without end.
    wait = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(attempt - 1, 20))
    return float(wait * (0.5 + jitter / 2))


def resolve_in_doubt(delivery: DeliveryGuarantee, *, policy: str) -> str:
    """Return what to do with an item in doubt: `resend`, `probe`, `blind_resend` (resend, and count it) or `hold`."""
    if delivery in (DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT):
        return "resend"
    if delivery is DeliveryGuarantee.PROBE:
        return "probe"
    return "hold" if policy == "hold" else "blind_resend"


def is_late_arrival_harmful(delivery: DeliveryGuarantee) -> bool:
    """Return whether an earlier request that is still under way could do harm if it arrives after ours."""
    return delivery is not DeliveryGuarantee.KEYED
