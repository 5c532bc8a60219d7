"""Telegram as the contract's far side."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from everhold.platforms.telegram.adapter import Telegram
from everhold.platforms.telegram.settings import TelegramSettings
from everhold.ports.platform import Platform
from everhold.ports.plugin import Context
from everhold.secret import Secret
from everhold.testing.contracts.platform import Seen
from everhold.testing.platforms.loopback import Answer
from everhold.testing.platforms.telegram import Failed, TelegramServer
from tests.waiting import LIMIT_SECONDS

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw-canary"


class TelegramStage:
    platform = "telegram"
    chat = "1001"
    group = "-100123"
    sender = "1001"
    offers = frozenset("edits groups drafts typing files redelivery poison rivals".split())

    def __init__(self, server: TelegramServer, adapter: type[Telegram] = Telegram) -> None:
        self.server = server
        self.adapter = adapter

    def build(self, context: Context) -> Platform:
        settings = TelegramSettings(token=Secret(TOKEN), base_url=self.server.url, poll_seconds=1)
        return self.adapter(settings, context)

    async def write(self, text: str, *, to: str) -> str:
        return str(await self.server.write(text, chat=int(to)))

    async def edit(self, id: str, text: str, *, to: str) -> None:
        await self.server.edit(int(id), text, chat=int(to))

    async def mention(self, text: str, *, to: str) -> str:
        return await self.write(f"@everhold_bot {text}", to=to)

    async def pretend(self, text: str, *, to: str) -> str:
        eve: dict[str, Any] = {"from": {"id": 666, "is_bot": False, "first_name": "Ada", "username": self.sender}}
        return str(await self.server.write(text, user=666, chat=int(to), **eve))

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str:
        return str(await self.server.write(text, chat=int(to), file=(name, data)))

    async def poison(self) -> None:
        await self.server.press({"message": {"message_id": "not a number", "chat": 7, "date": "yesterday"}})

    async def oddity(self) -> None:
        await self.server.press({"holographic_message": {"id": 1}})

    async def garble(self) -> None:
        id = await self.server.press({"poll": {}})  # it has a number, and is passed by
        broken = b'{"ok": true, "result": [{"update_id": %d, "message": {"text": "\xff\xfe\xc3("}}]}' % id
        self.server.fault("getUpdates", "answer", answer=Answer(200, broken, "application/json"))
        async with asyncio.timeout(LIMIT_SECONDS):
            await self.server.struck("getUpdates")  # what is written from here on comes behind it

    async def redeliver(self, chance: random.Random) -> None:
        await self.server.redeliver(times=3, chance=chance)

    def shown(self, chat: str) -> list[Seen]:
        bots = {bot.id for bot in self.server.bots.values()}
        return [
            Seen(id=str(it.id), text=it.text, files=(it.file[1],) if it.file else ())
            for it in self.server.shown(int(chat))
            if it.by in bots
        ]

    def fail(self, how: str) -> None:
        match how:
            case "limit":
                self.server.busy[int(self.chat)] = 7
            case "dead":
                self.server.gone[int(self.chat)] = Failed(403, "Forbidden: bot was blocked by the user")
            case "broken":
                told = {"ok": False, "error_code": 502, "description": "Bad Gateway"}
                self.server.fault("sendMessage", "answer", answer=Answer.json(told, status=502))
            case "drop file after":
                self.server.fault("sendDocument", "drop after")
            case "file too large":
                self.server.most_bytes = 4
            case "drop before" | "drop after" | "hang":
                self.server.fault("sendMessage", how)
            case _:
                raise AssertionError(how)

    def cut(self) -> None:
        self.server.disconnect()

    def mend(self) -> None:
        self.server.reconnect()


@asynccontextmanager
async def telegram_stage(adapter: type[Telegram] = Telegram) -> AsyncIterator[TelegramStage]:
    async with TelegramServer() as server:
        server.bot(TOKEN, reads_all=True)
        yield TelegramStage(server, adapter)
