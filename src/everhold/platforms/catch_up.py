"""Catching up after a gap: missed messages are read until the platform answers, and are accepted before newer ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, Generic, TypeVar

from everhold.core.retry import retry_delay_seconds
from everhold.errors import EverholdError, Refused, Transient
from everhold.ports.log import EventLogger
from everhold.ports.plugin import AccountContext

T = TypeVar("T")

LONGEST_WAIT_SECONDS: Final = 300.0
MAX_WAITING_EVENTS: Final = 1_000
"""How many live events of an account wait for missed messages. More are dropped and read from the history."""


async def read_until_answered(account_context: AccountContext, log: EventLogger, ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer to `ask`. The account's status reports the retries. Raises Refused, because retrying cannot
    help then."""
    failures = 0
    while True:
        try:
            found = await ask()
        except Refused:
            raise
        except EverholdError as error:
            failures += 1
            account_context.report(
                f"missed messages cannot be read: {error.message}", "no action needed: everhold tries again"
            )
            asked = error.retry_after if isinstance(error, Transient) else None
            wait = asked if asked is not None else retry_delay_seconds(failures, jitter=account_context.chance.random())
            log.info("history.retrying", error=error, seconds=wait)
            await account_context.sleep(wait or LONGEST_WAIT_SECONDS)
            continue
        if failures:
            account_context.report()
        return found


class LiveEventQueues(Generic[T]):
    """Keeps the live events of each chat behind the messages that were missed there.

    From `begin_gap` on, a live event waits until `catch_up` has read its chat. An adapter confirms an event when it is
    accepted, so a waiting event is not confirmed. If the process ends, the next one finds it in the history.
    """

    def __init__(
        self,
        accept: Callable[[T], Awaitable[None]],
        *,
        skip: Callable[[T], Awaitable[None]],
        most: int = MAX_WAITING_EVENTS,
    ) -> None:
        """`skip` is called instead of `accept` for an event that was read from the history while it waited."""
        self._accept = accept
        self._skip = skip
        self._most = most
        self._unread: dict[str, None] | None = {}
        """The chats whose missed messages are not accepted yet, in the order of reading. None: all chats."""
        self._waiting: dict[str, deque[tuple[str, T]]] = {}
        self._count = 0
        self._incomplete: set[str] = set()
        """Chats of which an event was dropped. Their later events are dropped too, until the chat is read again."""

    def begin_gap(self) -> None:
        """Record that messages may be missing in every chat."""
        self._unread = None

    async def add_event(self, chat: str, event: T, *, id: str) -> None:
        """Accept a live event, now or after the missed messages of its chat. `id` is its id in the history, and empty
        if the history does not show it. If too many events wait, one that is in the history is read from there. One
        that is not is accepted now, because otherwise it would be lost."""
        if not chat or (self._unread is not None and chat not in self._unread):
            await self._accept(event)
        elif self._count < self._most and not (id and chat in self._incomplete):
            self._waiting.setdefault(chat, deque()).append((id, event))
            self._count += 1
        elif id:
            self._incomplete.add(chat)
        else:
            await self._accept(event)

    async def catch_up(
        self,
        list_chats: Callable[[], Awaitable[Iterable[str]]],
        read_chat: Callable[[str], Awaitable[Collection[str]]],
    ) -> None:
        """Read every chat, those with waiting events first. `read_chat` accepts what was missed in a chat, and returns
        the ids of it."""
        listed = await list_chats()
        self._unread = dict.fromkeys((*self._waiting, *self._incomplete, *listed))
        while self._unread:
            chat = next((it for it in self._waiting if it in self._unread), None) or next(iter(self._unread))
            await self._settle_chat(chat, read_chat)
            del self._unread[chat]

    async def _settle_chat(self, chat: str, read_chat: Callable[[str], Awaitable[Collection[str]]]) -> None:
        is_complete = False
        while not is_complete:
            self._incomplete.discard(chat)
            read = await read_chat(chat)
            while waiting := self._waiting.get(chat):
                id, event = waiting[0]
                await (self._skip(event) if id and id in read else self._accept(event))
                waiting.popleft()
                self._count -= 1
            self._waiting.pop(chat, None)
            is_complete = chat not in self._incomplete
