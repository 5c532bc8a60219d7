"""Batches for memories, as the delivery worker makes them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct, structs

from everhold.core.entries import ChatLocation, Stamp
from everhold.core.people import AudienceMember, PresentAudience
from everhold.errors import InDoubt, Transient
from everhold.memories.factory import MemoryFactory
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    Exchange,
    MemoryBatch,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    MemoryUtterance,
    ProviderDeletion,
)
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import ToolContext, ToolResult
from everhold.testing.conformance import CHECKS, ProviderScenario, failures
from everhold.testing.conformance.run import CheckOutcome, run_check
from everhold.testing.conformance.scenario import MakeProvider
from everhold.testing.gateway import RecordingLogger

AT = 1_760_000_000.0


class ClosingMemory(Protocol):
    async def close(self) -> None: ...


P = TypeVar("P", bound=ClosingMemory)


class WallClock:
    def now(self) -> float:
        return AT

    def monotonic(self) -> float:
        return 0.0


def make_context(directory: Any, *, agent: str = "main", instance: str = "memory") -> PluginContext:
    return PluginContext(agent=agent, instance=instance, directory=directory, log=RecordingLogger(), clock=WallClock())


@contextlib.asynccontextmanager
async def open_memories(factory: MemoryFactory[P], directory: Path, **usual: Any) -> AsyncIterator[Callable[..., P]]:
    """A function that makes memories with these settings and its own. They are closed at the end."""
    made: list[P] = []

    def make(*, agent: str = "main", **settings: Any) -> P:
        given = factory.Settings.model_validate({**usual, **settings})
        made.append(factory(given, make_context(directory, agent=agent)))
        return made[-1]

    yield make
    for memory in made:
        await memory.close()


def make_stamp(who: str = "ada", group: str = "") -> Stamp:
    return Stamp(person=who, audience=(f"chat:{group}",) if group else (f"person:{who}",))


def make_exchange(
    op: int, heard: str = "", said: str = "", *, who: str = "ada", group: str = "", session: str = "s1", **more: Any
) -> Exchange:
    """A turn: a person wrote and the agent answered."""
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


def make_linked_present(other: str, since: float, *, who: str = "ada") -> PresentAudience:
    """Return a person who is alone, and whom another identity means from a time on."""
    members = (AudienceMember(f"person:{who}"), AudienceMember(f"person:{other}", since))
    return PresentAudience((f"person:{who}",), (members,))


class DeliverableMemory(Protocol):
    """What the delivery worker needs of a provider."""

    delivery: DeliveryGuarantee

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]: ...

    async def probe(self, batch: MemoryBatch) -> Sequence[str]: ...


async def deliver(memory: DeliverableMemory, what: MemoryBatch, *, tries: int = 8) -> int:
    """Deliver as the delivery worker does, without its delays: repeat an attempt in doubt if that is safe, else probe
    and send what is missing. Return the number of attempts.
    """
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


class Forgetting(Struct, frozen=True):
    """What a provider did when it was asked to forget somebody."""

    deletions: list[ProviderDeletion]

    @property
    def deleted(self) -> int:
        return sum(it.count for it in self.deletions if it.state is ErasureState.ASKED and not it.hidden)

    @property
    def kept(self) -> list[str]:
        """What remains and can be read there."""
        return [f"{it.what}: {it.reason}" for it in self.deletions if it.state is ErasureState.CANNOT and not it.hidden]


async def forget(
    memory: Any, *identities: str, keys: Sequence[str] = (), groups: Sequence[str] = (), rebuild: bool = False
) -> Forgetting:
    """Ask a provider as the gateway does: once, and again when its sessions were left."""
    audiences = (*((f"person:{it}",) for it in identities), *((f"chat:{it}",) for it in groups))
    target = ErasureTarget(identities=identities, keys=tuple(keys), audiences=audiences, rebuild=rebuild)
    found = list(await memory.forget(target))
    moved = {it.session: f"{it.session}-2" for it in found if it.state is ErasureState.PLANNED}
    if moved:
        again = await memory.forget(structs.replace(target, moved_sessions=moved))
        found = list(({it.id: it for it in found} | {it.id: it for it in again}).values())
    return Forgetting(found)


async def confirm(memory: Any, forgetting: Forgetting) -> list[str]:
    """Return the states after reading back."""
    asked = [it for it in forgetting.deletions if it.state in (ErasureState.ASKED, ErasureState.UNCONFIRMED)]
    states = await memory.confirm_deletions(asked)
    return [str(states[it.id]) for it in asked]


def read_tool(result: ToolResult) -> str:
    """Return everything that a tool found, before the gateway judges it."""
    return "\n".join([result.text, *(f"[{it.remote_id or it.person}] {it.text}" for it in result.hits)])


async def run_real_check(check: str, path: Path, make: MakeProvider) -> CheckOutcome:
    """Run a check of the conformance suite with a real service, however busy the machine is."""
    # the checks of failures wait for the deadline or longer
    seconds = 60.0 if CHECKS[check].__module__ == failures.__name__ else 300.0
    return await run_check(check, ProviderScenario(path, make, seconds=seconds, patience=300.0), most=3_000.0)
