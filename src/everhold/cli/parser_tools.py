"""Arguments, help and examples of `everhold setup tools`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_tool_setup(setup: _CommandGroup) -> None:
    tools = setup.add_command(
        "tools",
        "explain the built-in tools, test them, and give them to an agent",
        ("everhold setup tools", "show all tools, and ask which ones the agent shall have"),
        ("everhold setup tools files shell --agent coder", "test and add two tools"),
        ("everhold setup tools web_search --provider searxng --url http://localhost:8080", "with a search service"),
        ("everhold setup tools web_search --provider brave --key-stdin < key", "read the key from a file"),
        ("everhold setup tools shell --off", "take a tool away"),
        ("everhold setup tools --no-input", "explain and test what the agent has, and write nothing"),
        about="Tests each tool with a real call: a file, a command in the sandbox, a page, a search. Then writes\n"
        "config.yaml (comments stay) and a key to .env. Writes nothing if a test fails. A running gateway uses the\n"
        "tools from the next turn on. What a turn may do with them is decided by `policy`.",
    )
    tools.add_argument("tools", nargs="*", metavar="TOOL", help="tools to add (default: ask)")
    tools.add_argument("--agent", default="", metavar="A", help="the agent (default: the default agent)")
    tools.add_argument("--off", action="store_true", help="take the tools away")
    tools.add_argument("--provider", default="", choices=("", "searxng", "brave", "tavily"), help="of web_search")
    tools.add_argument("--url", default="", metavar="URL", help="the address of the search service")
    tools.add_argument(
        "--key-stdin", action="store_true", help="read the key of the search service from standard input"
    )
    tools.add_argument("--no-input", action="store_true", help="ask nothing; fail if a setting is missing")
    tools.add_argument("--no-test", action="store_true", help="write the configuration without a test")
