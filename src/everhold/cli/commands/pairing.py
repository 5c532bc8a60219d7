"""`everhold pairing`: who asks to be let in, and who was. Decided here, at this machine, and nowhere else."""

from __future__ import annotations

import argparse
import asyncio
import time

from everhold.cli.reach import looking
from everhold.cli.render import Screen, ago, one_line


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run({"list": _list, "approve": _approve, "revoke": _revoke}[args.action or "list"](args, screen))


async def _list(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        found = await calls.list_pairing()
    if screen.json:
        screen.show(found)
        return 0
    now = time.time()
    rows = [
        (it["identity"], it["account"], one_line(it["name"]), f"waits, {ago(it['until'] - now)} left")
        for it in found["waiting"]
    ] + [
        (it["identity"], it["account"], one_line(it["name"]), f"let in {ago(now - it['since'])} ago")
        for it in found["granted"]
    ]
    if not rows:
        screen.note("Nobody waits, and nobody was let in by a code. Strangers get one when they write to a bot.")
        return 0
    screen.table(("who", "account", "calls themselves", "state"), rows, styles=("bold",))
    return 0


async def _approve(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        done = await calls.approve_pairing(args.code, person=args.person)
    if screen.json:
        screen.show(done)
        return 0
    who = f" as {done['person']}" if done["person"] else ""
    screen.say(f"{one_line(done['identity'])} ({one_line(done['name'])}) may write to {done['account']} directly{who}.")
    return 0


async def _revoke(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        done = await calls.revoke_pairing(args.identity)
    if screen.json:
        screen.show(done)
    elif done["still"]:
        who, person = one_line(args.identity), one_line(done["still"])
        remedy = "take it out of people in config.yaml" if done["configured"] else f"everhold people unlink {who}"
        screen.say(f"{who} is not let in by a code any more, but still as {person}, wherever {person} is: {remedy}")
    else:
        screen.say(f"{one_line(args.identity)} is a stranger again.")
    return 0
