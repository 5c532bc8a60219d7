"""Real gateways are killed with -9 while their platform fails: nothing is lost, reordered, or doubled without a count.

Each run has a home of its own, three people, a model that streams, and a platform that drops connections before or
after it carried a send out, and that sometimes answers late when missed messages are read. `make prove PART=platforms`
kills each of the four platforms 300 times (KILLS=1000) and injects at least one fault per kill.

Each run appends a line to the file that EVERHOLD_PLATFORM_TABLE names (`out/platform-kills.jsonl`). A run that passed
on the same commit is not repeated, so an interrupted proof continues where it was. `python -m
tests.platforms.kill_table` prints the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import Struct

from everhold.core.turn import MAX_TURN_ATTEMPTS
from everhold.testing.model_server import ModelServer, ModelServerReply, ModelServerStep, ReceivedModelRequest
from everhold.testing.platforms.discord import DiscordServer
from everhold.testing.platforms.loopback import LoopbackServer
from everhold.testing.platforms.slack import SlackServer
from everhold.testing.platforms.synapse import SynapseServer
from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.platforms.threaded import ThreadedServer, serve_in_thread
from tests.cli.command_home import CommandHome, GatewayProcess, make_plugin, wait_until
from tests.e2e.running_gateway import KEY, make_model_section
from tests.kill.test_sockets import (
    PEOPLE,
    DiscordUnderTest,
    MatrixUnderTest,
    PlatformUnderTest,
    SlackUnderTest,
    read_heard,
)
from tests.platforms.kill_table import KillCounts, has_passed
from tests.platforms.remote_matrix import FaultyProxy
from tests.platforms.remote_telegram import TOKEN
from tests.waiting import LIMIT_SECONDS

KILLS_PER_RUN: Final = int(os.environ.get("EVERHOLD_KILLS_PER_RUN", "25"))
KILLS: Final = max(KILLS_PER_RUN, int(os.environ.get("EVERHOLD_KILLS", "20")) * 3 // 10)
FROM: Final = int(os.environ.get("EVERHOLD_FROM", "0") or 0) * 3 // 10
PLATFORMS: Final = ("telegram", "discord", "slack", "matrix")
END: Final = "(end)"
FILLER: Final = "and here is what there is to say about it, piece by piece, "
PATIENCE_SECONDS: Final = 6 * LIMIT_SECONDS
POLL_SECONDS: Final = 0.1
LONGEST_GAP_SECONDS: Final = 1.2
"""A reply grows for about as long."""
MAX_WAITING_FAULTS: Final = 4
"""More faults in a row would only lengthen the delays between the attempts of one send."""


class TelegramUnderTest:
    name = "telegram"

    def __init__(self, running: ThreadedServer[TelegramServer]) -> None:
        self.running = running
        running.server.add_bot(TOKEN)

    def account(self) -> dict[str, Any]:
        access = {"direct": [f"telegram:{self.chat(person)}" for person in PEOPLE]}
        return {"token_env": "BOT", "base_url": self.running.server.url, "poll_seconds": 1, "access": access}

    def secrets(self) -> dict[str, str]:
        return {"BOT": TOKEN}

    def chat(self, person: int) -> str:
        return f"100{person}"

    def write(self, text: str, person: int) -> None:
        self.running.run(self.running.server.write_message(text, user=int(self.chat(person))))

    def said(self, person: int) -> list[str]:
        return self.running.server.list_bot_texts(int(self.chat(person)))


class ProxiedMatrix(MatrixUnderTest):
    """The homeserver behind a proxy that fails."""

    def __init__(self, synapse: SynapseServer, proxy: ThreadedServer[Any]) -> None:
        self.proxy = proxy
        super().__init__(synapse)

    def account(self) -> dict[str, Any]:
        return {**super().account(), "homeserver": self.proxy.server.url}


class FaultyPlatform(Struct, frozen=True):
    """A platform, and the server whose calls fail."""

    remote: PlatformUnderTest
    running: ThreadedServer[Any]
    send_calls: tuple[str, ...]
    history_call: str

    @property
    def server(self) -> LoopbackServer:
        server: LoopbackServer = self.running.server
        return server

    def plan_fault(self, chance: random.Random) -> None:
        kind = chance.choice(("drop before", "drop after", "drop after"))
        call = chance.choice(self.send_calls)

        async def plan() -> None:
            self.server.plan_fault(call, kind)  # type: ignore[arg-type]

        self.running.run(plan())

    def count_waiting_faults(self) -> int:
        return len(self.server._faults)

    @contextmanager
    def slow_history(self, seconds: float) -> Iterator[None]:
        """While the block runs, and some seconds longer, reading missed messages takes long."""

        async def hang() -> None:
            self.server.hang_calls(self.history_call)

        async def release() -> None:
            self.server.release_calls(self.history_call)

        self.running.run(hang())
        try:
            yield
            time.sleep(seconds)
        finally:
            self.running.run(release())


@pytest.fixture(params=PLATFORMS)
def platform_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def platform(request: pytest.FixtureRequest, platform_name: str) -> Iterator[FaultyPlatform]:
    match platform_name:
        case "telegram":
            with serve_in_thread(TelegramServer) as telegram:
                yield FaultyPlatform(
                    TelegramUnderTest(telegram), telegram, ("sendMessage", "editMessageText"), "getUpdates"
                )
        case "discord":
            with serve_in_thread(DiscordServer) as discord:
                yield FaultyPlatform(
                    DiscordUnderTest(discord), discord, ("POST messages", "PATCH message"), "GET messages"
                )
        case "slack":
            with serve_in_thread(SlackServer) as slack:
                yield FaultyPlatform(
                    SlackUnderTest(slack), slack, ("chat.postMessage", "chat.update"), "conversations.history"
                )
        case _:
            synapse: SynapseServer = request.getfixturevalue("synapse")

            class SynapseProxy(FaultyProxy):
                def __init__(self) -> None:
                    super().__init__(synapse.url)

            with serve_in_thread(SynapseProxy) as proxy:
                yield FaultyPlatform(ProxiedMatrix(synapse, proxy), proxy, ("send",), "messages")


def answer(received: ReceivedModelRequest) -> ModelServerStep:
    """Stream an answer that names the last message, so that a kill meets a growing reply."""
    said = [message["content"] for message in received.json["messages"] if message["role"] == "user"]
    return ModelServerReply(text=f"noted up to: {said[-1]} {FILLER}{END}", pause_seconds=0.1)


@pytest.fixture
def home(tmp_path: Path, platform: FaultyPlatform) -> Iterator[CommandHome]:
    model = ModelServer(key=KEY, default=answer)
    with model.threaded():
        home = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
        config = {
            "models": {"m": make_model_section(model.openai)},
            "defaults": {"memories": [], "tools": []},
            "platforms": {platform.remote.name: {"main": platform.remote.account()}},
        }
        (home.path / "config.yaml").write_text(json.dumps(config))
        (home.path / ".env").touch(mode=0o600)
        secrets = {**platform.remote.secrets(), "MODEL_KEY": KEY}
        (home.path / ".env").write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
        yield home
        home.close()


def run_kills(home: CommandHome, platform: FaultyPlatform, *, seed: int, kills: int) -> KillCounts:
    chance, remote = random.Random(f"{seed}/{platform.remote.name}"), platform.remote
    counts = KillCounts(platform=remote.name)
    sent: dict[int, list[str]] = {person: [] for person in PEOPLE}

    def write(person: int) -> None:
        counts.sent += 1
        sent[person].append(f"m{counts.sent}.")
        remote.write(sent[person][-1], person)

    gateway: GatewayProcess = home.start_gateway()
    for person in PEOPLE:
        write(person)
        wait_until_heard(home, remote, sent[person], person)
    planned = 0

    def plan_faults() -> None:
        nonlocal planned
        while platform.count_waiting_faults() < MAX_WAITING_FAULTS:
            platform.plan_fault(chance)
            planned += 1

    for _ in range(kills):
        for _ in range(chance.randint(1, 4)):
            write(chance.choice(PEOPLE))
        plan_faults()
        if chance.random() < 0.1:  # so that a chat that waits after a kill gets its answer
            wait_until_idle(home)
        elif chance.random() < 0.5:
            wait_for_send(platform)
            time.sleep(chance.uniform(0.0, 0.1))
        else:
            time.sleep(chance.uniform(0.0, LONGEST_GAP_SECONDS))
        gateway.kill()
        counts.kills += 1
        for _ in range(chance.randint(0, 3)):
            write(chance.choice(PEOPLE))
        if chance.random() < 0.3:
            with platform.slow_history(chance.uniform(0.0, LONGEST_GAP_SECONDS)):
                gateway = home.start_gateway()
                for person in PEOPLE:
                    write(person)
        else:
            gateway = home.start_gateway()
    stayed = time.monotonic()
    for person in PEOPLE:
        write(person)
    for person in PEOPLE:
        wait_until_heard(home, remote, sent[person], person)
    wait_until_idle(home)
    counts.settled_seconds = round(time.monotonic() - stayed, 1)
    while planned - platform.count_waiting_faults() < kills:
        plan_faults()
        for person in PEOPLE:
            write(person)
            wait_until_heard(home, remote, sent[person], person)
        wait_until_idle(home)
    counts.faults = planned - platform.count_waiting_faults()
    counts.counted = json.loads(home.run_in_process("status", "--json").out)["in_doubt"]
    counts.suspects, counts.suspects_answered = count_suspects(home)
    problems = [
        problem
        for person in PEOPLE
        for problem in compare_chat(counts, sent[person], read_heard(home, remote.chat(person)), remote.said(person))
    ]
    home.run_in_process("audit").ok()
    gateway.kill()
    if counts.doubled > counts.counted or counts.lost or counts.reordered or counts.given_up:
        counts.problems = [*problems, *list_relevant_log_lines(home)]
    return counts


def wait_until_heard(home: CommandHome, remote: PlatformUnderTest, sent: list[str], person: int) -> None:
    wait_until(lambda: sent[-1] in read_heard(home, remote.chat(person)), seconds=PATIENCE_SECONDS)


def wait_for_send(platform: FaultyPlatform) -> None:
    """Wait until the gateway makes the next call that shows something, but not for long."""
    before = count_sends(platform)
    end = time.monotonic() + LONGEST_GAP_SECONDS
    while count_sends(platform) == before and time.monotonic() < end:
        time.sleep(0.005)


def count_sends(platform: FaultyPlatform) -> int:
    return sum(name in platform.send_calls for name, _ in list(platform.server.calls))


def wait_until_idle(home: CommandHome) -> None:
    """Wait until everything is answered and delivered. It reads the store, because questions slow the gateway down."""
    end = time.monotonic() + PATIENCE_SECONDS
    while left := list_left_work(home):
        if time.monotonic() > end:
            lines = "\n".join([*left, *list_relevant_log_lines(home)[-80:]])
            raise AssertionError(f"after {PATIENCE_SECONDS:g} s this is left to do:\n{lines}")
        time.sleep(POLL_SECONDS)


def list_left_work(home: CommandHome) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"file:{home.path / 'everhold.db'}?mode=ro", uri=True)) as store:
        cursors = store.execute(
            "select consumer, session, in_flight, attempts, since, wait, due, owner, error from cursors "
            "where since is not null or in_flight is not null"
        ).fetchall()
        pending = store.execute("select session, seq from pending where asks").fetchall()
        running = store.execute(
            "select session, op, type, attempts, paused from operations where state = 'running'"
        ).fetchall()
    return [str(row) for row in (*cursors, *pending, *running)]


def count_suspects(home: CommandHome) -> tuple[int, int]:
    """How many turns were started more than five times, and how many of them ended with an answer."""
    with contextlib.closing(sqlite3.connect(f"file:{home.path / 'everhold.db'}?mode=ro", uri=True)) as store:
        rows = store.execute(
            "select entries.body from operations join entries using (session, op) "
            "where operations.type = 'turn' and operations.attempts > ? and entries.kind = 'ended'",
            (MAX_TURN_ATTEMPTS,),
        ).fetchall()
    outcomes = [json.loads(body).get("outcome", "done") for (body,) in rows]  # a default is not stored
    return len(outcomes), outcomes.count("done")


def list_relevant_log_lines(home: CommandHome) -> list[str]:
    """The log lines about drafts, resumed turns and deliveries."""
    words = ("in_doubt", "draft", "resumed", "delivery.", "turn.waiting", "failed")
    lines = [
        line
        for path in sorted((home.path / "logs").rglob("*"), key=lambda it: it.stat().st_mtime)
        if path.is_file()
        for line in path.read_text(errors="replace").splitlines()
    ]
    return [line for line in lines if any(word in line for word in words)]


def compare_chat(counts: KillCounts, sent: list[str], heard: list[str], said: list[str]) -> list[str]:
    """Add what one chat shows; return what is wrong with it."""
    counts.acknowledged += len(heard)
    lost = set(sent) - set(heard)
    counts.lost += len(lost)
    counts.reordered += int([text for text in sent if text in heard] != list(dict.fromkeys(heard)))
    whole = [text for text in said if text.endswith(END)]
    doubled = [text for text, count in Counter(whole).items() for _ in range(count - 1)]
    doubled += [text for text in said if text.startswith("noted") and not text.endswith(END)]
    counts.doubled += len(doubled)
    unanswered = [text for text in said if text.startswith("I could not answer")]
    counts.given_up += len(unanswered)
    numbers = [int(found[1]) for text in dict.fromkeys(whole) if (found := re.search(r"up to: m(\d+)\.", text))]
    counts.reordered += int(numbers != sorted(numbers))
    silent = sent[-1] not in " ".join(whole)
    counts.lost += int(silent)
    return [
        *(f"lost: {text}" for text in sorted(lost)),
        *(f"doubled: {text}" for text in doubled),
        *unanswered,
        *([f"not answered: {sent[-1]}"] if silent else []),
    ]


@pytest.mark.prove
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("run", range(FROM // KILLS_PER_RUN, -(-KILLS // KILLS_PER_RUN)))
def test_kills_and_lost_sends_lose_nothing_and_count_what_is_doubled(
    run: int, request: pytest.FixtureRequest, platform_name: str
) -> None:
    if has_passed(platform_name, run, KILLS_PER_RUN):
        return  # on this commit, in an earlier call
    platform: FaultyPlatform = request.getfixturevalue("platform")
    home: CommandHome = request.getfixturevalue("home")
    began = time.monotonic()
    counts = run_kills(home, platform, seed=run, kills=KILLS_PER_RUN)
    counts.run, counts.seconds = run, round(time.monotonic() - began, 1)
    counts.append_to_table()
    assert (counts.lost, counts.reordered) == (0, 0), counts
    assert counts.acknowledged == counts.sent, counts
    assert counts.suspects_answered == counts.suspects, counts
    assert counts.given_up == 0, counts
    assert counts.doubled <= counts.counted, f"a double is not counted: {counts}"
    if platform.remote.name != "telegram":
        assert counts.doubled == 0, counts
    assert counts.faults >= counts.kills, counts
