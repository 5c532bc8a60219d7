"""The interface of a memory provider: store and find. Everything else is an optional, declared capability.

A provider needs no buffer and no thread of its own, because the log is the queue and the consumer's worker calls.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from everhold.core.entries import Stamp
from everhold.core.peers import PeerRule
from everhold.core.people import PresentAudience
from everhold.ports.memory_hit import MemoryHit as MemoryHit
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import Tool


class MemoryUtterance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message or reply of an exchange."""

    author: str
    text: str
    at: float
    stamp: Stamp
    seq: int = 0
    """The entry it comes from, so that a hit can be traced back to the log."""
    peer: str = ""
    """The peer under which this memory stores the author; empty for agents and for memories without peers."""


class Exchange(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    peers: dict[str, str] = {}
    """Identity -> the peer under which this memory stores the person, for the identities of the stamp."""


class MemoryNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    peers: dict[str, str] = {}
    """Identity -> the peer under which this memory stores the person, for the identities of the stamp."""


class MemoryRetraction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The items that were stored under these keys were undone."""

    key: str
    session: str
    agent: str
    keys: tuple[str, ...]
    at: float = 0.0


class JobResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    peers: dict[str, str] = {}
    """Identity -> the peer under which this memory stores the person, for the identities of the stamp."""


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
    is_moved: bool = False
    """The items are stored in another session of the memory, too, so only this session shows whether they have
    arrived."""
    peers_of: dict[str, dict[str, str]] = {}
    """The `peers` of each retracted or replaced item, by its key as above, as far as it is still known."""
    names_of: dict[str, str] = {}
    """The memory session of each retracted item, by its key, if it is another one than `name`."""


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
    present: PresentAudience = PresentAudience()
    """The people present, with all identities of each. A hit is theirs if it was for any identity of each of them."""
    asked_at: float = 0.0
    """When the question was asked; 0 if unknown. Relative dates such as "last week" refer to it."""
    utc_offset_seconds: int = 0
    """How far the agent's time zone was ahead of UTC then."""
    peers: dict[str, tuple[str, ...]] = {}
    """Identity -> all peers under which this memory ever stored it, the latest first, for every identity in
    `present`. Several people's peers are not among them."""


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
    """`new`, `resume`, `branch` or `compression`."""
    before: MemoryScope
    after: MemoryScope


class ErasureState(StrEnum):
    """How far the erasure in one place has come. "Deleted" is said only after reading back."""

    PLANNED = "planned"
    """Nothing was asked yet."""
    ASKED = "asked"
    """The place was asked to delete, and it is not known yet that it did."""
    CONFIRMED = "confirmed"
    """Reading back, by id and by search, found nothing twice."""
    UNCONFIRMED = "unconfirmed"
    """It is still there, or cannot be read back, long after it was asked. It is asked again daily."""
    CANNOT = "cannot"
    """There is no means to delete it. The reason says what remains, where, and what to do by hand."""


class SessionRenewal(Struct, frozen=True, kw_only=True):
    """What to store anew under another name, before the old session is deleted."""

    name: str
    new_name: str
    is_left: bool
    """Every conversation writes to the new session. Before that the old one is only copied, because more may come."""
    keys: frozenset[str]
    """The keys of the items that are left out: they were undone or erased."""
    since: float
    """When the first undone word was said. What the service concluded before does not come from it."""
    notes: frozenset[str] = frozenset()
    """The texts of the notes that were stored in the session, for services that do not keep our keys."""
    starts: Mapping[str, float] = {}
    """Peer -> the time from which on it stands for its person, where that is not always. Conclusions from before must
    not look new."""


class ErasureTarget(Struct, frozen=True, kw_only=True):
    """Everything that somebody goes by in one memory, so that two peers of one person are not two people."""

    identities: tuple[str, ...]
    peers: tuple[str, ...] = ()
    """The recorded peers of these identities that stand for nobody else."""
    shared_peers: tuple[str, ...] = ()
    """Their recorded peers under which other people have something, too."""
    reused_identities: frozenset[str] = frozenset()
    """Those identities that belonged to somebody else before. What is filed under them is not all this person's."""
    peers_of: Mapping[str, tuple[str, ...]] = {}
    """Identity -> all its recorded peers, for everybody in `audiences`."""
    keys: tuple[str, ...] = ()
    """The keys of the items that were erased."""
    kept_keys: frozenset[str] = frozenset()
    """The keys of items that the log still has, because the person came back. They stay."""
    before: float = math.inf
    """When the erasure began. Anything newer stays, too, unless its key was erased. A request may come days later."""
    remote_ids: tuple[str, ...] = ()
    """The receipts of these items."""
    audiences: tuple[tuple[str, ...], ...] = ()
    """Everybody who could read these items: the audiences that some services file by."""
    moved_sessions: Mapping[str, str] = {}
    """Memory sessions that no conversation writes to any more -> the session that the conversation writes to now."""
    rebuild: bool = False
    """Store the words of other people under the new session before a session is deleted in which they speak, too."""


class ProviderDeletion(Struct, frozen=True, kw_only=True):
    """One thing that a provider deletes, or cannot delete. The gateway stores it until it is confirmed."""

    id: str
    """Made by the provider, which reads it back by this id. Unique for one provider and person."""
    what: str
    """For people: what it is, and where."""
    state: ErasureState = ErasureState.ASKED
    count: int = 0
    """How many items it is about."""
    reason: str = ""
    """Why it is not confirmed, or what remains and what to do by hand."""
    upto: float = 0.0
    """The service's own time of the newest item. Later items were not part of it; 0: there can be none."""
    session: str = ""
    """The memory session that has to be left by its conversations first. Then it is `planned`."""
    hidden: bool = False
    """No recall, tool or export of the provider can show it: a log of requests, a file of its own."""


SEARCH_PROBE_TEXT: Final = "what was said"
"""The query of a readback search. The erased text itself is not kept, so every neighbour is looked at."""


SEEN_REMOTE_ID: Final = "seen"
"""The remote id of an item that an unacknowledged provider received, and that a search found there."""


class ProviderHealth(Struct, frozen=True, kw_only=True):
    """A provider's condition. `text` and `remedy` are for people."""

    healthy: bool
    text: str = ""
    remedy: str = ""
    """What a person must do, if waiting does not help."""


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
    REMOVE = "remove"
    """Can delete the items of a batch. Moving a person's items to another peer needs it."""
    REMOVE_SESSION = "remove_session"
    """Deletes items for good only with their session, so a move makes a new session."""
    RENEW_SESSION = "renew_session"
    """Deletes items for good only with their session, and concludes something from them. After an undo the session is
    stored anew without the undone items."""
    FORGET = "forget"
    """Can delete what belongs to a person, and read back that it is deleted (`confirm_deletions`)."""
    EXPORT = "export"
    HEALTH = "health"
    CLOSE = "close"
    SIGNATURE = "cache_busting_signature"
    PERSONA = "set_persona"
    """The service has a place for what the agent is, apart from what is known about people."""


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
    is_in_process: bool
    """Its searches run in this process, so it is not paused after failures. False if left out."""
    peer_rule: PeerRule | None
    """How the provider names people. Without it, items and queries contain no peers."""

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        """For `probe` delivery: return the keys of `batch` that have arrived."""

    def tools(self) -> Sequence[Tool]:
        """Return the tools for the agent's model. Called once, when the agent is built."""

    def prompt(self) -> str:
        """Return a block for the system prompt. It stays the same until the agent is rebuilt. No I/O."""

    def set_persona(self, persona: str) -> None:
        """Receive the agent's persona, to be offered to the service with the next write; empty for none. Called when
        the agent is built, and when the persona changes. No I/O.
        """

    async def before_compress(self, scope: MemoryScope, view: Sequence[MemoryUtterance]) -> str:
        """Return what the summary of `view` should preserve, or an empty string."""

    async def session_switched(self, switch: SessionSwitch) -> None:
        """Receive a notice. Nothing depends on it, because earlier items are delivered under their session's name."""

    async def remove(self, batch: MemoryBatch) -> Sequence[str]:
        """Delete the items of a batch, as they were stored, and return the keys that are still found. Safe to repeat.
        A memory that declares `remove_session` only hides them until then.
        """

    async def remove_session(self, name: str) -> str:
        """Delete a session with its items, and return why it was kept, if it was. Safe to repeat."""

    async def renew_session(self, renewal: SessionRenewal) -> Sequence[ProviderDeletion]:
        """Copy a session without some of its items, and ask for its deletion once no conversation writes to it. Return
        what is deleted, `planned` before that; nothing if the session has none of the items. Safe to repeat.
        """

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        """Ask for the deletion of everything that belongs to a person; return every part of it. Safe to repeat.

        A deletion that names a `session` is `planned` until `target.moved_sessions` contains that session.
        """

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        """Read back, by id and by search, and return a state by the id of each deletion: `confirmed` if nothing is
        left, `asked` while something is. Raises Transient if it cannot be read now.
        """

    def export(
        self, person: str, *, peers: Sequence[str] = (), shared_peers: Sequence[str] = ()
    ) -> AsyncIterator[MemoryHit]:
        """Return everything that belongs to a person. The peers are those of an ErasureTarget; only a memory with a
        `peer_rule` gets them.
        """

    async def health(self) -> ProviderHealth: ...

    async def close(self) -> None:
        """Close connections. Nothing is pending that could get lost."""

    def cache_busting_signature(self) -> Mapping[str, str | int | float | bool | None] | None:
        """Return the values (`provider.key -> value`) whose change requires a new instance before the next message.

        No I/O. If it raises, the old instance stays in use, and a warning is logged.
        """
