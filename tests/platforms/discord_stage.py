"""Discord as the contract's far side."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everhold.platforms.discord.adapter import Discord
from everhold.platforms.discord.settings import DiscordSettings
from everhold.ports.platform import Accept, Platform
from everhold.ports.plugin import Context
from everhold.secret import Secret
from everhold.testing.contracts.platform import Seen
from everhold.testing.platforms.discord import DiscordServer, Failed
from everhold.testing.platforms.loopback import Answer

TOKEN = "MTA5OTk4.canary.discord-token"


class DiscordStage:
    platform = "discord"
    chat = "2001"
    group = "3001"
    sender = "1001"
    offers = frozenset("edits groups drafts typing files redelivery poison".split())

    def __init__(self, server: DiscordServer, adapter: type[Discord]) -> None:
        self.server = server
        self.adapter = adapter

    def settings(self) -> DiscordSettings:
        return DiscordSettings(token=Secret(TOKEN), base_url=self.server.api)

    def build(self, context: Context) -> Platform:
        return self.adapter(self.settings(), context)

    async def write(self, text: str, *, to: str) -> str:
        return await self.server.write(text, channel=to)

    async def edit(self, id: str, text: str, *, to: str) -> None:
        await self.server.edit(id, text, channel=to)

    async def mention(self, text: str, *, to: str) -> str:
        return await self.write(f"<@{self.server.bots[TOKEN].id}> {text}", to=to)

    async def pretend(self, text: str, *, to: str) -> str:
        return await self.server.write(text, channel=to, user="666", name="ada")

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str:
        return await self.server.write(text, channel=to, files=[(name, data)])

    async def poison(self) -> None:
        await self.server.write("a riddle", channel=self.chat, author="nobody")

    async def oddity(self) -> None:
        await self.server.happen("HOLOGRAM_CREATE", {"id": "1"})
        await self.server.happen("INTERACTION_CREATE", {"id": "2", "type": 99, "token": "t", "channel_id": self.chat})

    async def garble(self) -> None:
        await self.server.stutter(b'{"op": 0, "type": "\xff\xfe\xc3("}')

    async def redeliver(self, chance: random.Random) -> None:
        await self.server.redeliver(times=3, chance=chance)

    def shown(self, chat: str) -> list[Seen]:
        return [
            Seen(
                id=it["id"],
                text=it["content"],
                files=tuple(self.server.contents[file["id"]] for file in it["attachments"]),
            )
            for it in self.server.shown(chat)
        ]

    def fail(self, how: str) -> None:
        match how:
            case "limit":
                self.server.busy[self.chat] = 7
            case "dead":
                self.server.gone[self.chat] = Failed(403, 50007, "Cannot send messages to this user")
            case "broken":
                self.server.fault("POST messages", "answer", answer=Answer.json({"message": "oops"}, status=502))
            case "drop file after":
                self.server.fault("POST messages", "drop after")
            case "file too large":
                self.server.most_bytes = 4
            case "drop before" | "drop after" | "hang":
                self.server.fault("POST messages", how)
            case _:
                raise AssertionError(how)

    def cut(self) -> None:
        self.server.disconnect()

    def mend(self) -> None:
        self.server.reconnect()


class Acquainted(Discord):
    """Direct chats cannot be listed: somebody who wrote once is known, somebody who never did is not."""

    async def listen(self, accept: Accept) -> None:
        await self._backlog.note_direct(DiscordStage.chat)
        await super().listen(accept)


@asynccontextmanager
async def discord_stage(adapter: type[Discord] = Acquainted) -> AsyncIterator[DiscordStage]:
    async with DiscordServer() as server:
        server.bot(TOKEN)
        server.direct(DiscordStage.chat)
        server.channel(DiscordStage.group)
        yield DiscordStage(server, adapter)
