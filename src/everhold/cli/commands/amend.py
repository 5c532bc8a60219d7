"""`everhold undo` and `everhold stop`. Exits 1 if there was nothing to do."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.reach import looking
from everhold.cli.render import Screen, safe


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run(_run(args, screen))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        if args.command == "undo":
            done = await calls.undo(args.id, what=args.what, count=args.count)
        else:
            done = await calls.stop_turn(args.id)
    if screen.json:
        screen.show(done)
    else:
        screen.say(safe(done["message"]))
    return 0 if done["done"] else 1
