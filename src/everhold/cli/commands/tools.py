"""`everhold tools`: lists tool servers, and confirms tools that are new or changed since the owner saw them."""

from __future__ import annotations

import argparse
import asyncio
import unicodedata
from collections.abc import Mapping
from typing import Final

from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, escape_control, format_count

_HIDDEN_CATEGORIES: Final = frozenset({"Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Formatting, tags, private and unassigned characters, and separators of lines."""


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run({"list": _list_tools, "confirm": _confirm_tools}[args.action or "list"](args, screen))


async def _list_tools(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        found = await calls.list_tools()
    if screen.json:
        screen.print_json(found)
        return 0
    if not found["servers"]:
        screen.print_note("No tool server has been started yet. Configure one under `mcp`.")
    for server in found["servers"]:
        screen.print_line(f"{server['server']}: {format_count(len(server['tools']), 'tool')}")
        for tool in server["waiting"]:
            print_waiting_tool(screen, tool)
        if server["digest"]:
            screen.print_line(f"  → everhold tools confirm {server['server']} {server['digest']}")
    for tool in found["plugins"]:
        screen.print_line(
            f"{tool['name']}: trusted code of the package {tool['package']}, which runs in the gateway and can do all "
            f"that it can (used by {', '.join(tool['agents'])})"
        )
    return 0


def print_waiting_tool(screen: CommandScreen, tool: Mapping[str, str]) -> None:
    """Print everything that a model would read of a tool, because the owner confirms all of it."""
    screen.print_line(f"  {tool['name']} is {tool['state']} and not offered")
    if tool["before"] and tool["before"] != tool["description"]:
        _print_text(screen, "before", tool["before"])
    elif tool["state"] == "changed":
        screen.print_line("    its parameters changed, its description did not")
    _print_text(screen, "now", tool["description"])
    if tool["parameters"] != tool["parameters_before"]:
        if tool["parameters_before"]:
            _print_text(screen, "parameters before", tool["parameters_before"])
        _print_text(screen, "parameters now", tool["parameters"])


def _print_text(screen: CommandScreen, title: str, text: str) -> None:
    for place, line in enumerate(escape_hidden(text).split("\n")):
        screen.print_line(f"    {title if not place else ' ' * len(title)}: {line}")


def escape_hidden(text: str) -> str:
    """Return `text` with every character escaped that a terminal does not show, and a model reads."""
    return "".join(f"\\u{ord(char):04x}" if _is_hidden(char) else char for char in escape_control(text))


def _is_hidden(char: str) -> bool:
    if char.isascii():
        return False
    is_selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return is_selector or unicodedata.category(char) in _HIDDEN_CATEGORIES


async def _confirm_tools(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        done = await calls.confirm_tools(args.server, args.digest)
    if screen.json:
        screen.print_json(done)
    else:
        screen.print_line(f"{done['server']} now offers: {escape_control(', '.join(done['confirmed']))}")
    return 0
