"""The stored form of what a turn recalled. It refers to entries of the log instead of repeating them.

The text of a recall restores byte for byte while the entries are there. After an erasure it does not restore, and
nothing of the erased words is in it. Records and texts of earlier versions, which are plain, can still be read.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from everhold.core.recall import RecallRecord, RecallTrace, neutralize_text

MAX_UNPACKED_BYTES: Final = 64 * 1024 * 1024
PACKED: Final = b"\x01"
"""The first byte of a packed blob. A plain one begins with a printable character."""
MIN_REFERENCE_CHARS: Final = 12
"""A shorter text is stored as it is, because a reference would take as much room."""

_NO_REST: Final[Sequence[str | float]] = ("", "", "", "")

Place = tuple[str, int]


class TextSource(Struct, frozen=True):
    """A text that the block quotes, and the entry it comes from."""

    session: str
    seq: int
    shown: str
    """What is quoted: the entry's text or a passage of it."""
    text: str
    """The text of the entry."""


class _PackedText(Struct, frozen=True, array_like=True):
    sessions: list[str]
    literals: list[str]
    """What stands before the first reference, between two references, and after the last one."""
    references: list[tuple[int, int, int, int]]
    """Session number, seq, start and length in the entry's text."""


class _PackedTraces(Struct, frozen=True, array_like=True):
    """Traces by column, because that takes less room."""

    providers: list[str]
    sessions: list[str]
    people: list[str]
    rows: list[tuple[int, int, int, int, float, float]]
    """Provider, session, seq, person, time, score."""
    rest: dict[int, list[str | float]]
    """By row: origin, kind, text and why not, where any is there. Of an outdated item also since when, and what
    replaced it.
    """


class _PackedRecord(Struct, frozen=True, array_like=True):
    frame: RecallRecord
    """The record without its traces."""
    facts: int
    """How many of the traces are facts; the shown ones follow."""
    shown: int
    traces: _PackedTraces


def quote_passage(text: str) -> str:
    """Return a text as it stands in a block of recalled data, without the mark of its first line."""
    return neutralize_text(text, "").replace("\n", "\n| ")


def pack_text(text: str, sources: Sequence[TextSource]) -> bytes:
    """Return the stored form of a recall's text."""
    found: list[tuple[int, int, TextSource, int, int]] = []
    for source in sources:
        core = source.shown.removeprefix("\u2026 ").removesuffix(" \u2026")
        quoted = quote_passage(core)
        start, at = source.text.find(core), text.find(quoted)
        if len(core) >= MIN_REFERENCE_CHARS and start >= 0 and at >= 0:
            found.append((at, len(quoted), source, start, len(core)))
    found.sort(key=lambda one: (one[0], -one[1]))
    sessions: dict[str, int] = {}
    literals: list[str] = []
    references: list[tuple[int, int, int, int]] = []
    upto = 0
    for at, size, source, start, length in found:
        if at < upto:
            continue
        literals.append(text[upto:at])
        references.append((sessions.setdefault(source.session, len(sessions)), source.seq, start, length))
        upto = at + size
    packed = _PackedText(list(sessions), [*literals, text[upto:]], references)
    return PACKED + zlib.compress(msgspec.json.encode(packed), 9)


def list_text_places(data: bytes) -> set[Place]:
    """Return the entries that are needed to restore a text."""
    if not data.startswith(PACKED):
        return set()
    packed = _read_packed_text(data)
    return {(packed.sessions[session], seq) for session, seq, _, _ in packed.references}


def restore_text(data: bytes, texts: Mapping[Place, str]) -> str | None:
    """Return the text of a recall; None if an entry that it shows is gone."""
    if not data.startswith(PACKED):
        return data.decode()
    packed = _read_packed_text(data)
    parts = [packed.literals[0]]
    for (session, seq, start, length), literal in zip(packed.references, packed.literals[1:], strict=True):
        text = texts.get((packed.sessions[session], seq))
        if text is None:
            return None
        parts += [quote_passage(text[start : start + length]), literal]
    return "".join(parts)


def _unpack(data: bytes) -> bytes:
    """Return unpacked bytes. A blob of a restored or imported store may be a bomb."""
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    if not unpacker.eof:
        raise zlib.error(f"it is incomplete, or has more than {MAX_UNPACKED_BYTES:,} bytes")
    return found


def _read_packed_text(data: bytes) -> _PackedText:
    return msgspec.json.decode(_unpack(data[len(PACKED) :]), type=_PackedText)


def pack_record(record: RecallRecord) -> bytes:
    """Return the stored form of a recall record."""
    frame = msgspec.structs.replace(record, facts=(), shown=(), left_out=())
    traces = _pack_traces((*record.facts, *record.shown, *record.left_out))
    packed = _PackedRecord(frame, len(record.facts), len(record.shown), traces)
    return PACKED + zlib.compress(msgspec.json.encode(packed), 9)


def read_record(data: bytes) -> RecallRecord:
    """Return a recall record; raises `msgspec.DecodeError` if the blob holds none."""
    if not data.startswith(PACKED):
        return msgspec.json.decode(data, type=RecallRecord)
    try:
        packed = msgspec.json.decode(_unpack(data[len(PACKED) :]), type=_PackedRecord)
        traces = _unpack_traces(packed.traces)
    except (zlib.error, IndexError, ValueError) as error:
        raise msgspec.DecodeError(str(error)) from error
    facts, shown = packed.facts, packed.facts + packed.shown
    return msgspec.structs.replace(
        packed.frame, facts=traces[:facts], shown=traces[facts:shown], left_out=traces[shown:]
    )


def _pack_traces(traces: Sequence[RecallTrace]) -> _PackedTraces:
    providers: dict[str, int] = {}
    sessions: dict[str, int] = {}
    people: dict[str, int] = {}
    rows = [
        (
            providers.setdefault(one.provider, len(providers)),
            sessions.setdefault(one.session, len(sessions)),
            one.seq,
            people.setdefault(one.person, len(people)),
            one.at,
            one.score,
        )
        for one in traces
    ]
    rest = {row: found for row, one in enumerate(traces) if any(found := _pack_rest(one))}
    return _PackedTraces(list(providers), list(sessions), list(people), rows, rest)


def _pack_rest(one: RecallTrace) -> list[str | float]:
    outdated: list[str | float] = [one.until, one.replaced_by] if one.until or one.replaced_by else []
    return [one.origin, one.kind, one.text, one.why_not, *outdated]


def _unpack_traces(packed: _PackedTraces) -> tuple[RecallTrace, ...]:
    traces = []
    for row, (provider, session, seq, person, at, score) in enumerate(packed.rows):
        origin, kind, text, why_not, *outdated = packed.rest.get(row, _NO_REST)
        until, replaced_by = outdated or (0.0, "")
        traces.append(
            RecallTrace(
                provider=packed.providers[provider],
                session=packed.sessions[session],
                seq=seq,
                person=packed.people[person],
                at=at,
                origin=str(origin),
                score=score,
                kind=str(kind),
                text=str(text),
                why_not=str(why_not),
                until=float(until),
                replaced_by=str(replaced_by),
            )
        )
    return tuple(traces)
