"""Connects once to a chat platform, as an account that is configured, or about to be, and asks who it is there."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from everhold.app import SystemChance, SystemClock
from everhold.core.commands import COMMAND_MENU
from everhold.errors import Refused
from everhold.fetch import Fetcher
from everhold.logs import open_log
from everhold.plugins import PLATFORMS
from everhold.ports.platform import Introducing, Introduction, Leaving
from everhold.ports.plugin import Context, Station

TRIAL_SECONDS: Final = 30.0


async def introduced(platform: str, account: str, settings: BaseModel, *, directory: Path) -> Introduction | None:
    """Who we are there, None if its adapter cannot ask. Raises what is wrong; nothing is listened to."""
    clock = SystemClock()
    station = Station(
        account=account,
        positions=_Nowhere(),
        fetch=Fetcher(),
        chance=SystemChance(),
        sleep=asyncio.sleep,
        commands=COMMAND_MENU,
        report=lambda trouble="", remedy="": None,
    )
    log = open_log(clock=clock, stream=io.StringIO())  # what is wrong is raised, and said
    context = Context(agent="", instance=account, directory=directory, log=log, clock=clock, station=station)
    made: object = PLATFORMS.load(platform)(settings, context)
    if not isinstance(made, Introducing):
        return None
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            return await made.introduce()
    except TimeoutError:
        raise Refused(
            f"{platform} did not answer within {TRIAL_SECONDS:g} s", remedy="is this machine online?"
        ) from None
    finally:
        if isinstance(made, Leaving):
            await made.aclose()


class _Nowhere:
    """Positions of an account that only introduces itself."""

    async def read(self, name: str) -> str | None:
        return None

    async def move(self, name: str, value: str) -> None: ...
