"""The vendor's client without its own policies: it calls once, passes events on unparsed, and caches nothing.

By default it retries, sleeps through rate limits, turns events into objects and caches them. The adapter decides about
repeats, waits and the meaning of events, so only the transport of the client is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import discord
from discord.gateway import DiscordWebSocket
from yarl import URL

from everhold.platforms.discord.http_client import DiscordHttpClient

EventCallback = Callable[[str, Any], None]
"""Receives an event: its name and its data."""

HANDLED_EVENTS: Final = (
    "READY",
    "RESUMED",
    "GUILD_CREATE",
    "CHANNEL_CREATE",
    "THREAD_CREATE",
    "MESSAGE_CREATE",
    "MESSAGE_UPDATE",
    "INTERACTION_CREATE",
)
CONNECT_SECONDS: Final = 30.0


class DiscordClient(discord.Client):
    """One bot, logged in. `tell` receives the relevant events, in order, while `DiscordSocket` is read."""

    def __init__(self, *, base: str, on_event: EventCallback) -> None:
        intents = discord.Intents(guilds=True, messages=True, message_content=True)
        super().__init__(intents=intents, max_messages=None, chunk_guilds_at_startup=False)
        self.rest = DiscordHttpClient(asyncio.get_running_loop(), base=base)
        self.http = self._connection.http = self.rest
        # no objects and no cache, so that a message from the gateway and one from the history have the same form
        self._connection.parsers = {event: _make_event_listener(event, on_event) for event in HANDLED_EVENTS}

    @property
    def me(self) -> discord.ClientUser:
        assert self.user is not None, "the bot is logged in"
        return self.user

    async def open_socket(self, resume: DiscordResumePoint | None) -> DiscordSocket:
        """A connection to Discord's gateway: the last session resumed if possible, otherwise a new one."""
        if resume is None:
            _, url, _ = await self.rest.get_bot_gateway()
            # `initial` keeps the library from sleeping; the caller limits how often the bot identifies
            opening = DiscordWebSocket.from_client(self, gateway=URL(url), initial=True)
        else:
            opening = DiscordWebSocket.from_client(
                self, gateway=resume.gateway, session=resume.session, sequence=resume.sequence, resume=True
            )
        return DiscordSocket(await asyncio.wait_for(opening, CONNECT_SECONDS))


class DiscordResumePoint:
    """The session id and sequence number at which a connection ended."""

    def __init__(self, session: str, sequence: int | None, gateway: URL) -> None:
        self.session = session
        self.sequence = sequence
        self.gateway = gateway


class DiscordSocket:
    """One connection to Discord's gateway."""

    def __init__(self, socket: DiscordWebSocket) -> None:
        self._socket = socket

    async def read(self) -> None:
        """Read the next event. Raises the library's error when the connection ends."""
        await self._socket.poll_event()

    def resume_point(self) -> DiscordResumePoint | None:
        if not self._socket.session_id:
            return None
        return DiscordResumePoint(self._socket.session_id, self._socket.sequence, self._socket.gateway)

    async def close(self) -> None:
        await self._socket.close(code=4000)


def _make_event_listener(event: str, on_event: EventCallback) -> Callable[[Any], None]:
    return lambda data: on_event(event, data)
