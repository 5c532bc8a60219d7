"""What a message and its reply cost on a platform, compared with the simplest bot that makes the same calls.

The platform's fake runs in the measuring process, the gateway and the bot in their own. The number of calls is counted
at the fakes, and both sides must have the same.
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

from bench.gateway import HIGH_QUOTAS, Gateway, cpu_seconds, model
from bench.in_process import MESSAGE, temporary_directory
from bench.model_stub import REPLY
from bench.table import Row, at_most, median, ratio
from everhold.infra.home import Home
from everhold.testing.platforms.discord import DiscordServer
from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse
from everhold.testing.platforms.slack import SlackServer
from everhold.testing.platforms.telegram import TelegramServer

TURNS = 60
WARM_UP_TURNS = 8
MOST = 2.0
"""How much more CPU a message may cost than the simplest bot with the same calls. The gateway also stores it, and asks
the model."""
READ_CALLS = ("getUpdates",)
"""Calls that wait for news. Both sides make them as often as there is news."""
TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
BOT_TOKEN, APP_TOKEN = "xoxb-1-bench", "xapp-1-bench"


class MeasuredServer:
    """One fake of a platform with one chat."""

    chat = ""
    calls: list[tuple[str, dict[str, Any]]]

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

    async def warm_up(self) -> None:
        while not self.has_listener():  # noqa: ASYNC110 - a fake has no event for it
            await asyncio.sleep(0.05)
        for _ in range(WARM_UP_TURNS):
            await self.turn()

    async def turn(self) -> None:
        """Write a message and wait for the whole reply. A draft counts when it is complete."""
        before = self.list_texts().count(REPLY)
        await self.write()
        while self.list_texts().count(REPLY) == before:
            await self.done.wait()

    def count_calls(self) -> int:
        return sum(name not in READ_CALLS for name, _ in self.calls)


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


SERVERS: dict[str, Callable[[], Any]] = {
    "telegram": MeasuredTelegram,
    "discord": MeasuredDiscord,
    "slack": MeasuredSlack,
}


def platform_cost_rows(rounds: int) -> list[Row]:
    rows: list[Row] = []
    for platform, server in SERVERS.items():
        with temporary_directory() as directory, model() as url:
            rows += asyncio.run(_measure_platform(rounds, platform, server, directory, url))
    return rows


async def _measure_platform(
    rounds: int, platform: str, make_server: Callable[[], Any], directory: Path, url: str
) -> list[Row]:
    found: dict[str, list[float]] = {name: [] for name in ("wall", "cpu", "bare wall", "bare cpu")}
    async with make_server() as ours, make_server() as bare:
        for server in (ours, bare):
            server.prepare()
        async with _open_gateway(platform, ours, directory, url) as gateway:
            await ours.warm_up()
            steps, calls = await _observe_calls(ours)
            with _open_bare_bot(platform, bare, steps, url) as bot:
                await bare.warm_up()
                assert (await _observe_calls(bare))[1] == calls, "the bot makes other calls"
                for _ in range(rounds):
                    for name, server, pid in (("", ours, gateway.process.pid), ("bare ", bare, bot.pid)):
                        cpu, began = cpu_seconds(pid), time.perf_counter()
                        for _ in range(TURNS):
                            await server.turn()
                        found[name + "wall"].append((time.perf_counter() - began) / TURNS)
                        found[name + "cpu"].append((cpu_seconds(pid) - cpu) / TURNS)
    return [
        at_most(
            f"CPU of a message and its reply on {platform} ({calls} calls: {', '.join(steps)})",
            median(found["cpu"]) * 1000,
            "ms",
            MOST,
            beside=f"the vendor's client, same calls {median(found['bare cpu']) * 1000:.1f} ms",
            ratio=ratio(found["cpu"], found["bare cpu"]),
        ),
        Row(
            what=f"the same, wall time on {platform}",
            value=median(found["wall"]) * 1000,
            unit="ms",
            beside=f"the vendor's client, same calls {median(found['bare wall']) * 1000:.1f} ms",
            ratio=ratio(found["wall"], found["bare wall"]),
        ),
    ]


async def _observe_calls(server: Any) -> tuple[list[str], int]:
    """Return what a side does for one message, and with how many calls."""
    await asyncio.sleep(0.3)  # a call of the last turn may follow its reply
    before = len(server.calls)
    await server.turn()
    await asyncio.sleep(0.3)
    names = [name for name, _ in server.calls[before:] if name not in READ_CALLS]
    steps = [step for step in map(_name_step, names) if step]
    return steps, len(names)


def _name_step(call: str) -> str:
    lowered = call.lower()
    if "typing" in lowered or "chataction" in lowered:
        return "typing"
    if "edit" in lowered or "update" in lowered or lowered.startswith("patch"):
        return "edit"
    return "send" if "message" in lowered else ""


@contextlib.asynccontextmanager
async def _open_gateway(platform: str, server: Any, directory: Path, url: str) -> AsyncIterator[Gateway]:
    home = Home(directory).create()
    home.env.touch(mode=0o600)
    home.env.write_text("".join(f"{name}={value}\n" for name, value in server.secrets.items()))
    account: ClassVar = {**server.account, "base_url": getattr(server, "base", server.url), "access": {"direct": ["*"]}}
    endpoint = {"provider": "openai", "base_url": url, "name": "instant", "context_tokens": 12_000}
    config = json.dumps(
        {
            "models": {"instant": endpoint},
            "defaults": {"model": "instant"},
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
