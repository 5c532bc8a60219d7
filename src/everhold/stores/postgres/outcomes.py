"""Finds out whether a transaction was committed whose answer was lost."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Final

import psycopg

from everhold.stores.postgres.connections import PgConnection, PostgresConnector
from everhold.stores.postgres.loading import LoadedBatch

MAX_SECONDS: Final = 30.0
"""How long to ask. The server may be restarting, or a standby may be taking over."""
RETRY_SECONDS: Final = 0.1
_TIMELINE: Final = "select left(pg_walfile_name(pg_current_wal_lsn()), 8)"
_STATUS: Final = "select pg_xact_status(%s::text::xid8)"


class CommitOutcome(Enum):
    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()


async def find_outcome(connector: PostgresConnector, loaded: LoadedBatch) -> CommitOutcome:
    """Ask the server about the transaction of a batch.

    An entry with our digest proves the commit, also on a standby that took over. Without entries the server's record
    of transactions decides. A standby that took over may have used the id again, so only the same server is asked.
    """
    ends = asyncio.get_running_loop().time() + MAX_SECONDS
    while asyncio.get_running_loop().time() < ends:
        try:
            connection = await connector.connect()
        except psycopg.Error:
            await asyncio.sleep(RETRY_SECONDS)
            continue
        try:
            outcome = await _ask(connection, loaded)
            if outcome is not None:
                return outcome
        except psycopg.Error:
            pass
        finally:
            await connection.close()
        await asyncio.sleep(RETRY_SECONDS)
    return CommitOutcome.UNKNOWN


async def _ask(connection: PgConnection, loaded: LoadedBatch) -> CommitOutcome | None:
    """Return None as long as the transaction is under way."""
    try:
        row = await (await connection.execute(_STATUS, (str(loaded.xid),))).fetchone()
        status = None if row is None else row[0]
    except psycopg.errors.InvalidParameterValue:
        status = "future"  # a standby took over that has never heard of it
    if status == "in progress":
        return None
    entries = loaded.work.entries
    if entries:
        # Entries are never removed, and a salted digest never comes twice.
        pos, digest = entries[0][0], entries[0][10]
        row = await (await connection.execute("select digest from entries where pos = %s", (pos,))).fetchone()
        return CommitOutcome.COMMITTED if row is not None and row[0] == digest else CommitOutcome.ABORTED
    if await read_timeline(connection) != loaded.timeline:
        return CommitOutcome.UNKNOWN
    if status == "committed":
        return CommitOutcome.COMMITTED
    return CommitOutcome.ABORTED if status in ("aborted", "future") else CommitOutcome.UNKNOWN


async def read_timeline(connection: PgConnection) -> str:
    """Return what changes when a standby takes over."""
    row = await (await connection.execute(_TIMELINE)).fetchone()
    return "" if row is None else str(row[0])
