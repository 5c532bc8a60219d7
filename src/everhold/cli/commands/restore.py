"""`everhold restore`: puts a copy of the store back. Without --yes it says what it would do and changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
from typing import Any

from everhold import backups
from everhold.app import App, SystemChance, SystemClock, settings_of
from everhold.cli.reach import home_of
from everhold.cli.render import Screen, count, moment, one_line, safe
from everhold.config import ConfigError, Settings, parse
from everhold.errors import HomeBusy
from everhold.home import Home
from everhold.logs import open_log
from everhold.stores.sqlite.lock import HomeLock


def run(args: argparse.Namespace, screen: Screen) -> int:
    home = home_of(args).create()
    now = SystemClock().now()
    with _alone(home):
        what = backups.plan(home, source=args.source, at=args.at)
        told = backups.plan_json(what)
        if args.yes:
            done = backups.restore(home, what, now=now, chance=SystemChance())
            told |= {
                "restored": True,
                "position": done.pos,
                "set_aside": str(done.set_aside) if done.set_aside else None,
                "stopped_turns": done.stopped,
                "numbers_left_out": done.left_out,
            }
    if args.yes:
        told["erased_again"] = asyncio.run(_forget_again(home))
    if screen.json:
        screen.show(told if args.yes else {**told, "restored": False})
    else:
        _show(screen, told, done=args.yes)
    return 0


def _alone(home: Home) -> HomeLock:
    try:
        return HomeLock(home.lock).take()
    except HomeBusy as error:
        raise HomeBusy(error.message, remedy="stop the gateway first: what it holds open cannot be replaced") from None


async def _forget_again(home: Home) -> int:
    """Erase again what was erased since the copy was made, before anybody can read it."""
    log = open_log(clock=SystemClock(), stream=io.StringIO())
    app = App(home, _settings(home), log=log, environ=os.environ)
    try:
        return await app.control.reapply_erasures()
    finally:
        await app.stop(seconds=0)


def _settings(home: Home) -> Settings:
    try:
        return settings_of(home, environ=os.environ)
    except ConfigError:
        return parse(b"")  # erasing needs none of it


def _show(screen: Screen, told: dict[str, Any], *, done: bool) -> None:
    held = f"{count(told['sessions'], 'session')}, last entry {moment(told['newest'])}"
    sound = screen.paint("sound", "green") if told["sound"] else screen.paint("NOT SOUND", "red", "bold")
    screen.say(f"{'restored' if done else 'would restore'} {safe(told['source'])}")
    screen.say(f"  it is {sound}: {held}; up to position {told['position']}")
    for line in told["wrong"][:5]:
        screen.say(f"  {screen.paint('!', 'red', 'bold')} {one_line(line)}")
    if told["damage"]:
        screen.say(f"  the store that {'was' if done else 'is'} there does not read: {one_line(told['damage'])}")
    elif told["takes_back"]:
        screen.say(
            f"  {count(told['takes_back'], 'entry', 'entries')} behind that {'are' if done else 'would be'} gone"
        )
    if told["stays"]:
        stay = "stay" if done else "would stay"
        screen.say(
            f"  schedules, and how far platforms were read, {stay} as they are now: no entries say how they were"
        )
    if not done:
        screen.say("nothing was changed; --yes does it, and keeps a copy of what is there")
        return
    if told["set_aside"]:
        screen.say(f"  what was there: {safe(told['set_aside'])}")
    if told["erased_again"]:
        screen.say(f"  {count(told['erased_again'], 'entry', 'entries')} erased again")
    if told["stopped_turns"]:
        screen.say(f"  {count(told['stopped_turns'], 'turn')} that ran at that moment ended there")
    screen.say("  what memory services and platforms were told meanwhile stays with them")
