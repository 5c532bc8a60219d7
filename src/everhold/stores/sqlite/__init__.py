"""The log on SQLite: one file, one writer, no server."""

from everhold.stores.sqlite.ballast import Ballast
from everhold.stores.sqlite.lock import HomeLock
from everhold.stores.sqlite.store import SqliteStore

__all__ = ["Ballast", "HomeLock", "SqliteStore"]
