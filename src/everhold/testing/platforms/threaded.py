"""A server of `testing.platforms` in a thread, for tests with real processes and without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Generic, TypeVar

from everhold.testing.platforms.loopback import LoopbackServer

L = TypeVar("L", bound=LoopbackServer)
T = TypeVar("T")


class ThreadedServer(Generic[L]):
    """`run` executes a coroutine in the server's event loop, and waits for it."""

    def __init__(self, server: L, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=100)


@contextlib.contextmanager
def serve_in_thread(make: type[L]) -> Iterator[ThreadedServer[L]]:
    """Serve until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=make.__name__, daemon=True)
    thread.start()

    async def begin() -> L:
        server = make()
        await server.start()
        return server

    running = ThreadedServer(asyncio.run_coroutine_threadsafe(begin(), loop).result(), loop)
    try:
        yield running
    finally:
        running.run(running.server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
