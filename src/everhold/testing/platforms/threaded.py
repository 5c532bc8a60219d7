"""A server of `testing.platforms` in a thread, for tests with real processes and without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any, Generic, TypeVar

from everhold.testing.http_listener import run_loop_in_thread
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

    async def begin() -> L:
        server = make()
        await server.start()
        return server

    with run_loop_in_thread(make.__name__) as loop:
        running = ThreadedServer(asyncio.run_coroutine_threadsafe(begin(), loop).result(), loop)
        try:
            yield running
        finally:
            running.run(running.server.stop())
