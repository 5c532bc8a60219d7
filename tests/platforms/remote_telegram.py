"""The remote Telegram for the platform contract."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from everhold.infra.secret import SecretString
from everhold.platforms.telegram.adapter import TelegramPlatform
from everhold.platforms.telegram.settings import TelegramSettings
from everhold.ports.platform import Platform
from everhold.ports.plugin import PluginContext
from everhold.testing.contracts.platform import ShownMessage
from everhold.testing.platforms.loopback import LoopbackResponse
from everhold.testing.platforms.telegram import TelegramServer, TelegramServerError
from tests.waiting import LIMIT_SECONDS

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw-canary"


class RemoteTelegram:
    platform = "telegram"
    chat = "1001"
    group = "-100123"
    sender = "1001"
    offers = frozenset("edits groups drafts typing files redelivery poison rivals history".split())

    def __init__(self, server: TelegramServer, adapter: type[TelegramPlatform] = TelegramPlatform) -> None:
        self.server = server
        self.adapter = adapter

    def build_adapter(self, context: PluginContext) -> Platform:
        settings = TelegramSettings(token=SecretString(TOKEN), base_url=self.server.url, poll_seconds=1)
        return self.adapter(settings, context)

    async def write(self, text: str, *, to: str) -> str:
        return str(await self.server.write_message(text, chat=int(to)))

    async def edit(self, id: str, text: str, *, to: str) -> None:
        await self.server.edit_message(int(id), text, chat=int(to))

    async def mention(self, text: str, *, to: str) -> str:
        return await self.write(f"@everhold_bot {text}", to=to)

    async def write_as_impostor(self, text: str, *, to: str) -> str:
        eve: dict[str, Any] = {"from": {"id": 666, "is_bot": False, "first_name": "Ada", "username": self.sender}}
        return str(await self.server.write_message(text, user=666, chat=int(to), **eve))

    async def reply(self, text: str, *, to: str, id: str) -> str:
        return str(await self.server.write_message(text, chat=int(to), reply_to=int(id)))

    async def press(self, label: str, *, message: str, to: str) -> None:
        await self.server.press_button(label, message=int(message), chat=int(to))

    def count_confirmed_presses(self) -> int:
        return len(self.server.confirmed_presses)

    def list_calls(self) -> list[str]:
        receiving = ("getMe", "getUpdates", "deleteWebhook", "setMyCommands")
        return [name for name, _ in self.server.calls if name not in receiving]

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str:
        return str(await self.server.write_message(text, chat=int(to), file=(name, data)))

    async def send_unparsable_update(self) -> None:
        sent = {"from": {"id": int(self.sender)}, "chat": {"id": int(self.chat), "type": "private"}}
        await self.server.push_update({"message": {**sent, "message_id": "not a number", "date": "yesterday"}})

    def hang_files(self) -> None:
        self.server.hang_calls("file")

    def release_files(self) -> None:
        self.server.release_calls("file")

    async def send_unknown_update(self) -> None:
        await self.server.push_update({"holographic_message": {"id": 1}})

    async def send_invalid_utf8(self) -> None:
        id = await self.server.push_update({"poll": {}})  # it has a number, and is skipped
        broken = b'{"ok": true, "result": [{"update_id": %d, "message": {"text": "\xff\xfe\xc3("}}]}' % id
        self.server.plan_fault("getUpdates", "answer", answer=LoopbackResponse(200, broken, "application/json"))
        async with asyncio.timeout(LIMIT_SECONDS):
            await self.server.wait_for_faults("getUpdates")  # messages from here on come after it

    async def redeliver(self, chance: random.Random) -> None:
        await self.server.redeliver(times=3, chance=chance)

    def list_shown(self, chat: str) -> list[ShownMessage]:
        bots = {bot.id for bot in self.server.bots.values()}
        return [
            ShownMessage(id=str(it.id), text=it.text, files=(it.file[1],) if it.file else ())
            for it in self.server.list_shown_messages(int(chat))
            if it.sender_id in bots
        ]

    def fail_next_send(self, how: str) -> None:
        match how:
            case "limit":
                self.server.retry_after_seconds[int(self.chat)] = 7
            case "dead":
                self.server.chat_errors[int(self.chat)] = TelegramServerError(
                    403, "Forbidden: bot was blocked by the user"
                )
            case "broken":
                told = {"ok": False, "error_code": 502, "description": "Bad Gateway"}
                self.server.plan_fault("sendMessage", "answer", answer=LoopbackResponse.json(told, status=502))
            case "drop file after":
                self.server.plan_fault("sendDocument", "drop after")
            case "file too large":
                self.server.max_file_bytes = 4
            case "drop before" | "drop after" | "hang":
                self.server.plan_fault("sendMessage", how)
            case _:
                raise AssertionError(how)

    async def open_chats(self, count: int) -> list[str]:
        return [str(number) for number in range(-100_900, -100_900 + count)]

    def hang_history(self) -> None:
        self.server.held.clear()
        self.server.hang_calls("getUpdates")

    async def wait_for_history(self) -> None:
        await self.server.held.wait()

    def release_history(self) -> None:
        self.server.release_calls("getUpdates")

    def disconnect(self) -> None:
        self.server.disconnect()

    def reconnect(self) -> None:
        self.server.reconnect()


@asynccontextmanager
async def open_remote_telegram(adapter: type[TelegramPlatform] = TelegramPlatform) -> AsyncIterator[RemoteTelegram]:
    async with TelegramServer() as server:
        server.add_bot(TOKEN, reads_all=True)
        yield RemoteTelegram(server, adapter)
