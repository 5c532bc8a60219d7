"""A message and its reply through a real homeserver, compared with a bare client that stores nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.gateway import HIGH_QUOTAS, Gateway, model
from bench.in_process import MESSAGE, temporary_directory
from bench.model_stub import REPLY
from bench.table import Row, at_most, median, ratio
from everhold.infra.home import Home
from everhold.testing.platforms.synapse import CLIENT_API_PATH, MatrixTestMember, SynapseServer

TURNS = 20
TALKERS = 4
"""Concurrent rooms, for the rate."""
MOST = 2.0
"""How much longer a turn may take than the bare client's. The gateway also shows typing and a draft."""
FILTER = json.dumps({"room": {"state": {"types": []}, "ephemeral": {"types": []}, "account_data": {"types": []}}})


def matrix_rows(rounds: int) -> list[Row]:
    try:
        import synapse  # noqa: F401
    except ImportError:
        return []
    with temporary_directory() as directory, model() as url:
        server = SynapseServer(directory / "synapse")
        server.start()
        try:
            return asyncio.run(_measured(rounds, server, directory / "home", url))
        finally:
            server.stop()


async def _measured(rounds: int, server: SynapseServer, directory: Path, url: str) -> list[Row]:
    agent, echo = await server.register_member("agent"), await server.register_member("echo")
    home = Home(directory).create()
    home.env.write_text(f"AGENT={agent.token}\n")
    home.env.chmod(0o600)
    found: dict[str, list[float]] = {name: [] for name in ("ours", "bare", "rate", "bare rate", "cpu")}
    gateway = await asyncio.to_thread(lambda: Gateway(directory, config=_config(server, url)))
    try:
        async with agent, echo, _echoing(echo), _talkers(server, agent) as ours, _talkers(server, echo) as bare:
            for _ in range(rounds):
                cpu = gateway.cpu()
                found["ours"].append(await _turns(ours[:1], TURNS))
                found["cpu"].append((gateway.cpu() - cpu) / TURNS)
                found["bare"].append(await _turns(bare[:1], TURNS))
                found["rate"].append(TALKERS / await _turns(ours, TURNS // 2))
                found["bare rate"].append(TALKERS / await _turns(bare, TURNS // 2))
    finally:
        await asyncio.to_thread(gateway.close)
    return [
        at_most(
            "message and reply through Synapse",
            median(found["ours"]) * 1000,
            "ms",
            MOST,
            beside=f"a bare client {median(found['bare']) * 1000:.0f} ms",
            ratio=ratio(found["ours"], found["bare"]),
        ),
        Row(
            what=f"the same in {TALKERS} rooms at once",
            value=median(found["rate"]),
            unit="/s",
            beside=f"a bare client {median(found['bare rate']):.1f} /s",
            ratio=ratio(found["rate"], found["bare rate"]),
        ),
        Row(what="CPU of the gateway per message over Matrix", value=median(found["cpu"]) * 1000, unit="ms"),
    ]


def _config(server: SynapseServer, url: str) -> str:
    account = {"homeserver": server.url, "token_env": "AGENT", "access": {"direct": ["*"]}}
    endpoint = {"provider": "openai", "base_url": url, "name": "instant", "context_tokens": 12_000}
    given = {
        "models": {"instant": endpoint},
        "defaults": {"model": "instant"},
        "quotas": HIGH_QUOTAS,
        "platforms": {"matrix": {"main": account}},
    }
    return json.dumps(given)


class Talker:
    """A member alone with an agent in a room, who writes and then syncs until the reply arrives."""

    def __init__(self, who: MatrixTestMember, room: str, since: str) -> None:
        self.who = who
        self.room = room
        self.since = since

    async def turn(self) -> None:
        await self.who.send_text(self.room, MESSAGE)
        while True:
            self.since, events = await read_news(self.who, self.since)
            if any(chat == self.room and sender != self.who.id and text == REPLY for chat, sender, text in events):
                return  # a draft counts when it is complete


async def _turns(talkers: list[Talker], turns: int) -> float:
    """Seconds per turn, with all rooms at once."""

    async def talk(talker: Talker) -> None:
        for _ in range(turns):
            await talker.turn()

    began = time.perf_counter()
    await asyncio.gather(*(talk(talker) for talker in talkers))
    return (time.perf_counter() - began) / turns


@contextlib.asynccontextmanager
async def _talkers(server: SynapseServer, partner: MatrixTestMember) -> AsyncIterator[list[Talker]]:
    async with contextlib.AsyncExitStack() as stack:
        talkers = []
        for number in range(TALKERS):
            who = await stack.enter_async_context(await server.register_member(f"talker{number}"))
            since = (await read_news(who, ""))[0]
            talker = Talker(who, await who.create_room(partner.id, direct=True), since)
            await talker.turn()  # the first one opens the session
            talkers.append(talker)
        yield talkers


@contextlib.asynccontextmanager
async def _echoing(who: MatrixTestMember) -> AsyncIterator[None]:
    """Run the simplest client: it accepts every invitation and answers every message."""

    async def echo() -> None:
        since = ""
        while True:
            since, events = await read_news(who, since, joining=True)
            for chat, sender, _ in events:
                if sender != who.id:
                    await who.send_text(chat, REPLY)

    task = asyncio.create_task(echo())
    try:
        yield
    finally:
        task.cancel()


async def read_news(
    who: MatrixTestMember, since: str, *, joining: bool = False
) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the next sync token, and (room, sender, text) of each message sent or edited since."""
    wait: dict[str, Any] = {"since": since, "timeout": 30_000} if since else {}
    answer = await who.http.get(f"{CLIENT_API_PATH}/sync", params={"filter": FILTER, **wait})
    news = answer.json()
    rooms = news.get("rooms", {})
    if joining:
        for chat in rooms.get("invite", {}):
            await who.join_room(chat)
    said = [
        (chat, event["sender"], event["content"].get("m.new_content", event["content"])["body"])
        for chat, it in rooms.get("join", {}).items()
        for event in it["timeline"]["events"]
        if event["type"] == "m.room.message"
    ]
    return news["next_batch"], said
