"""The parts of a context: which entries each message to a model comes from, how large it is, and its digest.

Two contexts are compared by the digests of their parts, so a comparison needs no texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from everhold.core.context import SessionContext, TurnEntries, render_messages
from everhold.core.entries import Compressed
from everhold.core.tokens import estimate_tokens, weigh_messages, weigh_text, weigh_tools
from everhold.ports.model import ModelMessage, ToolSpec

PartKind: TypeAlias = Literal["system", "tools", "compression", "pins", "exchange", "recall"]
PartChange: TypeAlias = Literal["same", "added", "dropped", "compressed", "changed"]
DIGEST_CHARS: Final = 16


class ContextPart(Struct, frozen=True, kw_only=True):
    """A part of the request to a model."""

    kind: PartKind
    op: int = 0
    """The operation that it comes from; 0 if there is none."""
    seqs: tuple[int, ...] = ()
    """Its entries."""
    tokens: int
    digest: str
    covers: int = 0
    """Of a compression: the last operation that it replaces."""
    messages: tuple[int, int] | None = None
    """Its messages in the request, from and up to (exclusive)."""


class PartDifference(Struct, frozen=True, kw_only=True):
    """What became of one part between two contexts."""

    change: PartChange
    part: ContextPart
    tokens_before: int
    tokens_after: int
    by: int = 0
    """The compression that replaces it."""


def list_parts(
    view: SessionContext, *, stubs: frozenset[int], system: str, tools: Sequence[ToolSpec], recalled: str = ""
) -> tuple[ContextPart, ...]:
    """Return the parts of the request that is made of these, in its order."""
    return tuple(_list_parts(view, stubs, system, tools, recalled))


def _list_parts(
    view: SessionContext, stubs: frozenset[int], system: str, tools: Sequence[ToolSpec], recalled: str
) -> Iterator[ContextPart]:
    if system:
        yield ContextPart(kind="system", tokens=estimate_tokens(weigh_text(system)), digest=_digest(system))
    if tools:
        yield ContextPart(kind="tools", tokens=estimate_tokens(weigh_tools(tools)), digest=_digest(tools))
    at = 0
    if view.compression is not None and isinstance(view.compression.body, Compressed):
        shown = render_messages(SessionContext(compression=view.compression))
        yield ContextPart(
            kind="compression",
            op=view.compression.op or 0,
            seqs=(view.compression.seq,),
            tokens=_count_tokens(shown),
            digest=_digest(shown),
            covers=view.compression.body.covers,
            messages=(at, at + len(shown)),
        )
        at += len(shown)
    if view.pins:
        shown = render_messages(SessionContext(pins=view.pins))
        seqs = tuple(pin.seq for pin in view.pins)
        yield _build_part("pins", 0, seqs, shown, at)
        at += len(shown)
    for number, turn in enumerate(view.turns, start=1):
        shown = render_messages(SessionContext(turns=(turn,)), stubs=stubs)
        if recalled and number == len(view.turns):
            yield ContextPart(
                kind="recall", op=turn.op, tokens=estimate_tokens(weigh_text(recalled)), digest=_digest(recalled)
            )
            shown_with = len(render_messages(SessionContext(turns=(turn,)), stubs=stubs, recalled=recalled))
            yield msgspec.structs.replace(
                _build_part("exchange", turn.op, _list_seqs(turn), shown, at), messages=(at, at + shown_with)
            )
            return
        yield _build_part("exchange", turn.op, _list_seqs(turn), shown, at)
        at += len(shown)


def _build_part(
    kind: PartKind, op: int, seqs: tuple[int, ...], shown: tuple[ModelMessage, ...], at: int
) -> ContextPart:
    return ContextPart(
        kind=kind, op=op, seqs=seqs, tokens=_count_tokens(shown), digest=_digest(shown), messages=(at, at + len(shown))
    )


def _list_seqs(turn: TurnEntries) -> tuple[int, ...]:
    return tuple(sorted({entry.seq for entry in (*turn.heard, *turn.steps)}))


def _count_tokens(shown: Iterable[ModelMessage]) -> int:
    return estimate_tokens(weigh_messages(shown))


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:DIGEST_CHARS]


def compare_parts(before: Sequence[ContextPart], after: Sequence[ContextPart]) -> tuple[PartDifference, ...]:
    """Return what became of each part: those of `before` in order, then those that are new in `after`."""
    later = {(part.kind, part.op): part for part in after}
    earlier = {(part.kind, part.op) for part in before}
    compression = next((part for part in after if part.kind == "compression"), None)
    found = [_compare_part(part, later.get((part.kind, part.op)), compression) for part in before]
    found += [
        PartDifference(change="added", part=part, tokens_before=0, tokens_after=part.tokens)
        for part in after
        if (part.kind, part.op) not in earlier
    ]
    return tuple(found)


def _compare_part(part: ContextPart, later: ContextPart | None, compression: ContextPart | None) -> PartDifference:
    if later is not None:
        change: PartChange = "same" if later.digest == part.digest else "changed"
        return PartDifference(change=change, part=later, tokens_before=part.tokens, tokens_after=later.tokens)
    is_covered = compression is not None and (
        part.kind == "compression" or (part.kind == "exchange" and 0 < part.op <= compression.covers)
    )
    return PartDifference(
        change="compressed" if is_covered else "dropped",
        part=part,
        tokens_before=part.tokens,
        tokens_after=0,
        by=compression.op if is_covered and compression is not None else 0,
    )
