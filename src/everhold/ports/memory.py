"""A memory provider's promise: store this, find this. Everything else is an optional, declared capability.

A provider holds no buffer, no cache and no thread that data could die in: the log is the queue, and a lane calls.
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
    """Who said what in an exchange."""

    author: str
    text: str
    at: float
    stamp: Stamp
    seq: int = 0
    """The entry it stands in: where something that is found again came from."""


class Exchange(Struct, frozen=True, kw_only=True):
    """One finished operation: what was heard, what was done, what was said."""

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
    """A fact somebody wants kept."""

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
    """Whose words these are if not those of somebody who was there: `tool:<name>`, `bot:<name>`, `file:<name>`."""


class MemoryRetraction(Struct, frozen=True, kw_only=True):
    """What was stored under these keys was undone."""

    key: str
    session: str
    agent: str
    keys: tuple[str, ...]
    at: float = 0.0


class JobResult(Struct, frozen=True, kw_only=True):
    """Something was worked on beside the conversation, and is finished. The next exchange holds the result as well."""

    key: str
    session: str
    """Where it was asked for, and its result is heard."""
    agent: str
    seq: int
    task: str
    result: str
    """Or why there is none."""
    at: float
    stamp: Stamp
    """Of whoever asked for it."""


MemoryItem: TypeAlias = Exchange | MemoryNote | MemoryRetraction


class MemoryBatch(Struct, frozen=True, kw_only=True):
    """What is handed over at once: one session's, in order. A repeat is exactly the same batch."""

    name: str
    """The memory session's name."""
    items: tuple[MemoryItem, ...]
    jobs: tuple[JobResult, ...] = ()
    """Only for those who declare `jobs`, and never together with items."""
    replaced: dict[str, str] = {}
    """What notes said that are replaced, as far as it is still known: for services that keep no key of ours.

    By the key of the note, or by the fact's id where it was noted in another session.
    """
    heard_by: dict[str, tuple[str, ...]] = {}
    """The audience of what is retracted or replaced, by its key as above, as far as it is still known."""


class MemoryQuery(Struct, frozen=True, kw_only=True):
    """What to look for, and for whom. There is no default scope."""

    text: str
    agent: str
    session: str
    name: str
    audience: tuple[str, ...]
    person: str
    limit: int = 20
    seen: frozenset[int] = frozenset()
    """Entries of `session` that whoever asks has in sight: they need not be found."""
    tokens: int = 0
    """About how much of what is found can be shown, if that is known: no more need be found."""
    stamp: Stamp = Stamp()
    """Where and by whom it is asked, as it will be stamped on what is said about it; empty if nobody is talking."""


class MemoryHit(Struct, frozen=True, kw_only=True):
    """Something a provider remembers, and where it came from."""

    text: str
    score: float = 0.0
    session: str = ""
    seq: int = 0
    person: str = ""
    """Whom it is filed under; of a reply, whom it was said to."""
    at: float = 0.0
    key: str = ""
    author: str = ""
    """Who said it, as the log has it: `person:…`, `agent:…`."""
    kind: str = ""
    """message, reply or note; empty if it is not known."""
    origin: str = ""
    """Whose words these are if not those of somebody who was there: `tool:<name>`, `bot:<name>`, `file:<name>`."""


class MemoryScope(Struct, frozen=True, kw_only=True):
    """For whom, and where, a provider is asked for something that is not a search."""

    agent: str
    session: str
    name: str
    """The memory session's name."""
    person: str
    audience: tuple[str, ...] = ()


class SessionSwitch(Struct, frozen=True, kw_only=True):
    """A conversation goes on elsewhere, or afresh. Nothing has to be flushed: what was said goes out by itself."""

    how: str
    """`new`, `resume`, `branch` or `compression`."""
    before: MemoryScope
    after: MemoryScope


class ForgetResult(Struct, frozen=True, kw_only=True):
    """What a provider deleted, and what it could not."""

    deleted: int
    kept: tuple[str, ...] = ()
    """What is still there, one line each, with the reason."""


SEEN_REMOTE_ID: Final = "seen"
"""The remote id of something that an unacknowledged provider was told, and showed when it was searched."""


class ProviderHealth(Struct, frozen=True, kw_only=True):
    """How a provider is. `text` is for people."""

    well: bool
    text: str = ""


class MemoryCapability(StrEnum):
    """What a provider may offer besides `store` and `find`. Only what it declares is ever called."""

    PROBE = "probe"
    """Can be asked what has arrived; `probe` delivery needs it. Of an `unacknowledged` one only a yes is believed."""
    RETRACT = "retract"
    """Batches may hold retractions; without it what was undone stays where it is."""
    JOBS = "jobs"
    """Is handed batches of jobs as well; without it none are sent."""
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
    """Something a provider has to be told before it can be used."""

    key: str
    question: str
    secret: bool = False
    needed: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()
    variable: str = ""
    """The environment variable it is known by, if it is known by one."""
    when: Mapping[str, str] = {}
    """Only asked if these were answered so."""
    defaults: Mapping[str, str] = {}
    """The default by the answer to `defaults_by`."""
    defaults_by: str = ""


@runtime_checkable
class SupportsSetup(Protocol):
    """A factory whose providers keep settings of their own, besides their section in config.yaml."""

    async def list_setup_questions(self, settings: Any, context: PluginContext) -> Sequence[SetupQuestion]: ...

    async def save_setup_answers(
        self, settings: Any, context: PluginContext, answers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Keep what is no secret where it belongs; what else has to stand in its section. Of a secret, `answers` holds
        the name of its variable.
        """

    async def test_setup(self, settings: Any, context: PluginContext) -> str:
        """Try it, without leaving a trace; what it is called. Raises what is wrong."""


class MemoryProvider(Protocol):
    """One instance for one agent. These two are enough to be correct; what else there is, `Capable` says."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        """Keep every item; the remote id of each key. Raises Transient, Refused, or InDoubt.

        The first two say that nothing of the batch was kept. If something was before the rest was refused: Partial.
        """

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]: ...


class ExtendedMemoryProvider(MemoryProvider, Protocol):
    """Everything a provider may have. It implements what its `capabilities` name, and nothing else is asked of it."""

    capabilities: frozenset[MemoryCapability]
    """Nothing if left out."""
    delivery: DeliveryGuarantee
    """`blind` if left out: nobody can tell what became of a lost answer."""
    deadline: float
    """Seconds a call may take; 30 if left out."""
    visible_after: float
    """Seconds until what was stored can be found by `probe`; 0 if left out."""

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        """For `probe` delivery: those keys of `batch` that have arrived."""

    def tools(self) -> Sequence[Tool]:
        """What the agent's model may call. Asked once, when the agent is built."""

    def prompt(self) -> str:
        """A block for the system prompt; the same until the agent is built anew. No I/O."""

    async def before_compress(self, scope: MemoryScope, view: Sequence[MemoryUtterance]) -> str:
        """What the summary of `view` should not lose, or nothing."""

    async def session_switched(self, switch: SessionSwitch) -> None:
        """News, not a duty: whatever was said before goes out under its own session's name without it."""

    async def forget(self, person: str) -> ForgetResult:
        """Delete what belongs to a person."""

    def export(self, person: str) -> AsyncIterator[MemoryHit]:
        """Everything that belongs to a person."""

    async def health(self) -> ProviderHealth: ...

    async def close(self) -> None:
        """Let connections go. Nothing is pending in here that could get lost."""

    def cache_busting_signature(self) -> Mapping[str, str | int | float | bool | None] | None:
        """`provider.key -> value` of whatever, when it changes, calls for a new instance before the next message.

        No I/O. If it raises, the old instance stays, loudly.
        """
