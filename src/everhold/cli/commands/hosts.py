"""`everhold hosts`: lists the hosts of a shared store and what they hold. Exits 1 if one of them needs attention."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

from everhold.cli.connect import connect_for_reading, find_home, wait_for_answer
from everhold.cli.render import CommandScreen, format_duration, format_one_line

MAX_CLOCK_DIFFERENCE_SECONDS: Final = 1.0


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_print_hosts(args, screen))


async def _print_hosts(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        found = await wait_for_answer(find_home(args), calls.list_hosts())
    wrong = list_host_problems(found)
    if screen.json:
        screen.print_json({**found, "wrong": [{"what": what, "remedy": remedy} for what, remedy in wrong]})
        return 1 if wrong else 0
    if not found["shared"]:
        screen.print_line("the store is a file in the home, so this is the only host")
        return 0
    rows = [
        (
            format_one_line(host["name"]) + (" *" if host["own"] else ""),
            "draining" if host["draining"] else "alive" if host["alive"] else "dead",
            format_one_line(host["version"]),
            format_duration(host["started_seconds"]),
            format_one_line(", ".join(host["accounts"])) or "-",
            ", ".join(f"{count} {format_one_line(name)}" for name, count in host["cursors"].items()) or "-",
        )
        for host in found["hosts"]
    ]
    screen.print_table(("host", "state", "version", "runs", "accounts", "works on"), rows, styles=("bold",))
    for what, remedy in wrong:
        screen.print_line(f"{screen.paint('!', 'red', 'bold')} {format_one_line(what)}")
        screen.print_line(f"  → {format_one_line(remedy)}")
    return 1 if wrong else 0


def list_host_problems(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the problems that need attention, with remedies."""
    wrong: list[tuple[str, str]] = []
    for host in found["hosts"]:
        if host["settings_differ"]:
            keys = ", ".join(host["settings_differ"])
            wrong.append(
                (f"{host['name']} has another configuration: {keys}", "give every host the same configuration")
            )
    if len({host["version"] for host in found["hosts"] if host["alive"]}) > 1:
        versions = ", ".join(f"{host['name']} {host['version']}" for host in found["hosts"] if host["alive"])
        wrong.append((f"the hosts have different versions: {versions}", "finish the upgrade"))
    ahead = found["clock_difference_seconds"]
    if abs(ahead) > MAX_CLOCK_DIFFERENCE_SECONDS:
        wrong.append((f"this machine's clock differs from the database's by {ahead:.1f} s", "synchronise the clocks"))
    others = [host for host in found["hosts"] if host["alive"] and not host["own"]]
    if others and not found["hints"]:
        wrong.append(
            (
                "no hints of other hosts arrive, so work of theirs is found by polling only",
                "connect to the server directly, not through a pooler in transaction mode",
            )
        )
    return wrong
