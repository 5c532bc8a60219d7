"""The store on PostgreSQL: accepting beside pgbench, the CPU of a turn's store calls, and claims among many."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import psycopg

from bench.in_process import SystemRandom
from bench.table import Row, at_least, at_most, interleave, median, ratio
from everhold.core.entries import Began, ChatLocation, Ended, EntryDraft, Heard, Said, Thought
from everhold.ports.store import Change, Claim, CursorUpdate, SessionOpening, Step, Wakeup
from everhold.stores.postgres import PostgresStore
from everhold.testing.postgres_server import DURABLE_SETTINGS, PostgresTestServer, run_postgres_server

CALLERS = 64
SESSIONS = 32
CLAIMED = 64
DUE = 100_000
MESSAGE = "What about the other one? " + "I have thought about it for a while and came to no conclusion. " * 4
SCRIPT = r"""
\set s random(1, 64)
begin;
select next_seq from plain_sessions where id = 's' || :s for update;
insert into plain_entries(session, body, dedup) values ('s' || :s, repeat('x', 400), gen_random_uuid()::text);
insert into plain_pending(session, seq) values ('s' || :s, nextval('plain_seq'));
update plain_sessions set next_seq = next_seq + 1 where id = 's' || :s;
update plain_cursors set due = extract(epoch from now()) where session = 's' || :s;
commit;
"""
"""The same rows in five statements. It checks nothing, and its cursors have one index."""
PLAIN_TABLES = """
create table plain_sessions(id text primary key, next_seq bigint not null);
create table plain_entries(pos bigint generated always as identity primary key, session text not null, body text,
  dedup text unique);
create table plain_pending(session text, seq bigint, primary key (session, seq));
create table plain_cursors(session text primary key, due double precision);
create index on plain_cursors(due);
create sequence plain_seq;
insert into plain_sessions select 's' || n, 1 from generate_series(1, 64) n;
insert into plain_cursors select 's' || n, 0 from generate_series(1, 64) n;
"""


def postgres_rows(rounds: int) -> list[Row]:
    with run_postgres_server(DURABLE_SETTINGS) as server:
        return [*_accept_rows(server, rounds), *_turn_rows(server, rounds), *_claim_rows(server, rounds)]


# -- accept ------------------------------------------------------------------------------------------------------------


def _accept_rows(server: PostgresTestServer, rounds: int) -> list[Row]:
    with server.lend_store_database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(PLAIN_TABLES)
        asyncio.run(open_sessions(url, CALLERS))
        found = interleave(
            rounds,
            {"everhold": lambda: asyncio.run(_accept(url)), "pgbench": lambda: _run_pgbench(server, url)},
        )
    return [
        at_least(
            f"accept on PostgreSQL, {CALLERS} callers",
            median(found["everhold"]),
            "messages/s",
            1.5,
            beside=f"pgbench, five statements: {median(found['pgbench']):,.0f}/s",
            ratio=ratio(found["everhold"], found["pgbench"]),
        )
    ]


async def open_sessions(url: str, count: int) -> None:
    store = await PostgresStore.open(url, chance=SystemRandom())
    for number in range(count):
        opens = SessionOpening(agent="main", address=f"bench:{number}")
        await store.commit(Change(step=Step.ACCEPT, session=f"s{number}", at=0.0, opens=opens))
    await store.close()


async def _accept(url: str, *, seconds: float = 4.0) -> float:
    """Messages per second."""
    store = await PostgresStore.open(url, chance=SystemRandom())
    done = 0
    ends = time.perf_counter() + seconds

    async def call(number: int) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await store.commit(make_message(number))
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    spent = time.perf_counter() - started
    await store.close()
    return done / spent


def make_message(number: int, *, owner: str = "") -> Change:
    heard = Heard(origin=ChatLocation(platform="bench", chat=str(number)), text=MESSAGE)
    draft = EntryDraft(body=heard, author="person:p", dedup=os.urandom(8).hex())
    wakeup = Wakeup(consumer="turn", owner=owner, lease=60.0)
    return Change(
        step=Step.ACCEPT,
        session=f"s{number}",
        at=time.time(),
        entries=(draft,),
        bound=(f"bench:{number}", ""),
        wakeups=(wakeup,),
    )


def _run_pgbench(server: PostgresTestServer, url: str, *, seconds: int = 4) -> float:
    script = Path(server.home) / "accept.sql"
    if not script.exists():
        script.write_text(SCRIPT)
        script.chmod(0o644)
    database = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    said = server.run_program(
        "pgbench", "-n", "-h", str(server.home), "-U", "postgres", "-M", "prepared", "-c", str(CALLERS), "-j", "2",
        "-T", str(seconds), "-f", str(script), str(database),
    )  # fmt: skip
    (line,) = [line for line in said.splitlines() if line.startswith("tps = ")]
    return float(line.split()[2])


# -- a turn's store calls ----------------------------------------------------------------------------------------------


def _turn_rows(server: PostgresTestServer, rounds: int) -> list[Row]:
    client, remote, trips = [], [], []
    for _ in range(rounds):
        with server.lend_store_database() as url:
            asyncio.run(open_sessions(url, SESSIONS))
            one, other, count = asyncio.run(_turn(server, url))
            client.append(one)
            remote.append(other)
            trips.append(count)
    return [
        at_most(f"store calls of a turn on PostgreSQL, {SESSIONS} sessions, CPU here", median(client), "ms", 0.15),
        at_most("the same, CPU of the server", median(remote), "ms", 0.6),
        at_most("the same, round trips of commits and reads together, per turn", median(trips), "", 7),
    ]


async def _turn(server: PostgresTestServer, url: str, *, turns: int = 60) -> tuple[float, float, float]:
    """CPU milliseconds of a turn here and in the server, and round trips of a turn."""
    store = await PostgresStore.open(url, chance=SystemRandom())
    await asyncio.gather(*(play_turn(store, number) for number in range(SESSIONS) for _ in range(1)))
    here, there = time.process_time(), read_server_seconds(server)
    trips = store.count_round_trips()

    async def talk(number: int) -> None:
        for _ in range(turns):
            await play_turn(store, number)

    await asyncio.gather(*(talk(number) for number in range(SESSIONS)))
    count = turns * SESSIONS
    found = (
        (time.process_time() - here) / count * 1e3,
        (read_server_seconds(server) - there) / count * 1e3,
        (store.count_round_trips() - trips) / count,
    )
    await store.close()
    return found


async def play_turn(store: PostgresStore, number: int) -> None:
    """The store calls of a plain turn: accept with the claim, snapshot, begin, answer with the end and the release."""
    (claim,) = (await store.commit(make_message(number, owner="me"))).claims
    session = claim.session
    snapshot = await store.get_session_snapshot(session)
    takes = tuple(entry.seq for entry in snapshot.pending)
    body = Began(type="turn", takes=takes, consumer="turn")
    begun = await store.commit(_make_change(Step.BEGIN, claim, EntryDraft(body=body, author="agent:main")))
    op = begun.seqs[0]
    said = Said(text=MESSAGE, to=ChatLocation(platform="bench"))
    drafts = [EntryDraft(body=one, author="agent:main", op=op) for one in (Thought(text="x"), said, Ended())]
    done = CursorUpdate(processed_seq=op, attempts=0, error="", idle_at=op, release=True)
    await store.commit(_make_change(Step.END, claim, *drafts, op=op, cursor=done))


def _make_change(
    step: Step, claim: Claim, *drafts: EntryDraft, op: int | None = None, cursor: CursorUpdate | None = None
) -> Change:
    return Change(step=step, session=claim.session, at=time.time(), entries=drafts, claim=claim, op=op, cursor=cursor)


def read_server_seconds(server: PostgresTestServer) -> float:
    """CPU seconds of the server and all its processes, also of those that have ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid, parent = int(path.parent.name), int(fields[1])
        if parent == server.pid:
            ticks += int(fields[11]) + int(fields[12])
        elif pid == server.pid:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


# -- claims ------------------------------------------------------------------------------------------------------------


def _claim_rows(server: PostgresTestServer, rounds: int) -> list[Row]:
    with server.lend_store_database() as url:
        found = asyncio.run(_claim(url, max(20, 4 * rounds)))
    return [at_most(f"claim {CLAIMED} of {DUE:,} due cursors on PostgreSQL, elapsed", median(found), "ms", 10.0)]


async def _claim(url: str, times: int) -> list[float]:
    """Elapsed milliseconds. The store has run on empty tables before, and nothing analyzes them."""
    store = await PostgresStore.open(url, chance=SystemRandom())
    for _ in range(8):
        assert await store.claim_cursors(owner="me", lease=60.0, limit=CLAIMED) == []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into sessions(id, agent, address, created) "
            f"select 's' || n, 'main', 's' || n, 0 from generate_series(1, {DUE}) n"
        )
        connection.execute(
            "insert into cursors(session, consumer, since, due) "
            f"select 's' || n, name, 1, 1 from generate_series(1, {DUE}) n, unnest(array['turn', 'platform:a:b']) name"
        )
    found = []
    for _ in range(times):
        started = time.perf_counter()
        claims = await store.claim_cursors(owner="me", lease=60.0, limit=CLAIMED)
        found.append((time.perf_counter() - started) * 1e3)
        assert len(claims) == CLAIMED
    await store.close()
    return found
