"""Reads messages that were missed: from the history of every channel with new messages, oldest first.

Discord repeats missed events only for a connection that resumes soon. So every channel has its own offset: the last
message that was committed. Channels of servers can be listed, direct chats cannot. The adapter stores each direct chat
before it accepts a message from it, and asks for the direct chats with known senders.
"""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from everhold.errors import Refused
from everhold.platforms.catch_up import LiveEventQueues, read_until_answered
from everhold.platforms.discord import parsing
from everhold.platforms.discord.http_client import DiscordHttpClient
from everhold.platforms.discord.parsing import DiscordChannel
from everhold.platforms.unparsed import find_id
from everhold.ports.log import EventLogger
from everhold.ports.plugin import AccountContext

T = TypeVar("T")
CallApi: TypeAlias = Callable[[Callable[[DiscordHttpClient], Awaitable[T]]], Awaitable[T]]
"""Calls Discord's API; raises everhold's errors."""
HandleMessage: TypeAlias = Callable[[DiscordChannel, dict[str, Any]], Awaitable[None]]

LAST_ALIVE_KEY: Final = "alive"
DIRECT_CHATS_KEY: Final = "direct"
CONTACTED_USERS_KEY: Final = "met"
PAGE_SIZE: Final = 100
MAX_DIRECT_CHAT_REQUESTS: Final = 50
"""How many direct chats are opened at once. Discord treats many new ones as spam."""
MAX_DIRECT_CHATS: Final = 500
"""How many direct chats are read after a gap: those that were opened last."""
CLOCK_SKEW_SECONDS: Final = 60.0


class DiscordCatchUp:
    """The offset of every channel, and the messages from there to now."""

    def __init__(self, call: CallApi[Any], account_context: AccountContext, log: EventLogger) -> None:
        self._call = call
        self._account_context = account_context
        self._log = log
        self._positions: dict[str, int] = {}
        self._direct_chats: list[str] | None = None
        self.channels: dict[str, DiscordChannel] = {}
        """The channels that Discord has described."""

    def advance_position(self, channel: DiscordChannel, id: str) -> str | None:
        """Return the offset to commit with a message, unless there is a later one."""
        if int(id) <= self._positions.get(channel.id, 0):
            return None
        self._positions[channel.id] = int(id)
        return f"channel/{channel.id}"

    def learn_channels(self, descriptions: Iterable[Any]) -> None:
        """Remember the kind of channels that Discord has described. A malformed description is asked for later."""
        for description in descriptions:
            if parsing.is_snowflake(find_id(description, "id")) and isinstance(description.get("type"), int):
                channel = parsing.parse_channel(description)
                self.channels[channel.id] = channel

    async def get_channel(self, id: str) -> DiscordChannel:
        """Return the kind of a chat. A thread has a different address, so the kind must be known."""
        if id not in self.channels:
            try:
                description = await self._call_until_answered(lambda rest: rest.get_channel(id))
                self.channels[id] = parsing.parse_channel(description)
            except (Refused, KeyError, TypeError) as error:
                self._log.warning("channel.unknown", chat=id, error=str(error))
                return DiscordChannel(id=id)
        return self.channels[id]

    async def has_direct_chat(self, id: str) -> bool:
        """Return whether a direct chat is stored."""
        return id in await self._load_direct_chats()

    async def add_direct_chat(self, id: str) -> None:
        """Store a direct chat before anything in it is accepted."""
        self.channels[id] = DiscordChannel(id=id, is_direct=True)
        known = await self._load_direct_chats()
        if id not in known:
            known.append(id)
            del known[:-MAX_DIRECT_CHATS]
            await self._account_context.offsets.advance(DIRECT_CHATS_KEY, msgspec.json.encode(known).decode())

    async def run(self, handle: HandleMessage, queues: LiveEventQueues[Any], *, now: float) -> None:
        """Accept everything that was missed, and then the events that wait. `now` is when the connection was made."""
        # on the first start, only messages written during the setup are missed
        alive = int(
            await self._account_context.offsets.read(LAST_ALIVE_KEY) or parsing.make_snowflake(now - CLOCK_SKEW_SECONDS)
        )

        async def find_position(id: str) -> int:
            since = int(await self._account_context.offsets.read(f"channel/{id}") or alive)
            self._positions[id] = max(since, self._positions.get(id, 0))
            return since

        async def list_changed_channels() -> list[str]:
            return [
                channel.id
                async for channel, last in self._list_channels()
                if await find_position(channel.id) < (last or math.inf)
            ]

        async def read_channel(id: str) -> Collection[str]:
            # A direct chat is stored with its first message that is accepted: this one may be a stranger's.
            channel = await self.get_channel(id)
            try:
                return await self._read_channel_history(channel, await find_position(id), handle)
            except Refused as error:  # a channel that cannot be read does not stop the others
                self._log.info("history.failed", chat=id, error=error)
                return ()

        await queues.catch_up(list_changed_channels, read_channel)
        await self.record_alive(now)

    async def record_alive(self, now: float) -> None:
        """Record that everything until `now` was heard, minus a margin, because Discord's clock differs from ours."""
        await self._account_context.offsets.advance(
            LAST_ALIVE_KEY, str(parsing.make_snowflake(now - CLOCK_SKEW_SECONDS))
        )

    async def _read_channel_history(
        self, channel: DiscordChannel, since: int, handle: HandleMessage
    ) -> Collection[str]:
        read: set[str] = set()
        while True:
            page = await self._call_until_answered(functools.partial(_fetch_messages_after, channel.id, since))
            for message in sorted(page, key=lambda it: int(it["id"])):
                since = int(message["id"])
                await handle(channel, message)
                read.add(str(message["id"]))
            if len(page) < PAGE_SIZE:
                return read

    async def _list_channels(self) -> AsyncIterator[tuple[DiscordChannel, int | None]]:
        """Return every channel, with its last message where it is known."""
        await self._open_direct_chats()
        for id in list(await self._load_direct_chats()):
            self.channels[id] = DiscordChannel(id=id, is_direct=True)
            yield self.channels[id], None
        after = 0
        while True:
            guilds = await self._call_until_answered(functools.partial(_fetch_guilds, after))
            for guild in guilds:
                for description in await self._list_guild_channels(guild["id"]):
                    self.channels[str(description["id"])] = parsing.parse_channel(description)
                    last = description.get("last_message_id")
                    if last:
                        yield self.channels[str(description["id"])], int(last)
            if len(guilds) < 200:
                return
            after = max(int(guild["id"]) for guild in guilds)

    async def _open_direct_chats(self) -> None:
        """Open the direct chats with known senders, once each, because their first message may come while the gateway
        is down."""
        stored = await self._account_context.offsets.read(CONTACTED_USERS_KEY)
        met = set(msgspec.json.decode(stored, type=list[str])) if stored else set()
        strangers = sorted(
            it for it in self._account_context.list_known_senders() if parsing.is_snowflake(it) and it not in met
        )
        for friend in strangers[:MAX_DIRECT_CHAT_REQUESTS]:
            try:
                opened = await self._call_until_answered(functools.partial(_open_direct_chat, friend))
                await self.add_direct_chat(str(opened["id"]))
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
        """Ask until there is an answer, because continuing without it would lose messages."""
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
