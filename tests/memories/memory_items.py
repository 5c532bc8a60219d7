"""What lanes hand to memories, as tests make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from everhold.core.entries import ChatLocation, Stamp
from everhold.errors import InDoubt, Transient
from everhold.ports.memory import (
    Exchange,
    MemoryBatch,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    MemoryUtterance,
)
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import ToolContext
from everhold.testing.gateway import RecordingLogger

AT = 1_760_000_000.0


class WallClock:
    def now(self) -> float:
        return AT

    def monotonic(self) -> float:
        return 0.0


def make_context(directory: Any, *, agent: str = "main", instance: str = "memory") -> PluginContext:
    return PluginContext(agent=agent, instance=instance, directory=directory, log=RecordingLogger(), clock=WallClock())


def make_stamp(who: str = "ada", group: str = "") -> Stamp:
    return Stamp(person=who, audience=(f"chat:{group}",) if group else (f"person:{who}",))


def make_exchange(
    op: int, heard: str = "", said: str = "", *, who: str = "ada", group: str = "", session: str = "s1", **more: Any
) -> Exchange:
    """A turn: somebody said something, the agent answered."""
    theirs = make_stamp(who, group)
    return Exchange(
        key=f"{session}:{op}",
        session=session,
        agent=more.pop("agent", "main"),
        op=op,
        heard=(MemoryUtterance(author=f"person:{who}", text=heard, at=AT + op, stamp=theirs, seq=op - 1),)
        if heard
        else (),
        said=(MemoryUtterance(author="agent:main", text=said, at=AT + op + 0.5, stamp=theirs, seq=op + 2),)
        if said
        else (),
        at=AT + op + 0.5,
        stamp=theirs,
        **more,
    )


def make_note(
    seq: int, text: str, *, who: str = "ada", group: str = "", session: str = "s1", **more: Any
) -> MemoryNote:
    return MemoryNote(
        key=f"{session}:{seq}:note",
        session=session,
        agent=more.pop("agent", "main"),
        seq=seq,
        text=text,
        author="agent:main",
        at=AT + seq,
        stamp=make_stamp(who, group),
        **more,
    )


def make_retraction(seq: int, *ops: int, session: str = "s1") -> MemoryRetraction:
    return MemoryRetraction(
        key=f"{session}:{seq}:retract", session=session, agent="main", keys=tuple(f"{session}:{op}" for op in ops)
    )


def make_batch(
    *items: MemoryItem, name: str = "agent-main-fake-dm-1", replaced: dict[str, str] | None = None
) -> MemoryBatch:
    heard_by: dict[str, tuple[str, ...]] = {
        key: ("person:ada",) for item in items if isinstance(item, MemoryRetraction) for key in item.keys
    }
    return MemoryBatch(name=name, items=items, replaced=replaced or {}, heard_by=heard_by)


def make_query(
    text: str, *, who: str = "ada", group: str = "", name: str = "agent-main-fake-dm-1", **more: Any
) -> MemoryQuery:
    theirs = make_stamp(who, group)
    return MemoryQuery(
        text=text,
        agent=more.pop("agent", "main"),
        session=more.pop("session", "s1"),
        name=name,
        audience=theirs.audience,
        person=who,
        **more,
    )


class DeliverableMemory(Protocol):
    """What a lane needs of a provider."""

    delivery: DeliveryGuarantee

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]: ...

    async def probe(self, batch: MemoryBatch) -> Sequence[str]: ...


async def deliver(memory: DeliverableMemory, what: MemoryBatch, *, tries: int = 8) -> int:
    """As a lane would, without its waits: what is in doubt is sent again where that is safe, else asked about, and
    only what is missing goes again. How often it was sent."""
    for sent in range(1, tries + 1):
        try:
            await memory.store(what)
        except Transient:
            continue
        except InDoubt:
            if memory.delivery is not DeliveryGuarantee.PROBE:
                continue
            there = set(await memory.probe(what))
            rest = tuple(item for item in what.items if item.key not in there)
            if not rest:
                return sent
            what = make_batch(*rest, name=what.name, replaced=what.replaced)
            continue
        return sent
    raise AssertionError("never delivered")


def make_tool_context(who: str = "ada", group: str = "", *, session: str = "s1", agent: str = "main") -> ToolContext:
    return ToolContext(
        session=session,
        agent=agent,
        op=1,
        key="k",
        stamp=make_stamp(who, group),
        origin=ChatLocation(platform="fake", chat="1"),
    )
