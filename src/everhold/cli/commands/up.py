"""`everhold up`: the gateway in the foreground, from taking the home to letting go of it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

from everhold.app import DRAIN_SECONDS, App, SystemClock, settings_of
from everhold.cli.notify import Notify
from everhold.cli.reach import home_of
from everhold.cli.render import Screen, count
from everhold.errors import EverholdError, Misuse, Refused
from everhold.logs import adopt_stdlib, open_log

LOOK_SECONDS: Final = 0.5
"""How often the gateway asks whether its store can still keep its promise."""
COLLECT_AFTER: Final = 10_000
"""Objects made and not yet let go of before a look for cycles; a turn makes a few hundred."""
GRACE_SECONDS: Final = 2.0
"""What is left for closing after the second signal."""
CLOSE_SECONDS: Final = 15.0
"""What closing may take after the turns have had their time."""


def run(args: argparse.Namespace, screen: Screen) -> int:
    if screen.json:
        raise Misuse("up prints no result", remedy="--log json makes its log lines JSON")
    notify = Notify.take(os.environ)
    try:
        with asyncio.Runner(loop_factory=loops()) as runner:
            return runner.run(_run(args, screen, notify))
    except EverholdError as error:
        notify.say(STATUS=str(error))  # its last words, for whoever asks why it does not run
        raise


def loops() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster loop where there is one; it does not run on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(args: argparse.Namespace, screen: Screen, notify: Notify) -> int:
    home = home_of(args).create()
    settings = settings_of(home, environ=os.environ, last_good=args.last_good)
    shown = open(os.devnull, "w") if args.quiet else screen.err  # noqa: SIM115, ASYNC230  # as long as the process
    log = open_log(clock=SystemClock(), home=home.path, form=args.log or "text", stream=shown)
    adopt_stdlib(log)
    app = App(home, settings, log=log, environ=os.environ)
    signals = _Signals()
    signals.install()
    for problem in settings.problems:
        log.warning("config.problem", text=str(problem))
    beating: asyncio.Task[None] | None = None
    try:
        waiting = await app.start()
        url = await _serve(app, args.port)
        parts = ["ready", count(len(settings.agents), "agent"), f"resuming {count(waiting, 'message')}", url]
        told = " · ".join(part for part in parts if part)
        screen.say(told)
        screen.out.flush()
        settle_down()
        notify.say(READY="1", STATUS=told)
        beating = asyncio.create_task(notify.beat(app.store.pulse), name="beat")
        await _until(app, signals)
    finally:
        seconds = DRAIN_SECONDS + CLOSE_SECONDS
        notify.say(STOPPING="1", EXTEND_TIMEOUT_USEC=str(int(seconds * 1e6)), STATUS="stopping")
        await _stop(app, signals)
        if beating is not None:
            beating.cancel()
    if app.broken is not None:
        raise app.broken
    return 0


def settle_down() -> None:
    """What is there now stays for as long as the gateway does: the collector need not go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 100)


async def _serve(app: App, port: int | None) -> str:
    try:
        return await app.serve(port=port)
    except Misuse as error:  # the command was sound; it is the machine that has no room for it
        raise Refused(error.message, remedy=error.remedy) from error


async def _until(app: App, signals: _Signals) -> None:
    """Until somebody wants it to end, or it must."""
    while app.broken is None and not signals.first.is_set():
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await signals.first.wait()
        except TimeoutError:
            continue


async def _stop(app: App, signals: _Signals) -> None:
    """Give what runs its time; a second signal takes it away. What is not finished resumes at the next start."""
    running = len(app.supervisor.tasks)
    if running:
        app.log.info("stopping", running=running, seconds=DRAIN_SECONDS, remedy="once more stops at once")
    stopping = asyncio.ensure_future(app.stop())
    hurry = asyncio.ensure_future(signals.second.wait())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        for task in list(app.supervisor.tasks):
            task.cancel()
        await asyncio.wait({stopping}, timeout=GRACE_SECONDS)
        if not stopping.done():
            os._exit(128 + signal.SIGTERM)  # something does not let itself be stopped; a crash is safe
    hurry.cancel()
    await stopping


class _Signals:
    """SIGTERM and SIGINT, counted."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()

        def ring(_number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._ring)

        for number in {signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGBREAK", signal.SIGINT)}:
            try:
                loop.add_signal_handler(number, self._ring)
            except NotImplementedError:  # on Windows, where a service is stopped by Ctrl-C or Ctrl-Break
                signal.signal(number, ring)

    def _ring(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
