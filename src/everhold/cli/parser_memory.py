"""`everhold setup memory NAME`: its arguments, help and examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_memory_setup(setup: _CommandGroup) -> None:
    memory = setup.add_command(
        "memory",
        "attach a memory service, or a plug-in of hermes-agent",
        ("everhold setup memory honcho", "asks for everything"),
        ("everhold setup memory work --provider honcho --set workspace=work --agent coder", "a second one"),
        ("everhold setup memory notes --provider hermes-plugin:~/.hermes/plugins/notes", "it asks its own questions"),
        (
            "everhold setup memory hindsight --no-input --set base_url=http://127.0.0.1:8888 --stdin < key",
            "the key from a file",
        ),
        about="Asks for what it is not told, tries it, and writes config.yaml (its comments stay) and the secrets to\n"
        ".env; nothing if it does not answer. Secrets are never shown, and never taken from the command line, where\n"
        "others could read them. A plug-in of hermes-agent asks for itself, and keeps what is no secret in its files.",
    )
    memory.add_argument("name", metavar="NAME", help="what to call it; a provider's name means that provider")
    memory.add_argument("--provider", default="", metavar="P", help="what it is (default: what it is called)")
    memory.add_argument("--agent", default="", metavar="A", help="who remembers with it (default: whoever has no list)")
    memory.add_argument("--no-attach", action="store_true", help="write its section, and give it to nobody")
    memory.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, so it is not asked")
    memory.add_argument("--stdin", action="store_true", help="read the secrets from standard input, a line each")
    memory.add_argument("--no-input", action="store_true", help="ask nothing; what is missing is an error")
    memory.add_argument("--no-test", action="store_true", help="write it without having tried it")
