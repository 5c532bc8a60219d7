"""Writes docs/reference/cli.md from the parser: `python -m everhold.cli.reference > docs/reference/cli.md`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Final

from everhold.cli.parser import build_parser, list_commands, list_options, list_positionals

_INTRODUCTION_TEXT: Final = """\
# Commands

<!-- Written by `python -m everhold.cli.reference`; change src/everhold/cli/parser.py instead. -->

The commands of `everhold`. A command is a client of the gateway that runs in the home. It connects to `api.sock`, which
serves the [HTTP API](http.md), and needs no configuration of its own. If no gateway runs, the command opens the home
itself until it is done; `chat` and `send` then run the agent in their own process.

These work before and after every command:

| option | meaning |
|---|---|
| `--home DIR` | the home; else `$EVERHOLD_HOME`, else `~/.everhold` |
| `--json` | print results as JSON; errors, too, as `{"error": {"type", "message", "remedy"}}` |
| `--log text\\|json` | the format of log lines: those of `up`, and of a `chat` or `send` without a gateway |
| `--help` | show a command's arguments and examples |

Colours are used on terminals only, and not if `NO_COLOR` is set. Results go to standard output, remarks to standard
error. An error has one line that says what failed and one with the remedy; `EVERHOLD_DEBUG=1` adds the traceback.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed: something was not found, a check failed, or a turn failed |
| 2 | usage: the arguments are invalid |
| 75 | try again: the message is stored but not answered yet, the gateway is busy, or the disk is full |
| 78 | configuration: invalid; the error names file, line, key and remedy |

ID is an id, a unique prefix of one, a title, an address, or `last`. `chat` and `send` accept the name of a chat or an
ID; an unknown name starts a new session.
"""
_GENERAL_OPTIONS: Final = ("--help", "--home", "--log", "--json")


def render_reference() -> str:
    """Return the reference page."""
    return _INTRODUCTION_TEXT + "".join(
        _render_command(words, parser) for words, parser in list_commands(build_parser())
    )


def _render_command(words: tuple[str, ...], parser: argparse.ArgumentParser) -> str:
    lines = [f"\n## everhold {' '.join(words)}\n", " ".join((parser.description or "").split()), ""]
    lines += ["```", f"everhold {' '.join((*words, *_render_usage(parser)))}", "```"]
    rows = [*_render_option_rows(parser)]
    if rows:
        lines += ["", "| argument | meaning |", "|---|---|", *rows]
    examples = [line.strip() for line in (parser.epilog or "").splitlines()[1:] if line.strip()]
    if examples:
        lines += ["", "```", *examples, "```"]
    return "\n".join(lines) + "\n"


def _render_usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in list_positionals(parser):
        name = _format_action_name(action)
        yield {"?": f"[{name}]", "*": f"[{name} …]"}.get(str(action.nargs), name)
    for action in _list_own_options(parser):
        text = f"{action.option_strings[-1]}{_format_value(action)}"
        yield text if action.required else f"[{text}]"


def _render_option_rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in (*list_positionals(parser), *_list_own_options(parser)):
        names = ", ".join(action.option_strings) or _format_action_name(action)
        if action.option_strings:
            names += _format_value(action)
        cells = (f"`{names}`", action.help or "")
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _list_own_options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in list_options(parser) if action.option_strings[-1] not in _GENERAL_OPTIONS]


def _format_value(action: argparse.Action) -> str:
    """Return the value of an option as it is written after its name; in brackets if it may be left out."""
    if action.nargs == 0:
        return ""
    name = _format_action_name(action)
    return f" [{name}]" if action.nargs == "?" else f" {name}"


def _format_action_name(action: argparse.Action) -> str:
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest)


if __name__ == "__main__":
    sys.stdout.write(render_reference())
