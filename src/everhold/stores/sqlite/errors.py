"""Turns what SQLite reports into our errors, each with its remedy. It never decides to try again."""

from __future__ import annotations

from pathlib import Path

import apsw

from everhold.errors import InvalidRequest, StoreBusy, StoreDamaged, StoreError, StoreFull


def translate_error(error: apsw.Error, path: Path) -> StoreError:
    """The error of ours that tells the caller what to do next."""
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
        return StoreError(text, remedy=f"make sure {path.parent} exists and belongs to the user everhold runs as")
    if isinstance(error, apsw.IOError):
        return StoreError(text, remedy="the disk failed; look at the system's log, then start everhold again")
    return StoreError(text)


def build_damaged_error(path: Path, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged: {what}",
        remedy="nothing was changed; `everhold restore` puts the last backup in its place and keeps these files, "
        "`everhold doctor` says what else is known",
    )


def build_invalid_name_error(error: UnicodeEncodeError) -> InvalidRequest:
    """Nothing can be stored under what was asked for, so nobody can mean it."""
    return InvalidRequest(f"{error.object!r} holds code points that are no characters", remedy="write names in UTF-8")


def is_fatal(error: apsw.Error) -> bool:
    """Whether nobody can tell any more what reached the disk: after a failed fsync, trying again proves nothing."""
    return isinstance(error, apsw.IOError | apsw.CorruptError | apsw.NotADBError) and not _is_shared_memory_full(error)


def is_transaction_lost(error: apsw.Error) -> bool:
    """Whether SQLite may have rolled back more than the statement that failed."""
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
    """The shared index beside the log could not grow: a full disk in other words, and nothing was committed."""
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE
