"""From arguments to an exit code: finds the command, runs it, and says in two lines what went wrong."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import TracebackType

from everhold import __version__
from everhold.cli.parser import build
from everhold.cli.render import Screen
from everhold.errors import EverholdError, StoreDamaged, StoreNewer

INTERRUPTED = 130
_GENERAL: dict[str, object] = {"home": None, "log": None, "json": False, "give_up_with": None}


def run(argv: Sequence[str]) -> int:
    """Run the command `argv` names; its exit code."""
    if list(argv) == ["--version"]:
        print(f"everhold {__version__}")
        return 0
    if not argv:
        build().print_help(sys.stderr)
        return 2
    sys.excepthook = _unforeseen
    try:
        args = parse(argv)
    except SystemExit as left:  # --help, or a mistake that argparse has explained
        return left.code if isinstance(left.code, int) else 2
    screen = Screen.of(sys.stdout, sys.stderr, environ=os.environ, json=args.json)
    try:
        code: int = import_module(f"everhold.cli.commands.{args.module}").run(args, screen)
        sys.stdout.flush()
        return code
    except EverholdError as error:
        code = _tell(screen, error)
        return code if args.give_up_with is None or not _is_final(error) else int(args.give_up_with)
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _debug(error)
        screen.fail(f"{error.filename or 'the system'}: {error.strerror or error}", "")
        return 1
    except KeyboardInterrupt:
        screen.note("")
        return INTERRUPTED


def parse(argv: Sequence[str]) -> argparse.Namespace:
    args = build().parse_args(argv)
    for name, value in _GENERAL.items():
        if name not in args:
            setattr(args, name, value)
    return args


def _tell(screen: Screen, error: EverholdError) -> int:
    from everhold.cli import errors
    from everhold.config.problems import ConfigError

    _debug(error)
    if screen.json:
        screen.show({"error": errors.show_error(error)})
    if isinstance(error, ConfigError):
        for problem in error.problems:
            where = f"{problem.file}:{problem.line}" if problem.line else problem.file
            screen.fail(": ".join(part for part in (where, problem.key, problem.message) if part), problem.remedy)
    else:
        screen.fail(error.message, error.remedy)
    return errors.get_exit_code(error)


def _is_final(error: EverholdError) -> bool:
    """Whether starting anew would end the same way until a person has done something."""
    from everhold.config.problems import ConfigError

    return isinstance(error, ConfigError | StoreDamaged | StoreNewer)


def _debug(error: BaseException) -> None:
    if os.environ.get("EVERHOLD_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)


def _unforeseen(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A bug. Its trace is for whoever wants to mend it."""
    _debug(error)
    text = f"{kind.__name__}: {error}".splitlines()[0][:300]
    print(f"everhold: a mistake of everhold's own: {text}", file=sys.stderr)
    print("  → EVERHOLD_DEBUG=1 shows where; please report it", file=sys.stderr)
