"""What a message and its reply cost on a platform, compared with the simplest bot that makes the same calls.

A quick reply is complete at once. A growing one is streamed, so that the gateway shows typing, a draft and its edits.
Recall and reviews are off, because the bot has no counterpart and reviews make further model requests. One row has the
defaults.
The platform's fake runs in the measuring process, the gateway and the bot in their own. Matrix is a real Synapse behind
a proxy in the measuring process. The calls are counted at the fakes and the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import httpx2
from msgspec import Struct

from bench.gateway import HIGH_QUOTAS, Gateway, cpu_seconds, model
from bench.in_process import MESSAGE, temporary_directory
from bench.matrix import Talker, read_news
from bench.model_stub import REPLY
from bench.table import Row, at_most, median, ratio
from everhold.infra.home import Home
from everhold.testing.platforms.discord import DiscordServer
from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse, LoopbackServer
from everhold.testing.platforms.slack import SlackServer
from everhold.testing.platforms.synapse import SynapseServer
from everhold.testing.platforms.telegram import TelegramServer


class ReplyScenario(Struct, frozen=True):
    """How the model answers, and how many turns make a round."""

    name: str
    turns: int
    stream_seconds: float = 0.0
    defaults: bool = False
    """Recall and reviews are on."""


SCENARIOS = (
    ReplyScenario("quick", 60),
    ReplyScenario("growing", 5, stream_seconds=2.0),
    ReplyScenario("quick, with recall and reviews,", 60, defaults=True),
)
WARM_UP_TURNS = 8
IDLE_SECONDS = 3.0
"""How long the cost of an idle process is measured. It is subtracted, because it is no cost of messages."""
BARE_DEFAULTS = {"recall": {"deadline_seconds": 0}, "review_every_turns": 0}
MOST = 2.0
"""How much more CPU a message may cost than the simplest bot with the same calls. The gateway also stores it."""
READ_CALLS = ("getUpdates", "sync")
"""Calls that wait for news. Both sides make them as often as there is news."""
TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
BOT_TOKEN, APP_TOKEN = "xoxb-1-bench", "xapp-1-bench"


class MeasuredServer:
    """One fake of a platform with one chat."""

    calls: list[tuple[str, dict[str, Any]]]
    slowness: ClassVar = 1
    """By how much a round is shortened, because the platform itself is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        answer: LoopbackResponse = await super().answer_call(request)  # type: ignore[misc]
        done, self.done = self.done, asyncio.Event()
        done.set()
        return answer

    async def write(self) -> None:
        raise NotImplementedError

    def list_texts(self) -> list[str]:
        raise NotImplementedError

    def has_listener(self) -> bool:
        """Return whether a bot listens. What was written before belongs to another measurement."""
        raise NotImplementedError

    async def warm_up(self, scenario: ReplyScenario) -> None:
        while not self.has_listener():  # noqa: ASYNC110 - a fake has no event for it
            await asyncio.sleep(0.05)
        for _ in range(min(WARM_UP_TURNS, scenario.turns)):
            await self.turn()

    async def turn(self) -> None:
        """Write a message and wait for the whole reply. A draft counts when it is complete."""
        before = self.list_texts().count(REPLY)
        await self.write()
        while self.list_texts().count(REPLY) == before:
            await self.done.wait()

    def list_calls(self) -> list[str]:
        return [name for name, _ in self.calls if name not in READ_CALLS]


class MeasuredTelegram(MeasuredServer, TelegramServer):
    account: ClassVar = {"token_env": "BOT"}
    secrets: ClassVar = {"BOT": TOKEN}
    bare_token = TOKEN

    def prepare(self) -> None:
        self.add_bot(TOKEN)

    async def write(self) -> None:
        await self.write_message(MESSAGE, user=1001)

    def list_texts(self) -> list[str]:
        return self.list_bot_texts(1001)

    def has_listener(self) -> bool:
        return any(name == "getUpdates" for name, _ in self.calls)


class MeasuredDiscord(MeasuredServer, DiscordServer):
    account: ClassVar = {"token_env": "BOT"}
    secrets: ClassVar = {"BOT": TOKEN}
    bare_token = TOKEN

    def __init__(self) -> None:
        super().__init__()
        self.bucket = 1_000_000

    @property
    def base(self) -> str:
        return self.api

    def prepare(self) -> None:
        self.add_bot(TOKEN)
        self.add_direct_channel("500")

    async def write(self) -> None:
        await self.write_message(MESSAGE, channel="500")

    def list_texts(self) -> list[str]:
        return [str(message["content"]) for message in self.list_shown_messages("500")]

    def has_listener(self) -> bool:
        return self.identified > 0


class MeasuredSlack(MeasuredServer, SlackServer):
    account: ClassVar = {"bot_token_env": "BOT", "app_token_env": "APP"}
    secrets: ClassVar = {"BOT": BOT_TOKEN, "APP": APP_TOKEN}
    bare_token = f"{BOT_TOKEN},{APP_TOKEN}"

    @property
    def base(self) -> str:
        return f"{self.url}/api/"

    def prepare(self) -> None:
        self.add_app(BOT_TOKEN, APP_TOKEN)

    async def write(self) -> None:
        await self.write_message(MESSAGE, channel="D1")

    def list_texts(self) -> list[str]:
        return [str(message["text"]) for message in self.list_shown_messages("D1")]

    def has_listener(self) -> bool:
        return bool(self.apps[0].sockets)


class MeasuredMatrix(MeasuredServer, LoopbackServer):
    """A proxy of a real homeserver, which counts the calls."""

    secrets: ClassVar[dict[str, str]]
    account: ClassVar[dict[str, Any]]
    synapse: ClassVar[SynapseServer]
    count: ClassVar = 0
    slowness: ClassVar = 3

    async def prepare(self) -> None:
        MeasuredMatrix.count += 1
        self._http = httpx2.AsyncClient(base_url=self.synapse.url, timeout=60.0)
        agent = await self.synapse.register_member(f"agent{self.count}")
        self.account = {"token_env": "BOT", "homeserver": self.url}  # type: ignore[misc]  # of this server
        self.secrets = {"BOT": agent.token}  # type: ignore[misc]
        self.bare_token = f"{agent.id},{agent.token}"
        self._agent = agent
        self._talker: Talker | None = None

    def name_call(self, request: LoopbackRequest) -> str:
        if "/send/" in request.path:
            return "edit message" if "m.new_content" in request.fields else "send message"
        return next((word for word in ("sync", "typing") if f"/{word}" in request.path), request.path)

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        headers = {k: v for k, v in request.headers.items() if k in ("authorization", "content-type")}
        target = f"{quote(request.path)}?{urlencode(request.query)}"
        found = await self._http.request(request.method, target, content=request.body, headers=headers)
        return LoopbackResponse(found.status_code, found.content, found.headers.get("content-type", ""))

    def has_listener(self) -> bool:
        # a client acts on invitations from its second sync on
        return sum(name == "sync" for name, _ in self.calls) >= 2

    async def turn(self) -> None:
        if self._talker is None:
            who = await self.synapse.register_member(f"talker{self._agent.id.strip('@').partition(':')[0]}")
            await who.__aenter__()
            since = (await read_news(who, ""))[0]
            self._talker = Talker(who, await who.create_room(self._agent.id, direct=True), since)
        await self._talker.turn()


SERVERS: dict[str, Callable[[], Any]] = {
    "telegram": MeasuredTelegram,
    "discord": MeasuredDiscord,
    "slack": MeasuredSlack,
    "matrix": MeasuredMatrix,
}


def platform_cost_rows(rounds: int) -> list[Row]:
    rows: list[Row] = []
    for platform, server in SERVERS.items():
        for scenario in SCENARIOS:
            with temporary_directory() as directory, model(scenario.stream_seconds) as url, _open_homeserver(platform):
                rows += asyncio.run(_measure_platform(rounds, platform, scenario, server, directory, url))
    return rows


@contextlib.contextmanager
def _open_homeserver(platform: str) -> Iterator[None]:
    if platform != "matrix":
        yield
        return
    with temporary_directory() as directory:
        MeasuredMatrix.synapse = SynapseServer(directory)
        MeasuredMatrix.synapse.start()
        try:
            yield
        finally:
            MeasuredMatrix.synapse.stop()


async def _measure_platform(
    rounds: int, platform: str, scenario: ReplyScenario, make_server: Callable[[], Any], directory: Path, url: str
) -> list[Row]:
    async with make_server() as our_server, make_server() as bare_server:
        turns = max(5, scenario.turns // our_server.slowness)
        ours, bare = SideCosts(turns), SideCosts(turns)
        for server in (our_server, bare_server):
            if (preparing := server.prepare()) is not None:
                await preparing
        async with _open_gateway(platform, scenario, our_server, directory, url) as gateway:
            await our_server.warm_up(scenario)
            steps = await _observe_steps(our_server)
            with _open_bare_bot(platform, bare_server, steps, url) as bot:
                await bare_server.warm_up(scenario)
                for _ in range(rounds + 1):
                    await ours.measure_round(our_server, gateway.process.pid)
                    await bare.measure_round(bare_server, bot.pid)
    for costs in (ours, bare):
        costs.drop_first_round()
    names = f"{scenario.name} reply on {platform}, {median(ours.calls):.1f} calls ({', '.join(steps)})"
    beside = f"the vendor's client, {median(bare.calls):.1f} calls"
    limit = None if scenario.defaults else MOST
    rows = [_build_row(f"CPU of a {names}", ours.cpu, bare.cpu, beside, limit)]
    if not scenario.stream_seconds:  # otherwise it is the time that the model takes
        rows.append(_build_row(f"the same, wall time on {platform}", ours.wall, bare.wall, beside, limit))
    return rows


def _build_row(what: str, ours: list[float], bare: list[float], beside: str, limit: float | None) -> Row:
    beside = f"{beside} {median(bare) * 1000:.1f} ms"
    if limit is None:
        return Row(what=what, value=median(ours) * 1000, unit="ms", beside=beside, ratio=ratio(ours, bare))
    return at_most(what, median(ours) * 1000, "ms", limit, beside=beside, ratio=ratio(ours, bare))


class SideCosts:
    """The costs of a message on one side, one value per round."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.calls: list[float] = []

    async def measure_round(self, server: Any, pid: int) -> None:
        cpu = cpu_seconds(pid)
        await asyncio.sleep(IDLE_SECONDS)
        per_second = (cpu_seconds(pid) - cpu) / IDLE_SECONDS
        calls, cpu, began = len(server.list_calls()), cpu_seconds(pid), time.perf_counter()
        for _ in range(self.turns):
            await server.turn()
        wall = time.perf_counter() - began
        self.cpu.append((cpu_seconds(pid) - cpu - per_second * wall) / self.turns)
        self.wall.append(wall / self.turns)
        self.calls.append((len(server.list_calls()) - calls) / self.turns)

    def drop_first_round(self) -> None:
        """Drop the round in which a process loads what it needs once, such as the table of word meanings (0.2 s)."""
        for values in (self.cpu, self.wall, self.calls):
            del values[0]


async def _observe_steps(server: Any) -> list[str]:
    """Return the calls that the gateway makes for one message."""
    await asyncio.sleep(0.3)  # a call of the last turn may follow its reply
    before = len(server.list_calls())
    await server.turn()
    await asyncio.sleep(0.3)
    return [step for step in map(_name_step, server.list_calls()[before:]) if step]


def _name_step(call: str) -> str:
    lowered = call.lower()
    if "typing" in lowered or "chataction" in lowered:
        return "typing"
    if "edit" in lowered or "update" in lowered or lowered.startswith("patch"):
        return "edit"
    return "send" if "message" in lowered else ""


@contextlib.asynccontextmanager
async def _open_gateway(
    platform: str, scenario: ReplyScenario, server: Any, directory: Path, url: str
) -> AsyncIterator[Gateway]:
    home = Home(directory).create()
    home.env.touch(mode=0o600)
    home.env.write_text("".join(f"{name}={value}\n" for name, value in server.secrets.items()))
    account: dict[str, Any] = {"base_url": getattr(server, "base", server.url), **server.account}
    if "homeserver" in account:
        del account["base_url"]
    account["access"] = {"direct": ["*"]}
    endpoint = {"provider": "openai", "base_url": url, "name": "instant", "context_tokens": 12_000}
    config = json.dumps(
        {
            "models": {"instant": endpoint},
            "defaults": {"model": "instant", **({} if scenario.defaults else BARE_DEFAULTS)},
            "quotas": HIGH_QUOTAS,
            "platforms": {platform: {"main": account}},
        }
    )
    gateway = await asyncio.to_thread(lambda: Gateway(directory, config=config))
    try:
        yield gateway
    finally:
        await asyncio.to_thread(gateway.close)


@contextlib.contextmanager
def _open_bare_bot(platform: str, server: Any, steps: list[str], model: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.bare_bot", platform, getattr(server, "base", server.url), server.bare_token]
    with subprocess.Popen(
        [*command, *steps], env={**os.environ, "MODEL_URL": model}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
