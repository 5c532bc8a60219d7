"""Writes docs/reference/chat-commands.md: `python -m everhold.cli.chat_reference > docs/reference/chat-commands.md`."""

from __future__ import annotations

import sys
from typing import Final

from everhold.core.commands import COMMAND_SPECS, CommandSpec
from everhold.core.roles import PersonRole

_INTRODUCTION: Final = """\
# Chat commands

<!-- Written by `python -m everhold.cli.chat_reference`; change src/everhold/core/commands.py instead. -->

A message that begins with `/` and the name of a command is a command. Commands work the same way in every chat, in
`everhold chat` and over HTTP. A slash and any other word is an ordinary message. `/help` shows this list in a chat.

Capitals stand for a value; brackets enclose what may be left out. "Everybody" is everybody who may speak in that chat.
[Access and pairing](../how-to/access-and-pairing.md) explains which people these are, and who is an owner.

| command | what it does | in direct chats | in groups | other names |
|---|---|---|---|---|
"""
_ROLE_TEXTS: Final = {
    PersonRole.STRANGER: "everybody",
    PersonRole.KNOWN: "known people",
    PersonRole.MEMBER: "everybody",
    PersonRole.OWNER: "owners",
}


def render_reference() -> str:
    """Return the reference page."""
    return _INTRODUCTION + "".join(f"{_render_row(spec)}\n" for spec in COMMAND_SPECS)


def _render_row(spec: CommandSpec) -> str:
    usage = spec.usage.replace("|", "\\|")
    direct = "also strangers with a code" if spec.role.direct is PersonRole.STRANGER else _ROLE_TEXTS[spec.role.direct]
    aliases = ", ".join(f"`/{alias}`" for alias in spec.aliases)
    return f"| `{usage}` | {spec.help} | {direct} | {_ROLE_TEXTS[spec.role.group]} | {aliases} |"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
