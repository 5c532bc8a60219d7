"""Classifies a chain's rows: original, copy made by a compression or a restart, summary, or marker.

A compression of hermes-agent writes the messages that it keeps again after its summary. A copy is recognised by its
time, which is kept, or by its place: a summary is between the copied beginning and the copied end of the live messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from sys import intern
from typing import Final, NamedTuple

from everhold.hermes.reader.database import HermesMessage

MAX_HEAD_MESSAGES: Final = 8
"""Maximum number of messages that a compression keeps at the beginning."""
META_ROLE: Final = "session_meta"


class MessageDigest(NamedTuple):
    """The data needed to recognise a row."""

    id: int
    session: str
    role: str
    timestamp: float
    content_hash: bytes
    """Digest of its role and content."""
    call: str
    live: bool
    undone: bool
    summary: bool


def digest_message(row: HermesMessage) -> MessageDigest:
    said = f"{row.role}\0{(row.content or '').strip()}\0{row.tool_call_id}\0{row.tool_calls}"
    return MessageDigest(
        id=row.id,
        session=intern(row.session),  # interned, because a long chat repeats the same few values in a million rows
        role=intern(row.role),
        timestamp=row.timestamp,
        content_hash=hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=12).digest(),
        call=row.tool_call_id,
        live=row.active,
        undone=row.is_undone,
        summary=row.is_summary,
    )


@dataclass
class HermesCompression:
    """A summary: its place, the rows it replaced, and the rows it left out."""

    row: int
    session: str
    covers: list[int]
    """Rows that it replaces, oldest first."""
    head: list[int]
    tail: list[int]
    """Rows kept word for word before and after it, by their original ids."""
    unread: list[int]
    """Rows that existed when it was written and are neither in it nor after it."""


@dataclass
class TranscriptReading:
    """The result for a chain."""

    first: list[int] = field(default_factory=list)
    """Rows that are not copies, summaries or markers, in order."""
    copies: dict[int, int] = field(default_factory=dict)
    """Copy -> the row it is a copy of."""
    compressions: list[HermesCompression] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    """What the next turn would see after the last summary, by original ids, without undone rows."""
    rewritten_counts: dict[str, int] = field(default_factory=dict)
    """Sessions with rows that were written again without a compression -> number of rows."""


def read_transcript(rows: Iterable[MessageDigest]) -> TranscriptReading:
    """Classify the rows of a chain. `rows` are in the order they were written."""
    found = TranscriptReading()
    seen: dict[tuple[float, bytes], int] = {}
    lights: dict[int, MessageDigest] = {}
    live: list[int] = []
    recent: list[int] = []
    """Copies since the last original row: the beginning kept by the next summary, or a repeated transcript."""
    pending = list(rows)
    place = 0
    while place < len(pending):
        row = pending[place]
        place += 1
        lights[row.id] = row
        if row.role == META_ROLE:
            found.marks.append(row.id)
        elif row.summary and (row.timestamp, row.content_hash) not in seen:
            seen[row.timestamp, row.content_hash] = row.id
            place = _read_compression(found, pending, place, live, recent, lights, seen)
            recent = []
        elif (original := seen.get((row.timestamp, row.content_hash))) is not None:
            found.copies[row.id] = original
            recent.append(row.id)
        else:
            _count_rewritten(found, recent, lights)
            recent = []
            seen[row.timestamp, row.content_hash] = row.id
            found.first.append(row.id)
            if not row.undone:
                live.append(row.id)
    _count_rewritten(found, recent, lights)
    found.live = live
    return found


def _count_rewritten(found: TranscriptReading, recent: Sequence[int], lights: dict[int, MessageDigest]) -> None:
    """Count copies that no summary follows as repeated by mistake."""
    for id in recent:
        found.rewritten_counts[lights[id].session] = found.rewritten_counts.get(lights[id].session, 0) + 1


def _read_compression(
    found: TranscriptReading,
    pending: list[MessageDigest],
    place: int,
    live: list[int],
    recent: list[int],
    lights: dict[int, MessageDigest],
    seen: dict[tuple[float, bytes], int],
) -> int:
    """Process the summary before `place` with the copies around it; return where to continue."""
    row = pending[place - 1]
    before = list(live)
    head = _find_copied_head(found, before, recent, lights, row)
    tail: list[int] = []
    while place < len(pending):
        copy = pending[place]
        original = seen.get((copy.timestamp, copy.content_hash))
        if copy.summary or copy.role == META_ROLE:
            break
        if original is None or original not in before:
            original = _find_original(before, tail, lights, copy)
        if original is None:
            break
        lights[copy.id] = copy
        found.copies[copy.id] = original
        tail.append(original)
        place += 1
    rotated = any(lights[id].session != row.session for id in before[-1:])
    start = before.index(tail[0]) if tail else len(before)
    kept = set(tail) | set(head)
    end = before.index(tail[-1]) + 1 if tail else len(before)
    unread = [] if rotated else [id for id in before[end:] if id not in kept]
    covers = [id for id in before[:start] if id not in set(unread)]
    found.compressions.append(
        HermesCompression(row=row.id, session=row.session, covers=covers, head=head, tail=tail, unread=unread)
    )
    live[:] = [id for id in before[start:] if id in kept or id in set(unread)] if tail else []
    return place


def _find_copied_head(
    found: TranscriptReading, before: list[int], recent: list[int], lights: dict[int, MessageDigest], row: MessageDigest
) -> list[int]:
    """Return the copies right before a summary, which repeat the first live messages."""
    mine = [id for id in recent if lights[id].session == row.session][-MAX_HEAD_MESSAGES:]
    while mine and any(found.copies[a] >= found.copies[b] for a, b in pairwise(mine)):
        del mine[0]  # the whole was written twice, then its beginning
    _count_rewritten(found, recent[: len(recent) - len(mine)], lights)
    if mine:
        return [found.copies[id] for id in mine]
    for count in range(min(MAX_HEAD_MESSAGES, len(before) // 2), 0, -1):
        last = before[-count:]
        if lights[last[0]].session == row.session and all(
            lights[a].content_hash == lights[b].content_hash for a, b in zip(last, before[:count], strict=True)
        ):
            for copy, original in zip(last, before[:count], strict=True):
                found.copies[copy] = original
                found.first.remove(copy)
            del before[-count:]
            return before[:count]
    return []


def _find_original(
    before: list[int], tail: list[int], lights: dict[int, MessageDigest], copy: MessageDigest
) -> int | None:
    """Return the original of a copy without its time: the row after the last original, or for the first copy any equal
    row.
    """
    if tail:
        next_row = before.index(tail[-1]) + 1
        candidates = before[next_row : next_row + 1]
    else:
        candidates = list(reversed(before))
    for id in candidates:
        known = lights[id]
        if known.role == copy.role and (
            known.content_hash == copy.content_hash or (copy.call and known.call == copy.call)
        ):
            return id
    return None
