"""The default embeddings: a small table, one vector per word piece. numpy is loaded when the table is first used."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Final

from everhold.memories.builtin.tokenizing import STOP_WORDS
from everhold.memories.builtin.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Bytes = npt.NDArray[np.int8]

DIMENSIONS: Final = 256
FIRST_PIECE_ID: Final = 999
"""The first real word piece; markers and placeholders come before it."""
TABLE_VERSION: Final = 1
"""Raised when the table changes. Vectors of another version are computed again."""
QUANTIZATION_SCALE: Final = 127.0
"""The integer that stands for 1.0 in a stored vector."""
WORD_DIMENSIONS: Final = 128
"""Dimensions used to compare single words. The first dimensions carry the most information."""
MAX_CACHED_TEXTS: Final = 256
"""Number of texts whose word pieces, and their sum, are cached."""
PRODUCT_STEP_ROWS: Final = 2_000
MIN_SIMILARITY: Final = 0.2
"""Two words with a lower similarity count as unrelated."""
CONTEXT_WEIGHT: Final = 0.5
"""The weight of the previous message's words, relative to the message's own."""


@functools.cache
def load_static_embeddings() -> StaticEmbeddings:
    return StaticEmbeddings()


class StaticEmbeddings:
    """Computes vectors of texts, and how similar their words are."""

    def __init__(self) -> None:
        import numpy as np

        self.np = np
        data = resources.files("everhold.memories.builtin") / "data"
        vocabulary = (data / "vocabulary.txt").read_text(encoding="utf-8").split("\n")
        # A message is tokenized for its vector, for its words, and again as the context of the next message.
        self._tokenizer = WordPieceTokenizer(vocabulary)
        self._tokenize_cached = functools.lru_cache(maxsize=MAX_CACHED_TEXTS)(self._tokenizer.tokenize)
        self._sum_text_cached = functools.lru_cache(maxsize=MAX_CACHED_TEXTS)(self._sum_text_vectors)
        self._rows: Bytes = np.frombuffer((data / "table.int8").read_bytes(), np.int8).reshape(-1, DIMENSIONS)
        assert len(self._rows) == len(vocabulary) - FIRST_PIECE_ID, (
            "the table and its vocabulary do not belong together"
        )
        self._is_content_piece = bytes(
            id >= FIRST_PIECE_ID and piece not in STOP_WORDS and any(map(str.isalnum, piece))
            for id, piece in enumerate(vocabulary)
        )
        self._narrow: Bytes = np.ascontiguousarray(self._rows[:, :WORD_DIMENSIONS])
        length = np.sqrt(np.einsum("ij,ij->i", self._narrow, self._narrow, dtype=np.float32))
        self._inverse: Floats = (1 / np.maximum(length, 1e-9)).astype(np.float32)
        self._rarity: Floats = np.log(1 + np.arange(3, 3 + len(self._rows))).astype(np.float32)

    def tokenize(self, text: str) -> list[int]:
        """Return the table rows of a text's word pieces, in order."""
        return [id - FIRST_PIECE_ID for id in self._tokenize_cached(text) if id >= FIRST_PIECE_ID]

    def select_content_pieces(self, text: str) -> list[int]:
        """Return the table rows of the pieces that are not stop words, each once."""
        tells = self._is_content_piece
        return [id - FIRST_PIECE_ID for id in dict.fromkeys(self._tokenize_cached(text)) if tells[id]]

    def embed_question(self, text: str) -> Floats:
        """Return the vector of a question, computed without its stop words."""
        content = [id - FIRST_PIECE_ID for id in self._tokenize_cached(text) if self._is_content_piece[id]]
        return self._normalize_vector(self._sum_vectors(content or self.tokenize(text)))

    def embed_chunk(self, text: str, context: str) -> bytes:
        """Return the vector of a chunk: its own plus one together with its context."""
        np = self.np
        own = self._sum_text_cached(text)
        vector = self._normalize_vector(own)
        vector = vector + (self._normalize_vector(self._sum_text_cached(context) + own) if context else vector)
        # The sum of two vectors of length 1 fits into the range of a byte.
        kept: Bytes = np.rint(vector * (QUANTIZATION_SCALE / 2)).astype(np.int8)
        return kept.tobytes()

    def pack_pieces(self, text: str) -> bytes:
        """Return a chunk's content pieces as they are stored."""
        return array("H", self.select_content_pieces(text)).tobytes()

    def get_rarity(self, word: str) -> int:
        """Return how rare a word is: its place in the vocabulary, which begins with common words."""
        ids = self._tokenizer.tokenize_word(word) if word.isascii() else self._tokenizer.tokenize(word)
        return ids[0] if len(ids) == 1 else len(self._rows) + FIRST_PIECE_ID

    def select_rarest(self, rows: Iterable[int], most: int) -> list[int]:
        """Return at most this many of the rows: the rarest, in their order."""
        found = list(rows)
        if len(found) > most:
            kept = set(sorted(found, reverse=True)[:most])  # the vocabulary begins with common words
            found = [row for row in found if row in kept]
        return found

    def compute_coverage(self, question: Sequence[int], own: Floats, beside: Floats) -> Floats:
        """Return for each chunk (columns) the share of the question (rows) that the chunk or its context covers.

        Every word of the question counts as much as the most similar word in the chunk. Rare words count more.
        """
        np = self.np
        weights = self._rarity[list(question)]
        weights = weights / max(float(weights.sum()), 1e-9)
        found: Floats = np.einsum("i,ij->j", weights, own + CONTEXT_WEIGHT * np.maximum(own, beside)) / (
            1 + CONTEXT_WEIGHT
        )
        return found

    def compute_best_similarities(self, question: Sequence[int], kept: Sequence[bytes]) -> Floats:
        """Return per word of the question (rows) and packed text (columns) the similarity of the most similar word."""
        np = self.np
        best: Floats = np.zeros((len(question), len(kept)), np.float32)
        joined = np.frombuffer(b"".join(kept), np.uint16)
        if not len(joined) or not len(question):
            return best
        there = np.zeros(len(self._rows), np.bool_)
        there[joined] = True
        distinct = there.nonzero()[0]
        near = self._compute_similarities(distinct, self._get_unit_vectors(np.array(question)).T)
        # Most words resemble no word of the question, so they are skipped in every text they occur in.
        like = (near.ravel() > MIN_SIMILARITY).nonzero()[0] // len(question)
        place = np.zeros(len(self._rows), np.uint16)
        place[distinct[like]] = like + 1
        at = place.take(joined)
        where = at.nonzero()[0]
        if len(where):
            ends = np.cumsum(np.fromiter(map(len, kept), np.int64, len(kept)))
            owner = ends.searchsorted(where * joined.itemsize, side="right")
            starts = np.concatenate([[True], owner[1:] != owner[:-1]]).nonzero()[0]
            most = np.maximum.reduceat(near.take(at[where] - 1, axis=0), starts, axis=0).T
            best[:, owner[starts]] = np.maximum(most - MIN_SIMILARITY, 0.0) / (1.0 - MIN_SIMILARITY)
        return best

    def _compute_similarities(self, rows: npt.NDArray[np.int64], wanted: Floats) -> Floats:
        """Return the similarity of each of these rows to each wanted row. It works in small steps, because a large
        product would start the threads of the linear algebra library, which spin for longer than the product takes.
        """
        np = self.np
        near: Floats = np.empty((len(rows), wanted.shape[1]), np.float32)
        step = max(8, PRODUCT_STEP_ROWS // wanted.shape[1])
        buffer: Floats = np.empty(
            (step, WORD_DIMENSIONS), np.float32
        )  # reused in every step, so it stays in the processor's cache
        for low in range(0, len(rows), step):
            some = self._narrow.take(rows[low : low + step], axis=0)
            buffer[: len(some)] = some
            np.matmul(buffer[: len(some)], wanted, out=near[low : low + step])
        near *= self._inverse.take(rows)[:, None]
        return near

    def _get_unit_vectors(self, rows: npt.NDArray[np.int64]) -> Floats:
        found: Floats = self._narrow[rows] * self._inverse[rows, None]
        return found

    def _sum_text_vectors(self, text: str) -> Floats:
        return self._sum_vectors(self.tokenize(text))

    def _sum_vectors(self, rows: Sequence[int]) -> Floats:
        """Sum integers, so that the result does not depend on the order or on partial sums."""
        if not rows:
            nothing: Floats = self.np.zeros(DIMENSIONS, self.np.float32)
            return nothing
        total: Floats = self.np.add.reduce(self._rows.take(rows, axis=0), axis=0, dtype=self.np.float32)
        return total

    def _normalize_vector(self, total: Floats) -> Floats:
        """Return the vector scaled to length 1."""
        unit: Floats = total / max(math.sqrt(total @ total), 1e-9)
        return unit
