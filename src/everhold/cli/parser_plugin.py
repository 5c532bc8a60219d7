"""`everhold plugin …`: its arguments, help and examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_plugin_commands(commands: _CommandGroup) -> None:
    plugin = commands.add_group(
        "plugin", "what is installed; write a memory provider of your own, and test it", module="plugin"
    )
    plugin.add_command("list", "the plug-ins that are installed, without importing any")
    new = plugin.add_command(
        "new",
        "write the skeleton of a memory provider that works",
        ("everhold plugin new notebook", "in ./everhold-notebook"),
        about="Writes a package with a memory provider that works, its tests, and how to install it.",
    )
    new.add_argument("name", metavar="NAME", help="what it is called in config.yaml: letters, digits, -")
    new.add_argument("--in", dest="directory", default="", metavar="DIR", help="where (default: ./everhold-NAME)")
    test = plugin.add_command(
        "test",
        "what everhold asks of every memory provider, a line per check",
        ("everhold plugin test notebook", "one that is installed"),
        ("everhold plugin test mine:Provider --set most=10", "one in a file here, with a setting"),
        ("everhold plugin test honcho --set base_url=http://127.0.0.1:8000 --seconds 10", "one with a service"),
        about="Builds the provider as the gateway would and puts it through duplicates, lost answers, outages,\n"
        "hanging, cancellation, switches, restarts, other people and other agents. Exits 1 if a check fails. All it\n"
        "stores goes under names made for the run; use a service you can do without.",
    )
    test.add_argument("name", metavar="NAME|MODULE:FACTORY", help="from `everhold plugin list`, or where it stands")
    test.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="K=V",
        help="a setting, as in config.yaml; K_env=NAME for a secret",
    )
    test.add_argument("--only", action="append", default=[], metavar="CHECK", help="just this one; again for more")
    test.add_argument("--harness", default="", metavar="MODULE:NAME", help="what breaks its far side, for more checks")
    test.add_argument("--seconds", type=float, default=2.0, metavar="S", help="what one call may take (default: 2)")
    test.add_argument(
        "--patience", type=float, default=5.0, metavar="S", help="until something stored must be found (default: 5)"
    )
