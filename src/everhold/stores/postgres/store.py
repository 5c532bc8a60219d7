"""The store on PostgreSQL: passes changes to the queues of the writer, and reads committed data on a few connections.

The server's clock is the clock of the store. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Self

import psycopg

from everhold.core.audit import ReportProgress, StoreAudit
from everhold.core.budget import BudgetHold, BudgetRefusal
from everhold.core.consumers import MEMORY_PREFIX
from everhold.core.entries import Entry, EntryKind
from everhold.core.hosts import build_commit_hint
from everhold.core.inbox import PendingMessage
from everhold.core.people import PeopleDirectory, PeopleEvent
from everhold.core.quotas import WaitingCount
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.clock import RandomSource
from everhold.ports.hosts import AccountClaim, AccountLease, HostRecord, HostStatus
from everhold.ports.measurements import ConsumerBacklog, StoreLoad
from everhold.ports.store import (
    BudgetSpend,
    Change,
    CitedEntry,
    Claim,
    CommitResult,
    ConsumerCursor,
    DeadLetter,
    EntryPage,
    MemoryBacklog,
    Operation,
    PeerRecord,
    Receipt,
    ReceiptCount,
    Session,
    SessionReplies,
    SessionSnapshot,
    StateNamespace,
    StateRecord,
)
from everhold.stores.postgres import (
    checks,
    cursors,
    deliveries,
    entries,
    hosts,
    measurements,
    operations,
    people,
    reservations,
    sessions,
)
from everhold.stores.postgres.connections import PostgresConnector, ReadPool
from everhold.stores.postgres.errors import REPEATABLE_ERRORS, translate_error
from everhold.stores.postgres.hints import PostgresNotifier
from everhold.stores.postgres.loading import run_reads
from everhold.stores.postgres.migrate import PostgresMigration, StoreInformation, list_migrations, prepare_schema
from everhold.stores.postgres.snapshots import ReplyReader, TurnSnapshotReader
from everhold.stores.postgres.statements import PgConnection, Rows, run_statements
from everhold.stores.postgres.writer import MAX_ATTEMPTS, RETRY_SECONDS, GroupWriter

WRITE_CONNECTIONS: Final = 2
"""More of them make smaller groups, and a commit costs the server and this process about the same whatever its size."""
READ_CONNECTIONS: Final = 4
MAX_SEQ: Final = 2**63 - 1
FEED_PAGE_ROWS: Final = 64
"""How many rows of a page are read at once. A page ends early if its bodies are large."""
MAX_NEW_PEOPLE_EVENTS: Final = 1_000
_BEGIN_SNAPSHOT: Final = "begin isolation level repeatable read read only"
_SELECT_CLOCK: Final = "select extract(epoch from clock_timestamp())::float8"


class PostgresStore:
    """One database, opened with `open`. Implements `ports.store.Store`. Other hosts may use it at the same time."""

    def __init__(
        self,
        connector: PostgresConnector,
        *,
        information: StoreInformation,
        chance: RandomSource,
        now: Callable[[], float] | None,
        writers: int,
        readers: int,
        exclusive: bool,
    ) -> None:
        self.information = information
        self._connector = connector
        self._now = now
        self._reads = ReadPool(connector, size=readers)
        self._claims = ReadPool(connector, size=1)
        self._budgets = ReadPool(connector, size=1)
        self.writer = GroupWriter(connector, writers=writers, chance=chance, clock=now, observe_time=self._observe_time)
        self.is_exclusive = exclusive
        self.notifier = PostgresNotifier(connector, incarnation=information.incarnation, chance=chance)
        self._latest = 0.0
        """The latest time that the store's clock is known to have shown. If it shows less, it has gone back."""
        self._people: PeopleDirectory | None = None
        self._snapshots = TurnSnapshotReader(
            self._reads, get_people=lambda: self._people, load_people=self._load_people_at
        )
        self._replies = ReplyReader(self._reads)
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        chance: RandomSource,
        now: Callable[[], float] | None = None,
        writers: int = WRITE_CONNECTIONS,
        readers: int = READ_CONNECTIONS,
        exclusive: bool = False,
        migrations: Sequence[PostgresMigration] | None = None,
    ) -> Self:
        """Connect to the database at `url`. Create or upgrade the schema if needed.

        `writers` is how many transactions of this host may commit at the same time, and `readers` how many reads may
        run. With those for claims, budgets and hints, the host uses at most `writers + readers + 4` connections.
        `exclusive`: no other host works on the database meanwhile. `now` replaces the server's clock in tests, and
        `migrations` the schema's.
        """
        connector = PostgresConnector(url)
        connection = await connector.open_connection()
        try:
            await connector.find_pooler(connection)
            information = await prepare_schema(connection, chance=chance, migrations=migrations)
            store = cls(
                connector,
                information=information,
                chance=chance,
                now=now,
                writers=writers,
                readers=readers,
                exclusive=exclusive,
            )
            ((latest,),) = await _fetch_rows(connection, cursors.SELECT_LATEST, ())
            store._observe_time(latest or 0.0)
            return store
        finally:
            await connection.close()

    def _observe_time(self, now: float) -> None:
        self._latest = max(self._latest, now)

    @property
    def schema_version(self) -> int:
        return list_migrations()[-1].version

    # -- writing

    async def commit(self, change: Change) -> CommitResult:
        done = await self.writer.commit(change)
        if self.notifier.has_subscribers:
            self.notifier.publish(build_commit_hint(change, done.claims))
        return done

    async def claim_cursors(
        self,
        *,
        owner: str,
        lease: float,
        limit: int,
        skip: Sequence[str] = (),
        only: Sequence[str] = (),
        held_back: Sequence[str] = (),
        list_held: Callable[[], Collection[str]] = list,
    ) -> list[Claim]:
        if limit <= 0:
            return []
        held = list(list_held())
        values = {
            **cursors.build_patterns(only, skip),
            "now": None if self._now is None else self._now(),
            "owner": owner,
            "lease": lease,
            "held": held,
            "held_back": list(held_back),
        }
        sql = cursors.build_claim_query(limit, has_held=bool(held or held_back))
        rows = await self._write(sql, values)
        now = rows[0][0]
        if now < self._latest:
            # The claims that were made stay valid. Restart what began in the future, and claim the rest.
            await self._write(cursors.REPAIR_CLOCK, {"now": values["now"]}, has_rows=False)
            self._latest = now
            claimed = [row for row in rows if row[1] is not None]
            values["held"] = [*held, *(f"{row[4]}\t{row[5]}" for row in claimed)]
            if len(claimed) < limit:
                sql = cursors.build_claim_query(limit - len(claimed), has_held=True)
                rows = claimed + await self._write(sql, values)
        else:
            self._latest = now
        return [cursors.parse_claim_row(row) for row in rows if row[1] is not None]

    async def renew_leases(self, claims: Collection[Claim], *, owner: str, lease: float) -> int:
        if not claims:
            return 0
        values = {
            "sessions": [claim.session for claim in claims],
            "consumers": [claim.consumer for claim in claims],
            "owner": owner,
            "lease": lease,
            "now": self._read_test_clock(),
        }
        return await self._write_count(cursors.RENEW, values)

    async def revoke_leases(self, *, owner: str) -> int:
        if not self.is_exclusive:
            raise InvalidRequest("leases of other hosts can only be ended in a store that no other process uses")
        return await self._write_count(cursors.REVOKE, {"owner": owner, "now": self._read_test_clock()})

    async def hand_over_leases(self, claims: Collection[Claim], *, owner: str) -> int:
        return await self.renew_leases(claims, owner=owner, lease=0.0)

    async def claim_account(self, account: str, *, owner: str, lease: float) -> AccountClaim | None:
        values = {"account": account, "owner": owner, "lease": lease, "now": self._read_test_clock()}
        rows = await self._write(hosts.CLAIM_ACCOUNT, values)
        return AccountClaim(account=account, owner=owner, fence=rows[0][0]) if rows else None

    async def renew_accounts(self, claims: Collection[AccountClaim], *, lease: float) -> list[AccountClaim]:
        values = {
            "accounts": [claim.account for claim in claims],
            "owners": [claim.owner for claim in claims],
            "fences": [claim.fence for claim in claims],
            "lease": lease,
            "now": self._read_test_clock(),
        }
        still = {(row[0], row[1], row[2]) for row in await self._write(hosts.RENEW_ACCOUNTS, values)}
        return [claim for claim in claims if (claim.account, claim.owner, claim.fence) in still]

    async def release_account(self, claim: AccountClaim) -> bool:
        values = {"account": claim.account, "owner": claim.owner, "fence": claim.fence}
        return await self._write_count(hosts.RELEASE_ACCOUNT, values) > 0

    async def register_host(self, host: HostRecord, *, lease: float) -> list[HostStatus]:
        values = {
            "id": host.id,
            "name": host.name,
            "program": host.version.program,
            "schema": host.version.schema,
            "url": host.url,
            "lease": lease,
            "now": self._read_test_clock(),
        }
        await self._write_count(hosts.REGISTER_HOST, values)
        return [status for status in await self.list_hosts() if status.is_alive and status.host.id != host.id]

    async def renew_host(self, id: str, *, lease: float, is_draining: bool = False) -> bool:
        values = {"id": id, "lease": lease, "draining": is_draining, "now": self._read_test_clock()}
        return await self._write_count(hosts.RENEW_HOST, values) > 0

    async def remove_host(self, id: str) -> None:
        await self._write_count(hosts.REMOVE_HOST, {"id": id})

    async def reserve_spending(
        self, holds: Sequence[BudgetHold], *, id: str, day: str, usd: float, tokens: int, lease: float
    ) -> BudgetRefusal | None:
        values = {
            "id": id,
            "day": day,
            "usd": usd,
            "tokens": tokens,
            "lease": lease,
            "now": self._read_test_clock(),
        }
        # It may be repeated after a lost connection, because its id tells whether it was made.
        return await self._budgets.read(lambda connection: reservations.reserve(connection, holds, values))

    async def renew_reservations(self, ids: Collection[str], *, lease: float) -> int:
        values = {"ids": list(ids), "lease": lease, "now": self._read_test_clock()}
        return int((await self._write(reservations.RENEW, values))[0][0])

    async def release_reservations(self, ids: Collection[str]) -> None:
        await self._write_count(reservations.RELEASE, {"ids": list(ids)})

    async def retry_now(self, *, held: Sequence[str] = ()) -> int:
        values = {**cursors.build_patterns(held, ()), "now": self._read_test_clock()}
        return await self._write_count(cursors.RETRY_HELD if held else cursors.RETRY_FAILED, values)

    async def replay_dead_letters(self, ids: Sequence[int]) -> int:
        rows = await self._write(cursors.REPLAY, {"ids": list(ids), "now": self._read_test_clock()})
        return int(rows[0][0])

    async def drop_dead_letters(self, ids: Sequence[int]) -> int:
        sql = "update dead_letters set state = 'dropped' where id = any(%(ids)s::bigint[]) and state = 'dead'"
        return await self._write_count(sql, {"ids": list(ids)})

    def _read_test_clock(self) -> float | None:
        """The time of a test's clock; None: the server's clock decides."""
        return None if self._now is None else self._now()

    async def _write(self, sql: str, values: Mapping[str, Any], *, has_rows: bool = True) -> Rows:
        """Run one statement as a transaction of its own. Repeat it only if it certainly wrote nothing."""
        for attempt in range(MAX_ATTEMPTS):
            try:
                async with self._claims.lend_connection() as connection:
                    cursor = connection.cursor(binary=True)
                    # The plan depends on the number of due cursors, so it is made anew.
                    await cursor.execute(sql, values, prepare=False)
                    return await cursor.fetchall() if has_rows else [(cursor.rowcount,)]
            except (psycopg.Error, UnicodeEncodeError) as error:
                if not isinstance(error, REPEATABLE_ERRORS) or attempt + 1 == MAX_ATTEMPTS:
                    raise translate_error(error) from error
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
        raise AssertionError("the last attempt returns or raises")

    async def _write_count(self, sql: str, values: Mapping[str, Any]) -> int:
        return int((await self._write(sql, values, has_rows=False))[0][0])

    # -- sessions and their logs

    async def get_session(self, id: str) -> Session:
        found = await self._fetch(sessions.SELECT_SESSION, (id,))
        if not found:
            raise sessions.build_not_found(id)
        return sessions.parse_session_row(found[0])

    async def get_session_snapshot(self, id: str) -> SessionSnapshot:
        return await self._snapshots.read(id)

    async def list_sessions(self, *, limit: int = 100, after: str = "", newest_first: bool = False) -> list[Session]:
        if newest_first:
            rows = await self._fetch(sessions.SELECT_PAGE_BACKWARDS, (after, after, limit))
        else:
            rows = await self._fetch(sessions.SELECT_PAGE, (after, limit))
        return [sessions.parse_session_row(row) for row in rows]

    async def list_sessions_begun_by(
        self, *, authors: Collection[str], agent: str = "", address: str = "", limit: int = 100, after: str = ""
    ) -> list[Session]:
        values = {"authors": list(authors), "agent": agent, "address": address, "limit": limit, "after": after}
        return [sessions.parse_session_row(row) for row in await self._fetch(sessions.SELECT_BEGUN, values)]

    async def list_branches(self, id: str) -> list[Session]:
        return [sessions.parse_session_row(row) for row in await self._fetch(sessions.SELECT_BRANCHES, (id,))]

    async def resolve_address(self, address: str) -> str | None:
        rows = await self._fetch("select session from bindings where address = %s", (address,))
        return str(rows[0][0]) if rows else None

    async def get_session_head(self, id: str) -> tuple[int, int]:
        rows = await self._fetch(sessions.SELECT_HEAD, (id,))
        if not rows:
            raise sessions.build_not_found(id)
        first, generation = rows[0]
        return first - 1, generation

    async def count_erasures(self, session: str) -> int:
        rows = await self._fetch("select erasures from sessions where id = %s", (session,))
        return int(rows[0][0]) if rows else 0

    async def get_bound_session(self, address: str) -> tuple[str, str] | None:
        rows = await self._fetch(sessions.SELECT_BOUND_SESSION, (address,))
        return (rows[0][0], rows[0][1]) if rows else None

    async def find_sessions(self, name: str) -> list[str]:
        found = [row[0] for row in await self._fetch(sessions.FIND_SESSIONS, {"name": name})]
        return [name] if name in found else found

    async def list_entries(
        self,
        session: str,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: Sequence[EntryKind] = (),
        limit: int | None = None,
    ) -> list[Entry]:
        sql, values = entries.build_entries_query(session, after=after, upto=upto, kinds=kinds, limit=limit)
        return [entries.parse_entry_row(row) for row in await self._fetch(sql, values)]

    async def read_replies(self, session: str, *, after: int = 0) -> SessionReplies:
        return await self._replies.read(session, after=after)

    async def read_log(self, session: str, *, after: int = 0, upto: int | None = None, limit: int = 500) -> EntryPage:
        page = EntryPage()
        last = MAX_SEQ if upto is None else upto
        while True:
            rows = await self._fetch(entries.SELECT_LOG, (session, after, last, min(limit, FEED_PAGE_ROWS)))
            if entries.build_page(rows, limit=limit, page=page) or len(rows) < FEED_PAGE_ROWS:
                return page
            after = page[-1].seq

    async def get_entry(self, session: str, seq: int) -> Entry:
        rows = await self._fetch(entries.SELECT_ENTRY, (session, seq))
        if not rows:
            raise NotFound(f"session {session!r} has no entry {seq}")
        return entries.parse_entry_row(rows[0])

    async def get_cited_entries(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], CitedEntry]:
        if not places:
            return {}
        wanted = ([session for session, _ in places], [seq for _, seq in places])
        rows = await self._fetch(entries.SELECT_CITED, wanted)
        return {
            (row[2], row[3]): CitedEntry(agent=row[0], undone=row[1], entry=entries.parse_entry_row(row[2:]))
            for row in rows
        }

    async def last_pos(self) -> int:
        return int((await self._fetch("select max(pos) from entries", ()))[0][0] or 0)

    async def find_latest_time(self) -> float:
        return float((await self._fetch("select max(at) from entries", ()))[0][0] or 0.0)

    async def find_entry_place(self, dedup: str) -> tuple[str, int, int | None] | None:
        rows = await self._fetch("select session, seq, op from entries where dedup = %s", (dedup,))
        return (rows[0][0], rows[0][1], rows[0][2]) if rows else None

    async def read_feed(self, *, after: int = 0, limit: int = 500) -> EntryPage:
        page = EntryPage()
        while True:
            rows = await self._fetch(entries.SELECT_FEED, (after, min(limit, FEED_PAGE_ROWS)))
            if entries.build_page(rows, limit=limit, page=page) or len(rows) < FEED_PAGE_ROWS:
                return page
            after = page[-1].pos

    async def list_notes(self, *, after: int = 0, limit: int = 500) -> list[Entry]:
        return [entries.parse_entry_row(row) for row in await self._fetch(entries.SELECT_NOTES, (after, limit))]

    async def list_compressions(self, *, limit: int) -> list[Entry]:
        return [entries.parse_entry_row(row) for row in await self._fetch(entries.SELECT_COMPRESSIONS, (limit,))]

    async def count_waiting(self) -> int:
        return int((await self._fetch("select count(*) from pending where asks", ()))[0][0])

    async def list_waiting(self) -> list[WaitingCount]:
        return [
            WaitingCount(author=author, address=address, messages=messages, bytes=size)
            for author, address, messages, size in await self._fetch(entries.SELECT_WAITING, ())
        ]

    async def list_pending(self, session: str, *, after: int = 0) -> list[Entry]:
        return [entries.parse_entry_row(row) for row in await self._fetch(entries.SELECT_PENDING, (session, after))]

    async def scan_pending(self, session: str, *, after: int = 0) -> list[PendingMessage]:
        rows = await self._fetch(entries.SCAN_PENDING, (session, after))
        return [entries.parse_pending_row(session, row) for row in rows]

    async def list_operations(
        self,
        session: str,
        *,
        types: Sequence[str] = (),
        after: int = 0,
        before: int | None = None,
        states: Sequence[str] = (),
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Operation]:
        sql, values = operations.build_operations_query(
            session, types=types, after=after, before=before, states=states, newest_first=newest_first, limit=limit
        )
        return [operations.parse_operation_row(row) for row in await self._fetch(sql, values)]

    async def list_restarted_turns(self, *, starts: int) -> list[Operation]:
        return [
            operations.parse_operation_row(row) for row in await self._fetch(operations.SELECT_RESTARTED, (starts,))
        ]

    # -- cursors, receipts, dead letters, state records

    async def get_cursor(self, consumer: str, session: str) -> ConsumerCursor | None:
        sql, values = cursors.build_cursors_query(consumer=consumer, session=session)
        rows = await self._fetch(sql, values)
        return cursors.parse_cursor_row(rows[0]) if rows else None

    async def list_cursors(
        self, *, consumer: str = "", session: str = "", waiting: bool = False
    ) -> list[ConsumerCursor]:
        sql, values = cursors.build_cursors_query(consumer=consumer, session=session, waiting=waiting)
        return [cursors.parse_cursor_row(row) for row in await self._fetch(sql, values)]

    async def list_backlogs(self, prefix: str) -> list[MemoryBacklog]:
        return [cursors.parse_backlog_row(row) for row in await self._fetch(cursors.SELECT_BACKLOG, (prefix,))]

    async def count_receipts(self, consumers: Sequence[str]) -> list[ReceiptCount]:
        rows = await self._fetch(deliveries.SELECT_RECEIPT_COUNTS, (list(consumers),))
        return [ReceiptCount(consumer=row[0], agent=row[1], items=row[2], named=row[3]) for row in rows]

    async def list_account_leases(self) -> list[AccountLease]:
        rows = await self._fetch(hosts.SELECT_ACCOUNTS, {"now": self._read_test_clock()})
        return [hosts.parse_account_row(row) for row in rows]

    async def list_hosts(self) -> list[HostStatus]:
        rows = await self._fetch(hosts.SELECT_HOSTS, {"now": self._read_test_clock()})
        return hosts.build_host_statuses(rows, await self._fetch(hosts.SELECT_HELD, ()))

    async def get_time(self) -> float:
        return float((await self._fetch(_SELECT_CLOCK, ()))[0][0]) if self._now is None else self._now()

    async def get_next_due(self, *, skip: Sequence[str] = (), only: Sequence[str] = ()) -> float | None:
        values = {**cursors.build_patterns(only, skip), "now": self._read_test_clock()}
        now, due = (await self._fetch(cursors.NEXT_DUE, values))[0]
        waits = [] if due is None else [max(0.0, due - now)]
        if now < self._latest:
            # The clock went back, so `due` lies further ahead than the delay is long.
            for consumer, wait, mandatory in await self._fetch(cursors.SELECT_EARLY, {"now": now}):
                if cursors.is_consumer_selected(consumer, only=only, skip=skip):
                    waits.append(wait if mandatory else 0.0)
        return min(waits, default=None)

    async def list_dead_letters(
        self, *, session: str = "", consumer: str = "", state: str = "dead"
    ) -> list[DeadLetter]:
        sql, values = deliveries.build_dead_letters_query(session=session, consumer=consumer, state=state)
        return [deliveries.parse_dead_letter_row(row) for row in await self._fetch(sql, values)]

    async def count_receipts_in_doubt(self) -> int:
        return int((await self._fetch("select count(*) from receipts where in_doubt", ()))[0][0])

    async def list_receipts(self, session: str, *, seq: int | None = None, consumer: str = "") -> list[Receipt]:
        sql, values = deliveries.build_receipts_query(session, seq=seq, consumer=consumer)
        return [deliveries.parse_receipt_row(row) for row in await self._fetch(sql, values)]

    async def get_state_record(self, namespace: StateNamespace, key: str, *, scope: str = "") -> StateRecord | None:
        rows = await self._fetch(deliveries.SELECT_STATE, (namespace.value, scope, key))
        return deliveries.parse_state_row(rows[0]) if rows else None

    async def list_state_records(
        self, namespace: StateNamespace | None = None, *, scope: str | None = None
    ) -> list[StateRecord]:
        values = {"namespace": None if namespace is None else namespace.value, "scope": scope}
        return [deliveries.parse_state_row(row) for row in await self._fetch(deliveries.SELECT_STATES, values)]

    async def get_state_version(self) -> int:
        return int((await self._fetch("select version from state_version", ()))[0][0])

    async def get_spend(self, budget: str, day: str) -> BudgetSpend:
        rows = await self._fetch(deliveries.SELECT_SPEND, (budget, day))
        return deliveries.parse_spend_row(budget, day, rows[0])

    async def list_spends(self, prefix: str, day: str) -> list[BudgetSpend]:
        rows = await self._fetch(deliveries.SELECT_SPENDS, (prefix, day))
        return [deliveries.parse_spend_row(row[0], day, row[1:]) for row in rows]

    async def get_blob(self, digest: str) -> bytes | None:
        rows = await self._fetch("select data from blobs where digest = %s", (digest,))
        return bytes(rows[0][0]) if rows else None

    # -- people

    async def get_people(self) -> PeopleDirectory:
        async def read(connection: PgConnection) -> PeopleDirectory:
            ((epoch,),) = await _fetch_rows(connection, people.SELECT_EPOCH, ())
            if self._people is not None and self._people.epoch == (epoch or 0):
                return self._people
            async with connection.transaction():
                await connection.execute("set transaction isolation level repeatable read read only")
                ((epoch,),) = await _fetch_rows(connection, people.SELECT_EPOCH, ())
                return await self._load_people_at(connection, epoch or 0)

        return await self._reads.read(read)

    async def _load_people_at(self, connection: PgConnection, epoch: int) -> PeopleDirectory:
        """Return the people as they are in the snapshot of `connection`, whose epoch has just been read."""
        known = self._people
        if known is not None and known.epoch == epoch:
            return known
        if known is not None and known.epoch < epoch:
            # Strangers are many, so the directory is not read again for each of them.
            rows = await _fetch_rows(connection, people.SELECT_EVENTS, (known.epoch, MAX_NEW_PEOPLE_EVENTS + 1))
            events = [it for it in map(people.parse_event_row, rows) if it.n > known.epoch]
            if known.epoch == epoch:
                return known  # another read added them meanwhile
            if (
                self._people is known
                and known.epoch < epoch
                and len(events) <= MAX_NEW_PEOPLE_EVENTS
                and known.add_first_seen(events)
            ):
                return known
        found = await run_reads(
            connection,
            [
                ("persons", people.SELECT_PERSONS, ()),
                ("identities", people.SELECT_IDENTITIES, ()),
                ("partings", people.SELECT_PARTINGS, ()),
            ],
        )
        directory = PeopleDirectory(
            epoch=epoch,
            persons=[people.parse_person_row(row) for row in found["persons"]],
            identities=[people.parse_identity_row(row) for row in found["identities"]],
            partings=[(row[0], row[1], row[2]) for row in found["partings"]],
        )
        if self._people is None or self._people.epoch < epoch:
            self._people = directory
        return directory

    async def list_people_events(self, *, after: int = 0, limit: int = 500) -> list[PeopleEvent]:
        return [people.parse_event_row(row) for row in await self._fetch(people.SELECT_EVENTS, (after, limit))]

    async def list_peers(
        self, *, memory: str = "", agent: str = "", identities: Collection[str] | None = None
    ) -> list[PeerRecord]:
        names = None if identities is None else list(identities)
        values = {"memory": memory, "agent": agent, "identities": names}
        return [people.parse_peer_row(row) for row in await self._fetch(people.SELECT_PEERS, values)]

    # -- the whole store

    async def verify(self, session: str | None = None) -> list[str]:
        return await checks.verify_snapshot(self._connector, session)

    async def audit(
        self, session: str | None = None, report_progress: ReportProgress = lambda done, total: None
    ) -> StoreAudit:
        return await checks.audit_snapshot(self._connector, session, report_progress)

    async def measure_load(self) -> StoreLoad:
        return measurements.build_load(
            await self._fetch(measurements.SELECT_CONSUMERS, {"now": self._read_test_clock()}),
            await self._fetch(measurements.SELECT_DEAD, ()),
            await self._fetch(measurements.SELECT_SUMS, ()),
        )

    async def measure_backlogs(self) -> list[ConsumerBacklog]:
        return measurements.build_backlogs(
            await self._fetch(cursors.SELECT_BACKLOG, (MEMORY_PREFIX,)),
            await self._fetch(measurements.SELECT_OUTBOX, measurements.OUTBOX_VALUES),
        )

    def count_round_trips(self) -> int:
        """Return how often this store has waited for the server so far, for tests and benches."""
        return self.writer.statistics.round_trips + self._claims.round_trips + self._reads.round_trips

    async def close(self) -> None:
        self._is_closed = True
        await self.notifier.close()
        await self.writer.close()
        await self._claims.close()
        await self._budgets.close()
        await self._reads.close()

    async def _fetch(self, sql: str, values: Sequence[Any] | Mapping[str, Any]) -> Rows:
        return await self._reads.read(lambda connection: _fetch_rows(connection, sql, values))


async def _fetch_rows(connection: PgConnection, sql: str, values: Sequence[Any] | Mapping[str, Any]) -> Rows:
    (rows,) = await run_statements(connection, [(sql, values)])
    return rows
