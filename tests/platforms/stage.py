"""A door with the real reception and a real store, people at it, and a clock that a test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everhold.config import Settings, parse
from everhold.core.entries import Entry, Heard, Place
from everhold.flow.accept import Accept
from everhold.flow.gates import Bells, Gates
from everhold.moves import Moves
from everhold.ports.platform import Incoming, Verdict
from everhold.reception import Reception
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store import Dice
from everhold.testing.fakes import FakePlatform
from everhold.testing.house import Diary

CONFIG = """
agents: {main: {}, coder: {}}
platforms:
  fake:
    main:
      access: {direct: [ada, "fake:7"], groups: {room: [ada, "fake:7"], open: ["*"]}}
      chats: {watched: {}}
  other: {main: {access: {direct: [ada]}}}
people: [{name: ada, identities: ["fake:1001"]}, {name: root, identities: ["fake:1"]}]
access: {owners: [root]}
"""


class HandClock:
    def __init__(self) -> None:
        self.at = 1_700_000_000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


class Door:
    """Say something at it and see what became of it."""

    def __init__(self, path: Path, config: str = CONFIG) -> None:
        self.settings: Settings = parse(config)
        self.clock = HandClock()
        self.log = Diary()
        self.chance = Dice()
        self.store = SqliteStore.open(path / "log.db", chance=Dice())
        self.fake, self.other = FakePlatform(), FakePlatform(name="other")
        self.reception = self.reopened()
        gates = Gates(store=self.store, clock=self.clock, chance=Dice(), log=self.log, owner="test")
        self.accept = Accept(gates, reception=lambda incoming: self.reception(incoming), bells=Bells())
        self.said = 0

    def reopened(self) -> Reception:
        """The reception as another process would find it."""
        self.moves = Moves(self.store, clock=self.clock, log=self.log)
        return Reception(
            moves=self.moves,
            settings=lambda: self.settings,
            store=self.store,
            platforms={("fake", "main"): self.fake, ("other", "main"): self.other},
            clock=self.clock,
            chance=self.chance,
            log=self.log,
        )

    async def say(
        self, text: str, *, sender: str = "1001", chat: str = "", platform: str = "fake", **more: Any
    ) -> Verdict:
        self.said += 1
        place = Place(platform=platform, account="main", chat=chat or sender, message=more.pop("id", str(self.said)))
        kind = more.pop("kind", "group" if chat else "dm")
        return await self.accept(Incoming(origin=place, text=text, sender=sender, kind=kind, **more))

    async def heard(self, text: str, **more: Any) -> Heard:
        """Say something that is kept; what was kept of it."""
        verdict = await self.say(text, **more)
        assert verdict.outcome == "accepted", verdict
        entry: Entry = await self.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        return entry.body

    async def whispers(self) -> list[str]:
        """What strangers were told, once everything that was on its way has arrived."""
        import asyncio

        await asyncio.gather(*self.reception._whispers)
        return [out.text for out in (*self.fake.shown, *self.other.shown)]
