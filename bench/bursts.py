"""Messages that arrive while a turn runs: how many hermes-agent 0.19.0 and everhold keep.

Both get the same messages at the same pace while the same model holds its answer. hermes-agent's gateway class receives
them in memory. everhold runs in its own process and receives them from Telegram on loopback. For hermes-agent the
bench counts the user messages in its database, for everhold the messages that a turn consumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.gateway import HERE, Gateway, hermes_python
from bench.history import SessionHistory
from bench.in_process import SystemRandom, temporary_directory
from bench.model_stub import answer, whole
from bench.table import Row
from everhold.infra.home import Home
from everhold.stores.sqlite import SqliteStore
from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.platforms.threaded import ThreadedServer, serve_in_thread

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
ADA = 1001
BURSTS = {
    "follow-ups": (5, "5 quick follow-ups during a turn"),
    "compression": (40, "40 messages during a compression"),
    "stop": (3, "a clean stop with 3 queued"),
    "kill": (10, "kill -9 with 10 queued"),
}
PAUSE_SECONDS = 0.05
SETTLE_SECONDS = 1.5
PATIENCE_SECONDS = 120.0
LONG_TURNS = 70
"""Turns in the session, so that the next message needs a compression first."""


def burst_rows(rounds: int) -> list[Row]:
    rows = []
    for burst, (count, words) in BURSTS.items():
        lost: dict[str, list[int]] = {"ours": [], "theirs": []}
        for _ in range(max(1, rounds // 3)):  # hermes-agent's rounds take a minute each, and have equal results
            for side, play in (("ours", _ours), ("theirs", _theirs)):
                with temporary_directory() as directory, held() as model:
                    lost[side].append(count - len(play(burst, directory, model)))
        theirs = ", ".join(map(str, lost["theirs"]))
        rows.append(
            Row(
                what=f"lost of {words}",
                value=max(lost["ours"]),
                unit=f"of {count}",
                beside=f"hermes-agent {theirs} of {count}",
                target="0",
                holds=max(lost["ours"]) == 0,
            )
        )
    return rows


def names(burst: str) -> list[str]:
    return [f"message-{number}" for number in range(BURSTS[burst][0])]


# -- a model that can be held ------------------------------------------------------------------------------------------


class Held:
    """A model that answers immediately, except while it holds turns or summaries."""

    def __init__(self) -> None:
        self.url = ""
        self._holds = ""
        self._held = threading.Event()
        self._free = threading.Event()

    def hold(self, what: str) -> None:
        self._held.clear()
        self._free.clear()
        self._holds = what

    def wait(self) -> None:
        """Wait until a request is held."""
        assert self._held.wait(PATIENCE_SECONDS), f"no request for a {self._holds} arrived"

    def release(self) -> None:
        self._holds = ""
        self._free.set()

    def answer(self, body: bytes) -> bytes:
        kind = "summary" if json.loads(body).get("model") == "summary" else "turn"
        if self._holds == kind:
            self._held.set()
            self._free.wait(PATIENCE_SECONDS)
        return answer(body)


@contextlib.contextmanager
def held() -> Iterator[Held]:
    model = Held()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            match self.path.strip("/").split("/"):
                case ["hold", what]:
                    model.hold(what)
                case ["held"]:
                    model.wait()
                case ["release"]:
                    model.release()
            known = [{"id": id, "object": "model", "context_length": 128_000} for id in ("held", "summary")]
            self.wfile.write(whole({"object": "list", "data": known}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            with contextlib.suppress(OSError):  # the caller may have been killed
                self.wfile.write(model.answer(body))

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.release()
        server.shutdown()
        server.server_close()


# -- everhold ----------------------------------------------------------------------------------------------------------


def _ours(burst: str, directory: Path, model: Held) -> list[str]:
    """Return the messages that a turn consumed."""
    home = Home(directory).create()
    home.env.touch(mode=0o600)
    home.env.write_text(f"BOT={TOKEN}\n")
    with serve_in_thread(TelegramServer) as telegram:
        telegram.server.add_bot(TOKEN)
        config = _config(telegram.server.url, model.url)
        gateway = Gateway(directory, config=config)
        try:
            _hear(telegram, "hello")
            _until(lambda: taken(home.store, ["hello"]) == ["hello"])
            if burst == "compression":
                gateway.close()
                asyncio.run(_age(home))
                gateway = Gateway(directory, config=config)
            model.hold("summary" if burst == "compression" else "turn")
            _hear(telegram, "first")
            model.wait()
            for name in names(burst):
                _hear(telegram, name)
                time.sleep(PAUSE_SECONDS)
            time.sleep(SETTLE_SECONDS)
            if burst == "kill":
                gateway.process.send_signal(signal.SIGKILL)
                gateway.process.wait()
                model.release()
                gateway = Gateway(directory, config=config)
            elif burst == "stop":
                threading.Timer(2.0, model.release).start()
                gateway.close()
                gateway = Gateway(directory, config=config)
            else:
                model.release()
            _until(lambda: len(taken(home.store, names(burst))) == len(names(burst)))
            return taken(home.store, names(burst))
        finally:
            gateway.close()


def _config(telegram: str, model: str) -> str:
    endpoint = {"provider": "openai", "base_url": f"{model}/v1", "context_tokens": 12_000}
    account = {"token_env": "BOT", "base_url": telegram, "access": {"direct": ["*"]}}
    return json.dumps(
        {
            "models": {name: {**endpoint, "name": name} for name in ("held", "summary")},
            "defaults": {
                "model": "held",
                "tools": [],
                "review_every_turns": 0,
                "compression": {"model": "summary", "in_background": False},
            },
            "platforms": {"telegram": {"main": account}},
        }
    )


def _hear(telegram: ThreadedServer[TelegramServer], text: str) -> None:
    telegram.run(telegram.server.write_message(text, user=ADA))


async def _age(home: Home) -> None:
    """Add a long history to the session."""
    store = SqliteStore.open(home.store, chance=SystemRandom())
    (session,) = await store.list_sessions()
    history = SessionHistory(store, session.id, chat=str(ADA), platform="telegram")
    history.seq = session.last_seq
    await history.live(LONG_TURNS)
    await store.close()


def taken(path: Path, wanted: list[str]) -> list[str]:
    """Return the messages that a finished turn consumed."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        rows = db.execute("select session, seq, op, kind, body from entries where body is not null").fetchall()
    ended = {(session, op) for session, _, op, kind, body in rows if kind == "ended"}
    took = {
        (session, seq)
        for session, _, op, kind, body in rows
        if kind in ("began", "took") and (session, op) in ended
        for seq in json.loads(body).get("takes", ())
    }
    texts = {
        json.loads(body)["text"] for session, seq, _, kind, body in rows if kind == "heard" and (session, seq) in took
    }
    return [name for name in wanted if name in texts]


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done() and time.monotonic() < deadline:
        time.sleep(0.1)


# -- hermes-agent ------------------------------------------------------------------------------------------------------


def _theirs(burst: str, directory: Path, model: Held) -> list[str]:
    """Return the messages that hermes-agent's database has."""

    def run(*given: str) -> subprocess.Popen[str]:
        command = [str(hermes_python()), "-P", str(HERE / "peer_bursts.py"), str(directory), model.url, *given]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    with run(burst) as process:
        assert process.stdout is not None
        line = _line(process.stdout)
        if burst == "kill":
            process.send_signal(signal.SIGKILL)
    if burst == "kill":
        with run("look", " ".join(names(burst))) as process:
            assert process.stdout is not None
            line = _line(process.stdout)
    found: list[str] = json.loads(line)["kept"]
    return found


def _line(told: Iterator[str]) -> str:
    """Return the next line for us. hermes-agent prints to the same stdout."""
    return next(line for line in told if line.startswith(("{", "ready")))
