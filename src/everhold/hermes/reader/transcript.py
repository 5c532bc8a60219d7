"""A chain's rows, each for what it is: said there first, a copy that a compression or a restart made, a summary, a
mark.

A compression there writes the messages it keeps once more, behind its summary. A copy is recognised by its time, which
it keeps, or by its place: a summary stands between the copied beginning and the copied end of what was live.
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
"""How many messages at most a compression there keeps at the beginning."""
META_ROLE: Final = "session_meta"


class MessageDigest(NamedTuple):
    """What is needed of a row to recognise it."""

    id: int
    session: str
    role: str
    timestamp: float
    content_hash: bytes
    """Of its role and what it says."""
    call: str
    live: bool
    undone: bool
    summary: bool


def digest_message(row: HermesMessage) -> MessageDigest:
    said = f"{row.role}\0{(row.content or '').strip()}\0{row.tool_call_id}\0{row.tool_calls}"
    return MessageDigest(
        id=row.id,
        session=intern(row.session),  # the same few in every row: a long chat has a million of them
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
    """A summary: where it stands, what it replaced, and what it left out."""

    row: int
    session: str
    covers: list[int]
    """Rows it stands for, oldest first."""
    head: list[int]
    tail: list[int]
    """Rows that were kept word for word before and behind it, by the ids they had first."""
    unread: list[int]
    """Rows that were there already when it was written, and are neither in it nor behind it."""
    rotated: bool = False
    """It began a new session."""


@dataclass
class TranscriptReading:
    """A chain as it can be told."""

    first: list[int] = field(default_factory=list)
    """Rows that are not copies, summaries or marks, in order."""
    copies: dict[int, int] = field(default_factory=dict)
    """A copy -> the row it is a copy of."""
    compressions: list[HermesCompression] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    """What the next turn there would be shown behind the last summary, by first ids; undone rows are not in it."""
    rewritten_counts: dict[str, int] = field(default_factory=dict)
    """Sessions in which rows were written once more although nothing was summed up -> how many."""


def read_transcript(rows: Iterable[MessageDigest]) -> TranscriptReading:
    """What each row of a chain is. `rows` in the order they were written."""
    found = TranscriptReading()
    seen: dict[tuple[float, bytes], int] = {}
    lights: dict[int, MessageDigest] = {}
    live: list[int] = []
    recent: list[int] = []
    """Copies since the last row that was none: the beginning that the next summary keeps, or a transcript twice."""
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
    """Copies with no summary behind them were written twice by mistake."""
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
    """Take in the summary before `place` with the copies around it; where to go on."""
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
        HermesCompression(
            row=row.id, session=row.session, covers=covers, head=head, tail=tail, unread=unread, rotated=rotated
        )
    )
    live[:] = [id for id in before[start:] if id in kept or id in set(unread)] if tail else []
    return place


def _find_copied_head(
    found: TranscriptReading, before: list[int], recent: list[int], lights: dict[int, MessageDigest], row: MessageDigest
) -> list[int]:
    """The messages that stand again right before a summary: copies of the first that were live."""
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
    """The row a copy without its time stands for: the one behind the last, or for the first any that says the same."""
    if tail:
        behind = before.index(tail[-1]) + 1
        candidates = before[behind : behind + 1]
    else:
        candidates = list(reversed(before))
    for id in candidates:
        known = lights[id]
        if known.role == copy.role and (
            known.content_hash == copy.content_hash or (copy.call and known.call == copy.call)
        ):
            return id
    return None
