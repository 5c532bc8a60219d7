"""`everhold people`: lists people and links their identities."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, format_one_line


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        match args.action:
            case "link":
                done = await calls.link_identity(args.identity, args.person)
                text = f"{done['identity']} is linked to {done['person']}."
            case "unlink":
                done = await calls.unlink_identity(args.identity)
                text = f"{done['identity']} is no longer linked to {done['person']}."
            case _:
                done, text = await calls.list_people(), ""
    if screen.json:
        screen.print_json(done)
    elif text:
        screen.print_line(format_one_line(text))
    elif not done["people"]:
        screen.print_note(
            "No people are known. Add them under people in config.yaml, or let them send /link in a chat."
        )
    else:
        rows = [
            (
                format_one_line(it["name"]) + (" *" if it["owner"] else ""),
                format_one_line(", ".join(it["configured"])) or "-",
                format_one_line(", ".join(it["linked"])) or "-",
            )
            for it in done["people"]
        ]
        screen.print_table(("person", "configured", "linked"), rows, styles=("bold",))
    return 0
