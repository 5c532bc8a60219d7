"""How a remote memory fails -> what to do next. One table for all of them: their errors differ, the doubt does not.

A write whose answer is bad may have been carried out: a service that answers 503 was seen doing it after the work. Only
what certainly never left, or was turned away at the door, counts as not done.
"""

from __future__ import annotations

from everhold.errors import EverholdError, InDoubt, PartiallyDone, Refused, Transient

KEY_REMEDY = "check the key in .env; what is pending goes out with the corrected one"


def build_memory_error(
    what: str,
    reason: str,
    *,
    status: int = 0,
    retry_after: float | None = None,
    writes: bool = True,
    unsent: bool = False,
) -> EverholdError:
    """What to raise. `status` is HTTP's; `unsent`: no connection was made; `writes`: done twice, it would do harm."""
    text = f"{what}: {reason or 'no reason given'}" + (f" (HTTP {status})" if status else "")
    if status in (401, 403):
        # a wrong key says nothing about the memory: it waits for the right one
        return Transient(text, remedy=KEY_REMEDY)
    if status == 402:
        return Transient(text, remedy="the account there is used up")
    if status in (408, 425, 429) or unsent:
        return Transient(text, retry_after=retry_after)
    if status == 409 or (status == 503 and retry_after is not None and not writes):
        return Transient(text, retry_after=retry_after)
    if 400 <= status < 500:
        return Refused(text, remedy="`everhold dead-letters list` shows it; correct the cause, then `replay`")
    return InDoubt(text) if writes else Transient(text, retry_after=retry_after)


def convert_partial_failure(done: bool, error: EverholdError) -> EverholdError:
    """What a failure means after part of a batch was stored: nobody may take the whole for undone any more."""
    if not done or isinstance(error, InDoubt):
        return error
    kind = PartiallyDone if isinstance(error, Refused) else InDoubt
    return kind(f"part of it was stored before this: {error.message}", remedy=error.remedy)
