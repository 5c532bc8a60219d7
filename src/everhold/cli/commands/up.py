"""`everhold up`: runs the gateway in the foreground."""

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
from everhold.assembly.machine_needs import list_unusable_agents
from everhold.cli.connect import find_home
from everhold.cli.render import CommandScreen, format_count
from everhold.cli.systemd_notify import ServiceNotifier
from everhold.config import ConfigError, Settings
from everhold.config.edit import ensure_operator_token
from everhold.config.errors import ProblemCause
from everhold.config.settings import OPERATOR_TOKEN_ENV
from everhold.errors import EverholdError, InvalidRequest, Refused
from everhold.infra.home import Home
from everhold.telemetry.logs import adopt_stdlib, open_log

CHECK_SECONDS: Final = 0.5
"""How often the gateway checks whether it has a fatal error."""
COLLECT_AFTER_OBJECTS: Final = 10_000
"""The garbage collector's threshold for new objects; a turn makes a few hundred."""
GRACE_SECONDS: Final = 2.0
"""The time for closing after the second signal."""
CLOSE_SECONDS: Final = 15.0
"""The time for closing after the drain time of turns."""


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    if screen.json:
        raise InvalidRequest("up prints no result", remedy="--log json makes its log lines JSON")
    notify = ServiceNotifier.from_environment(os.environ)
    try:
        with asyncio.Runner(loop_factory=choose_loop_factory()) as runner:
            return runner.run(_run_gateway(args, screen, notify))
    except EverholdError as error:
        notify.send(STATUS=str(error))  # `systemctl status` shows why it ended
        raise


def choose_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if it is installed; it does not run on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run_gateway(args: argparse.Namespace, screen: CommandScreen, notify: ServiceNotifier) -> int:
    home = find_home(args).create()
    _prepare_operator_token(home, screen)
    settings = load_home_settings(home, environ=os.environ, last_good=args.last_good)
    _require_usable_agent(settings)
    shown = open(os.devnull, "w") if args.quiet else screen.err  # noqa: SIM115, ASYNC230  # as long as the process
    log = open_log(clock=SystemClock(), home=home.path, form=args.log or "text", stream=shown)
    adopt_stdlib(log)
    app = await GatewayApp.open(home, settings, log=log, environ=os.environ)
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
        line = " · ".join(part for part in parts if part)
        screen.print_line(line)
        await _print_login(app, screen)
        screen.out.flush()
        freeze_garbage_collector()
        notify.send(READY="1", STATUS=line)
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


def _require_usable_agent(settings: Settings) -> None:
    """Refuse to start if no agent can answer. If at least one can, the causes are logged and shown by `status`."""
    unusable = list_unusable_agents(settings)
    if len(unusable) < len(settings.agents):
        return
    causes = [problem for problem in settings.problems if problem.cause is not None]
    if any(problem.cause is ProblemCause.UNKNOWN_PROVIDER for problem in causes):
        raise ConfigError(causes)
    why = "; ".join(f"{agent}: {reason}" for agent, reason in unusable.items())
    remedies = "; ".join(dict.fromkeys(problem.remedy for problem in causes if problem.remedy))
    raise Refused(f"no agent can answer: {why}", remedy=remedies or "everhold config check")


def _prepare_operator_token(home: Home, screen: CommandScreen) -> None:
    """Write an operator token to `.env` at the first start. Without one, nobody can log in."""
    try:
        ensure_operator_token(home, environ=os.environ, random_bytes=os.urandom)
    except OSError as error:
        screen.print_note(
            f"{home.env} cannot be written ({error.strerror}), so there is no operator token and nobody can log in; "
            f"set {OPERATOR_TOKEN_ENV} in the environment"
        )


async def _print_login(app: GatewayApp, screen: CommandScreen) -> None:
    """Print a login link to a terminal. Other outputs are kept, and a link must not be."""
    if screen.out.isatty() and (link := await app.create_login_link()):
        screen.print_line(f"log in: {link}")
        screen.print_line("the link works once, within ten minutes; `everhold open` makes another")
    else:
        screen.print_line("log in with `everhold open`")


def freeze_garbage_collector() -> None:
    """Exclude the present objects from garbage collection, because they live as long as the gateway."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 10, 100)


async def _serve_http(app: GatewayApp, port: int | None) -> str:
    try:
        return await app.serve(port=port)
    except InvalidRequest as error:  # the arguments are valid, but the machine refuses the port
        raise Refused(error.message, remedy=error.remedy) from error


async def _wait_for_end(app: GatewayApp, signals: _StopSignals) -> None:
    """Wait for a signal, `everhold drain` or a fatal error."""
    while app.fatal_error is None and not signals.first.is_set() and not app.drain_requested.is_set():
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await signals.first.wait()
        except TimeoutError:
            continue
    if app.fatal_error is None:
        await app.settle(signals.second)


async def _stop_gateway(app: GatewayApp, signals: _StopSignals) -> None:
    """Wait for running work until the drain time or a second signal. Unfinished work resumes at the next start."""
    running = len(app.supervisor.tasks)
    seconds = DRAIN_SECONDS if app.fatal_error is None else 0.0  # without a store no work can finish
    if running:
        app.log.info("gateway.stopping", running=running, seconds=seconds, remedy="a second signal stops at once")
    stopping = asyncio.ensure_future(app.stop(seconds=seconds))
    hurry = asyncio.ensure_future(signals.second.wait())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        for task in list(app.supervisor.tasks):
            task.cancel()
        await asyncio.wait({stopping}, timeout=GRACE_SECONDS)
        if not stopping.done():
            os._exit(128 + signal.SIGTERM)  # something cannot be stopped; a crash is safe
    hurry.cancel()
    await stopping


class _StopSignals:
    """Counts SIGTERM and SIGINT."""

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
