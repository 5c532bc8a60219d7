"""Parses the arguments, runs the command, and prints an error in two lines."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import TracebackType

from everhold import __version__
from everhold.cli.parser import UsageMistake, build_parser
from everhold.cli.render import CommandScreen
from everhold.errors import EverholdError, StoreDamaged, StoreMissing, StoreNewer, StoreOutdated

INTERRUPTED_EXIT_CODE = 130
_GENERAL_DEFAULTS: dict[str, object] = {"home": None, "log": None, "json": False, "give_up_with": None}


def run_command(argv: Sequence[str]) -> int:
    """Run the command that `argv` names and return its exit code."""
    if list(argv) == ["--version"]:
        print(f"everhold {__version__}")
        return 0
    if not argv:
        build_parser().print_help(sys.stderr)
        return 2
    sys.excepthook = _report_bug
    try:
        args = parse_arguments(argv)
    except UsageMistake as mistake:  # the parser has explained it
        if "--json" in argv:
            error = {"type": "invalid_request", "message": mistake.message, "remedy": mistake.remedy}
            print(json.dumps({"error": error}, ensure_ascii=False, indent=2))
        return 2
    except SystemExit as left:  # --help
        return left.code if isinstance(left.code, int) else 2
    screen = CommandScreen.from_streams(sys.stdout, sys.stderr, environ=os.environ, json=args.json)
    try:
        code: int = import_module(f"everhold.cli.commands.{args.module}").run(args, screen)
        sys.stdout.flush()
        return code
    except EverholdError as error:
        code = _print_error(screen, error)
        return code if args.give_up_with is None or not _is_final(error) else int(args.give_up_with)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _print_trace(error)
        screen.print_failure(f"{error.filename or 'the system'}: {error.strerror or error}", "")
        return 1
    except KeyboardInterrupt:
        screen.print_note("")
        return INTERRUPTED_EXIT_CODE


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    args = build_parser().parse_command_line(argv)
    for name, value in _GENERAL_DEFAULTS.items():
        if name not in args:
            setattr(args, name, value)
    return args


def _print_error(screen: CommandScreen, error: EverholdError) -> int:
    from everhold.cli import errors
    from everhold.config.errors import ConfigError

    _print_trace(error)
    if screen.json:
        screen.print_json({"error": errors.show_error(error)})
    if isinstance(error, ConfigError):
        for problem in error.problems:
            where = f"{problem.file}:{problem.line}" if problem.line else problem.file
            screen.print_failure(
                ": ".join(part for part in (where, problem.key, problem.message) if part), problem.remedy
            )
    else:
        screen.print_failure(error.message, error.remedy)
    return errors.get_exit_code(error)


def _is_final(error: EverholdError) -> bool:
    """Whether a restart would fail again until a person has fixed the cause."""
    from everhold.config.errors import ConfigError

    return isinstance(error, ConfigError | StoreDamaged | StoreMissing | StoreNewer | StoreOutdated)


def _print_trace(error: BaseException) -> None:
    if os.environ.get("EVERHOLD_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected exception in two lines; its traceback only with EVERHOLD_DEBUG."""
    _print_trace(error)
    text = f"{kind.__name__}: {error}".splitlines()[0][:300]
    print(f"everhold: a bug in everhold: {text}", file=sys.stderr)
    print("  → EVERHOLD_DEBUG=1 shows the traceback; please report it", file=sys.stderr)
