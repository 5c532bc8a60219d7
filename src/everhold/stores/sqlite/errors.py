"""Translates SQLite's errors into everhold's, each with its remedy."""

from __future__ import annotations

from pathlib import Path

import apsw

from everhold.errors import InvalidRequest, StoreBusy, StoreDamaged, StoreError, StoreFull


def translate_error(error: apsw.Error, path: Path) -> StoreError:
    """Return the everhold error that tells the caller what to do next."""
    text = f"{path}: {error}"
    if isinstance(error, apsw.FullError) or _is_shared_memory_full(error):
        if _is_shared_memory_full(error):
            text = f"{path} cannot be opened: its disk is full"
        return StoreFull(text, remedy=f"free some space on the disk that holds {path.parent}")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreBusy(text, remedy="another program has the database open for writing; end it, then try again")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return build_damaged_error(path, str(error))
    if isinstance(error, apsw.CantOpenError | apsw.PermissionsError | apsw.ReadOnlyError):
        return StoreError(text, remedy=f"make sure {path.parent} exists and belongs to the user who runs everhold")
    if isinstance(error, apsw.IOError):
        return StoreError(text, remedy="the disk failed; check the system's log, then start everhold again")
    return StoreError(text)


def build_damaged_error(path: Path, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged: {what}",
        remedy="nothing was changed; `everhold restore` replaces it with the last backup and keeps these files, "
        "`everhold doctor` shows more",
    )


def build_invalid_name_error(error: UnicodeEncodeError) -> InvalidRequest:
    """Return the error for a name that cannot be encoded, and so cannot exist in the store."""
    return InvalidRequest(
        f"{error.object!r} contains code points that are not characters", remedy="write names in UTF-8"
    )


def is_fatal(error: apsw.Error) -> bool:
    """Return whether it is unknown what reached the disk. After a failed fsync, a successful retry proves nothing."""
    return isinstance(error, apsw.IOError | apsw.CorruptError | apsw.NotADBError) and not _is_shared_memory_full(error)


def is_transaction_lost(error: apsw.Error) -> bool:
    """Return whether SQLite may have rolled back more than the failed statement."""
    return isinstance(
        error,
        apsw.FullError
        | apsw.IOError
        | apsw.NoMemError
        | apsw.BusyError
        | apsw.LockedError
        | apsw.InterruptError
        | apsw.CorruptError
        | apsw.NotADBError,
    )


def _is_shared_memory_full(error: apsw.Error) -> bool:
    """Return whether the WAL's shared-memory file could not grow. Then the disk is full and nothing was committed."""
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE
