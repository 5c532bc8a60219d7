"""Writes docs/reference/chat-commands.md: `python -m everhold.cli.chat_reference > docs/reference/chat-commands.md`."""

from __future__ import annotations

import sys
from typing import Final

from everhold.core.commands import COMMAND_SPECS, CommandSpec, describe_action
from everhold.core.roles import COMMAND_ROLES, TOOL_ROLES, ChatPlace, RoleCell, RoleRow, ToolAccess

_INTRODUCTION: Final = """\
# Chat commands

<!-- Written by `python -m everhold.cli.chat_reference`; change src/everhold/core/commands.py and roles.py instead. -->

A message that begins with `/` and the name of a command is a command. Commands work the same way in every chat, in
`everhold chat` and over HTTP. `/help` shows this list in a chat.

A mistyped command, such as `/undoo`, does not reach the model. You get the name of the command that you may have meant,
also for names that other programs use, such as `/remember`. A path such as `/etc/hosts`, and a slash before a word that
resembles no command, are ordinary messages.

Capitals stand for a value; brackets enclose what may be left out.

| command | what it does | other names |
|---|---|---|
"""
_ROLES: Final = """
## Who may use which command

The tables give the lowest role. A higher role may do everything that a lower one may: stranger, known, member, owner.
[Access and pairing](../how-to/access-and-pairing.md) explains who has which role. "Group, own session" is a group in
which each person has a separate session, "shared group" one in which all share a session. "Own" means made by the same
person. The role counts when the message is accepted and again when it is handled; the lower one decides. A refusal says
which role is missing, and whom to ask. `/whoami` shows your role.

"""
_LINK_NOTE: Final = """
`/link CODE` is the only command that also works for a stranger in a direct chat. `/stop` by a person below member puts
only that person's own waiting messages aside. `/resume` in a direct chat continues one of your group sessions in a
copy, so that the group does not see what you write there. A private session is never continued in a group.
"""
_TOOLS: Final = """
## Which tools a turn may use

A turn has the rights of the least trusted person whose words it takes. Tools that need a higher role are not offered
to the model. If the model calls one anyway, the call is refused with the reason. `{name: …, needs: owner}` in an
agent's `tools` asks for a higher role; it never allows more than the table. A turn that takes only forwarded or quoted
text gets the tools of the first two rows, whatever the role: what it notes is material, and it changes nothing.

"""
_TOOL_TEXTS: Final = {
    ToolAccess.READ: "`session_search`, and search, context and profile of memory providers",
    ToolAccess.NOTE: "`memory` add, `remember`, `conclude`, and storing or concluding with memory providers",
    ToolAccess.CHANGE: "`memory` replace and remove, and deleting or replacing a card with memory providers",
    ToolAccess.ACT: "`send`, `attach`, tools of MCP servers and plug-ins",
}


def render_reference() -> str:
    """Return the reference page."""
    commands = "".join(f"{_render_spec(spec)}\n" for spec in COMMAND_SPECS)
    roles = render_table("command", [(f"`{describe_action(action)}`", row) for action, row in COMMAND_ROLES.items()])
    tools = render_table("tool", [(_TOOL_TEXTS[access], row) for access, row in TOOL_ROLES.items()])
    return f"{_INTRODUCTION}{commands}{_ROLES}{roles}{_LINK_NOTE}{_TOOLS}{tools}"


def render_table(what: str, rows: list[tuple[str, RoleRow]]) -> str:
    """Return a table of roles."""
    head = f"| {what} | {' | '.join(ChatPlace)} |\n|---|---|---|---|\n"
    return head + "".join(
        f"| {name} | {' | '.join(_render_cell(row[place]) for place in ChatPlace)} |\n" for name, row in rows
    )


def _render_cell(cell: RoleCell) -> str:
    if cell.role is None:
        return "nobody"
    text = cell.role.label
    if cell.others is not None:
        text = f"{text} for own, {cell.others.label} for others'"
    if cell.scope:
        text = f"{text}: {cell.scope}"
    return f"{text}; below: {cell.below}" if cell.below else text


def _render_spec(spec: CommandSpec) -> str:
    usage = spec.usage.replace("|", "\\|")
    aliases = ", ".join(f"`/{alias}`" for alias in spec.aliases)
    return f"| `{usage}` | {spec.help} | {aliases} |"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
