"""`everhold hooks`: lists and tests the webhooks of the configuration."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, escape_control, format_one_line
from everhold.errors import InvalidRequest


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_test_hook(args, screen) if args.action == "test" else _list_hooks(args, screen))


async def _list_hooks(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        found = await calls.list_hooks()
    if screen.json:
        screen.print_json(found)
    elif not found["hooks"]:
        screen.print_note("There are no webhooks. Configure one under `hooks`.")
    else:
        rows = [
            (it["name"], it["path"], it["scheme"], format_one_line(it["address"]), _describe_state(it))
            for it in found["hooks"]
        ]
        screen.print_table(("name", "path", "scheme", "heard in", "state"), rows, styles=("bold",))
    return 0


def _describe_state(hook: dict[str, Any]) -> str:
    return f"{', '.join(hook['missing'])} is not set" if hook["missing"] else "ready"


async def _test_hook(args: argparse.Namespace, screen: CommandScreen) -> int:
    body, headers = _read_body(args.data), dict(_split_header(header) for header in args.header)
    async with connect_for_reading(args, screen) as calls:
        done = await calls.test_hook(args.name, body=body, headers=headers, send=args.send)
    if screen.json:
        screen.print_json(done)
        return 0
    screen.print_line(f"heard in  {format_one_line(done['address'])}")
    screen.print_line(f"id        {format_one_line(done['id']) or '(none: the body is compared)'}")
    screen.print_line(f"task      {format_one_line(done['task'])}")
    for place, line in enumerate(done["text"].split("\n")):
        screen.print_line(f"{'text' if not place else '':<10}{escape_control(line)}")
    if not done["wanted"]:
        screen.print_note("`when` of the hook leaves this delivery out, so nobody hears it.")
    elif done["outcome"]:
        screen.print_line(f"{done['outcome']} in session {done['session']}")
    else:
        screen.print_note("Nothing was delivered. --send delivers it.")
    return 0


def _read_body(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {file}: {error}", remedy="name a text file, or - for the input") from error


def _split_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise InvalidRequest(f"{text!r} is no header", remedy='write --header "x-event: push"')
    return name.strip(), value.strip()
