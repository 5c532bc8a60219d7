"""The interface of a platform: pass incoming messages on, deliver replies, and declare how repeated sends behave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import cache
from typing import Any, Final, Protocol, TypeGuard, runtime_checkable

from msgspec import Struct

from everhold.core.entries import Attachment, ChatLocation, NoticeChoice, TextPiece
from everhold.ports.hosts import AccountClaim
from everhold.ports.store import StateWrite

UNPARSED_EVENT: Final = "unreadable"
"""The event of an update that an adapter cannot parse. It is stored unparsed and never answered, so that the adapter
can continue with the next update."""


SCHEDULED_EVENT: Final = "schedule"
"""The event of a message from a schedule."""
WEBHOOK_EVENT: Final = "webhook"
"""The event of a message from a webhook."""


class DeliveryGuarantee(StrEnum):
    """How a repeated send stays safe."""

    KEYED = "keyed"
    """The remote service recognises the key, so send again."""
    UPSERT = "upsert"
    """A repeat overwrites the same document, so send again, but not after a newer version."""
    PROBE = "probe"
    """The remote service can tell whether an item arrived, so ask it before sending again."""
    BLIND = "blind"
    """Nothing tells whether an item arrived, so follow the configured policy, and count and show the case."""
    UNACKNOWLEDGED = "unacknowledged"
    """Calls return before the work is done, so keep everything replayable."""


class PlatformOffset(Struct, frozen=True, kw_only=True):
    """How far the updates of an account were read. It is committed with the message that it belongs to."""

    key: str
    value: str
    claim: AccountClaim | None = None
    """Set by the gateway: the claim under which the account is received for. The offset moves only while it is held."""


class RemoteFile(Struct, frozen=True, kw_only=True):
    """A file of a message that is still at the platform. It is downloaded after the access check."""

    name: str
    media: str = ""
    size: int = 0
    """As the platform reports it; 0 if it does not."""
    reference: str
    """What the adapter needs to download it. Only the adapter reads it."""


class IncomingMessage(Struct, frozen=True, kw_only=True):
    """A message as the platform reports it. Ids are the platform's stable ones, never display names."""

    origin: ChatLocation
    text: str
    """The sender's own words only. A message that is only forwarded has no text and one piece."""
    sender: str
    """The platform's id of the sender."""
    name: str = ""
    kind: str = "dm"
    """dm, group, channel or thread."""
    event: str = "message"
    revision: str = ""
    addressed: bool = True
    """Whether the message addresses the agent: by a mention, as a reply, or in a direct chat."""
    can_change_owner: bool = False
    """For a direct chat: another person may use it later. Its first sender becomes its DM owner."""
    bot: bool = False
    notice: bool = False
    """A message from a program (an error, a confirmation). It is recorded and never answered."""
    hops: int = 0
    """How many agents have answered each other before this message, if the platform transmits it."""
    attachments: tuple[Attachment, ...] = ()
    files: tuple[bytes, ...] = ()
    """The contents of the attachments, in order; stored with the message. Empty if only their hashes are known."""
    remote_files: tuple[RemoteFile, ...] = ()
    """Files to download with `SupportsDownloads.download`, once the sender is known to be allowed."""
    pieces: tuple[TextPiece, ...] = ()
    """Forwarded, quoted and embedded text, each with its author as far as the platform reports it."""
    agent: str = ""
    """For platforms that let the caller choose."""
    directory: str = ""
    repo: str = ""
    offset: PlatformOffset | None = None
    via: str = ""
    """Who sent it for the sender, if the sender did not: the token of an operator."""
    state_write: StateWrite | None = None
    """Committed with the message. Raises Conflict, and nothing is accepted, if the record has another version."""
    unparsed_chat: str = ""
    """For an update that cannot be parsed: the chat it was sent in, as far as that can be read."""
    unparsed_direct: bool = False
    """For an update that cannot be parsed: that chat is a direct chat."""
    by_operator: bool = False
    """An operator of this gateway sends it, so no quota applies."""
    hook: str = ""
    """The webhook that it comes from. `text` is then the task that the configuration gives."""
    trace: str = ""
    """The `traceparent` of the sender's request, if it is valid."""

    @property
    def is_automatic(self) -> bool:
        """A schedule or a webhook sends it, so nobody gives a command at this time."""
        return self.event in (SCHEDULED_EVENT, WEBHOOK_EVENT)


class AcceptResult(Struct, frozen=True, kw_only=True):
    """The result of accepting a message. Only `accepted`, `held` and `duplicate` are stored."""

    outcome: str
    """accepted, held (stored, while its files are downloaded), duplicate, differs, denied, limited (a quota refused
    it), or ignored."""
    session: str = ""
    seq: int = 0
    reason: str = ""
    retry_after: float = 0.0
    """For `limited`: the seconds after which it may be sent again."""


AcceptMessage = Callable[[IncomingMessage], Awaitable[AcceptResult]]


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """One part of a reply to send. `key` is the same whenever the same part is sent again."""

    to: ChatLocation
    text: str
    key: str
    edits: str = ""
    """The remote id of a draft that this text replaces."""
    hops: int = 0
    notice: bool = False
    """A message of the gateway itself. Platforms that distinguish notices from messages send it as a notice."""
    file: Attachment | None = None
    """A file to send instead of a text; `PluginContext.blob` returns its contents. Raise TooLong if it is too large for
    the platform; the chat then receives a message about it."""
    choices: tuple[NoticeChoice, ...] = ()
    """Buttons to show under the text. A press is passed on as a message with the event `command` whose text is the
    command, from whoever pressed it. A platform without buttons leaves them out: the text names the commands."""


class Platform(Protocol):
    """One account on one platform."""

    name: str
    account: str
    delivery: DeliveryGuarantee
    text_limit: int
    """The longest text one message may carry."""
    visible_after: float
    """Seconds until `probe` can find a delivered message."""
    settle_seconds: float
    """Seconds after which the platform no longer carries out a request whose connection has ended. So long a chat waits
    after a process was killed while it sent."""

    async def listen(self, accept: AcceptMessage) -> None:
        """Receive until cancelled. Acknowledge a message only after `accept` has returned."""

    async def send(self, out: OutgoingMessage) -> str:
        """Deliver `out` and return its remote id. Raises Transient (known unsent), Refused, or InDoubt."""

    async def probe(self, out: OutgoingMessage) -> str | None:
        """For `probe` delivery: return the remote id if `out.key` has arrived, or None."""


@runtime_checkable
class SupportsDrafts(Protocol):
    """Optional: shows a reply while it is generated. `OutgoingMessage.edits` then names the draft."""

    async def draft(self, out: OutgoingMessage) -> str:
        """Show an unfinished reply and return its remote id, for `OutgoingMessage.edits`."""

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        """Replace the draft's text with a longer one."""


@runtime_checkable
class SupportsFiles(Protocol):
    """Optional: sends files. `OutgoingMessage.file` is only used with platforms that support it."""

    file_limit: int
    """The largest file that may be sent, in bytes."""


@runtime_checkable
class SupportsDownloads(Protocol):
    """Optional: downloads the files that `IncomingMessage.remote_files` names."""

    async def download(self, file: RemoteFile) -> bytes:
        """Return the content of a file. Called outside `listen`, with a deadline. Raises Refused or Transient."""


@runtime_checkable
class SupportsTyping(Protocol):
    """Optional: shows that a reply is being generated."""

    async def send_typing(self, to: ChatLocation) -> None:
        """Show the indicator for a few seconds. Called again while the turn runs; a lost call does no harm."""


def can_draft(platform: object) -> TypeGuard[SupportsDrafts]:
    kind: Any = type(platform)
    return _is_supported(kind, SupportsDrafts)


def can_type(platform: object) -> TypeGuard[SupportsTyping]:
    kind: Any = type(platform)
    return _is_supported(kind, SupportsTyping)


@cache
def _is_supported(kind: Any, what: Any) -> bool:
    """Cached, because every turn asks several times and the check is slow."""
    return issubclass(kind, what)


@runtime_checkable
class SupportsPresence(Protocol):
    """Optional, for platforms whose direct chats can get another owner: tells who can read a chat now."""

    async def is_alone_with(self, to: ChatLocation, sender: str) -> bool:
        """Return whether only `sender` can read the chat. Called before a message that no sender has just asked for.
        Raises if it cannot be determined now, and is then called again later."""


class AccountIntroduction(Struct, frozen=True, kw_only=True):
    """An account's identity on its platform."""

    name: str
    hello: str = ""
    """How a person starts a chat with it, as a next step: `open https://… and say hello`."""
    invitation: str = ""
    """A link that opens a chat with it and sends `/start CODE`, with `{code}` for the code; empty if it has none."""


@runtime_checkable
class SupportsIntroduction(Protocol):
    """Optional: returns its identity on the platform, which shows that its settings work."""

    async def introduce(self) -> AccountIntroduction:
        """Raises Refused or Transient, with a remedy."""


@runtime_checkable
class SupportsClose(Protocol):
    """Optional: closes its connections when its account is removed."""

    async def aclose(self) -> None: ...
