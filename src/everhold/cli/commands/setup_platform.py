"""`everhold setup PLATFORM`: asks for an adapter's settings, connects once, then writes config.yaml and `.env`.

It has no code for single platforms: the questions come from the adapter's Settings class, and the adapter tests them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any

from everhold.app import SystemClock, SystemRandomSource, load_home_settings
from everhold.assembly.account_setup import (
    check_account_settings,
    introduce_account,
    list_account_values,
    list_asked_settings,
)
from everhold.cli.checkup import run_checkup
from everhold.cli.commands.setup import SetupPrompter, load_environment, parse_setting, set_value
from everhold.cli.connect import find_home, find_running_gateway
from everhold.cli.progress import show_waiting
from everhold.cli.render import CommandScreen, escape_control
from everhold.config import Settings, set_secret
from everhold.config.literals import is_secret_key, suggest_env_name
from everhold.errors import EverholdError, InvalidRequest, Refused
from everhold.infra.home import Home
from everhold.infra.plugins import PLATFORM_PLUGINS
from everhold.infra.secret import SecretString
from everhold.ports.platform import AccountIntroduction


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    platform: str = args.action
    home = find_home(args).create()
    settings = load_home_settings(home, environ=os.environ)  # raises if it is invalid
    factory = PLATFORM_PLUGINS.load(platform)
    wanted = list_asked_settings(factory.Settings)
    account = args.account or settings.default_agent
    asking = SetupPrompter(screen, sys.stdin)
    known = load_environment(home)
    given = dict(parse_setting(text) for text in args.set)
    while True:
        values: dict[str, Any] = dict(given)
        new: dict[str, SecretString] = {}
        for field, question in wanted.items():
            if not is_secret_key(field):
                values[field] = given.get(field) or _ask_line(field, question, asking, silent=args.no_input)
                continue
            variable = suggest_env_name(("platforms", platform, account, field))
            kept = known.get(variable)
            secret = _ask_secret(field, question, asking, args, kept=kept is not None)
            values[field] = secret or kept
            if secret:
                new[variable] = secret
        try:
            check_account_settings(factory.Settings, values)
            me = None if args.no_test else asyncio.run(_introduce_account(platform, account, values, screen, home))
        except EverholdError as error:
            if args.no_input:
                raise
            screen.print_failure(error.message, error.remedy)
            if not asking.confirm("Change something and try again?"):
                raise Refused("nothing was written", remedy="--no-test writes it without a test") from None
            continue
        break
    written = _write_settings(home, settings, platform, account, values, agent=args.agent)
    for variable, secret in new.items():
        set_secret(home, variable, secret)
    return _print_result(screen, home, platform, account, me, list(new), written)


def _ask_line(field: str, question: str, asking: SetupPrompter, *, silent: bool) -> str:
    if silent:
        raise InvalidRequest(f"{field} is not given", remedy=f"--set {field}=…")
    return asking.ask_line(question)


def _ask_secret(
    field: str, question: str, asking: SetupPrompter, args: argparse.Namespace, *, kept: bool
) -> SecretString:
    if args.stdin:
        secret = SecretString(sys.stdin.readline().strip())
        if not secret:
            raise InvalidRequest(
                f"there is no {field} on standard input", remedy="one per line, in the order of the questions"
            )
        return secret
    if args.no_input:
        if not kept:
            raise InvalidRequest(f"{field} is not given", remedy="--stdin reads it from standard input")
        return SecretString("")
    hint = "not shown; Enter keeps the present one" if kept else "not shown"
    while True:
        secret = asking.ask_secret(f"{question} ({hint})")
        if secret or kept:
            return secret


async def _introduce_account(
    platform: str, account: str, values: dict[str, Any], screen: CommandScreen, home: Home
) -> AccountIntroduction | None:
    """Connect once and return the account's name. Raises the adapter's error."""
    settings = PLATFORM_PLUGINS.load(platform).Settings.model_validate(values)
    async with show_waiting(screen, f"asking {platform}"):
        return await introduce_account(
            platform, account, settings, directory=home.path, clock=SystemClock(), chance=SystemRandomSource()
        )


def _write_settings(
    home: Home, before: Settings, platform: str, account: str, values: dict[str, Any], *, agent: str
) -> Settings:
    after = before
    for key, value in list_account_values(platform, account, values, before, agent=agent).items():
        after = set_value(home, key, value)
    return after


def _print_result(
    screen: CommandScreen,
    home: Home,
    platform: str,
    account: str,
    me: AccountIntroduction | None,
    variables: list[str],
    settings: Settings,
) -> int:
    running = asyncio.run(find_running_gateway(home)) is not None
    if screen.json:
        name = None if me is None else me.name
        found = run_checkup(home, screen, f"platforms.{platform}.{account}")
        told = {"platform": platform, "account": account, "name": name, "file": str(home.config), "doctor": found}
        screen.print_json(told)
        return 0
    if me is not None:
        screen.print_line(f"{screen.paint('ok', 'green')} · connected to {platform} as {escape_control(me.name)}")
    where = [str(home.config), *(f"{variable} in {home.env}" for variable in variables)]
    screen.print_line(f"written: {' and '.join(where)}")
    run_checkup(home, screen, f"platforms.{platform}.{account}")
    configured = settings.platforms[platform][account]
    steps = [] if running else ["everhold up"]
    hello = me.hello if me is not None and me.hello else "send it a message"
    steps.append(hello)
    if not (configured.access.direct or configured.owners or settings.access.owners):
        steps.append("everhold pairing approve CODE, with the code that it sends you")
    screen.print_line("next: " + "; then ".join(steps))
    return 0
