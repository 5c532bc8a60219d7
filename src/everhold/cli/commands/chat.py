"""`everhold chat`: the terminal on the main thread, the conversation on a loop beside it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, TypeVar

from everhold.cli.chat.talk import Talk
from everhold.cli.chat.terminal import Terminal
from everhold.cli.errors import DONE, WRONG
from everhold.cli.render import Screen
from everhold.cli.steady import steady
from everhold.core.commands import complete_command
from everhold.errors import EverholdError, Misuse

NUDGE_SECONDS: Final = 0.05
T = TypeVar("T")


def run(args: argparse.Namespace, screen: Screen) -> int:
    if screen.json:
        raise Misuse("chat is for people", remedy="everhold send --json 'hello'")
    signal.signal(signal.SIGTERM, _leave)
    terminal = Terminal(screen)
    terminal.offer_completions(complete_command)
    # Windows has no such signal, and its line editor no such wait
    with Beside() as beside, contextlib.nullcontext() if sys.platform == "win32" else _Nudge(beside):
        talk = beside.wait(_prepare(args, screen, terminal))
        try:
            terminal.remember(beside.wait(talk.open(args.session, agent=args.agent)))
            return _converse(beside, talk, terminal)
        finally:
            beside.wait(talk.close())


async def _prepare(args: argparse.Namespace, screen: Screen, terminal: Terminal) -> Talk:
    def remark(text: str) -> None:
        terminal.settle()
        terminal.remark(text, "yellow")

    return Talk(terminal, steady(args, screen, role="chat", remark=remark))


def _converse(beside: Beside, talk: Talk, terminal: Terminal) -> int:
    code = DONE
    with _Keys(terminal) as keys:
        while True:
            try:
                text = terminal.read()
            except EOFError:
                if terminal.live:
                    terminal.screen.say()
                    # where nothing was said, or nobody confirmed that it is kept, there is no session to speak of
                    terminal.remark(f"left {talk.describe_session()}; it is kept" if talk.session else "left")
                return code
            except KeyboardInterrupt:
                if not terminal.live:
                    raise
                terminal.screen.say()
                terminal.remark("Ctrl-D leaves")
                continue
            if text.strip() and not _exchange(beside, talk, terminal, keys, text) and not terminal.live:
                code = WRONG


def _exchange(beside: Beside, talk: Talk, terminal: Terminal, keys: _Keys, text: str) -> bool:
    """Say it and wait for the answer; whether there was one. Ctrl-C asks for the reply to end, twice stops waiting."""
    saying = beside.start(talk.say(text))
    stopped = False
    while keys.pressed_before(saying):
        if not talk.kept:
            saying.cancel()
            terminal.complain("nobody has confirmed that this is kept; say it again when somebody is there")
            return False
        if stopped:
            saying.cancel()
            terminal.remark("not waiting any longer; the answer will be here when it comes")
            return False
        stopped = True
        terminal.hush()
        terminal.remark("stopping")
        beside.start(talk.stop())
    try:
        return saying.result() in ("done", "waiting")
    except EverholdError as error:
        terminal.complain(str(error))
        return False


class _Keys:
    """Ctrl-C: breaks off what is being typed; anywhere else it is only noted, and heard by whoever waits."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self._events: SimpleQueue[object] = SimpleQueue()

    def __enter__(self) -> _Keys:
        self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if self.terminal.prompting:
            raise KeyboardInterrupt
        self._events.put(None)

    def pressed_before(self, work: Future[Any]) -> bool:
        """Wait for `work`, or for Ctrl-C if that comes first."""
        work.add_done_callback(self._events.put)
        while (event := self._events.get()) is not work:
            if event is None:
                return True
        return False


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class _Nudge:
    """Sees to it that Ctrl-C and SIGTERM are heard.

    Python acts on a signal when its main thread comes by. The line editor looks for one only when its wait for a key is
    interrupted, so a signal that came just before that wait would be heard at the next key. The other thread is told of
    every signal at once, and interrupts the wait with one that means nothing.
    """

    def __init__(self, beside: Beside) -> None:
        self.beside = beside
        self.main = threading.get_ident()
        self.ear, self.mouth = os.pipe()
        os.set_blocking(self.mouth, False)

    def __enter__(self) -> None:
        signal.signal(signal.SIGURG, _ignore)
        signal.set_wakeup_fd(self.mouth, warn_on_full_buffer=False)
        self.beside.loop.call_soon_threadsafe(self.beside.loop.add_reader, self.ear, self._hear)

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self.beside.loop.call_soon_threadsafe(self.beside.loop.remove_reader, self.ear)

    def _hear(self) -> None:
        if set(os.read(self.ear, 100)) != {signal.SIGURG}:
            self.beside.loop.call_later(NUDGE_SECONDS, signal.pthread_kill, self.main, signal.SIGURG)


def _ignore(number: int, frame: FrameType | None) -> None: ...


class Beside:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="everhold-chat", daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        self._stopped = asyncio.Event()
        self._ready.set()
        await self._stopped.wait()

    def __enter__(self) -> Beside:
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result()
