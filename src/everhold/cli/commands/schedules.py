"""`everhold schedules`: lists and deletes schedules. A person creates them in a chat with /schedule."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, format_one_line


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        if args.action == "remove":
            done = await calls.delete_schedule(args.id)
        else:
            done = await calls.list_schedules()
    if screen.json:
        screen.print_json(done)
    elif args.action == "remove":
        screen.print_line(f"Deleted {format_one_line(args.id)}.")
    elif not done["schedules"]:
        screen.print_note("There are no schedules. In a chat, /schedule daily 08:30 TEXT creates one.")
    else:
        rows = [
            (
                it["id"],
                format_one_line(it["when"]),
                format_one_line(
                    it["next_local"]
                ),  # in the zone that they are meant in, which need not be this machine's
                format_one_line(f"{it['platform']}:{it['chat']}"),
                format_one_line(it["text"]),
            )
            for it in done["schedules"]
        ]
        screen.print_table(("id", "when", "next", "where", "text"), rows, styles=("bold",))
    return 0
