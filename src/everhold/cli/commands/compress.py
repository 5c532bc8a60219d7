"""`everhold compress`: a summary for a session's older part, made now. Exits 1 if the context stayed as it was."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.progress import waiting
from everhold.cli.reach import looking, reach
from everhold.cli.render import Screen, safe


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run(_run(args, screen))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    if args.preview:
        async with looking(args, screen) as calls:
            done = await calls.compress(args.id, keep=args.keep, focus=args.focus, preview=True)
        _show(screen, done)
        return 0
    async with looking(args, screen) as calls:
        session = await calls.find_session(args.id)  # what is not there is said before anything is started
    reached = await reach(args, screen, role="compress", starts=True)
    try:
        async with waiting(screen, "compressing"):
            done = await reached.calls.compress(session["id"], keep=args.keep, focus=args.focus, preview=False)
    finally:
        await reached.close()
    _show(screen, done)
    return 0 if done["done"] else 1


def _show(screen: Screen, done: dict[str, object]) -> None:
    if screen.json:
        screen.show(done)
    else:
        screen.say(safe(str(done["message"])))
