"""A provider that does everything right, with a far side that outlives it; and others, each wrong in one way."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from everhold.errors import Refused, Transient
from everhold.ports.memory import (
    Exchange,
    ForgetResult,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    MemoryScope,
    MemoryUtterance,
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
    """The service behind all cabinets of one check."""

    settings: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.items: list[StoredItem] = []
        self.is_down = False

    async def disconnect(self) -> None:
        self.is_down = True

    async def reconnect(self) -> None:
        self.is_down = False

    async def list_stored_texts(self) -> Sequence[str]:
        return [paper.text for paper in self.items]


class CorrectProvider:
    """Does everything right, and offers everything there is."""

    delivery = DeliveryGuarantee.KEYED
    capabilities = frozenset(MemoryCapability)

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        self.service = service
        self.agent = agent
        self.directory = directory

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        await asyncio.sleep(0)
        if self.service.is_down:
            raise Transient("nobody answers")
        for item in batch.items:
            self.store_item(item)
        await asyncio.sleep(0)
        return {item.key: f"paper-{item.key}" for item in batch.items}

    def store_item(self, item: MemoryItem) -> None:
        if isinstance(item, MemoryRetraction):
            self.service.items = [paper for paper in self.service.items if paper.key not in item.keys]
        elif not any(paper.key == item.key for paper in self.service.items):
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

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        await asyncio.sleep(0)
        if self.service.is_down:
            raise Transient("nobody answers")
        words = set(query.text.replace("?", "").split())
        return [
            MemoryHit(text=paper.text, session=paper.session, key=paper.key, person=paper.person)
            for paper in self.service.items
            if self.is_visible(paper, query) and words & set(paper.text.replace(":", "").split())
        ][: query.limit]

    def is_visible(self, paper: StoredItem, query: MemoryQuery) -> bool:
        return paper.agent == self.agent and set(query.audience) <= set(paper.audience)

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        there = {paper.key for paper in self.service.items}
        return [item.key for item in batch.items if item.key in there]

    def tools(self) -> Sequence[Tool]:
        return [ProviderTool()]

    def prompt(self) -> str:
        return "There is a cabinet."

    async def before_compress(self, scope: MemoryScope, view: Sequence[MemoryUtterance]) -> str:
        return view[0].text

    async def session_switched(self, switch: SessionSwitch) -> None: ...

    async def forget(self, person: str) -> ForgetResult:
        before = len(self.service.items)
        self.service.items = [paper for paper in self.service.items if paper.person != person]
        return ForgetResult(deleted=before - len(self.service.items))

    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        for paper in self.service.items:
            if paper.person == person:
                yield MemoryHit(text=paper.text)

    async def health(self) -> ProviderHealth:
        return ProviderHealth(well=True)

    async def close(self) -> None: ...

    def cache_busting_signature(self) -> dict[str, str] | None:
        return {"cabinet.drawers": "4"}


class ProviderTool:
    spec = ToolSpec(name="cabinet_open", description="opens it", parameters={"type": "object"})
    effect = ToolEffect.PURE
    deadline = 5.0

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text="it is open")

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


# -- right in other ways -----------------------------------------------------------------------------------------------


class ProbedProvider(CorrectProvider):
    """Takes the same thing twice, and can be asked what it has, a little later."""

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
    """Nobody can tell."""

    delivery = DeliveryGuarantee.BLIND
    capabilities = frozenset()

    def store_item(self, item: MemoryItem) -> None:
        assert not isinstance(item, MemoryRetraction)
        self.service.items.append(self.make_item(item))


# -- wrong, each in its own way ----------------------------------------------------------------------------------------


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


class PutsOnTop(CorrectProvider):
    """The newest first, as some lists have it."""

    def store_item(self, item: MemoryItem) -> None:
        super().store_item(item)
        if not isinstance(item, MemoryRetraction):
            self.service.items.insert(0, self.service.items.pop())


class KnowsAscii(CorrectProvider):
    def make_item(self, item: Exchange | MemoryNote) -> StoredItem:
        paper = super().make_item(item)
        return StoredItem(
            **{
                **{name: getattr(paper, name) for name in paper.__struct_fields__},
                "text": paper.text.encode("ascii", "replace").decode(),
            }
        )


class DropsWhatIsLong(CorrectProvider):
    def store_item(self, item: MemoryItem) -> None:
        if len(get_memory_text(item)) < 64_000:
            super().store_item(item)


class ShowsAll(CorrectProvider):
    def is_visible(self, paper: StoredItem, query: MemoryQuery) -> bool:
        return paper.agent == self.agent


class ShowsWhoeverWasThere(CorrectProvider):
    """One who is allowed is enough: the others in the room hear it, too."""

    def is_visible(self, paper: StoredItem, query: MemoryQuery) -> bool:
        return paper.agent == self.agent and bool(set(query.audience) & set(paper.audience))


class SharedByAgents(CorrectProvider):
    def is_visible(self, paper: StoredItem, query: MemoryQuery) -> bool:
        return set(query.audience) <= set(paper.audience)


class OneSessionAtATime(CorrectProvider):
    """Files under the session it was last told of."""

    session = ""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        self.session = batch.items[0].session
        await asyncio.sleep(0)
        return await super().store(batch)

    def make_item(self, item: Exchange | MemoryNote) -> StoredItem:
        paper = super().make_item(item)
        return StoredItem(
            **{**{name: getattr(paper, name) for name in paper.__struct_fields__}, "session": self.session}
        )


class ReadsThenWrites(CorrectProvider):
    """Whoever comes in between is written over."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        before = list(self.service.items)
        await asyncio.sleep(0)
        after = await super().store(batch)
        self.service.items = before + [
            self.make_item(item) for item in batch.items if not isinstance(item, MemoryRetraction)
        ]
        return after


class RefusesByTiming(CorrectProvider):
    """One at a time, the others are sent away."""

    busy = False

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        if self.busy:
            raise Refused("busy")
        self.busy = True
        try:
            return await super().store(batch)
        finally:
            self.busy = False


class OnlySaysItForgets(CorrectProvider):
    async def forget(self, person: str) -> ForgetResult:
        return ForgetResult(deleted=1)


class ForgetsEverybody(CorrectProvider):
    async def forget(self, person: str) -> ForgetResult:
        self.service.items.clear()
        return ForgetResult(deleted=1)


class ExportsNothing(CorrectProvider):
    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        for _ in ():
            yield MemoryHit(text="")


class ChangesSignature(CorrectProvider):
    count = itertools.count()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return {"cabinet.mood": str(next(self.count))}


class LooksItUp(CorrectProvider):
    def cache_busting_signature(self) -> dict[str, str] | None:
        file = self.directory / "settings"
        file.touch()
        return {"cabinet.settings": file.read_text()}


class ForgetsKeysSoon(CorrectProvider):
    """Recognises a repeat for ten seconds."""

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
    """Says it can be asked at once, and cannot."""

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
    """Locks its door, and does not unlock it when it is called away."""

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
    """Says it is stored when it is in a list, and writes the list now and then."""

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


class ClosesTooHard(CorrectProvider):
    """Throws away what it has not seen the receipt of."""

    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        self.new: set[str] = set()

    def store_item(self, item: MemoryItem) -> None:
        super().store_item(item)
        self.new.add(item.key)

    async def close(self) -> None:
        self.service.items = [paper for paper in self.service.items if paper.key not in self.new]


class ClosesOnce(CorrectProvider):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("it is closed")
        self.closed = True


class StartsAfresh(CorrectProvider):
    def __init__(self, service: ProviderService, agent: str, directory: Path) -> None:
        super().__init__(service, agent, directory)
        service.items = [paper for paper in service.items if paper.agent != agent]


class TakesAnOutageForANo(CorrectProvider):
    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        if self.service.is_down:
            raise Refused("no")
        return await super().store(batch)


class KeepsQuietAboutIt(CorrectProvider):
    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return [] if self.service.is_down else await super().find(query)


WRONG_PROVIDERS: Mapping[type[CorrectProvider], str] = {
    GivesStrangeReceipts: "basics",
    ForgetsNotes: "basics",
    StoresTwice: "duplicates",
    RetractsFirst: "order",
    PutsOnTop: "order",
    KnowsAscii: "unicode",
    DropsWhatIsLong: "large",
    ShowsAll: "people",
    ShowsWhoeverWasThere: "people",
    SharedByAgents: "agents",
    OneSessionAtATime: "sessions",
    ReadsThenWrites: "concurrent-notes",
    RefusesByTiming: "concurrent-notes",
    OnlySaysItForgets: "capabilities",
    ForgetsEverybody: "capabilities",
    ExportsNothing: "capabilities",
    ChangesSignature: "signature",
    LooksItUp: "signature",
    SeenTooLate: "lost-answer",
    ForgetsKeysSoon: "late-answer",
    KeepsOneOfABatch: "outage",
    StoresSlowly: "slowness",
    NeverFinds: "hanging",
    KeepsItsLock: "cancellation",
    OnlyTheNewest: "switch",
    ClosesTooHard: "close",
    ClosesOnce: "close",
    BuffersWrites: "restart",
    StartsAfresh: "kill",
    TakesAnOutageForANo: "far-side-outage",
    KeepsQuietAboutIt: "far-side-outage",
}
"""Who fails which check. Some fail others, too."""
