"""Reads what a turn starts from, and the replies that a platform sends. Requests that arrive while a read is under way
go together into the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import psycopg

from everhold.core.entries import Entry, Heard
from everhold.core.inbox import MAX_TURN_MESSAGES
from everhold.core.people import PeopleDirectory
from everhold.errors import EverholdError
from everhold.ports.store import SessionReplies, SessionSnapshot
from everhold.stores.postgres import entries, operations, sessions
from everhold.stores.postgres.connections import ReadPool
from everhold.stores.postgres.loading import PLANNER_SETTINGS, run_reads
from everhold.stores.postgres.statements import COMMIT, PgConnection, Rows

PENDING_PAGE: Final = MAX_TURN_MESSAGES + 1
MAX_GROUP: Final = 64
_BEGIN: Final = "begin isolation level repeatable read read only"
_SETTINGS: Final = f"select {PLANNER_SETTINGS}"

LoadPeople: TypeAlias = Callable[[PgConnection, int], Awaitable[PeopleDirectory]]
K = TypeVar("K")
V = TypeVar("V")


class ReadGroup(Generic[K, V]):
    """What is read together, and the task that reads it."""

    def __init__(self) -> None:
        self.keys: list[K] = []
        self.task: asyncio.Task[dict[K, V]] | None = None


class GroupedReads(Generic[K, V]):
    """Reads something of sessions in groups, one group at a time."""

    def __init__(self, reads: ReadPool, read_parts: Callable[[PgConnection, list[K]], Awaitable[dict[K, V]]]) -> None:
        """`read_parts` reads what is there of the wanted keys."""
        self._reads = reads
        self._read_parts = read_parts
        self._next: ReadGroup[K, V] | None = None
        self._turn = asyncio.Lock()

    async def read(self, key: K) -> V | None:
        """Return what is there now: the read begins after this call."""
        group = self._next
        if group is None or len(group.keys) >= MAX_GROUP:
            group = self._next = ReadGroup()
            group.task = asyncio.create_task(self._read_next(group), name="postgres reads")
        group.keys.append(key)
        assert group.task is not None
        try:
            found = await asyncio.shield(group.task)  # the others go on if one caller is cancelled
        except EverholdError:
            if len(group.keys) == 1:
                raise
            found = await self._read_group([key])  # perhaps another one is at fault
        return found.get(key)

    async def _read_next(self, group: ReadGroup[K, V]) -> dict[K, V]:
        async with self._turn:
            if self._next is group:
                self._next = None  # who comes from now on would get what was read before
            return await self._read_group(list(dict.fromkeys(group.keys)))

    async def _read_group(self, keys: list[K]) -> dict[K, V]:
        return await self._reads.read(lambda connection: self._read_parts(connection, keys))


class TurnSnapshotReader:
    """Reads snapshots of sessions."""

    def __init__(
        self, reads: ReadPool, *, get_people: Callable[[], PeopleDirectory | None], load_people: LoadPeople
    ) -> None:
        """`get_people` returns the people as last read, `load_people` reads them as of an epoch."""
        self._get_people = get_people
        self._load_people = load_people
        self._groups: GroupedReads[str, SessionSnapshot] = GroupedReads(reads, self._read_parts)

    async def read(self, id: str) -> SessionSnapshot:
        found = await self._groups.read(id)
        if found is None:
            raise sessions.build_not_found(id)
        return found

    async def _read_parts(self, connection: PgConnection, ids: list[str]) -> dict[str, SessionSnapshot]:
        """Read all parts in one round trip. Only if the people have changed, or very many messages wait, read more."""
        plan = [
            ("begin", _BEGIN, ()),
            ("settings", _SETTINGS, ()),
            ("sessions", sessions.SELECT_SNAPSHOTS, (ids,)),
            ("pending", entries.SELECT_FIRST_PENDING_OF, (ids, PENDING_PAGE)),
            ("running", operations.SELECT_RUNNING_OF, (ids,)),
        ]
        people = self._get_people()
        try:
            if people is not None:
                group = SnapshotParts(await run_reads(connection, [*plan, ("commit", COMMIT, ())]))
                if people.epoch == group.epoch and group.is_enough:
                    return group.build(people)
            group = SnapshotParts(await run_reads(connection, plan))
            people = await self._load_people(connection, group.epoch)
            await group.extend(connection)
            return group.build(people)
        finally:
            if connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
                await connection.execute("rollback")


class ReplyReader:
    """Reads the replies of sessions after a seq of each."""

    def __init__(self, reads: ReadPool) -> None:
        self._groups: GroupedReads[tuple[str, int], SessionReplies] = GroupedReads(reads, self._read_parts)

    async def read(self, session: str, *, after: int) -> SessionReplies:
        found = await self._groups.read((session, after))
        if found is None:
            raise sessions.build_not_found(session)
        return found

    async def _read_parts(
        self, connection: PgConnection, places: list[tuple[str, int]]
    ) -> dict[tuple[str, int], SessionReplies]:
        ids, afters = [id for id, _ in places], [after for _, after in places]
        try:
            plan = [
                ("begin", _BEGIN, ()),
                ("settings", _SETTINGS, ()),
                ("heads", sessions.SELECT_HEADS, (ids,)),
                ("replies", entries.SELECT_REPLIES_OF, (ids, afters)),
                ("commit", COMMIT, ()),
            ]
            found = await run_reads(connection, plan)
        finally:
            if connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
                await connection.execute("rollback")
        replies: dict[int, list[Entry]] = {}
        for *row, number in found["replies"]:
            replies.setdefault(number, []).append(entries.parse_entry_row(row))
        return {
            places[number - 1]: SessionReplies(
                last_seq=next_seq - 1, generation=generation, entries=replies.get(number, [])
            )
            for next_seq, generation, number in found["heads"]
        }


class SnapshotParts:
    """What was read of some sessions at the same moment."""

    def __init__(self, found: dict[str, Rows]) -> None:
        self._sessions = found["sessions"]
        self.epoch: int = (self._sessions[0][-1] or 0) if self._sessions else 0
        self._pending: dict[str, list[Entry]] = {row[0]: [] for row in self._sessions}
        self._running: dict[str, list[tuple[Any, ...]]] = {}
        for row in found["pending"]:
            self._pending[row[0]].append(entries.parse_entry_row(row))
        for row in found["running"]:
            self._running.setdefault(row[0], []).append(row)
        self._has_more = {id for id, page in self._pending.items() if len(page) == PENDING_PAGE}

    @property
    def is_enough(self) -> bool:
        """Whether every page has all pending messages, or as many as one turn takes and one that asks."""
        return bool(self._sessions) and all(_is_turn_complete(self._pending[id]) for id in self._has_more)

    async def extend(self, connection: PgConnection) -> None:
        """Read on until the pages are enough."""
        for id in sorted(self._has_more):
            page = self._pending[id]
            size = PENDING_PAGE
            while size == PENDING_PAGE and not _is_turn_complete(page):
                plan = [("pending", entries.SELECT_FIRST_PENDING, (id, page[-1].seq, PENDING_PAGE))]
                rows = (await run_reads(connection, plan))["pending"]
                page += [entries.parse_entry_row(row) for row in rows]
                size = len(rows)
            if size < PENDING_PAGE:
                self._has_more.discard(id)

    def build(self, people: PeopleDirectory) -> dict[str, SessionSnapshot]:
        found = {}
        for *row, newest_turn, _ in self._sessions:
            session = sessions.parse_session_row(row)
            found[session.id] = SessionSnapshot(
                session=session,
                pending=self._pending[session.id],
                has_more_pending=session.id in self._has_more,
                running=[operations.parse_operation_row(one) for one in self._running.get(session.id, ())],
                newest_turn=newest_turn or 0,
                people=people,
            )
        return found


def _is_turn_complete(page: Sequence[Entry]) -> bool:
    """Commands are passed over, because the command worker handles them."""
    plain = [it.body for it in page if not (isinstance(it.body, Heard) and it.body.command)]
    return len(plain) >= MAX_TURN_MESSAGES and any(isinstance(body, Heard) and body.asks for body in plain)
