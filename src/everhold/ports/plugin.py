"""What a plug-in's factory receives besides its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from msgspec import Struct

from everhold.ports.clock import Clock, RandomSource
from everhold.ports.log import EventLogger
from everhold.ports.platform import IncomingMessage


class PlatformOffsets(Protocol):
    """How far the updates of an account were read. The offset of a message is passed in `IncomingMessage.offset`."""

    async def read(self, name: str) -> str | None: ...

    async def advance(self, name: str, value: str) -> None:
        """Advance an offset without a message, because everything up to there is stored or needs no storing."""


class FetchedContent(Struct, frozen=True, kw_only=True):
    """The content of a URL."""

    data: bytes
    media: str = ""


class FetchUrl(Protocol):
    """Fetches a URL from a message. It refuses private addresses, bodies without end and other schemes than HTTP."""

    async def __call__(self, url: str, *, headers: Mapping[str, str] | None = None) -> FetchedContent:
        """Raises Refused if the URL must not or cannot be fetched, Transient if it may work later."""


class ConnectionReporter(Protocol):
    """Reports the state of a connection for `status`: nothing if it works, else the problem and its remedy."""

    def __call__(self, trouble: str = "", remedy: str = "") -> None: ...


async def _ignore_chat_alias(old: str, new: str) -> None:
    """Do nothing, for tests that build an account context."""


def _know_every_chat(chat: str) -> bool:
    """Return True, for contexts without a configuration."""
    return True


async def _admit_everyone(message: IncomingMessage) -> bool:
    """Return True, for contexts without an ingress."""
    return True


class AccountContext(Struct, frozen=True, kw_only=True):
    """What a platform account receives in addition: its offsets, and functions to report its state."""

    account: str
    offsets: PlatformOffsets
    fetch: FetchUrl
    chance: RandomSource
    sleep: Callable[[float], Awaitable[None]]
    """How a listener waits before it retries."""
    commands: Mapping[str, str]
    """The commands to register if the platform can list them: name -> description."""
    report: ConnectionReporter
    """Call it when the connection is established, and whenever it is lost."""
    add_chat_alias: Callable[[str, str], Awaitable[None]] = _ignore_chat_alias
    """Call it with the old and the new id when a chat's id changes. The chat keeps its session."""
    can_speak: Callable[[IncomingMessage], Awaitable[bool]] = _admit_everyone
    """Returns whether the sender of a message may speak where it was sent. Ask before a message makes the adapter call
    the platform or store something, such as the name of its sender or the message that it replies to."""
    is_configured_chat: Callable[[str], bool] = _know_every_chat
    """Returns whether the configuration of the account names a chat. Ask before you store something about a chat in
    which perhaps only strangers write, such as its new id."""
    max_file_bytes: int = 20_000_000
    """The largest file that is accepted."""
    list_known_senders: Callable[[], frozenset[str]] = frozenset
    """The platform's ids of the senders who may write directly, as far as they are configured. For platforms where an
    adapter must request a direct chat by its participant."""


def _know_no_owner(identity: str) -> bool | None:
    """Return None, for contexts without people."""
    return None


@runtime_checkable
class SupportsPackageCheck(Protocol):
    """Optional: a factory that needs a package of another author, and can say at once whether it is installed."""

    def check_package(self) -> None:
        """Raise InvalidRequest if the package is not installed. Imports nothing."""


class PluginContext(Struct, frozen=True, kw_only=True):
    """The context of one plug-in instance. There is one instance per configured name and agent."""

    agent: str
    instance: str
    """Its name in the configuration. A provider may be configured twice."""
    directory: PurePath
    """Its own directory inside the home, for files that may get lost: caches, models. It exists."""
    home: PurePath | None = None
    """The home of the gateway. A plug-in that starts programs must hide it from them; None in tests without one."""
    log: EventLogger
    """Bound to agent and instance."""
    clock: Clock
    blob: Callable[[str], Awaitable[bytes | None]] | None = None
    """Returns the blob with a digest, such as a received picture. For models, which include it in requests."""
    account_context: AccountContext | None = None
    """For platforms."""
    is_owner: Callable[[str], bool | None] = _know_no_owner
    """Whether an identity is the owner's, the first of `access.owners`; None if no owner is configured."""
