"""The remote Slack for the platform contract."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everhold.infra.secret import SecretString
from everhold.platforms.slack.adapter import SlackPlatform
from everhold.platforms.slack.formatting import from_mrkdwn
from everhold.platforms.slack.settings import SlackSettings
from everhold.ports.platform import Platform
from everhold.ports.plugin import PluginContext
from everhold.testing.contracts.platform import ShownMessage
from everhold.testing.platforms.loopback import LoopbackResponse
from everhold.testing.platforms.slack import SlackServer

BOT_TOKEN = "xoxb-2545-canary-bot"
APP_TOKEN = "xapp-1-A0-canary-app"


class RemoteSlack:
    platform = "slack"
    chat = "D1"
    group = "C1"
    sender = "UADA"
    offers = frozenset("edits groups drafts files redelivery poison rivals history".split())

    confirmed_presses = 0

    def __init__(self, server: SlackServer) -> None:
        self.server = server

    def settings(self) -> SlackSettings:
        return SlackSettings(
            bot_token=SecretString(BOT_TOKEN), app_token=SecretString(APP_TOKEN), base_url=f"{self.server.url}/api/"
        )

    def build_adapter(self, context: PluginContext) -> Platform:
        return SlackPlatform(self.settings(), context)

    async def write(self, text: str, *, to: str) -> str:
        return await self.server.write_message(text, channel=to)

    async def edit(self, id: str, text: str, *, to: str) -> None:
        await self.server.edit_message(id, text, channel=to)

    async def mention(self, text: str, *, to: str) -> str:
        return await self.write(f"<@{self.server.apps[0].user}> {text}", to=to)

    async def write_as_impostor(self, text: str, *, to: str) -> str:
        self.server.names["UEVE"] = "ada"
        return await self.server.write_message(text, channel=to, user="UEVE", username=self.sender)

    async def reply(self, text: str, *, to: str, id: str) -> str:
        return await self.server.write_message(text, channel=to, thread=id)

    async def press(self, label: str, *, message: str, to: str) -> None:
        self.confirmed_presses += await self.server.press_button(label, message=message, channel=to)

    def count_confirmed_presses(self) -> int:
        return self.confirmed_presses

    def list_calls(self) -> list[str]:
        receiving = ("auth.test", "apps.connections.open", "users.conversations", "link")
        return [
            name for name, _ in self.server.calls if name not in receiving and not name.startswith("conversations.")
        ]

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str:
        return await self.server.write_message(text, channel=to, files=[(name, data)])

    async def send_unparsable_update(self) -> None:
        await self.server.write_message("a riddle", channel=self.chat, user_profile="nobody")

    def hang_files(self) -> None:
        self.server.hang_calls("files")

    def release_files(self) -> None:
        self.server.release_calls("files")

    async def send_unknown_update(self) -> None:
        await self.server.send_event({"type": "hologram_shared", "hologram": {"id": 1}})
        await self.server.send_event({"type": "whatever"}, type="holograms")

    async def send_invalid_utf8(self) -> None:
        await self.server.broadcast_raw_text(b'{"op": 0, "type": "\xff\xfe\xc3("}')

    async def redeliver(self, chance: random.Random) -> None:
        await self.server.redeliver(times=3, chance=chance)

    def list_shown(self, chat: str) -> list[ShownMessage]:
        return [
            ShownMessage(
                id=it["ts"],
                text=from_mrkdwn(it["text"], names={}),
                files=tuple(self.server.contents[file["id"]] for file in it.get("files", ())),
            )
            for it in self.server.list_shown_messages(chat)
        ]

    def fail_next_send(self, how: str) -> None:
        match how:
            case "limit":
                self.server.retry_after_seconds[self.chat] = 7
            case "dead":
                self.server.channel_errors[self.chat] = "is_archived"
            case "broken":
                told = {"ok": False, "error": "internal_error"}
                self.server.plan_fault("chat.postMessage", "answer", answer=LoopbackResponse.json(told, status=500))
            case "drop file after":
                self.server.plan_fault("files.completeUploadExternal", "drop after")
            case "file too large":
                self.server.max_file_bytes = 4
            case "drop before" | "drop after" | "hang":
                self.server.plan_fault("chat.postMessage", how)
            case _:
                raise AssertionError(how)

    async def open_chats(self, count: int) -> list[str]:
        channels = [f"C{number}" for number in range(100, 100 + count)]
        for channel in channels:
            self.server.invite_app(self.server.apps[0], channel)
        return channels

    def hang_history(self) -> None:
        self.server.held.clear()
        self.server.hang_calls("conversations.history")

    async def wait_for_history(self) -> None:
        await self.server.held.wait()

    def release_history(self) -> None:
        self.server.release_calls("conversations.history")

    def disconnect(self) -> None:
        self.server.disconnect()

    def reconnect(self) -> None:
        self.server.reconnect()


@asynccontextmanager
async def open_remote_slack() -> AsyncIterator[RemoteSlack]:
    async with SlackServer() as server:
        app = server.add_app(BOT_TOKEN, APP_TOKEN)
        server.invite_app(app, RemoteSlack.chat)
        server.invite_app(app, RemoteSlack.group)
        yield RemoteSlack(server)
