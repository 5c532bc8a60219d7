"""A message and its reply through Telegram on loopback, compared with a bare bot that stores nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.gateway import HIGH_QUOTAS, Gateway, model
from bench.in_process import MESSAGE, temporary_directory
from bench.model_stub import REPLY
from bench.table import Row, median, ratio
from everhold.infra.home import Home
from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse
from everhold.testing.platforms.telegram import TelegramServer

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
TURNS = 40
TALKERS = 8
"""Concurrent chats, for the rate."""


def telegram_rows(rounds: int) -> list[Row]:
    try:
        import telegram  # noqa: F401
    except ImportError:
        return []
    with temporary_directory() as directory, model() as url:
        return asyncio.run(_measured(rounds, directory, url))


async def _measured(rounds: int, directory: Path, url: str) -> list[Row]:
    found: dict[str, list[float]] = {name: [] for name in ("ours", "bare", "rate", "bare rate", "cpu")}
    async with Watched() as ours, Watched() as bare:
        for server in (ours, bare):
            server.add_bot(TOKEN)
        home = Home(directory).create()
        home.env.touch(mode=0o600)
        home.env.write_text(f"BOT={TOKEN}\n")
        gateway = await asyncio.to_thread(lambda: Gateway(directory, config=_config(ours.url, url)))
        try:
            async with _echoing(bare):
                for server in (ours, bare):
                    await _turns(server, TALKERS, 2)  # the first ones open sessions
                for _ in range(rounds):
                    found["ours"].append(await _turns(ours, 1, TURNS))
                    found["bare"].append(await _turns(bare, 1, TURNS))
                    cpu = gateway.cpu()
                    found["rate"].append(TALKERS / await _turns(ours, TALKERS, TURNS))
                    found["cpu"].append((gateway.cpu() - cpu) / TURNS / TALKERS)
                    found["bare rate"].append(TALKERS / await _turns(bare, TALKERS, TURNS))
        finally:
            await asyncio.to_thread(gateway.close)
    return [
        Row(
            what="message and reply through Telegram on loopback",
            value=median(found["ours"]) * 1000,
            unit="ms",
            beside=f"a bare bot {median(found['bare']) * 1000:.0f} ms",
            ratio=ratio(found["ours"], found["bare"]),
        ),
        Row(
            what=f"the same in {TALKERS} chats at once",
            value=median(found["rate"]),
            unit="/s",
            beside=f"a bare bot {median(found['bare rate']):.0f} /s",
            ratio=ratio(found["rate"], found["bare rate"]),
        ),
        Row(what="CPU of the gateway per message over Telegram", value=median(found["cpu"]) * 1000, unit="ms"),
    ]


def _config(server: str, url: str) -> str:
    account = {"token_env": "BOT", "base_url": server, "access": {"direct": ["*"]}}
    endpoint = {"provider": "openai", "base_url": url, "name": "instant", "context_tokens": 12_000}
    given = {
        "models": {"instant": endpoint},
        "defaults": {"model": "instant"},
        "quotas": HIGH_QUOTAS,
        "platforms": {"telegram": {"main": account}},
    }
    return json.dumps(given)


class Watched(TelegramServer):
    """A Telegram server that lets a caller wait for the bots' messages."""

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        answer = await super().answer_call(request)
        done, self.done = self.done, asyncio.Event()
        done.set()
        return answer

    async def turn(self, chat: int) -> None:
        """Write a message and wait for the whole reply. A draft counts when it is complete."""
        before = self.list_bot_texts(chat).count(REPLY)
        await self.write_message(MESSAGE, user=chat)
        while self.list_bot_texts(chat).count(REPLY) == before:
            await self.done.wait()


async def _turns(server: Watched, talkers: int, turns: int) -> float:
    """Seconds per turn, with all chats at once."""

    async def talk(chat: int) -> None:
        for _ in range(turns):
            await server.turn(chat)

    began = time.perf_counter()
    await asyncio.gather(*(talk(1001 + number) for number in range(talkers)))
    return (time.perf_counter() - began) / turns


@contextlib.asynccontextmanager
async def _echoing(server: TelegramServer) -> AsyncIterator[None]:
    """Run the simplest bot: the vendor's client in a loop."""
    from telegram import Bot

    async def echo(bot: Bot) -> None:
        offset = 0
        while True:
            for update in await bot.get_updates(offset=offset, timeout=10):
                offset = update.update_id + 1
                if update.message is not None:
                    await bot.send_message(update.message.chat.id, REPLY)

    async with Bot(TOKEN, base_url=f"{server.url}/bot") as bot:
        task = asyncio.create_task(echo(bot))
        try:
            yield
        finally:
            task.cancel()
