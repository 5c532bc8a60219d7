"""Translates PostgreSQL's errors into everhold's, each with its remedy."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg

from everhold.errors import InvalidRequest, StoreBusy, StoreDamaged, StoreError, StoreFull

REPEATABLE_ERRORS = (
    pg.DeadlockDetected,
    pg.SerializationFailure,
    pg.UniqueViolation,
    pg.LockNotAvailable,
    pg.ReadOnlySqlTransaction,
    pg.TooManyConnections,
)
"""Nothing was written, and the same batch may succeed at the next attempt."""
INVALID_VALUE_ERRORS = (psycopg.DataError, UnicodeEncodeError)
"""A value of one change cannot be stored. The other changes of its batch are not affected."""


def translate_error(error: Exception) -> Exception:
    """Return the everhold error that tells the caller what to do next. Nothing was written."""
    text = f"PostgreSQL: {str(error).strip() or type(error).__name__}"
    if isinstance(error, UnicodeEncodeError):
        return InvalidRequest(
            f"{error.object!r} contains code points that are not characters", remedy="write names in UTF-8"
        )
    if isinstance(error, psycopg.DataError):
        return InvalidRequest(text, remedy="names and keys must not contain NUL or values out of range")
    if isinstance(error, pg.DiskFull):
        return StoreFull(text, remedy="free some space on the disk of the database server")
    if isinstance(error, pg.DataCorrupted | pg.IndexCorrupted):
        return StoreDamaged(text, remedy="restore the database from a backup, or fail over to a standby")
    if isinstance(error, pg.InsufficientPrivilege | pg.UndefinedTable):
        return StoreError(text, remedy="use a role that owns the tables, in the database that everhold uses")
    if isinstance(error, pg.QueryCanceled | psycopg.OperationalError) or is_connection_lost(error):
        return StoreBusy(text, remedy="check that the server runs and can be reached; then try again")
    return StoreError(text)


def is_connection_lost(error: Exception) -> bool:
    """Return whether the connection can no longer be used."""
    if isinstance(
        error, pg.AdminShutdown | pg.CrashShutdown | pg.CannotConnectNow | pg.IdleInTransactionSessionTimeout
    ):
        return True
    if isinstance(error, psycopg.OperationalError):
        return error.sqlstate is None
    # What libpq reports in place of an answer of the server is of the base class and has no code.
    return type(error) is psycopg.DatabaseError and error.sqlstate is None
