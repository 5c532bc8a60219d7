"""The remote Discord for the platform contract."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everhold.infra.secret import SecretString
from everhold.platforms.discord.adapter import DiscordPlatform
from everhold.platforms.discord.settings import DiscordSettings
from everhold.ports.platform import AcceptMessage, Platform
from everhold.ports.plugin import PluginContext
from everhold.testing.contracts.platform import ShownMessage
from everhold.testing.platforms.discord import DiscordServer, DiscordServerError
from everhold.testing.platforms.loopback import LoopbackResponse

TOKEN = "MTA5OTk4.canary.discord-token"


class RemoteDiscord:
    platform = "discord"
    chat = "2001"
    group = "3001"
    sender = "1001"
    offers = frozenset("edits groups drafts typing files redelivery poison history".split())

    def __init__(self, server: DiscordServer, adapter: type[DiscordPlatform]) -> None:
        self.server = server
        self.adapter = adapter

    def settings(self) -> DiscordSettings:
        return DiscordSettings(token=SecretString(TOKEN), base_url=self.server.api)

    def build_adapter(self, context: PluginContext) -> Platform:
        return self.adapter(self.settings(), context)

    async def write(self, text: str, *, to: str) -> str:
        return await self.server.write_message(text, channel=to)

    async def edit(self, id: str, text: str, *, to: str) -> None:
        await self.server.edit_message(id, text, channel=to)

    async def mention(self, text: str, *, to: str) -> str:
        return await self.write(f"<@{self.server.bots[TOKEN].id}> {text}", to=to)

    async def write_as_impostor(self, text: str, *, to: str) -> str:
        return await self.server.write_message(text, channel=to, user="666", name="ada")

    async def reply(self, text: str, *, to: str, id: str) -> str:
        return await self.server.write_message(text, channel=to, reply_to=id)

    async def press(self, label: str, *, message: str, to: str) -> None:
        await self.server.press_button(label, message=message, channel=to)

    def count_confirmed_presses(self) -> int:
        return len(self.server.interaction_responses)

    def list_calls(self) -> list[str]:
        return [name for name, _ in self.server.calls if not name.startswith("GET ") and name != "PUT applications"]

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str:
        return await self.server.write_message(text, channel=to, files=[(name, data)])

    async def send_unparsable_update(self) -> None:
        await self.server.write_message("a riddle", channel=self.chat, attachments="none")

    def hang_files(self) -> None:
        self.server.hang_calls("GET files")

    def release_files(self) -> None:
        self.server.release_calls("GET files")

    async def send_unknown_update(self) -> None:
        await self.server.dispatch_event("HOLOGRAM_CREATE", {"id": "1"})
        await self.server.dispatch_event(
            "INTERACTION_CREATE", {"id": "2", "type": 99, "token": "t", "channel_id": self.chat}
        )

    async def send_invalid_utf8(self) -> None:
        await self.server.broadcast_raw_text(b'{"op": 0, "type": "\xff\xfe\xc3("}')

    async def redeliver(self, chance: random.Random) -> None:
        await self.server.redeliver(times=3, chance=chance)

    def list_shown(self, chat: str) -> list[ShownMessage]:
        return [
            ShownMessage(
                id=it["id"],
                text=it["content"],
                files=tuple(self.server.contents[file["id"]] for file in it["attachments"]),
            )
            for it in self.server.list_shown_messages(chat)
        ]

    def fail_next_send(self, how: str) -> None:
        match how:
            case "limit":
                self.server.retry_after_seconds[self.chat] = 7
            case "dead":
                self.server.channel_errors[self.chat] = DiscordServerError(
                    403, 50007, "Cannot send messages to this user"
                )
            case "broken":
                self.server.plan_fault(
                    "POST messages", "answer", answer=LoopbackResponse.json({"message": "oops"}, status=502)
                )
            case "drop file after":
                self.server.plan_fault("POST messages", "drop after")
            case "file too large":
                self.server.max_file_bytes = 4
            case "drop before" | "drop after" | "hang":
                self.server.plan_fault("POST messages", how)
            case _:
                raise AssertionError(how)

    async def open_chats(self, count: int) -> list[str]:
        channels = [str(number) for number in range(3_100, 3_100 + count)]
        for channel in channels:
            self.server.add_channel(channel)
        return channels

    def hang_history(self) -> None:
        self.server.held.clear()
        self.server.hang_calls("GET messages")

    async def wait_for_history(self) -> None:
        await self.server.held.wait()

    def release_history(self) -> None:
        self.server.release_calls("GET messages")

    def disconnect(self) -> None:
        self.server.disconnect()

    def reconnect(self) -> None:
        self.server.reconnect()


class AcquaintedDiscord(DiscordPlatform):
    """Direct chats cannot be listed, so a person who wrote before is known, and one who never did is not."""

    async def listen(self, accept: AcceptMessage) -> None:
        await self._backlog.add_direct_chat(RemoteDiscord.chat)
        await super().listen(accept)


@asynccontextmanager
async def open_remote_discord(adapter: type[DiscordPlatform] = AcquaintedDiscord) -> AsyncIterator[RemoteDiscord]:
    async with DiscordServer() as server:
        server.add_bot(TOKEN)
        server.add_direct_channel(RemoteDiscord.chat)
        server.add_channel(RemoteDiscord.group)
        yield RemoteDiscord(server, adapter)
