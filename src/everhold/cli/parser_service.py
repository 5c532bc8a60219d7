"""`everhold service …` and `everhold setup service`: their arguments, help and examples."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_service_commands(commands: _CommandGroup) -> None:
    service = commands.add_group("service", "the gateway as a service of your own", module="service", default="status")
    install = service.add_command(
        "install",
        "write its description, and start it at every login",
        ("everhold service install --start", "now, too"),
        ("everhold --home ~/lab service install --name everhold-lab", "a second one, for another home"),
        about="Describes the gateway of this home to systemd (your own, no root needed) or launchd; after an upgrade,\n"
        "anew. A description that somebody has changed is left as it is, unless --force keeps a copy of it.",
    )
    _add_name_option(install)
    _add_force_option(install)
    install.add_argument("--start", action="store_true", help="start it now, or anew if it runs")
    uninstall = service.add_command(
        "uninstall",
        "stop it and take its description away; the home stays",
        ("everhold service uninstall", ""),
    )
    _add_name_option(uninstall)
    _add_force_option(uninstall)
    _add_name_option(service.add_command("start", "start it, and wait until it is ready"))
    _add_name_option(service.add_command("restart", "stop it, start it, and wait until it is ready"))
    _add_name_option(service.add_command("stop", "stop it; running turns get 30 seconds"))
    status = service.add_command(
        "status",
        "how it is; exit 1 if it does not run",
        ("everhold service status --json", ""),
    )
    _add_name_option(status)
    shown = service.add_command(
        "print",
        "write its description to standard output, and change nothing",
        ("everhold service print", ""),
        ("everhold service print --for winsw > everhold.xml", "for Windows"),
    )
    _add_name_option(shown)
    shown.add_argument(
        "--for", dest="manager", choices=("systemd", "launchd", "winsw"), default="", help="(default: this system's)"
    )


def add_service_setup(setup: _CommandGroup) -> None:
    service = setup.add_command(
        "service",
        "run the gateway as a service, from now on",
        ("everhold setup service", "asks, installs, starts"),
        ("everhold setup service --no-input", "asks nothing"),
    )
    _add_name_option(service)
    _add_force_option(service)
    service.add_argument("--no-input", action="store_true", help="ask nothing, and go on")
    service.set_defaults(start=True)


def add_supervision_options(up: argparse.ArgumentParser) -> None:
    """What whoever looks after a gateway may want of it."""
    up.add_argument("--quiet", action="store_true", help="log lines go to logs/ in the home only")
    up.add_argument(
        "--give-up-with",
        type=_parse_exit_code,
        metavar="CODE",
        help="exit so where starting anew cannot help: a refused configuration, a damaged store",
    )


def _parse_exit_code(text: str) -> int:
    if not text.isdecimal() or int(text) > 125:
        raise argparse.ArgumentTypeError(f"{text!r} is no exit code (0 to 125)")
    return int(text)


def _add_name_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", default="", metavar="NAME", help="which one, if there are several (default: the one of this home)"
    )


def _add_force_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="even if somebody changed it; a copy is kept beside")
