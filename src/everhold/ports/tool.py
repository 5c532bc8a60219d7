"""The interface of a tool. A tool declares what running it twice would do."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from everhold.core.entries import Attachment, ChatLocation, Noted, Stamp
from everhold.ports.model import ToolSpec


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
    """The literal messages of people in this turn."""
    sources: tuple[str, ...] = ()
    """Other sources in this turn: `tool:<name>`, `bot:<name>`. A statement that only they make is no fact."""


class SendRequest(Struct, frozen=True, kw_only=True):
    """A message that a tool sends to a chat. It is committed with the tool's result and delivered by the outbox."""

    text: str
    to: ChatLocation
    hops: int = 0


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


class Tool(Protocol):
    """Runs when a model calls it. A failure becomes the result that the model sees."""

    spec: ToolSpec
    effect: ToolEffect
    deadline: float
    """Seconds after which a call is cancelled."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult: ...

    async def probe(self, context: ToolContext) -> ToolResult | None:
        """For `probe` tools: return the result if this key was done, or None."""
