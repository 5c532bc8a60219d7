"""`everhold demo`: fills a new home with a realistic month, for trying the console."""

from __future__ import annotations

import argparse
import asyncio
import os

from everhold.cli.connect import find_home
from everhold.cli.progress import show_waiting
from everhold.cli.render import CommandScreen


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_fill(args, screen))


async def _fill(args: argparse.Namespace, screen: CommandScreen) -> int:
    from everhold.testing.demo.filler import fill_home

    home = find_home(args).create()
    async with show_waiting(screen, "playing a month"):
        counts = await fill_home(home, environ=os.environ)
    if screen.json:
        screen.print_json({"home": str(home.path), **counts})
        return 0
    screen.print_line(
        f"{home.path}: {counts['sessions']} sessions of {counts['days']} days, {counts['entries']} entries"
    )
    screen.print_line(f"next: everhold --home {home.path} up")
    return 0
