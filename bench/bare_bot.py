"""The simplest bot of a platform, in its own process: the vendor's client in a loop, and one request to a model.

It stores nothing and keeps its conversation in a list. For every message it makes the calls that the gateway makes.
`steps` names them in order: `typing`, `send`, `edit`. Its model request is the gateway's, with the same system prompt
and tools, and streamed. Its clients have the gateway's options: the same event loop, kept connections, the same
filters, and no caches that the gateway does not have.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

import httpx2

from everhold.cli.commands.up import choose_loop_factory, freeze_garbage_collector
from everhold.platforms.matrix.client import SYNC_FILTER

MOST_MESSAGES, KEPT_MESSAGES = 130, 24
"""As many messages as the gateway shows before and after a compression."""


class BareModel:
    """Asks the model for the next reply of a conversation."""

    def __init__(self) -> None:
        url = os.environ["MODEL_URL"]
        self._client = httpx2.AsyncClient(base_url=url, trust_env=False)
        request = httpx2.get(f"{url}/last", trust_env=False).json()
        self._fields = {name: value for name, value in request.items() if name != "messages"}
        self._messages = [message for message in request["messages"] if message["role"] == "system"]

    async def ask(self, text: str) -> str:
        self._messages.append({"role": "user", "content": text})
        pieces = []
        body = {**self._fields, "messages": self._messages}
        async with self._client.stream("POST", "/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        pieces.append(choice["delta"].get("content") or "")
        reply = "".join(pieces)
        self._messages.append({"role": "assistant", "content": reply})
        if len(self._messages) > MOST_MESSAGES:
            del self._messages[1:-KEPT_MESSAGES]
        return reply


def choose_text(steps: Sequence[str], number: int, reply: str) -> str:
    """Return the text of a step: the whole reply in the last one, and a part of it before, which grows."""
    return reply[: len(reply) * (number + 1) // len(steps)]


def announce() -> None:
    freeze_garbage_collector()
    print("ready", flush=True)


async def run_telegram(url: str, token: str, steps: Sequence[str]) -> None:
    from telegram import Bot

    model = BareModel()
    async with Bot(token, base_url=f"{url}/bot") as bot:
        offset = 0
        announce()
        while True:
            for update in await bot.get_updates(offset=offset, timeout=10):
                offset = update.update_id + 1
                if update.message is None:
                    continue
                chat = update.message.chat.id
                if "typing" in steps:
                    await bot.send_chat_action(chat, "typing")
                reply = await model.ask(update.message.text or "")
                sent: Any = None
                for number, step in enumerate(steps):
                    if step == "send":
                        sent = await bot.send_message(chat, choose_text(steps, number, reply))
                    elif step == "edit":
                        text = choose_text(steps, number, reply)
                        await bot.edit_message_text(text, chat_id=chat, message_id=sent.message_id)


async def run_discord(url: str, token: str, steps: Sequence[str]) -> None:
    import aiohttp
    import discord
    from discord.gateway import DiscordWebSocket
    from discord.http import Route
    from yarl import URL

    Route.BASE = url
    async with aiohttp.ClientSession(headers={"Authorization": f"Bot {token}"}) as session:
        async with session.get(f"{url}/gateway/bot") as response:
            DiscordWebSocket.DEFAULT_GATEWAY = URL((await response.json())["url"])
    model = BareModel()
    intents = discord.Intents(guilds=True, messages=True, message_content=True)
    client = discord.Client(intents=intents, max_messages=None, chunk_guilds_at_startup=False)

    @client.event
    async def on_ready() -> None:
        announce()

    @client.event
    async def on_message(message: discord.Message) -> None:
        if message.author == client.user:
            return
        if "typing" in steps:
            await message.channel.typing()
        reply = await model.ask(message.content)
        sent: Any = None
        for number, step in enumerate(steps):
            if step == "send":
                sent = await message.channel.send(choose_text(steps, number, reply))
            elif step == "edit":
                await sent.edit(content=choose_text(steps, number, reply))

    await client.start(token)


async def run_slack(url: str, token: str, steps: Sequence[str]) -> None:
    import aiohttp
    from slack_sdk.socket_mode.aiohttp import SocketModeClient
    from slack_sdk.socket_mode.request import SocketModeRequest
    from slack_sdk.socket_mode.response import SocketModeResponse
    from slack_sdk.web.async_client import AsyncWebClient

    model = BareModel()
    bot_token, app_token = token.split(",")
    # without a session the library would connect anew for every call
    web = AsyncWebClient(token=bot_token, base_url=url, session=aiohttp.ClientSession())
    client = SocketModeClient(app_token=app_token, web_client=AsyncWebClient(base_url=url))

    async def on_request(socket: Any, request: SocketModeRequest) -> None:
        await socket.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        event = request.payload.get("event") or {}
        if event.get("type") != "message" or event.get("bot_id") or event.get("subtype"):
            return
        reply = await model.ask(event["text"])
        sent: Any = None
        for number, step in enumerate(steps):
            text = choose_text(steps, number, reply)
            if step == "send":
                sent = await web.chat_postMessage(channel=event["channel"], text=text)
            elif step == "edit":
                await web.chat_update(channel=event["channel"], ts=sent["ts"], text=text)

    client.socket_mode_request_listeners.append(on_request)
    await client.connect()
    announce()
    await asyncio.Event().wait()


async def run_matrix(url: str, token: str, steps: Sequence[str]) -> None:
    from nio import AsyncClient, InviteMemberEvent, MatrixRoom, RoomMessageText

    model = BareModel()
    user, access_token = token.split(",")
    client = AsyncClient(url, user)
    client.access_token, client.user_id = access_token, user

    async def on_message(room: MatrixRoom, event: RoomMessageText) -> None:
        if event.sender == user:
            return
        if "typing" in steps:
            await client.room_typing(room.room_id, timeout=10_000)
        reply = await model.ask(event.body)
        sent: Any = None
        for number, step in enumerate(steps):
            new: dict[str, Any] = {"msgtype": "m.text", "body": choose_text(steps, number, reply)}
            if step == "send":
                sent = await client.room_send(room.room_id, "m.room.message", new)
            elif step == "edit":
                relation = {"rel_type": "m.replace", "event_id": sent.event_id}
                content = {**new, "m.new_content": new, "m.relates_to": relation}
                await client.room_send(room.room_id, "m.room.message", content)

    async def on_invitation(room: MatrixRoom, _event: InviteMemberEvent) -> None:
        await client.join(room.room_id)

    only = dict(SYNC_FILTER)
    await client.sync(timeout=0, sync_filter=only, set_presence="offline")
    client.add_event_callback(on_message, RoomMessageText)
    client.add_event_callback(on_invitation, InviteMemberEvent)  # type: ignore[arg-type]
    announce()
    await client.sync_forever(timeout=10_000, sync_filter=only, set_presence="offline")


BOTS = {"telegram": run_telegram, "discord": run_discord, "slack": run_slack, "matrix": run_matrix}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("platform", choices=BOTS)
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("steps", nargs="*")
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=choose_loop_factory()) as runner:
        runner.run(BOTS[given.platform](given.url, given.token, given.steps))
