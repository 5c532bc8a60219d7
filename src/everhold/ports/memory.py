"""The interface of a memory provider: store and find. Everything else is an optional, declared capability.

A provider needs no buffer and no thread of its own, because the log is the queue and the consumer's worker calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from everhold.core.entries import Stamp
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import Tool


class MemoryUtterance(Struct, frozen=True, kw_only=True):
    """One message or reply of an exchange."""

    author: str
    text: str
    at: float
    stamp: Stamp
    seq: int = 0
    """The entry it comes from, so that a hit can be traced back to the log."""


class Exchange(Struct, frozen=True, kw_only=True):
    """One finished turn: the messages, the tool calls and the replies."""

    key: str
    session: str
    agent: str
    op: int
    heard: tuple[MemoryUtterance, ...]
    said: tuple[MemoryUtterance, ...]
    did: tuple[str, ...] = ()
    at: float = 0.0
    stamp: Stamp = Stamp()
    parent: str = ""
    tags: tuple[str, ...] = ()


class MemoryNote(Struct, frozen=True, kw_only=True):
    """A remark to keep."""

    key: str
    session: str
    agent: str
    seq: int
    text: str
    author: str
    at: float
    stamp: Stamp
    action: str = "add"
    fact: str = ""
    supersedes: str = ""
    """Key of the note this one replaces."""
    cites: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()
    origin: str = ""
    """The source, if no participant wrote the text: `tool:<name>`, `bot:<name>`, `file:<name>`."""


class MemoryRetraction(Struct, frozen=True, kw_only=True):
    """The items that were stored under these keys were undone."""

    key: str
    session: str
    agent: str
    keys: tuple[str, ...]
    at: float = 0.0


class JobResult(Struct, frozen=True, kw_only=True):
    """A job that is finished. The next exchange of the session contains the result, too."""

    key: str
    session: str
    """The session that requested the job and receives its result."""
    agent: str
    seq: int
    task: str
    result: str
    """The result, or why there is none."""
    at: float
    stamp: Stamp
    """The stamp of the request."""


MemoryItem: TypeAlias = Exchange | MemoryNote | MemoryRetraction


class MemoryBatch(Struct, frozen=True, kw_only=True):
    """Items of one session, in order, that are delivered together. A retry sends exactly the same batch."""

    name: str
    """The memory session's name."""
    items: tuple[MemoryItem, ...]
    jobs: tuple[JobResult, ...] = ()
    """Only for providers that declare `jobs`, and never together with items."""
    replaced: dict[str, str] = {}
    """The texts of replaced notes, as far as they are still known, for services that do not keep our keys.

    By the key of the note, or by the fact's id if it was noted in another session.
    """
    heard_by: dict[str, tuple[str, ...]] = {}
    """The audience of each retracted or replaced item, by its key as above, as far as it is still known."""


class MemoryQuery(Struct, frozen=True, kw_only=True):
    """What to search for, and for whom. There is no default scope."""

    text: str
    agent: str
    session: str
    name: str
    audience: tuple[str, ...]
    person: str
    limit: int = 20
    seen: frozenset[int] = frozenset()
    """Entries of `session` that are already in the context, so they need not be found."""
    tokens: int = 0
    """About how many tokens of hits can be shown, if known. More hits are not needed."""
    stamp: Stamp = Stamp()
    """The stamp of the turn that asks, or an empty one outside a turn."""


class MemoryHit(Struct, frozen=True, kw_only=True):
    """One search result of a provider, and its source."""

    text: str
    score: float = 0.0
    session: str = ""
    seq: int = 0
    person: str = ""
    """The person it is stored under. For a reply, the person it was sent to."""
    at: float = 0.0
    key: str = ""
    author: str = ""
    """The author as in the log: `person:…`, `agent:…`."""
    kind: str = ""
    """message, reply or note; empty if unknown."""
    origin: str = ""
    """The source, if no participant wrote the text: `tool:<name>`, `bot:<name>`, `file:<name>`."""


class MemoryScope(Struct, frozen=True, kw_only=True):
    """The session and person of a provider call that is not a search."""

    agent: str
    session: str
    name: str
    """The memory session's name."""
    person: str
    audience: tuple[str, ...] = ()


class SessionSwitch(Struct, frozen=True, kw_only=True):
    """A conversation continues in another session, or with a new context. Providers need not flush anything, because
    pending items are delivered anyway.
    """

    how: str
    """new, resume, branch, or compression."""
    before: MemoryScope
    after: MemoryScope


class ForgetResult(Struct, frozen=True, kw_only=True):
    """What a provider deleted, and what it could not."""

    deleted: int
    kept: tuple[str, ...] = ()
    """The items that still exist, one line each, with the reason."""


SEEN_REMOTE_ID: Final = "seen"
"""The remote id of an item that an unacknowledged provider received, and that a search found there."""


class ProviderHealth(Struct, frozen=True, kw_only=True):
    """A provider's condition. `text` is for people."""

    well: bool
    text: str = ""


class MemoryCapability(StrEnum):
    """What a provider may offer besides `store` and `find`. Only declared capabilities are called."""

    PROBE = "probe"
    """Can tell which items have arrived. `probe` delivery needs it. From an `unacknowledged` provider only a positive
    answer counts.
    """
    RETRACT = "retract"
    """Batches may contain retractions. Without it, undone items stay in the memory."""
    JOBS = "jobs"
    """Receives batches of jobs, too. Without it none are sent."""
    TOOLS = "tools"
    PROMPT = "prompt"
    BEFORE_COMPRESS = "before_compress"
    SESSION_SWITCHED = "session_switched"
    FORGET = "forget"
    EXPORT = "export"
    HEALTH = "health"
    CLOSE = "close"
    SIGNATURE = "cache_busting_signature"


class SetupQuestion(Struct, frozen=True, kw_only=True):
    """A setting that a provider needs before it can be used."""

    key: str
    question: str
    secret: bool = False
    needed: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()
    variable: str = ""
    """The environment variable that usually holds it, if there is one."""
    when: Mapping[str, str] = {}
    """Only asked if these other questions have these answers."""
    defaults: Mapping[str, str] = {}
    """The default, by the answer to the question `defaults_by`."""
    defaults_by: str = ""


@runtime_checkable
class SupportsSetup(Protocol):
    """A factory whose providers store settings of their own besides their section in config.yaml."""

    async def list_setup_questions(self, settings: Any, context: PluginContext) -> Sequence[SetupQuestion]: ...

    async def save_setup_answers(
        self, settings: Any, context: PluginContext, answers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Store the answers that are not secret, and return the keys to write into the provider's section. For a
        secret, `answers` contains the name of its environment variable.
        """

    async def test_setup(self, settings: Any, context: PluginContext) -> str:
        """Test the settings without storing anything, and return the service's name. Raises the error if they fail."""


class MemoryProvider(Protocol):
    """One instance for one agent. These two methods are required; `ExtendedMemoryProvider` lists the optional ones."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        """Store every item and return the remote id of each key. Raises Transient, Refused, or InDoubt.

        Transient and Refused mean that nothing of the batch was stored. If some items were stored before the rest was
        refused, raise PartiallyDone.
        """

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]: ...


class ExtendedMemoryProvider(MemoryProvider, Protocol):
    """Everything a provider may implement. Only the methods that its `capabilities` name are called."""

    capabilities: frozenset[MemoryCapability]
    """Empty if left out."""
    delivery: DeliveryGuarantee
    """`blind` if left out, because then the outcome of a lost answer is unknown."""
    deadline: float
    """Seconds a call may take; 30 if left out."""
    visible_after: float
    """Seconds until `probe` can find a stored item; 0 if left out."""

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        """For `probe` delivery: return the keys of `batch` that have arrived."""

    def tools(self) -> Sequence[Tool]:
        """Return the tools for the agent's model. Called once, when the agent is built."""

    def prompt(self) -> str:
        """Return a block for the system prompt. It stays the same until the agent is rebuilt. No I/O."""

    async def before_compress(self, scope: MemoryScope, view: Sequence[MemoryUtterance]) -> str:
        """Return what the summary of `view` should preserve, or an empty string."""

    async def session_switched(self, switch: SessionSwitch) -> None:
        """Receive a notice. Nothing depends on it, because earlier items are delivered under their session's name."""

    async def forget(self, person: str) -> ForgetResult:
        """Delete everything that belongs to a person."""

    def export(self, person: str) -> AsyncIterator[MemoryHit]:
        """Return everything that belongs to a person."""

    async def health(self) -> ProviderHealth: ...

    async def close(self) -> None:
        """Close connections. Nothing is pending that could get lost."""

    def cache_busting_signature(self) -> Mapping[str, str | int | float | bool | None] | None:
        """Return the values (`provider.key -> value`) whose change requires a new instance before the next message.

        No I/O. If it raises, the old instance stays in use, and a warning is logged.
        """
