"""What was said while nobody listened: read from the history of every channel that went on since, oldest first.

The gateway repeats what a connection missed if it comes back soon. To anybody else it repeats nothing, so every channel
has a position of its own: the last message that was kept. Channels of servers can be listed, direct chats cannot: those
are remembered, before anything in them is kept, and those with people who are let in anyway are asked for.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from everhold.errors import Refused
from everhold.platforms.catch_up import read_until_answered
from everhold.platforms.discord import reading
from everhold.platforms.discord.client import Rest
from everhold.platforms.discord.reading import Channel
from everhold.ports.log import Log
from everhold.ports.plugin import Station

T = TypeVar("T")
Call: TypeAlias = Callable[[Callable[[Rest], Awaitable[T]]], Awaitable[T]]
"""Asks Discord something; raises our errors."""
Hear: TypeAlias = Callable[[Channel, dict[str, Any]], Awaitable[None]]

ALIVE: Final = "alive"
DIRECT: Final = "direct"
MET: Final = "met"
PAGE: Final = 100
MOST_FRIENDS: Final = 50
"""How many direct chats are asked for at once: Discord takes many new ones for spam."""
MOST_DIRECT: Final = 500
"""How many direct chats are looked into after a gap: those that were opened last."""
SKEW_SECONDS: Final = 60.0


class Backlog:
    """Where every channel was left, and the way from there to now."""

    def __init__(self, call: Call[Any], station: Station, log: Log) -> None:
        self._call = call
        self._station = station
        self._log = log
        self._at: dict[str, int] = {}
        self._direct: list[str] | None = None
        self.channels: dict[str, Channel] = {}
        """The channels that were described to us."""

    def moves(self, channel: Channel, id: str) -> str | None:
        """The position that goes with a message just heard, unless there is a later one."""
        if int(id) <= self._at.get(channel.id, 0):
            return None
        self._at[channel.id] = int(id)
        return f"channel/{channel.id}"

    async def channel(self, id: str) -> Channel:
        """What kind of place this is. Its conversation has another name if it is a thread, so it has to be known."""
        if id not in self.channels:
            try:
                told = await self._patiently(lambda rest: rest.get_channel(id))
                self.channels[id] = reading.channel(told)
            except (Refused, KeyError, TypeError) as error:
                self._log.warning("channel.unknown", chat=id, error=str(error))
                return Channel(id=id)
        return self.channels[id]

    async def note_direct(self, id: str) -> None:
        """Remember a direct chat before anything in it is kept."""
        self.channels[id] = Channel(id=id, direct=True)
        known = await self._known_direct()
        if id not in known:
            known.append(id)
            del known[:-MOST_DIRECT]
            await self._station.positions.move(DIRECT, msgspec.json.encode(known).decode())

    async def run(self, hear: Hear, *, now: float) -> None:
        """Hand over everything that was missed. `now` is when the connection was made."""
        # the very first time there is only what was said while we were being set up
        alive = int(await self._station.positions.read(ALIVE) or reading.snowflake(now - SKEW_SECONDS))
        async for channel, last in self._places():
            since = int(await self._station.positions.read(f"channel/{channel.id}") or alive)
            self._at[channel.id] = max(since, self._at.get(channel.id, 0))
            if last is None or last > since:
                try:
                    await self._catch_up(channel, since, hear)
                except Refused as error:  # one that cannot be read keeps no other from being read
                    self._log.info("history.unread", chat=channel.id, error=error)
        await self.lived(now)

    async def lived(self, now: float) -> None:
        """Until `now` everything was heard. A little less is claimed: their clock is not ours."""
        await self._station.positions.move(ALIVE, str(reading.snowflake(now - SKEW_SECONDS)))

    async def _catch_up(self, channel: Channel, since: int, hear: Hear) -> None:
        while True:
            page = await self._patiently(functools.partial(_after, channel.id, since))
            for message in sorted(page, key=lambda it: int(it["id"])):
                since = int(message["id"])
                await hear(channel, message)
            if len(page) < PAGE:
                return

    async def _places(self) -> AsyncIterator[tuple[Channel, int | None]]:
        """Every place there is, with its last message where that is known."""
        await self._meet()
        for id in list(await self._known_direct()):
            self.channels[id] = Channel(id=id, direct=True)
            yield self.channels[id], None
        after = 0
        while True:
            guilds = await self._patiently(functools.partial(_guilds, after))
            for guild in guilds:
                for told in await self._described(guild["id"]):
                    self.channels[str(told["id"])] = reading.channel(told)
                    last = told.get("last_message_id")
                    if last:
                        yield self.channels[str(told["id"])], int(last)
            if len(guilds) < 200:
                return
            after = max(int(guild["id"]) for guild in guilds)

    async def _meet(self) -> None:
        """Ask for the direct chats with those who are let in, once each: the first word may come while we are away."""
        stored = await self._station.positions.read(MET)
        met = set(msgspec.json.decode(stored, type=list[str])) if stored else set()
        strangers = sorted(it for it in self._station.friends() if reading.is_id(it) and it not in met)
        for friend in strangers[:MOST_FRIENDS]:
            try:
                told = await self._patiently(functools.partial(_direct, friend))
                await self.note_direct(str(told["id"]))
            except Refused as error:
                self._log.info("person.unknown", id=friend, error=error)
            met.add(friend)
            await self._station.positions.move(MET, msgspec.json.encode(sorted(met)).decode())

    async def _described(self, guild: str) -> list[dict[str, Any]]:
        try:
            channels = await self._patiently(lambda rest: rest.get_all_guild_channels(guild))
            threads = await self._patiently(lambda rest: rest.get_active_threads(guild))
        except Refused as error:
            self._log.warning("history.unread", guild=guild, error=error)
            return []
        return [*channels, *threads["threads"]]

    async def _patiently(self, ask: Callable[[Rest], Awaitable[Any]]) -> Any:
        """Ask until there is an answer: to go on without it would be to lose what it tells."""
        return await read_until_answered(self._station, self._log, lambda: self._call(ask))

    async def _known_direct(self) -> list[str]:
        if self._direct is None:
            stored = await self._station.positions.read(DIRECT)
            self._direct = msgspec.json.decode(stored, type=list[str]) if stored else []
        return self._direct


def _after(channel: str, id: int, rest: Rest) -> Awaitable[Any]:
    return rest.logs_from(channel, PAGE, after=id)


def _guilds(after: int, rest: Rest) -> Awaitable[Any]:
    return rest.get_guilds(200, after=after, with_counts=False)


def _direct(friend: str, rest: Rest) -> Awaitable[Any]:
    return rest.start_private_message(friend)
