"""`everhold memory`: note a fact, see what could not be delivered, send it again."""

from __future__ import annotations

import argparse
import asyncio
import time

from everhold.cli.reach import looking
from everhold.cli.render import Screen, ago, count, one_line
from everhold.remote.client import Calls


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run(_run(args, screen))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        match args.action:
            case "note":
                noted = await calls.note(args.session, args.text)
                _tell(screen, noted, f"noted as entry {noted['seq']} of session {noted['session']}")
            case "parked":
                await _parked(calls, screen)
            case "replay":
                done = await calls.replay(args.ids)
                _tell(screen, done, f"{count(done['replayed'], 'item')} will be sent again")
                return 0 if done["replayed"] or not args.ids else 1
    return 0


def _tell(screen: Screen, answer: dict[str, object], text: str) -> None:
    if screen.json:
        screen.show(answer)
    else:
        screen.say(text)


async def _parked(calls: Calls, screen: Screen) -> None:
    found = await calls.parked()
    if screen.json:
        screen.show(found)
        return
    if not found["parked"]:
        screen.note("Nothing is parked: everything was delivered, or still will be.")
        return
    rows = [
        (
            str(item["id"]),
            one_line(item["reader"]),
            f"{item['session']}:{item['seq']}",
            ago(time.time() - item["at"]),
            "may have arrived" if item["doubtful"] else "not delivered",
            one_line(item["reason"]),
        )
        for item in found["parked"]
    ]
    screen.table(("id", "lane", "entry", "since", "fate", "reason"), rows, styles=("bold",))
    screen.note("`everhold memory replay` sends them again.")
