"""Opens the store that is configured, and works on the files of one that is not open.

Only this module knows which stores exist. Above it, a store is an `OpenStore`, whatever database keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from everhold.config.settings import StoreSettings
from everhold.errors import EverholdError, StoreError
from everhold.infra.extras import describe_install
from everhold.infra.home import Home
from everhold.ports.clock import RandomSource
from everhold.ports.store_files import OpenStore, RestorePlan, RestoreResult, ServerCheckup, StoreCheckup
from everhold.stores.sqlite import checkup, errors, restore, shape
from everhold.stores.sqlite.disk_guard import DiskGuardedStore
from everhold.stores.sqlite.store import SqliteStore


def open_file_store(home: Home, *, chance: RandomSource, now: Callable[[], float]) -> OpenStore:
    """Open the store that is a file in the home. The caller holds the home's lock."""
    return DiskGuardedStore.open(home.store, chance=chance, now=now, backups=home.backups, watched=(home.lock,))


async def open_server_store(home: Home, settings: StoreSettings, *, chance: RandomSource) -> OpenStore:
    """Open the store on a database server. Refuse a home whose file was not moved there."""
    if home.store.exists():
        raise StoreError(
            f"{home.store} has not been moved to the server that store.url names",
            remedy="everhold store move --to URL; or move the file away, if it is not needed",
        )
    try:
        from everhold.stores.postgres.shared_store import open_shared_store  # its driver is an extra
    except ImportError as error:
        raise _build_driver_error(error) from error
    return await open_shared_store(settings.build_dsn().reveal(), connections=settings.connections, chance=chance)


async def examine_server(settings: StoreSettings) -> ServerCheckup:
    """Examine the database server that is configured. Changes nothing."""
    try:
        from everhold.stores.postgres.server_check import examine_server
    except ImportError as error:
        raise _build_driver_error(error) from error
    return await examine_server(settings.build_dsn().reveal())


def _build_driver_error(error: ImportError) -> StoreError:
    return StoreError(
        f"store.url needs the driver of PostgreSQL, which is not installed ({error.name})",
        remedy=describe_install("postgres"),
    )


def open_temporary_store(path: Path, *, chance: RandomSource) -> OpenStore:
    """Open a store whose content is not needed after a power cut."""
    return SqliteStore.open(path, chance=chance, synchronous="OFF")


def move_store_to_server(
    home: Home, url: str, *, set_aside: Path, chance: RandomSource, report: Callable[[str, int], None]
) -> dict[str, Any]:
    """Move the store of a home to an empty database. The caller holds the home's lock."""
    move = _import_move()
    result = move.move_to_server(home.store, url, set_aside=set_aside, chance=chance, report=report)
    for file in home.path.glob(home.index.name + "*"):
        file.unlink()  # it is built from the log
    return dict(result._asdict())


def move_store_to_file(
    settings: StoreSettings, path: Path, *, chance: RandomSource, report: Callable[[str, int], None]
) -> dict[str, Any]:
    """Move the store in the configured database to a new file."""
    move = _import_move()
    return dict(move.move_to_file(settings.build_dsn().reveal(), path, chance=chance, report=report)._asdict())


def _import_move() -> Any:
    try:
        from everhold.stores import move
    except ImportError as error:
        raise _build_driver_error(error) from error
    return move


# -- files of a store that is not open ---------------------------------------------------------------------------------


def copy_store_file(source: Path, target: Path) -> None:
    """Copy the file of a store that another process may be writing to."""
    restore.copy_file(source, target)


def is_store_present(store: Path) -> bool:
    """Whether there is a store file, or what remains of one."""
    return checkup.is_store_present(store)


def examine_store(store: Path, *, late_before: float) -> StoreCheckup:
    """Examine the whole store for `everhold doctor`."""
    return checkup.examine_store(store, late_before=late_before)


def read_last_pos(store: Path) -> int:
    """The pos of the newest entry of a store file; 0 if it cannot be read."""
    try:
        return checkup.read_last_pos(store)
    except (EverholdError, OSError):
        return 0


def find_library_problem() -> str:
    """Why the database library of this installation must not be used; empty if it may."""
    return checkup.find_library_problem()


def describe_libraries() -> dict[str, str]:
    """The versions of what the stores are built on."""
    return checkup.describe_libraries()


def describe_file(path: Path, scrub: shape.TextScrubber) -> dict[str, Any]:
    """Describe a database file for a bug report, without the text of its rows."""
    return shape.describe_file(path, scrub)


def translate_file_error(error: apsw.Error, path: Path) -> EverholdError:
    """Return the error of a database file as one of ours."""
    return errors.translate_error(error, path)


def plan_restore(home: Home, *, source: str = "", at: str = "", directory: Path | None = None) -> RestorePlan:
    """Choose what `everhold restore` restores."""
    return restore.plan_restore(home, source=source, at=at, directory=directory)


def restore_store(home: Home, what: RestorePlan, *, now: float, chance: RandomSource) -> RestoreResult:
    """Run a restore. The caller holds the home's lock."""
    return restore.restore_store(home, what, now=now, chance=chance)
