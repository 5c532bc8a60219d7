"""Connect once to a chat platform with an account's settings, and ask for the account's identity."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from everhold.app import SystemClock, SystemRandomSource
from everhold.core.commands import COMMAND_MENU
from everhold.errors import Refused
from everhold.infra.fetch import UrlFetcher
from everhold.infra.plugins import PLATFORM_PLUGINS
from everhold.ports.platform import AccountIntroduction, SupportsClose, SupportsIntroduction
from everhold.ports.plugin import AccountContext, PluginContext
from everhold.telemetry.logs import open_log

TRIAL_SECONDS: Final = 30.0


async def introduce_account(
    platform: str, account: str, settings: BaseModel, *, directory: Path
) -> AccountIntroduction | None:
    """Return the account's identity, None if the adapter cannot ask for it. Raises on failure. Receives no messages."""
    clock = SystemClock()
    account_context = AccountContext(
        account=account,
        offsets=_NoStateRecords(),
        fetch=UrlFetcher(),
        chance=SystemRandomSource(),
        sleep=asyncio.sleep,
        commands=COMMAND_MENU,
        report=lambda trouble="", remedy="": None,
    )
    log = open_log(clock=clock, stream=io.StringIO())  # errors are raised, so the log lines are not needed
    context = PluginContext(
        agent="", instance=account, directory=directory, log=log, clock=clock, account_context=account_context
    )
    made: object = PLATFORM_PLUGINS.load(platform)(settings, context)
    if not isinstance(made, SupportsIntroduction):
        return None
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            return await made.introduce()
    except TimeoutError:
        raise Refused(
            f"{platform} did not answer within {TRIAL_SECONDS:g} s", remedy="is this machine online?"
        ) from None
    finally:
        if isinstance(made, SupportsClose):
            await made.aclose()


class _NoStateRecords:
    """State records of an account that receives no messages."""

    async def read(self, name: str) -> str | None:
        return None

    async def advance(self, name: str, value: str) -> None: ...
