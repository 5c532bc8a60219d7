"""The tools that ship with everhold, and what the rest of the code has to know about each of them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class BuiltinTool(Struct, frozen=True, kw_only=True):
    """One tool that a model may call without a plug-in."""

    name: str
    selectable: bool
    """Whether `tools` of an agent's configuration may name it. `send` also comes with `send_to`, named or not."""
    own_words: bool
    """Whether it returns only words that the agent gave it, or that an operator installed. The result of any other tool
    counts as foreign words."""
    writes_state: bool = False
    """Whether its results may write state records. No tool of another author may."""
    part_of: str = ""
    """The name in `tools` that it comes with, if that is another one."""
    command: str = ""
    """The argument that is a shell command. Rules of the policy may name it."""
    sends: str = ""
    """The argument whose words leave for the network."""
    delegable: bool = False
    """Whether a sub-agent may use it. None uses a tool that writes or reads memories, speaks in chats, makes schedules
    or gives work to sub-agents."""


DELEGATE_TOOL: Final = "delegate"
"""The only tool that may give work to a sub-agent."""

BUILTIN_TOOLS: Final = (
    BuiltinTool(name="memory", selectable=True, own_words=True),
    BuiltinTool(name="remember", selectable=False, own_words=True, part_of="memory"),
    BuiltinTool(name="conclude", selectable=False, own_words=True, part_of="memory"),
    BuiltinTool(name="session_search", selectable=True, own_words=False),
    BuiltinTool(name="attach", selectable=True, own_words=False),
    BuiltinTool(name="send", selectable=True, own_words=True),
    BuiltinTool(name="files", selectable=True, own_words=False),
    BuiltinTool(name="file_read", selectable=False, own_words=False, part_of="files", delegable=True),
    BuiltinTool(name="file_list", selectable=False, own_words=False, part_of="files", delegable=True),
    BuiltinTool(name="file_search", selectable=False, own_words=False, part_of="files", delegable=True),
    BuiltinTool(name="file_write", selectable=False, own_words=True, part_of="files", delegable=True),
    BuiltinTool(name="file_edit", selectable=False, own_words=True, part_of="files", delegable=True),
    BuiltinTool(name=DELEGATE_TOOL, selectable=True, own_words=True),
    BuiltinTool(name="schedule", selectable=True, own_words=True, writes_state=True),
    BuiltinTool(name="skill", selectable=True, own_words=True, delegable=True),
    BuiltinTool(name="shell", selectable=True, own_words=False, command="command", delegable=True),
    BuiltinTool(name="web_fetch", selectable=True, own_words=False, sends="url", delegable=True),
    BuiltinTool(name="web_search", selectable=True, own_words=False, sends="query", delegable=True),
)

SELECTABLE_TOOLS: Final = tuple(tool.name for tool in BUILTIN_TOOLS if tool.selectable)
DELEGABLE_TOOLS: Final = frozenset(tool.name for tool in BUILTIN_TOOLS if tool.delegable)
STATE_WRITING_TOOLS: Final = frozenset(tool.name for tool in BUILTIN_TOOLS if tool.writes_state)
OWN_WORDS_TOOLS: Final = frozenset(tool.name for tool in BUILTIN_TOOLS if tool.own_words)
_BY_NAME: Final = {tool.name: tool for tool in BUILTIN_TOOLS}


def find_builtin_tool(name: str) -> BuiltinTool | None:
    return _BY_NAME.get(name)
