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
from everhold.cli.render import Screen, safe
from everhold.cli.transport import GatewayGone, SocketTransport
from everhold.errors import HomeBusy, NotFound
from everhold.home import Home

if TYPE_CHECKING:
    from everhold.app import App

MOST_LOOKS: Final = 20
BUSY_SECONDS: Final = 15.0
"""How long a home may be held by somebody who does not answer yet, or only for a moment."""
DRAIN_SECONDS: Final = 10.0
"""How long work begun for others may take to end when a chat of our own ends."""


@dataclass
class Reached:
    """A client, and the role of the process that answers it. `app` is set when that is this process."""

    calls: ApiClient
    role: str = ""
    app: App | None = None

    async def close(self, *, seconds: float = 0.0) -> None:
        if self.app is not None:
            app, self.app = self.app, None
            await app.stop(seconds=seconds)


def home_of(args: argparse.Namespace) -> Home:
    return Home.find(args.home, environ=os.environ)


@asynccontextmanager
async def looking(args: argparse.Namespace, screen: Screen) -> AsyncIterator[ApiClient]:
    """The API for a command that looks, or changes a record. Without a gateway no message is answered meanwhile."""
    home = home_of(args)
    if not home.store.exists():
        raise NotFound(
            f"nothing has been said in {home.path} yet",
            remedy="`everhold up` listens on every platform, `everhold chat` begins here; --home names another place",
        )
    reached = await reach(args, screen, role="", starts=False)
    try:
        yield reached.calls
    finally:
        await reached.close()


async def patiently(look: Callable[[], Awaitable[int]]) -> int:
    """Look again if whoever held the home left in the middle: a passing `send` goes when it is done."""
    for _ in range(MOST_LOOKS):
        try:
            return await look()
        except GatewayGone:
            await asyncio.sleep(random.uniform(0.02, 0.2))
    return await look()


async def reach(
    args: argparse.Namespace, screen: Screen, *, role: str, starts: bool, patience: float = BUSY_SECONDS
) -> Reached:
    """Whoever holds the home, or this process."""
    home = home_of(args)
    until = time.monotonic() + patience
    while True:
        found = await answering(home)
        if found is not None:
            return found
        try:
            return await _here(home, args, screen, role=role, starts=starts)
        except HomeBusy:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(random.uniform(0.02, 0.2))


async def answering(home: Home) -> Reached | None:
    """Whoever answers at the home's socket."""
    calls = ApiClient(SocketTransport(home.api_socket))
    try:
        return Reached(calls, role=(await calls.show_health())["role"])
    except GatewayGone:
        return None


def tell_upgrade(app: App, screen: Screen) -> None:
    """Say where what was there before an upgrade lies, whatever command came first."""
    if app.store.saved is not None:
        screen.note(f"the store was brought to this version's schema; as it was: {safe(str(app.store.saved))}")


async def _here(home: Home, args: argparse.Namespace, screen: Screen, *, role: str, starts: bool) -> Reached:
    from everhold.app import App, SystemClock, settings_of
    from everhold.cli.in_process import InProcessTransport
    from everhold.config import ConfigError
    from everhold.logs import adopt_stdlib, open_log

    home.create()
    try:
        settings = settings_of(home, environ=os.environ)
    except ConfigError as error:
        if starts or not home.last_good.exists():
            raise
        # looking at the log must not depend on a typing error: what was in force last will do
        settings = settings_of(home, environ=os.environ, last_good=True)
        screen.note(f"config.yaml is refused, going by the last good one: {error.problems[0]}")
    stream = screen.err if args.log else open(os.devnull, "w")  # noqa: SIM115, ASYNC230  # as long as the process
    log = open_log(clock=SystemClock(), home=home.path if starts else None, form=args.log or "text", stream=stream)
    if starts:
        adopt_stdlib(log)  # warnings of the server belong into the log, not between the lines of a chat
    app = App(home, settings, log=log, environ=os.environ)
    tell_upgrade(app, screen)
    app.role = role
    try:
        # who looks wants to know which chats are silenced, too
        await (app.start(listen=False) if starts else app.reception.open())
    except BaseException:
        await app.stop(seconds=0)
        raise
    return Reached(ApiClient(InProcessTransport(app.api)), role=role, app=app)
