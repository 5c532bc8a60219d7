"""`everhold pairing`: lists, approves and revokes access by code."""

from __future__ import annotations

import argparse
import asyncio
import time

from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, format_duration, format_one_line


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(
        {"list": _list_pairings, "approve": _approve_pairing, "revoke": _revoke_pairing}[args.action or "list"](
            args, screen
        )
    )


async def _list_pairings(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        found = await calls.list_pairing()
    if screen.json:
        screen.print_json(found)
        return 0
    now = time.time()
    rows = [
        (
            it["identity"],
            it["account"],
            format_one_line(it["name"]),
            f"waiting, {format_duration(it['until'] - now)} left",
        )
        for it in found["waiting"]
    ] + [
        (
            it["identity"],
            it["account"],
            format_one_line(it["name"]),
            f"granted {format_duration(now - it['since'])} ago",
        )
        for it in found["granted"]
    ]
    if not rows:
        screen.print_note("There are no pairing requests or grants. A stranger who writes to a bot receives a code.")
        return 0
    screen.print_table(("identity", "account", "display name", "state"), rows, styles=("bold",))
    return 0


async def _approve_pairing(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        done = await calls.approve_pairing(args.code, person=args.person)
    if screen.json:
        screen.print_json(done)
        return 0
    who = f" as {done['person']}" if done["person"] else ""
    screen.print_line(
        f"{format_one_line(done['identity'])} ({format_one_line(done['name'])}) "
        f"may write to {done['account']} directly{who}."
    )
    return 0


async def _revoke_pairing(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        done = await calls.revoke_pairing(args.identity)
    if screen.json:
        screen.print_json(done)
    elif done["still"]:
        who, person = format_one_line(args.identity), format_one_line(done["still"])
        remedy = "take it out of people in config.yaml" if done["configured"] else f"everhold people unlink {who}"
        screen.print_line(f"the access by code of {who} is revoked, but it still has the access of {person}: {remedy}")
    else:
        screen.print_line(f"The access of {format_one_line(args.identity)} is revoked.")
    return 0
