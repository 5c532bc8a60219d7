"""What memory services behind an SDK share: capabilities, the text and metadata of an item, reading of answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from everhold.errors import EverholdError
from everhold.memories.errors import convert_partial_failure
from everhold.memories.formatting import escape_nul, format_exchange, unescape_nul
from everhold.memories.scope import build_audience_marks
from everhold.ports.memory import (
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryProvider,
    MemoryQuery,
    ProviderHealth,
)
from everhold.ports.tool import ToolContext, ToolResult

REMOTE_CAPABILITIES: Final = frozenset(
    {
        MemoryCapability.PROBE,
        MemoryCapability.RETRACT,
        MemoryCapability.TOOLS,
        MemoryCapability.FORGET,
        MemoryCapability.EXPORT,
        MemoryCapability.HEALTH,
        MemoryCapability.CLOSE,
        MemoryCapability.SIGNATURE,
    }
)


async def store_each(
    batch: MemoryBatch, keep: Callable[[MemoryBatch, MemoryItem], Awaitable[str]]
) -> Mapping[str, str]:
    """Store one item after the other and return key -> remote id. An error says whether earlier items were stored."""
    remotes: dict[str, str] = {}
    for item in batch.items:
        try:
            remotes[item.key] = await keep(batch, item)
        except EverholdError as error:
            raise convert_partial_failure(bool(remotes), error) from error
    return remotes


def make_text(item: Exchange | MemoryNote) -> str:
    """Return the text to store for an item; empty for a note that only removes."""
    if isinstance(item, Exchange):
        return format_exchange(item)
    return "" if item.action == "remove" else escape_nul(item.text.strip())


def make_metadata(item: Exchange | MemoryNote) -> dict[str, Any]:
    """Return the metadata to store with the text. `read_hit` and the audience check use it."""
    about = {
        "everhold": item.key,
        "everhold_agent": item.agent,
        "everhold_session": item.session,
        "everhold_seq": (*item.heard, *item.said)[0].seq if isinstance(item, Exchange) else item.seq,
        "everhold_person": item.stamp.person,
        "everhold_parent": item.parent if isinstance(item, Exchange) else "",
        "everhold_fact": item.fact if isinstance(item, MemoryNote) else "",
        "everhold_tags": ",".join(item.tags),
    }
    return {name: value for name, value in about.items() if value not in ("", None)} | build_audience_marks(
        item.stamp.audience
    )


def read_hit(text: str, about: Mapping[str, Any], *, person: str, score: float = 0.0, at: float = 0.0) -> MemoryHit:
    """Build a hit from a text and its metadata `about`. `person` is the owner if the metadata does not name one."""
    return MemoryHit(
        text=unescape_nul(text),
        score=score,
        session=str(about.get("everhold_session", "")),
        seq=int(about.get("everhold_seq") or 0),
        person=str(about.get("everhold_person", "")) or person,
        at=at,
        key=str(about.get("everhold", "")),
    )


def read_time(when: object) -> float:
    """Convert a time from an SDK, a datetime or ISO text, to seconds; 0 if there is none."""
    if isinstance(when, datetime):
        return when.timestamp()
    try:
        return datetime.fromisoformat(str(when)).timestamp() if when else 0.0
    except ValueError:
        return 0.0


async def check_health(ask: Awaitable[object]) -> ProviderHealth:
    """Return healthy if the service answers `ask`, otherwise the error it failed with."""
    try:
        await ask
    except EverholdError as error:
        return ProviderHealth(well=False, text=error.message)
    return ProviderHealth(well=True)


async def search_for_tool(memory: MemoryProvider, text: str, context: ToolContext, *, limit: int) -> ToolResult:
    """Return the answer of a search tool: every hit that the people present may see."""
    found = await memory.find(
        MemoryQuery(
            text=text,
            agent=context.agent,
            session=context.session,
            name=context.session,
            audience=context.stamp.audience,
            person=context.stamp.person,
            limit=limit,
        )
    )
    return ToolResult(text="\n\n".join(it.text for it in found) or "Nothing was found.")
