"""Caches in memory, by column, what ranking needs of a scope: authors, times, neighbours, and the vectors of its
chunks.

A chunk's row is its number within its scope. Of a large scope the vectors stay in the file and only their signs are
cached, one bit per dimension. The signs select candidates, whose vectors are then compared exactly. Everything can be
read from the file again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from everhold.memories.builtin.candidates import IndexScope, get_chunk_range
from everhold.memories.builtin.indexing import ItemFlag

Floats = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.int64]
VectorTable = Literal["vectors", "deep"]

MAX_RESIDENT_CHUNKS: Final = 150_000
"""Up to this many chunks, a scope's vectors are cached and not only their signs."""
OVERSAMPLING_FACTOR: Final = 2
"""The signs select this many times as many candidates as are wanted."""
MAX_CACHE_BYTES: Final = 192 * 1024 * 1024
"""Bytes that all cached scopes together may use. The least recently searched scopes are dropped first."""
_READ_BATCH_ROWS: Final = 20_000
_AFTER: Final = int(ItemFlag.AFTER)
_NO_ROW: Final = -1


class ScopeVectors:
    """One scope's vectors of one kind, a row for each chunk."""

    def __init__(self, kept: VectorTable, scope: int) -> None:
        self.kept = kept
        self._low = get_chunk_range(scope)[0]
        self.present = np.zeros(0, np.bool_)
        self._signs: npt.NDArray[np.uint64] = np.zeros((0, 0), np.uint64)
        self._exact: npt.NDArray[np.int8] | None = np.zeros((0, 0), np.int8)

    @property
    def size_bytes(self) -> int:
        return self.present.nbytes + self._signs.nbytes + (0 if self._exact is None else self._exact.nbytes)

    def store_rows(self, rows: RowNumbers, vectors: npt.NDArray[np.int8], capacity: int) -> None:
        signs = np.packbits(vectors > 0, axis=1).view(np.uint64)
        if not self._signs.size:
            self._signs = np.zeros((signs.shape[1], capacity), np.uint64)
            self._exact = np.zeros((capacity, vectors.shape[1]), np.int8) if capacity <= MAX_RESIDENT_CHUNKS else None
            self.present = np.zeros(capacity, np.bool_)
        elif capacity > len(self.present):
            self.present = _grow_column(self.present, capacity)
            self._signs = np.concatenate(
                [self._signs, np.zeros((len(self._signs), capacity - self._signs.shape[1]), np.uint64)], axis=1
            )
            if self._exact is not None:
                self._exact = _grow_column(self._exact, capacity) if capacity <= MAX_RESIDENT_CHUNKS else None
        self._signs[:, rows] = signs.T
        if self._exact is not None:
            self._exact[rows] = vectors
        self.present[rows] = True

    def drop_row(self, row: int) -> None:
        if row < len(self.present):
            self.present[row] = False

    def find_nearest(self, question: Floats, count: int) -> RowNumbers:
        """Return the rows whose signs are most similar to the question's."""
        if np.count_nonzero(self.present) <= count * OVERSAMPLING_FACTOR:
            return self.present.nonzero()[0]
        signs = np.packbits(question > 0).view(np.uint64)
        apart = np.bitwise_count(self._signs[0] ^ signs[0]).astype(np.uint16)
        for some, word in zip(self._signs[1:], signs[1:], strict=True):
            apart += np.bitwise_count(some ^ word)
        apart[~self.present] = question.size + 1
        # Distances are few and small, so counting is faster than sorting.
        wanted = count * OVERSAMPLING_FACTOR
        farthest = int(np.searchsorted(np.cumsum(np.bincount(apart)), wanted))
        nearer = np.flatnonzero(apart < farthest)
        return np.concatenate([nearer, np.flatnonzero(apart == farthest)[len(nearer) - wanted :]])

    def compute_similarity(self, db: apsw.Connection, rows: RowNumbers, question: Floats) -> Floats:
        """Return the similarity of these rows to a question; 0 where there is no vector."""
        near: Floats = np.zeros(len(rows), np.float32)
        if not len(self.present):
            return near
        there = self.present[rows]
        if self._exact is not None:
            near[there] = np.einsum("ij,j->i", self._exact.take(rows[there], axis=0).astype(np.float32), question)
            return near
        read = dict(_read_rows(db, f"select chunk, vector from {self.kept}", self._low, rows[there]))
        if read:
            at = np.array([row for row, one in enumerate(rows.tolist()) if self._low + one in read])
            some = np.frombuffer(b"".join(read[self._low + row] for row in rows[at].tolist()), np.int8)
            near[at] = np.einsum("ij,j->i", some.reshape(len(at), -1).astype(np.float32), question)
        return near


class ScopeColumns:
    """One scope's chunks."""

    def __init__(self, scope: int, *, deep: bool) -> None:
        self.scope = scope
        self.low = get_chunk_range(scope)[0]
        self.used = 0
        self.head = np.zeros(0, np.int32)
        """The first chunk of the item that a chunk belongs to."""
        self.before = np.zeros(0, np.int32)
        """At a first chunk: the first chunk of the previous item."""
        self.after = np.zeros(0, np.int32)
        self.count = np.zeros(0, np.int32)
        self.author = np.zeros(0, np.int32)
        self.flags = np.zeros(0, np.uint8)
        self.at = np.zeros(0, np.float64)
        self.occasion = np.zeros(0, np.int32)
        """What was said in one session on one day has one number."""
        self.size = np.zeros(0, np.uint16)
        """Content word pieces of a chunk."""
        self.mean = 0.0
        """The approximate mean size. It is computed again as the scope grows."""
        self._meant = 0
        self.pieces: list[bytes] | None = []
        self.table = ScopeVectors("vectors", scope)
        self.deep = ScopeVectors("deep", scope) if deep else None

    @property
    def size_bytes(self) -> int:
        columns = (
            self.head,
            self.before,
            self.after,
            self.count,
            self.author,
            self.flags,
            self.at,
            self.occasion,
            self.size,
        )
        own = sum(column.nbytes for column in columns) + sum(map(len, self.pieces or ())) + 41 * len(self.pieces or ())
        return own + self.table.size_bytes + (self.deep.size_bytes if self.deep else 0)

    @property
    def embedded_count(self) -> int:
        """Chunks that have their stronger vector."""
        return 0 if self.deep is None else int(np.count_nonzero(self.deep.present))

    @property
    def pending_count(self) -> int:
        """Chunks that lack it."""
        return int(np.count_nonzero(self.table.present)) - self.embedded_count

    def count_pieces(self, rows: RowNumbers) -> npt.NDArray[np.int64]:
        """Content word pieces of these chunks together with their context."""
        own = self.size[rows].astype(np.int64)
        reads = (self.flags[rows] & _AFTER) > 0
        own[reads] += self.size[self.before[rows[reads]]]
        return own

    def refresh(self, db: apsw.Connection, chunks: int) -> None:
        """Add new chunks, up to this number of chunks."""
        if chunks > self.used:
            capacity = len(self.head)
            if chunks > capacity:
                self._grow(max(chunks + chunks // 4, 64))
            for low in range(self.used, chunks, _READ_BATCH_ROWS):
                self._load_rows(db, low, min(low + _READ_BATCH_ROWS, chunks))
            self.used = chunks
            if chunks > self._meant * 1.1:
                self._meant = chunks
                self.mean = float(self.count_pieces(np.arange(chunks)).mean())

    def reload_chunks(self, db: apsw.Connection, ids: Iterable[int]) -> None:
        """Read these chunks again; deleted ones point nowhere."""
        rows = [id - self.low for id in ids if 0 <= id - self.low < self.used]
        there = {
            id - self.low for (id,) in _read_rows(db, "select id from chunks", self.low, np.array(rows, np.int64), "id")
        }
        for row in rows:
            self.table.drop_row(row)
            if self.deep is not None:
                self.deep.drop_row(row)
            if row not in there:
                before = self.before[row]
                if before != _NO_ROW and self.after[before] == row:
                    self.after[before] = _NO_ROW
                self.head[row] = self.before[row] = self.after[row] = _NO_ROW
        for row in there:
            self._load_rows(db, row, row + 1)

    def _load_rows(self, db: apsw.Connection, low: int, high: int) -> None:
        """Read the rows from `low` up to, not including, `high`."""
        span = (self.low + low, self.low + high - 1)
        places: list[Any] = db.execute(
            "select first, before, chunks, author, flags, at, occasion from places where first between ? and ?", span
        ).fetchall()
        if places:
            firsts, befores, counts, authors, flags, ats, occasions = zip(*places, strict=True)
            heads = np.array(firsts, np.int64) - self.low
            before = np.array(befores, np.int64)
            before = np.where(before > 0, before - self.low, _NO_ROW)
            count = np.array(counts, np.int64)
            self.head[expand_item_chunks(heads, count)] = np.repeat(heads, count)
            self.count[heads], self.author[heads], self.flags[heads] = count, authors, flags
            self.at[heads], self.occasion[heads] = ats, occasions
            self.before[heads] = before
            follows = before != _NO_ROW
            self.after[before[follows]] = heads[follows]
        read: list[Any] = db.execute(
            "select chunk, vector, pieces from vectors where chunk between ? and ?", span
        ).fetchall()
        if read:
            rows = np.array([row[0] for row in read], np.int64) - self.low
            self.table.store_rows(rows, _to_matrix([row[1] for row in read]), len(self.head))
            self.size[rows] = [len(row[2]) // 2 for row in read]
            if self.pieces is not None:
                for row, (_, _, pieces) in zip(rows.tolist(), read, strict=True):
                    self.pieces[row] = pieces
        if self.deep is not None:
            model: list[Any] = db.execute("select chunk, vector from deep where chunk between ? and ?", span).fetchall()
            if model:
                rows = np.array([row[0] for row in model], np.int64) - self.low
                self.deep.store_rows(rows, _to_matrix([row[1] for row in model]), len(self.head))

    def _grow(self, capacity: int) -> None:
        self.head, self.before, self.after = (
            _grow_column(column, capacity, _NO_ROW) for column in (self.head, self.before, self.after)
        )
        self.count, self.author = _grow_column(self.count, capacity), _grow_column(self.author, capacity)
        self.flags, self.at = _grow_column(self.flags, capacity), _grow_column(self.at, capacity)
        self.occasion, self.size = _grow_column(self.occasion, capacity), _grow_column(self.size, capacity)
        if capacity > MAX_RESIDENT_CHUNKS:
            self.pieces = None
        elif self.pieces is not None:
            self.pieces += [b""] * (capacity - len(self.pieces))


class ScopeStack:
    """Several scopes as if they were one: their rows follow one another. Callers pass sorted rows."""

    def __init__(self, scopes: Sequence[ScopeColumns]) -> None:
        self.scopes = scopes
        self.bases = np.cumsum([0, *(shelf.used for shelf in scopes)])

    def get_column(self, name: str, rows: RowNumbers) -> npt.NDArray[Any]:
        parts = [getattr(shelf, name)[some] for shelf, some, _ in self.split_rows(rows)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def resolve_links(self, name: str, rows: RowNumbers) -> RowNumbers:
        """Return a column that holds rows: the row that each of these points to, or -1."""
        parts = []
        for shelf, some, base in self.split_rows(rows):
            found = getattr(shelf, name)[some].astype(np.int64)
            if base:
                found[found != _NO_ROW] += base
            parts.append(found)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def split_rows(self, rows: RowNumbers) -> list[tuple[ScopeColumns, RowNumbers, int]]:
        """Yield each scope with its part of the rows, counted from the scope's first row, and the position of that
        part.
        """
        if len(self.scopes) == 1:
            return [(self.scopes[0], rows, 0)]
        cuts = np.searchsorted(rows, self.bases)
        return [
            (shelf, rows[cuts[at] : cuts[at + 1]] - base, base)
            for at, (shelf, base) in enumerate(zip(self.scopes, self.bases[:-1].tolist(), strict=True))
        ]

    def join_rows(self, parts: Iterable[RowNumbers]) -> RowNumbers:
        """Convert rows of each scope, counted from its first row, to rows of the stack."""
        found: RowNumbers = np.concatenate(
            [some + base for some, base in zip(parts, self.bases.tolist(), strict=False)]
        )
        return found

    def compute_similarity(self, db: apsw.Connection, kept: VectorTable, rows: RowNumbers, question: Floats) -> Floats:
        parts = [
            _get_vectors(shelf, kept).compute_similarity(db, some, question) for shelf, some, _ in self.split_rows(rows)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def has_vectors(self, kept: VectorTable, rows: RowNumbers) -> npt.NDArray[np.bool_]:
        parts = []
        for shelf, some, _ in self.split_rows(rows):
            there = _get_vectors(shelf, kept).present
            parts.append(there[some] if len(there) else np.zeros(len(some), np.bool_))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def find_nearest(self, kept: VectorTable, question: Floats, count: int) -> RowNumbers:
        return self.join_rows(np.sort(_get_vectors(shelf, kept).find_nearest(question, count)) for shelf in self.scopes)

    def load_pieces(self, db: apsw.Connection, rows: RowNumbers) -> list[bytes]:
        found: list[bytes] = []
        for shelf, some, _ in self.split_rows(rows):
            if shelf.pieces is not None:
                found += [shelf.pieces[row] for row in some.tolist()]
            else:
                read = dict(_read_rows(db, "select chunk, pieces from vectors", shelf.low, some))
                found += [read.get(shelf.low + row, b"") for row in some.tolist()]
        return found

    def get_chunk_ids(self, rows: RowNumbers) -> list[int]:
        """Return the ids of the rows' chunks, in any order."""
        lows = np.array([shelf.low for shelf in self.scopes], np.int64)
        at = np.searchsorted(self.bases, rows, side="right") - 1
        found: list[int] = (rows + (lows - self.bases[:-1])[at]).tolist()
        return found

    def find_rows(self, ids: Iterable[int]) -> RowNumbers:
        """Return the rows of those chunks that belong to this stack, in order."""
        found = [
            id - shelf.low + base
            for shelf, base in zip(self.scopes, self.bases.tolist(), strict=False)
            for id in ids
            if 0 <= id - shelf.low < shelf.used
        ]
        # not np.unique, which imports the masked arrays at its first call: 20 ms in the middle of a turn
        return np.array(sorted(set(found)), np.int64)


class ScopeCache:
    """The scopes that were searched recently."""

    def __init__(self, *, deep: bool) -> None:
        self._deep = deep
        self._scopes: OrderedDict[int, ScopeColumns] = OrderedDict()

    def clear(self) -> None:
        self._scopes.clear()

    def reload_chunks(self, db: apsw.Connection, ids: Iterable[int]) -> None:
        for shelf in self._scopes.values():
            shelf.reload_chunks(db, ids)

    def load_stack(self, db: apsw.Connection, scopes: Sequence[IndexScope]) -> ScopeStack:
        """Return these scopes in their present state."""
        found = []
        grew = False
        for scope in scopes:
            shelf = self._scopes.get(scope.id) or ScopeColumns(scope.id, deep=self._deep)
            self._scopes[scope.id] = shelf
            self._scopes.move_to_end(scope.id)
            grew |= scope.chunks > len(shelf.head)
            shelf.refresh(db, scope.chunks)
            found.append(shelf)
        if grew:
            while len(self._scopes) > 1 and sum(one.size_bytes for one in self._scopes.values()) > MAX_CACHE_BYTES:
                self._scopes.popitem(last=False)
        return ScopeStack(found)


def expand_item_chunks(heads: RowNumbers, counts: RowNumbers) -> RowNumbers:
    """Return the rows of items that have the given numbers of chunks."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    found: RowNumbers = np.repeat(heads - ends + counts, counts) + np.arange(total)
    return found


def _get_vectors(shelf: ScopeColumns, kept: VectorTable) -> ScopeVectors:
    if kept == "vectors":
        return shelf.table
    assert shelf.deep is not None, "the stronger vectors are not loaded"
    return shelf.deep


def _read_rows(db: apsw.Connection, select: str, low: int, rows: RowNumbers, key: str = "chunk") -> list[Any]:
    ids = msgspec.json.encode((rows + low).tolist()).decode()
    return db.execute(f"{select} where {key} in (select value from json_each(?))", (ids,)).fetchall()


def _to_matrix(vectors: Sequence[bytes]) -> npt.NDArray[np.int8]:
    return np.frombuffer(b"".join(vectors), np.int8).reshape(len(vectors), -1)


def _grow_column(column: npt.NDArray[Any], capacity: int, fill: int = 0) -> npt.NDArray[Any]:
    more = np.full((capacity - len(column), *column.shape[1:]), fill, column.dtype)
    return np.concatenate([column, more])
