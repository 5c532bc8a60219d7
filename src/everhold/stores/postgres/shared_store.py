"""The store on PostgreSQL as one host of several opens it: with the errors of a wrong address explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from everhold.errors import StoreError, StoreFull
from everhold.ports.clock import RandomSource
from everhold.ports.store import Change, CommitResult
from everhold.stores.postgres.connections import PostgresConnector
from everhold.stores.postgres.migrate import SERVER_VERSION
from everhold.stores.postgres.statements import PgConnection
from everhold.stores.postgres.store import PostgresStore

OTHER_CONNECTIONS: Final = 4
"""For claims, budgets and hints."""
MOVE_MARKER: Final = "store_move"
"""A table that exists while a store is moved, and after it was moved away. No host opens the store then."""
_FOREIGN_TABLES: Final = (
    "select to_regclass('store_info') is null and (to_regclass('entries') is not null "
    "or to_regclass('sessions') is not null)"
)


def _ignore_full_disk() -> None: ...


class SharedPostgresStore(PostgresStore):
    """A store that several hosts use. Implements `ports.store_files.OpenStore`."""

    on_full: Callable[[], None] = staticmethod(_ignore_full_disk)
    files = None
    upgrade_backup = None

    def find_fault(self) -> StoreError | None:
        """None, because a server that cannot be reached may come back."""
        return None

    async def ping_writer(self) -> None:
        await self.get_time()

    async def commit(self, change: Change) -> CommitResult:
        try:
            return await super().commit(change)
        except StoreFull:
            self.on_full()
            raise


async def open_shared_store(url: str, *, connections: int, chance: RandomSource) -> SharedPostgresStore:
    """Open the store at `url` with at most so many connections, but at least 6."""
    connector = PostgresConnector(url)
    connection = await open_explained(connector, url)
    try:
        await _refuse_foreign_database(connection, url)
    finally:
        await connection.close()
    free = max(2, connections - OTHER_CONNECTIONS)
    writers = max(1, free // 2)
    return await SharedPostgresStore.open(url, chance=chance, writers=writers, readers=max(1, free - writers))


async def open_explained(connector: PostgresConnector, url: str) -> PgConnection:
    """Open a connection. Say what is wrong with the address if that fails, and never show its password."""
    try:
        return await connector.connect()
    except psycopg.Error as error:
        raise explain_connection_error(error, url) from None


async def _refuse_foreign_database(connection: PgConnection, url: str) -> None:
    if connection.info.server_version < SERVER_VERSION:
        return  # opening the store explains that
    row = await (await connection.execute(_FOREIGN_TABLES, prepare=False)).fetchone()
    if row is not None and row[0]:
        raise StoreError(
            f"the database {describe_address(url)} belongs to another program",
            remedy="create a database for everhold alone, and name it in store.url",
        )
    marker = await (await connection.execute("select to_regclass(%s) is not null", (MOVE_MARKER,))).fetchone()
    if marker is not None and marker[0]:
        what = await (await connection.execute(f"select what from {MOVE_MARKER}".encode())).fetchone()
        raise StoreError(
            f"the database {describe_address(url)} is part of a move: {what[0] if what else 'unknown'}",
            remedy="run the same `everhold store move` again; if it ended, correct store.url",
        )


def explain_connection_error(error: psycopg.Error, url: str) -> StoreError:
    """Return the error of a connection attempt, with its remedy."""
    text, place = str(error).strip(), describe_address(url)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    if "does not exist" in text and "database" in text:
        return StoreError(f"there is no database {place}", remedy="create it, or correct store.url")
    if "authentication failed" in text or "no password supplied" in text or "role" in text:
        return StoreError(
            f"the server refuses the user of {place}: {hide_password(last, url)}",
            remedy="check the user in store.url, and the variable that store.password_env names",
        )
    return StoreError(
        f"the database {place} cannot be reached: {hide_password(last, url)}",
        remedy="check the address, that the server runs, and that a firewall lets this host through",
    )


def describe_address(url: str) -> str:
    """Return user, host and database of an address, without its password."""
    try:
        given: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "in store.url"
    place = given.get("host") or "localhost"
    user = f"{given['user']}@" if given.get("user") else ""
    return f"{given.get('dbname', '')!s} at {user}{place}"


def hide_password(text: str, url: str) -> str:
    try:
        password = conninfo_to_dict(url).get("password")
    except psycopg.ProgrammingError:
        return "the address is invalid"
    return text.replace(str(password), "***") if password else text
