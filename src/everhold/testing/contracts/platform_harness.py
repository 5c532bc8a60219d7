"""Both ends of a platform adapter: the far side as a test plays it, and the near side with the real store and door.

"Kept" means committed. Time is real and short; waits that an adapter asks for pass at once and are counted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path, PurePath
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from everhold.assembly.accounts import StoredPlatformOffsets
from everhold.core.access import AdmissionDecision
from everhold.core.commands import COMMAND_MENU
from everhold.core.entries import ChatLocation, EntryKind, Heard
from everhold.engine.gates import Gates, Wakeups
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.platform import AcceptResult, IncomingMessage, OutgoingMessage, Platform, SupportsClose
from everhold.ports.plugin import AccountContext, FetchedContent, PluginContext
from everhold.ports.store import Change, StateNamespace, Step, make_state_scope
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store import SeededRandom

T = TypeVar("T")

PATIENCE_SECONDS: Final = 100.0
"""How long anything on loopback may take on a busy machine before it is taken for never."""
HOUR_SECONDS: Final = 3600.0


class ShownMessage(Struct, frozen=True, kw_only=True):
    """A message as the people in a chat see it."""

    id: str
    text: str
    files: tuple[bytes, ...] = ()


class RemotePlatform(Protocol):
    """A far side with people in it, and the adapter's way there. `chat` is a direct chat, `group` a group."""

    platform: str
    chat: str
    group: str
    sender: str
    offers: frozenset[str]
    """Of `edits groups drafts typing files commands redelivery poison rivals`, what the platform has at all."""

    def build_adapter(self, context: PluginContext) -> Platform:
        """A new adapter, as another process would have it."""

    async def write(self, text: str, *, to: str) -> str:
        """A person writes; the message's id."""

    async def edit(self, id: str, text: str, *, to: str) -> None: ...

    async def mention(self, text: str, *, to: str) -> str:
        """A person writes in a group and means the agent."""

    async def write_as_impostor(self, text: str, *, to: str) -> str:
        """A stranger writes who calls themselves whatever `sender` is called, handle and all."""

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str: ...

    async def send_unparsable_update(self) -> None:
        """Something arrives that nobody can take apart."""

    async def send_unknown_update(self) -> None:
        """Something arrives of a kind that nobody has heard of."""

    async def send_invalid_utf8(self) -> None:
        """Bytes arrive that are no text: no UTF-8."""

    async def redeliver(self, chance: random.Random) -> None:
        """Everything arrives again, three times, in any order."""

    def list_shown(self, chat: str) -> list[ShownMessage]:
        """What the agent said in a chat, as it stands there."""

    def fail_next_send(self, how: str) -> None:
        """The next send goes wrong: `drop before`, `drop after`, `hang`, `limit` (wait 7 s), `broken` (an error of
        theirs), `dead` (this chat is gone for good); with files also `drop file after` and `file too large`."""

    def disconnect(self) -> None:
        """The far side cannot be reached, until `mend`."""

    def reconnect(self) -> None: ...


class ProcessKilled(BaseException):
    """The process is gone, in the middle of something."""


class ContractClock:
    def now(self) -> float:
        return 1_700_000_000.0 + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class PlatformHarness:
    """The near side: store, door and station of one account, and the process that listens."""

    def __init__(self, remote: RemotePlatform, path: Path, *, patience: float = PATIENCE_SECONDS) -> None:
        self.remote = remote
        self.patience = patience
        self.clock = ContractClock()
        self.store = SqliteStore.open(path / "log.db", chance=SeededRandom())
        gates = Gates(store=self.store, clock=self.clock, chance=SeededRandom(), log=SilentLogger(), owner="contract")
        self._ingress = MessageAcceptor(gates, admit=self._admit, wakeups=Wakeups())
        self.sleeps: list[float] = []
        self.troubles: list[str] = []
        self.chat_moves: list[tuple[str, str]] = []
        """Chats that got another id, as the adapter tells."""
        self.healthy_reports = 0
        self.dies_at: str = ""
        """`before` or `after` the next commit."""
        self.verdicts: list[AcceptResult] = []
        self._listener: asyncio.Task[None] | None = None
        self.platform = remote.build_adapter(self.make_context())

    def make_context(self) -> PluginContext:
        platform = self.remote.platform
        return PluginContext(
            agent="main",
            instance="main",
            directory=PurePath("nowhere"),
            log=SilentLogger(),
            clock=self.clock,
            blob=self.store.get_blob,
            account_context=AccountContext(
                account="main",
                offsets=StoredPlatformOffsets(self.store, self.clock, platform=platform, account="main"),
                fetch=self._fetch,
                chance=SeededRandom(),
                sleep=self._sleep,
                commands=COMMAND_MENU,
                report=self._report,
                add_chat_alias=self._record_chat_move,
                max_file_bytes=100_000,
            ),
        )

    async def _record_chat_move(self, old: str, new: str) -> None:
        self.chat_moves.append((old, new))

    async def close(self) -> None:
        await self.stop()
        if isinstance(self.platform, SupportsClose):
            await self.platform.aclose()
        await self.store.close()

    # -- the process

    def start(self) -> None:
        self._listener = asyncio.get_running_loop().create_task(self.platform.listen(self._accept))

    async def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None

    async def restart(self) -> None:
        """Another process on the same disk."""
        await self.stop()
        if isinstance(self.platform, SupportsClose):
            await self.platform.aclose()
        self.dies_at = ""
        self.platform = self.remote.build_adapter(self.make_context())
        self.start()

    async def wait_until_killed(self) -> None:
        """Wait until the process has died as it was to."""
        assert self._listener is not None
        async with asyncio.timeout(self.patience):
            done = await asyncio.gather(self._listener, return_exceptions=True)
        assert isinstance(done[0], ProcessKilled), f"it should have died: {done[0]!r}"

    # -- what it was given

    async def _accept(self, incoming: IncomingMessage) -> AcceptResult:
        if self.dies_at == "before":
            raise ProcessKilled
        verdict = await self._ingress(incoming)
        if self.dies_at == "after" and verdict.outcome == "accepted":
            raise ProcessKilled
        self.verdicts.append(verdict)
        return verdict

    async def _admit(self, incoming: IncomingMessage) -> AdmissionDecision:
        return AdmissionDecision(agent="main", person=incoming.sender, group="shared")

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await asyncio.sleep(min(seconds, 0.002))

    def _report(self, trouble: str = "", remedy: str = "") -> None:
        if trouble:
            self.troubles.append(trouble)
        else:
            self.healthy_reports += 1

    async def _fetch(self, url: str, *, headers: Mapping[str, str] | None = None) -> FetchedContent:
        from everhold.infra.fetch import UrlFetcher  # as in the house, but loopback is all there is

        return await UrlFetcher(allows=lambda ip: ip.is_loopback, most_bytes=100_000)(url, headers=headers)

    # -- looking

    async def read_heard(self) -> list[Heard]:
        """Everything that was kept, in the order it was."""
        entries = [entry for entry in await self.store.read_feed(limit=10_000) if entry.kind is EntryKind.HEARD]
        return [entry.body for entry in entries if isinstance(entry.body, Heard)]

    async def read_texts(self) -> list[str]:
        return [body.text for body in await self.read_heard()]

    async def wait_until(self, met: Callable[[], Awaitable[bool]], *, what: str) -> None:
        """Wait for something that has no event of its own."""
        try:
            async with asyncio.timeout(self.patience):
                while not await met():
                    if self._listener is not None and self._listener.done():
                        self._listener.result()
                        raise AssertionError("the listener ended by itself")
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"never happened: {what}; heard {await self.read_texts()}") from None

    async def wait_until_heard(self, *texts: str) -> None:
        async def met() -> bool:
            return set(texts) <= set(await self.read_texts())

        await self.wait_until(met, what=f"hearing {texts}")

    def make_location(self, chat: str = "", message: str = "") -> ChatLocation:
        return ChatLocation(
            platform=self.remote.platform, account="main", chat=chat or self.remote.chat, message=message
        )

    def make_outgoing(self, text: str, key: str = "s:1:0", **more: Any) -> OutgoingMessage:
        return OutgoingMessage(to=more.pop("to", self.make_location()), text=text, key=key, **more)

    async def offset(self, key: str) -> str | None:
        """How far the account was read, as the store has it."""
        scope = make_state_scope(self.remote.platform, "main")
        record = await self.store.get_state_record(StateNamespace.PLATFORM_OFFSET, key, scope=scope)
        return None if record is None else record.value

    async def store_blob(self, data: bytes) -> None:
        """Have a file in the store."""
        change = Change(step=Step.STATE, session="", at=self.clock.now(), blobs=(data,))
        await self.store.commit(change)

    async def run_within_patience(self, work: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(self.patience):
            return await work


class SilentLogger:
    """A log that nobody reads."""

    def debug(self, event: str, /, **fields: object) -> None: ...

    info = warning = error = debug

    def bind(self, **fields: object) -> SilentLogger:
        return self
