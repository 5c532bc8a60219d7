"""What ranking needs of a scope, in memory and by column: who, when, beside what, and the vectors of its chunks.

A chunk's row is its number within its scope. Of a large scope the vectors stay in the file and only their signs are
kept, a bit per dimension: they pick candidates, whose vectors are then compared exactly. Everything can be read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from everhold.memories.builtin.intake import Flag
from everhold.memories.builtin.lookup import Scope, span

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
Kept = Literal["vectors", "deep"]

RESIDENT: Final = 150_000
"""Chunks for which there may be room and a scope's vectors are kept in memory, not only their signs."""
SURE: Final = 2
"""How many times as many candidates as wanted the signs pick."""
ROOM_BYTES: Final = 192 * 1024 * 1024
"""What all scopes together may take up; the ones not asked about for longest go first."""
_READ: Final = 20_000
_AFTER: Final = int(Flag.AFTER)
_NOWHERE: Final = -1


class Vectors:
    """One scope's vectors of one kind, a row for each chunk."""

    def __init__(self, kept: Kept, scope: int) -> None:
        self.kept = kept
        self._low = span(scope)[0]
        self.there = np.zeros(0, np.bool_)
        self._signs: npt.NDArray[np.uint64] = np.zeros((0, 0), np.uint64)
        self._exact: npt.NDArray[np.int8] | None = np.zeros((0, 0), np.int8)

    @property
    def size_bytes(self) -> int:
        return self.there.nbytes + self._signs.nbytes + (0 if self._exact is None else self._exact.nbytes)

    def put(self, rows: Places, vectors: npt.NDArray[np.int8], room: int) -> None:
        signs = np.packbits(vectors > 0, axis=1).view(np.uint64)
        if not self._signs.size:
            self._signs = np.zeros((signs.shape[1], room), np.uint64)
            self._exact = np.zeros((room, vectors.shape[1]), np.int8) if room <= RESIDENT else None
            self.there = np.zeros(room, np.bool_)
        elif room > len(self.there):
            self.there = _grown(self.there, room)
            self._signs = np.concatenate(
                [self._signs, np.zeros((len(self._signs), room - self._signs.shape[1]), np.uint64)], axis=1
            )
            if self._exact is not None:
                self._exact = _grown(self._exact, room) if room <= RESIDENT else None
        self._signs[:, rows] = signs.T
        if self._exact is not None:
            self._exact[rows] = vectors
        self.there[rows] = True

    def drop(self, row: int) -> None:
        if row < len(self.there):
            self.there[row] = False

    def nearest(self, question: Floats, count: int) -> Places:
        """Rows whose signs are most like the question's."""
        if np.count_nonzero(self.there) <= count * SURE:
            return self.there.nonzero()[0]
        signs = np.packbits(question > 0).view(np.uint64)
        apart = np.bitwise_count(self._signs[0] ^ signs[0]).astype(np.uint16)
        for some, word in zip(self._signs[1:], signs[1:], strict=True):
            apart += np.bitwise_count(some ^ word)
        apart[~self.there] = question.size + 1
        # distances are few and small: counting them is sooner done than sorting them
        wanted = count * SURE
        farthest = int(np.searchsorted(np.cumsum(np.bincount(apart)), wanted))
        nearer = np.flatnonzero(apart < farthest)
        return np.concatenate([nearer, np.flatnonzero(apart == farthest)[len(nearer) - wanted :]])

    def compare(self, db: apsw.Connection, rows: Places, question: Floats) -> Floats:
        """How near these rows are to a question; 0 where there is no vector."""
        near: Floats = np.zeros(len(rows), np.float32)
        if not len(self.there):
            return near
        there = self.there[rows]
        if self._exact is not None:
            near[there] = np.einsum("ij,j->i", self._exact.take(rows[there], axis=0).astype(np.float32), question)
            return near
        read = dict(_read(db, f"select chunk, vector from {self.kept}", self._low, rows[there]))
        if read:
            at = np.array([row for row, one in enumerate(rows.tolist()) if self._low + one in read])
            some = np.frombuffer(b"".join(read[self._low + row] for row in rows[at].tolist()), np.int8)
            near[at] = np.einsum("ij,j->i", some.reshape(len(at), -1).astype(np.float32), question)
        return near


class Shelf:
    """One scope's chunks."""

    def __init__(self, scope: int, *, deep: bool) -> None:
        self.scope = scope
        self.low = span(scope)[0]
        self.used = 0
        self.head = np.zeros(0, np.int32)
        """The first chunk of the item a chunk belongs to."""
        self.before = np.zeros(0, np.int32)
        """At a first chunk: the first of the item before."""
        self.after = np.zeros(0, np.int32)
        self.count = np.zeros(0, np.int32)
        self.author = np.zeros(0, np.int32)
        self.flags = np.zeros(0, np.uint8)
        self.at = np.zeros(0, np.float64)
        self.size = np.zeros(0, np.uint16)
        """Telling word pieces of a chunk."""
        self.mean = 0.0
        """The mean size, about: it is worked out anew as the scope grows."""
        self._meant = 0
        self.pieces: list[bytes] | None = []
        self.table = Vectors("vectors", scope)
        self.deep = Vectors("deep", scope) if deep else None

    @property
    def size_bytes(self) -> int:
        columns = (self.head, self.before, self.after, self.count, self.author, self.flags, self.at, self.size)
        own = sum(column.nbytes for column in columns) + sum(map(len, self.pieces or ())) + 41 * len(self.pieces or ())
        return own + self.table.size_bytes + (self.deep.size_bytes if self.deep else 0)

    @property
    def filled(self) -> int:
        """Chunks with their stronger vector."""
        return 0 if self.deep is None else int(np.count_nonzero(self.deep.there))

    @property
    def waiting(self) -> int:
        """Chunks without it."""
        return int(np.count_nonzero(self.table.there)) - self.filled

    def length(self, rows: Places) -> npt.NDArray[np.int64]:
        """Telling word pieces of these chunks together with what they are read with."""
        own = self.size[rows].astype(np.int64)
        reads = (self.flags[rows] & _AFTER) > 0
        own[reads] += self.size[self.before[rows[reads]]]
        return own

    def refresh(self, db: apsw.Connection, chunks: int) -> None:
        """Add what came since, up to so many chunks."""
        if chunks > self.used:
            room = len(self.head)
            if chunks > room:
                self._grow(max(chunks + chunks // 4, 64))
            for low in range(self.used, chunks, _READ):
                self._read(db, low, min(low + _READ, chunks))
            self.used = chunks
            if chunks > self._meant * 1.1:
                self._meant = chunks
                self.mean = float(self.length(np.arange(chunks)).mean())

    def touch(self, db: apsw.Connection, ids: Iterable[int]) -> None:
        """Read these chunks again; those that went are nowhere."""
        rows = [id - self.low for id in ids if 0 <= id - self.low < self.used]
        there = {
            id - self.low for (id,) in _read(db, "select id from chunks", self.low, np.array(rows, np.int64), "id")
        }
        for row in rows:
            self.table.drop(row)
            if self.deep is not None:
                self.deep.drop(row)
            if row not in there:
                before = self.before[row]
                if before != _NOWHERE and self.after[before] == row:
                    self.after[before] = _NOWHERE
                self.head[row] = self.before[row] = self.after[row] = _NOWHERE
        for row in there:
            self._read(db, row, row + 1)

    def _read(self, db: apsw.Connection, low: int, high: int) -> None:
        """Rows `low` up to, not including, `high`."""
        span = (self.low + low, self.low + high - 1)
        places: list[Any] = db.execute(
            "select first, before, chunks, author, flags, at from places where first between ? and ?", span
        ).fetchall()
        if places:
            firsts, befores, counts, authors, flags, ats = zip(*places, strict=True)
            heads = np.array(firsts, np.int64) - self.low
            before = np.array(befores, np.int64)
            before = np.where(before > 0, before - self.low, _NOWHERE)
            count = np.array(counts, np.int64)
            self.head[chunks_of(heads, count)] = np.repeat(heads, count)
            self.count[heads], self.author[heads], self.flags[heads], self.at[heads] = count, authors, flags, ats
            self.before[heads] = before
            follows = before != _NOWHERE
            self.after[before[follows]] = heads[follows]
        read: list[Any] = db.execute(
            "select chunk, vector, pieces from vectors where chunk between ? and ?", span
        ).fetchall()
        if read:
            rows = np.array([row[0] for row in read], np.int64) - self.low
            self.table.put(rows, _matrix([row[1] for row in read]), len(self.head))
            self.size[rows] = [len(row[2]) // 2 for row in read]
            if self.pieces is not None:
                for row, (_, _, pieces) in zip(rows.tolist(), read, strict=True):
                    self.pieces[row] = pieces
        if self.deep is not None:
            model: list[Any] = db.execute("select chunk, vector from deep where chunk between ? and ?", span).fetchall()
            if model:
                rows = np.array([row[0] for row in model], np.int64) - self.low
                self.deep.put(rows, _matrix([row[1] for row in model]), len(self.head))

    def _grow(self, room: int) -> None:
        self.head, self.before, self.after = (
            _grown(column, room, _NOWHERE) for column in (self.head, self.before, self.after)
        )
        self.count, self.author = _grown(self.count, room), _grown(self.author, room)
        self.flags, self.at, self.size = _grown(self.flags, room), _grown(self.at, room), _grown(self.size, room)
        if room > RESIDENT:
            self.pieces = None
        elif self.pieces is not None:
            self.pieces += [b""] * (room - len(self.pieces))


class Stack:
    """Several scopes as if they were one: their rows follow one another. Rows are handed in sorted."""

    def __init__(self, shelves: Sequence[Shelf]) -> None:
        self.shelves = shelves
        self.bases = np.cumsum([0, *(shelf.used for shelf in shelves)])

    def column(self, name: str, rows: Places) -> npt.NDArray[Any]:
        parts = [getattr(shelf, name)[some] for shelf, some, _ in self.split(rows)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def link(self, name: str, rows: Places) -> Places:
        """A column of rows: where each of these points to, or -1."""
        parts = []
        for shelf, some, base in self.split(rows):
            found = getattr(shelf, name)[some].astype(np.int64)
            if base:
                found[found != _NOWHERE] += base
            parts.append(found)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def split(self, rows: Places) -> list[tuple[Shelf, Places, int]]:
        """Each scope with its share of the rows, counted from its own first, and where that stands."""
        if len(self.shelves) == 1:
            return [(self.shelves[0], rows, 0)]
        cuts = np.searchsorted(rows, self.bases)
        return [
            (shelf, rows[cuts[at] : cuts[at + 1]] - base, base)
            for at, (shelf, base) in enumerate(zip(self.shelves, self.bases[:-1].tolist(), strict=True))
        ]

    def joined(self, parts: Iterable[Places]) -> Places:
        """Rows of each scope, counted from its own first -> rows of all."""
        found: Places = np.concatenate([some + base for some, base in zip(parts, self.bases.tolist(), strict=False)])
        return found

    def near(self, db: apsw.Connection, kept: Kept, rows: Places, question: Floats) -> Floats:
        parts = [_vectors(shelf, kept).compare(db, some, question) for shelf, some, _ in self.split(rows)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def has(self, kept: Kept, rows: Places) -> npt.NDArray[np.bool_]:
        parts = []
        for shelf, some, _ in self.split(rows):
            there = _vectors(shelf, kept).there
            parts.append(there[some] if len(there) else np.zeros(len(some), np.bool_))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def nearest(self, kept: Kept, question: Floats, count: int) -> Places:
        return self.joined(np.sort(_vectors(shelf, kept).nearest(question, count)) for shelf in self.shelves)

    def pieces(self, db: apsw.Connection, rows: Places) -> list[bytes]:
        found: list[bytes] = []
        for shelf, some, _ in self.split(rows):
            if shelf.pieces is not None:
                found += [shelf.pieces[row] for row in some.tolist()]
            else:
                read = dict(_read(db, "select chunk, pieces from vectors", shelf.low, some))
                found += [read.get(shelf.low + row, b"") for row in some.tolist()]
        return found

    def ids(self, rows: Places) -> list[int]:
        """The numbers of rows' chunks, whatever order they are in."""
        lows = np.array([shelf.low for shelf in self.shelves], np.int64)
        at = np.searchsorted(self.bases, rows, side="right") - 1
        found: list[int] = (rows + (lows - self.bases[:-1])[at]).tolist()
        return found

    def rows(self, ids: Iterable[int]) -> Places:
        """The rows of those of these chunks that stand in here, in order."""
        found = [
            id - shelf.low + base
            for shelf, base in zip(self.shelves, self.bases.tolist(), strict=False)
            for id in ids
            if 0 <= id - shelf.low < shelf.used
        ]
        return np.unique(np.array(found, np.int64))


class Shelves:
    """The scopes asked about lately."""

    def __init__(self, *, deep: bool) -> None:
        self._deep = deep
        self._shelves: OrderedDict[int, Shelf] = OrderedDict()

    def clear(self) -> None:
        self._shelves.clear()

    def touch(self, db: apsw.Connection, ids: Iterable[int]) -> None:
        for shelf in self._shelves.values():
            shelf.touch(db, ids)

    def stack(self, db: apsw.Connection, scopes: Sequence[Scope]) -> Stack:
        """These scopes as they are now."""
        found = []
        grew = False
        for scope in scopes:
            shelf = self._shelves.get(scope.id) or Shelf(scope.id, deep=self._deep)
            self._shelves[scope.id] = shelf
            self._shelves.move_to_end(scope.id)
            grew |= scope.chunks > len(shelf.head)
            shelf.refresh(db, scope.chunks)
            found.append(shelf)
        if grew:
            while len(self._shelves) > 1 and sum(one.size_bytes for one in self._shelves.values()) > ROOM_BYTES:
                self._shelves.popitem(last=False)
        return Stack(found)


def chunks_of(heads: Places, counts: Places) -> Places:
    """The rows of items that have so many chunks each."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    found: Places = np.repeat(heads - ends + counts, counts) + np.arange(total)
    return found


def _vectors(shelf: Shelf, kept: Kept) -> Vectors:
    if kept == "vectors":
        return shelf.table
    assert shelf.deep is not None, "the stronger vectors are not read"
    return shelf.deep


def _read(db: apsw.Connection, select: str, low: int, rows: Places, key: str = "chunk") -> list[Any]:
    ids = msgspec.json.encode((rows + low).tolist()).decode()
    return db.execute(f"{select} where {key} in (select value from json_each(?))", (ids,)).fetchall()


def _matrix(vectors: Sequence[bytes]) -> npt.NDArray[np.int8]:
    return np.frombuffer(b"".join(vectors), np.int8).reshape(len(vectors), -1)


def _grown(column: npt.NDArray[Any], room: int, fill: int = 0) -> npt.NDArray[Any]:
    more = np.full((room - len(column), *column.shape[1:]), fill, column.dtype)
    return np.concatenate([column, more])
