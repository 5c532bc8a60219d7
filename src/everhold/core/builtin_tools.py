"""The tools that ship with everhold, and how each of them is treated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BuiltinTool:
    """One tool that needs no plug-in."""

    name: str
    selectable: bool
    """Whether an agent's `tools` may name it. The others come along with one that can be named."""
    own_words: bool
    """Whether what it wrote counts as the agent's own words, not as a foreign tool's."""


BUILTIN_TOOLS: Final = (
    BuiltinTool("memory", selectable=True, own_words=True),
    BuiltinTool("remember", selectable=False, own_words=True),
    BuiltinTool("conclude", selectable=False, own_words=True),
    BuiltinTool("session_search", selectable=True, own_words=False),
    BuiltinTool("attach", selectable=True, own_words=False),
    BuiltinTool("send", selectable=True, own_words=True),
)
SELECTABLE_TOOLS: Final = tuple(tool.name for tool in BUILTIN_TOOLS if tool.selectable)
"""What an agent can be given without a plug-in. `send` comes with `send_to`, whether it is named or not."""
OWN_WORDS_TOOLS: Final = frozenset(tool.name for tool in BUILTIN_TOOLS if tool.own_words)
