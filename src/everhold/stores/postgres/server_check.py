"""Examines a PostgreSQL server for `everhold config check` and `everhold doctor`. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import psycopg

from everhold.ports.store_files import ServerCheckup
from everhold.stores.postgres.connections import PostgresConnector
from everhold.stores.postgres.migrate import SERVER_VERSION, list_migrations
from everhold.stores.postgres.shared_store import describe_address, explain_connection_error, open_explained

_SETTINGS: Final = (
    "select current_setting('fsync'), current_setting('synchronous_commit'), "
    "current_setting('synchronous_standby_names'), current_setting('full_page_writes'), "
    "extract(epoch from clock_timestamp())::float8"
)
_SYNCHRONOUS: Final = ("on", "remote_apply", "remote_write")


async def examine_server(url: str, *, now: Callable[[], float] = time.time) -> ServerCheckup:
    """Connect to the server and look at it. Raises StoreError if the store cannot be used."""
    connector = PostgresConnector(url)
    connection = await open_explained(connector, url)
    try:
        await connector.find_pooler(connection)
        row = await (await connection.execute(_SETTINGS, prepare=False)).fetchone()
        assert row is not None
        schema = oldest = 0
        present = await (await connection.execute("select to_regclass('store_info') is not null")).fetchone()
        if present is not None and present[0]:
            found = await (await connection.execute("select schema_version, oldest_version from store_info")).fetchone()
            schema, oldest = found if found is not None else (0, 0)
        version = connection.info.server_version
    except psycopg.Error as error:
        raise explain_connection_error(error, url) from None
    finally:
        await connection.close()
    fsync, synchronous, standbys, _, server_time = row
    return ServerCheckup(
        place=describe_address(url),
        version=f"{version // 10_000}.{version % 10_000}",
        is_version_supported=version >= SERVER_VERSION,
        is_pooled=connector.is_pooled,
        is_durable=fsync == "on" and synchronous != "off",
        has_synchronous_standby=bool(standbys.strip()) and synchronous in _SYNCHRONOUS,
        clock_difference_seconds=now() - server_time,
        schema_version=schema,
        is_schema_too_new=oldest > list_migrations()[-1].version,
    )
