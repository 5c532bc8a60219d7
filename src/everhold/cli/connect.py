"""Connects a command to the API: at the socket of the process that holds the home, or in process if there is none."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from everhold.cli.client import ApiClient
from everhold.cli.render import CommandScreen, escape_control
from everhold.cli.transport import GatewayGone, SocketTransport, make_foreign_error
from everhold.errors import HomeBusy, NotFound, Transient
from everhold.infra.home import Home, require_store

if TYPE_CHECKING:
    from everhold.app import GatewayApp

MAX_ATTEMPTS: Final = 20
BUSY_SECONDS: Final = 15.0
"""How long to wait for a home that another process holds and that does not answer yet."""
HEALTH_SECONDS: Final = 20.0
"""How long to wait for the health of a process that accepts connections."""
STOPPED_CHECK_SECONDS: Final = 1.0
"""How often to check, while a command waits, whether a signal stopped the gateway."""
DRAIN_SECONDS: Final = 10.0
"""How long running work may take to end when a command without a gateway ends."""

ResponseT = TypeVar("ResponseT")


@dataclass
class GatewayConnection:
    """A client, and the role of the process that answers it. `app` is set if that is this process."""

    calls: ApiClient
    role: str = ""
    app: GatewayApp | None = None

    async def close(self, *, seconds: float = 0.0) -> None:
        if self.app is not None:
            app, self.app = self.app, None
            await app.stop(seconds=seconds)


def find_home(args: argparse.Namespace) -> Home:
    return Home.find(args.home, environ=os.environ)


@asynccontextmanager
async def connect_for_reading(args: argparse.Namespace, screen: CommandScreen) -> AsyncIterator[ApiClient]:
    """The API for a command that reads, or changes a record. Without a gateway it answers no messages."""
    home = find_home(args)
    if not home.store.exists() and await find_running_gateway(home) is None and _needs_file(home):
        require_store(home)
        raise NotFound(
            f"{home.path} has no sessions yet",
            remedy="`everhold chat` starts one, `everhold up` runs the gateway; --home names another home",
        )
    reached = await connect_gateway(args, screen, role="", starts=False)
    try:
        yield reached.calls
    finally:
        await reached.close()


def _needs_file(home: Home) -> bool:
    """Whether the log of a home is a file in it, and not on a server. An invalid configuration is explained later."""
    from everhold.app import load_home_settings
    from everhold.config import ConfigError

    for last_good in (False, True):  # as `_open_in_process` does
        with contextlib.suppress(ConfigError):
            return not load_home_settings(home, environ=os.environ, last_good=last_good).store.is_server
    return False


async def retry_if_gone(command: Callable[[], Awaitable[int]]) -> int:
    """Run a command again if the process that held the home ended during it, as a `send` without a gateway does."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return await command()
        except GatewayGone:
            await asyncio.sleep(random.uniform(0.02, 0.2))  # nosec B311  # spreads retries
    return await command()


async def connect_gateway(
    args: argparse.Namespace, screen: CommandScreen, *, role: str, starts: bool, patience: float | None = None
) -> GatewayConnection:
    """Connect to the process that holds the home, or open the home in this process."""
    home = find_home(args)
    until = time.monotonic() + (BUSY_SECONDS if patience is None else patience)
    while True:
        found = await find_running_gateway(home)
        if found is not None:
            return found
        try:
            return await _open_in_process(home, args, screen, role=role, starts=starts)
        except HomeBusy as busy:
            if time.monotonic() > until:
                raise HomeBusy(
                    f"{busy.message}, but does not answer at {home.api_socket}",
                    remedy="if it is a gateway, restart it to create its socket again; "
                    "if it is another command, wait for its end",
                ) from None
            await asyncio.sleep(random.uniform(0.02, 0.2))  # nosec B311  # spreads retries


async def find_running_gateway(home: Home) -> GatewayConnection | None:
    """Connect to the process that answers at the home's socket; None if there is none.

    Raises Transient if that process does not answer in time, because it hangs or a signal stopped it.
    """
    calls = ApiClient(SocketTransport(home.api_socket))
    try:
        role = (await wait_for_answer(home, calls.show_health(), limit_seconds=HEALTH_SECONDS)).get("role")
    except GatewayGone:
        return None
    if not isinstance(role, str):
        raise make_foreign_error()
    return GatewayConnection(calls, role=role)


async def wait_for_answer(
    home: Home, request: Coroutine[Any, Any, ResponseT], *, limit_seconds: float = math.inf
) -> ResponseT:
    """Return the response to a request. Raises Transient if the process that holds the home was stopped by a signal, or
    if the limit passes.
    """
    until = time.monotonic() + limit_seconds
    asked = asyncio.get_running_loop().create_task(request)
    try:
        while True:
            await asyncio.wait([asked], timeout=min(STOPPED_CHECK_SECONDS, max(0.0, until - time.monotonic())))
            if asked.done():
                return asked.result()
            if (pid := find_stopped_holder(home)) is not None:
                raise Transient(
                    f"the gateway of {home.path} (process {pid}) is frozen: a signal stopped it, so messages wait",
                    remedy=f"kill -CONT {pid} lets it continue; kill -KILL {pid} ends it, and loses nothing accepted",
                )
            if time.monotonic() >= until:
                raise Transient(
                    f"the gateway of {home.path} accepts connections, but did not answer within {limit_seconds:g} "
                    "seconds",
                    remedy="wait if the machine is busy; else end the process (its number is in the file `lock` of "
                    "the home) and start it again",
                )
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


def find_stopped_holder(home: Home) -> int | None:
    """Return the process that holds the home if a signal (SIGSTOP) stopped it. Other systems than Linux do not say."""
    try:
        pid = int(home.lock.read_text("ascii"))
        state = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return pid if state in ("T", "t") else None


def print_upgrade(app: GatewayApp, screen: CommandScreen) -> None:
    """Print where the store from before an upgrade is, whichever command upgraded it."""
    if app.store.upgrade_backup is not None:
        screen.print_note(
            f"the store was upgraded to this version's schema; backup: {escape_control(str(app.store.upgrade_backup))}"
        )


async def _open_in_process(
    home: Home, args: argparse.Namespace, screen: CommandScreen, *, role: str, starts: bool
) -> GatewayConnection:
    from everhold.app import GatewayApp, SystemClock, load_home_settings
    from everhold.cli.in_process import InProcessTransport
    from everhold.config import ConfigError
    from everhold.telemetry.logs import adopt_stdlib, open_log

    home.create()
    try:
        settings = load_home_settings(home, environ=os.environ)
    except ConfigError as error:
        if starts or not home.last_good.exists():
            raise
        # reading the log must work despite an invalid configuration, so use the last valid one
        settings = load_home_settings(home, environ=os.environ, last_good=True)
        screen.print_note(f"config.yaml is invalid, using the last valid one: {error.problems[0]}")
    stream = screen.err if args.log else open(os.devnull, "w")  # noqa: SIM115, ASYNC230  # as long as the process
    log = open_log(clock=SystemClock(), home=home.path if starts else None, form=args.log or "text", stream=stream)
    if starts:
        adopt_stdlib(log)  # the server's warnings belong in the log lines, not between the lines of a chat
    app = await GatewayApp.open(home, settings, log=log, environ=os.environ)
    print_upgrade(app, screen)
    app.role = role
    try:
        # reading commands show the halted chats, too
        await (app.start(listen=False) if starts else app.admission.shared_records.refresh())
    except BaseException:
        await app.stop(seconds=0)
        raise
    return GatewayConnection(ApiClient(InProcessTransport(app.api)), role=role, app=app)
