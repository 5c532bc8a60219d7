"""Finds out whether a transaction was committed whose answer was lost."""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum, auto
from typing import Final

import psycopg

from everhold.stores.postgres.connections import PostgresConnector
from everhold.stores.postgres.loading import LoadedBatch
from everhold.stores.postgres.statements import PgConnection

MAX_SECONDS: Final = 30.0
"""How long to ask. The server may be restarting, or a standby may be taking over."""
RETRY_SECONDS: Final = 0.1
_TIMELINE: Final = "select left(pg_walfile_name(pg_current_wal_lsn()), 8)"
_STATUS: Final = "select pg_xact_status(%s::text::xid8)"
# The lock writes to the log, so the end of this statement waits for the standby, and for all that was committed before.
_CONFIRM: Final = "select 1 from store_info for key share"


class CommitOutcome(Enum):
    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()


async def find_outcome(connector: PostgresConnector, loaded: LoadedBatch, *, durable: bool) -> CommitOutcome:
    """Ask the server about the transaction of a batch.

    An entry with our digest proves the commit, also on a standby that took over. Without entries the server's record
    of transactions decides. A standby that took over may have used the id again, so only the same server is asked.
    The commit of a `durable` batch counts when the standby has it, because the server may have ended the connection
    while it waited for the standby.
    """
    try:
        async with asyncio.timeout(MAX_SECONDS):
            while True:
                with contextlib.suppress(psycopg.Error):
                    outcome = await _ask_server(connector, loaded, durable=durable)
                    if outcome is not None:
                        return outcome
                await asyncio.sleep(RETRY_SECONDS)
    except TimeoutError:
        return CommitOutcome.UNKNOWN


async def _ask_server(connector: PostgresConnector, loaded: LoadedBatch, *, durable: bool) -> CommitOutcome | None:
    connection = await connector.connect()
    try:
        outcome = await _ask(connection, loaded)
        if outcome is CommitOutcome.COMMITTED and durable and not await _is_confirmed(connection):
            return CommitOutcome.UNKNOWN
        return outcome
    finally:
        await connection.close()


async def _is_confirmed(connection: PgConnection) -> bool:
    """Wait until the standby has all that was committed; return whether that wait was not cancelled."""
    warnings: list[str] = []
    connection.add_notice_handler(lambda notice: warnings.append(notice.severity_nonlocalized or ""))
    await connection.execute(_CONFIRM, prepare=False)
    return "WARNING" not in warnings


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
