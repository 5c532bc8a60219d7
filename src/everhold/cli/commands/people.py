"""`everhold people`: who is who across platforms."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.reach import looking
from everhold.cli.render import Screen, one_line


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run(_run(args, screen))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        match args.action:
            case "link":
                done = await calls.link_identity(args.identity, args.person)
                text = f"{done['identity']} is {done['person']} from now on."
            case "unlink":
                done = await calls.unlink_identity(args.identity)
                text = f"{done['identity']} is {done['person']} no longer."
            case _:
                done, text = await calls.list_people(), ""
    if screen.json:
        screen.show(done)
    elif text:
        screen.say(one_line(text))
    elif not done["people"]:
        screen.note("Nobody is known by name. Add them under people in config.yaml, or let them say /link in a chat.")
    else:
        rows = [
            (
                one_line(it["name"]) + (" *" if it["owner"] else ""),
                one_line(", ".join(it["configured"])) or "-",
                one_line(", ".join(it["linked"])) or "-",
            )
            for it in done["people"]
        ]
        screen.table(("person", "configured", "linked"), rows, styles=("bold",))
    return 0
