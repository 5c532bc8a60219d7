"""`everhold service …`: runs the gateway as a user service. Does not change a unit file that was edited by hand."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from everhold.cli.connect import find_home, find_running_gateway
from everhold.cli.progress import show_waiting
from everhold.cli.render import CommandScreen, escape_control, format_count, format_one_line
from everhold.errors import NotFound, Refused
from everhold.infra.home import Home
from everhold.service import installation, unit
from everhold.service.manager import ServiceBackend, detect_service_backend, run_program

LINGER_COMMAND: Final = ("loginctl", "enable-linger")


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args)
    if args.action is None:  # `everhold service` means status, and has no options
        args.name = ""
    if args.action == "print":
        return _print_unit(args, screen, home)
    manager = detect_service_backend(os.environ)
    match args.action:
        case "install":
            return asyncio.run(install_service(args, screen, manager, home))
        case "uninstall":
            return _uninstall_service(args, screen, manager, home)
        case "start" | "restart":
            found = installation.select_service(manager, home, args.name)
            asyncio.run(start_service(screen, manager, found, home, again=args.action == "restart"))
            return _report_done(screen, found, "runs")
        case "stop":
            found = installation.select_service(manager, home, args.name)
            manager.stop(found.name)
            return _report_done(
                screen, found, "stopped; it starts again at the next login, or with `everhold service start`"
            )
        case _:
            return asyncio.run(_print_status(args, screen, manager, home))


def _print_unit(args: argparse.Namespace, screen: CommandScreen, home: Home) -> int:
    usual = {"win32": "winsw", "darwin": "launchd"}.get(sys.platform, "systemd")
    text = unit.RENDERERS[args.manager or usual](
        installation.build_service_spec(home, os.environ, name=args.name or installation.SERVICE_NAME)
    )
    if screen.json:
        screen.print_json({"manager": args.manager or usual, "text": text})
    else:
        screen.out.write(text)
    return 0


def _report_done(screen: CommandScreen, found: installation.InstalledService, what: str) -> int:
    if screen.json:
        screen.print_json({**installation.service_to_json(found), "did": what.partition(";")[0]})
    else:
        screen.print_line(f"{escape_control(found.name)} {what}")
    return 0


# -- install and uninstall ---------------------------------------------------------------------------------------------


async def install_service(args: argparse.Namespace, screen: CommandScreen, manager: ServiceBackend, home: Home) -> int:
    from everhold.app import load_home_settings

    manager.check_available()
    settings = load_home_settings(
        home.create(), environ=os.environ
    )  # with an invalid configuration the service would not start
    found, kept = installation.install_service(manager, home, os.environ, name=args.name, force=args.force)
    manager.register(found.name)
    ran = manager.get_state(found.name).running
    if args.start:
        await start_service(screen, manager, found, home, again=ran)
    missing = sorted(_find_shell_secrets(settings.document, home))
    lingers = manager.is_lingering()
    if screen.json:
        told = {**installation.service_to_json(found), "kept": kept, "running": args.start or ran, "lingers": lingers}
        screen.print_json({**told, "secrets_not_in_env": missing})
        return 0
    screen.print_line(f"{screen.paint('written', 'green')} {escape_control(str(found.path))}")
    if kept:
        screen.print_line(f"  the previous file is kept: {escape_control(kept)}")
    screen.print_line(
        f"  it starts {escape_control(found.description.program)} in {escape_control(str(home.path))} at every login"
    )
    for name in missing:
        screen.print_line(
            f"  {screen.paint('!', 'yellow')} {escape_control(name)} is set only in this shell, "
            "so the service does not have it"
        )
    if missing:
        screen.print_line(f"  → write it to {escape_control(str(home.env))}: {escape_control(missing[0])}=…")
    if lingers is False:
        screen.print_line(f"  it ends when you log out → {' '.join(LINGER_COMMAND)}")
    if args.start:
        screen.print_line(f"  it runs → everhold status{_format_home_flag(home)}")
    elif ran:
        screen.print_line(f"  it runs, still as it was → everhold service restart{_format_home_flag(home)}")
    else:
        screen.print_line(f"  → everhold service start{_format_home_flag(home)}")
    return 0


def _format_home_flag(home: Home) -> str:
    usual = Home.find(environ=os.environ).path
    return "" if home.path == usual else f" --home {escape_control(str(home.path))}"


def _find_shell_secrets(document: Mapping[str, Any], home: Home) -> Iterator[str]:
    """Yield the secrets of the configuration that are set only in this shell."""
    from everhold.config.secrets import parse_env
    from everhold.infra.home import read_file

    lines, _ = parse_env(read_file(home.env, private=True) or b"")
    kept = {line.name for line in lines if line.value}
    for name in set(_find_secret_names(document)):
        if os.environ.get(name, "").strip() and name not in kept:
            yield name


def _find_secret_names(part: object) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if isinstance(value, str) and str(key).endswith("_env"):
                yield value
            else:
                yield from _find_secret_names(value)
    elif isinstance(part, list | tuple):
        for item in part:
            yield from _find_secret_names(item)


def _uninstall_service(args: argparse.Namespace, screen: CommandScreen, manager: ServiceBackend, home: Home) -> int:
    found = installation.select_service(manager, home, args.name)
    installation.require_unmodified(found, force=args.force, verb="uninstall")
    manager.unregister(found.name)
    kept = installation.remove_service(found, force=args.force)
    manager.reload_descriptions()
    if screen.json:
        screen.print_json({**installation.service_to_json(found), "kept": kept})
    else:
        screen.print_line(
            f"{escape_control(found.name)} is stopped and uninstalled; {escape_control(str(home.path))} is unchanged"
        )
        if kept:
            screen.print_line(f"  its unit file is kept: {escape_control(kept)}")
    return 0


# -- start and status --------------------------------------------------------------------------------------------------


async def start_service(
    screen: CommandScreen, manager: ServiceBackend, found: installation.InstalledService, home: Home, *, again: bool
) -> None:
    """Start the service, and wait until it is ready. Raises Refused."""
    if not manager.get_state(found.name).running and found.starts_home(home):
        await _refuse_second_gateway(home)
    async with show_waiting(screen, f"starting {found.name}"):
        await asyncio.to_thread(manager.start, found.name, again=again)


async def _refuse_second_gateway(home: Home) -> None:
    reached = await find_running_gateway(home)
    if reached is not None and reached.role == "gateway":
        pid = (await reached.calls.show_status()).get("pid")
        raise Refused(
            f"a gateway runs in {home.path} already{f' (process {pid})' if pid else ''}, and not as this service",
            remedy=f"stop it first{f': kill {pid}' if pid else ''}",
        )


async def _print_status(args: argparse.Namespace, screen: CommandScreen, manager: ServiceBackend, home: Home) -> int:
    try:
        found = installation.select_service(manager, home, args.name)
    except NotFound as error:
        if screen.json:
            screen.print_json({"installed": False, "manager": manager.name})
            return 1
        raise error
    state = manager.get_state(found.name)
    own = Home(Path(found.description.home)) if found.description.home is not None else home
    reached = await find_running_gateway(own)
    answers = reached is not None and reached.role == "gateway"
    lingers = manager.is_lingering()
    complaints = installation.list_complaints(found)
    wrong = not state.running or not answers or any(level == "wrong" for level, _, _ in complaints)
    if screen.json:
        screen.print_json(
            {
                "installed": True,
                "manager": manager.name,
                **installation.service_to_json(found),
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
    head = [escape_control(found.name), screen.paint(escape_control(state.active), colour)]
    head += [f"process {state.pid}"] if state.pid else []
    head += [f"restarted {format_count(state.restarts, 'time')}"] if state.restarts else []
    head += [f"last exit {state.exit}"] if state.exit is not None else []
    screen.print_line(" · ".join(head))
    screen.print_line(f"  {escape_control(str(found.path))}")
    screen.print_line(
        f"  home {escape_control(str(found.description.home or '?'))}, "
        f"program {escape_control(found.description.program or '?')}"
    )
    screen.print_line(
        f"  at login: {'starts' if state.enabled else 'does not start'}; the gateway {_format_answers(answers)}"
    )
    if lingers is False:
        screen.print_line(f"  it ends when you log out → {' '.join(LINGER_COMMAND)}")
    if not state.running:
        if state.exit is not None and state.says:
            screen.print_line(f"  its last output: {format_one_line(state.says)}")
        screen.print_line(f"  → {_format_remedy(manager, found, state.exit)}")
    for level, text, remedy in complaints:
        screen.print_line(f"{screen.paint('!' if level == 'wrong' else '·', 'yellow')} {escape_control(text)}")
        if remedy:
            screen.print_line(f"    → {escape_control(remedy)}")
    return 1 if wrong else 0


def _enable_linger(screen: CommandScreen) -> None:
    """Let the service run after logout. A failure is only printed, because the service works without it."""
    try:
        done = run_program(*LINGER_COMMAND)
    except Refused as refused:
        screen.print_note(f"{refused.message}: the service ends when you log out")
        return
    if done.code:
        screen.print_note(
            f"{' '.join(LINGER_COMMAND)}: {escape_control(' '.join(done.err.split()))}; "
            "ask the administrator of this machine"
        )


def _format_answers(answers: bool) -> str:
    return "answers" if answers else "does not answer"


def _format_remedy(manager: ServiceBackend, found: installation.InstalledService, ended: int | None) -> str:
    if ended == unit.EXIT_GIVEN_UP:
        return "everhold doctor, because a restart would not help"
    journal = f"; journalctl --user -u {found.name} -n 20" if manager.name == "systemd" else ""
    return f"everhold service start{journal}"


# -- everhold setup service --------------------------------------------------------------------------------------------


def set_up_service(args: argparse.Namespace, screen: CommandScreen) -> int:
    """Install the service, start it, and let it run after logout."""
    from everhold.cli.commands.setup import SetupPrompter

    home = find_home(args)
    manager = detect_service_backend(os.environ)
    manager.check_available()
    asking = None if args.no_input else SetupPrompter(screen, sys.stdin)
    if asking is not None:
        screen.print_note(
            f"{manager.name} will run everhold in {escape_control(str(home.path))} now and at every login."
        )
        if not asking.confirm("Install and start it?"):
            raise Refused("nothing was changed", remedy="`everhold service print` shows what would be written")
    if manager.is_lingering() is False and (
        asking is None or asking.confirm("Let it run while you are not logged in?")
    ):
        _enable_linger(screen)
    code = asyncio.run(install_service(args, screen, manager, home))
    if not screen.json:
        from everhold.cli.checkup import run_checkup

        run_checkup(home, screen, "service")
    return code
