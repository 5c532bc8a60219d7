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
    Batch,
    Capability,
    Exchange,
    Forgotten,
    Found,
    Health,
    Memory,
    Note,
    Query,
    Retraction,
    Scope,
    Switch,
    Utterance,
)
from everhold.ports.model import ToolSpec
from everhold.ports.platform import Delivery
from everhold.ports.tool import Effect, Result, Tool, ToolContext
from everhold.testing.fakes import wording


class Paper(Struct, frozen=True, kw_only=True):
    key: str
    agent: str
    audience: tuple[str, ...]
    person: str
    session: str
    text: str


class Far:
    """The service behind all cabinets of one check."""

    settings: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.papers: list[Paper] = []
        self.away = False

    async def down(self) -> None:
        self.away = True

    async def up(self) -> None:
        self.away = False

    async def kept(self) -> Sequence[str]:
        return [paper.text for paper in self.papers]


class Cabinet:
    """Does everything right, and offers everything there is."""

    delivery = Delivery.KEYED
    capabilities = frozenset(Capability)

    def __init__(self, far: Far, agent: str, directory: Path) -> None:
        self.far = far
        self.agent = agent
        self.directory = directory

    async def store(self, batch: Batch) -> Mapping[str, str]:
        await asyncio.sleep(0)
        if self.far.away:
            raise Transient("nobody answers")
        for item in batch.items:
            self.take(item)
        await asyncio.sleep(0)
        return {item.key: f"paper-{item.key}" for item in batch.items}

    def take(self, item: Memory) -> None:
        if isinstance(item, Retraction):
            self.far.papers = [paper for paper in self.far.papers if paper.key not in item.keys]
        elif not any(paper.key == item.key for paper in self.far.papers):
            self.far.papers.append(self.paper(item))

    def paper(self, item: Exchange | Note) -> Paper:
        stamp = item.stamp
        return Paper(
            key=item.key,
            agent=self.agent,
            audience=stamp.audience,
            person=stamp.person,
            session=item.session,
            text=wording(item),
        )

    async def find(self, query: Query) -> Sequence[Found]:
        await asyncio.sleep(0)
        if self.far.away:
            raise Transient("nobody answers")
        words = set(query.text.replace("?", "").split())
        return [
            Found(text=paper.text, session=paper.session, key=paper.key, person=paper.person)
            for paper in self.far.papers
            if self.may_see(paper, query) and words & set(paper.text.replace(":", "").split())
        ][: query.limit]

    def may_see(self, paper: Paper, query: Query) -> bool:
        return paper.agent == self.agent and set(query.audience) <= set(paper.audience)

    async def probe(self, batch: Batch) -> Sequence[str]:
        there = {paper.key for paper in self.far.papers}
        return [item.key for item in batch.items if item.key in there]

    def tools(self) -> Sequence[Tool]:
        return [Drawer()]

    def prompt(self) -> str:
        return "There is a cabinet."

    async def before_compress(self, scope: Scope, view: Sequence[Utterance]) -> str:
        return view[0].text

    async def session_switched(self, switch: Switch) -> None: ...

    async def forget(self, person: str) -> Forgotten:
        before = len(self.far.papers)
        self.far.papers = [paper for paper in self.far.papers if paper.person != person]
        return Forgotten(deleted=before - len(self.far.papers))

    async def export(self, person: str) -> AsyncIterator[Found]:
        for paper in self.far.papers:
            if paper.person == person:
                yield Found(text=paper.text)

    async def health(self) -> Health:
        return Health(well=True)

    async def close(self) -> None: ...

    def cache_busting_signature(self) -> dict[str, str] | None:
        return {"cabinet.drawers": "4"}


class Drawer:
    spec = ToolSpec(name="cabinet_open", description="opens it", parameters={"type": "object"})
    effect = Effect.PURE
    deadline = 5.0

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        return Result(text="it is open")

    async def probe(self, context: ToolContext) -> Result | None:
        return None


# -- right in other ways -----------------------------------------------------------------------------------------------


class Asked(Cabinet):
    """Takes the same thing twice, and can be asked what it has, a little later."""

    delivery = Delivery.PROBE
    visible_after = 3.0

    def __init__(self, far: Far, agent: str, directory: Path) -> None:
        super().__init__(far, agent, directory)
        self.seen: dict[str, float] = far.__dict__.setdefault("seen", {})

    def take(self, item: Memory) -> None:
        if isinstance(item, Retraction):
            super().take(item)
            return
        self.seen.setdefault(item.key, asyncio.get_running_loop().time())
        self.far.papers.append(self.paper(item))

    async def probe(self, batch: Batch) -> Sequence[str]:
        now = asyncio.get_running_loop().time()
        return [it.key for it in batch.items if self.seen.get(it.key, now) <= now - self.visible_after]


class Blind(Cabinet):
    """Nobody can tell."""

    delivery = Delivery.BLIND
    capabilities = frozenset()

    def take(self, item: Memory) -> None:
        assert not isinstance(item, Retraction)
        self.far.papers.append(self.paper(item))


# -- wrong, each in its own way ----------------------------------------------------------------------------------------


class GivesStrangeReceipts(Cabinet):
    async def store(self, batch: Batch) -> Mapping[str, str]:
        return {**await super().store(batch), "something": "else"}


class ForgetsNotes(Cabinet):
    def take(self, item: Memory) -> None:
        if not isinstance(item, Note):
            super().take(item)


class Doubles(Cabinet):
    def take(self, item: Memory) -> None:
        if isinstance(item, Retraction):
            super().take(item)
        else:
            self.far.papers.append(self.paper(item))


class RetractsFirst(Cabinet):
    async def store(self, batch: Batch) -> Mapping[str, str]:
        items = sorted(batch.items, key=lambda item: not isinstance(item, Retraction))
        return await super().store(Batch(name=batch.name, items=tuple(items)))


class PutsOnTop(Cabinet):
    """The newest first, as some lists have it."""

    def take(self, item: Memory) -> None:
        super().take(item)
        if not isinstance(item, Retraction):
            self.far.papers.insert(0, self.far.papers.pop())


class KnowsAscii(Cabinet):
    def paper(self, item: Exchange | Note) -> Paper:
        paper = super().paper(item)
        return Paper(
            **{
                **{name: getattr(paper, name) for name in paper.__struct_fields__},
                "text": paper.text.encode("ascii", "replace").decode(),
            }
        )


class DropsWhatIsLong(Cabinet):
    def take(self, item: Memory) -> None:
        if len(wording(item)) < 64_000:
            super().take(item)


class ShowsAll(Cabinet):
    def may_see(self, paper: Paper, query: Query) -> bool:
        return paper.agent == self.agent


class ShowsWhoeverWasThere(Cabinet):
    """One who is allowed is enough: the others in the room hear it, too."""

    def may_see(self, paper: Paper, query: Query) -> bool:
        return paper.agent == self.agent and bool(set(query.audience) & set(paper.audience))


class SharedByAgents(Cabinet):
    def may_see(self, paper: Paper, query: Query) -> bool:
        return set(query.audience) <= set(paper.audience)


class OneSessionAtATime(Cabinet):
    """Files under the session it was last told of."""

    session = ""

    async def store(self, batch: Batch) -> Mapping[str, str]:
        self.session = batch.items[0].session
        await asyncio.sleep(0)
        return await super().store(batch)

    def paper(self, item: Exchange | Note) -> Paper:
        paper = super().paper(item)
        return Paper(**{**{name: getattr(paper, name) for name in paper.__struct_fields__}, "session": self.session})


class ReadsThenWrites(Cabinet):
    """Whoever comes in between is written over."""

    async def store(self, batch: Batch) -> Mapping[str, str]:
        before = list(self.far.papers)
        await asyncio.sleep(0)
        after = await super().store(batch)
        self.far.papers = before + [self.paper(item) for item in batch.items if not isinstance(item, Retraction)]
        return after


class RefusesByTiming(Cabinet):
    """One at a time, the others are sent away."""

    busy = False

    async def store(self, batch: Batch) -> Mapping[str, str]:
        if self.busy:
            raise Refused("busy")
        self.busy = True
        try:
            return await super().store(batch)
        finally:
            self.busy = False


class OnlySaysItForgets(Cabinet):
    async def forget(self, person: str) -> Forgotten:
        return Forgotten(deleted=1)


class ForgetsEverybody(Cabinet):
    async def forget(self, person: str) -> Forgotten:
        self.far.papers.clear()
        return Forgotten(deleted=1)


class ExportsNothing(Cabinet):
    async def export(self, person: str) -> AsyncIterator[Found]:
        for _ in ():
            yield Found(text="")


class Moody(Cabinet):
    count = itertools.count()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return {"cabinet.mood": str(next(self.count))}


class LooksItUp(Cabinet):
    def cache_busting_signature(self) -> dict[str, str] | None:
        file = self.directory / "settings"
        file.touch()
        return {"cabinet.settings": file.read_text()}


class ForgetsKeysSoon(Cabinet):
    """Recognises a repeat for ten seconds."""

    def __init__(self, far: Far, agent: str, directory: Path) -> None:
        super().__init__(far, agent, directory)
        self.known: dict[str, float] = far.__dict__.setdefault("known", {})

    def take(self, item: Memory) -> None:
        if isinstance(item, Retraction):
            super().take(item)
            return
        now = asyncio.get_running_loop().time()
        if now - self.known.get(item.key, -1_000.0) > 10:
            self.far.papers.append(self.paper(item))
        self.known[item.key] = now


class SeenTooLate(Asked):
    """Says it can be asked at once, and cannot."""

    visible_after = 0.0

    async def probe(self, batch: Batch) -> Sequence[str]:
        now = asyncio.get_running_loop().time()
        return [item.key for item in batch.items if self.seen.get(item.key, now) <= now - 60]


class KeepsOneOfABatch(Cabinet):
    async def store(self, batch: Batch) -> Mapping[str, str]:
        return await super().store(Batch(name=batch.name, items=batch.items[:1]))


class Sluggish(Cabinet):
    async def store(self, batch: Batch) -> Mapping[str, str]:
        await asyncio.sleep(20)
        return await super().store(batch)


class NeverFinds(Cabinet):
    async def find(self, query: Query) -> Sequence[Found]:
        await asyncio.get_running_loop().create_future()
        return []


class KeepsTheKey(Cabinet):
    """Locks its door, and does not unlock it when it is called away."""

    def __init__(self, far: Far, agent: str, directory: Path) -> None:
        super().__init__(far, agent, directory)
        self.door = asyncio.Lock()

    async def store(self, batch: Batch) -> Mapping[str, str]:
        await self.door.acquire()
        kept = await super().store(batch)
        self.door.release()
        return kept


class OnlyTheNewest(Cabinet):
    """A new object makes the old one's calls invalid."""

    def __init__(self, far: Far, agent: str, directory: Path) -> None:
        super().__init__(far, agent, directory)
        far.__dict__.setdefault("current", {})[agent] = self

    async def store(self, batch: Batch) -> Mapping[str, str]:
        if self.far.__dict__["current"][self.agent] is not self:
            raise Refused("another client has taken over")
        return await super().store(batch)


class Buffers(Cabinet):
    """Says it is stored when it is in a list, and writes the list now and then."""

    def __init__(self, far: Far, agent: str, directory: Path) -> None:
        super().__init__(far, agent, directory)
        self.buffer: list[Memory] = []

    def take(self, item: Memory) -> None:
        self.buffer.append(item)
        if len(self.buffer) >= 10:
            self.flush()

    def flush(self) -> None:
        for item in self.buffer:
            super().take(item)
        self.buffer.clear()

    async def find(self, query: Query) -> Sequence[Found]:
        self.flush()
        return await super().find(query)


class ClosesTooHard(Cabinet):
    """Throws away what it has not seen the receipt of."""

    def __init__(self, far: Far, agent: str, directory: Path) -> None:
        super().__init__(far, agent, directory)
        self.new: set[str] = set()

    def take(self, item: Memory) -> None:
        super().take(item)
        self.new.add(item.key)

    async def close(self) -> None:
        self.far.papers = [paper for paper in self.far.papers if paper.key not in self.new]


class ClosesOnce(Cabinet):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("it is closed")
        self.closed = True


class StartsAfresh(Cabinet):
    def __init__(self, far: Far, agent: str, directory: Path) -> None:
        super().__init__(far, agent, directory)
        far.papers = [paper for paper in far.papers if paper.agent != agent]


class TakesAnOutageForANo(Cabinet):
    async def store(self, batch: Batch) -> Mapping[str, str]:
        if self.far.away:
            raise Refused("no")
        return await super().store(batch)


class KeepsQuietAboutIt(Cabinet):
    async def find(self, query: Query) -> Sequence[Found]:
        return [] if self.far.away else await super().find(query)


WRONG: Mapping[type[Cabinet], str] = {
    GivesStrangeReceipts: "basics",
    ForgetsNotes: "basics",
    Doubles: "duplicates",
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
    Moody: "signature",
    LooksItUp: "signature",
    SeenTooLate: "lost-answer",
    ForgetsKeysSoon: "late-answer",
    KeepsOneOfABatch: "outage",
    Sluggish: "slowness",
    NeverFinds: "hanging",
    KeepsTheKey: "cancellation",
    OnlyTheNewest: "switch",
    ClosesTooHard: "close",
    ClosesOnce: "close",
    Buffers: "restart",
    StartsAfresh: "kill",
    TakesAnOutageForANo: "far-side-outage",
    KeepsQuietAboutIt: "far-side-outage",
}
"""Who fails which check. Some fail others, too."""
