"""`everhold up` in its own process: the cost of a turn over HTTP, of starting, and of idling."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from bench.accept import BareWriter
from bench.history import ENTRIES_PER_TURN, SessionHistory
from bench.in_process import MESSAGE, InProcessGateway, SystemRandom, open_store, temporary_directory
from bench.peers import install
from bench.table import Row, at_least, at_most, interleave, median, ratio
from everhold.infra.home import Home
from everhold.memories.builtin import MemoryIndex
from everhold.stores.sqlite import SqliteStore

HERE = Path(__file__).parent
SIZES = (10, 4_500, 100_000)
"""Entries of the measured session."""
LIMIT_MS = 3.0
FLAT = 1.2
FEWER = 30
TURNS = 60
COMPRESSION_TURNS = 40
WINDOW_TOKENS = 12_000
"""A window that fills up within a round, so that compressions are part of what is measured."""
BUSY = 32
BUSY_TURNS = 6
RECALLED = (10, 4_500)
HERMES = {10: 6, 4_500: 2}
"""Messages already in hermes-agent's session -> turns of a round."""
CONCURRENT_SESSIONS = 100
EACH = 3
"""Messages that each concurrent caller sends in a round, one after another."""
PROCESS_CPU_CLOCK = 2
"""Linux makes the clock of another process from its id and this kind."""
CONFIG = """\
models:
  instant: {{provider: openai, base_url: "{url}", name: instant, context_tokens: {window}}}
defaults: {{recall: {{deadline_seconds: {recall}}}}}
"""
HIGH_QUOTAS = {subject: {"messages_per_minute": 1_000_000} for subject in ("member", "chat", "account")}
"""Quotas that a measurement does not reach. They are counted all the same."""
TOKEN = "benchmark-operator-token-0123456789abcdef"
CREDENTIAL = f"Bearer {TOKEN}"
RECALL_SECONDS = 0.8
"""The default."""


TEAM = "agents:\n" + "".join(f"  agent{number}: {{persona: You are number {number}.}}\n" for number in range(13))

# -- processes ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def model(stream_seconds: float = 0.0) -> Iterator[str]:
    """Start a model server in its own process; yield its URL. It answers immediately, or streams for some seconds."""
    command = [sys.executable, str(HERE / "model_stub.py"), str(stream_seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()


class Gateway:
    """`everhold up` on a home, running until `close`."""

    def __init__(
        self, directory: Path, *, config: str, program: str = "everhold", environ: Mapping[str, str] | None = None
    ) -> None:
        home = Home(directory).create()
        home.config.write_text(config)
        home.config.chmod(0o600)
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", program, "--home", directory, "up", "--port", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**_plain_environment(), "EVERHOLD_OPERATOR_TOKEN": TOKEN, **(environ or {})},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready_seconds = time.perf_counter() - started
        assert line.startswith("ready"), line
        self.port = int(line.rstrip().rpartition(":")[2])

    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)

    def resident_mb(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process with all its threads, in nanoseconds, as Linux counts it."""
    return time.clock_gettime((~pid << 3) | PROCESS_CPU_CLOCK)


class Chat:
    """One person with one conversation, who posts messages and reads the event stream for the reply."""

    def __init__(self, port: int, chat: str, credential: str = CREDENTIAL) -> None:
        self.chat = chat
        self.credential = credential
        self.post = http.client.HTTPConnection("127.0.0.1", port)
        self.events = socket.create_connection(("127.0.0.1", port))
        self.events.sendall(render_stream_request(port, credential))
        self.stream: IO[bytes] = self.events.makefile("rb")
        self._until(b"event: hello")

    def turn(self) -> None:
        send(self.post, self.chat, self.credential)
        self._until(b'"kind":"said"')

    def close(self) -> None:
        self.stream.close()
        self.events.close()
        self.post.close()

    def _until(self, mark: bytes) -> None:
        while mark not in (line := self.stream.readline()):
            assert line, "the gateway closed the connection"


def render_stream_request(port: int, credential: str = CREDENTIAL) -> bytes:
    head = f"GET /api/events HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: {credential}\r\n\r\n"
    return head.encode()


def send(connection: http.client.HTTPConnection, chat: str, credential: str = CREDENTIAL) -> None:
    body = json.dumps({"chat": chat, "text": MESSAGE})
    connection.request("POST", "/api/messages", body, {"content-type": "application/json", "authorization": credential})
    response = connection.getresponse()
    said = response.read()
    assert response.status == 202, (response.status, said)


# -- a turn ------------------------------------------------------------------------------------------------------------


class Ours:
    """A gateway whose session `old` has a number of entries."""

    def __init__(self, directory: Path, entries: int, url: str, *, recall: float = 0) -> None:
        asyncio.run(_age(Home(directory).create(), entries))
        self.gateway = Gateway(directory, config=CONFIG.format(url=url, window=WINDOW_TOKENS, recall=recall))
        self.chat = Chat(self.gateway.port, "old")
        for _ in range(COMPRESSION_TURNS):  # fill all caches
            self.chat.turn()

    def round(self) -> float:
        """CPU milliseconds of one turn, with all background work."""
        self.hang_up()  # the gateway closes a connection that is idle during the other rounds
        started = self.gateway.cpu()
        for _ in range(TURNS):
            self.turn()
        time.sleep(0.1)  # what follows a reply is part of its turn
        return (self.gateway.cpu() - started) / TURNS * 1e3

    def turn(self) -> None:
        self.chat.turn()

    def hang_up(self) -> None:
        self.chat.post.close()

    def close(self) -> None:
        self.chat.close()
        self.gateway.close()


class Asked(Ours):
    """The same through `/v1/chat/completions`, where the response is the reply and no client reads the event stream."""

    def __init__(self, directory: Path, entries: int, url: str) -> None:
        asyncio.run(_age(Home(directory).create(), entries))
        self.gateway = Gateway(directory, config=CONFIG.format(url=url, window=WINDOW_TOKENS, recall=0))
        self.line = http.client.HTTPConnection("127.0.0.1", self.gateway.port)
        for _ in range(COMPRESSION_TURNS):
            self.turn()

    def turn(self) -> None:
        body = json.dumps({"model": "main", "messages": [{"role": "user", "content": MESSAGE}]})
        headers = {"content-type": "application/json", "x-everhold-session": "old", "authorization": CREDENTIAL}
        self.line.request("POST", "/v1/chat/completions", body, headers)
        response = self.line.getresponse()
        said = response.read()
        assert response.status == 200, (response.status, said)

    def hang_up(self) -> None:
        self.line.close()

    def close(self) -> None:
        self.hang_up()
        self.gateway.close()


async def _age(home: Home, entries: int) -> None:
    """Write a session's history, compressed and indexed."""
    store = SqliteStore.open(home.store, chance=SystemRandom(), synchronous="OFF")
    me = getpass.getuser()
    history = SessionHistory(
        store, "s-old", compress_every_turns=COMPRESSION_TURNS, platform="http", account="", person=me
    )
    await history.live(entries // ENTRIES_PER_TURN)
    index = MemoryIndex(home.index)
    while await index.catch_up(store):
        pass
    await index.close()
    await store.close()


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("EVERHOLD")}


class Busy:
    """A gateway with many concurrent sessions, so that it is never idle."""

    def __init__(self, directory: Path, url: str) -> None:
        self.gateway = Gateway(directory, config=CONFIG.format(url=url, window=WINDOW_TOKENS, recall=0))

    def round(self) -> float:
        """CPU milliseconds of one turn."""
        callers = ConcurrentCallers(self.gateway.port, BUSY)
        callers.talk(2)
        started = self.gateway.cpu()
        callers.talk(BUSY_TURNS)
        spent = self.gateway.cpu() - started
        callers.close()
        return spent / (BUSY * BUSY_TURNS) * 1e3

    def close(self) -> None:
        self.gateway.close()


def cold() -> tuple[float, float]:
    """CPU microseconds of a small piece of work, repeated without pause and repeated after a sleep of 2 ms.

    Other processes on the machine make the second number larger, because they fill the CPU caches during a sleep. A
    turn sleeps a dozen times, so this number is needed to interpret the turn's cost.
    """

    def work() -> None:
        for number in range(40):
            json.loads(json.dumps({"number": number, "text": [str(number), {"more": number * 2}]}))

    def spent(pause: float) -> float:
        started = time.process_time()
        for _ in range(200):
            work()
            if pause:
                time.sleep(pause)
        return (time.process_time() - started) / 200 * 1e6

    return spent(0.0), spent(0.002)


class Hermes:
    """hermes-agent's gateway with a session of `size` messages, in its own process."""

    def __init__(self, directory: Path, size: int, url: str, *, turns: int) -> None:
        self.process = subprocess.Popen(
            [hermes_python(), "-P", HERE / "peer_hermes.py", directory, str(size), url, str(turns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def round(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._read()[0]

    def close(self) -> None:
        self.process.communicate("", timeout=30)

    def _read(self) -> list[float]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("["):  # it prints other lines too
                told: list[float] = json.loads(line)
                return told
        raise RuntimeError(f"hermes-agent ended unexpectedly: {self.process.args!r}")


def hermes_python() -> Path:
    return install(HERE / ".venv-hermes", ("hermes-agent==0.19.0",))


def gateway_rows(rounds: int) -> list[Row]:
    with model() as url, contextlib.ExitStack() as open_:

        def ours(size: int, *, recall: float = 0) -> Callable[[], float]:
            side = Ours(open_.enter_context(temporary_directory()), size, url, recall=recall)
            open_.callback(side.close)
            return side.round

        def hermes(size: int, turns: int) -> Callable[[], float]:
            peer = Hermes(open_.enter_context(temporary_directory()), size, url, turns=turns)
            open_.callback(peer.close)
            return peer.round

        asked = Asked(open_.enter_context(temporary_directory()), SIZES[0], url)
        open_.callback(asked.close)
        works = {"asked": asked.round} | {f"ours {size}": ours(size) for size in SIZES}
        busy = Busy(open_.enter_context(temporary_directory()), url)
        open_.callback(busy.close)
        works |= {"busy": busy.round}
        works |= {f"recalling {size}": ours(size, recall=RECALL_SECONDS) for size in RECALLED}
        works |= {f"hermes {size}": hermes(size, turns) for size, turns in HERMES.items()}
        found = interleave(rounds, works)
    young, his = found[f"ours {SIZES[0]}"], found[f"hermes {SIZES[0]}"]
    beside = f"hermes-agent 0.19.0, {SIZES[0]:,} messages {median(his):,.0f} ms"
    mine = found["asked"]
    rows = [
        at_most("turn over HTTP, one question and its answer, CPU", median(mine), "ms", LIMIT_MS),
        at_least("the same", median(mine), "ms", FEWER, beside=beside, ratio=ratio(his, mine)),
    ]
    for size in SIZES:
        mine = found[f"ours {size}"]
        what = f"turn over HTTP, posted and watched, {size:,} entries in the session, CPU"
        rows.append(at_most(what, median(mine), "ms", LIMIT_MS))
        if size != SIZES[0]:
            beside = f"{SIZES[0]} entries in the session {median(young):.2f} ms"
            rows.append(at_most("the same", median(mine), "ms", FLAT, beside=beside, ratio=ratio(mine, young)))
        if size in HERMES:
            his = found[f"hermes {size}"]
            beside = f"hermes-agent 0.19.0, {size:,} messages {median(his):,.0f} ms"
            share = ratio(his, mine)
            rows.append(at_least("the same", median(mine), "ms", FEWER, beside=beside, ratio=share))
    his = found[f"hermes {SIZES[0]}"]
    what = f"turn over HTTP, {BUSY} sessions at once, CPU"
    beside = f"hermes-agent 0.19.0, one session {median(his):,.0f} ms"
    rows.append(at_most(what, median(found["busy"]), "ms", LIMIT_MS))
    share = ratio(his, found["busy"])
    rows.append(at_least("the same", median(found["busy"]), "ms", FEWER, beside=beside, ratio=share))
    for size in RECALLED:
        mine = found[f"recalling {size}"]
        beside = f"without recall {median(found[f'ours {size}']):.2f} ms"
        share = ratio(mine, found[f"ours {size}"])
        what = f"turn over HTTP that recalls, {size:,} entries in the session, CPU"
        rows.append(Row(what=what, value=median(mine), unit="ms", beside=beside, ratio=share))
    hot, after = map(median, zip(*(cold() for _ in range(rounds)), strict=True))
    what = "this machine now: some work after a sleep of 2 ms, CPU"
    rows.append(
        Row(what=what, value=after, unit="us", beside=f"the same without sleep {hot:.0f} us", ratio=after / hot)
    )
    return rows


# -- starting and idling -----------------------------------------------------------------------------------------------


def start_rows(rounds: int) -> list[Row]:
    """The cost of starting, and of thirteen idle agents."""
    with temporary_directory() as directory:
        cpu: list[float] = []

        def up() -> float:
            gateway = Gateway(directory, config=TEAM)
            cpu.append(gateway.cpu())
            gateway.close()
            return gateway.ready_seconds

        works: dict[str, Callable[[], float]] = {
            "version": lambda: command_cpu("-m", "everhold", "--version"),
            "import": lambda: command_cpu("-c", "import everhold"),
            "bare": lambda: command_cpu("-c", "pass"),
            "up": up,
        }
        for work in works.values():  # the first run writes bytecode
            work()
        found = interleave(rounds, works)
        gateway = Gateway(directory, config=TEAM)
        time.sleep(3.0)
        resident = gateway.resident_mb()
        gateway.close()
    beside = f"python -c pass {median(found['bare']):.3f} s"
    return [
        at_most("everhold --version, CPU", median(found["version"]), "s", 0.2, beside=beside),
        at_most("import everhold, CPU", median(found["import"]), "s", 0.15, beside=beside),
        at_most("up, from exec to ready, wall", median(found["up"]), "s", 1.0, beside=f"of it CPU {median(cpu):.2f} s"),
        at_most("13 agents, idle, resident", resident, "MB", 80),
    ]


def command_cpu(*arguments: str) -> float:
    """CPU seconds of an interpreter with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=_plain_environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# -- many sessions at once ---------------------------------------------------------------------------------------------


def concurrent_accept_rows(rounds: int) -> list[Row]:
    """Many sessions that write at once and are answered, compared with as many bare commits at once.

    Measured in process, where only the accept counts, and over HTTP, where the requests are parsed first.
    """
    with model() as url, temporary_directory() as directory:
        gateway = Gateway(directory, config=CONFIG.format(url=url, window=WINDOW_TOKENS, recall=RECALL_SECONDS))
        with contextlib.closing(gateway):
            callers = ConcurrentCallers(gateway.port)
            callers.accept()
            found = interleave(rounds, {"bare": bare_commits, "in process": accept_in_process, "http": callers.accept})
            callers.close()
    beside = f"bare commits, as many at once, p95 {median(found['bare']):.1f} ms"
    return [
        at_most(
            f"accept in process, {CONCURRENT_SESSIONS} sessions at once, all being answered, p95",
            median(found["in process"]),
            "ms",
            5,
            beside=beside,
            ratio=ratio(found["in process"], found["bare"]),
        ),
        Row(
            what=f"the same over HTTP, recall on, {CONCURRENT_SESSIONS} requests at once",
            value=median(found["http"]),
            unit="ms",
            beside=beside,
            ratio=ratio(found["http"], found["bare"]),
        ),
    ]


def accept_in_process() -> float:
    """p95 milliseconds of an accept by a gateway in this process that also answers the messages."""

    async def run(directory: Path) -> float:
        async with InProcessGateway(open_store(directory)).open() as gateway:

            async def caller(number: int) -> list[float]:
                waits = []
                for _ in range(EACH):
                    started = time.perf_counter()
                    await gateway.accept_message(f"c{number}")
                    waits.append((time.perf_counter() - started) * 1e3)
                return waits

            await asyncio.gather(*map(caller, range(CONCURRENT_SESSIONS)))
            await gateway.wait_until_idle()
            waits = await asyncio.gather(*map(caller, range(CONCURRENT_SESSIONS)))
            await gateway.wait_until_idle()
            return p95(wait for its in waits for wait in its)

    with temporary_directory() as directory:
        return asyncio.run(run(directory))


class ConcurrentCallers:
    """Callers with a connection and a session each, and one event stream that reads all replies."""

    def __init__(self, port: int, size: int = CONCURRENT_SESSIONS) -> None:
        self.runner = asyncio.Runner()
        self.port = port
        self.size = size
        self.said: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.sessions: dict[int, str] = {}
        self.runner.run(self._connect())

    async def _connect(self) -> None:
        self.streams = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(self.size)]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        writer.write(render_stream_request(self.port))
        await reader.readuntil(b"event: hello")
        self.watcher = asyncio.create_task(self._watch(reader))
        self.watched = writer

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            if b'"kind":"said"' in line:
                self.said[json.loads(line.partition(b":")[2])["session"]].set()

    def accept(self) -> float:
        """The 95th percentile of the milliseconds until a message was accepted."""
        return self.runner.run(self._accept())

    async def _accept(self) -> float:
        async def caller(number: int) -> list[float]:
            return [await self._post(number) for _ in range(EACH)]

        waits = await asyncio.gather(*map(caller, range(self.size)))
        await asyncio.sleep(3.0)  # until all messages are answered
        return p95(wait for its in waits for wait in its)

    def talk(self, turns: int) -> None:
        """Send a message for each caller, and the next one after the reply."""
        self.runner.run(self._talk(turns))

    async def _talk(self, turns: int) -> None:
        async def caller(number: int) -> None:
            for _ in range(turns):
                if session := self.sessions.get(number):
                    self.said[session].clear()
                await self._post(number)
                await self.said[self.sessions[number]].wait()

        await asyncio.gather(*map(caller, range(self.size)))

    async def _post(self, number: int) -> float:
        """Milliseconds until the message was accepted."""
        reader, writer = self.streams[number]
        body = json.dumps({"chat": f"c{number}", "text": MESSAGE}).encode()
        head = (
            f"POST /api/messages HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nauthorization: {CREDENTIAL}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        started = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 202 " in answer, answer
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        told = json.loads(await reader.readexactly(length))
        took = (time.perf_counter() - started) * 1e3
        self.sessions[number] = told["session"]
        return took

    def close(self) -> None:
        self.watcher.cancel()
        for writer in (self.watched, *(writer for _, writer in self.streams)):
            writer.close()
        self.runner.close()


def bare_commits() -> float:
    """p95 milliseconds of a bare commit, with the same number of callers and group commit."""

    async def run(directory: Path) -> float:
        await open_store(directory).close()
        writer = BareWriter(directory / "log.db", asyncio.get_running_loop())

        async def caller(number: int) -> list[float]:
            waits = []
            for _ in range(EACH):
                started = time.perf_counter()
                await writer.write(f"c{number}")
                waits.append((time.perf_counter() - started) * 1e3)
            return waits

        waits = await asyncio.gather(*(caller(number) for number in range(CONCURRENT_SESSIONS)))
        writer.close()
        return p95(wait for its in waits for wait in its)

    with temporary_directory() as directory:
        return asyncio.run(run(directory))


def p95(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[int(len(ordered) * 0.95)]
