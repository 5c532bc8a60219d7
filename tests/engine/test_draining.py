"""Many messages wait in one session: they are answered without loading all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from everhold.core.entries import Began, Heard
from everhold.core.inbox import MAX_TURN_MESSAGES, list_pending_messages
from everhold.engine.context_cache import MAX_READ_THROUGH
from everhold.ports.store import SessionSnapshot
from everhold.stores.sqlite import store as sqlite_store
from everhold.testing.fakes import FakeMemoryProvider
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel
from .test_context import make_compressing

MESSAGES = 7_000
MAX_LOADED = MAX_READ_THROUGH + MAX_TURN_MESSAGES


class LoadWatcher:
    """Records the largest number of entries that one read of the store returned."""

    def __init__(self, gateway: InProcessGateway) -> None:
        assert gateway.process is not None
        self.disk = gateway.process.disk
        self.most: dict[str, int] = {}
        for name in ("list_entries", "list_pending", "get_session_snapshot", "get_cited_entries"):
            setattr(self.disk, name, self._watch(name, getattr(self.disk, name)))

    def _watch(self, name: str, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def method(*args: Any, **options: Any) -> Any:
            found = await real(*args, **options)
            size = len(found.pending) if isinstance(found, SessionSnapshot) else len(found)
            self.most[name] = max(size, self.most.get(name, 0))
            return found

        return method


def fill(gateway: InProcessGateway, messages: int = MESSAGES) -> str:
    """Let messages wait behind a turn whose model does not answer."""
    gateway.runtimes.model = held = HeldModel()
    held.context_tokens = 20_000
    session = gateway.send_message("first", rest=False).session
    gateway.pass_time(1)
    for number in range(messages):
        gateway.accept_message(gateway.make_message(f"message {number}"))
        if number % 500 == 0:
            gateway.pass_time(0.1)
    return session


def release(gateway: InProcessGateway) -> None:
    assert isinstance(gateway.runtimes.model, HeldModel)
    gateway.runtimes.model.free = True
    gateway.run_until_idle(5)


def test_a_turn_loads_what_it_takes_and_not_all_that_waits(gateway: InProcessGateway) -> None:
    make_compressing(gateway, window=20_000)
    gateway.runtimes.memories["mem"] = FakeMemoryProvider()
    session = fill(gateway)
    watcher = LoadWatcher(gateway)
    release(gateway)
    watched = dict(watcher.most)
    assert gateway.run(gateway.store.count_waiting()) == 0
    took = [len(body.takes) for body in gateway.read_bodies(session, Began) if body.type == "turn"]
    assert sum(took) == MESSAGES + 1
    assert max(took) == MAX_TURN_MESSAGES
    assert watched["get_session_snapshot"] <= 2 * MAX_TURN_MESSAGES + 2
    assert max(watched.values()) <= MAX_LOADED, watched
    gateway.assert_sound()


def test_a_turn_that_is_resumed_loads_no_waiting_messages(gateway: InProcessGateway) -> None:
    fill(gateway)
    gateway.crash()
    gateway.start()
    watcher = LoadWatcher(gateway)
    gateway.pass_time(1)
    assert watcher.most["list_entries"] <= MAX_LOADED, watcher.most
    release(gateway)
    assert gateway.run(gateway.store.count_waiting()) == 0


def test_a_message_behind_many_commands_and_much_chatter_is_answered(gateway: InProcessGateway) -> None:
    """The first page of pending messages contains nothing that asks."""
    session = gateway.send_message("hello", chat="room", kind="group").session
    for number in range(sqlite_store.PENDING_PAGE + 10):
        gateway.accept_message(gateway.make_message(f"chatter {number}", chat="room", kind="group", addressed=False))
    gateway.run_until_idle()
    waiting = gateway.run(gateway.store.scan_pending(session))
    assert len(waiting) > MAX_TURN_MESSAGES
    assert not any(message.asks for message in waiting)
    gateway.send_message("a question", chat="room", kind="group")
    assert gateway.list_shown_texts()[-1] == "You said: a question"
    assert gateway.run(gateway.store.scan_pending(session)) == []


@pytest.mark.parametrize("erased", [False, True])
def test_a_scan_says_what_the_entries_say(gateway: InProcessGateway, *, erased: bool) -> None:
    gateway.runtimes.model = HeldModel()
    session = gateway.send_message("first", rest=False).session
    gateway.pass_time(1)
    for text in ("plain", "/queue later", "/steer now", "words"):
        gateway.send_message(text, rest=False)
    gateway.pass_time(1)
    if erased:
        last = [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Heard)][-1]
        gateway.run(gateway.control.erase_entries(session, [last]))
    scanned = gateway.run(gateway.store.scan_pending(session))
    entries = gateway.run(gateway.store.list_pending(session))

    assert tuple(scanned) == list_pending_messages(entries)
    assert len(scanned) >= 3
