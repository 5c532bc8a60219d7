"""Every error everhold raises; the type tells the caller what to do next.

EverholdError
├── Transient        not done, and known not to be: try again (after `retry_after` when the other side said so)
│   └── Overloaded   the same, for a model: other models may be tried meanwhile
├── Refused          will not be done however often it is tried: park it, tell somebody
│   ├── TooLong      a model's context or a platform's message limit was exceeded: shrink, then try
│   └── Poisoned     this build cannot read what the log holds: stop that lane, touch nothing
├── InDoubt          may have been done, the answer was lost: probe, or follow the policy
│   └── Partial      some of it was done, the rest is refused: try its items one by one
├── LeaseLost        somebody else acts here now: drop the work quietly
├── Conflict         the state moved between reading and writing: read again, decide anew
├── StoreError       the store cannot keep its promise
│   ├── StoreFull      no room: stop acknowledging, say so, go on when there is room
│   ├── StoreBusy      a foreign lock: nothing was written, try again
│   ├── StoreDamaged   a file does not read as it was written: refuse to serve it
│   └── StoreNewer     written by a newer everhold: touch nothing, upgrade
├── HomeBusy         another process holds this home
├── NotFound         there is no such session, lane, person…
└── Misuse           the request itself makes no sense: usage
    └── ConfigError  the configuration does: everything wrong with it at once (config/errors.py)
"""

from __future__ import annotations


class EverholdError(Exception):
    """The base of the family. `remedy` says what the reader can do about it."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class Transient(EverholdError):
    """Not done, and known not to be done. `retry_after` is the other side's word and is never shortened."""

    def __init__(self, message: str, *, retry_after: float | None = None, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class Overloaded(Transient):
    """A model that cannot answer now."""


class Refused(EverholdError):
    """Will not be done however often it is tried."""


class TooLong(Refused):
    """What was sent does not fit; a smaller one may."""


class Poisoned(Refused):
    """The log holds something this build cannot read."""


class InDoubt(EverholdError):
    """It may have happened: the request left, the answer did not come."""


class PartiallyDone(InDoubt):
    """Some of it was done, and something in it will not be however often it is tried."""


class LeaseLost(EverholdError):
    """The lane or the operation belongs to somebody else now."""


class Conflict(EverholdError):
    """What was read is no longer so; nothing was written."""


class StoreError(EverholdError):
    """The store could not do what it promises; nothing was acknowledged."""


class StoreFull(StoreError):
    """No space left for the log."""


class StoreBusy(StoreError):
    """Another program holds the database's lock."""


class StoreDamaged(StoreError):
    """The database does not read as it was written."""


class StoreNewer(StoreError):
    """The database was written by a newer everhold."""


class HomeBusy(EverholdError):
    """Another process holds this home."""


class NotFound(EverholdError):
    """There is no such thing."""


class InvalidRequest(EverholdError):
    """The request makes no sense as it stands."""
