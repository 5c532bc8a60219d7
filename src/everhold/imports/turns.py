"""Rows of a foreign transcript -> the entries of turns. Decides what belongs together; writes nothing.

A turn there begins with what people said and goes on until they speak again. Nothing is answered on the way in: a
message that has no reply there has none here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.core.consumers import TURN
from everhold.core.entries import (
    OWN,
    Began,
    Body,
    Call,
    Changed,
    Draft,
    Ended,
    Heard,
    Notified,
    OperationsUndone,
    Place,
    Returned,
    Said,
    Stamp,
    Thought,
    clean,
)
from everhold.hermes.database import MULTIMODAL, Row

NO_RESULT: Final = "[no result was recorded]"


@dataclass(frozen=True)
class Voice:
    """Who speaks in a conversation, and where."""

    agent: str
    place: Place
    stamp: Stamp
    key: Callable[[int], str]
    """The dedup key of a row."""


@dataclass
class Piece:
    """Rows that become one operation; only what was overheard becomes none."""

    heard: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    undone: bool = False

    @property
    def rows(self) -> list[Row]:
        return [*self.heard, *self.steps]

    @property
    def overheard(self) -> bool:
        """Nobody asked anything and nobody answered."""
        return not self.steps and all(row.observed for row in self.heard)


def pieces(rows: Iterable[Row], *, starts: set[int]) -> Iterator[Piece]:
    """The turns among `rows`. One begins at each row in `starts`, whatever stands before it."""
    now = Piece()
    for row in rows:
        begins = row.id in starts or row.undone != now.undone or (row.role == "user" and bool(now.steps))
        if begins and now.rows:
            yield now
            now = Piece()
        now.undone = row.undone
        (now.heard if row.role == "user" else now.steps).append(row)
    if now.rows:
        yield now


def drafts(
    piece: Piece, voice: Voice, *, seq: int, fold: int, generation: int, overheard: Sequence[int] = ()
) -> tuple[list[Draft], int]:
    """The entries of a piece that begins at `seq`, and its operation (0 for none). It takes what was `overheard`."""
    found = [_heard(row, voice) for row in piece.heard]
    if piece.overheard:
        return found, 0
    op = seq + len(found)
    takes = (*(() if piece.undone else overheard), *range(seq, op))
    last = piece.rows[-1].timestamp
    began = Began(type="turn", takes=takes, compression=fold, generation=generation, consumer=TURN, trigger="import")
    found.append(
        Draft(body=began, author="system", at=piece.rows[len(piece.heard) - 1 if piece.heard else 0].timestamp)
    )
    found += _steps(piece.steps, voice)
    found.append(Draft(body=Ended(), author="system", op=OWN, at=last))
    if piece.undone:
        found.append(Draft(body=Changed(change=OperationsUndone(ops=(op,))), author="system", at=last))
    return found, op


def _heard(row: Row, voice: Voice) -> Draft:
    text, mangled = clean(text_of(row.content))
    place = Place(
        platform=voice.place.platform,
        account=voice.place.account,
        chat=voice.place.chat,
        thread=voice.place.thread,
        message=row.platform_message_id,
    )
    body = Heard(origin=place, text=text, asks=not row.observed, mangled=mangled, stamp=voice.stamp)
    return Draft(body=body, author=f"person:{voice.stamp.person}", dedup=voice.key(row.id), at=row.timestamp)


def _steps(rows: list[Row], voice: Voice) -> Iterator[Draft]:
    waiting: dict[str, str] = {}
    last = 0.0

    def missing() -> Iterator[Draft]:
        for call, tool in waiting.items():
            body = Returned(call=call, text=NO_RESULT, error=True, unknown=True)
            yield Draft(body=body, author=f"tool:{tool}", op=OWN, at=last)
        waiting.clear()

    for row in rows:
        key = voice.key(row.id)
        if row.role == "tool" and row.tool_call_id in waiting:
            tool = waiting.pop(row.tool_call_id)
            result = Returned(call=row.tool_call_id, text=clean(text_of(row.content))[0])
            yield Draft(body=result, author=f"tool:{tool}", op=OWN, dedup=key, at=row.timestamp)
        elif row.role == "assistant":
            yield from missing()
            text = clean(text_of(row.content))[0]
            calls = calls_of(row)
            waiting |= {call.id: call.tool for call in calls}
            thought = Thought(text=text, calls=calls, reasoning=clean(row.reasoning)[0])
            yield Draft(body=thought, author=f"agent:{voice.agent}", op=OWN, dedup=key, at=row.timestamp)
            if text and not calls:
                said = Said(text=text, to=voice.place, parts=(text,), stamp=voice.stamp)
                yield Draft(body=said, author=f"agent:{voice.agent}", op=OWN, at=row.timestamp)
        else:
            yield aside(row, voice, op=OWN)
        last = row.timestamp
    yield from missing()


def aside(row: Row, voice: Voice, *, op: int | None = None, about: str = "") -> Draft:
    """Something that was kept there and has no place in a conversation: it is kept, and no model is shown it."""
    body: Body = Notified(text=clean(text_of(row.content))[0], about=about or f"imported: {row.role or 'unknown'}")
    return Draft(body=body, author="system", op=op, dedup=voice.key(row.id), at=row.timestamp)


def text_of(content: str | None) -> str:
    """What a message says. Of one in parts the texts; what is no text is shown as it was written."""
    if not content or not content.startswith(MULTIMODAL):
        return content or ""
    try:
        parts = json.loads(content.removeprefix(MULTIMODAL))
    except ValueError:
        return content
    return "\n".join(_part(part) for part in (parts if isinstance(parts, list) else [parts]))


def _part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)


def calls_of(row: Row) -> tuple[Call, ...]:
    """The tool calls a message makes, each under a name of its own."""
    try:
        given = json.loads(row.tool_calls) if row.tool_calls else []
    except ValueError:
        return ()
    found: dict[str, Call] = {}
    for number, call in enumerate(given if isinstance(given, list) else [given]):
        if not isinstance(call, dict):
            continue
        inner = call.get("function")
        function: dict[str, Any] = inner if isinstance(inner, dict) else call
        id = clean(str(call.get("id") or call.get("call_id") or f"{row.id}-{number}"))[0]
        name = clean(str(function.get("name") or "unknown"))[0]
        found.setdefault(id, Call(id=id, tool=name, arguments=_arguments(function.get("arguments"))))
    return tuple(found.values())


def _arguments(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            parsed = json.loads(given) if given.strip() else {}
        except ValueError:
            parsed = None
        given = parsed if isinstance(parsed, dict) else {"": clean(given)[0]}
    return given if isinstance(given, dict) else {}
