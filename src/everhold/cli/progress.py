"""Shows the progress of long work as a temporary line on standard error. Prints nothing if that is not a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final

from everhold.cli.render import CommandScreen

SILENT_SECONDS: Final = 1.0


@contextlib.asynccontextmanager
async def show_waiting(screen: CommandScreen, what: str) -> AsyncIterator[None]:
    """While the block runs, show `what` is being done and for how long."""
    if not screen.err.isatty():
        yield
        return
    task = asyncio.ensure_future(_show_elapsed(screen, what))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@contextlib.contextmanager
def show_working(screen: CommandScreen, what: str) -> Iterator[None]:
    """The same for work without an event loop. It uses a thread, so that Ctrl-C interrupts the work."""
    if not screen.err.isatty():
        yield
        return
    done = threading.Event()

    def show_ticks() -> None:
        began = time.monotonic()
        if done.wait(SILENT_SECONDS):
            return
        while not done.wait(0.5):
            screen.err.write(f"\r{what} · {time.monotonic() - began:.0f} s ")
            screen.err.flush()
        screen.err.write("\r\x1b[K")
        screen.err.flush()

    thread = threading.Thread(target=show_ticks, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class ProgressLine:
    """A temporary line that shows how much of something is done."""

    def __init__(self, screen: CommandScreen, what: str) -> None:
        self.screen = screen
        self.what = what
        self._began = time.monotonic()
        self._is_shown = False

    def __call__(self, done: int, total: int) -> None:
        if self.screen.err.isatty() and time.monotonic() - self._began >= SILENT_SECONDS:
            share = f"{done:,} of {total:,}" if total else ""
            self.screen.err.write(f"\r{self.what} · {share} · {time.monotonic() - self._began:.0f} s ")
            self.screen.err.flush()
            self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            self.screen.err.write("\r\x1b[K")
            self.screen.err.flush()


async def _show_elapsed(screen: CommandScreen, what: str) -> None:
    began = time.monotonic()
    await asyncio.sleep(SILENT_SECONDS)
    try:
        while True:
            screen.err.write(f"\r{what} · {time.monotonic() - began:.0f} s ")
            screen.err.flush()
            await asyncio.sleep(0.5)
    finally:
        screen.err.write("\r\x1b[K")
        screen.err.flush()
