"""`everhold dead-letters`: lists replies and memory writes that were given up, and replays them."""

from __future__ import annotations

import argparse
import asyncio
import time

from everhold.cli.client import ApiClient
from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, format_count, format_duration, format_one_line
from everhold.errors import NotFound


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        if args.action == "replay":
            return await _replay_dead_letters(calls, args.ids, screen)
        await _list_dead_letters(calls, screen)
    return 0


async def _list_dead_letters(calls: ApiClient, screen: CommandScreen) -> None:
    found = await calls.list_dead_letters()
    if screen.json:
        screen.print_json(found)
        return
    if not found["dead_letters"]:
        screen.print_note("There are no dead letters.")
        return
    rows = [
        (
            str(item["id"]),
            format_one_line(item["consumer"]),
            f"{item['session']}:{item['seq']}",
            format_duration(time.time() - item["at"]),
            "may have arrived" if item["in_doubt"] else "not delivered",
            format_one_line(item["reason"]),
        )
        for item in found["dead_letters"]
    ]
    screen.print_table(("id", "consumer", "entry", "since", "state", "reason"), rows, styles=("bold",))
    screen.print_note("`everhold dead-letters replay` sends them again.")


async def _replay_dead_letters(calls: ApiClient, ids: list[int], screen: CommandScreen) -> int:
    done = await calls.replay_dead_letters(ids)
    if ids and not done["replayed"]:
        given = ", ".join(map(str, ids))
        raise NotFound(f"there is no dead letter {given}", remedy="`everhold dead-letters list` lists their ids")
    if screen.json:
        screen.print_json(done)
    else:
        screen.print_line(f"{format_count(done['replayed'], 'item')} will be sent again")
    return 0
