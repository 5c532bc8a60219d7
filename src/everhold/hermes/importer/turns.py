"""Converts rows of a hermes-agent transcript to the entries of turns. It groups rows and writes nothing.

A turn begins with messages of people and lasts until they write again. The import answers nothing, so a message without
a reply in the source has none here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.core.consumers import TURN
from everhold.core.entries import (
    OWN_OPERATION,
    Began,
    Changed,
    ChatLocation,
    Ended,
    EntryBody,
    EntryDraft,
    Heard,
    Notified,
    OperationsUndone,
    Returned,
    Said,
    Stamp,
    Thought,
    ToolCall,
    strip_surrogates,
)
from everhold.hermes.reader.database import MULTIMODAL_PREFIX, HermesMessage

NO_RESULT_TEXT: Final = "[no result was recorded]"


@dataclass(frozen=True)
class ImportContext:
    """The people and the place of a conversation."""

    agent: str
    location: ChatLocation
    stamp: Stamp
    key: Callable[[int], str]
    """Return the dedup key of a row."""


@dataclass
class TurnRows:
    """Rows that become one operation. Overheard messages alone become none."""

    heard: list[HermesMessage] = field(default_factory=list)
    steps: list[HermesMessage] = field(default_factory=list)
    undone: bool = False

    @property
    def rows(self) -> list[HermesMessage]:
        return [*self.heard, *self.steps]

    @property
    def is_overheard(self) -> bool:
        """Whether there is neither a question nor an answer."""
        return not self.steps and all(row.observed for row in self.heard)


def split_turns(rows: Iterable[HermesMessage], *, starts: set[int]) -> Iterator[TurnRows]:
    """Split `rows` into turns. A new turn begins at each row in `starts`."""
    now = TurnRows()
    for row in rows:
        begins = row.id in starts or row.is_undone != now.undone or (row.role == "user" and bool(now.steps))
        if begins and now.rows:
            yield now
            now = TurnRows()
        now.undone = row.is_undone
        (now.heard if row.role == "user" else now.steps).append(row)
    if now.rows:
        yield now


def make_drafts(
    piece: TurnRows,
    context: ImportContext,
    *,
    seq: int,
    compression: int,
    generation: int,
    overheard: Sequence[int] = (),
) -> tuple[list[EntryDraft], int]:
    """Return the entries of a piece that begins at `seq`, and its operation (0 for none). It consumes what was
    `overheard`.
    """
    found = [_make_heard(row, context) for row in piece.heard]
    if piece.is_overheard:
        return found, 0
    op = seq + len(found)
    takes = (*(() if piece.undone else overheard), *range(seq, op))
    last = piece.rows[-1].timestamp
    began = Began(
        type="turn", takes=takes, compression=compression, generation=generation, consumer=TURN, trigger="import"
    )
    found.append(
        EntryDraft(body=began, author="system", at=piece.rows[len(piece.heard) - 1 if piece.heard else 0].timestamp)
    )
    found += _make_steps(piece.steps, context)
    found.append(EntryDraft(body=Ended(), author="system", op=OWN_OPERATION, at=last))
    if piece.undone:
        found.append(EntryDraft(body=Changed(change=OperationsUndone(ops=(op,))), author="system", at=last))
    return found, op


def _make_heard(row: HermesMessage, context: ImportContext) -> EntryDraft:
    text, mangled = strip_surrogates(extract_text(row.content))
    place = ChatLocation(
        platform=context.location.platform,
        account=context.location.account,
        chat=context.location.chat,
        thread=context.location.thread,
        message=row.platform_message_id,
    )
    body = Heard(origin=place, text=text, asks=not row.observed, mangled=mangled, stamp=context.stamp)
    return EntryDraft(body=body, author=f"person:{context.stamp.person}", dedup=context.key(row.id), at=row.timestamp)


def _make_steps(rows: list[HermesMessage], context: ImportContext) -> Iterator[EntryDraft]:
    waiting: dict[str, str] = {}
    last = 0.0

    def missing() -> Iterator[EntryDraft]:
        for call, tool in waiting.items():
            body = Returned(call=call, text=NO_RESULT_TEXT, error=True, unknown=True)
            yield EntryDraft(body=body, author=f"tool:{tool}", op=OWN_OPERATION, at=last)
        waiting.clear()

    for row in rows:
        key = context.key(row.id)
        if row.role == "tool" and row.tool_call_id in waiting:
            tool = waiting.pop(row.tool_call_id)
            result = Returned(call=row.tool_call_id, text=strip_surrogates(extract_text(row.content))[0])
            yield EntryDraft(body=result, author=f"tool:{tool}", op=OWN_OPERATION, dedup=key, at=row.timestamp)
        elif row.role == "assistant":
            yield from missing()
            text = strip_surrogates(extract_text(row.content))[0]
            calls = parse_tool_calls(row)
            waiting |= {call.id: call.tool for call in calls}
            thought = Thought(text=text, calls=calls, reasoning=strip_surrogates(row.reasoning)[0])
            yield EntryDraft(
                body=thought, author=f"agent:{context.agent}", op=OWN_OPERATION, dedup=key, at=row.timestamp
            )
            if text and not calls:
                said = Said(text=text, to=context.location, parts=(text,), stamp=context.stamp)
                yield EntryDraft(body=said, author=f"agent:{context.agent}", op=OWN_OPERATION, at=row.timestamp)
        else:
            yield make_hidden_draft(row, context, op=OWN_OPERATION)
        last = row.timestamp
    yield from missing()


def make_hidden_draft(
    row: HermesMessage, context: ImportContext, *, op: int | None = None, about: str = ""
) -> EntryDraft:
    """Return an entry for a row that is no part of the conversation. It is stored, but no model sees it."""
    body: EntryBody = Notified(
        text=strip_surrogates(extract_text(row.content))[0], about=about or f"imported: {row.role or 'unknown'}"
    )
    return EntryDraft(body=body, author="system", op=op, dedup=context.key(row.id), at=row.timestamp)


def extract_text(content: str | None) -> str:
    """Return the text of a message. Of content in parts it returns the texts; other parts appear as their source."""
    if not content or not content.startswith(MULTIMODAL_PREFIX):
        return content or ""
    try:
        parts = json.loads(content.removeprefix(MULTIMODAL_PREFIX))
    except (ValueError, RecursionError):
        return content
    return "\n".join(_extract_part(part) for part in (parts if isinstance(parts, list) else [parts]))


def _extract_part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)


def parse_tool_calls(row: HermesMessage) -> tuple[ToolCall, ...]:
    """Return the tool calls of a message, each with a unique id."""
    try:
        given = json.loads(row.tool_calls) if row.tool_calls else []
    except (ValueError, RecursionError):
        return ()
    found: dict[str, ToolCall] = {}
    for number, call in enumerate(given if isinstance(given, list) else [given]):
        if not isinstance(call, dict):
            continue
        inner = call.get("function")
        function: dict[str, Any] = inner if isinstance(inner, dict) else call
        id = strip_surrogates(str(call.get("id") or call.get("call_id") or f"{row.id}-{number}"))[0]
        name = strip_surrogates(str(function.get("name") or "unknown"))[0]
        found.setdefault(id, ToolCall(id=id, tool=name, arguments=_parse_arguments(function.get("arguments"))))
    return tuple(found.values())


def _parse_arguments(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            parsed = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            parsed = None
        given = parsed if isinstance(parsed, dict) else {"": strip_surrogates(given)[0]}
    return given if isinstance(given, dict) else {}
