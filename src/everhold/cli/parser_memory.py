"""Arguments, help and examples of `everhold setup memory NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_memory_setup(setup: _CommandGroup) -> None:
    memory = setup.add_command(
        "memory",
        "attach a memory service, or a plug-in of hermes-agent",
        ("everhold setup memory honcho", "ask for all settings"),
        ("everhold setup memory work --provider honcho --set workspace=work --agent coder", "add a second memory"),
        ("everhold setup memory notes --provider hermes-plugin:~/.hermes/plugins/notes", "use a hermes-agent plug-in"),
        (
            "everhold setup memory hindsight --no-input --set base_url=http://127.0.0.1:8888 --stdin < key",
            "read the key from a file",
        ),
        about="Asks for the settings that are not given, tests the memory, and writes config.yaml (comments stay) and\n"
        "the secrets to .env. Writes nothing if the test fails. Secrets are never shown, and are no command line\n"
        "arguments because other users could read them there. A hermes-agent plug-in asks its own questions, and\n"
        "stores settings that are not secret in its own files.",
    )
    memory.add_argument("name", metavar="NAME", help="the memory's name; a provider's name selects that provider")
    memory.add_argument("--provider", default="", metavar="P", help="the provider (default: NAME)")
    memory.add_argument("--agent", default="", metavar="A", help="the agent (default: all without their own list)")
    memory.add_argument("--no-attach", action="store_true", help="write the section without attaching it to an agent")
    memory.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, which is not asked")
    memory.add_argument("--stdin", action="store_true", help="read the secrets from standard input, one per line")
    memory.add_argument("--no-input", action="store_true", help="ask nothing; fail if a setting is missing")
    memory.add_argument("--no-test", action="store_true", help="write the configuration without a test")
