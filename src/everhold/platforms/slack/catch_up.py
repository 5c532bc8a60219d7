"""Reads messages that were missed: from the history of every conversation of the app, oldest first.

Slack repeats an unconfirmed event a few times within minutes and then drops it. So after every gap each conversation is
read from its offset. A conversation without an offset is read from the time of the last run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, TypeAlias

import msgspec

from everhold.errors import Refused
from everhold.platforms.catch_up import LiveEventQueues, read_until_answered
from everhold.platforms.slack.parsing import is_message_ts
from everhold.ports.log import EventLogger
from everhold.ports.plugin import AccountContext

CallMethod: TypeAlias = Callable[..., Awaitable[dict[str, Any]]]
"""Calls a method of the Web API by its name; raises everhold's errors."""
HandleMessage: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

LAST_ALIVE_KEY: Final = "alive"
PAGE_SIZE: Final = 200
MAX_THREADS: Final = 50
"""How many older threads of a channel are read after a gap: those with the latest messages."""
CLOCK_SKEW_SECONDS: Final = 60.0
CONVERSATION_TYPES: Final = "im,mpim,public_channel,private_channel"


class SlackCatchUp:
    """The offset of every conversation, and the messages from there to now."""

    def __init__(self, call: CallMethod, account_context: AccountContext, log: EventLogger) -> None:
        self._call = call
        self._account_context = account_context
        self._log = log
        self._positions: dict[str, str] = {}
        """The newest message of each conversation that was accepted with its offset."""
        self._threads: dict[str, list[str]] = {}

    def advance_position(self, channel: str, ts: str) -> str | None:
        """Return the offset to commit with a message, unless there is a later one. Everything before the message is
        committed, because a message waits for those that were missed."""
        if not is_later_ts(ts, self._positions.get(channel, "")):
            return None
        self._positions[channel] = ts
        return f"history/{channel}"

    async def run(self, handle: HandleMessage, queues: LiveEventQueues[Any], *, now: float) -> None:
        """Accept everything that was missed, and then the events that wait. `now` is when the connection was made."""
        # on the first start, only messages written during the setup are missed
        alive = await self._account_context.offsets.read(LAST_ALIVE_KEY) or f"{now - CLOCK_SKEW_SECONDS:.6f}"

        async def read_channel(channel: str) -> Collection[str]:
            try:
                return await self._read_channel_history(channel, alive, handle)
            except Refused as error:  # a conversation that cannot be read does not stop the others
                self._log.warning("history.failed", chat=channel, error=error)
                return ()

        await queues.catch_up(self._list_channels, read_channel)
        await self.record_alive(now)

    async def record_alive(self, now: float) -> None:
        """Record that everything until `now` was heard, minus a margin, because Slack's clock differs from ours."""
        await self._account_context.offsets.advance(LAST_ALIVE_KEY, f"{now - CLOCK_SKEW_SECONDS:.6f}")

    async def has_thread(self, channel: str, thread: str) -> bool:
        """Return whether a thread is stored."""
        return thread in await self._load_threads(channel)

    async def add_thread(self, channel: str, thread: str) -> None:
        """Store a thread before anything in it is accepted, because its first message may be far back in the channel's
        history."""
        threads = await self._load_threads(channel)
        if thread not in threads:
            threads.append(thread)
            del threads[:-MAX_THREADS]
            await self._account_context.offsets.advance(f"threads/{channel}", msgspec.json.encode(threads).decode())

    async def _read_channel_history(self, channel: str, alive: str, handle: HandleMessage) -> Collection[str]:
        since = await self._account_context.offsets.read(f"history/{channel}") or alive
        self._positions[channel] = since
        found, threads = await self._fetch_messages(channel, since)
        for thread in dict.fromkeys((*threads, *await self._load_threads(channel))):
            found += await self._fetch_replies(channel, thread, since)
        messages = {message["ts"]: message for message in found}
        for ts in sorted(messages, key=parse_ts):
            self._positions[channel] = ts
            await handle({**messages[ts], "type": "message", "channel": channel})
        return messages

    async def _fetch_messages(self, channel: str, since: str) -> tuple[list[dict[str, Any]], list[str]]:
        """Read a channel and its active threads. Reads until there is nothing new."""
        found: list[dict[str, Any]] = []
        threads: list[str] = []
        async for page in self._iterate_pages("conversations.history", "messages", channel=channel):
            new = [it for it in page if is_later_ts(it.get("ts"), since)]
            found += new
            threads += [
                it["ts"] for it in page if is_later_ts(it.get("latest_reply"), since) and is_later_ts(it.get("ts"), "")
            ]
            if len(new) < len(page):
                break
        return found, threads

    async def _fetch_replies(self, channel: str, thread: str, since: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        try:
            async for page in self._iterate_pages(
                "conversations.replies", "messages", channel=channel, ts=thread, oldest=since
            ):
                found += [it for it in page if is_later_ts(it.get("ts"), since)]
        except Refused as error:  # possibly deleted
            self._log.info("thread.failed", chat=channel, error=error)
        return found

    async def _list_channels(self) -> list[str]:
        try:
            return [
                it["id"]
                async for page in self._iterate_pages(
                    "users.conversations", "channels", types=CONVERSATION_TYPES, exclude_archived="true"
                )
                for it in page
            ]
        except Refused as error:
            self._log.warning("history.failed", error=error)
            return []

    async def _iterate_pages(self, method: str, what: str, **given: str) -> Any:
        cursor = ""
        while True:
            page = await self._call_until_answered(method, **given, limit=str(PAGE_SIZE), cursor=cursor)
            yield page.get(what) or []
            cursor = (page.get("response_metadata") or {}).get("next_cursor") or ""
            if not cursor:
                return

    async def _call_until_answered(self, method: str, **given: str) -> dict[str, Any]:
        """Ask until there is an answer, because continuing without it would lose messages."""
        said = {name: value for name, value in given.items() if value}
        return await read_until_answered(self._account_context, self._log, lambda: self._call(method, **said))

    async def _load_threads(self, channel: str) -> list[str]:
        if channel not in self._threads:
            stored = await self._account_context.offsets.read(f"threads/{channel}")
            self._threads[channel] = msgspec.json.decode(stored, type=list[str]) if stored else []
        return self._threads[channel]


def parse_ts(ts: object) -> tuple[int, int]:
    """Return a Slack timestamp in comparable form. A float would lose its last digits. An invalid one counts as old."""
    if not isinstance(ts, str) or not is_message_ts(ts):
        return 0, 0
    seconds, _, rest = ts.partition(".")
    return int(seconds), int((rest + "000000")[:6])


def is_later_ts(ts: object, than: str) -> bool:
    return parse_ts(ts) > parse_ts(than)
