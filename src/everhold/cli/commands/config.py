"""`everhold config`: look at the configuration, or change one value of it. Needs no gateway; a running one notices."""

from __future__ import annotations

import argparse
import os
from typing import Any

from everhold.app import plugin_check, problem_json, settings_of
from everhold.cli import errors
from everhold.cli.reach import home_of
from everhold.cli.render import Screen, count, safe
from everhold.config import ConfigError, get_key, set_key, show, to_yaml
from everhold.config.edit import parse_value
from everhold.config.settings import takes_a_restart


def run(args: argparse.Namespace, screen: Screen) -> int:
    home = home_of(args)
    if args.action == "check":
        return _check(args, screen)
    if args.action == "set":
        settings = set_key(
            home.create(), args.key, parse_value(args.value), environ=os.environ, validate_plugin=plugin_check()
        )
        restart = takes_a_restart(args.key)
        if screen.json:
            screen.show({"key": args.key, "revision": settings.revision, "file": str(home.config), "restart": restart})
        else:
            when = "after a restart of everhold" if restart else "at the next message"
            screen.say(f"set in {home.config}; in force {when}")
        return 0
    settings = settings_of(home, environ=os.environ)
    _print(screen, show(settings) if args.action == "show" else get_key(settings, args.key))
    return 0


def _print(screen: Screen, value: Any) -> None:
    if screen.json:
        screen.show(value)
    elif isinstance(value, dict | list):
        screen.out.write(safe(to_yaml(value)))
    elif isinstance(value, str):
        screen.say(safe(value))
    else:
        screen.say({True: "true", False: "false", None: "null"}.get(value, str(value)))


def _check(args: argparse.Namespace, screen: Screen) -> int:
    home = home_of(args)
    try:
        settings = settings_of(home, environ=os.environ)
    except ConfigError as error:
        if not screen.json:
            raise
        screen.show({"ok": False, "problems": [problem_json(problem) for problem in error.problems]})
        return errors.CONFIG
    problems = [problem_json(problem) for problem in settings.problems]
    if screen.json:
        screen.show({"ok": True, "revision": settings.revision, "problems": problems})
        return 0
    file = str(home.config) if home.config.exists() else f"no {home.config}: everything is as it comes"
    screen.say(f"{screen.paint('ok', 'green')} · {count(len(settings.agents), 'agent')} · {file}")
    for problem in problems:
        where = f"{problem['file']}:{problem['line']}: " if problem["line"] else ""
        what = f"{problem['key']}: " if problem["key"] else ""
        screen.say(f"{screen.paint('off', 'yellow')}  {safe(where + what + problem['message'])}")
        screen.say(f"  → {safe(problem['remedy'])}")
    return 0
