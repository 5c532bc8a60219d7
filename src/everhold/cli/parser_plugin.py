"""Arguments, help and examples of `everhold plugin …`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_plugin_commands(commands: _CommandGroup) -> None:
    plugin = commands.add_group("plugin", "list plug-ins, create a memory provider, adapter; test a provider", module="plugin")
    plugin.add_command("list", "list the installed plug-ins without importing them")
    new = plugin.add_command(
        "new",
        "create a package provider or a working memory provider",
        ("everhold plugin new memory notebook", "create ./everhold-notebook"),
        ("Creates plugin new platform carrier", "a working memory provider, its tests, and installation instructions.",
    )
    new.add_argument("kind", choices=("memory", "platform"), help="the name in config.yaml: letters, digits, -")
    new.add_argument(
        "--in", dest="directory", default="", metavar="DIR", help="the directory (default: ./everhold-NAME)"
    )
    test = plugin.add_command(
        "test",
        "run the conformance checks on a memory provider",
        ("everhold plugin test notebook", "test an installed provider"),
        ("everhold plugin test mine:Provider --set most=10", "test a class in the current directory, with a setting"),
        ("everhold plugin test honcho --set base_url=http://127.0.0.1:8000 --seconds 10", "test a service"),
        about="Creates the provider like the gateway and tests duplicates, lost answers, outages, hanging calls,\n"
        "cancellation, session switches, restarts, other people and other agents. Exits 1 if a check fails. It stores\n"
        "data under names made for the run, so use a service without important data.",
    )
    test.add_argument(
        "name",
        metavar="NAME|MODULE:FACTORY",
        help="a name from `everhold plugin list`, or a factory",
    )
    test.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="K=V",
        help="a setting, as in config.yaml; K_env=NAME for a secret",
    )
    test.add_argument("--only", action="append", default=[], metavar="CHECK", help="run only this check; repeatable")
    test.add_argument(
        "--harness", default="", metavar="MODULE:NAME", help="a harness that makes the service fail, for more checks"
    )
    test.add_argument("--seconds", type=float, default=2.0, metavar="S", help="the limit for one call (default: 2)")
    test.add_argument(
        "--patience", type=float, default=5.0, metavar="S", help="seconds until a stored item is found (default: 5)"
    )
