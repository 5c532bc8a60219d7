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

from everhold.app import DRAIN_SECONDS, GatewayApp, SystemClock, load_home_settings
from everhold.cli.connect import find_home
from everhold.cli.render import CommandScreen, format_count
from everhold.cli.systemd_notify import ServiceNotifier
from everhold.errors import EverholdError, InvalidRequest, Refused
from everhold.telemetry.logs import adopt_stdlib, open_log

CHECK_SECONDS: Final = 0.5
"""How often the gateway asks whether its store can still keep its promise."""
COLLECT_AFTER_OBJECTS: Final = 10_000
"""Objects made and not yet let go of before a look for cycles; a turn makes a few hundred."""
GRACE_SECONDS: Final = 2.0
"""What is left for closing after the second signal."""
CLOSE_SECONDS: Final = 15.0
"""What closing may take after the turns have had their time."""


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    if screen.json:
        raise InvalidRequest("up prints no result", remedy="--log json makes its log lines JSON")
    notify = ServiceNotifier.from_environment(os.environ)
    try:
        with asyncio.Runner(loop_factory=choose_loop_factory()) as runner:
            return runner.run(_run_gateway(args, screen, notify))
    except EverholdError as error:
        notify.send(STATUS=str(error))  # its last words, for whoever asks why it does not run
        raise


def choose_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster loop where there is one; it does not run on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run_gateway(args: argparse.Namespace, screen: CommandScreen, notify: ServiceNotifier) -> int:
    home = find_home(args).create()
    settings = load_home_settings(home, environ=os.environ, last_good=args.last_good)
    shown = open(os.devnull, "w") if args.quiet else screen.err  # noqa: SIM115, ASYNC230  # as long as the process
    log = open_log(clock=SystemClock(), home=home.path, form=args.log or "text", stream=shown)
    adopt_stdlib(log)
    app = GatewayApp(home, settings, log=log, environ=os.environ)
    signals = _StopSignals()
    signals.install_handlers()
    for problem in settings.problems:
        log.warning("config.invalid", text=str(problem))
    beating: asyncio.Task[None] | None = None
    try:
        waiting = await app.start()
        url = await _serve_http(app, args.port)
        parts = [
            "ready",
            format_count(len(settings.agents), "agent"),
            f"resuming {format_count(waiting, 'message')}",
            url,
        ]
        told = " · ".join(part for part in parts if part)
        screen.print_line(told)
        screen.out.flush()
        freeze_garbage_collector()
        notify.send(READY="1", STATUS=told)
        beating = asyncio.create_task(notify.send_heartbeats(app.store.ping_writer), name="beat")
        await _wait_for_end(app, signals)
    finally:
        seconds = DRAIN_SECONDS + CLOSE_SECONDS
        notify.send(STOPPING="1", EXTEND_TIMEOUT_USEC=str(int(seconds * 1e6)), STATUS="stopping")
        await _stop_gateway(app, signals)
        if beating is not None:
            beating.cancel()
    if app.fatal_error is not None:
        raise app.fatal_error
    return 0


def freeze_garbage_collector() -> None:
    """What is there now stays for as long as the gateway does: the collector need not go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 10, 100)


async def _serve_http(app: GatewayApp, port: int | None) -> str:
    try:
        return await app.serve(port=port)
    except InvalidRequest as error:  # the command was sound; it is the machine that has no room for it
        raise Refused(error.message, remedy=error.remedy) from error


async def _wait_for_end(app: GatewayApp, signals: _StopSignals) -> None:
    """Until somebody wants it to end, or it must."""
    while app.fatal_error is None and not signals.first.is_set():
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await signals.first.wait()
        except TimeoutError:
            continue


async def _stop_gateway(app: GatewayApp, signals: _StopSignals) -> None:
    """Give what runs its time; a second signal takes it away. What is not finished resumes at the next start."""
    running = len(app.supervisor.tasks)
    if running:
        app.log.info("gateway.stopping", running=running, seconds=DRAIN_SECONDS, remedy="once more stops at once")
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


class _StopSignals:
    """SIGTERM and SIGINT, counted."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def install_handlers(self) -> None:
        loop = asyncio.get_running_loop()

        def forward_signal(_number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._on_signal)

        for number in {signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGBREAK", signal.SIGINT)}:
            try:
                loop.add_signal_handler(number, self._on_signal)
            except NotImplementedError:  # on Windows, where a service is stopped by Ctrl-C or Ctrl-Break
                signal.signal(number, forward_signal)

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
