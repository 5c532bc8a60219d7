"""`everhold logins`: lists and ends the logins of browsers."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, format_count, format_duration, format_one_line
from everhold.errors import InvalidRequest


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run({"list": _list_logins, "end": _end_logins}[args.action or "list"](args, screen))


async def _list_logins(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        found = await calls.list_logins()
    if screen.json:
        screen.print_json(found)
        return 0
    if not found["logins"]:
        screen.print_note("No browser is logged in. `everhold open` makes a login link.")
        return 0
    screen.print_table(
        ("id", "token", "made", "used", "browser"), [_format_row(it) for it in found["logins"]], styles=("bold",)
    )
    return 0


def _format_row(login: dict[str, Any]) -> tuple[str, ...]:
    now = time.time()
    return (
        login["id"],
        format_one_line(login["token"]),
        f"{format_duration(now - login['created_at'])} ago",
        f"{format_duration(now - login['used_at'])} ago",
        format_one_line(login["browser"]),
    )


async def _end_logins(args: argparse.Namespace, screen: CommandScreen) -> int:
    if bool(args.id) == args.all:
        raise InvalidRequest("which login?", remedy="name its id, or --all")
    async with connect_for_reading(args, screen) as calls:
        ids = [args.id] if args.id else [it["id"] for it in (await calls.list_logins())["logins"]]
        for id in ids:
            await calls.end_login(id)
    if screen.json:
        screen.print_json({"ended": ids})
    else:
        screen.print_line(f"{format_count(len(ids), 'login')} ended.")
    return 0
