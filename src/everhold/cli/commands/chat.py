"""`everhold chat`: the terminal on the main thread, the conversation on a loop beside it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import FrameType
from typing import Any, TypeVar

from everhold.cli.chat.talk import Talk
from everhold.cli.chat.terminal import Terminal
from everhold.cli.render import Screen
from everhold.cli.steady import steady
from everhold.errors import EverholdError, Misuse
from everhold.remote.wire import DONE, WRONG

T = TypeVar("T")


def run(args: argparse.Namespace, screen: Screen) -> int:
    if screen.json:
        raise Misuse("chat is for people", remedy="everhold send --json 'hello'")
    signal.signal(signal.SIGTERM, _leave)
    terminal = Terminal(screen)
    with Beside() as beside:
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
    while True:
        try:
            text = terminal.read()
        except EOFError:
            if terminal.live:
                terminal.screen.say()
                terminal.remark(f"left session {talk.session or '(nothing was said)'}; it is kept")
            return code
        except KeyboardInterrupt:
            terminal.screen.say()
            terminal.remark("Ctrl-D leaves")
            continue
        if text.strip() and not _exchange(beside, talk, terminal, text) and not terminal.live:
            code = WRONG


def _exchange(beside: Beside, talk: Talk, terminal: Terminal, text: str) -> bool:
    """Say it and wait for the answer; whether there was one. Ctrl-C asks for the reply to end, twice stops waiting."""
    saying = beside.start(talk.say(text))
    stopped = False
    while True:
        try:
            return saying.result() in ("done", "waiting")
        except KeyboardInterrupt:
            if stopped:
                saying.cancel()
                terminal.remark("not waiting any longer; the answer will be here when it comes")
                return False
            stopped = True
            terminal.hush()
            terminal.remark("stopping")
            beside.start(talk.stop())
        except EverholdError as error:
            terminal.complain(str(error))
            return False


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class Beside:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="everhold-chat", daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
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
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result()
