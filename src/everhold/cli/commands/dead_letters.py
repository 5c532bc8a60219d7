"""`everhold dead-letters`: what was given up, replies and memory writes alike, and sending it again."""

from __future__ import annotations

import argparse
import asyncio
import time

from everhold.cli.client import ApiClient
from everhold.cli.reach import looking
from everhold.cli.render import Screen, ago, count, one_line


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run(_run(args, screen))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        if args.action == "replay":
            return await _replay(calls, args.ids, screen)
        await _list(calls, screen)
    return 0


async def _list(calls: ApiClient, screen: Screen) -> None:
    found = await calls.list_dead_letters()
    if screen.json:
        screen.show(found)
        return
    if not found["dead_letters"]:
        screen.note("There are no dead letters: everything was delivered, or still will be.")
        return
    rows = [
        (
            str(item["id"]),
            one_line(item["consumer"]),
            f"{item['session']}:{item['seq']}",
            ago(time.time() - item["at"]),
            "may have arrived" if item["in_doubt"] else "not delivered",
            one_line(item["reason"]),
        )
        for item in found["dead_letters"]
    ]
    screen.table(("id", "consumer", "entry", "since", "state", "reason"), rows, styles=("bold",))
    screen.note("`everhold dead-letters replay` sends them again.")


async def _replay(calls: ApiClient, ids: list[int], screen: Screen) -> int:
    done = await calls.replay_dead_letters(ids)
    if screen.json:
        screen.show(done)
    else:
        screen.say(f"{count(done['replayed'], 'item')} will be sent again")
    return 0 if done["replayed"] or not ids else 1
