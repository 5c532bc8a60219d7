"""A correct provider with a fake remote service, and others that are each wrong in one way."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from everhold.errors import Refused, Transient
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    MemoryScope,
    MemoryUtterance,
    ProviderDeletion,
    ProviderHealth,
    SessionSwitch,
)
from everhold.ports.model import ToolSpec
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult
from everhold.testing.fakes import get_memory_text


class StoredItem(Struct, frozen=True, kw_only=True):
    key: str
    agent: str
    audience: tuple[str, ...]
    person: str
    session: str
    text: str


class ProviderService:
    """The remote service of all providers in one check."""

    settings: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.items: list[StoredItem] = []
        self.is_down = False

    async def disconnect(self) -> None:
        self.is_down = True

    async def reconnect(self) -> None:
        self.is_down = False

    async def list_stored_texts(self) -> Sequence[str]:
        return [stored.text for stored in self.items]


class CorrectProvider:
    """A correct provider with all capabilities."""

    delivery = DeliveryGuarantee.KEYED
    capabilities = frozenset(MemoryCapability) - {MemoryCapability.RENEW_SESSION}

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        self.service = service
        self.agent = agent
        self.directory = directory

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        await asyncio.sleep(0)
        if self.service.is_down:
            raise Transient("no answer")
        for item in batch.items:
            self.store_item(item)
        await asyncio.sleep(0)
        return {item.key: f"item-{item.key}" for item in batch.items}

    def store_item(self, item: MemoryItem) -> None:
        if isinstance(item, MemoryRetraction):
            self.service.items = [stored for stored in self.service.items if stored.key not in item.keys]
        elif not any(stored.key == item.key for stored in self.service.items):
            self.service.items.append(self.make_item(item))

    def make_item(self, item: Exchange | MemoryNote) -> StoredItem:
        stamp = item.stamp
        return StoredItem(
            key=item.key,
            agent=self.agent,
            audience=stamp.audience,
            person=stamp.person,
            session=item.session,
            text=get_memory_text(item),
        )

    def set_persona(self, persona: str) -> None: ...

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        await asyncio.sleep(0)
        if self.service.is_down:
            raise Transient("no answer")
        words = set(query.text.replace("?", "").split())
        return [
            MemoryHit(text=stored.text, session=stored.session, key=stored.key, person=stored.person)
            for stored in self.service.items
            if self.is_visible(stored, query) and words & set(stored.text.replace(":", "").split())
        ][: query.limit]

    def is_visible(self, stored: StoredItem, query: MemoryQuery) -> bool:
        return stored.agent == self.agent and set(query.audience) <= set(stored.audience)

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        there = {stored.key for stored in self.service.items}
        return [item.key for item in batch.items if item.key in there]

    def tools(self) -> Sequence[Tool]:
        return [ProviderTool()]

    def prompt(self) -> str:
        return "There is a provider."

    async def before_compress(self, scope: MemoryScope, view: Sequence[MemoryUtterance]) -> str:
        return view[0].text

    async def session_switched(self, switch: SessionSwitch) -> None: ...

    async def remove(self, batch: MemoryBatch) -> Sequence[str]:
        keys = {item.key for item in batch.items}
        self.service.items = [stored for stored in self.service.items if stored.key not in keys]
        return ()

    async def remove_session(self, name: str) -> str:
        return ""

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        people = target.identities
        self.service.items = [stored for stored in self.service.items if stored.person not in people]
        return [ProviderDeletion(id=person, what="what they said") for person in people]

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        left = {stored.person for stored in self.service.items}
        return {it.id: ErasureState.ASKED if it.id in left else ErasureState.CONFIRMED for it in deletions}

    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        for stored in self.service.items:
            if stored.person == person:
                yield MemoryHit(text=stored.text)

    async def health(self) -> ProviderHealth:
        return ProviderHealth(healthy=True)

    async def close(self) -> None: ...

    def cache_busting_signature(self) -> dict[str, str] | None:
        return {"provider.drawers": "4"}


class ProviderTool:
    spec = ToolSpec(name="provider_open", description="opens it", parameters={"type": "object"})
    effect = ToolEffect.PURE
    deadline = 5.0

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text="it is open")

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


# -- other correct providers -------------------------------------------------------------------------------------------


class ProbedProvider(CorrectProvider):
    """Stores a repeated item twice, and can be probed after a short delay."""

    delivery = DeliveryGuarantee.PROBE
    visible_after = 3.0

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        self.seen: dict[str, float] = service.__dict__.setdefault("seen", {})

    def store_item(self, item: MemoryItem) -> None:
        if isinstance(item, MemoryRetraction):
            super().store_item(item)
            return
        self.seen.setdefault(item.key, asyncio.get_running_loop().time())
        self.service.items.append(self.make_item(item))

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        now = asyncio.get_running_loop().time()
        return [it.key for it in batch.items if self.seen.get(it.key, now) <= now - self.visible_after]


class BlindProvider(CorrectProvider):
    """Stores a repeated item twice, and cannot be probed."""

    delivery = DeliveryGuarantee.BLIND
    capabilities = frozenset()

    def store_item(self, item: MemoryItem) -> None:
        assert not isinstance(item, MemoryRetraction)
        self.service.items.append(self.make_item(item))


class DerivingProvider(CorrectProvider):
    """Its service derives facts from what was said, and shows them beside it, some time later. It also needs this time
    until it finds a long text.
    """

    derive_seconds = 5.0

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        self.stored_at: dict[str, float] = service.__dict__.setdefault("stored_at", {})

    def store_item(self, item: MemoryItem) -> None:
        super().store_item(item)
        self.stored_at.setdefault(item.key, asyncio.get_running_loop().time())

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        before = asyncio.get_running_loop().time() - self.derive_seconds
        found = await super().find(query)
        derived = [MemoryHit(text=f"It is known: {it.text}") for it in found if self.stored_at[it.key] <= before]
        shown = [it for it in found if len(it.text) < 10_000 or self.stored_at[it.key] <= before]
        return [*derived, *shown][: query.limit]


# -- wrong providers ---------------------------------------------------------------------------------------------------


class GivesStrangeReceipts(CorrectProvider):
    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        return {**await super().store(batch), "something": "else"}


class ForgetsNotes(CorrectProvider):
    def store_item(self, item: MemoryItem) -> None:
        if not isinstance(item, MemoryNote):
            super().store_item(item)


class StoresTwice(CorrectProvider):
    def store_item(self, item: MemoryItem) -> None:
        if isinstance(item, MemoryRetraction):
            super().store_item(item)
        else:
            self.service.items.append(self.make_item(item))


class RetractsFirst(CorrectProvider):
    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        items = sorted(batch.items, key=lambda item: not isinstance(item, MemoryRetraction))
        return await super().store(MemoryBatch(name=batch.name, items=tuple(items)))


class StoresNewestFirst(CorrectProvider):
    """Stores the newest item first."""

    def store_item(self, item: MemoryItem) -> None:
        super().store_item(item)
        if not isinstance(item, MemoryRetraction):
            self.service.items.insert(0, self.service.items.pop())


class StoresOnlyAscii(CorrectProvider):
    def make_item(self, item: Exchange | MemoryNote) -> StoredItem:
        stored = super().make_item(item)
        return StoredItem(
            **{
                **{name: getattr(stored, name) for name in stored.__struct_fields__},
                "text": stored.text.encode("ascii", "replace").decode(),
            }
        )


class DropsLongItems(CorrectProvider):
    def store_item(self, item: MemoryItem) -> None:
        if len(get_memory_text(item)) < 64_000:
            super().store_item(item)


class ShowsAll(CorrectProvider):
    def is_visible(self, stored: StoredItem, query: MemoryQuery) -> bool:
        return stored.agent == self.agent


class ShowsPartOfTheAudience(CorrectProvider):
    """Shows an item if only one member of the audience may see it."""

    def is_visible(self, stored: StoredItem, query: MemoryQuery) -> bool:
        return stored.agent == self.agent and bool(set(query.audience) & set(stored.audience))


class SharedByAgents(CorrectProvider):
    def is_visible(self, stored: StoredItem, query: MemoryQuery) -> bool:
        return set(query.audience) <= set(stored.audience)


class OneSessionAtATime(CorrectProvider):
    """Stores items under the session of the last call."""

    session = ""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        self.session = batch.items[0].session
        await asyncio.sleep(0)
        return await super().store(batch)

    def make_item(self, item: Exchange | MemoryNote) -> StoredItem:
        stored = super().make_item(item)
        return StoredItem(
            **{**{name: getattr(stored, name) for name in stored.__struct_fields__}, "session": self.session}
        )


class ReadsThenWrites(CorrectProvider):
    """Overwrites what another call stores at the same time."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        before = list(self.service.items)
        await asyncio.sleep(0)
        after = await super().store(batch)
        self.service.items = before + [
            self.make_item(item) for item in batch.items if not isinstance(item, MemoryRetraction)
        ]
        return after


class RefusesByTiming(CorrectProvider):
    """Refuses a call while another one runs."""

    busy = False

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        if self.busy:
            raise Refused("busy")
        self.busy = True
        try:
            return await super().store(batch)
        finally:
            self.busy = False


class OnlyClaimsToForget(CorrectProvider):
    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        return [ProviderDeletion(id="all", what="everything")]

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        return {it.id: ErasureState.CONFIRMED for it in deletions}


class ForgetsAllPeople(CorrectProvider):
    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        self.service.items.clear()
        return [ProviderDeletion(id="all", what="everything")]

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        return {it.id: ErasureState.CONFIRMED for it in deletions}


class ExportsNothing(CorrectProvider):
    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        for _ in ():
            yield MemoryHit(text="")


class ChangesSignature(CorrectProvider):
    count = itertools.count()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return {"provider.mood": str(next(self.count))}


class ReadsAFileForItsSignature(CorrectProvider):
    def cache_busting_signature(self) -> dict[str, str] | None:
        file = self.directory / "settings"
        file.touch()
        return {"provider.settings": file.read_text()}


class ForgetsKeysSoon(CorrectProvider):
    """Recognises a repeat only for ten seconds."""

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        self.known: dict[str, float] = service.__dict__.setdefault("known", {})

    def store_item(self, item: MemoryItem) -> None:
        if isinstance(item, MemoryRetraction):
            super().store_item(item)
            return
        now = asyncio.get_running_loop().time()
        if now - self.known.get(item.key, -1_000.0) > 10:
            self.service.items.append(self.make_item(item))
        self.known[item.key] = now


class SeenTooLate(ProbedProvider):
    """Declares that a probe works at once, but it does not."""

    visible_after = 0.0

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        now = asyncio.get_running_loop().time()
        return [item.key for item in batch.items if self.seen.get(item.key, now) <= now - 60]


class KeepsOneOfABatch(CorrectProvider):
    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        return await super().store(MemoryBatch(name=batch.name, items=batch.items[:1]))


class StoresSlowly(CorrectProvider):
    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        await asyncio.sleep(20)
        return await super().store(batch)


class NeverFinds(CorrectProvider):
    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        await asyncio.get_running_loop().create_future()
        return []


class KeepsItsLock(CorrectProvider):
    """Does not release its lock when a call is cancelled."""

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        self.lock = asyncio.Lock()

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        await self.lock.acquire()
        kept = await super().store(batch)
        self.lock.release()
        return kept


class OnlyTheNewest(CorrectProvider):
    """A new object makes the old one's calls invalid."""

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        service.__dict__.setdefault("current", {})[agent] = self

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        if self.service.__dict__["current"][self.agent] is not self:
            raise Refused("another client has taken over")
        return await super().store(batch)


class BuffersWrites(CorrectProvider):
    """Confirms items when they are in a buffer, and stores the buffer later."""

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        self.buffer: list[MemoryItem] = []

    def store_item(self, item: MemoryItem) -> None:
        self.buffer.append(item)
        if len(self.buffer) >= 10:
            self.flush()

    def flush(self) -> None:
        for item in self.buffer:
            super().store_item(item)
        self.buffer.clear()

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        self.flush()
        return await super().find(query)


class DeletesItemsOnClose(CorrectProvider):
    """Deletes the items that this object has stored."""

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        self.new: set[str] = set()

    def store_item(self, item: MemoryItem) -> None:
        super().store_item(item)
        self.new.add(item.key)

    async def close(self) -> None:
        self.service.items = [stored for stored in self.service.items if stored.key not in self.new]


class ClosesOnce(CorrectProvider):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("it is closed")
        self.closed = True


class DropsItemsOnStart(CorrectProvider):
    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        service.items = [stored for stored in service.items if stored.agent != agent]


class RefusesDuringAnOutage(CorrectProvider):
    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        if self.service.is_down:
            raise Refused("no")
        return await super().store(batch)


class HidesAnOutage(CorrectProvider):
    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return [] if self.service.is_down else await super().find(query)


class ShowsAllInAPrompt(CorrectProvider):
    def prompt(self) -> str:
        return "\n".join(stored.text for stored in self.service.items)


class ShowsAllInATool(CorrectProvider):
    def tools(self) -> Sequence[Tool]:
        return [ShowingTool(self.service)]


class ShowingTool(ProviderTool):
    def __init__(self, service: ProviderService) -> None:
        self.service = service

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text="\n".join(stored.text for stored in self.service.items))


class ShowsAllInHitsOfATool(CorrectProvider):
    def tools(self) -> Sequence[Tool]:
        return [HitsTool(self.service)]


class HitsTool(ShowingTool):
    """Its hits are shown by the gateway, below its text."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text="", hits=tuple(MemoryHit(text=stored.text) for stored in self.service.items))


class ExportsAll(CorrectProvider):
    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        for stored in self.service.items:
            yield MemoryHit(text=stored.text)


class ServesOnePerson(CorrectProvider):
    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        people = {item.person for item in self.service.items}
        if any(people - {item.stamp.person} for item in batch.items if not isinstance(item, MemoryRetraction)):
            raise Refused("it serves only the owner")
        return await super().store(batch)


WRONG_PROVIDERS: Mapping[type[CorrectProvider], str] = {
    GivesStrangeReceipts: "basics",
    ForgetsNotes: "basics",
    StoresTwice: "duplicates",
    RetractsFirst: "order",
    StoresNewestFirst: "order",
    StoresOnlyAscii: "unicode",
    DropsLongItems: "large",
    ShowsAll: "people",
    ShowsPartOfTheAudience: "people",
    ShowsAllInAPrompt: "canary",
    ShowsAllInATool: "canary",
    ShowsAllInHitsOfATool: "canary",
    ExportsAll: "canary",
    ServesOnePerson: "canary",
    SharedByAgents: "agents",
    OneSessionAtATime: "sessions",
    ReadsThenWrites: "concurrent-notes",
    RefusesByTiming: "concurrent-notes",
    OnlyClaimsToForget: "capabilities",
    ForgetsAllPeople: "capabilities",
    ExportsNothing: "capabilities",
    ChangesSignature: "signature",
    ReadsAFileForItsSignature: "signature",
    SeenTooLate: "lost-answer",
    ForgetsKeysSoon: "late-answer",
    KeepsOneOfABatch: "outage",
    StoresSlowly: "slowness",
    NeverFinds: "hanging",
    KeepsItsLock: "cancellation",
    OnlyTheNewest: "switch",
    DeletesItemsOnClose: "close",
    ClosesOnce: "close",
    BuffersWrites: "restart",
    DropsItemsOnStart: "kill",
    RefusesDuringAnOutage: "service-outage",
    HidesAnOutage: "service-outage",
}
"""The check that each provider fails. Some fail others, too."""
