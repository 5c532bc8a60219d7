"""`everhold backup`: a copy of the store, checked. Exits 1 if what was copied is not sound."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from typing import Any

from everhold.cli.progress import waiting
from everhold.cli.reach import home_of, looking
from everhold.cli.render import Screen, ago, count, one_line, safe


def run(args: argparse.Namespace, screen: Screen) -> int:
    if args.list:
        return _list(args, screen)
    return asyncio.run(_run(args, screen))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    to = os.path.abspath(os.path.expanduser(args.to)) if args.to else ""  # noqa: ASYNC240  # no file is touched
    async with looking(args, screen) as calls, waiting(screen, "copying and checking every entry"):
        made = await calls.create_backup(to=to)
    if screen.json:
        screen.show(made)
    else:
        _show(screen, made)
    return 0 if made["sound"] else 1


def _show(screen: Screen, made: dict[str, Any]) -> None:
    held = f"{count(made['sessions'], 'session')}, {count(made['entries'], 'entry', 'entries')}"
    mark = screen.paint("ok", "green") if made["sound"] else screen.paint("NOT SOUND", "red", "bold")
    screen.say(f"{mark} · {held}, up to position {made['position']} · {size(made['bytes'])}")
    screen.say(safe(made["path"]))
    for line in made["wrong"][:20]:
        screen.say(f"  {screen.paint('!', 'red', 'bold')} {one_line(line)}")
    for line in made["broken"][:20]:
        screen.say(f"  {screen.paint('!', 'yellow', 'bold')} {one_line(line)}")
    if made["wrong"] or made["broken"]:
        screen.say("  → this is so in the store itself, too: `everhold audit` says more; older copies were kept")


def _list(args: argparse.Namespace, screen: Screen) -> int:
    from everhold.backups import list_copies

    found = list_copies(home_of(args).backups)  # the files say it all, so no gateway is asked
    if screen.json:
        screen.show({"backups": found})
        return 0
    if not found:
        screen.note("There are no copies yet. `everhold backup` makes one.")
        return 0
    now = time.time()
    screen.table(
        ("made", "position", "size", "copy"),
        [
            (
                f"{ago(now - it['at'])} ago",
                str(it["position"]),
                size(it["bytes"]),
                os.path.basename(it["path"]) + ("" if it["sound"] else "  (not sound)"),
            )
            for it in reversed(found)
        ],
    )
    return 0


def size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MB" if count >= 1 << 20 else f"{count / 1024:.0f} KB"
