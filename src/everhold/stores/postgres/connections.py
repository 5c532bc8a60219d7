"""Connections to the server: how they are opened, how many there are, and whether a pooler is in between.

No setting is changed for a whole session, because behind a pooler another client would inherit it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from everhold.errors import InvalidRequest, StoreError
from everhold.stores.postgres.errors import INVALID_VALUE_ERRORS, is_connection_lost, translate_error
from everhold.stores.postgres.statements import PgConnection

T = TypeVar("T")

CONNECT_SECONDS: Final = 5
"""How long one attempt to connect to one host may take."""
MAX_READ_ATTEMPTS: Final = 6
FIRST_RETRY_SECONDS: Final = 0.05
MAX_RETRY_SECONDS: Final = 2.0
_DEFAULTS: Final[dict[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "application_name": "everhold",
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}


def build_conninfo(url: str) -> str:
    """Return the connection string with our defaults. With several hosts, the one that accepts writes is used."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # the driver's message quotes parts of the address, and so the password
        raise InvalidRequest(
            "store.url cannot be read",
            remedy="write postgresql://user@host:5432/database, and % as %25, / as %2F and @ as %40 in a password",
        ) from None
    values = {**_DEFAULTS, **{name: value for name, value in given.items() if value is not None}}
    if "," in str(values.get("host", "")):
        values.setdefault("target_session_attrs", "read-write")
    values["client_encoding"] = "utf8"
    return make_conninfo("", **values)


class PostgresConnector:
    """Opens connections."""

    def __init__(self, url: str) -> None:
        self.conninfo = build_conninfo(url)
        self.is_pooled = False
        """A pooler gives every transaction another server process, so nothing may be prepared."""

    async def connect(self) -> PgConnection:
        """Open a connection. Raises psycopg.OperationalError if no server answers."""
        connection = await PgConnection.connect(self.conninfo, autocommit=True)
        connection.prepared, connection.numbers = {}, itertools.count()
        connection.is_pooled = self.is_pooled
        connection.prepare_threshold = None  # psycopg would end all prepared statements after a rollback
        return connection

    async def find_pooler(self, connection: PgConnection) -> None:
        """Find out whether a pooler is in between: then the server process is not the one that was announced."""
        row = await (await connection.execute("select pg_backend_pid()", prepare=False)).fetchone()
        self.is_pooled = row is None or row[0] != connection.info.backend_pid
        if self.is_pooled:
            connection.is_pooled = True

    async def open_connection(self) -> PgConnection:
        """Open a connection, as one of our errors if that fails."""
        try:
            return await self.connect()
        except psycopg.Error as error:
            raise translate_error(error) from error


class ReadPool:
    """A fixed number of connections for reads. One is opened when it is first needed."""

    def __init__(self, connector: PostgresConnector, *, size: int) -> None:
        self._connector = connector
        self._idle: list[PgConnection] = []
        self._free = asyncio.Semaphore(size)
        self._is_closed = False
        self.round_trips = 0
        """How often a connection was lent. Nearly every read is one round trip."""

    @asynccontextmanager
    async def lend_connection(self) -> AsyncIterator[PgConnection]:
        async with self._free:
            if self._is_closed:
                raise StoreError("the store is closed")
            self.round_trips += 1
            connection = self._idle.pop() if self._idle else await self._connector.connect()
            try:
                yield connection
            except BaseException:
                # A read that failed or was cancelled may have left a transaction or unread results.
                await connection.close()
                raise
            await self._take_back(connection)

    async def _take_back(self, connection: PgConnection) -> None:
        if self._is_closed or connection.closed:
            await connection.close()
        else:
            self._idle.append(connection)

    async def read(self, work: Callable[[PgConnection], Awaitable[T]]) -> T:
        """Run a read. It is repeated on another connection if its own is lost, because it changes nothing."""
        delay = FIRST_RETRY_SECONDS
        attempt = 1
        while True:
            try:
                async with self.lend_connection() as connection:
                    return await work(connection)
            except (psycopg.Error, *INVALID_VALUE_ERRORS) as error:
                if not is_connection_lost(error) or attempt >= MAX_READ_ATTEMPTS:
                    raise translate_error(error) from error
            self._idle.clear()
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RETRY_SECONDS)
            attempt += 1

    async def close(self) -> None:
        self._is_closed = True
        while self._idle:
            await self._idle.pop().close()
