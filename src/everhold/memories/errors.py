"""Maps failures of a remote memory to the errors that tell the caller what to do next, one table for all services.

A write that got an error response may still have been carried out: services were seen to answer 503 after the work was
done. A write counts as not done only if the request was never sent or the service refused it.
"""

from __future__ import annotations

from everhold.errors import EverholdError, InDoubt, PartiallyDone, Refused, Transient

KEY_REMEDY = "check the key in .env; pending items are sent with the corrected key"


def build_memory_error(
    what: str,
    reason: str,
    *,
    status: int = 0,
    retry_after: float | None = None,
    writes: bool = True,
    unsent: bool = False,
) -> EverholdError:
    """Return the error to raise. `status` is the HTTP status, `unsent` means that no connection was made, and `writes`
    means that repeating the request would do harm.
    """
    text = f"{what}: {reason or 'no reason given'}" + (f" (HTTP {status})" if status else "")
    if status in (401, 403):
        # A wrong key says nothing about the item, so the item waits for the right key.
        return Transient(text, remedy=KEY_REMEDY)
    if status == 402:
        return Transient(text, remedy="the account's quota or credit is used up; check it at the service")
    if status in (408, 425, 429) or unsent:
        return Transient(text, retry_after=retry_after)
    if status == 409 or (status == 503 and retry_after is not None and not writes):
        return Transient(text, retry_after=retry_after)
    if 400 <= status < 500:
        return Refused(
            text,
            remedy="`everhold dead-letters list` shows it; correct the cause, then run `everhold dead-letters replay`",
        )
    return InDoubt(text) if writes else Transient(text, retry_after=retry_after)


def convert_partial_failure(done: bool, error: EverholdError) -> EverholdError:
    """Return what an error means after part of a batch was stored: the batch no longer counts as not done."""
    if not done or isinstance(error, InDoubt):
        return error
    kind = PartiallyDone if isinstance(error, Refused) else InDoubt
    return kind(f"part of the batch was stored before this: {error.message}", remedy=error.remedy)


def parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a `retry-after` header; None if it is missing or a date."""
    try:
        return float(value) if value else None
    except ValueError:
        return None
