"""A projection of the log for lists: last activity, title and cost of each session, and the use of models by day.

It follows the log like the search index and holds no words but titles. Its file is dropped and derived again whenever
it does not fit the log, so it is no record, and no backup contains it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import apsw
import msgspec
from msgspec import Struct

from everhold.core.address import parse_address
from everhold.core.entries import (
    Began,
    Changed,
    Compressed,
    Ended,
    Entry,
    EntryKind,
    ModelUsage,
    SettingChosen,
    Thought,
    Took,
)
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.store import Session, Store

T = TypeVar("T")

ARCHIVED_SETTING: Final = "archived"
"""The setting of a session that hides it from lists. It is in the log, so every host sees it."""
VERSION: Final = "1"
BATCH_ENTRIES: Final = 500
BUSY_TIMEOUT_MS: Final = 5_000
DAMAGE_ERRORS: Final = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.IOError)

SessionFilterState: TypeAlias = Literal["current", "archived", "failed", "all"]

_TABLES: Final = """
create table meta (key text primary key, value) without rowid;
create table sessions (
    session text primary key, agent text not null, platform text not null, title text not null default '',
    created real not null, at real not null, archived integer not null default 0, outcome text not null default '',
    payer text not null default '', turns integer not null default 0, tokens integer not null default 0,
    usd real not null default 0, summary_op integer not null default 0, summary_model text not null default ''
) without rowid;
create index sessions_active on sessions (at desc, session desc);
create table authors (session text, author text, primary key (author, session)) without rowid;
create table usage (
    day text, agent text, model text, person text, calls integer not null default 0, input integer not null default 0,
    cached integer not null default 0, output integer not null default 0, usd real not null default 0,
    primary key (day, agent, model, person)
) without rowid;
"""
_ADD_USAGE: Final = (
    "insert into usage values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (day, agent, model, person) do update set "
    "calls = calls + excluded.calls, input = input + excluded.input, cached = cached + excluded.cached, "
    "output = output + excluded.output, usd = usd + excluded.usd"
)


class OverviewRow(Struct, frozen=True, kw_only=True):
    """What the projection knows of a session."""

    session: str
    at: float
    title: str
    archived: bool
    outcome: str
    """How its last turn ended."""
    turns: int
    tokens: int
    usd: float


class SessionFilter(Struct, frozen=True, kw_only=True):
    """Which sessions to list. Empty values restrict nothing."""

    agents: tuple[str, ...] = ()
    platform: str = ""
    authors: tuple[str, ...] | None = None
    """Only sessions in which one of them wrote."""
    title: str = ""
    hits: tuple[str, ...] = ()
    """Sessions that match although their titles do not."""
    state: SessionFilterState = "current"
    before: str = ""
    limit: int = 50


class UsageRow(Struct, frozen=True, kw_only=True):
    """The use of models that has these properties in common."""

    key: str
    calls: int
    input: int
    cached: int
    output: int
    usd: float


class _NewState(Struct, kw_only=True):
    """What a page of the log changes in one session."""

    at: float = 0.0
    outcome: str | None = None
    archived: bool | None = None
    turns: int = 0
    tokens: int = 0
    usd: float = 0.0


def make_cursor(row: OverviewRow) -> str:
    """Return the cursor of the page after this row."""
    return f"{row.at!r}~{row.session}"


def _parse_cursor(text: str) -> tuple[float, str]:
    at, _, session = text.partition("~")
    try:
        return float(at[:40]), session
    except ValueError:
        raise InvalidRequest("`before` is not a cursor", remedy="use `next` of the page before") from None


class SessionOverview:
    """One file per home. `get_day` returns the day of a time in the configured zone."""

    def __init__(self, path: Path, *, get_day: Callable[[float], str]) -> None:
        self.path = path
        self._get_day = get_day
        self._lock = threading.Lock()
        self._following = asyncio.Lock()
        self._checked = False
        self._has_more = True
        """The log may have more than was read last."""
        self._opened: apsw.Connection | None = None

    @property
    def _db(self) -> apsw.Connection:
        """The connection. It is opened by its first use, because not every process lists sessions."""
        self._opened = self._opened or self._open()
        return self._opened

    # -- following the log

    async def catch_up(self, store: Store, limit: int = BATCH_ENTRIES) -> int:
        """Read up to `limit` entries that were committed since. Return their number."""
        async with self._following:
            if not self._checked:
                await self._check_same_log(store)
            after = int(await self._run(lambda: self._read_meta("pos", "0")))
            page = await store.read_feed(after=after, limit=limit)
            self._has_more = page.has_more
            if not page:
                return 0
            sessions = {id: await store.get_session(id) for id in {entry.session for entry in page}}
            payers = await self._find_payers(store, page)
            erased = {entry.session for entry in page if entry.kind is EntryKind.ERASED}
            authors = {id: await self._list_authors(store, id) for id in erased}
            await self._run(lambda: self._add_page(page, sessions, payers, authors))
            return len(page)

    async def catch_up_to_end(self, store: Store) -> None:
        """Follow the log to its present end. What is committed meanwhile is left for the next call, because it may
        never end."""
        while await self.catch_up(store) and self._has_more:
            pass

    async def wipe_erased(self, store: Store) -> None:
        """Follow the log to its end, and leave nothing in the file of people whose words were all erased."""
        await self.catch_up_to_end(store)
        await self._run(self._wipe_people)

    async def close(self) -> None:
        def work() -> None:
            if self._opened is not None:
                self._opened.close()

        await self._run(work)

    async def _check_same_log(self, store: Store) -> None:
        """Drop the file if it was derived from another log, for example before a restore."""
        mark = str(await self._run(lambda: self._read_meta("mark", "")))
        if mark:
            session, seq, digest = mark.split(" ")
            try:
                same = (await store.get_entry(session, int(seq))).digest.hex() == digest
            except NotFound:
                same = False
            if not same:
                await self._run(self._recreate)
        self._checked = True

    async def _find_payers(self, store: Store, page: Sequence[Entry]) -> dict[tuple[str, int], str]:
        """Return (session, op) -> the author whose message the operation answers."""
        known = {(entry.session, entry.seq): entry.author for entry in page if entry.kind is EntryKind.HEARD}
        found = {}
        for entry in page:
            if isinstance(entry.body, Began | Took) and entry.body.takes and entry.op is not None:
                place = (entry.session, entry.body.takes[-1])
                author = known.get(place) or (await store.get_entry(*place)).author
                found[entry.session, entry.op] = author
        return found

    async def _list_authors(self, store: Store, session: str) -> set[str]:
        """Return the people of whom a session still has words."""
        heard = await store.list_entries(session, kinds=(EntryKind.HEARD,))
        return {entry.author for entry in heard if entry.body is not None}

    def _add_page(
        self,
        page: Sequence[Entry],
        sessions: dict[str, Session],
        payers: dict[tuple[str, int], str],
        authors: dict[str, set[str]],
    ) -> None:
        with self._db:
            for session in sessions.values():
                self._write_session(session)
            states: dict[str, _NewState] = {}
            for entry in page:
                self._add_entry(entry, sessions[entry.session], payers, states.setdefault(entry.session, _NewState()))
            for id, state in states.items():
                self._write_state(id, state)
            for id, left in authors.items():
                self._db.execute("delete from authors where session = ?", (id,))
                self._write_authors(id, left)
            last = page[-1]
            self._write_meta("mark", f"{last.session} {last.seq} {last.digest.hex()}")
            self._write_meta("pos", str(last.pos))
        if authors:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _write_session(self, session: Session) -> None:
        self._db.execute(
            "insert into sessions (session, agent, platform, title, created, at) values (?, ?, ?, ?, ?, ?) "
            "on conflict (session) do update set title = excluded.title",
            (
                session.id, session.agent, _find_platform(session.address), session.title, session.created,
                session.created,
            ),
        )  # fmt: skip

    def _add_entry(self, entry: Entry, session: Session, payers: dict[tuple[str, int], str], state: _NewState) -> None:
        if entry.kind is not EntryKind.ERASED:
            state.at = max(state.at, entry.at)
        if entry.kind is EntryKind.HEARD and entry.body is not None:
            self._write_authors(entry.session, (entry.author,))
        match entry.body:
            case Began() | Took():
                if entry.op is not None and (payer := payers.get((entry.session, entry.op))):
                    self._db.execute("update sessions set payer = ? where session = ?", (payer, entry.session))
            case Thought(usage=usage, model=model):
                self._add_usage(entry, session, model, usage, state)
            case Compressed(model=model):
                self._db.execute(
                    "update sessions set summary_op = ?, summary_model = ? where session = ?",
                    (entry.op, model, entry.session),
                )
            case Ended():
                self._end_operation(entry, entry.body, session, state)
            case Changed(change=SettingChosen(setting=setting, value=value)) if setting == ARCHIVED_SETTING:
                state.archived = bool(value)
            case _:
                pass

    def _end_operation(self, entry: Entry, ended: Ended, session: Session, state: _NewState) -> None:
        found = self._db.execute(
            "select summary_op, summary_model from sessions where session = ?", (entry.session,)
        ).fetchone()
        if found and found[0] == entry.op:
            self._add_usage(entry, session, str(found[1]), ended.usage, state)
        elif ended.usage.input or ended.outcome in ("failed", "stopped", "interrupted"):  # a command costs nothing
            state.outcome = ended.outcome
            state.turns += 1

    def _add_usage(self, entry: Entry, session: Session, model: str, usage: ModelUsage, state: _NewState) -> None:
        payer = self._db.execute("select payer from sessions where session = ?", (entry.session,)).get
        row = (1, usage.input, usage.cached, usage.output, usage.usd)
        self._db.execute(_ADD_USAGE, (self._get_day(entry.at), session.agent, model, payer or "", *row))
        state.tokens += usage.input + usage.output
        state.usd += usage.usd

    def _write_state(self, id: str, state: _NewState) -> None:
        self._db.execute(
            "update sessions set at = max(at, ?), turns = turns + ?, tokens = tokens + ?, usd = usd + ?, "
            "outcome = coalesce(?, outcome), archived = coalesce(?, archived) where session = ?",
            (state.at, state.turns, state.tokens, state.usd, state.outcome, state.archived, id),
        )

    def _write_authors(self, id: str, authors: Collection[str]) -> None:
        self._db.executemany("insert or ignore into authors values (?, ?)", [(id, author) for author in authors])

    def _wipe_people(self) -> None:
        """Forget who caused costs if nothing that they wrote is left."""
        with self._db:
            gone = "person <> '' and person not in (select author from authors)"
            rows = self._db.execute(f"select * from usage where {gone}").fetchall()  # a constant
            self._db.execute(f"delete from usage where {gone}")
            for day, agent, model, _, *counts in rows:
                self._db.execute(_ADD_USAGE, (day, agent, model, "", *counts))
            self._db.execute("update sessions set payer = '' where payer not in (select author from authors)")
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    # -- reading

    async def list_sessions(self, wanted: SessionFilter) -> list[OverviewRow]:
        """Return sessions, the one with the latest entry first."""
        return await self._run(lambda: self._select_sessions(wanted))

    async def get_rows(self, sessions: Iterable[str]) -> dict[str, OverviewRow]:
        """Return what is known of these sessions."""
        names = msgspec.json.encode(list(sessions)).decode()
        condition = "session in (select value from json_each(?))"
        return {row.session: row for row in await self._run(lambda: self._select_rows(condition, [names], 1_000))}

    async def summarize_usage(
        self, by: Literal["day", "agent", "model", "person"], *, since: str, until: str, agents: tuple[str, ...] = ()
    ) -> list[UsageRow]:
        """Return the use of models from day `since` to day `until`, by one property."""
        only = "" if not agents else " and agent in (select value from json_each(?))"
        given: list[Any] = [since, until, *([msgspec.json.encode(agents).decode()] if agents else [])]

        def read() -> list[UsageRow]:
            found = self._db.execute(
                f"select {by}, sum(calls), sum(input), sum(cached), sum(output), sum(usd) from usage "
                f"where day >= ? and day <= ?{only} group by 1 order by 1",
                given,
            )
            return [
                UsageRow(key=key, calls=calls, input=input, cached=cached, output=output, usd=usd)
                for key, calls, input, cached, output, usd in found
            ]

        return await self._run(read)

    async def find_position(self) -> int:
        """Return the pos up to which the log was read."""
        return int(await self._run(lambda: self._read_meta("pos", "0")))

    def _select_sessions(self, wanted: SessionFilter) -> list[OverviewRow]:
        conditions: list[str] = []
        given: list[Any] = []

        def add(condition: str, *values: Any) -> None:
            conditions.append(condition)
            given.extend(values)

        if wanted.state in ("current", "archived"):
            add("archived = ?", int(wanted.state == "archived"))
        if wanted.state == "failed":
            add("archived = 0 and outcome = 'failed'")
        if wanted.agents:
            add("agent in (select value from json_each(?))", msgspec.json.encode(wanted.agents).decode())
        if wanted.platform:
            add("platform = ?", wanted.platform)
        if wanted.authors is not None:
            add(
                "session in (select session from authors where author in (select value from json_each(?)))",
                msgspec.json.encode(wanted.authors).decode(),
            )
        if wanted.title:
            add(
                r"(title like ? escape '\' or session in (select value from json_each(?)))",
                f"%{_escape_like(wanted.title)}%",
                msgspec.json.encode(wanted.hits).decode(),
            )
        if wanted.before:
            add("(at, session) < (?, ?)", *_parse_cursor(wanted.before))
        return self._select_rows(" and ".join(conditions) or "true", given, wanted.limit)

    def _select_rows(self, condition: str, given: Sequence[Any], limit: int) -> list[OverviewRow]:
        found = self._db.execute(
            "select session, at, title, archived, outcome, turns, tokens, usd from sessions "
            f"where {condition} order by at desc, session desc limit ?",
            [*given, limit],
        )
        return [
            OverviewRow(
                session=session, at=at, title=title, archived=bool(archived), outcome=outcome, turns=turns,
                tokens=tokens, usd=usd,
            )
            for session, at, title, archived, outcome, turns, tokens, usd in found
        ]  # fmt: skip

    # -- the file

    async def _run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread; if the file is damaged, with a new file."""

        def locked() -> T:
            with self._lock:
                try:
                    return work()
                except DAMAGE_ERRORS:
                    self._recreate()
                    return work()

        return await asyncio.to_thread(locked)

    def _recreate(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None
        remove_overview_file(self.path)

    def _open(self) -> apsw.Connection:
        if self.path.exists():
            try:
                db = _connect(self.path)
                if db.execute("select value from meta where key = 'version'").get == VERSION:
                    return db
                db.close()
            except (apsw.SQLError, *DAMAGE_ERRORS):
                pass  # what cannot be read is derived again
            remove_overview_file(self.path)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        db = _connect(self.path)
        with db:
            db.execute(_TABLES)
            db.execute("insert into meta values ('version', ?)", (VERSION,))
        return db

    def _read_meta(self, key: str, default: str) -> str:
        found = self._db.execute("select value from meta where key = ?", (key,)).get
        return default if found is None else str(found)

    def _write_meta(self, key: str, value: str) -> None:
        self._db.execute("insert or replace into meta values (?, ?)", (key, value))


def remove_overview_file(path: Path) -> None:
    """Delete the file with its journal files."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _connect(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    db.set_busy_timeout(BUSY_TIMEOUT_MS)
    db.pragma("secure_delete", "on")
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "normal")
    return db


def _find_platform(address: str) -> str:
    try:
        return parse_address(address).platform
    except InvalidRequest:
        return ""


def _escape_like(text: str) -> str:
    return text.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
