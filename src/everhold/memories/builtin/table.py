"""The default embeddings: a small table, one vector per word piece. numpy is loaded when the table is first used."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Final

from everhold.memories.builtin.wordpiece import WordPiece
from everhold.memories.builtin.words import STOP

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Bytes = npt.NDArray[np.int8]

DIMENSIONS: Final = 256
FIRST: Final = 999
"""The first piece that is one; what comes before is markers and placeholders."""
MODEL: Final = 1
"""Raised when the table changes: vectors of another number are made again."""
UNIT: Final = 127.0
"""What 1.0 is in a stored vector."""
NARROW: Final = 128
"""Dimensions by which single words are compared: the first say the most."""
REMEMBERED: Final = 256
"""Texts whose word pieces, and their sum, are remembered."""
STEP: Final = 2_000
LIKE: Final = 0.2
"""Two words less alike than this have nothing to do with each other."""
CONTEXT: Final = 0.5
"""What words of the message before count against a message's own."""


@functools.cache
def load() -> Table:
    return Table()


class Table:
    """Vectors of texts, and how alike their words are."""

    def __init__(self) -> None:
        import numpy as np

        self.np = np
        data = resources.files("everhold.memories.builtin") / "data"
        vocabulary = (data / "vocabulary.txt").read_text(encoding="utf-8").split("\n")
        # a message is cut for its vector, for its words, and once more as what the next one is read with
        self._cut = WordPiece(vocabulary)
        self._ids = functools.lru_cache(maxsize=REMEMBERED)(self._cut.ids)
        self._total = functools.lru_cache(maxsize=REMEMBERED)(self._added)
        self._rows: Bytes = np.frombuffer((data / "table.int8").read_bytes(), np.int8).reshape(-1, DIMENSIONS)
        assert len(self._rows) == len(vocabulary) - FIRST, "the table and its vocabulary do not belong together"
        self._tells = bytes(
            id >= FIRST and piece not in STOP and any(map(str.isalnum, piece)) for id, piece in enumerate(vocabulary)
        )
        self._narrow: Bytes = np.ascontiguousarray(self._rows[:, :NARROW])
        length = np.sqrt(np.einsum("ij,ij->i", self._narrow, self._narrow, dtype=np.float32))
        self._inverse: Floats = (1 / np.maximum(length, 1e-9)).astype(np.float32)
        self._rarity: Floats = np.log(1 + np.arange(3, 3 + len(self._rows))).astype(np.float32)

    def pieces(self, text: str) -> list[int]:
        """The rows of a text's word pieces, in order."""
        return [id - FIRST for id in self._ids(text) if id >= FIRST]

    def telling(self, text: str) -> list[int]:
        """The rows of the pieces that say something, each once."""
        tells = self._tells
        return [id - FIRST for id in dict.fromkeys(self._ids(text)) if tells[id]]

    def question(self, text: str) -> Floats:
        """The vector to look for: what the question is about, without the words it is made of."""
        told = [id - FIRST for id in self._ids(text) if self._tells[id]]
        return self._unit(self._sum(told or self.pieces(text)))

    def stored(self, text: str, context: str) -> bytes:
        """The vector kept for a chunk: its own, and once more together with what it is read with."""
        np = self.np
        own = self._total(text)
        vector = self._unit(own)
        vector = vector + (self._unit(self._total(context) + own) if context else vector)
        # two vectors of length 1 together: no part of them is beyond what a byte holds
        kept: Bytes = np.rint(vector * (UNIT / 2)).astype(np.int8)
        return kept.tobytes()

    def packed(self, text: str) -> bytes:
        """A chunk's telling pieces, as they are kept."""
        return array("H", self.telling(text)).tobytes()

    def rarity(self, word: str) -> int:
        """How rare a word is: its place in the vocabulary, which begins with what is common."""
        ids = self._cut.word(word) if word.isascii() else self._cut.ids(word)
        return ids[0] if len(ids) == 1 else len(self._rows) + FIRST

    def rarest(self, rows: Iterable[int], most: int) -> list[int]:
        """At most so many of these rows, the rarest; in their order."""
        found = list(rows)
        if len(found) > most:
            kept = set(sorted(found, reverse=True)[:most])  # the vocabulary begins with what is common
            found = [row for row in found if row in kept]
        return found

    def share(self, question: Sequence[int], own: Floats, beside: Floats) -> Floats:
        """For each chunk (columns) the share of the question (rows) that it speaks of, or what it is read with does.

        Every word of the question counts as much as the word most like it in the chunk, rare ones more.
        """
        np = self.np
        weights = self._rarity[list(question)]
        weights = weights / max(float(weights.sum()), 1e-9)
        found: Floats = np.einsum("i,ij->j", weights, own + CONTEXT * np.maximum(own, beside)) / (1 + CONTEXT)
        return found

    def best(self, question: Sequence[int], kept: Sequence[bytes]) -> Floats:
        """Per word of the question (rows) and packed text (columns): how alike the most similar word is."""
        np = self.np
        best: Floats = np.zeros((len(question), len(kept)), np.float32)
        joined = np.frombuffer(b"".join(kept), np.uint16)
        if not len(joined) or not len(question):
            return best
        there = np.zeros(len(self._rows), np.bool_)
        there[joined] = True
        distinct = there.nonzero()[0]
        near = self._products(distinct, self._units(np.array(question)).T)
        # most words are like none of the question's, and need not be looked at in every text they stand in
        like = (near.ravel() > LIKE).nonzero()[0] // len(question)
        place = np.zeros(len(self._rows), np.uint16)
        place[distinct[like]] = like + 1
        at = place.take(joined)
        where = at.nonzero()[0]
        if len(where):
            ends = np.cumsum(np.fromiter(map(len, kept), np.int64, len(kept)))
            owner = ends.searchsorted(where * joined.itemsize, side="right")
            starts = np.concatenate([[True], owner[1:] != owner[:-1]]).nonzero()[0]
            most = np.maximum.reduceat(near.take(at[where] - 1, axis=0), starts, axis=0).T
            best[:, owner[starts]] = np.maximum(most - LIKE, 0.0) / (1.0 - LIKE)
        return best

    def _products(self, rows: npt.NDArray[np.int64], wanted: Floats) -> Floats:
        """How alike each of these rows is to each wanted one. In small steps: a large product would wake the linear
        algebra library's threads, which spin for longer than the product lasts.
        """
        np = self.np
        near: Floats = np.empty((len(rows), wanted.shape[1]), np.float32)
        step = max(8, STEP // wanted.shape[1])
        room: Floats = np.empty((step, NARROW), np.float32)  # the same for every step: it stays near the processor
        for low in range(0, len(rows), step):
            some = self._narrow.take(rows[low : low + step], axis=0)
            room[: len(some)] = some
            np.matmul(room[: len(some)], wanted, out=near[low : low + step])
        near *= self._inverse.take(rows)[:, None]
        return near

    def _units(self, rows: npt.NDArray[np.int64]) -> Floats:
        found: Floats = self._narrow[rows] * self._inverse[rows, None]
        return found

    def _added(self, text: str) -> Floats:
        return self._sum(self.pieces(text))

    def _sum(self, rows: Sequence[int]) -> Floats:
        """Of whole numbers, so that it is the same in whatever order, and in parts."""
        if not rows:
            nothing: Floats = self.np.zeros(DIMENSIONS, self.np.float32)
            return nothing
        total: Floats = self.np.add.reduce(self._rows.take(rows, axis=0), axis=0, dtype=self.np.float32)
        return total

    def _unit(self, total: Floats) -> Floats:
        """The vector in this direction that has length 1."""
        unit: Floats = total / max(math.sqrt(total @ total), 1e-9)
        return unit
