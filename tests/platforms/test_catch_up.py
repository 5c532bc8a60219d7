"""The live events of a chat wait for the messages that were missed there, in bounded memory."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from everhold.platforms.catch_up import LiveEventQueues

Event = tuple[str, int]
"""A chat, and the number of a message in it. Negative: an edit, which the history does not show."""


class RemoteChats:
    """Chats with a history, and one adapter that reads them."""

    def __init__(self, *, most: int) -> None:
        self.written: dict[str, list[int]] = defaultdict(list)
        self.accepted: list[Event] = []
        self.skipped: list[Event] = []
        self.queues = LiveEventQueues[Event](self.accept, skip=self.skip, most=most)
        self.reads: list[str] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.most_waiting = 0

    async def accept(self, event: Event) -> None:
        await asyncio.sleep(0)
        if event not in self.accepted:
            self.accepted.append(event)

    async def skip(self, event: Event) -> None:
        assert event in self.accepted
        self.skipped.append(event)

    async def write(self, chat: str, *, is_live: bool = True) -> None:
        number = len(self.written[chat]) + 1
        self.written[chat].append(number)
        if is_live:
            await self.queues.add_event(chat, (chat, number), id=str(number))
            self.most_waiting = max(self.most_waiting, sum(map(len, self.queues._waiting.values())))

    async def list_chats(self) -> list[str]:
        await asyncio.sleep(0)
        return list(self.written)

    async def read(self, chat: str) -> set[str]:
        self.reads.append(chat)
        history = list(self.written[chat])
        await self.answering.wait()
        last = max((number for where, number in self.accepted if where == chat), default=0)
        missed = [number for number in history if number > last]
        for number in missed:
            await self.accept((chat, number))
        return set(map(str, missed))

    async def catch_up(self) -> None:
        await self.queues.catch_up(self.list_chats, self.read)

    def list_accepted(self, chat: str) -> list[int]:
        return [number for where, number in self.accepted if where == chat]


async def let_others_run(rounds: int = 20) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def test_without_a_gap_an_event_is_accepted_at_once() -> None:
    remote = RemoteChats(most=10)
    await remote.write("a")
    assert remote.accepted == [("a", 1)]


async def test_a_chat_with_a_waiting_event_is_read_first() -> None:
    remote = RemoteChats(most=10)
    for chat in "abcdef":
        await remote.write(chat, is_live=False)
    remote.queues.begin_gap()
    remote.answering.clear()
    catching_up = asyncio.create_task(remote.catch_up())
    await let_others_run()
    assert remote.reads == ["a"]
    await remote.write("e")
    remote.answering.set()
    await catching_up
    assert remote.reads[:2] == ["a", "e"]


async def test_an_event_that_was_read_from_the_history_is_not_accepted_again() -> None:
    remote = RemoteChats(most=10)
    remote.queues.begin_gap()
    await remote.write("a")
    await remote.catch_up()
    assert (remote.accepted, remote.skipped) == ([("a", 1)], [("a", 1)])


async def test_a_chat_that_was_read_does_not_wait_for_the_others() -> None:
    remote = RemoteChats(most=10)
    await remote.write("a", is_live=False)
    await remote.write("b", is_live=False)
    remote.queues.begin_gap()
    remote.answering.clear()
    catching_up = asyncio.create_task(remote.catch_up())
    await let_others_run()
    await remote.write("elsewhere")
    assert ("elsewhere", 1) in remote.accepted, "it is in no list, so nothing was missed there"
    remote.answering.set()
    await catching_up


async def test_an_edit_is_accepted_although_too_many_events_wait() -> None:
    remote = RemoteChats(most=1)
    await remote.write("a", is_live=False)
    remote.queues.begin_gap()
    await remote.write("a")
    await remote.queues.add_event("a", ("a", -1), id="")
    assert remote.accepted == [("a", -1)], "the history does not show it, so it would be lost"
    await remote.catch_up()
    assert remote.list_accepted("a") == [-1, 1, 2]


@pytest.mark.parametrize("seed", range(50))
async def test_every_chat_is_accepted_in_order_in_bounded_memory(seed: int) -> None:
    chance, remote = random.Random(seed), RemoteChats(most=random.Random(seed).choice((1, 3, 1_000)))
    chats = [f"chat-{number}" for number in range(chance.randint(1, 6))]
    catching_up: asyncio.Task[None] | None = None

    async def end_catching_up() -> None:
        if catching_up is not None:
            catching_up.cancel()
            await asyncio.gather(catching_up, return_exceptions=True)

    for _ in range(200):
        match chance.randrange(12):
            case 0:  # the connection is lost and made again
                await end_catching_up()
                for _ in range(chance.randint(0, 4)):
                    await remote.write(chance.choice(chats), is_live=False)
                remote.queues.begin_gap()
                catching_up = asyncio.create_task(remote.catch_up())
            case 1:  # the process is killed and another starts
                await end_catching_up()
                remote.queues = LiveEventQueues[Event](remote.accept, skip=remote.skip, most=remote.queues._most)
                remote.queues.begin_gap()
                catching_up = asyncio.create_task(remote.catch_up())
            case 2:
                remote.answering.clear()
            case 3:
                remote.answering.set()
            case 4 | 5:
                await let_others_run(chance.randint(1, 10))
            case _:
                await remote.write(chance.choice(chats))
    remote.answering.set()
    await end_catching_up()
    remote.queues.begin_gap()
    await remote.catch_up()
    assert {chat: remote.list_accepted(chat) for chat in remote.written} == remote.written
    assert remote.most_waiting <= remote.queues._most
