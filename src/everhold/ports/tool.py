"""A tool's promise, and the one thing it must be honest about: what running it twice would do."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from everhold.core.entries import Attachment, ChatLocation, Noted, Stamp
from everhold.ports.model import ToolSpec


class ToolEffect(StrEnum):
    """What a repeat does. A tool that does not say is `once`."""

    PURE = "pure"
    """Nothing: run it again."""
    KEYED = "keyed"
    """Nothing, if the same key is given."""
    PROBE = "probe"
    """It can be asked whether a key was done."""
    ONCE = "once"
    """Harm: never run it again; say that the outcome is unknown."""


class ToolContext(Struct, frozen=True, kw_only=True):
    """On whose behalf a tool runs. `key` is the same when the same call is made again."""

    session: str
    agent: str
    op: int
    key: str
    stamp: Stamp
    origin: ChatLocation | None = None
    hops: int = 0
    said: tuple[str, ...] = ()
    """What people said in this turn, word for word."""
    sources: tuple[str, ...] = ()
    """Who else had a say in it: `tool:<name>`, `bot:<name>`. What rests on their words alone is no fact."""


class SendRequest(Struct, frozen=True, kw_only=True):
    """Something a tool wants said somewhere; committed with its result, delivered by voice."""

    text: str
    to: ChatLocation
    hops: int = 0


class ToolFile(Struct, frozen=True, kw_only=True):
    """A file that a tool made or found. Its name is a label: nobody opens it as a path."""

    data: bytes
    name: str = ""
    media: str = ""


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a tool gives back; notes, sayings and files commit together with it."""

    text: str
    error: bool = False
    notes: Sequence[Noted] = ()
    send_requests: Sequence[SendRequest] = ()
    files: Sequence[ToolFile] = ()
    """Kept by content hash, so that they can be attached to a reply, now or later."""
    attached: Sequence[Attachment] = ()
    """Files that are kept, to go with the turn's reply."""


class Tool(Protocol):
    """Runs when a model calls it. A failure becomes the result the model sees."""

    spec: ToolSpec
    effect: ToolEffect
    deadline: float
    """Seconds after which a run is given up."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult: ...

    async def probe(self, context: ToolContext) -> ToolResult | None:
        """For `probe` tools: the result if this key was done, None if it was not."""
