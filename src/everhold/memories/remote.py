"""What memory services behind an SDK have in common: abilities, what they keep of an item, how answers are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from everhold.errors import EverholdError
from everhold.memories.faults import partly
from everhold.memories.scope import marks
from everhold.memories.wording import packed, told, unpacked
from everhold.ports.memory import Batch, Capability, Exchange, Found, Health, Memory, MemoryProvider, Note, Query
from everhold.ports.tool import Result, ToolContext

REMOTE_CAPABILITIES: Final = frozenset(
    {
        Capability.PROBE,
        Capability.RETRACT,
        Capability.TOOLS,
        Capability.FORGET,
        Capability.EXPORT,
        Capability.HEALTH,
        Capability.CLOSE,
        Capability.SIGNATURE,
    }
)


async def store_each(batch: Batch, keep: Callable[[Batch, Memory], Awaitable[str]]) -> Mapping[str, str]:
    """Keep one item after the other: key -> the id it has there. A failure says whether others were stored before."""
    remotes: dict[str, str] = {}
    for item in batch.items:
        try:
            remotes[item.key] = await keep(batch, item)
        except EverholdError as error:
            raise partly(bool(remotes), error) from error
    return remotes


def make_text(item: Exchange | Note) -> str:
    """What is kept of an item; nothing of one that only takes something back."""
    if isinstance(item, Exchange):
        return told(item)
    return "" if item.action == "remove" else packed(item.text.strip())


def make_metadata(item: Exchange | Note) -> dict[str, Any]:
    """What is kept beside the text, so that `read_hit` and the audience check can use it."""
    about = {
        "everhold": item.key,
        "everhold_agent": item.agent,
        "everhold_session": item.session,
        "everhold_seq": (*item.heard, *item.said)[0].seq if isinstance(item, Exchange) else item.seq,
        "everhold_person": item.stamp.person,
        "everhold_parent": item.parent if isinstance(item, Exchange) else "",
        "everhold_fact": item.fact if isinstance(item, Note) else "",
        "everhold_tags": ",".join(item.tags),
    }
    return {name: value for name, value in about.items() if value not in ("", None)} | marks(item.stamp.audience)


def read_hit(text: str, about: Mapping[str, Any], *, person: str, score: float = 0.0, at: float = 0.0) -> Found:
    """Something a service found, with its metadata `about`. `person` is whose it is if the metadata do not say."""
    return Found(
        text=unpacked(text),
        score=score,
        session=str(about.get("everhold_session", "")),
        seq=int(about.get("everhold_seq") or 0),
        person=str(about.get("everhold_person", "")) or person,
        at=at,
        key=str(about.get("everhold", "")),
    )


def read_time(when: object) -> float:
    """A time as an SDK gives it, a datetime or ISO text, in seconds; 0 if there is none."""
    if isinstance(when, datetime):
        return when.timestamp()
    try:
        return datetime.fromisoformat(str(when)).timestamp() if when else 0.0
    except ValueError:
        return 0.0


async def check_health(ask: Awaitable[object]) -> Health:
    """Well if the service answers `ask`, otherwise what it failed with."""
    try:
        await ask
    except EverholdError as error:
        return Health(well=False, text=error.message)
    return Health(well=True)


async def search_for_tool(memory: MemoryProvider, text: str, context: ToolContext, *, limit: int) -> Result:
    """What a search tool answers: everything that those present may hear."""
    found = await memory.find(
        Query(
            text=text,
            agent=context.agent,
            session=context.session,
            name=context.session,
            audience=context.stamp.audience,
            person=context.stamp.person,
            limit=limit,
        )
    )
    return Result(text="\n\n".join(it.text for it in found) or "Nothing was found.")
