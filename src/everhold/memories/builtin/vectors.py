"""Vectors of whole scopes, kept in memory while they are asked about: which chunks mean something near a question.

A small scope is compared exactly. Of a large one only signs are kept, a bit per dimension: they pick candidates, whose
stored vectors are then compared exactly. Everything here can be read again from the file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import apsw
import msgspec

from everhold.memories.builtin.lookup import span

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

Kept = Literal["vectors", "deep"]

EXACT: Final = 20_000
"""Chunks up to which a scope is compared exactly."""
SURE: Final = 2
"""How many times as many candidates as wanted the signs pick."""
ROOM_BYTES: Final = 192 * 1024 * 1024
"""What all scopes together may take up; the ones not asked about for longest go first."""
_READ: Final = 20_000


class Shelf:
    """One scope's vectors of one kind."""

    def __init__(self, kept: Kept, scope: int) -> None:
        import numpy as np

        self.np = np
        self.kept = kept
        self.scope = scope
        self._ids: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._rows: npt.NDArray[Any] = np.zeros((0, 0), np.int8)
        self._used = 0
        self._signs = False

    @property
    def size_bytes(self) -> int:
        return int(self._ids.nbytes + self._rows.nbytes)

    def refresh(self, db: apsw.Connection) -> None:
        """Add what was stored since. Chunks that went make the whole shelf be read again, by whoever removed them."""
        np = self.np
        low, high = span(self.scope)
        last = int(self._ids[self._used - 1]) if self._used else low - 1
        while True:
            read: list[Any] = db.execute(
                f"select chunk, vector from {self.kept} where chunk > ? and chunk <= ? order by chunk limit {_READ}",
                (last, high),
            ).fetchall()
            if not read:
                return
            ids = np.array([row[0] for row in read], np.int64)
            rows = np.frombuffer(b"".join(row[1] for row in read), np.int8).reshape(len(read), -1)
            self._append(ids, rows)
            last = int(ids[-1])
            if len(read) < _READ:
                return

    def nearest(self, db: apsw.Connection, question: Floats, count: int) -> dict[int, float]:
        """The `count` chunks nearest to a question, and how near."""
        np = self.np
        used = self._used
        if not used:
            return {}
        if not self._signs:
            near = np.einsum("ij,j->i", self._rows[:used], question)  # one thread: see Table._products
            picked = _largest(np, near, count)
            return dict(zip(self._ids[picked].tolist(), near[picked].tolist(), strict=True))
        signs = np.packbits(question > 0).view(np.uint64)
        apart = np.zeros(used, np.uint16)
        for column, word in enumerate(signs):
            apart += np.bitwise_count(self._rows[:used, column] ^ word)
        picked = _largest(np, -apart.astype(np.int16), count * SURE)
        near_by = compare(db, self.kept, self._ids[picked].tolist(), question)
        best = sorted(near_by, key=lambda id: -near_by[id])[:count]
        return {id: near_by[id] for id in best}

    def _append(self, ids: npt.NDArray[np.int64], rows: npt.NDArray[np.int8]) -> None:
        np = self.np
        if not self._signs and self._used + len(ids) > EXACT and np.lib.NumpyVersion(np.__version__) >= "2.0.0":
            self._rows = _signs(np, self._rows[: self._used]) if self._used else np.zeros((0, 0), np.uint64)
            self._ids = self._ids[: self._used]
            self._signs = True
        fresh = _signs(np, rows) if self._signs else rows.astype(np.float32)
        need = self._used + len(ids)
        if need > len(self._ids):
            room = max(need, int(len(self._ids) * 1.5), 64)
            grown = np.zeros((room, fresh.shape[1]), fresh.dtype)
            numbers = np.zeros(room, np.int64)
            if self._used:
                grown[: self._used] = self._rows[: self._used]
                numbers[: self._used] = self._ids[: self._used]
            self._rows, self._ids = grown, numbers
        self._rows[self._used : need] = fresh
        self._ids[self._used : need] = ids
        self._used = need


class Shelves:
    """The scopes asked about lately."""

    def __init__(self) -> None:
        self._shelves: OrderedDict[tuple[Kept, int], Shelf] = OrderedDict()

    def clear(self) -> None:
        self._shelves.clear()

    def nearest(
        self, db: apsw.Connection, kept: Kept, scopes: Sequence[int], question: Floats, count: int
    ) -> dict[int, float]:
        found: dict[int, float] = {}
        for scope in scopes:
            shelf = self._shelves.setdefault((kept, scope), Shelf(kept, scope))
            self._shelves.move_to_end((kept, scope))
            shelf.refresh(db)
            found.update(shelf.nearest(db, question, count))
        while len(self._shelves) > 1 and sum(one.size_bytes for one in self._shelves.values()) > ROOM_BYTES:
            self._shelves.popitem(last=False)
        return found


def compare(db: apsw.Connection, kept: Kept, chunks: Sequence[int], question: Floats) -> dict[int, float]:
    """How near these chunks are to a question, as far as they have vectors."""
    import numpy as np

    read: list[Any] = db.execute(
        f"select chunk, vector from {kept} where chunk in (select value from json_each(?))",
        (msgspec.json.encode(list(chunks)).decode(),),
    ).fetchall()
    if not read:
        return {}
    rows = np.frombuffer(b"".join(row[1] for row in read), np.int8).reshape(len(read), -1)
    near = np.einsum("ij,j->i", rows.astype(np.float32), question)
    return dict(zip([row[0] for row in read], near.tolist(), strict=True))


def _signs(np: Any, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.packbits(rows > 0, axis=1).view(np.uint64)  # type: ignore[no-any-return]  # numpy is handed in untyped


def _largest(np: Any, values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    if count >= len(values):
        return np.arange(len(values))  # type: ignore[no-any-return]  # numpy is handed in untyped
    return np.argpartition(values, len(values) - count)[len(values) - count :]  # type: ignore[no-any-return]
