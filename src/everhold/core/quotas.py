"""Quotas: how much of the gateway one sender, one chat and one account may use. The rules are pure; callers pass times.

Owners and operators have no quotas. A refused message gets one answer per window, and it is not stored.
"""

from __future__ import annotations

import datetime
import enum
from typing import Final, Protocol

from msgspec import Struct

from everhold.core.address import Address
from everhold.core.entries import StoredRecord
from everhold.core.roles import PersonRole

MINUTE_SECONDS: Final = 60.0
BLOCKS_PER_DAY: Final = 256
"""A process reserves daily bytes in blocks of this fraction of the limit, so that most messages need no store call."""


class QuotaName(enum.StrEnum):
    """What is limited."""

    MESSAGES = "messages_per_minute"
    WAITING = "waiting_messages"
    WAITING_BYTES = "waiting_bytes"
    BYTES = "bytes_per_day"
    CONVERSATIONS = "conversations_per_day"


DAILY_QUOTAS: Final = frozenset({QuotaName.BYTES, QuotaName.CONVERSATIONS})


class SubjectKind(enum.StrEnum):
    """Whose use is counted."""

    SENDER = "sender"
    CHAT = "chat"
    SERVICE = "service"
    """All users of one token with the role service."""
    ACCOUNT = "account"


class QuotaLimits(Protocol):
    """The limits of one subject, from the configuration; 0: unlimited."""

    @property
    def messages_per_minute(self) -> int: ...
    @property
    def waiting_messages(self) -> int: ...
    @property
    def waiting_bytes(self) -> int: ...
    @property
    def bytes_per_day(self) -> int: ...
    @property
    def conversations_per_day(self) -> int: ...


class QuotaTable(Protocol):
    """The limits of senders by their role, of chats, of services and of accounts."""

    @property
    def member(self) -> QuotaLimits: ...
    @property
    def stranger(self) -> QuotaLimits: ...
    @property
    def chat(self) -> QuotaLimits: ...
    @property
    def service(self) -> QuotaLimits: ...
    @property
    def account(self) -> QuotaLimits: ...


class QuotaSubject(Struct, frozen=True):
    """A sender (its identity), a chat, a service or an account."""

    kind: SubjectKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def find_shared_subject(platform: str, account: str, chat: str) -> QuotaSubject:
    """Return with whom a sender shares limits: with the chat, or with all users of a service, because it can invent as
    many as it likes."""
    if platform == "http" and "/" in chat:
        return QuotaSubject(SubjectKind.SERVICE, chat.partition("/")[0])
    return QuotaSubject(SubjectKind.CHAT, f"{platform}:{account}:{chat}")


def find_quota_account(address: Address) -> str:
    """Return the account whose quotas count at an address. Its name is left out if it is the agent's."""
    return address.account or ("" if address.platform in ("http", "terminal") else address.agent)


class QuotaRefusal(Struct, frozen=True, kw_only=True):
    """The quota that a message exceeds."""

    quota: QuotaName
    subject: QuotaSubject
    limit: int
    retry_after: float

    @property
    def window(self) -> float:
        """How many seconds pass before the sender is told again."""
        return max(MINUTE_SECONDS, self.retry_after) if self.quota in DAILY_QUOTAS else MINUTE_SECONDS

    def explain(self) -> str:
        """Return the answer that the sender gets."""
        return f"{_LEAD[self.quota]} {_describe_limit(self)} {_describe_remedy(self)}"


class DailyUse(StoredRecord, frozen=True, kw_only=True):
    """What one subject has used on a day, over all processes. `bytes` includes what a process has reserved."""

    day: str
    at: float = 0.0
    bytes: int = 0
    conversations: int = 0
    told: tuple[str, ...] = ()
    """The quotas that a sender was told about on this day."""


class WaitingCount(Struct, frozen=True, kw_only=True):
    """Messages of one author at one address that wait for an answer, and the size of their entries."""

    author: str
    address: str
    messages: int
    bytes: int


class RateMeter:
    """The messages of one subject in the last minute, as a bucket that refills steadily."""

    __slots__ = ("_fill", "_since")

    def __init__(self) -> None:
        self._fill: float | None = None
        self._since = 0.0

    def compute_wait(self, limit: int, now: float) -> float:
        """Return 0 if one more message fits, else the seconds until it does. Refills the bucket."""
        fill = limit if self._fill is None else self._fill + max(0.0, now - self._since) * limit / MINUTE_SECONDS
        self._fill, self._since = min(float(limit), fill), now
        return 0.0 if self._fill >= 1 else (1 - self._fill) * MINUTE_SECONDS / limit

    def take(self) -> None:
        if self._fill is not None:
            self._fill -= 1

    def give_back(self) -> None:
        if self._fill is not None:
            self._fill += 1


def is_exempt(role: PersonRole) -> bool:
    """Return whether no quota applies to this role."""
    return role >= PersonRole.OWNER


def compute_block(limit: int, size: int) -> int:
    """Return how many bytes to reserve at once for a message of this size."""
    return max(size, limit // BLOCKS_PER_DAY)


def reserve_bytes(use: DailyUse, *, limit: int, size: int) -> tuple[DailyUse, int] | None:
    """Return the use with a block reserved, and the size of the block; None if the message does not fit."""
    left = limit - use.bytes
    if left < size:
        return None
    block = min(left, compute_block(limit, size))
    return DailyUse(
        day=use.day, at=use.at, bytes=use.bytes + block, conversations=use.conversations, told=use.told
    ), block


def compute_seconds_left(now: float, zone: datetime.tzinfo) -> float:
    """Return the seconds until the next day begins in a time zone."""
    here = datetime.datetime.fromtimestamp(now, zone)
    tomorrow = datetime.datetime.combine(here.date() + datetime.timedelta(days=1), datetime.time(), zone)
    return max(1.0, tomorrow.timestamp() - now)


_LEAD: Final = {
    QuotaName.MESSAGES: "Your message was not stored: there are too many messages.",
    QuotaName.WAITING: "Your message was not stored: too many messages wait for an answer.",
    QuotaName.WAITING_BYTES: "Your message was not stored: the messages that wait for an answer are too long.",
    QuotaName.BYTES: "Your message was not stored: too much was sent today.",
    QuotaName.CONVERSATIONS: "Your message was not stored: too many conversations were begun today.",
}
_WHOSE: Final = {
    SubjectKind.SENDER: "you",
    SubjectKind.CHAT: "this chat",
    SubjectKind.SERVICE: "all users of this service together",
    SubjectKind.ACCOUNT: "all people together here",
}


def _describe_limit(refusal: QuotaRefusal) -> str:
    who, limit = _WHOSE[refusal.subject.kind], refusal.limit
    match refusal.quota:
        case QuotaName.MESSAGES:
            return f"The limit for {who} is {limit:,} per minute."
        case QuotaName.WAITING:
            return f"The limit for {who} is {limit:,}."
        case QuotaName.WAITING_BYTES:
            return f"The limit for {who} is {limit:,} bytes."
        case QuotaName.BYTES:
            return f"The limit for {who} is {limit:,} bytes per day."
        case QuotaName.CONVERSATIONS:
            return f"The limit for {who} is {limit:,} per day."


def _describe_remedy(refusal: QuotaRefusal) -> str:
    match refusal.quota:
        case QuotaName.MESSAGES:
            return "Please send it again in a minute."
        case QuotaName.WAITING | QuotaName.WAITING_BYTES:
            return "Please send it again after the next answer."
        case QuotaName.BYTES:
            return "Please send it again tomorrow, or ask an owner to raise the limit."
        case QuotaName.CONVERSATIONS:
            return "Please continue an earlier conversation, or ask an owner to raise the limit."
