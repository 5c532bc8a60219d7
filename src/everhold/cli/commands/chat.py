"""`everhold chat`: the terminal runs on the main thread, the conversation on an event loop in a second thread."""

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

from everhold.cli.chat.conversation import TerminalConversation
from everhold.cli.chat.terminal import ChatTerminal
from everhold.cli.errors import DONE, WRONG
from everhold.cli.reconnect import make_reconnecting_client
from everhold.cli.render import CommandScreen
from everhold.core.commands import complete_command
from everhold.errors import EverholdError, InvalidRequest

NUDGE_SECONDS: Final = 0.05
T = TypeVar("T")


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    if screen.json:
        raise InvalidRequest("chat has no JSON output", remedy="everhold send --json 'hello'")
    signal.signal(signal.SIGTERM, _raise_exit)
    terminal = ChatTerminal(screen)
    terminal.offer_completions(complete_command)
    # Windows does not have this signal, and does not need the wakeup
    with (
        BackgroundLoop() as background,
        contextlib.nullcontext() if sys.platform == "win32" else _SignalWakeup(background),
    ):
        conversation = background.wait(_prepare_chat(args, screen, terminal))
        try:
            terminal.set_history(background.wait(conversation.open_session(args.session, agent=args.agent)))
            return _run_conversation(background, conversation, terminal)
        finally:
            background.wait(conversation.close())


async def _prepare_chat(
    args: argparse.Namespace, screen: CommandScreen, terminal: ChatTerminal
) -> TerminalConversation:
    def print_remark(text: str) -> None:
        terminal.finish_growing_reply()
        terminal.print_remark(text, "yellow")

    return TerminalConversation(terminal, make_reconnecting_client(args, screen, role="chat", remark=print_remark))


def _run_conversation(background: BackgroundLoop, conversation: TerminalConversation, terminal: ChatTerminal) -> int:
    code = DONE
    with _InterruptKey(terminal) as keys:
        while True:
            try:
                text = terminal.read_line()
            except EOFError:
                if terminal.live:
                    terminal.screen.print_line()
                    # without a committed message there is no session
                    name = conversation.describe_session() if conversation.session else ""
                    terminal.print_remark(f"left {name}; it is stored" if name else "left")
                return code
            except KeyboardInterrupt:
                if not terminal.live:
                    raise
                terminal.screen.print_line()
                terminal.print_remark("Ctrl-D exits")
                continue
            if (
                text.strip()
                and not _exchange_message(background, conversation, terminal, keys, text)
                and not terminal.live
            ):
                code = WRONG


def _exchange_message(
    background: BackgroundLoop,
    conversation: TerminalConversation,
    terminal: ChatTerminal,
    keys: _InterruptKey,
    text: str,
) -> bool:
    """Send a message and return whether it was answered. Ctrl-C stops the turn; a second one stops the waiting."""
    saying = background.start(conversation.send_and_wait(text))
    stopped = False
    while keys.wait_or_interrupt(saying):
        if not conversation.acknowledged:
            saying.cancel()
            terminal.print_error("the gateway has not confirmed the message; send it again when the gateway is back")
            return False
        if stopped:
            saying.cancel()
            terminal.print_remark("not waiting any longer; the reply is shown here when it arrives")
            return False
        stopped = True
        terminal.hide_growing_reply()
        terminal.print_remark("stopping")
        background.start(conversation.stop_turn())
    try:
        return saying.result() in ("done", "waiting")
    except EverholdError as error:
        terminal.print_error(str(error))
        return False


class _InterruptKey:
    """Handles Ctrl-C: it interrupts the prompt; at other times it is queued for `wait_or_interrupt`."""

    def __init__(self, terminal: ChatTerminal) -> None:
        self.terminal = terminal
        self._events: SimpleQueue[object] = SimpleQueue()

    def __enter__(self) -> _InterruptKey:
        self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.terminal.prompting:
            raise KeyboardInterrupt
        self._events.put(None)

    def wait_or_interrupt(self, work: Future[Any]) -> bool:
        """Wait for `work`, or for Ctrl-C if that comes first."""
        work.add_done_callback(self._events.put)
        while (event := self._events.get()) is not work:
            if event is None:
                return True
        return False


def _raise_exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class _SignalWakeup:
    """Makes Ctrl-C and SIGTERM take effect at once while the line editor waits for a key.

    Python runs a signal handler on its main thread. The line editor checks for signals only when its wait for a key is
    interrupted, so a signal that arrived just before that wait would take effect at the next key. The second thread
    learns of every signal at once, and interrupts the wait with a signal that has no other effect.
    """

    def __init__(self, background_loop: BackgroundLoop) -> None:
        self.background_loop = background_loop
        self.main = threading.get_ident()
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.write_fd, False)

    def __enter__(self) -> None:
        signal.signal(signal.SIGURG, _ignore_signal)
        signal.set_wakeup_fd(self.write_fd, warn_on_full_buffer=False)
        self.background_loop.loop.call_soon_threadsafe(
            self.background_loop.loop.add_reader, self.read_fd, self._on_signal_byte
        )

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self.background_loop.loop.call_soon_threadsafe(self.background_loop.loop.remove_reader, self.read_fd)

    def _on_signal_byte(self) -> None:
        if set(os.read(self.read_fd, 100)) != {signal.SIGURG}:
            self.background_loop.loop.call_later(NUDGE_SECONDS, signal.pthread_kill, self.main, signal.SIGURG)


def _ignore_signal(number: int, frame: FrameType | None) -> None: ...


class BackgroundLoop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="everhold-chat", daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._wait_until_stopped())

    async def _wait_until_stopped(self) -> None:
        self._stopped = asyncio.Event()
        self._ready.set()
        await self._stopped.wait()

    def __enter__(self) -> BackgroundLoop:
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
