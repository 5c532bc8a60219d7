"""The interface of a tool. A tool declares what running it twice would do."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from everhold.core.entries import Attachment, ChatLocation, Noted, Stamp
from everhold.core.people import PresentAudience
from everhold.core.policy import ToolReach
from everhold.core.roles import ChatPlace, PersonRole, ToolAccess
from everhold.ports.memory_hit import MemoryHit
from everhold.ports.model import ToolSpec
from everhold.ports.store import StateWrite


class ToolEffect(StrEnum):
    """What a repeated call does. A tool that does not declare it is `once`."""

    PURE = "pure"
    """A repeat has no effect, so run it again."""
    KEYED = "keyed"
    """A repeat with the same key has no effect."""
    PROBE = "probe"
    """The tool can tell whether a call with a key was done."""
    ONCE = "once"
    """A repeat does harm, so never run it again; report that the outcome is unknown."""


class ToolContext(Struct, frozen=True, kw_only=True):
    """The context of one tool call. `key` is the same when the same call is repeated."""

    session: str
    agent: str
    op: int
    key: str
    stamp: Stamp
    origin: ChatLocation | None = None
    hops: int = 0
    said: tuple[str, ...] = ()
    """The people's own words in this turn, literally."""
    sources: tuple[str, ...] = ()
    """Other sources in this turn: `tool:<name>`, `bot:<name>`, `forward:<author>`, `quote:<author>`. A statement that
    only they make is no fact."""
    role: PersonRole = PersonRole.MEMBER
    """The lowest role of the people whose words this turn takes."""
    place: ChatPlace = ChatPlace.DIRECT
    """The kind of chat that the turn answers in."""
    speakers: tuple[str, ...] = ()
    """The identities of the people whose words this turn takes."""
    is_asked: bool = True
    """A person asks now. False for a turn of a schedule or a bot."""
    present: PresentAudience = PresentAudience()
    """For a memory's tools: the people present, with all identities of each."""
    peers: dict[str, tuple[str, ...]] = {}
    """For a memory's tools: identity -> all peers under which the memory ever stored it, the latest first."""


class SendRequest(Struct, frozen=True, kw_only=True):
    """A message that a tool sends to a chat. It is committed with the tool's result and delivered by the outbox."""

    text: str
    to: ChatLocation
    hops: int = 0


class DelegatedTask(Struct, frozen=True, kw_only=True):
    """A task for a sub-agent. It is committed with the tool's result."""

    task: str
    slot: int
    """Which of the sub-agents of the conversation does it."""
    context: str = ""
    tools: tuple[str, ...] = ()
    """The tools that it may use; empty: all that a sub-agent may."""


class ToolFile(Struct, frozen=True, kw_only=True):
    """A file that a tool made or found. Its name is a label and is never used as a path."""

    data: bytes
    name: str = ""
    media: str = ""


class ToolResult(Struct, frozen=True, kw_only=True):
    """A tool's result. Its notes, send requests and files are committed together with it."""

    text: str
    error: bool = False
    notes: Sequence[Noted] = ()
    send_requests: Sequence[SendRequest] = ()
    files: Sequence[ToolFile] = ()
    """Stored by content hash, so that this or a later turn can attach them to a reply."""
    attached: Sequence[Attachment] = ()
    """Stored files to send with the turn's reply."""
    state_writes: Sequence[StateWrite] = ()
    """For built-in tools: state records that are written with the result. If one changed since it was read, nothing is
    written, and the call runs again."""
    delegated: Sequence[DelegatedTask] = ()
    """For the built-in tool `delegate`: tasks for sub-agents."""
    hits: Sequence[MemoryHit] = ()
    """What a memory's tool found. The gateway judges each hit and appends those that may be shown; `text` is shown if
    there are none.
    """


class Tool(Protocol):
    """Runs when a model calls it. A failure becomes the result that the model sees.

    A memory's tool that shows what it found only as `ToolResult.hits` says so with `shows_hits = True`. Other tools of
    a memory are refused while it may still have erased text.
    """

    spec: ToolSpec
    effect: ToolEffect
    deadline: float
    """Seconds after which a call is cancelled."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult: ...

    async def probe(self, context: ToolContext) -> ToolResult | None:
        """For `probe` tools: return the result if this key was done, or None."""


@runtime_checkable
class SupportsAccess(Protocol):
    """Optional: a tool that says what it does. A tool that does not say so acts."""

    access: ToolAccess
    """It decides which roles may use the tool, and whether a turn without words of a person's own may. It is about the
    outside: a tool may act although a repeated call does no harm.
    """


@runtime_checkable
class SupportsReach(Protocol):
    """Optional: a tool that says what a call with these arguments touches. The policy decides by it. A call of a tool
    that does not say so reaches outside, unless its access is to read, note or change what the gateway itself keeps.
    """

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach: ...


@runtime_checkable
class SupportsBinding(Protocol):
    """Optional: a tool whose calls depend on more than their arguments, such as a script that a command runs. A person
    approves a call together with it.
    """

    async def bind(self, arguments: dict[str, Any], context: ToolContext) -> str:
        """Return a text that changes when the same call would do something else. Raises what `run` would raise."""


def get_access(tool: Tool) -> ToolAccess:
    return tool.access if isinstance(tool, SupportsAccess) else ToolAccess.ACT


def get_reach(tool: Tool, arguments: dict[str, Any]) -> ToolReach:
    """Return the reach of a call. Raises what the tool raises."""
    if isinstance(tool, SupportsReach):
        return ToolReach(tool.find_reach(arguments))
    return ToolReach.OUTSIDE if get_access(tool) is ToolAccess.ACT else ToolReach.OWN
