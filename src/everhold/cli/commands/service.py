"""`everhold service …`: the gateway as a service of the user's own. Leaves alone what somebody has changed."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from everhold.cli.progress import waiting
from everhold.cli.reach import answering, home_of
from everhold.cli.render import Screen, count, one_line, safe
from everhold.errors import NotFound, Refused
from everhold.home import Home
from everhold.service import place, unit
from everhold.service.manager import Manager, of_this_machine, run as run_program

LINGER: Final = ("loginctl", "enable-linger")


def run(args: argparse.Namespace, screen: Screen) -> int:
    home = home_of(args)
    if args.action is None:  # the bare word asks how it is, and has no flags
        args.name = ""
    if args.action == "print":
        return _print(args, screen, home)
    manager = of_this_machine(os.environ)
    match args.action:
        case "install":
            return asyncio.run(install(args, screen, manager, home))
        case "uninstall":
            return _uninstall(args, screen, manager, home)
        case "start" | "restart":
            found = place.chosen(manager, home, args.name)
            asyncio.run(start(screen, manager, found, home, again=args.action == "restart"))
            return _done(screen, found, "runs")
        case "stop":
            found = place.chosen(manager, home, args.name)
            manager.stop(found.name)
            return _done(screen, found, "stopped; it starts again at the next login, or by `everhold service start`")
        case _:
            return asyncio.run(_status(args, screen, manager, home))


def _print(args: argparse.Namespace, screen: Screen, home: Home) -> int:
    usual = {"win32": "winsw", "darwin": "launchd"}.get(sys.platform, "systemd")
    text = unit.TEXTS[args.manager or usual](place.wanted(home, os.environ, name=args.name or place.NAME))
    if screen.json:
        screen.show({"manager": args.manager or usual, "text": text})
    else:
        screen.out.write(text)
    return 0


def _done(screen: Screen, found: place.Found, what: str) -> int:
    if screen.json:
        screen.show({**place.found_json(found), "did": what.partition(";")[0]})
    else:
        screen.say(f"{safe(found.name)} {what}")
    return 0


# -- putting it there, and taking it away ------------------------------------------------------------------------------


async def install(args: argparse.Namespace, screen: Screen, manager: Manager, home: Home) -> int:
    from everhold.app import settings_of

    manager.check()
    settings = settings_of(home.create(), environ=os.environ)  # one that is refused would not start, either
    found, kept = place.install(manager, home, os.environ, name=args.name, force=args.force)
    manager.adopt(found.name)
    ran = manager.state(found.name).running
    if args.start:
        await start(screen, manager, found, home, again=ran)
    missing = sorted(_only_here(settings.document, home))
    lingers = manager.lingers()
    if screen.json:
        told = {**place.found_json(found), "kept": kept, "running": args.start or ran, "lingers": lingers}
        screen.show({**told, "secrets_not_in_env": missing})
        return 0
    screen.say(f"{screen.paint('written', 'green')} {safe(str(found.path))}")
    if kept:
        screen.say(f"  what was there is kept: {safe(kept)}")
    screen.say(f"  it starts {safe(found.written.program)} in {safe(str(home.path))} at every login")
    for name in missing:
        screen.say(f"  {screen.paint('!', 'yellow')} {safe(name)} is set in this shell only; a service does not see it")
    if missing:
        screen.say(f"  → write it to {safe(str(home.env))}: {safe(missing[0])}=…")
    if lingers is False:
        screen.say(f"  it ends when you log out → {' '.join(LINGER)}")
    if args.start:
        screen.say(f"  it runs → everhold status{_home_flag(home)}")
    elif ran:
        screen.say(f"  it runs, still as it was → everhold service restart{_home_flag(home)}")
    else:
        screen.say(f"  → everhold service start{_home_flag(home)}")
    return 0


def _home_flag(home: Home) -> str:
    usual = Home.find(environ=os.environ).path
    return "" if home.path == usual else f" --home {safe(str(home.path))}"


def _only_here(document: Mapping[str, Any], home: Home) -> Iterator[str]:
    """Secrets that the configuration names and that only this shell knows."""
    from everhold.config.secrets import parse_env
    from everhold.home import read_file

    lines, _ = parse_env(read_file(home.env, private=True) or b"")
    kept = {line.name for line in lines if line.value}
    for name in set(_named(document)):
        if os.environ.get(name, "").strip() and name not in kept:
            yield name


def _named(part: object) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if isinstance(value, str) and str(key).endswith("_env"):
                yield value
            else:
                yield from _named(value)
    elif isinstance(part, list | tuple):
        for item in part:
            yield from _named(item)


def _uninstall(args: argparse.Namespace, screen: Screen, manager: Manager, home: Home) -> int:
    found = place.chosen(manager, home, args.name)
    place.refuse_if_not_ours(found, force=args.force, verb="uninstall")
    manager.drop(found.name)
    kept = place.remove(found, force=args.force)
    manager.forget()
    if screen.json:
        screen.show({**place.found_json(found), "kept": kept})
    else:
        screen.say(f"{safe(found.name)} is stopped and gone; {safe(str(home.path))} stays as it is")
        if kept:
            screen.say(f"  its description is kept: {safe(kept)}")
    return 0


# -- running -----------------------------------------------------------------------------------------------------------


async def start(screen: Screen, manager: Manager, found: place.Found, home: Home, *, again: bool) -> None:
    """Start it, and wait until it is ready. Raises Refused, with what helps."""
    if not manager.state(found.name).running and found.starts(home):
        await _refuse_two(home)
    async with waiting(screen, f"starting {found.name}"):
        await asyncio.to_thread(manager.start, found.name, again=again)


async def _refuse_two(home: Home) -> None:
    reached = await answering(home)
    if reached is not None and reached.role == "gateway":
        pid = (await reached.calls.show_status()).get("pid")
        raise Refused(
            f"a gateway runs in {home.path} already{f' (process {pid})' if pid else ''}, and not as this service",
            remedy=f"stop it first{f': kill {pid}' if pid else ''}",
        )


async def _status(args: argparse.Namespace, screen: Screen, manager: Manager, home: Home) -> int:
    try:
        found = place.chosen(manager, home, args.name)
    except NotFound as error:
        if screen.json:
            screen.show({"installed": False, "manager": manager.name})
            return 1
        raise error
    state = manager.state(found.name)
    own = Home(Path(found.written.home)) if found.written.home is not None else home
    reached = await answering(own)
    answers = reached is not None and reached.role == "gateway"
    lingers = manager.lingers()
    complaints = place.complaints(found)
    wrong = not state.running or not answers or any(level == "wrong" for level, _, _ in complaints)
    if screen.json:
        screen.show(
            {
                "installed": True,
                "manager": manager.name,
                **place.found_json(found),
                "active": state.active,
                "enabled": state.enabled,
                "pid": state.pid,
                "restarts": state.restarts,
                "exit": state.exit,
                "says": state.says,
                "answers": answers,
                "lingers": lingers,
                "remarks": [{"level": level, "text": text, "remedy": remedy} for level, text, remedy in complaints],
                "wrong": wrong,
            }
        )
        return 1 if wrong else 0
    colour = "green" if state.running else "red"
    head = [safe(found.name), screen.paint(safe(state.active), colour)]
    head += [f"process {state.pid}"] if state.pid else []
    head += [f"restarted {count(state.restarts, 'time')}"] if state.restarts else []
    head += [f"last exit {state.exit}"] if state.exit is not None else []
    screen.say(" · ".join(head))
    screen.say(f"  {safe(str(found.path))}")
    screen.say(f"  home {safe(str(found.written.home or '?'))}, program {safe(found.written.program or '?')}")
    screen.say(f"  at login: {'starts' if state.enabled else 'does not start'}; the gateway {_says(answers)}")
    if lingers is False:
        screen.say(f"  it ends when you log out → {' '.join(LINGER)}")
    if not state.running:
        if state.exit is not None and state.says:
            screen.say(f"  it said: {one_line(state.says)}")
        screen.say(f"  → {_helps(manager, found, state.exit)}")
    for level, text, remedy in complaints:
        screen.say(f"{screen.paint('!' if level == 'wrong' else '·', 'yellow')} {safe(text)}")
        if remedy:
            screen.say(f"    → {safe(remedy)}")
    return 1 if wrong else 0


def _linger(screen: Screen) -> None:
    """Not needed to run it now: what keeps it from lingering is said, and the rest goes on."""
    try:
        done = run_program(*LINGER)
    except Refused as refused:
        screen.note(f"{refused.message}: the service ends when you log out")
        return
    if done.code:
        screen.note(f"{' '.join(LINGER)}: {safe(' '.join(done.err.split()))}; ask whoever runs this machine")


def _says(answers: bool) -> str:
    return "answers" if answers else "does not answer"


def _helps(manager: Manager, found: place.Found, ended: int | None) -> str:
    if ended == unit.GIVEN_UP:
        return "everhold doctor: starting it anew would not help"
    journal = f"; journalctl --user -u {found.name} -n 20" if manager.name == "systemd" else ""
    return f"everhold service start{journal}"


# -- everhold setup service --------------------------------------------------------------------------------------------


def set_up(args: argparse.Namespace, screen: Screen) -> int:
    """Install it, start it, let it run while nobody is logged in."""
    from everhold.cli.commands.setup import Asking

    home = home_of(args)
    manager = of_this_machine(os.environ)
    manager.check()
    asking = None if args.no_input else Asking(screen, sys.stdin)
    if asking is not None:
        screen.note(
            f"everhold will run in {safe(str(home.path))} from now on, started at every login by {manager.name}."
        )
        if not asking.yes("Install and start it?"):
            raise Refused("nothing was changed", remedy="`everhold service print` shows what would be written")
    if manager.lingers() is False and (asking is None or asking.yes("Let it run while you are not logged in?")):
        _linger(screen)
    code = asyncio.run(install(args, screen, manager, home))
    if not screen.json:
        from everhold.cli.checkup import checkup

        checkup(home, screen, "service")
    return code
