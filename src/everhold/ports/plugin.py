"""What a plug-in's factory is given besides its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePath
from typing import Protocol

from msgspec import Struct

from everhold.ports.clock import Clock, RandomSource
from everhold.ports.log import EventLogger


class PlatformOffsets(Protocol):
    """How far an account was read. An offset that belongs to a message goes with it, in `Incoming.offset`."""

    async def read(self, name: str) -> str | None: ...

    async def advance(self, name: str, value: str) -> None:
        """Go on without a message: everything up to there is kept, or was nothing to keep."""


class FetchedContent(Struct, frozen=True, kw_only=True):
    """What was found at a URL."""

    data: bytes
    media: str = ""


class FetchUrl(Protocol):
    """The one way to a URL that came with a message: no private address, no endless body, no other scheme."""

    async def __call__(self, url: str, *, headers: Mapping[str, str] | None = None) -> FetchedContent:
        """Raises Refused for what must not or cannot be fetched, Transient for what may work later."""


class ConnectionReporter(Protocol):
    """How a connection is, for `status`: nothing when it is well, else what is wrong and what helps."""

    def __call__(self, trouble: str = "", remedy: str = "") -> None: ...


async def _ignore_chat_alias(old: str, new: str) -> None:
    """Whoever plays a station need not care."""


class AccountContext(Struct, frozen=True, kw_only=True):
    """What a platform account is given besides: where it stands, and how it tells how it is doing."""

    account: str
    offsets: PlatformOffsets
    fetch: FetchUrl
    chance: RandomSource
    sleep: Callable[[float], Awaitable[None]]
    """How a listener waits before it tries again."""
    commands: Mapping[str, str]
    """The commands to announce where the platform can show them: name -> what it does."""
    report: ConnectionReporter
    """To be told when the connection is made, and whenever it is lost."""
    add_chat_alias: Callable[[str, str], Awaitable[None]] = _ignore_chat_alias
    """To be told when a chat gets another id: what it was, and what it is now. It stays the conversation it was."""
    max_file_bytes: int = 20_000_000
    """The largest file that is taken in."""
    list_known_senders: Callable[[], frozenset[str]] = frozenset
    """The platform's ids of those who may write directly, as far as they are configured: for platforms where a direct
    chat has to be asked for by whom it is with."""


class PluginContext(Struct, frozen=True, kw_only=True):
    """On whose behalf an instance is built: one instance per configured name and agent."""

    agent: str
    instance: str
    """The name it has in the configuration; a provider may be configured twice."""
    directory: PurePath
    """Its own directory inside the home, for what it may lose: caches, models. It exists, and is nobody else's."""
    log: EventLogger
    """Bound to agent and instance."""
    clock: Clock
    blob: Callable[[str], Awaitable[bytes | None]] | None = None
    """What is kept under a digest, such as a picture that somebody sent. For models, which show it."""
    account_context: AccountContext | None = None
    """For platforms."""
