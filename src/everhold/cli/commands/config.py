"""`everhold config`: shows, checks or changes the configuration. Works on the files; a running gateway reloads them."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterable
from typing import Any

from everhold.app import build_plugin_check, load_home_settings
from everhold.assembly.machine_needs import list_missing_programs
from everhold.cli import errors
from everhold.cli.connect import find_home
from everhold.cli.render import CommandScreen, escape_control, format_count
from everhold.config import ConfigError, ConfigProblem, Settings, get_key, set_key, show_settings, to_yaml
from everhold.config.display import render_problem
from everhold.config.edit import parse_value
from everhold.config.errors import ProblemCause
from everhold.config.settings import is_restart_required


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args)
    if args.action == "check":
        return _check_config(args, screen)
    if args.action == "set":
        settings = set_key(
            home.create(), args.key, parse_value(args.value), environ=os.environ, validate_plugin=build_plugin_check()
        )
        restart = is_restart_required(args.key)
        if screen.json:
            screen.print_json(
                {"key": args.key, "revision": settings.revision, "file": str(home.config), "restart": restart}
            )
        else:
            when = "after a restart of everhold" if restart else "at the next message"
            screen.print_line(f"set in {home.config}; takes effect {when}")
        return 0
    settings = load_home_settings(home, environ=os.environ)
    _print_value(screen, show_settings(settings) if args.action == "show" else get_key(settings, args.key))
    return 0


def _check_shared_store(settings: Settings) -> tuple[list[ConfigProblem], list[ConfigProblem]]:
    """Connect to the database server, if there is one. Return what keeps a host from starting, and notes."""
    if not settings.store.is_server:
        return [], []
    from everhold.doctor.server import check_server, list_local_paths  # slow to import, and not needed without a server

    _, found = asyncio.run(check_server(settings.store))
    problems = {
        level: [
            ConfigProblem(it.text, it.remedy, path=("store",), fatal=level == "wrong")
            for it in found
            if it.level == level
        ]
        for level in ("wrong", "note")
    }
    return [*problems["wrong"], *list_local_paths(settings)], problems["note"]


def _print_value(screen: CommandScreen, value: Any) -> None:
    if screen.json:
        screen.print_json(value)
    elif isinstance(value, dict | list):
        screen.out.write(escape_control(to_yaml(value)))
    elif isinstance(value, str):
        screen.print_line(escape_control(value))
    else:
        screen.print_line({True: "true", False: "false", None: "null"}.get(value, str(value)))


def _check_config(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args)
    try:
        settings = load_home_settings(home, environ=os.environ)
    except ConfigError as error:
        if not screen.json:
            raise
        screen.print_json({"ok": False, "problems": [render_problem(problem) for problem in error.problems]})
        return errors.CONFIG
    wrong, notes = _check_shared_store(settings)
    if wrong and screen.json:
        screen.print_json({"ok": False, "problems": [render_problem(problem) for problem in wrong]})
        return errors.CONFIG
    if wrong:
        raise ConfigError(wrong)
    found = (*settings.problems, *list_missing_programs(settings, os.environ), *notes)
    code = _choose_exit_code(found)
    problems = [render_problem(problem) for problem in found]
    if screen.json:
        screen.print_json({"ok": code == errors.DONE, "revision": settings.revision, "problems": problems})
        return code
    file = str(home.config) if home.config.exists() else f"no {home.config}: all settings have their defaults"
    state = screen.paint("ok", "green") if code == errors.DONE else screen.paint("not complete", "yellow")
    screen.print_line(f"{state} · {format_count(len(settings.agents), 'agent')} · {file}")
    for problem in problems:
        where = f"{problem['file']}:{problem['line']}: " if problem["line"] else ""
        what = f"{problem['key']}: " if problem["key"] else ""
        state = "off" if problem["disables"] else "note"
        screen.print_line(f"{screen.paint(state, 'yellow')}  {escape_control(where + what + problem['message'])}")
        screen.print_line(f"  → {escape_control(problem['remedy'])}")
    return code


def _choose_exit_code(problems: Iterable[ConfigProblem]) -> int:
    """Return what scripts decide by: 78 for a provider that does not exist, 1 if something else is missing."""
    causes = {problem.cause for problem in problems} - {None}
    if ProblemCause.UNKNOWN_PROVIDER in causes:
        return errors.CONFIG
    return errors.WRONG if causes else errors.DONE
