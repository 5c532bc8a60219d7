"""Every error everhold raises; the type tells the caller what to do next.

EverholdError
├── Transient          not done: try again, after `retry_after` if the remote side gave one
│   └── Overloaded     the same for a model: another model may be tried
│       └── OperatorNeeded  a key, credit or setting is wrong: tell an operator, try again when that changed
├── Refused            a retry would fail, too: make it a dead letter and notify
│   ├── TooLong        a model's context or a platform's message limit was exceeded: shrink it, then try again
│   └── Poisoned       this build cannot read an entry of the log: stop that consumer, write nothing
├── InDoubt            may have been done, the answer was lost: probe, or follow the policy
│   └── PartiallyDone  some items were done, the rest is refused: try the items one by one
├── LeaseLost          another worker holds the claim now: stop working on it
├── Conflict           the state changed between reading and writing: read again, decide again
├── StoreError         the store cannot do what it promises
│   ├── StoreFull      no disk space: stop acknowledging, report it, continue when there is space
│   ├── StoreBusy      another program holds the lock, or the server cannot be reached: nothing was written, try again
│   ├── OutcomeUnknown the connection was lost during a commit: read the store again, then decide
│   ├── StoreDamaged   a file is corrupt: refuse to open it
│   ├── StoreMissing   a file was deleted, moved or replaced: acknowledge nothing, end the process
│   ├── StoreNewer     written by a newer everhold: write nothing, upgrade
│   └── StoreOutdated  written by a development version: start with a new home
├── HomeBusy           another process holds this home
├── NotFound           there is no such session, cursor, person…
└── InvalidRequest     the request is invalid: show the usage
    └── ConfigError    the configuration is invalid: lists all mistakes at once (config/errors.py)
"""

from __future__ import annotations


class EverholdError(Exception):
    """The base class. `remedy` says what the user can do."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class Transient(EverholdError):
    """Not done. `retry_after` comes from the remote side and is never shortened."""

    def __init__(self, message: str, *, retry_after: float | None = None, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class Overloaded(Transient):
    """The model cannot answer now."""


class OperatorNeeded(Overloaded):
    """The model cannot be used until an operator acts: its key, credit, name or package is missing or wrong."""


class Refused(EverholdError):
    """Not done, and a retry would fail, too."""


class TooLong(Refused):
    """The request is too large; a smaller one may succeed."""


class Poisoned(Refused):
    """The log contains an entry that this build cannot read."""


class InDoubt(EverholdError):
    """The request was sent and the answer was lost, so it may have been done."""


class PartiallyDone(InDoubt):
    """Some items were done, and at least one item is refused for good."""


class LeaseLost(EverholdError):
    """Another worker holds the cursor or the operation now."""


class Conflict(EverholdError):
    """The state changed after it was read; nothing was written."""


class StoreError(EverholdError):
    """The store could not do what it promises; nothing was acknowledged."""


class StoreFull(StoreError):
    """There is no disk space left for the log."""


class StoreBusy(StoreError):
    """Another program holds the database's lock, or the server cannot be reached. Nothing was written."""


class OutcomeUnknown(StoreError):
    """The connection was lost during a commit, which may have been applied, or may be within seconds.

    What is repeated must be recognised: a message by its dedup key, a claim by its fence. Everything else is decided
    anew from what the store says then.
    """

    requested_wait: float | None = None
    """The mandatory delay that the change would have stored. Whoever decides anew must not shorten it."""


class StoreDamaged(StoreError):
    """The database is corrupt."""


class StoreMissing(StoreError):
    """The files of the store are no longer where they were opened."""


class StoreNewer(StoreError):
    """The database was written by a newer everhold."""


class StoreOutdated(StoreError):
    """The database was written by a development version, and there is no migration."""


class HomeBusy(EverholdError):
    """Another process holds this home."""


class NotFound(EverholdError):
    """The requested object does not exist."""


class InvalidRequest(EverholdError):
    """The request is invalid."""
