"""Hosts on one PostgreSQL store: four beside one, what hints cost, and how soon another host begins.

Run as a program, it is one host: it reads its orders from its input, and answers with lines of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import psycopg

from bench import postgres
from bench.in_process import InProcessGateway, InstantModel, SystemRandom, run_on_gateway_loop
from bench.table import Row, at_least, at_most, interleave, median, ratio
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.stores.postgres import PostgresStore
from everhold.stores.postgres.shared_store import SharedPostgresStore, open_shared_store
from everhold.testing.postgres_server import DURABLE_SETTINGS, PostgresTestServer, run_postgres_server

HOSTS: Final = 4
SESSIONS: Final = 32
SECONDS: Final = 6.0
CONNECTIONS: Final = 8
WAKES: Final = 60
TURNS: Final = 30
IDLE_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.5


def postgres_hosts_rows(rounds: int) -> list[Row]:
    with run_postgres_server(DURABLE_SETTINGS) as server:
        return [
            *_sizing_rows(server),
            *_scaling_rows(server, rounds),
            *_hint_rows(server, rounds),
            *_waking_rows(server),
        ]


# -- what one turn needs -----------------------------------------------------------------------------------------------


def _sizing_rows(server: PostgresTestServer) -> list[Row]:
    """Rows without a target, for docs/explanation/sizing.md."""
    found = run_on_gateway_loop(_measure_turn(server))
    units = {"CPU of the host": "ms", "CPU of the server": "ms", "growth of the database": "bytes"}
    rows = [
        Row(what=f"a whole turn on PostgreSQL, {SESSIONS} sessions, {what}", value=found[what], unit=unit)
        for what, unit in {**units, "write-ahead log": "bytes"}.items()
    ]
    idle = _measure_idle(server)
    return [*rows, Row(what="a host without work, CPU of the server in an hour", value=idle, unit="s")]


async def _measure_turn(server: PostgresTestServer) -> dict[str, float]:
    with server.lend_store_database() as url, psycopg.connect(url, autocommit=True) as connection:
        chats = [f"chat {number}" for number in range(SESSIONS)]
        async with _open_gateway(url) as gateway:
            for _ in range(2):
                await asyncio.gather(*(gateway.turn(chat) for chat in chats))
            await gateway.wait_until_idle()
            size, wal = _read_sizes(connection)
            here, there = time.process_time(), postgres.read_server_seconds(server)
            for _ in range(TURNS):
                await asyncio.gather(*(gateway.turn(chat) for chat in chats))
            await gateway.wait_until_idle()
            count = TURNS * SESSIONS
            new_size, new_wal = _read_sizes(connection)
            return {
                "CPU of the host": (time.process_time() - here) / count * 1e3,
                "CPU of the server": (postgres.read_server_seconds(server) - there) / count * 1e3,
                "growth of the database": (new_size - size) / count,
                "write-ahead log": (new_wal - wal) / count,
            }


def _read_sizes(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    row = connection.execute(
        "select pg_database_size(current_database()), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _measure_idle(server: PostgresTestServer) -> float:
    with server.lend_store_database() as url, _run_host(url, 0, 1) as host:
        _ask(host, "ready")
        began, before = time.monotonic(), postgres.read_server_seconds(server)
        time.sleep(IDLE_SECONDS)
        return (postgres.read_server_seconds(server) - before) / (time.monotonic() - began) * 3_600


# -- four hosts beside one ---------------------------------------------------------------------------------------------


def _scaling_rows(server: PostgresTestServer, rounds: int) -> list[Row]:
    found = interleave(rounds, {"four": lambda: _play_hosts(server, HOSTS), "one": lambda: _play_hosts(server, 1)})
    return [
        at_least(
            f"whole turns of {HOSTS} hosts on PostgreSQL",
            median(found["four"]),
            "turns/s",
            1.6,
            beside=f"one host: {median(found['one']):,.0f}/s",
            ratio=ratio(found["four"], found["one"]),
        )
    ]


def _play_hosts(server: PostgresTestServer, count: int) -> float:
    """Turns per second of so many hosts, which share the same number of sessions."""
    with server.lend_store_database() as url, contextlib.ExitStack() as opened:
        hosts = [opened.enter_context(_run_host(url, number, SESSIONS // count)) for number in range(count)]
        for host in hosts:
            _ask(host, "ready")
        for host in hosts:
            _tell(host, "play")
        return float(sum(_read(host)["turns"] for host in hosts)) / SECONDS


@contextlib.contextmanager
def _run_host(url: str, number: int, sessions: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.postgres_hosts", url, str(number), str(sessions)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        yield host
        _tell(host, "end")
        host.wait(60)


def _tell(host: subprocess.Popen[str], order: str) -> None:
    assert host.stdin is not None
    host.stdin.write(f"{order}\n")
    host.stdin.flush()


def _read(host: subprocess.Popen[str]) -> dict[str, Any]:
    assert host.stdout is not None
    found: dict[str, Any] = json.loads(host.stdout.readline())
    return found


def _ask(host: subprocess.Popen[str], order: str) -> dict[str, Any]:
    _tell(host, order)
    return _read(host)


def main() -> None:
    url, number, sessions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    run_on_gateway_loop(_serve(url, [f"h{number}-{session}" for session in range(sessions)]))


async def _serve(url: str, chats: list[str]) -> None:
    async with _open_gateway(url) as gateway:
        await asyncio.gather(*(gateway.turn(chat) for chat in chats))
        while (order := (await asyncio.to_thread(sys.stdin.readline)).strip()) not in ("", "end"):
            turns = await _play(gateway, chats) if order == "play" else 0
            sys.stdout.write(json.dumps({"turns": turns}) + "\n")
            sys.stdout.flush()


async def _play(gateway: InProcessGateway, chats: list[str]) -> int:
    ends = time.perf_counter() + SECONDS
    turns = 0

    async def talk(chat: str) -> None:
        nonlocal turns
        while time.perf_counter() < ends:
            await gateway.turn(chat)
            turns += 1

    await asyncio.gather(*(talk(chat) for chat in chats))
    return turns


@contextlib.asynccontextmanager
async def _open_gateway(url: str) -> AsyncIterator[InProcessGateway]:
    store = await open_shared_store(url, connections=CONNECTIONS, chance=SystemRandom())
    async with InProcessGateway(store).open() as gateway:
        yield gateway


# -- hints -------------------------------------------------------------------------------------------------------------


def _hint_rows(server: PostgresTestServer, rounds: int) -> list[Row]:
    found = interleave(
        rounds,
        {"with": lambda: asyncio.run(_spend(server, hints=True)), "without": lambda: asyncio.run(_spend(server))},
    )
    return [
        at_most(
            "CPU of a turn's store calls, here and in the server, with hints for another host",
            median(found["with"]),
            "ms",
            1.15,
            beside=f"without: {median(found['without']):.2f} ms",
            ratio=ratio(found["with"], found["without"]),
        )
    ]


async def _spend(server: PostgresTestServer, *, hints: bool = False) -> float:
    """CPU milliseconds of a turn: of this process, in which both hosts are, and of the server."""
    with server.lend_store_database() as url:
        await postgres.open_sessions(url, SESSIONS)
        one, other = [await PostgresStore.open(url, chance=SystemRandom()) for _ in range(2)]
        if hints:
            await _introduce(one, other)
        await asyncio.gather(*(postgres.play_turn(one, number) for number in range(SESSIONS)))
        here, there = time.process_time(), postgres.read_server_seconds(server)
        turns = 60

        async def talk(number: int) -> None:
            for _ in range(turns):
                await postgres.play_turn(one, number)

        await asyncio.gather(*(talk(number) for number in range(SESSIONS)))
        spent = time.process_time() - here + postgres.read_server_seconds(server) - there
        await one.close()
        await other.close()
        return spent / (turns * SESSIONS) * 1e3


async def _introduce(one: PostgresStore, other: PostgresStore) -> None:
    """Let two hosts know each other."""
    for store in (one, other):
        store.notifier.subscribe(lambda hint: None)
    while not (one.notifier.has_peers and other.notifier.has_peers):  # noqa: ASYNC110 - it reports nothing
        await asyncio.sleep(0.01)


# -- waking ------------------------------------------------------------------------------------------------------------


def _waking_rows(server: PostgresTestServer) -> list[Row]:
    told, polled = (run_on_gateway_loop(_measure_waking(server, hints=hints)) for hints in (True, False))
    return [
        at_most("another host begins a turn, 95 of 100, with hints", _find_p95(told), "ms", 100.0),
        at_most(
            f"the same by polling every {POLL_SECONDS:g} s alone",
            _find_p95(polled),
            "ms",
            POLL_SECONDS * 1e3 + 50.0,
        ),
    ]


def _find_p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


class NoticingModel(InstantModel):
    """Notes when it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: asyncio.Queue[float] = asyncio.Queue()

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        self.asked.put_nowait(time.perf_counter())
        return await super().answer(request, on_text=on_text)


async def _measure_waking(server: PostgresTestServer, *, hints: bool) -> list[float]:
    """Milliseconds from the commit of a message at one host to the first request of its turn at another one."""
    with server.lend_store_database() as url:
        await postgres.open_sessions(url, SESSIONS)
        accepting = await PostgresStore.open(url, chance=SystemRandom())
        store: SharedPostgresStore = await open_shared_store(url, connections=CONNECTIONS, chance=SystemRandom())
        model = NoticingModel()
        gateway = InProcessGateway(store, model=model)
        gateway.supervisor.poll_seconds = POLL_SECONDS
        found = []
        async with gateway.open():
            if hints:
                store.notifier.subscribe(gateway.wakeups.on_commit)
                await _introduce(accepting, store)
            for number in range(WAKES):
                await asyncio.sleep(0.037 * (number % 20))  # so that it meets every moment between two polls
                await accepting.commit(postgres.make_message(number % SESSIONS))
                committed = time.perf_counter()
                found.append((await model.asked.get() - committed) * 1e3)
                await gateway.wait_until_idle()
        await accepting.close()
        return found


if __name__ == "__main__":
    main()
