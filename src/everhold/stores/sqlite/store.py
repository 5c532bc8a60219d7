"""The store on SQLite: passes changes to the writer, and reads committed data on the caller's thread.

Reads are short and do not wait. All methods belong to one event loop's thread; only the writer has its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import apsw
import msgspec

from everhold.core.audit import ReportProgress, StoreAudit
from everhold.core.budget import BudgetHold, BudgetRefusal
from everhold.core.entries import Entry, EntryKind, Heard
from everhold.core.hosts import build_commit_hint
from everhold.core.inbox import MAX_TURN_MESSAGES, PendingMessage
from everhold.core.people import PeopleDirectory, PeopleEvent
from everhold.core.quotas import WaitingCount
from everhold.errors import InvalidRequest, NotFound, StoreError
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
    Step,
)
from everhold.ports.store_files import CopyEnd, StoreCopy, StoreIncrement
from everhold.stores import verify
from everhold.stores.notifier import LocalNotifier
from everhold.stores.sqlite import (
    account_leases,
    backup as copies,
    bindings,
    commit,
    connect,
    cursors,
    deliveries,
    entries,
    hosts,
    increments,
    measurements,
    migrate,
    operations,
    people,
    reservations,
    sessions,
    snapshot,
    spending,
    state_records,
    watermark,
)
from everhold.stores.sqlite.errors import build_damaged_error, build_invalid_name_error, translate_error
from everhold.stores.sqlite.files import StoreFiles
from everhold.stores.sqlite.writer import InlineWriter, ThreadWriter

T = TypeVar("T")
MAX_SEQ: Final = 2**63 - 1

URGENT_STEPS: Final = frozenset({Step.ACCEPT, Step.COMMAND, Step.STATE})
"""A platform or a person waits for these commits."""
MAX_LOST_ENTRIES: Final = 1_024
"""A power cut loses fewer entries than this: those of commits after the last durable one."""
PENDING_PAGE: Final = MAX_TURN_MESSAGES + 1
MAX_LIGHT_ENTRIES: Final = 32
MAX_NEW_PEOPLE_EVENTS: Final = 1_000
MAX_LIGHT_BYTES: Final = 64 * 1024


class SqliteStore:
    """One database file, opened with `open`. Implements `ports.store.Store`."""

    def __init__(
        self,
        path: Path,
        *,
        writer: ThreadWriter | InlineWriter,
        read_connection: apsw.Connection,
        chance: RandomSource,
        now: Callable[[], float] = time.time,
        vfs: str | None = None,
        exclusive: bool = True,
    ) -> None:
        self.path = path
        self.is_exclusive = exclusive
        self.notifier = LocalNotifier()
        self.writer = writer
        writer.bulk_writer = self._append_messages
        self._read_connection = read_connection
        self._read_cursor = read_connection.cursor()
        self._chance = chance
        self._now = now
        self._vfs = vfs
        self.on_full: Callable[[], None] = _ignore_full_disk
        """Called when a commit finds no space."""
        self._safe_pos: int | None = None
        self._latest = cursors.find_latest_wait_start(self._read_cursor)
        """The latest time of any write on the store's clock. If the present time is earlier, it has gone back."""
        self._people: PeopleDirectory | None = None
        self.upgrade_backup: Path | None = None
        """The copy that was made before an upgrade of the schema."""

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        chance: RandomSource,
        now: Callable[[], float] = time.time,
        inline: bool = False,
        backups: Path | None = None,
        synchronous: str = "FULL",
        patience: float = connect.LOCK_WAIT_SECONDS,
        migrations: Sequence[migrate.SchemaMigration] | None = None,
        vfs: str | None = None,
        watched: Sequence[Path] = (),
        exclusive: bool = True,
    ) -> Self:
        """Open the database at `path`. Create or upgrade it if needed. Refuse a damaged or too new one without changing
        it.

        `now` is the store's clock: it decides when leases end and cursors are due.

        `inline` commits on the caller's thread, for the simulator. Before an upgrade, a checked copy is made in
        `backups` (by default beside the database). `patience` is how many seconds to wait for another process's lock.
        `migrations` and `vfs` are for tests. `watched` are other files, such as the home's lock: if one of them is
        deleted or replaced while the store is open, nothing is acknowledged any more. `exclusive`: no other process
        works on the file meanwhile.
        """
        path = Path(path).absolute()
        # The watermark proves a loss only if every commit is synced.
        mark_path = watermark.build_watermark_path(path)
        uses_watermark = not inline and synchronous.upper() in ("FULL", "EXTRA")
        if uses_watermark and not path.exists():
            watermark.check_watermark(mark_path, 0)
        had_power_cut = _has_content(path.with_name(path.name + "-wal")) and not watermark.is_same_boot(mark_path)
        saved: list[Path] = []
        db = migrate.open_database(
            path,
            migrations=migrations or migrate.list_migrations(),
            backups=backups or path.parent / "backups",
            synchronous=synchronous,
            patience=patience,
            vfs=vfs,
            on_backup=saved.append,
        )
        try:
            newest: int = db.execute("select max(pos) from entries").get or 0
            if uses_watermark:
                watermark.check_watermark(mark_path, newest)
            read_connection = connect.open_for_reading(path, vfs=vfs)
        except (apsw.Error, StoreError) as error:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.close()
            if isinstance(error, apsw.Error):
                raise translate_error(error, path) from error
            raise
        mark = watermark.WatermarkFile(mark_path) if uses_watermark else None
        if inline:
            writer: InlineWriter | ThreadWriter = InlineWriter(db, path)
        else:
            writer = ThreadWriter(db, path, mark, files=StoreFiles(path, watched=watched), patience=patience)
        store = cls(
            path,
            writer=writer,
            read_connection=read_connection,
            chance=chance,
            now=now,
            vfs=vfs,
            exclusive=exclusive,
        )
        store.upgrade_backup = saved[0] if saved else None
        if had_power_cut and not inline:
            store._safe_pos = newest + MAX_LOST_ENTRIES
        return store

    @property
    def _cursor(self) -> apsw.Cursor:
        """The cursor to read with: the writer's connection while it is on this thread, because its cache is warm."""
        return self.writer.read_cursor or self._read_cursor

    @property
    def schema_version(self) -> int:
        return migrate.get_newest_schema()

    @property
    def files(self) -> Self:
        """How to copy the file."""
        return self

    @property
    def broken(self) -> StoreError | None:
        """Why nothing can be written any more. The process has to restart."""
        return self.writer.broken

    def find_fault(self) -> StoreError | None:
        """Why nothing can be written any more. Unlike `broken`, it looks for the files now."""
        self.writer.check_files()
        return self.writer.broken

    # -- writing

    async def ping_writer(self) -> None:
        """Commit nothing, and return when the writer has done it."""
        await self.writer.write(lambda cur: None, urgent=True)

    async def commit(self, change: Change) -> CommitResult:
        job = functools.partial(self._apply_change, change)
        if self._safe_pos is None and commit.is_plain_message(change):
            done = await self.writer.write(job, urgent=True, light=True, alike=change)
        else:
            # The first entry after a power cut must be durable, or the next power cut would free its pos again.
            durable = change.durable or (self._safe_pos is not None and bool(change.entries))
            urgent = change.step in URGENT_STEPS
            done = await self.writer.write(job, urgent=urgent, light=_is_light(change), durable=durable)
            if self._safe_pos is not None and change.entries and not done.duplicate and durable:
                self._safe_pos = None
        if self.notifier.has_subscribers:
            self.notifier.publish(build_commit_hint(change, done.claims))
        return done

    def _apply_change(self, change: Change, cur: apsw.Cursor) -> CommitResult:
        now = self._read_clock()
        pos = None if self._safe_pos is None or not change.entries else self._find_safe_pos(cur)
        done = commit.apply_change(cur, change, self._chance, now=now, pos=pos)
        if done.pos and not done.duplicate:
            self.writer.last_pos = done.pos
        if _is_removal(change):
            self.writer.scrub_needed = True
        return done

    def _append_messages(self, cur: apsw.Cursor, changes: list[Change]) -> list[CommitResult]:
        """Apply several changes that only append messages."""
        done = commit.append_messages(cur, changes, self._chance, now=self._read_clock())
        self.writer.last_pos = done[-1].pos
        return done

    def _read_clock(self) -> float:
        """Return the time for a write, and remember the latest one."""
        now = self._now()
        if now > self._latest:
            self._latest = now
        return now

    def _find_safe_pos(self, cur: apsw.Cursor) -> int | None:
        """The pos of the first entry after a power cut: after every pos that the power cut may have removed."""
        if self._safe_pos is None:
            return None
        newest: int = cur.execute("select max(pos) from entries").get or 0
        return self._safe_pos if newest < self._safe_pos else None

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
        before = latest = self._latest

        def job(cur: apsw.Cursor) -> list[Claim]:
            nonlocal before, latest
            now, before = self._now(), self._latest
            back = now < before
            found = cursors.claim_cursors(
                cur,
                owner=owner,
                at=now,
                lease=lease,
                limit=limit,
                skip=skip,
                only=only,
                held_back=held_back,
                list_held=list_held,
                back=back,
            )
            latest = max(now, cursors.find_latest_wait_start(cur)) if back else now
            return found

        found = await self.writer.write(job, light=True, durable=False)
        # Only now, because a job that is rolled back with its batch runs again, and must notice again that the clock
        # went back. Another job may have begun a later wait meanwhile.
        if self._latest == before:
            self._latest = latest
        return found

    async def renew_leases(self, claims: Collection[Claim], *, owner: str, lease: float) -> int:
        held = {(claim.session, claim.consumer) for claim in claims}
        return await self.writer.write(
            lambda cur: cursors.renew_leases(cur, held, owner=owner, at=self._now(), lease=lease)
        )

    async def revoke_leases(self, *, owner: str) -> int:
        if not self.is_exclusive:
            raise InvalidRequest("leases of other hosts can only be ended in a store that no other process uses")

        def job(cur: apsw.Cursor) -> int:
            # another process may have written since this store was opened, with another clock
            self._latest = max(self._latest, cursors.find_latest_wait_start(cur))
            return cursors.revoke_leases(cur, owner=owner, at=self._now())

        return await self.writer.write(job)

    async def reserve_spending(
        self, holds: Sequence[BudgetHold], *, id: str, day: str, usd: float, tokens: int, lease: float
    ) -> BudgetRefusal | None:
        def job(cur: apsw.Cursor) -> BudgetRefusal | None:
            return reservations.reserve(
                cur, holds, id=id, day=day, usd=usd, tokens=tokens, at=self._read_clock(), lease=lease
            )

        return await self.writer.write(job, urgent=True, light=True, durable=False)

    async def renew_reservations(self, ids: Collection[str], *, lease: float) -> int:
        wanted = list(ids)
        return await self.writer.write(
            lambda cur: reservations.renew(cur, wanted, at=self._read_clock(), lease=lease), durable=False
        )

    async def release_reservations(self, ids: Collection[str]) -> None:
        wanted = list(ids)
        await self.writer.write(lambda cur: reservations.release(cur, wanted), light=True, durable=False)

    async def hand_over_leases(self, claims: Collection[Claim], *, owner: str) -> int:
        return await self.renew_leases(claims, owner=owner, lease=0.0)

    async def claim_account(self, account: str, *, owner: str, lease: float) -> AccountClaim | None:
        return await self.writer.write(
            lambda cur: account_leases.claim_account(cur, account, owner=owner, at=self._now(), lease=lease)
        )

    async def renew_accounts(self, claims: Collection[AccountClaim], *, lease: float) -> list[AccountClaim]:
        wanted = list(claims)
        return await self.writer.write(
            lambda cur: account_leases.renew_accounts(cur, wanted, at=self._now(), lease=lease)
        )

    async def release_account(self, claim: AccountClaim) -> bool:
        return await self.writer.write(lambda cur: account_leases.release_account(cur, claim))

    async def register_host(self, host: HostRecord, *, lease: float) -> list[HostStatus]:
        return await self.writer.write(lambda cur: hosts.register_host(cur, host, at=self._now(), lease=lease))

    async def renew_host(self, id: str, *, lease: float, is_draining: bool = False) -> bool:
        return await self.writer.write(
            lambda cur: hosts.renew_host(cur, id, at=self._now(), lease=lease, is_draining=is_draining)
        )

    async def remove_host(self, id: str) -> None:
        await self.writer.write(lambda cur: hosts.remove_host(cur, id))

    async def retry_now(self, *, held: Sequence[str] = ()) -> int:
        return await self.writer.write(lambda cur: cursors.retry_now(cur, at=self._read_clock(), held=held))

    async def replay_dead_letters(self, ids: Sequence[int]) -> int:
        return await self.writer.write(lambda cur: deliveries.replay_dead_letters(cur, ids, at=self._read_clock()))

    async def drop_dead_letters(self, ids: Sequence[int]) -> int:
        return await self.writer.write(lambda cur: deliveries.drop_dead_letters(cur, ids))

    # -- sessions and their logs

    async def get_session(self, id: str) -> Session:
        found = self._fetch_rows(sessions.SELECT_SESSION, (id,))
        if not found:
            raise sessions.build_not_found(id)
        return sessions.parse_session_row(found[0])

    async def get_session_snapshot(self, id: str) -> SessionSnapshot:
        # If another connection may write, the parts need a transaction to be from the same moment.
        with contextlib.nullcontext() if self.writer.read_cursor else self._read_connection:
            found = self._fetch_rows(sessions.SELECT_SNAPSHOT, (id,))
            if not found:
                raise sessions.build_not_found(id)
            *row, newest, busy, epoch = found[0]
            pending, more = self._list_first_pending(id)
            running = await self.list_operations(id, states=("running",)) if busy else []
            directory = self._translate_errors(lambda: self._load_people_at(epoch or 0))
        return SessionSnapshot(
            session=sessions.parse_session_row(row),
            pending=pending,
            has_more_pending=more,
            running=running,
            newest_turn=newest or 0,
            people=directory,
        )

    def _list_first_pending(self, session: str) -> tuple[list[Entry], bool]:
        """Return as many pending entries as one turn can take, one that asks among them, and whether there are more.

        Commands are passed over, because the command worker handles them.
        """
        found: list[Entry] = []
        after, messages, is_asked = 0, 0, False
        while messages < MAX_TURN_MESSAGES or not is_asked:
            rows = self._fetch_rows(entries.SELECT_FIRST_PENDING, (session, after, PENDING_PAGE))
            page = [entries.parse_entry_row(row) for row in rows]
            found += page
            if len(page) < PENDING_PAGE:
                return found, False
            after = page[-1].seq
            plain = [it.body for it in page if not (isinstance(it.body, Heard) and it.body.command)]
            messages += len(plain)
            is_asked = is_asked or any(isinstance(body, Heard) and body.asks for body in plain)
        return found, True

    async def list_sessions(self, *, limit: int = 100, after: str = "", newest_first: bool = False) -> list[Session]:
        sql = sessions.SELECT_PAGE_BACKWARDS if newest_first else sessions.SELECT_PAGE
        return [sessions.parse_session_row(row) for row in self._fetch_rows(sql, (after, limit))]

    async def list_sessions_begun_by(
        self, *, authors: Collection[str], agent: str = "", address: str = "", limit: int = 100, after: str = ""
    ) -> list[Session]:
        wanted = msgspec.json.encode(list(authors)).decode()
        values = {"authors": wanted, "agent": agent, "address": address, "limit": limit, "after": after}

        def read(db: apsw.Connection) -> list[Session]:
            cur = db.cursor()
            found = connect.fetch_rows(cur, sessions.SELECT_BEGUN, values)
            return [sessions.parse_session_row(row) for row in found]

        return await self._read_in_thread(read)  # it reads the beginning of every session

    async def list_branches(self, id: str) -> list[Session]:
        return [sessions.parse_session_row(row) for row in self._fetch_rows(sessions.SELECT_BRANCHES, (id,))]

    async def resolve_address(self, address: str) -> str | None:
        return self._translate_errors(lambda: bindings.resolve_address(self._cursor, address))

    async def get_session_head(self, id: str) -> tuple[int, int]:
        first, generation = self._translate_errors(lambda: sessions.read_head(self._cursor, id))
        return first - 1, generation

    async def count_erasures(self, session: str) -> int:
        rows = self._fetch_rows("select erasures from sessions where id = ?", (session,))
        return rows[0][0] if rows else 0

    async def get_bound_session(self, address: str) -> tuple[str, str] | None:
        found = self._fetch_rows(sessions.SELECT_BOUND_SESSION, (address,))
        return (found[0][0], found[0][1]) if found else None

    async def find_sessions(self, name: str) -> list[str]:
        found = [row[0] for row in self._fetch_rows(sessions.FIND_SESSIONS, {"name": name})]
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
        try:
            found: list[Any] = self._cursor.execute(sql, values).fetchall()
        except apsw.CorruptError as error:  # a large file is not checked when it is opened
            raise build_damaged_error(self.path, f"session {session} cannot be read completely: {error}") from error
        except apsw.Error as error:
            raise translate_error(error, self.path) from error
        except UnicodeEncodeError as error:
            raise build_invalid_name_error(error) from error
        return [entries.parse_entry_row((session, *row)) for row in found]

    async def read_replies(self, session: str, *, after: int = 0) -> SessionReplies:
        rows = self._fetch_rows(entries.SELECT_REPLIES, (after, session))
        if not rows:
            raise sessions.build_not_found(session)
        next_seq, generation = rows[0][:2]
        said = [entries.parse_entry_row(row[2:]) for row in rows if row[2] is not None]
        return SessionReplies(last_seq=next_seq - 1, generation=generation, entries=said)

    async def read_log(self, session: str, *, after: int = 0, upto: int | None = None, limit: int = 500) -> EntryPage:
        def read() -> EntryPage:
            values = (session, after, MAX_SEQ if upto is None else upto, limit)
            try:
                return entries.read_page(self._cursor.connection, entries.SELECT_LOG, values, limit=limit)
            except apsw.CorruptError as error:
                raise build_damaged_error(self.path, f"session {session} cannot be read completely: {error}") from error

        return self._translate_errors(read)

    async def get_entry(self, session: str, seq: int) -> Entry:
        found = self._fetch_rows(entries.SELECT_ENTRY, (session, seq))
        if not found:
            raise NotFound(f"session {session!r} has no entry {seq}")
        return entries.parse_entry_row(found[0])

    async def get_cited_entries(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], CitedEntry]:
        wanted = msgspec.json.encode(list(places)).decode()
        found = self._fetch_rows(entries.SELECT_CITED, (wanted,))
        return {
            (row[2], row[3]): CitedEntry(agent=row[0], undone=bool(row[1]), entry=entries.parse_entry_row(row[2:]))
            for row in found
        }

    async def read_feed(self, *, after: int = 0, limit: int = 500) -> EntryPage:
        return self._translate_errors(
            lambda: entries.read_page(self._cursor.connection, entries.SELECT_FEED, (after, limit), limit=limit)
        )

    async def list_notes(self, *, after: int = 0, limit: int = 500) -> list[Entry]:
        return [entries.parse_entry_row(row) for row in self._fetch_rows(entries.SELECT_NOTES, (after, limit))]

    async def list_compressions(self, *, limit: int) -> list[Entry]:
        return [entries.parse_entry_row(row) for row in self._fetch_rows(entries.SELECT_COMPRESSIONS, (limit,))]

    async def count_waiting(self) -> int:
        count: int = self._fetch_rows("select count(*) from pending where asks", ())[0][0]
        return count

    async def list_waiting(self) -> list[WaitingCount]:
        rows = self._fetch_rows(
            "select e.author, s.address, count(*), sum(coalesce(octet_length(e.body), 0)) from pending p "
            "join entries e on e.session = p.session and e.seq = p.seq join sessions s on s.id = p.session "
            "where p.asks group by e.author, s.address",
            (),
        )
        return [
            WaitingCount(author=author, address=address, messages=messages, bytes=size)
            for author, address, messages, size in rows
        ]

    async def list_pending(self, session: str, *, after: int = 0) -> list[Entry]:
        return [entries.parse_entry_row(row) for row in self._fetch_rows(entries.SELECT_PENDING, (session, after))]

    async def scan_pending(self, session: str, *, after: int = 0) -> list[PendingMessage]:
        return self._translate_errors(lambda: entries.scan_pending(self._cursor, session, after))

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
        return [operations.parse_operation_row(row) for row in self._fetch_rows(sql, values)]

    async def list_restarted_turns(self, *, starts: int) -> list[Operation]:
        return [operations.parse_operation_row(row) for row in self._fetch_rows(operations.SELECT_RESTARTED, (starts,))]

    # -- cursors, receipts, dead letters, state records

    async def get_cursor(self, consumer: str, session: str) -> ConsumerCursor | None:
        sql, values = cursors.build_cursors_query(consumer=consumer, session=session)
        found = self._fetch_rows(sql, values)
        return cursors.parse_cursor_row(found[0]) if found else None

    async def list_cursors(
        self, *, consumer: str = "", session: str = "", waiting: bool = False
    ) -> list[ConsumerCursor]:
        sql, values = cursors.build_cursors_query(consumer=consumer, session=session, waiting=waiting)
        return [cursors.parse_cursor_row(row) for row in self._fetch_rows(sql, values)]

    async def list_backlogs(self, prefix: str) -> list[MemoryBacklog]:
        beyond = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return [
            cursors.parse_backlog_row(row)
            for row in self._fetch_rows(cursors.SELECT_BACKLOG, {"consumers": prefix, "beyond": beyond})
        ]

    async def count_receipts(self, consumers: Sequence[str]) -> list[ReceiptCount]:
        rows = self._fetch_rows(deliveries.SELECT_RECEIPT_COUNTS, (msgspec.json.encode(list(consumers)).decode(),))
        return [ReceiptCount(consumer=row[0], agent=row[1], items=row[2], named=row[3]) for row in rows]

    async def list_account_leases(self) -> list[AccountLease]:
        return self._translate_errors(lambda: account_leases.list_account_leases(self._cursor, at=self._now()))

    async def list_hosts(self) -> list[HostStatus]:
        return self._translate_errors(lambda: hosts.list_hosts(self._cursor, at=self._now()))

    async def get_time(self) -> float:
        return self._now()

    async def get_next_due(self, *, skip: Sequence[str] = (), only: Sequence[str] = ()) -> float | None:
        at = self._now()
        back = at < self._latest
        return self._translate_errors(
            lambda: cursors.find_next_due(self._cursor, at=at, skip=skip, only=only, back=back)
        )

    async def list_dead_letters(
        self, *, session: str = "", consumer: str = "", state: str = "dead"
    ) -> list[DeadLetter]:
        sql, values = deliveries.build_dead_letters_query(session=session, consumer=consumer, state=state)
        return [deliveries.parse_dead_letter_row(row) for row in self._fetch_rows(sql, values)]

    async def count_receipts_in_doubt(self) -> int:
        count: int = self._fetch_rows("select count(*) from receipts where in_doubt", ())[0][0]
        return count

    async def list_receipts(self, session: str, *, seq: int | None = None, consumer: str = "") -> list[Receipt]:
        sql, values = deliveries.build_receipts_query(session, seq=seq, consumer=consumer)
        return [deliveries.parse_receipt_row(row) for row in self._fetch_rows(sql, values)]

    async def get_state_record(self, namespace: StateNamespace, key: str, *, scope: str = "") -> StateRecord | None:
        return self._translate_errors(lambda: state_records.get_state_record(self._cursor, namespace, key, scope=scope))

    async def list_state_records(
        self, namespace: StateNamespace | None = None, *, scope: str | None = None
    ) -> list[StateRecord]:
        return self._translate_errors(lambda: state_records.list_state_records(self._cursor, namespace, scope=scope))

    async def get_state_version(self) -> int:
        return self._translate_errors(lambda: state_records.read_state_version(self._cursor))

    async def get_spend(self, budget: str, day: str) -> BudgetSpend:
        return self._translate_errors(lambda: spending.read_spend(self._cursor, budget, day))

    async def list_spends(self, prefix: str, day: str) -> list[BudgetSpend]:
        return self._translate_errors(lambda: spending.list_spends(self._cursor, prefix, day))

    async def get_blob(self, digest: str) -> bytes | None:
        return self._translate_errors(lambda: entries.read_blob(self._cursor, digest))

    # -- people

    async def get_people(self) -> PeopleDirectory:
        return self._translate_errors(self._load_people)

    def _load_people(self) -> PeopleDirectory:
        return self._load_people_at(people.read_epoch(self._cursor))

    def _load_people_at(self, epoch: int) -> PeopleDirectory:
        """Return the people as they are now. `epoch` has just been read."""
        # Another connection may commit between two reads, so read again until the epoch stays.
        while self._people is None or epoch != self._people.epoch:
            if self._people is None or not self._extend_people(self._people):
                self._people = people.load_directory(self._cursor)
            epoch = people.read_epoch(self._cursor)
        return self._people

    def _extend_people(self, known: PeopleDirectory) -> bool:
        """Add strangers to the directory. They are many, so the directory is not read again for each of them."""
        events = people.list_events(self._cursor, after=known.epoch, limit=MAX_NEW_PEOPLE_EVENTS + 1)
        return 0 < len(events) <= MAX_NEW_PEOPLE_EVENTS and known.add_first_seen(events)

    async def list_people_events(self, *, after: int = 0, limit: int = 500) -> list[PeopleEvent]:
        return self._translate_errors(lambda: people.list_events(self._cursor, after=after, limit=limit))

    async def list_peers(
        self, *, memory: str = "", agent: str = "", identities: Collection[str] | None = None
    ) -> list[PeerRecord]:
        return self._translate_errors(lambda: people.list_peers(self._cursor, memory, agent, identities))

    # -- the whole store

    async def verify(self, session: str | None = None) -> list[str]:
        return await self._read_in_thread(lambda db: verify.find_contradictions(snapshot.SqliteSnapshot(db), session))

    async def audit(
        self, session: str | None = None, report_progress: ReportProgress = lambda done, total: None
    ) -> StoreAudit:
        return await self._read_long(lambda db: snapshot.audit_snapshot(db, session, report_progress))

    async def measure_load(self) -> StoreLoad:
        now = self._now()
        return await self._read_long(lambda db: measurements.measure_load(db, self.path, now=now))

    async def measure_backlogs(self) -> list[ConsumerBacklog]:
        return await self._read_long(measurements.measure_backlogs)

    async def make_backup(self, target: Path) -> Path:
        """Copy everything committed into one file at `target`, or beside it if that exists. Return its path."""
        return (await self.make_copy(target)).path

    async def make_copy(self, target: Path) -> StoreCopy:
        """Copy everything committed, and inspect the copy."""
        return await self._read_in_thread(lambda db: copies.make_copy(db, target))

    async def write_increment(
        self, target: Path, *, after_pos: int, recent_pos: int, blob_row: int
    ) -> StoreIncrement | None:
        """Write what was committed after `after_pos` to a file; None if there is nothing."""
        return await self._read_in_thread(
            lambda _: increments.write_increment(
                self.path, target, after_pos=after_pos, recent_pos=recent_pos, blob_row=blob_row
            )
        )

    async def find_copy_end(self, copy: Path) -> CopyEnd | None:
        """Where a copy or an increment of this store ends; None if the file is none of this store."""
        return await self._read_in_thread(lambda db: copies.find_copy_end(db, copy))

    async def find_entry_place(self, dedup: str) -> tuple[str, int, int | None] | None:
        found = self._fetch_rows("select session, seq, op from entries where dedup = ?", (dedup,))
        return found[0] if found else None

    async def last_pos(self) -> int:
        """The pos of the newest entry."""
        return int(self._fetch_rows("select max(pos) from entries", ())[0][0] or 0)

    async def find_latest_time(self) -> float:
        newest = "select max(at) from entries"
        return float(await self._read_in_thread(lambda db: db.cursor().execute(newest).get or 0.0))

    async def close(self) -> None:
        self._read_connection.close()
        await self.writer.close()

    def _fetch_rows(self, sql: str, values: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        try:
            found: list[Any] = self._cursor.execute(sql, values).fetchall()
            return found
        except apsw.Error as error:
            raise translate_error(error, self.path) from error
        except UnicodeEncodeError as error:
            raise build_invalid_name_error(error) from error

    def _translate_errors(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except apsw.Error as error:
            raise translate_error(error, self.path) from error
        except UnicodeEncodeError as error:
            raise build_invalid_name_error(error) from error

    async def _read_long(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run a read on another thread, for which no commit waits."""
        with self.writer.allow_long_read():
            found = await self._read_in_thread(read)
        if self.writer.scrub_needed:
            await self.ping_writer()  # an erasure meanwhile could not empty the write-ahead log
        return found

    async def _read_in_thread(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run a long read on another thread, with its own connection."""

        def work() -> T:
            db = connect.open_for_reading(self.path, vfs=self._vfs)
            try:
                found = self._translate_errors(lambda: read(db))
            finally:
                db.close()
            if fault := self.find_fault():
                raise type(fault)(fault.message, remedy=fault.remedy)  # another store may have been read
            return found

        if isinstance(self.writer, InlineWriter):
            return work()
        return await asyncio.get_running_loop().run_in_executor(None, work)


def _is_light(change: Change) -> bool:
    """Return whether a change is written so quickly that the event loop can wait. Erasures, imports and files are
    not.
    """
    if _is_removal(change) or len(change.entries) > MAX_LIGHT_ENTRIES:
        return False
    return not change.blobs or sum(map(len, change.blobs)) <= MAX_LIGHT_BYTES


def _is_removal(change: Change) -> bool:
    """Return whether a change removes data, which must not remain in the write-ahead log."""
    return change.step is Step.ERASE or bool(change.erase or change.drop_blobs)


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _ignore_full_disk() -> None: ...
