"""`everhold schedules`: what is said at its time. They are made in the chat they speak in, by /schedule."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.reach import looking
from everhold.cli.render import Screen, one_line


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run(_run(args, screen))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        if args.action == "remove":
            done = await calls.delete_schedule(args.id)
        else:
            done = await calls.list_schedules()
    if screen.json:
        screen.show(done)
    elif args.action == "remove":
        screen.say(f"Removed {one_line(args.id)}.")
    elif not done["schedules"]:
        screen.note("Nothing is scheduled. In a chat: /schedule daily 08:30 TEXT")
    else:
        rows = [
            (
                it["id"],
                one_line(it["when"]),
                one_line(it["next_local"]),  # in the zone that they are meant in, which need not be this machine's
                one_line(f"{it['platform']}:{it['chat']}"),
                one_line(it["text"]),
            )
            for it in done["schedules"]
        ]
        screen.table(("id", "when", "next", "where", "text"), rows, styles=("bold",))
    return 0
