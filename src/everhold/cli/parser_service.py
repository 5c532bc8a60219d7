"""Arguments, help and examples of `everhold service …` and `everhold setup service`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_service_commands(commands: _CommandGroup) -> None:
    service = commands.add_group("service", "run the gateway as a user service", module="service", default="status")
    install = service.add_command(
        "install",
        "install the service, which starts at every login",
        ("everhold service install --start", "start it now, too"),
        ("everhold --home ~/lab service install --name everhold-lab", "install a second service, for another home"),
        about="Writes a unit file for systemd (of your user, without root) or launchd. Repeat it after an upgrade. A\n"
        "unit file that was edited by hand is not changed, unless --force is given, which keeps a copy.",
    )
    _add_name_option(install)
    _add_force_option(install)
    install.add_argument("--start", action="store_true", help="start the service now, or restart it")
    uninstall = service.add_command(
        "uninstall",
        "stop the service and delete its unit file; the home stays",
        ("everhold service uninstall", ""),
    )
    _add_name_option(uninstall)
    _add_force_option(uninstall)
    _add_name_option(service.add_command("start", "start the service, and wait until it is ready"))
    _add_name_option(service.add_command("restart", "restart the service, and wait until it is ready"))
    _add_name_option(service.add_command("stop", "stop the service; running turns get 30 seconds"))
    status = service.add_command(
        "status",
        "show the state of the service; exit 1 if it does not run",
        ("everhold service status --json", ""),
    )
    _add_name_option(status)
    shown = service.add_command(
        "print",
        "print the unit file, and change nothing",
        ("everhold service print", ""),
        ("everhold service print --for systemd-system", "for the system's systemd, with more protection"),
        ("everhold service print --for winsw > everhold.xml", "for Windows"),
    )
    _add_name_option(shown)
    shown.add_argument(
        "--for",
        dest="manager",
        choices=("systemd", "systemd-system", "launchd", "winsw"),
        default="",
        help="the service manager (default: this system's)",
    )


def add_service_setup(setup: _CommandGroup) -> None:
    service = setup.add_command(
        "service",
        "install the gateway as a service and start it",
        ("everhold setup service", "ask, install, start"),
        ("everhold setup service --no-input", "ask nothing"),
    )
    _add_name_option(service)
    _add_force_option(service)
    service.add_argument("--no-input", action="store_true", help="ask nothing")
    service.set_defaults(start=True)


def add_supervision_options(up: argparse.ArgumentParser) -> None:
    """Add the options for service managers."""
    up.add_argument("--quiet", action="store_true", help="write log lines only to logs/ in the home")
    up.add_argument(
        "--give-up-with",
        type=_parse_exit_code,
        metavar="CODE",
        help="exit with this code where a restart cannot help: invalid configuration, damaged store",
    )


def _parse_exit_code(text: str) -> int:
    if not text.isdecimal() or int(text) > 125:
        raise argparse.ArgumentTypeError(f"{text!r} is not an exit code (0 to 125)")
    return int(text)


def _add_name_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", default="", metavar="NAME", help="the service's name (default: the service of this home)"
    )


def _add_force_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--force", action="store_true", help="replace a unit file that was edited by hand, and keep a copy"
    )
