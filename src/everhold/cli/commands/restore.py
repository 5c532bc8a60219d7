"""`everhold restore`: restores the store from a backup. Without --yes it shows the plan and changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
from typing import Any

from everhold.admin.backups import render_restore_plan
from everhold.app import GatewayApp, SystemClock, SystemRandomSource, load_home_settings
from everhold.assembly.stores import plan_restore, restore_store
from everhold.cli.connect import find_home
from everhold.cli.render import CommandScreen, escape_control, format_count, format_one_line, format_time
from everhold.config import ConfigError, Settings, parse_settings
from everhold.errors import HomeBusy
from everhold.infra.backup_files import choose_directory
from everhold.infra.home import Home
from everhold.infra.home_lock import HomeLock
from everhold.telemetry.logs import open_log


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args).create()
    now = SystemClock().now()
    with _lock_home(home):
        directory = choose_directory(home, _load_settings(home).backup.directory)
        what = plan_restore(home, source=args.source, at=args.at, directory=directory)
        result = render_restore_plan(what)
        if args.yes:
            done = restore_store(home, what, now=now, chance=SystemRandomSource())
            result |= {
                "restored": True,
                "pos": done.pos,
                "set_aside": str(done.set_aside) if done.set_aside else None,
                "stopped_turns": done.stopped_operations,
                "numbers_left_out": done.skipped_seqs,
                "salvaged": done.salvaged,
                "left_out": done.left_out,
            }
    if args.yes:
        result["erased_again"] = asyncio.run(_reapply_erasures(home))
    if screen.json:
        screen.print_json(result if args.yes else {**result, "restored": False})
    else:
        _print_restore(screen, result, done=args.yes)
    return 0


def _lock_home(home: Home) -> HomeLock:
    try:
        return HomeLock(home.lock).acquire()
    except HomeBusy as error:
        raise HomeBusy(error.message, remedy="stop the gateway first, because it has the store open") from None


async def _reapply_erasures(home: Home) -> int:
    """Erase again the entries that were erased after the backup was made. Returns their number."""
    log = open_log(clock=SystemClock(), stream=io.StringIO())
    app = await GatewayApp.open(home, _load_settings(home), log=log, environ=os.environ)
    try:
        again = await app.reapply_erasures(restored=True)
        await app.api_context.logins.end_all()
        return again
    finally:
        await app.stop(seconds=0)


def _load_settings(home: Home) -> Settings:
    try:
        return load_home_settings(home, environ=os.environ)
    except ConfigError:
        return parse_settings(b"")  # erasure does not depend on the configuration


def _print_restore(screen: CommandScreen, told: dict[str, Any], *, done: bool) -> None:
    held = f"{format_count(told['sessions'], 'session')}, last entry {format_time(told['newest'])}"
    sound = screen.paint("sound", "green") if told["sound"] else screen.paint("NOT SOUND", "red", "bold")
    screen.print_line(f"{'restored' if done else 'would restore'} {escape_control(told['source'])}")
    screen.print_line(f"  it is {sound}: {held}; up to pos {told['pos']}")
    for line in told["wrong"][:5]:
        screen.print_line(f"  {screen.paint('!', 'red', 'bold')} {format_one_line(line)}")
    if told["increments"]:
        screen.print_line(f"  with {format_count(told['increments'], 'increment')} after it")
    if told["damage"]:
        screen.print_line(f"  the present store {'was' if done else 'is'} damaged: {format_one_line(told['damage'])}")
    elif told["takes_back"]:
        screen.print_line(
            f"  {format_count(told['takes_back'], 'entry', 'entries')} after it {'are' if done else 'would be'} removed"
        )
    if told["stays"]:
        stay = "stay" if done else "would stay"
        screen.print_line(
            f"  schedules and platform offsets {stay} as they are now, because the log does not contain them"
        )
    if not done:
        screen.print_line("nothing was changed; --yes restores it and keeps a copy of the present store")
        return
    if told["set_aside"]:
        screen.print_line(f"  the previous store: {escape_control(told['set_aside'])}")
    if told["salvaged"]:
        taken = format_count(told["salvaged"], "entry", "entries")
        screen.print_line(f"  {taken} after the copy were taken from the damaged store")
    for line in told["left_out"]:
        screen.print_line(f"  {screen.paint('!', 'red', 'bold')} not restored: {format_one_line(line)}")
    if told["erased_again"]:
        screen.print_line(f"  {format_count(told['erased_again'], 'entry', 'entries')} erased again")
    if told["stopped_turns"]:
        screen.print_line(f"  {format_count(told['stopped_turns'], 'turn')} that ran at that time ended")
    screen.print_line("  memory services and platforms keep what they received since then")
