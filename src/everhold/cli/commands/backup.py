"""`everhold backup`: copies the store and checks the copy. Exits 1 if the copy is not sound."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from typing import Any

from everhold.cli.connect import connect_for_reading, find_home
from everhold.cli.progress import show_waiting
from everhold.cli.render import CommandScreen, escape_control, format_count, format_duration, format_one_line


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    if args.list:
        return _list_backups(args, screen)
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    to = os.path.abspath(os.path.expanduser(args.to)) if args.to else ""  # noqa: ASYNC240  # no file is touched
    async with connect_for_reading(args, screen) as calls, show_waiting(screen, "copying and checking every entry"):
        made = await calls.create_backup(to=to)
    if screen.json:
        screen.print_json(made)
    else:
        _print_backup(screen, made)
    return 0 if made["sound"] else 1


def _print_backup(screen: CommandScreen, made: dict[str, Any]) -> None:
    held = f"{format_count(made['sessions'], 'session')}, {format_count(made['entries'], 'entry', 'entries')}"
    mark = screen.paint("ok", "green") if made["sound"] else screen.paint("NOT SOUND", "red", "bold")
    screen.print_line(f"{mark} · {held}, up to pos {made['pos']} · {format_size(made['bytes'])}")
    screen.print_line(escape_control(made["path"]))
    for line in made["wrong"][:20]:
        screen.print_line(f"  {screen.paint('!', 'red', 'bold')} {format_one_line(line)}")
    for line in made["broken"][:20]:
        screen.print_line(f"  {screen.paint('!', 'yellow', 'bold')} {format_one_line(line)}")
    if made["wrong"] or made["broken"]:
        screen.print_line("  → the store has the same problem: `everhold audit` shows more; older backups were kept")


def _list_backups(args: argparse.Namespace, screen: CommandScreen) -> int:
    from everhold.admin.backups import list_copies
    from everhold.app import load_home_settings
    from everhold.config import ConfigError
    from everhold.infra.backup_files import choose_directory

    home = find_home(args)
    try:
        directory = choose_directory(home, load_home_settings(home, environ=os.environ).backup.directory)
    except ConfigError:
        directory = home.backups
    found = list_copies(directory)  # the files have all information, so no gateway is needed
    if screen.json:
        screen.print_json({"backups": found})
        return 0
    if not found:
        screen.print_note("There are no backups yet. `everhold backup` makes one.")
        return 0
    now = time.time()
    screen.print_table(
        ("made", "pos", "size", "backup"),
        [
            (
                f"{format_duration(now - it['at'])} ago",
                str(it["pos"]),
                format_size(it["bytes"]),
                os.path.basename(it["path"]) + ("" if it["sound"] else "  (not sound)"),
            )
            for it in reversed(found)
        ],
    )
    return 0


def format_size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MB" if count >= 1 << 20 else f"{count / 1024:.0f} KB"
