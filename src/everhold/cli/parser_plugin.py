"""`everhold plugin …`: its arguments, help and examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_plugin_commands(commands: _CommandGroup) -> None:
    plugin = commands.add_group(
        "plugin", "list plug-ins; generate a memory provider or platform adapter; test a provider", module="plugin"
    )
    plugin.add_command("list", "list the installed plug-ins, without importing them")
    new = plugin.add_command(
        "new",
        "generate a memory provider or a platform adapter that works",
        ("everhold plugin new memory notebook", "a memory provider, in ./everhold-notebook"),
        ("everhold plugin new platform carrier", "a platform adapter, in ./everhold-carrier"),
        about="Generates a package that works and passes its tests, and a README that says how to install it.",
    )
    new.add_argument("kind", choices=("memory", "platform"), help="what to generate")
    new.add_argument("name", metavar="NAME", help="its name in config.yaml: letters, digits, -")
    new.add_argument(
        "--in", dest="directory", default="", metavar="DIR", help="the directory to create (default: ./everhold-NAME)"
    )
    test = plugin.add_command(
        "test",
        "run the checks for memory providers and print a line per check",
        ("everhold plugin test notebook", "an installed provider"),
        ("everhold plugin test mine:Provider --set most=10", "a provider in ./mine.py, with a setting"),
        ("everhold plugin test honcho --set base_url=http://127.0.0.1:8000 --seconds 10", "a provider with a service"),
        about="Builds the provider as the gateway does and checks it with duplicates, lost answers, outages, hanging\n"
        "calls, cancellation, session switches, restarts, other people and other agents. Exits 1 if a check fails.\n"
        "Everything is stored under names made for the run. Do not use a service that holds data you need.",
    )
    test.add_argument(
        "name",
        metavar="NAME|MODULE:FACTORY",
        help="a name from `everhold plugin list`, or the import path of a factory",
    )
    test.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="K=V",
        help="a setting, as in config.yaml; K_env=NAME for a secret",
    )
    test.add_argument("--only", action="append", default=[], metavar="CHECK", help="run only this check (repeatable)")
    test.add_argument(
        "--harness", default="", metavar="MODULE:NAME", help="an object that breaks the service, for more checks"
    )
    test.add_argument("--seconds", type=float, default=2.0, metavar="S", help="time limit of one call (default: 2)")
    test.add_argument(
        "--patience", type=float, default=5.0, metavar="S", help="time limit until a stored item is found (default: 5)"
    )
