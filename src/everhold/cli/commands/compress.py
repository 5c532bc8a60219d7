"""`everhold compress`: compresses a session now. Exits 1 if the context did not change."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.connect import connect_for_reading, connect_gateway
from everhold.cli.progress import show_waiting
from everhold.cli.render import CommandScreen, escape_control


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    if args.preview:
        async with connect_for_reading(args, screen) as calls:
            done = await calls.compress_session(args.id, keep=args.keep, focus=args.focus, preview=True)
        _print_result(screen, done)
        return 0
    async with connect_for_reading(args, screen) as calls:
        session = await calls.find_session(args.id)  # reports an unknown session before anything is started
    reached = await connect_gateway(args, screen, role="compress", starts=True)
    try:
        async with show_waiting(screen, "compressing"):
            done = await reached.calls.compress_session(session["id"], keep=args.keep, focus=args.focus, preview=False)
    finally:
        await reached.close()
    _print_result(screen, done)
    return 0 if done["done"] else 1


def _print_result(screen: CommandScreen, done: dict[str, object]) -> None:
    if screen.json:
        screen.print_json(done)
    else:
        screen.print_line(escape_control(str(done["message"])))
