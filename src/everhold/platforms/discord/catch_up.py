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
from everhold.platforms.discord import parsing
from everhold.platforms.discord.client import DiscordHttpClient
from everhold.platforms.discord.parsing import DiscordChannel
from everhold.ports.log import EventLogger
from everhold.ports.plugin import AccountContext

T = TypeVar("T")
CallApi: TypeAlias = Callable[[Callable[[DiscordHttpClient], Awaitable[T]]], Awaitable[T]]
"""Asks Discord something; raises our errors."""
HandleMessage: TypeAlias = Callable[[DiscordChannel, dict[str, Any]], Awaitable[None]]

LAST_ALIVE_KEY: Final = "alive"
DIRECT_CHATS_KEY: Final = "direct"
CONTACTED_USERS_KEY: Final = "met"
PAGE_SIZE: Final = 100
MAX_DIRECT_CHAT_REQUESTS: Final = 50
"""How many direct chats are asked for at once: Discord takes many new ones for spam."""
MAX_DIRECT_CHATS: Final = 500
"""How many direct chats are looked into after a gap: those that were opened last."""
CLOCK_SKEW_SECONDS: Final = 60.0


class DiscordCatchUp:
    """Where every channel was left, and the way from there to now."""

    def __init__(self, call: CallApi[Any], account_context: AccountContext, log: EventLogger) -> None:
        self._call = call
        self._account_context = account_context
        self._log = log
        self._positions: dict[str, int] = {}
        self._direct_chats: list[str] | None = None
        self.channels: dict[str, DiscordChannel] = {}
        """The channels that were described to us."""

    def advance_position(self, channel: DiscordChannel, id: str) -> str | None:
        """The position that goes with a message just heard, unless there is a later one."""
        if int(id) <= self._positions.get(channel.id, 0):
            return None
        self._positions[channel.id] = int(id)
        return f"channel/{channel.id}"

    async def get_channel(self, id: str) -> DiscordChannel:
        """What kind of place this is. Its conversation has another name if it is a thread, so it has to be known."""
        if id not in self.channels:
            try:
                told = await self._call_until_answered(lambda rest: rest.get_channel(id))
                self.channels[id] = parsing.parse_channel(told)
            except (Refused, KeyError, TypeError) as error:
                self._log.warning("channel.unknown", chat=id, error=str(error))
                return DiscordChannel(id=id)
        return self.channels[id]

    async def add_direct_chat(self, id: str) -> None:
        """Remember a direct chat before anything in it is kept."""
        self.channels[id] = DiscordChannel(id=id, is_direct=True)
        known = await self._load_direct_chats()
        if id not in known:
            known.append(id)
            del known[:-MAX_DIRECT_CHATS]
            await self._account_context.offsets.advance(DIRECT_CHATS_KEY, msgspec.json.encode(known).decode())

    async def run(self, hear: HandleMessage, *, now: float) -> None:
        """Hand over everything that was missed. `now` is when the connection was made."""
        # the very first time there is only what was said while we were being set up
        alive = int(
            await self._account_context.offsets.read(LAST_ALIVE_KEY) or parsing.make_snowflake(now - CLOCK_SKEW_SECONDS)
        )
        async for channel, last in self._list_channels():
            since = int(await self._account_context.offsets.read(f"channel/{channel.id}") or alive)
            self._positions[channel.id] = max(since, self._positions.get(channel.id, 0))
            if last is None or last > since:
                try:
                    await self._read_channel_history(channel, since, hear)
                except Refused as error:  # one that cannot be read keeps no other from being read
                    self._log.info("history.failed", chat=channel.id, error=error)
        await self.record_alive(now)

    async def record_alive(self, now: float) -> None:
        """Until `now` everything was heard. A little less is claimed: their clock is not ours."""
        await self._account_context.offsets.advance(
            LAST_ALIVE_KEY, str(parsing.make_snowflake(now - CLOCK_SKEW_SECONDS))
        )

    async def _read_channel_history(self, channel: DiscordChannel, since: int, hear: HandleMessage) -> None:
        while True:
            page = await self._call_until_answered(functools.partial(_fetch_messages_after, channel.id, since))
            for message in sorted(page, key=lambda it: int(it["id"])):
                since = int(message["id"])
                await hear(channel, message)
            if len(page) < PAGE_SIZE:
                return

    async def _list_channels(self) -> AsyncIterator[tuple[DiscordChannel, int | None]]:
        """Every place there is, with its last message where that is known."""
        await self._open_direct_chats()
        for id in list(await self._load_direct_chats()):
            self.channels[id] = DiscordChannel(id=id, is_direct=True)
            yield self.channels[id], None
        after = 0
        while True:
            guilds = await self._call_until_answered(functools.partial(_fetch_guilds, after))
            for guild in guilds:
                for told in await self._list_guild_channels(guild["id"]):
                    self.channels[str(told["id"])] = parsing.parse_channel(told)
                    last = told.get("last_message_id")
                    if last:
                        yield self.channels[str(told["id"])], int(last)
            if len(guilds) < 200:
                return
            after = max(int(guild["id"]) for guild in guilds)

    async def _open_direct_chats(self) -> None:
        """Ask for the direct chats with those who are let in, once each: the first word may come while we are away."""
        stored = await self._account_context.offsets.read(CONTACTED_USERS_KEY)
        met = set(msgspec.json.decode(stored, type=list[str])) if stored else set()
        strangers = sorted(
            it for it in self._account_context.list_known_senders() if parsing.is_snowflake(it) and it not in met
        )
        for friend in strangers[:MAX_DIRECT_CHAT_REQUESTS]:
            try:
                told = await self._call_until_answered(functools.partial(_open_direct_chat, friend))
                await self.add_direct_chat(str(told["id"]))
            except Refused as error:
                self._log.info("person.unknown", id=friend, error=error)
            met.add(friend)
            await self._account_context.offsets.advance(CONTACTED_USERS_KEY, msgspec.json.encode(sorted(met)).decode())

    async def _list_guild_channels(self, guild: str) -> list[dict[str, Any]]:
        try:
            channels = await self._call_until_answered(lambda rest: rest.get_all_guild_channels(guild))
            threads = await self._call_until_answered(lambda rest: rest.get_active_threads(guild))
        except Refused as error:
            self._log.warning("history.failed", guild=guild, error=error)
            return []
        return [*channels, *threads["threads"]]

    async def _call_until_answered(self, ask: Callable[[DiscordHttpClient], Awaitable[Any]]) -> Any:
        """Ask until there is an answer: to go on without it would be to lose what it tells."""
        return await read_until_answered(self._account_context, self._log, lambda: self._call(ask))

    async def _load_direct_chats(self) -> list[str]:
        if self._direct_chats is None:
            stored = await self._account_context.offsets.read(DIRECT_CHATS_KEY)
            self._direct_chats = msgspec.json.decode(stored, type=list[str]) if stored else []
        return self._direct_chats


def _fetch_messages_after(channel: str, id: int, rest: DiscordHttpClient) -> Awaitable[Any]:
    return rest.logs_from(channel, PAGE_SIZE, after=id)


def _fetch_guilds(after: int, rest: DiscordHttpClient) -> Awaitable[Any]:
    return rest.get_guilds(200, after=after, with_counts=False)


def _open_direct_chat(friend: str, rest: DiscordHttpClient) -> Awaitable[Any]:
    return rest.start_private_message(friend)
