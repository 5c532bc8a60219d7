"""Both sides of a platform adapter: the remote platform, which the test provides, and the real store and ingress.

Time is real and short. The waits of an adapter end at once and are counted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path, PurePath
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from everhold.assembly.accounts import StoredPlatformOffsets
from everhold.config.settings import FileQuotas
from everhold.core.access import AdmissionDecision
from everhold.core.commands import COMMAND_MENU
from everhold.core.entries import ChatLocation, EntryKind, Heard
from everhold.engine.gates import Gates, Wakeups
from everhold.ingress.accept import MessageAcceptor
from everhold.ingress.held_messages import HeldMessages
from everhold.ports.platform import (
    UNPARSED_EVENT,
    AcceptResult,
    IncomingMessage,
    OutgoingMessage,
    Platform,
    RemoteFile,
    SupportsClose,
    SupportsDownloads,
)
from everhold.ports.plugin import AccountContext, FetchedContent, PluginContext
from everhold.ports.store import Change, StateNamespace, Step, make_state_scope
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store import SeededRandom

T = TypeVar("T")

PATIENCE_SECONDS: Final = 100.0
"""Time limit for anything on loopback, generous for a busy machine."""
HOUR_SECONDS: Final = 3600.0


class ShownMessage(Struct, frozen=True, kw_only=True):
    """A message as the people in a chat see it."""

    id: str
    text: str
    files: tuple[bytes, ...] = ()


class RemotePlatform(Protocol):
    """A remote platform with people in it, and the adapter for it. `chat` is a direct chat, `group` a group."""

    platform: str
    chat: str
    group: str
    sender: str
    offers: frozenset[str]
    """The features of the platform: any of `edits groups drafts typing files commands redelivery poison rivals
    history`."""

    def build_adapter(self, context: PluginContext) -> Platform:
        """Return a new adapter, as another process would build it."""

    async def write(self, text: str, *, to: str) -> str:
        """Write as a person, and return the message's id."""

    async def edit(self, id: str, text: str, *, to: str) -> None: ...

    async def mention(self, text: str, *, to: str) -> str:
        """Write in a group as a person who addresses the agent."""

    async def write_as_impostor(self, text: str, *, to: str) -> str:
        """Write as another person with the same display name and handle as `sender`."""

    async def reply(self, text: str, *, to: str, id: str) -> str:
        """Write as `sender`, in reply to a message, and in a thread below it if the platform has threads."""

    def list_calls(self) -> list[str]:
        """Return the names of the calls that messages caused: not those that connect, receive, read missed messages,
        or tell the kind and the members of a chat."""

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str: ...

    def hang_files(self) -> None:
        """Let all downloads of files hang, until `release_files`."""

    def release_files(self) -> None: ...

    async def send_unparsable_update(self) -> None:
        """Send an update of `sender` that cannot be parsed."""

    async def send_unknown_update(self) -> None:
        """Send an update of an unknown kind."""

    async def send_invalid_utf8(self) -> None:
        """Send bytes that are not valid UTF-8."""

    async def redeliver(self, chance: random.Random) -> None:
        """Deliver everything again, three times, in random order."""

    def list_shown(self, chat: str) -> list[ShownMessage]:
        """Return the agent's messages in a chat."""

    def fail_next_send(self, how: str) -> None:
        """Let the next send fail: `drop before`, `drop after`, `hang`, `limit` (wait 7 s), `broken` (a server error),
        `dead` (the chat was deleted); with files also `drop file after` and `file too large`."""

    def disconnect(self) -> None:
        """Make the platform unreachable, until `reconnect`."""

    def reconnect(self) -> None: ...


@runtime_checkable
class RemoteHistory(Protocol):
    """A remote platform that offers `history`: missed messages are read from it, and that can take long."""

    async def open_chats(self, count: int) -> list[str]:
        """Open this many further groups with the agent, and return their ids."""

    def hang_history(self) -> None:
        """Let all calls that read missed messages hang, until `release_history`."""

    async def wait_for_history(self) -> None:
        """Wait until such a call hangs."""

    def release_history(self) -> None: ...


class ProcessKilled(BaseException):
    """The process was killed."""


class ContractClock:
    def now(self) -> float:
        return 1_700_000_000.0 + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class PlatformHarness:
    """The gateway's side: store, ingress and account context of one account, and the process that listens."""

    def __init__(self, remote: RemotePlatform, path: Path, *, patience: float = PATIENCE_SECONDS) -> None:
        self.remote = remote
        self.patience = patience
        self.clock = ContractClock()
        self.store = SqliteStore.open(path / "log.db", chance=SeededRandom())
        gates = Gates(store=self.store, clock=self.clock, chance=SeededRandom(), log=SilentLogger(), owner="contract")
        self._gates = gates
        self._ingress = MessageAcceptor(gates, admit=self._admit, wakeups=Wakeups())
        self.denied: set[str] = set()
        """The senders who may not speak."""
        self.configured_chats: set[str] | None = None
        """The chats that the configuration names; None for all."""
        self.downloads: list[str] = []
        """The names of the files that were requested."""
        self.sleeps: list[float] = []
        self.troubles: list[str] = []
        self.chat_moves: list[tuple[str, str]] = []
        """The chat aliases that the adapter reported: (old id, new id)."""
        self.healthy_reports = 0
        self.dies_at: str = ""
        """Kill the process `before` or `after` the next commit."""
        self.results: list[AcceptResult] = []
        self._listener: asyncio.Task[None] | None = None
        self._platforms: dict[tuple[str, str], Platform] = {}
        self.platform = self._build_platform()
        self.held_messages = self._build_held_messages()

    def _build_platform(self) -> Platform:
        platform = self.remote.build_adapter(self.make_context())
        if isinstance(platform, SupportsDownloads):
            download = platform.download

            async def count_download(file: RemoteFile) -> bytes:
                self.downloads.append(file.name)
                return await download(file)

            platform.download = count_download  # type: ignore[method-assign]  # the test counts the calls
        self._platforms[self.remote.platform, "main"] = platform
        return platform

    def _build_held_messages(self) -> HeldMessages:
        return HeldMessages(
            self._gates,
            acceptor=self._ingress,
            accept=self._ingress,
            platforms=self._platforms,
            settings=FileQuotas,
            is_halted=self._is_halted,
            prepare=self._prepare,
        )

    async def _is_halted(self, platform: str, chat: str) -> bool:
        return False

    async def _prepare(self) -> None:
        """Do nothing, because the disk has space."""

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
                can_speak=self._can_speak,
                is_configured_chat=self._is_configured_chat,
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
        """End the process."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        await self.held_messages.close()

    async def restart(self) -> None:
        """Start another process on the same store."""
        await self.stop()
        if isinstance(self.platform, SupportsClose):
            await self.platform.aclose()
        self.dies_at = ""
        self.platform = self._build_platform()
        self.held_messages = self._build_held_messages()
        await self.held_messages.resume()
        self.start()

    async def wait_until_killed(self) -> None:
        """Wait until the process was killed."""
        assert self._listener is not None
        async with asyncio.timeout(self.patience):
            done = await asyncio.gather(self._listener, return_exceptions=True)
        assert isinstance(done[0], ProcessKilled), f"the process was not killed: {done[0]!r}"

    # -- the account context

    async def _accept(self, incoming: IncomingMessage) -> AcceptResult:
        if self.dies_at == "before":
            raise ProcessKilled
        result = await self.held_messages(incoming)
        if self.dies_at == "after" and result.outcome in ("accepted", "held"):
            raise ProcessKilled
        self.results.append(result)
        return result

    def _is_configured_chat(self, chat: str) -> bool:
        return self.configured_chats is None or chat in self.configured_chats

    async def _can_speak(self, incoming: IncomingMessage) -> bool:
        return incoming.sender not in self.denied

    async def _admit(self, incoming: IncomingMessage) -> AdmissionDecision:
        unknown = incoming.event == UNPARSED_EVENT and not incoming.sender
        refusal = "denied" if unknown or incoming.sender in self.denied else ""
        return AdmissionDecision(agent="main", identity=incoming.sender, group="shared", refusal=refusal)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await asyncio.sleep(min(seconds, 0.002))

    def _report(self, trouble: str = "", remedy: str = "") -> None:
        if trouble:
            self.troubles.append(trouble)
        else:
            self.healthy_reports += 1

    async def _fetch(self, url: str, *, headers: Mapping[str, str] | None = None) -> FetchedContent:
        from everhold.infra.fetch import UrlFetcher  # as in the gateway, but loopback only

        return await UrlFetcher(allows=lambda ip: ip.is_loopback, most_bytes=100_000)(url, headers=headers)

    # -- reading

    async def read_heard(self) -> list[Heard]:
        """Return every `heard` entry, in order."""
        entries = [entry for entry in await self.store.read_feed(limit=10_000) if entry.kind is EntryKind.HEARD]
        return [entry.body for entry in entries if isinstance(entry.body, Heard)]

    async def read_texts(self) -> list[str]:
        return [body.text for body in await self.read_heard()]

    async def wait_until(self, met: Callable[[], Awaitable[bool]], *, what: str) -> None:
        """Wait for a condition without an event of its own."""
        try:
            async with asyncio.timeout(self.patience):
                while not await met():
                    if self._listener is not None and self._listener.done():
                        self._listener.result()
                        raise AssertionError("the listener ended")
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"timed out: {what}; heard {await self.read_texts()}") from None

    async def wait_until_results(self, count: int) -> None:
        """Wait until this number of messages was accepted or refused."""

        async def met() -> bool:
            return len(self.results) >= count

        await self.wait_until(met, what=f"{count} messages")

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
        """Return the account's offset in the store."""
        scope = make_state_scope(self.remote.platform, "main")
        record = await self.store.get_state_record(StateNamespace.PLATFORM_OFFSET, key, scope=scope)
        return None if record is None else record.value

    async def store_blob(self, data: bytes) -> None:
        """Put a file into the store."""
        change = Change(step=Step.STATE, session="", at=self.clock.now(), blobs=(data,))
        await self.store.commit(change)

    async def run_within_patience(self, work: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(self.patience):
            return await work


class SilentLogger:
    """A logger that discards everything."""

    def debug(self, event: str, /, **fields: object) -> None: ...

    info = warning = error = debug

    def bind(self, **fields: object) -> SilentLogger:
        return self
