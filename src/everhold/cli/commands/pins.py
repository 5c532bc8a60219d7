"""`everhold pin`, `unpin` and `pins`. The first two exit 1 if nothing changed."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, escape_control
from everhold.core.wording import shorten_text
from everhold.errors import InvalidRequest

EXCERPT_CHARS: Final = 100


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    if args.command == "unpin" and (args.entry is None) is not args.all:
        raise InvalidRequest("say which pin to remove", remedy="everhold unpin last 12, or everhold unpin last --all")
    async with connect_for_reading(args, screen) as calls:
        if args.command == "pins":
            return _print_pins(await calls.list_pins(args.id), screen)
        if args.command == "pin":
            done = await calls.pin_entry(args.id, args.entry)
        else:
            done = await calls.unpin_entry(args.id, args.entry)
    if screen.json:
        screen.print_json(done)
    else:
        screen.print_line(escape_control(done["message"]))
    return 0 if done["done"] else 1


def _print_pins(found: dict[str, Any], screen: CommandScreen) -> int:
    if screen.json:
        screen.print_json(found)
        return 0
    for pin in found["pins"]:
        screen.print_line(
            escape_control(f"{pin['seq']} {pin['author']}: {shorten_text(_get_text(pin), EXCERPT_CHARS)}")
        )
    if not found["pins"]:
        screen.print_line("Nothing is pinned.")
    return 0


def _get_text(pin: dict[str, Any]) -> str:
    body = pin.get("body") or {}
    command = body.get("command") or {}
    return str(command.get("argument") or body.get("text") or "")
