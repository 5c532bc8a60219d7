"""Creates and upgrades the schema, under a lock, so that several hosts may start at once.

An upgrade first adds what the next version needs, and a later one removes what the version before it needed. So hosts
of two successive versions work together. `oldest_version` names the oldest program that may still use the schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import psycopg

from everhold.errors import StoreBusy, StoreError, StoreNewer
from everhold.ports.clock import RandomSource
from everhold.stores.postgres.errors import translate_error
from everhold.stores.postgres.statements import PgConnection

MIGRATION_LOCK: Final = 0x657665_686F6C64
"""The key of the advisory lock of the transaction that changes the schema."""
DDL_LOCK_LIMIT: Final = "3s"
"""How long a migration waits for a lock. Everybody who comes later waits behind it."""
SERVER_VERSION: Final = 150_000
"""The oldest server that is supported."""
POS_BITS: Final = 16
_OLDEST: Final = re.compile(r"-- oldest: (\d+)\n")
"""The first line of a migration that removes what programs of lower versions need."""


@dataclass(frozen=True, slots=True)
class PostgresMigration:
    """One step of the schema."""

    version: int
    sql: str
    oldest_version: int
    """Programs that know a lower version must not use the schema any more."""


def list_migrations() -> list[PostgresMigration]:
    folder = resources.files("everhold.stores.postgres") / "migrations"
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    steps: list[PostgresMigration] = []
    for name in found:
        sql = (folder / name).read_text("utf-8")
        oldest = _OLDEST.match(sql)
        before = steps[-1].oldest_version if steps else 1
        steps.append(PostgresMigration(int(name[:4]), sql, int(oldest[1]) if oldest else before))
    return steps


@dataclass(frozen=True, slots=True)
class StoreInformation:
    """The row of `store_info`."""

    incarnation: str
    """Random. Changes when positions begin anew. Then local indexes have to be built again. It is shown to nobody,
    because the channel of the hints depends on it."""
    schema_version: int
    pos_base: int


async def prepare_schema(
    connection: PgConnection, *, chance: RandomSource, migrations: Sequence[PostgresMigration] | None = None
) -> StoreInformation:
    """Create or upgrade the schema if needed, and adapt the positions to the server."""
    if connection.info.server_version < SERVER_VERSION:
        raise StoreError(
            f"the server is PostgreSQL {connection.info.server_version // 10_000}, which is too old",
            remedy=f"use PostgreSQL {SERVER_VERSION // 10_000} or newer",
        )
    steps = list(migrations or list_migrations())
    try:
        async with connection.transaction():
            await connection.execute(
                "select set_config('lock_timeout', %s, true), pg_advisory_xact_lock(%s)",
                (DDL_LOCK_LIMIT, MIGRATION_LOCK),
            )
            version = await _read_version(connection, newest=steps[-1].version)
            for step in steps:
                if step.version > version:
                    await _run_step(connection, step, chance=chance)
            return await _adapt_positions(connection, chance=chance)
    except psycopg.errors.LockNotAvailable as error:
        raise StoreBusy(
            f"the schema cannot be upgraded now: {error}",
            remedy="another host is upgrading it, or a long transaction holds a table; try again",
        ) from error
    except psycopg.Error as error:
        raise translate_error(error) from error


async def _read_version(connection: PgConnection, *, newest: int) -> int:
    row = await _fetch_row(connection, "select to_regclass('store_info') is not null")
    if not row[0]:
        return 0
    version, oldest = await _fetch_row(connection, "select schema_version, oldest_version from store_info")
    if oldest > newest:
        raise StoreNewer(
            f"the database has schema {version}, which needs a program for schema {oldest} or newer; "
            f"this everhold knows schema {newest}",
            remedy="upgrade everhold on this host",
        )
    return int(version)


async def _run_step(connection: PgConnection, step: PostgresMigration, *, chance: RandomSource) -> None:
    await connection.execute(step.sql, prepare=False)
    if step.version == 1:
        await connection.execute(
            "insert into store_info(id, incarnation, cluster, pos_base, schema_version, oldest_version) "
            "select 1, %s, system_identifier::text, 1 - pg_current_xact_id()::text::bigint, 1, 1 "
            "from pg_control_system()",
            (chance.bytes(8).hex(),),
        )
    else:
        await connection.execute(
            "update store_info set schema_version = %s, oldest_version = %s", (step.version, step.oldest_version)
        )


async def _adapt_positions(connection: PgConnection, *, chance: RandomSource) -> StoreInformation:
    """Raise `pos_base` if the database was restored into a cluster whose transaction ids are lower."""
    xid, cluster, known, base, version, incarnation, newest = await _fetch_row(
        connection,
        "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint, system_identifier::text, cluster, pos_base, "
        "schema_version, incarnation, (select max(pos) from entries) from store_info, pg_control_system()",
    )
    behind = newest is not None and newest >> POS_BITS >= xid + base
    if cluster == known and not behind:
        return StoreInformation(incarnation=incarnation, schema_version=version, pos_base=base)
    await connection.execute("lock table sessions in exclusive mode")
    (newest,) = await _fetch_row(connection, "select max(pos) from entries")
    base = ((newest or 0) >> POS_BITS) + 1 - xid
    incarnation = chance.bytes(8).hex()
    await connection.execute(
        "update store_info set pos_base = %s, cluster = %s, incarnation = %s", (base, cluster, incarnation)
    )
    return StoreInformation(incarnation=incarnation, schema_version=version, pos_base=base)


async def _fetch_row(connection: PgConnection, sql: str) -> Any:
    row = await (await connection.execute(sql)).fetchone()
    assert row is not None
    return row
