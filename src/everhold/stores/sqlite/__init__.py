"""The store on SQLite: one file, one writer, no server."""

from everhold.infra.disk_guard import DiskReserve
from everhold.infra.home_lock import HomeLock
from everhold.stores.sqlite.store import SqliteStore

__all__ = ["DiskReserve", "HomeLock", "SqliteStore"]
