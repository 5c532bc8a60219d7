"""The durable accept of a message, compared with a bare loop that writes the same rows with the same group commit."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import apsw

from bench.in_process import MESSAGE, InProcessGateway, open_store, run_on_gateway_loop, temporary_directory
from bench.table import Row, at_least, interleave, median, ratio
from everhold.core.entries import ChatLocation, Heard, Stamp, encode_body
from everhold.core.ids import make_session_id

CALLERS = {1: 200, 16: 1_600, 64: 4_800}
"""Concurrent callers -> messages of a round."""

ENTRY = (
    "insert into entries(session, seq, kind, op, author, at, version, body, salt, digest, dedup) "
    "values (?, ?, 'heard', null, 'person:ada', ?, 1, ?, ?, ?, ?)"
)
CURSOR = (
    "insert into cursors(session, consumer, processed_seq, since, wait, due, mandatory) "
    "values (?, 'turn', 0, ?, 0, ?, 0) "
    "on conflict(session, consumer) do update set since = excluded.since, wait = 0, due = excluded.due, mandatory = 0 "
    "where cursors.due is null"
)


def accept_rows(rounds: int) -> list[Row]:
    rows = []
    for callers, messages in CALLERS.items():
        found = interleave(
            rounds,
            {"bare": lambda c=callers, n=messages: bare(c, n), "ours": lambda c=callers, n=messages: ours(c, n)},  # type: ignore[misc]
        )
        rows.append(
            at_least(
                f"durable accept, {callers} caller{'s' if callers > 1 else ''}",
                median(found["ours"]),
                "/s",
                0.7,
                beside=f"bare apsw loop {median(found['bare']):,.0f} /s",
                ratio=ratio(found["ours"], found["bare"]),
            )
        )
    return rows


def ours(callers: int, messages: int) -> float:
    """Accepted messages per second."""

    async def run(directory: Path) -> float:
        gateway = InProcessGateway(open_store(directory))

        async def caller(number: int) -> None:
            for _ in range(messages // callers):
                await gateway.accept_message(f"c{number}")

        await asyncio.gather(*(gateway.accept_message(f"c{number}") for number in range(callers)))
        started = time.perf_counter()
        await asyncio.gather(*(caller(number) for number in range(callers)))
        took = time.perf_counter() - started
        await gateway.store.close()
        return messages // callers * callers / took

    with temporary_directory() as directory:
        return run_on_gateway_loop(run(directory))


def bare(callers: int, messages: int) -> float:
    """Messages per second of a thread that only writes."""

    async def run(directory: Path) -> float:
        await open_store(directory).close()
        loop = asyncio.get_running_loop()
        writer = BareWriter(directory / "log.db", loop)

        async def caller(number: int, count: int) -> None:
            for _ in range(count):
                await writer.write(f"c{number}")

        await asyncio.gather(*(caller(number, 1) for number in range(callers)))
        started = time.perf_counter()
        await asyncio.gather(*(caller(number, messages // callers) for number in range(callers)))
        took = time.perf_counter() - started
        writer.close()
        return messages // callers * callers / took

    with temporary_directory() as directory:
        return run_on_gateway_loop(run(directory))


class BareWriter:
    """Writes prepared rows without any checks, one commit for all that are queued: the lower bound of the cost."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.db = apsw.Connection(str(path))
        self.db.pragma("synchronous", "FULL")
        self.db.pragma("cache_size", -16_384)
        self.queue: SimpleQueue[tuple[str, asyncio.Future[None]] | None] = SimpleQueue()
        self.sessions: dict[str, str] = {}
        self.seqs: dict[str, int] = {}
        self.count = 0
        self.name = os.urandom(4).hex()
        stamp = Stamp(person="ada", audience=("person:ada",), address="agent:main:table:dm:c0")
        origin = ChatLocation(platform="table", account="main", chat="c0", message="12345-12345")
        self.body = encode_body(Heard(origin=origin, text=MESSAGE, stamp=stamp, speaker="ada"))
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    async def write(self, chat: str) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        self.queue.put((chat, future))
        await future

    def close(self) -> None:
        self.queue.put(None)
        self.thread.join()
        self.db.close()

    def _work(self) -> None:
        cursor = self.db.cursor()
        while (first := self.queue.get()) is not None:
            batch = [first]
            while len(batch) < 256 and not self.queue.empty():
                following = self.queue.get()
                assert following is not None
                batch.append(following)
            cursor.execute("begin immediate")
            for chat, _ in batch:
                self._insert(cursor, chat)
            cursor.execute("commit")
            self.loop.call_soon_threadsafe(_resolve, [future for _, future in batch])

    def _insert(self, cursor: apsw.Cursor, chat: str) -> None:
        now = time.time()
        session = self.sessions.get(chat)
        if session is None:
            session = self.sessions[chat] = make_session_id(now, os.urandom(10))
            address = f"agent:main:table:dm:{chat}"
            cursor.execute(
                "insert into sessions(id, agent, address, created) values (?, 'main', ?, ?)", (session, address, now)
            )
            cursor.execute("insert into bindings(address, session) values (?, ?)", (address, session))
        seq = self.seqs[session] = self.seqs.get(session, 0) + 1
        self.count += 1
        cursor.execute("update sessions set next_seq = ? where id = ?", (seq + 1, session))
        dedup = f'["table","main","{chat}","{self.name}-{self.count}","message",""]'
        cursor.execute(ENTRY, (session, seq, now, self.body, b"0" * 16, b"0" * 32, dedup))
        cursor.execute("insert into pending(session, seq, asks) values (?, ?, 1)", (session, seq))
        cursor.execute(CURSOR, (session, now, now))


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)
