"""How a command reaches the API: on the socket of the process that holds the home, else by holding it for a moment."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from everhold.cli.client import ApiClient
from everhold.cli.render import CommandScreen, escape_control
from everhold.cli.transport import GatewayGone, SocketTransport
from everhold.errors import HomeBusy, NotFound
from everhold.infra.home import Home

if TYPE_CHECKING:
    from everhold.app import GatewayApp

MAX_ATTEMPTS: Final = 20
BUSY_SECONDS: Final = 15.0
"""How long a home may be held by somebody who does not answer yet, or only for a moment."""
DRAIN_SECONDS: Final = 10.0
"""How long work begun for others may take to end when a chat of our own ends."""


@dataclass
class GatewayConnection:
    """A client, and the role of the process that answers it. `app` is set when that is this process."""

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
    """The API for a command that looks, or changes a record. Without a gateway no message is answered meanwhile."""
    home = find_home(args)
    if not home.store.exists():
        raise NotFound(
            f"nothing has been said in {home.path} yet",
            remedy="`everhold up` listens on every platform, `everhold chat` begins here; --home names another place",
        )
    reached = await connect_gateway(args, screen, role="", starts=False)
    try:
        yield reached.calls
    finally:
        await reached.close()


async def retry_if_gone(look: Callable[[], Awaitable[int]]) -> int:
    """Look again if whoever held the home left in the middle: a passing `send` goes when it is done."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return await look()
        except GatewayGone:
            await asyncio.sleep(random.uniform(0.02, 0.2))
    return await look()


async def connect_gateway(
    args: argparse.Namespace, screen: CommandScreen, *, role: str, starts: bool, patience: float = BUSY_SECONDS
) -> GatewayConnection:
    """Whoever holds the home, or this process."""
    home = find_home(args)
    until = time.monotonic() + patience
    while True:
        found = await find_running_gateway(home)
        if found is not None:
            return found
        try:
            return await _open_in_process(home, args, screen, role=role, starts=starts)
        except HomeBusy:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(random.uniform(0.02, 0.2))


async def find_running_gateway(home: Home) -> GatewayConnection | None:
    """Whoever answers at the home's socket."""
    calls = ApiClient(SocketTransport(home.api_socket))
    try:
        return GatewayConnection(calls, role=(await calls.show_health())["role"])
    except GatewayGone:
        return None


def print_upgrade(app: GatewayApp, screen: CommandScreen) -> None:
    """Say where what was there before an upgrade lies, whatever command came first."""
    if app.store.upgrade_backup is not None:
        screen.print_note(
            f"the store was brought to this version's schema; as it was: {escape_control(str(app.store.upgrade_backup))}"
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
        # looking at the log must not depend on a typing error: what was in force last will do
        settings = load_home_settings(home, environ=os.environ, last_good=True)
        screen.print_note(f"config.yaml is refused, going by the last good one: {error.problems[0]}")
    stream = screen.err if args.log else open(os.devnull, "w")  # noqa: SIM115, ASYNC230  # as long as the process
    log = open_log(clock=SystemClock(), home=home.path if starts else None, form=args.log or "text", stream=stream)
    if starts:
        adopt_stdlib(log)  # warnings of the server belong into the log, not between the lines of a chat
    app = GatewayApp(home, settings, log=log, environ=os.environ)
    print_upgrade(app, screen)
    app.role = role
    try:
        # who looks wants to know which chats are silenced, too
        await (app.start(listen=False) if starts else app.admission.load_halts())
    except BaseException:
        await app.stop(seconds=0)
        raise
    return GatewayConnection(ApiClient(InProcessTransport(app.api)), role=role, app=app)
