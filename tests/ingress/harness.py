"""An ingress with the real admission and a real store, and a clock that a test moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everhold.config import Settings, parse_settings
from everhold.core.entries import ChatLocation, Entry, Heard
from everhold.engine.gates import Gates, Wakeups
from everhold.ingress.accept import MessageAcceptor
from everhold.ingress.admission import AdmissionControl
from everhold.ingress.chat_records import ChatAliases
from everhold.ports.platform import AcceptResult, IncomingMessage
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store import SeededRandom
from everhold.testing.fakes import FakePlatform
from everhold.testing.gateway import RecordingLogger

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


class ManualClock:
    def __init__(self) -> None:
        self.at = 1_700_000_000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


class IngressHarness:
    """Sends messages through admission and accept, and reads what was stored."""

    def __init__(
        self,
        path: Path,
        config: str = CONFIG,
        *,
        seed: int = 0,
        exclusive: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`seed` makes the ids of another process differ; `now` is the clock of the store."""
        self.settings: Settings = parse_settings(config)
        self.clock = ManualClock()
        self.owner = f"test {seed}"
        self.log = RecordingLogger()
        self.chance = SeededRandom(seed)
        self.store = SqliteStore.open(path / "log.db", chance=SeededRandom(seed), exclusive=exclusive, now=now)
        self.fake, self.other = FakePlatform(), FakePlatform(name="other")
        gates = Gates(store=self.store, clock=self.clock, chance=SeededRandom(seed), log=self.log, owner=self.owner)
        self.accept = MessageAcceptor(gates, admit=lambda incoming: self.admission(incoming), wakeups=Wakeups())
        self.admission = self.open_admission()
        self.said = 0

    def open_admission(self) -> AdmissionControl:
        """Return an admission as another process would build it."""
        self.chat_aliases = ChatAliases(self.store, clock=self.clock, log=self.log)
        self.accept.shared_records = self.chat_aliases.shared_records
        return AdmissionControl(
            chat_aliases=self.chat_aliases,
            settings=lambda: self.settings,
            store=self.store,
            platforms={("fake", "main"): self.fake, ("other", "main"): self.other},
            clock=self.clock,
            chance=self.chance,
            log=self.log,
        )

    async def send_message(
        self, text: str, *, sender: str = "1001", chat: str = "", platform: str = "fake", **more: Any
    ) -> AcceptResult:
        self.said += 1
        place = ChatLocation(
            platform=platform, account="main", chat=chat or sender, message=more.pop("id", str(self.said))
        )
        kind = more.pop("kind", "group" if chat else "dm")
        return await self.accept(IncomingMessage(origin=place, text=text, sender=sender, kind=kind, **more))

    async def send_and_read(self, text: str, **more: Any) -> Heard:
        """Send a message that is accepted; return the stored body."""
        verdict = await self.send_message(text, **more)
        assert verdict.outcome == "accepted", verdict
        entry: Entry = await self.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        return entry.body

    async def read_notices(self) -> list[str]:
        """Return the texts sent to strangers, after all sends have ended."""
        import asyncio

        await asyncio.gather(*self.admission._sends)
        return [out.text for out in (*self.fake.shown_messages, *self.other.shown_messages)]
