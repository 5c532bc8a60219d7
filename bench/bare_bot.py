"""The simplest bot of a platform, in its own process: the vendor's client in a loop, and one request to a model.

It stores nothing. For every message it makes the calls that the gateway makes for a quick reply. `steps` names them in
order: `typing`, `send`, `edit`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any

import httpx2

from bench.model_stub import REPLY

DRAFT = REPLY[: len(REPLY) // 2]


class BareModel:
    """Asks the model for one reply."""

    def __init__(self) -> None:
        self._client = httpx2.AsyncClient(base_url=os.environ["MODEL_URL"], trust_env=False)

    async def ask(self, text: str) -> str:
        body = {"model": "instant", "messages": [{"role": "user", "content": text}]}
        answer = await self._client.post("/chat/completions", json=body)
        return str(answer.json()["choices"][0]["message"]["content"])


async def run_telegram(url: str, token: str, steps: Sequence[str]) -> None:
    from telegram import Bot

    model = BareModel()
    async with Bot(token, base_url=f"{url}/bot") as bot:
        offset = 0
        print("ready", flush=True)
        while True:
            for update in await bot.get_updates(offset=offset, timeout=10):
                offset = update.update_id + 1
                if update.message is None:
                    continue
                chat = update.message.chat.id
                if "typing" in steps:
                    await bot.send_chat_action(chat, "typing")
                reply = await model.ask(update.message.text or "")
                sent = await bot.send_message(chat, DRAFT if "edit" in steps else reply)
                if "edit" in steps:
                    await bot.edit_message_text(reply, chat_id=chat, message_id=sent.message_id)


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
    client = discord.Client(intents=discord.Intents(guilds=True, messages=True, message_content=True))

    @client.event
    async def on_ready() -> None:
        print("ready", flush=True)

    @client.event
    async def on_message(message: discord.Message) -> None:
        if message.author == client.user:
            return
        if "typing" in steps:
            await message.channel.typing()
        reply = await model.ask(message.content)
        sent = await message.channel.send(DRAFT if "edit" in steps else reply)
        if "edit" in steps:
            await sent.edit(content=reply)

    await client.start(token)


async def run_slack(url: str, token: str, steps: Sequence[str]) -> None:
    from slack_sdk.socket_mode.aiohttp import SocketModeClient
    from slack_sdk.socket_mode.request import SocketModeRequest
    from slack_sdk.socket_mode.response import SocketModeResponse
    from slack_sdk.web.async_client import AsyncWebClient

    model = BareModel()
    bot_token, app_token = token.split(",")
    web = AsyncWebClient(token=bot_token, base_url=url)
    client = SocketModeClient(app_token=app_token, web_client=AsyncWebClient(base_url=url))

    async def on_request(socket: Any, request: SocketModeRequest) -> None:
        await socket.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        event = request.payload.get("event") or {}
        if event.get("type") != "message" or event.get("bot_id") or event.get("subtype"):
            return
        reply = await model.ask(event["text"])
        sent = await web.chat_postMessage(channel=event["channel"], text=DRAFT if "edit" in steps else reply)
        if "edit" in steps:
            await web.chat_update(channel=event["channel"], ts=sent["ts"], text=reply)

    client.socket_mode_request_listeners.append(on_request)
    await client.connect()
    print("ready", flush=True)
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
        text = {"msgtype": "m.text", "body": DRAFT if "edit" in steps else reply}
        sent: Any = await client.room_send(room.room_id, "m.room.message", text)
        if "edit" in steps:
            new = {"msgtype": "m.text", "body": reply}
            relation = {"rel_type": "m.replace", "event_id": sent.event_id}
            await client.room_send(
                room.room_id, "m.room.message", {**new, "m.new_content": new, "m.relates_to": relation}
            )

    async def on_invitation(room: MatrixRoom, _event: InviteMemberEvent) -> None:
        await client.join(room.room_id)

    await client.sync(timeout=0)
    client.add_event_callback(on_message, RoomMessageText)
    client.add_event_callback(on_invitation, InviteMemberEvent)  # type: ignore[arg-type]
    print("ready", flush=True)
    await client.sync_forever(timeout=10_000)


BOTS = {"telegram": run_telegram, "discord": run_discord, "slack": run_slack, "matrix": run_matrix}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("platform", choices=BOTS)
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("steps", nargs="*")
    given = parser.parse_args()
    asyncio.run(BOTS[given.platform](given.url, given.token, given.steps))
