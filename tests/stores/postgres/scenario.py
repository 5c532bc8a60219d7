"""What the tests of the PostgreSQL store share: hosts on one database, and a connection that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from everhold.core.entries import EntryDraft, EntryKind, Heard
from everhold.ports.store import Change, CommitResult, SessionOpening, Step, Wakeup
from everhold.stores.postgres import PostgresStore
from everhold.testing.contracts.store_scenario import make_heard
from everhold.testing.seeded_random import SeededRandom

_seeds = itertools.count()


@asynccontextmanager
async def open_hosts(url: str, count: int = 1, **options: Any) -> AsyncIterator[list[PostgresStore]]:
    """Open several stores on one database, as several hosts do."""
    hosts: list[PostgresStore] = []
    try:
        for _ in range(count):
            hosts.append(await PostgresStore.open(url, chance=SeededRandom(next(_seeds)), **options))
        yield hosts
    finally:
        for host in hosts:
            await host.close()


async def open_session(store: PostgresStore, session: str) -> CommitResult:
    opens = SessionOpening(agent="main", address=f"test:{session}")
    return await store.commit(Change(step=Step.ACCEPT, session=session, at=0.0, opens=opens))


def make_message(
    session: str, text: str, *, dedup: str | None = None, wake: str = "", durable: bool = True, **rest: Any
) -> Change:
    draft = EntryDraft(body=make_heard(text), author="person:ada", dedup=dedup)
    wakeups = (Wakeup(consumer=wake),) if wake else ()
    return Change(step=Step.ACCEPT, session=session, at=1.0, entries=(draft,), wakeups=wakeups, durable=durable, **rest)


async def read_texts(store: PostgresStore, session: str) -> list[str]:
    """Return the messages of a session."""
    found = await store.list_entries(session, kinds=(EntryKind.HEARD,))
    return [entry.body.text for entry in found if isinstance(entry.body, Heard)]


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(url, autocommit=True)


def fetch_value(url: str, sql: str) -> Any:
    with connect(url) as connection:
        row = connection.execute(sql).fetchone()
        return None if row is None else row[0]


class CuttingProxy:
    """Passes bytes between a store and the server. It can lose a commit on the way, or its answer."""

    def __init__(self, url: str) -> None:
        values = psycopg.conninfo.conninfo_to_dict(url)
        self._server = f"{values['host']}/.s.PGSQL.5432"
        self.home = Path(tempfile.mkdtemp(prefix="everhold-px-"))
        self.url = f"postgresql://postgres@/{values['dbname']}?host={self.home}"
        self.cut = ""
        """`before`: the next commit does not reach the server. `after`: its answer does not reach the store."""
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> CuttingProxy:
        self._listener = await asyncio.start_unix_server(self._serve, self.home / ".s.PGSQL.5432")
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self.home, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_unix_connection(self._server)
        answers = asyncio.create_task(_pump(server_reader, writer))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self.cut and b"commit\x00" in data:
                    cut, self.cut = self.cut, ""
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    if cut == "after":
                        server_writer.write(data)
                        await server_writer.drain()
                        await server_reader.read(1)  # the server has answered
                    break
                server_writer.write(data)
                await server_writer.drain()
        answers.cancel()
        server_writer.close()
        writer.close()
        self._tasks.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
