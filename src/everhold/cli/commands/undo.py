"""`everhold undo` and `everhold stop`. They exit 1 if there was nothing to do."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, escape_control


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        if args.command == "undo":
            done = await calls.undo_operations(args.id, what=args.what, count=args.count)
        else:
            done = await calls.stop_turn(args.id)
    if screen.json:
        screen.print_json(done)
    else:
        screen.print_line(escape_control(done["message"]))
    return 0 if done["done"] else 1
