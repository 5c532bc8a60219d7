"""Slack as the contract's far side."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everhold.platforms.slack.adapter import Slack
from everhold.platforms.slack.settings import SlackSettings
from everhold.platforms.slack.wording import inward
from everhold.ports.platform import Platform
from everhold.ports.plugin import Context
from everhold.secret import Secret
from everhold.testing.contracts.platform import Seen
from everhold.testing.platforms.loopback import Answer
from everhold.testing.platforms.slack import SlackServer

BOT_TOKEN = "xoxb-2545-canary-bot"
APP_TOKEN = "xapp-1-A0-canary-app"


class SlackStage:
    platform = "slack"
    chat = "D1"
    group = "C1"
    sender = "UADA"
    offers = frozenset("edits groups drafts files redelivery poison rivals".split())

    def __init__(self, server: SlackServer) -> None:
        self.server = server

    def settings(self) -> SlackSettings:
        return SlackSettings(
            bot_token=Secret(BOT_TOKEN), app_token=Secret(APP_TOKEN), base_url=f"{self.server.url}/api/"
        )

    def build(self, context: Context) -> Platform:
        return Slack(self.settings(), context)

    async def write(self, text: str, *, to: str) -> str:
        return await self.server.write(text, channel=to)

    async def edit(self, id: str, text: str, *, to: str) -> None:
        await self.server.edit(id, text, channel=to)

    async def mention(self, text: str, *, to: str) -> str:
        return await self.write(f"<@{self.server.apps[0].user}> {text}", to=to)

    async def pretend(self, text: str, *, to: str) -> str:
        self.server.names["UEVE"] = "ada"
        return await self.server.write(text, channel=to, user="UEVE", username=self.sender)

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str:
        return await self.server.write(text, channel=to, files=[(name, data)])

    async def poison(self) -> None:
        await self.server.write("a riddle", channel=self.chat, user={"id": 7})  # type: ignore[arg-type]  # that is it

    async def oddity(self) -> None:
        await self.server.happen({"type": "hologram_shared", "hologram": {"id": 1}})
        await self.server.happen({"type": "whatever"}, type="holograms")

    async def garble(self) -> None:
        await self.server.stutter(b'{"op": 0, "type": "\xff\xfe\xc3("}')

    async def redeliver(self, chance: random.Random) -> None:
        await self.server.redeliver(times=3, chance=chance)

    def shown(self, chat: str) -> list[Seen]:
        return [
            Seen(
                id=it["ts"],
                text=inward(it["text"], names={}),
                files=tuple(self.server.contents[file["id"]] for file in it.get("files", ())),
            )
            for it in self.server.shown(chat)
        ]

    def fail(self, how: str) -> None:
        match how:
            case "limit":
                self.server.busy[self.chat] = 7
            case "dead":
                self.server.gone[self.chat] = "is_archived"
            case "broken":
                told = {"ok": False, "error": "internal_error"}
                self.server.fault("chat.postMessage", "answer", answer=Answer.json(told, status=500))
            case "drop file after":
                self.server.fault("files.completeUploadExternal", "drop after")
            case "file too large":
                self.server.most_bytes = 4
            case "drop before" | "drop after" | "hang":
                self.server.fault("chat.postMessage", how)
            case _:
                raise AssertionError(how)

    def cut(self) -> None:
        self.server.disconnect()

    def mend(self) -> None:
        self.server.reconnect()


@asynccontextmanager
async def slack_stage() -> AsyncIterator[SlackStage]:
    async with SlackServer() as server:
        app = server.app(BOT_TOKEN, APP_TOKEN)
        server.invite(app, SlackStage.chat)
        server.invite(app, SlackStage.group)
        yield SlackStage(server)
