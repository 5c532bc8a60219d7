"""`everhold tools`: lists tool servers, and confirms tools that are new or changed since the owner saw them."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, escape_control, format_count


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
            screen.print_line(f"  {tool['name']} is {tool['state']} and not offered")
            if tool["before"] and tool["before"] != tool["description"]:
                _print_text(screen, "before", tool["before"])
            elif tool["state"] == "changed":
                screen.print_line("    its parameters changed, its description did not")
            _print_text(screen, "now", tool["description"])
        if server["digest"]:
            screen.print_line(f"  → everhold tools confirm {server['server']} {server['digest']}")
    for tool in found["plugins"]:
        screen.print_line(
            f"{tool['name']}: trusted code of the package {tool['package']}, which runs in the gateway and can do all "
            f"that it can (used by {', '.join(tool['agents'])})"
        )
    return 0


def _print_text(screen: CommandScreen, title: str, text: str) -> None:
    for place, line in enumerate(escape_control(text).splitlines() or [""]):
        screen.print_line(f"    {title if not place else ' ' * len(title)}: {line}")


async def _confirm_tools(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        done = await calls.confirm_tools(args.server, args.digest)
    if screen.json:
        screen.print_json(done)
    else:
        screen.print_line(f"{done['server']} now offers: {escape_control(', '.join(done['confirmed']))}")
    return 0
