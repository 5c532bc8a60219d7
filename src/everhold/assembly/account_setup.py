"""What is needed to set up an account of a chat platform, for the command line and the console.

It has no code for single platforms: the settings to ask for come from the adapter's Settings class, and the adapter
tests them.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from everhold.config import Settings, find_plugin_problems
from everhold.config.literals import is_secret_key, suggest_env_name
from everhold.core.commands import COMMAND_MENU
from everhold.errors import InvalidRequest, Refused
from everhold.infra.fetch import UrlFetcher
from everhold.infra.plugins import PLATFORM_PLUGINS
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.platform import AccountIntroduction, SupportsClose, SupportsIntroduction
from everhold.ports.plugin import AccountContext, PluginContext
from everhold.telemetry.logs import open_log

TRIAL_SECONDS: Final = 30.0


def list_asked_settings(model: type[BaseModel]) -> dict[str, str]:
    """Return the settings to ask for, with the questions: those without a default, and those marked as asked."""
    return {
        name: (field.description or name).rstrip(".")
        for name, field in model.model_fields.items()
        if field.is_required() or field.json_schema_extra == {"everhold": "asked"}
    }


def check_account_settings(model: type[BaseModel], values: dict[str, Any]) -> None:
    """Raise InvalidRequest if the adapter cannot work with the values."""
    for problem in find_plugin_problems("platforms", model, values):
        raise InvalidRequest(f"{problem.key}: {problem.message}", remedy=problem.remedy)


async def introduce_account(
    platform: str, account: str, settings: BaseModel, *, directory: Path, clock: Clock, chance: RandomSource
) -> AccountIntroduction | None:
    """Connect once and return the account's identity, None if the adapter cannot ask for it. Raises on failure.

    It receives no messages.
    """
    account_context = AccountContext(
        account=account,
        offsets=_NoStateRecords(),
        fetch=UrlFetcher(),
        chance=chance,
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


def list_account_values(
    platform: str, account: str, values: Mapping[str, Any], before: Settings, *, agent: str
) -> dict[str, Any]:
    """Return what to write in config.yaml, by key. Secrets are named by their variable.

    The other keys of an account that is there stay, with their comments.
    """
    section: dict[str, Any] = {
        f"{key}_env" if is_secret_key(key) else key: (
            suggest_env_name(("platforms", platform, account, key)) if is_secret_key(key) else value
        )
        for key, value in values.items()
    }
    if agent:
        section["agent"] = agent
    path = f"platforms.{platform}.{account}"
    if account not in before.platforms.get(platform, {}):
        return {path: section}
    return {f"{path}.{key}": value for key, value in section.items()}


class _NoStateRecords:
    """State records of an account that receives no messages."""

    async def read(self, name: str) -> str | None:
        return None

    async def advance(self, name: str, value: str) -> None: ...
