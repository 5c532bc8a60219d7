"""Decides which tools of a tool server are offered: within the limits, under a name of their own, and as the owner has
seen them.

A description is text that the model reads as part of its instructions. A server that changes it after the owner has
looked could make the model do something else. So a new or changed tool waits until the owner confirms it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.core.builtin_tools import BUILTIN_TOOLS
from everhold.ports.model import ToolSpec

MAX_TOOLS: Final = 200
"""How many tools a server may offer."""
MAX_DESCRIPTION_CHARS: Final = 4_000
"""Maximum characters of a description. The rest is cut off."""
MAX_TOOL_BYTES: Final = 32 * 1024
"""Maximum bytes of a tool's description and parameters, as JSON."""
MAX_SERVER_BYTES: Final = 256 * 1024
"""The same for all tools of a server together."""
DIGEST_CHARS: Final = 12
"""Characters of the digest that an owner types to confirm."""

TOOL_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The tool names that every model accepts. With another name, a model would refuse the whole request."""
RESERVED_TOOL_NAMES: Final = frozenset(tool.name for tool in BUILTIN_TOOLS)
"""No tool server, memory or plug-in gets one of these names, also not for an agent without the built-in tool."""


class PinnedTool(Struct, frozen=True):
    """A tool as it was seen: the digest of what the model reads, and the texts to show to the owner. A model reads the
    parameters as it reads the description."""

    digest: str
    description: str = ""
    parameters: str = ""
    """As JSON in ASCII, so no character of it is invisible. Empty in a pin of an earlier build."""


class ToolPins(Struct, frozen=True, omit_defaults=True):
    """What the owner has seen of one tool server. `entry` is the digest of its command or url in the configuration."""

    entry: str
    tools: dict[str, PinnedTool] = {}
    """Seen: at the first start of the entry, or confirmed."""
    waiting: dict[str, PinnedTool] = {}
    """New or changed since. They are not offered."""

    @property
    def waiting_digest(self) -> str:
        """The digest of what waits. An owner confirms it, so that a change between looking and confirming counts."""
        parts = [f"{name}\0{tool.digest}" for name, tool in sorted(self.waiting.items())]
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]


def compute_tool_digest(spec: ToolSpec) -> str:
    """Return the digest of everything that a model reads of a tool."""
    text = json.dumps([spec.name, spec.description, spec.parameters], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def compute_entry_digest(command: Sequence[str], url: str) -> str:
    """Return the digest of what the owner configured: which program or address is the server."""
    return hashlib.sha256(json.dumps([list(command), url]).encode()).hexdigest()[:16]


def review_tools(pins: ToolPins | None, entry: str, offered: Mapping[str, ToolSpec]) -> ToolPins:
    """Return the pins after a server offered these tools.

    The first tools of an entry are trusted, because the owner just configured it. Later ones wait if they are new or
    changed. A tool that is not offered any more keeps its pin, so it may come back unchanged.
    """
    seen = {name: _pin_tool(spec) for name, spec in offered.items()}
    if pins is None or pins.entry != entry:
        return ToolPins(entry=entry, tools=seen)
    waiting = {name: tool for name, tool in seen.items() if not _is_same(pins.tools.get(name), tool)}
    return ToolPins(entry=entry, tools=pins.tools, waiting=waiting)


def _pin_tool(spec: ToolSpec) -> PinnedTool:
    parameters = json.dumps(spec.parameters, sort_keys=True, ensure_ascii=True)
    return PinnedTool(compute_tool_digest(spec), spec.description, parameters)


def _is_same(pinned: PinnedTool | None, tool: PinnedTool) -> bool:
    return pinned is not None and pinned.digest == tool.digest


def confirm_waiting(pins: ToolPins) -> ToolPins:
    """Return the pins after the owner confirmed everything that waits."""
    return ToolPins(entry=pins.entry, tools={**pins.tools, **pins.waiting})


def encode_pins(pins: ToolPins) -> str:
    return msgspec.json.encode(pins, order="sorted").decode()


def decode_pins(text: str | None) -> ToolPins | None:
    """Return the stored pins; None if there are none. Raises msgspec.DecodeError: nothing is trusted then."""
    return None if text is None else msgspec.json.decode(text, type=ToolPins)


# -- limits and names --------------------------------------------------------------------------------------------------


def find_unfit_tools(specs: Sequence[ToolSpec]) -> dict[str, str]:
    """Return why some of a server's tools are not offered: name -> reason."""
    unfit: dict[str, str] = {}
    total = 0
    names: set[str] = set()
    for place, spec in enumerate(specs):
        size = measure_tool(spec)
        if not TOOL_NAME_PATTERN.fullmatch(spec.name):
            reason = "models refuse its name: letters, digits, _ and -, at most 64 with the server's name"
        elif spec.name in names:
            reason = "the server offers two tools of this name"
        elif place >= MAX_TOOLS:
            reason = f"the server offers more than {MAX_TOOLS} tools"
        elif size > MAX_TOOL_BYTES:
            reason = f"its description and parameters have {size:,} bytes, more than {MAX_TOOL_BYTES:,}"
        elif total + size > MAX_SERVER_BYTES:
            reason = f"the descriptions of all tools have more than {MAX_SERVER_BYTES:,} bytes"
        else:
            names.add(spec.name)
            total += size
            continue
        unfit[spec.name] = reason
    return unfit


def measure_tool(spec: ToolSpec) -> int:
    """Return the bytes of a tool in a request."""
    return len(spec.name) + len(json.dumps([spec.description, spec.parameters]))


def find_clashes(offered: Mapping[str, Collection[str]], taken: Collection[str]) -> dict[tuple[str, str], str]:
    """Return the tools that share a name: (source, name) -> whose name it is. `offered` is source -> names.

    Of two servers with one name neither is offered, because the model's arguments would reach a server that the owner
    did not mean. Names in `taken` belong to built-in tools and memories, which keep them.
    """
    owners: dict[str, list[str]] = {}
    for source, names in offered.items():
        for name in names:
            owners.setdefault(name, []).append(source)
    clashes: dict[tuple[str, str], str] = {}
    for name, sources in owners.items():
        for source in sources:
            others = [other for other in sources if other != source]
            if name in taken:
                clashes[source, name] = "a built-in tool" if name in RESERVED_TOOL_NAMES else "a memory"
            elif others:
                clashes[source, name] = " and ".join(others)
    return clashes


def describe_pins(server: str, pins: ToolPins) -> dict[str, Any]:
    """Return the pins of a server for operators."""
    return {
        "server": server,
        "tools": sorted(pins.tools),
        "waiting": [_describe_waiting(name, tool, pins.tools.get(name)) for name, tool in sorted(pins.waiting.items())],
        "digest": pins.waiting_digest if pins.waiting else "",
    }


def _describe_waiting(name: str, tool: PinnedTool, before: PinnedTool | None) -> dict[str, str]:
    return {
        "name": name,
        "state": "changed" if before else "new",
        "description": tool.description,
        "before": before.description if before else "",
        "parameters": tool.parameters,
        "parameters_before": before.parameters if before else "",
    }
