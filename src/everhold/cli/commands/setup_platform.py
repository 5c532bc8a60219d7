"""`everhold setup PLATFORM`: asks for what its adapter needs, connects once, then writes config.yaml and `.env`.

It knows no platform: what to ask stands in the adapter's own Settings, and whether it works the adapter finds out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any

from pydantic import BaseModel

from everhold.app import plugin_check, settings_of
from everhold.cli.checkup import checkup
from everhold.cli.commands.setup import Asking, environment
from everhold.cli.progress import waiting
from everhold.cli.reach import answering, home_of
from everhold.cli.render import Screen, safe
from everhold.config import Settings, plugin_problems, set_key, set_secret
from everhold.config.literals import env_name_for, is_secret_key
from everhold.doctor.meeting import introduced
from everhold.errors import EverholdError, Misuse, Refused
from everhold.home import Home
from everhold.plugins import PLATFORMS
from everhold.ports.platform import Introduction
from everhold.secret import Secret


def run(args: argparse.Namespace, screen: Screen) -> int:
    platform: str = args.action
    home = home_of(args).create()
    settings = settings_of(home, environ=os.environ)  # a broken configuration is mended before it is changed
    factory = PLATFORMS.load(platform)
    wanted = _wanted(factory.Settings)
    account = args.account or settings.default_agent
    asking = Asking(screen, sys.stdin)
    known = environment(home)
    given = dict(_pair(text) for text in args.set)
    while True:
        values: dict[str, Any] = dict(given)
        new: dict[str, Secret] = {}
        for field, question in wanted.items():
            if not is_secret_key(field):
                values[field] = given.get(field) or _line(field, question, asking, silent=args.no_input)
                continue
            variable = env_name_for(("platforms", platform, account, field))
            kept = known.get(variable)
            secret = _secret(field, question, asking, args, kept=kept is not None)
            values[field] = secret or kept
            if secret:
                new[variable] = secret
        try:
            _check(factory.Settings, values)
            me = None if args.no_test else asyncio.run(_introduced(platform, account, values, screen, home))
        except EverholdError as error:
            if args.no_input:
                raise
            screen.fail(error.message, error.remedy)
            if not asking.yes("Change something and try again?"):
                raise Refused("nothing was written", remedy="--no-test writes it untried") from None
            continue
        break
    written = _write(home, settings, platform, account, values, agent=args.agent)
    for variable, secret in new.items():
        set_secret(home, variable, secret)
    return _tell(screen, home, platform, account, me, list(new), written)


def _wanted(model: type[BaseModel]) -> dict[str, str]:
    """What has to be asked, with the question: every setting without a default, and what most people need."""
    return {
        name: (field.description or name).rstrip(".")
        for name, field in model.model_fields.items()
        if field.is_required() or field.json_schema_extra == {"everhold": "asked"}
    }


def _check(model: type[BaseModel], values: dict[str, Any]) -> None:
    for problem in plugin_problems("platforms", model, values):
        raise Misuse(f"{problem.key}: {problem.message}", remedy=problem.remedy)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or is_secret_key(key):
        raise Misuse(
            f"{key[:40]!r} cannot be set like this", remedy="--set key=value; secrets are asked for, or --stdin"
        )
    return key, value


def _line(field: str, question: str, asking: Asking, *, silent: bool) -> str:
    if silent:
        raise Misuse(f"{field} is not given", remedy=f"--set {field}=…")
    return asking.line(question)


def _secret(field: str, question: str, asking: Asking, args: argparse.Namespace, *, kept: bool) -> Secret:
    if args.stdin:
        secret = Secret(sys.stdin.readline().strip())
        if not secret:
            raise Misuse(f"there is no {field} on standard input", remedy="one line each, in the order they are asked")
        return secret
    if args.no_input:
        if not kept:
            raise Misuse(f"{field} is not given", remedy="--stdin reads it from standard input")
        return Secret("")
    hint = "not shown; Enter keeps the one there is" if kept else "not shown"
    while True:
        secret = asking.secret(f"{question} ({hint})")
        if secret or kept:
            return secret


async def _introduced(
    platform: str, account: str, values: dict[str, Any], screen: Screen, home: Home
) -> Introduction | None:
    """Connect once, and hear who we are there. Raises what the adapter says is wrong."""
    settings = PLATFORMS.load(platform).Settings.model_validate(values)
    async with waiting(screen, f"asking {platform}"):
        return await introduced(platform, account, settings, directory=home.path)


def _write(
    home: Home, before: Settings, platform: str, account: str, values: dict[str, Any], *, agent: str
) -> Settings:
    section: dict[str, Any] = {
        f"{key}_env" if is_secret_key(key) else key: (
            env_name_for(("platforms", platform, account, key)) if is_secret_key(key) else value
        )
        for key, value in values.items()
    }
    if agent:
        section["agent"] = agent
    path = f"platforms.{platform}.{account}"
    if account not in before.platforms.get(platform, {}):
        return set_key(home, path, section, environ=os.environ, validate_plugin=plugin_check())
    after = before  # what else stands there stays, with its comments
    for key, value in section.items():
        after = set_key(home, f"{path}.{key}", value, environ=os.environ, validate_plugin=plugin_check())
    return after


def _tell(
    screen: Screen,
    home: Home,
    platform: str,
    account: str,
    me: Introduction | None,
    variables: list[str],
    settings: Settings,
) -> int:
    running = asyncio.run(_runs(home))
    if screen.json:
        name = None if me is None else me.name
        found = checkup(home, screen, f"platforms.{platform}.{account}")
        told = {"platform": platform, "account": account, "name": name, "file": str(home.config), "doctor": found}
        screen.show(told)
        return 0
    if me is not None:
        screen.say(f"{screen.paint('ok', 'green')} · {platform} knows it as {safe(me.name)}")
    where = [str(home.config), *(f"{variable} in {home.env}" for variable in variables)]
    screen.say(f"written: {' and '.join(where)}")
    checkup(home, screen, f"platforms.{platform}.{account}")
    access = settings.platforms[platform][account].access
    steps = [] if running else ["everhold up"]
    hello = me.hello if me is not None and me.hello else "write to it"
    steps.append(hello)
    if not access.direct and not settings.access.owners:
        steps.append("everhold pairing approve CODE, with the code it tells you")
    screen.say("next: " + "; then ".join(steps))
    return 0


async def _runs(home: Home) -> bool:
    return await answering(home) is not None
