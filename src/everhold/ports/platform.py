"""A platform's promise: hand over what is heard, deliver what is said, and be honest about repeats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import cache
from typing import Any, Final, Protocol, TypeGuard, runtime_checkable

from msgspec import Struct

from everhold.core.entries import Attachment, ChatLocation
from everhold.ports.store import StateWrite

UNPARSED_EVENT: Final = "unreadable"
"""The event of an update that an adapter cannot take apart. It is kept as it came, nobody answers it, and reading goes
on behind it."""


SCHEDULED_EVENT: Final = "schedule"
"""The event of a message whose time has come."""


class DeliveryGuarantee(StrEnum):
    """How a repeated hand-over stays safe."""

    KEYED = "keyed"
    """The far side recognises the key: send again."""
    UPSERT = "upsert"
    """The same document is overwritten with itself: send again, but not past a newer one."""
    PROBE = "probe"
    """The far side can be asked: look, then send."""
    BLIND = "blind"
    """Nobody can tell: follow the configured policy, count it, show it."""
    UNACKNOWLEDGED = "unacknowledged"
    """Calls return before the work is done: keep everything replayable."""


class PlatformOffset(Struct, frozen=True, kw_only=True):
    """How far an account was read. It is committed with the message that it belongs to."""

    key: str
    value: str


class IncomingMessage(Struct, frozen=True, kw_only=True):
    """A message at the door, as the platform tells it. Ids are the platform's stable ones, never display names."""

    origin: ChatLocation
    text: str
    sender: str
    """The platform's id of whoever speaks."""
    name: str = ""
    kind: str = "dm"
    """dm, group, channel or thread."""
    event: str = "message"
    revision: str = ""
    addressed: bool = True
    """Mentioned, replied to, or alone with the agent."""
    can_change_owner: bool = False
    """Of a direct chat: somebody else may be alone with the agent in it one day. Whoever is heard first keeps it."""
    bot: bool = False
    notice: bool = False
    """A machine tells something (an error, a confirmation): heard, and never answered."""
    hops: int = 0
    """How many agents have answered each other before this, if the platform carries it."""
    attachments: tuple[Attachment, ...] = ()
    files: tuple[bytes, ...] = ()
    """What is in them, in their order; kept with the message. Nothing for those that are known by their hash alone."""
    agent: str = ""
    """For platforms that let the caller choose."""
    directory: str = ""
    repo: str = ""
    offset: PlatformOffset | None = None
    state_write: StateWrite | None = None
    """Committed with the message. Raises Conflict, and nothing is accepted, if the record has another version."""


class AcceptResult(Struct, frozen=True, kw_only=True):
    """What became of a message at the door. Only `accepted` and `duplicate` may be acknowledged as kept."""

    outcome: str
    """accepted, duplicate, differs, denied, or ignored."""
    session: str = ""
    seq: int = 0
    reason: str = ""


AcceptMessage = Callable[[IncomingMessage], Awaitable[AcceptResult]]


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """One part of a reply on its way out. `key` is the same whenever the same part is sent again."""

    to: ChatLocation
    text: str
    key: str
    edits: str = ""
    """The remote id of a draft that this text replaces."""
    hops: int = 0
    notice: bool = False
    """A word of the gateway's own: platforms that can tell notices from messages send it as one."""
    file: Attachment | None = None
    """A file to be sent instead of a text; what is in it is found by `Context.blob`. TooLong says that it is too large
    here, and the chat is then told so."""


class Platform(Protocol):
    """One account on one platform."""

    name: str
    account: str
    delivery: DeliveryGuarantee
    text_limit: int
    """The longest text one message may carry."""
    visible_after: float
    """Seconds until something that was delivered can be found by `probe`."""

    async def listen(self, accept: AcceptMessage) -> None:
        """Receive until cancelled. Acknowledge a message only after `accept` has returned."""

    async def send(self, out: OutgoingMessage) -> str:
        """Deliver; the remote id. Raises Transient (known unsent), Refused, or InDoubt."""

    async def probe(self, out: OutgoingMessage) -> str | None:
        """For `probe` delivery: the remote id if `out.key` has arrived, None if it has not."""


@runtime_checkable
class SupportsDrafts(Protocol):
    """What a platform may offer besides: a reply that is seen while it grows. `Outgoing.edits` then names the draft."""

    async def draft(self, out: OutgoingMessage) -> str:
        """Show an unfinished reply; its remote id, for `Outgoing.edits`."""

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        """Show more of it."""


@runtime_checkable
class SupportsFiles(Protocol):
    """What a platform may offer besides: files that go with a reply. `Outgoing.file` is only sent to those that do."""

    file_limit: int
    """The largest file that may be sent, in bytes."""


@runtime_checkable
class SupportsTyping(Protocol):
    """What a platform may offer besides: a sign that a reply is being made."""

    async def send_typing(self, to: ChatLocation) -> None:
        """Show it for a few seconds. Asked for again while the work goes on; losing one harms nobody."""


def can_draft(platform: object) -> TypeGuard[SupportsDrafts]:
    kind: Any = type(platform)
    return _is_supported(kind, SupportsDrafts)


def can_type(platform: object) -> TypeGuard[SupportsTyping]:
    kind: Any = type(platform)
    return _is_supported(kind, SupportsTyping)


@cache
def _is_supported(kind: Any, what: Any) -> bool:
    """Asked several times in every turn, and slow to find out."""
    return issubclass(kind, what)


@runtime_checkable
class SupportsPresence(Protocol):
    """What a platform may offer besides, where direct chats change hands: who is there now."""

    async def is_alone_with(self, to: ChatLocation, sender: str) -> bool:
        """Whether nobody else than `sender` would read what is said there. Asked before something is said that nobody
        has just asked for; raises where it cannot be found out now, and is asked again later."""


class AccountIntroduction(Struct, frozen=True, kw_only=True):
    """Who an account is on its platform."""

    name: str
    hello: str = ""
    """How somebody gets to write to it, as a next step: `open https://… and say hello`."""


@runtime_checkable
class SupportsIntroduction(Protocol):
    """What a platform may offer besides: saying who it is, which shows that its settings work."""

    async def introduce(self) -> AccountIntroduction:
        """Raises Refused or Transient, with what helps."""


@runtime_checkable
class SupportsClose(Protocol):
    """What a platform may offer besides: letting go of its connections when its account is gone."""

    async def aclose(self) -> None: ...
