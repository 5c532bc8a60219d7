"""The vendor's client with its own will taken out: it asks once, tells what comes as it comes, and keeps nothing.

By itself it tries again, sleeps through limits, takes events apart into objects and caches them. Whether something may
be sent twice, how long is waited and what an event means is for us to say; what stays is how Discord is spoken to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import discord
from discord.gateway import DiscordWebSocket
from discord.http import HTTPClient, Route
from yarl import URL

EventCallback = Callable[[str, Any], None]
"""Hears of an event: its name, and what it tells."""

HANDLED_EVENTS: Final = ("READY", "RESUMED", "GUILD_CREATE", "MESSAGE_CREATE", "MESSAGE_UPDATE", "INTERACTION_CREATE")
CONNECT_SECONDS: Final = 30.0


class DiscordRateLimited(Exception):
    """Discord wants us to wait, or has trouble of its own."""

    def __init__(self, status: int, *, wait_seconds: float | None, is_global: bool) -> None:
        super().__init__(f"Discord answered {status}")
        self.status = status
        self.wait_seconds = wait_seconds
        self.is_global = is_global


class DiscordHttpClient(HTTPClient):
    """Asks once. The library's way to be watched is ours to stop it before it tries again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, base: str) -> None:
        watch = aiohttp.TraceConfig()
        watch.on_request_end.append(_raise_for_wait)
        super().__init__(loop, http_trace=watch, max_ratelimit_timeout=30.0)
        self._base = base

    async def request(self, route: Route, **given: Any) -> Any:
        if self._base:
            route.url = self._base + route.url.removeprefix(Route.BASE)
        return await super().request(route, **given)


async def _raise_for_wait(session: object, context: SimpleNamespace, told: aiohttp.TraceRequestEndParams) -> None:
    answer = told.response
    if answer.status != 429 and answer.status < 500:
        return
    wait = answer.headers.get("Retry-After") or answer.headers.get("X-RateLimit-Reset-After") or ""
    everywhere = "X-RateLimit-Global" in answer.headers
    answer.close()
    try:
        seconds = float(wait)
    except ValueError:
        seconds = 30.0
    raise DiscordRateLimited(
        answer.status, wait_seconds=seconds if answer.status == 429 else None, is_global=everywhere
    )


class DiscordClient(discord.Client):
    """One bot, signed in. `tell` hears of the few events that matter, in order, while `Socket` is read."""

    def __init__(self, *, base: str, tell: EventCallback) -> None:
        intents = discord.Intents(guilds=True, messages=True, message_content=True)
        super().__init__(intents=intents, max_messages=None, chunk_guilds_at_startup=False)
        self.rest = DiscordHttpClient(asyncio.get_running_loop(), base=base)
        self.http = self._connection.http = self.rest
        # instead of objects and a cache of them: a message reads the same whoever brings it, gateway or history
        self._connection.parsers = {event: _make_event_listener(event, tell) for event in HANDLED_EVENTS}

    @property
    def me(self) -> discord.ClientUser:
        assert self.user is not None, "it is signed in"
        return self.user

    async def open_socket(self, resume: DiscordResumePoint | None) -> DiscordSocket:
        """A connection to the gateway: the last one again if it can be had, or a new one."""
        if resume is None:
            _, url, _ = await self.rest.get_bot_gateway()
            # `initial`, or the library sleeps; how often somebody may introduce themselves is minded outside
            opening = DiscordWebSocket.from_client(self, gateway=URL(url), initial=True)
        else:
            opening = DiscordWebSocket.from_client(
                self, gateway=resume.gateway, session=resume.session, sequence=resume.sequence, resume=True
            )
        return DiscordSocket(await asyncio.wait_for(opening, CONNECT_SECONDS))


class DiscordResumePoint:
    """Where a connection was left."""

    def __init__(self, session: str, sequence: int | None, gateway: URL) -> None:
        self.session = session
        self.sequence = sequence
        self.gateway = gateway


class DiscordSocket:
    """One connection to the gateway."""

    def __init__(self, socket: DiscordWebSocket) -> None:
        self._socket = socket

    async def read(self) -> None:
        """Read the next thing that comes. Raises what the library raises when the connection ends."""
        await self._socket.poll_event()

    def resume_point(self) -> DiscordResumePoint | None:
        if not self._socket.session_id:
            return None
        return DiscordResumePoint(self._socket.session_id, self._socket.sequence, self._socket.gateway)

    async def close(self) -> None:
        await self._socket.close(code=4000)


def _make_event_listener(event: str, tell: EventCallback) -> Callable[[Any], None]:
    return lambda data: tell(event, data)
