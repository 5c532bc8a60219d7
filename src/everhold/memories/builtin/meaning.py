"""What chunks mean: makes their vectors, and scores candidates by them. With nothing installed it has no opinion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import apsw
import msgspec
from msgspec import Struct

from everhold.memories.builtin import encoder, table
from everhold.memories.builtin.intake import Piece
from everhold.memories.builtin.lookup import span
from everhold.memories.builtin.schema import meta, put
from everhold.memories.builtin.vectors import Kept, Shelves, compare

Use = Literal["auto", "table", "none"]
BEHIND: Final = 64
"""Chunks that may lack their stronger vector; beyond that a scope is judged by the table."""
AT_ONCE: Final = 500


class Question(Struct, frozen=True):
    """A question without the names in it, and how it is to be judged."""

    text: str
    kept: Kept
    wanted: tuple[int, ...]
    """Rows of its telling word pieces."""


class Meaning:
    """`use`: the best there is, at most the table, or none."""

    def __init__(self, use: Use = "auto") -> None:
        self.table = use != "none" and table.available()
        self.deep = self.table and use == "auto" and encoder.available()
        self._shelves = Shelves()

    @property
    def level(self) -> str:
        return "model" if self.deep else "table" if self.table else "words"

    # -- making

    def embed(self, db: apsw.Connection, pieces: Sequence[Piece]) -> None:
        """Make the table's vectors of these chunks, and put them in line for the stronger ones."""
        if not pieces:
            return
        with db:
            if not self.table:
                put(db, "bare", "1")
                return
            known = table.load()
            for piece in pieces:
                db.execute(
                    "insert or replace into vectors values (?, ?, ?, ?)",
                    (
                        piece.id, known.stored(piece.text, piece.context),
                        known.packed(piece.text), known.packed(piece.context),
                    ),
                )  # fmt: skip
                db.execute("insert or ignore into shallow values (?)", (piece.id,))

    def mend(self, db: apsw.Connection) -> int:
        """Make up for vectors that could not be made when their chunks came; how many were."""
        model = str(table.MODEL)
        if not self.table or (meta(db, "bare", "0") == "0" and meta(db, "table", model) == model):
            if self.table and not meta(db, "table"):
                put(db, "table", model)
            return 0
        with db:
            if meta(db, "table", model) != model:
                db.execute("delete from vectors")
            put(db, "table", model)
            put(db, "bare", "1")
        rows: list[Any] = db.execute(
            f"select id, self, ctx from chunks where id not in (select chunk from vectors) limit {AT_ONCE}"
        ).fetchall()
        self.embed(db, [Piece(*row) for row in rows])
        if len(rows) < AT_ONCE:
            put(db, "bare", "0")
        self.changed()
        return len(rows)

    def waiting(self, db: apsw.Connection, limit: int) -> list[Piece]:
        """Chunks in line for their stronger vectors, the newest first: they are the likeliest to be asked about."""
        if not self.deep:
            return []
        rows = db.execute(
            "select id, self, ctx from shallow join chunks on id = chunk order by chunk desc limit ?", (limit,)
        )
        return [Piece(*row) for row in rows]

    def encode(self, pieces: Sequence[Piece]) -> list[bytes]:
        return encoder.load().stored([(piece.text, piece.context) for piece in pieces])

    def fill(self, db: apsw.Connection, pieces: Sequence[Piece], vectors: Sequence[bytes]) -> None:
        """Keep stronger vectors, of chunks that are still what they were when their turn came."""
        with db:
            for piece, vector in zip(pieces, vectors, strict=True):
                same = db.execute(
                    "select 1 from chunks where id = ? and self = ? and ctx = ?", (piece.id, piece.text, piece.context)
                ).get
                if same:
                    db.execute("insert or replace into deep values (?, ?)", (piece.id, vector))
                    db.execute("delete from shallow where chunk = ?", (piece.id,))
        self.changed()

    def changed(self) -> None:
        """Something other than new chunks at the end: what is kept in memory is read again."""
        self._shelves.clear()

    # -- judging

    def question(self, db: apsw.Connection, text: str, scopes: Sequence[int]) -> Question | None:
        if not self.table:
            return None
        kept: Kept = "deep" if self.deep and self._filled(db, scopes) else "vectors"
        return Question(text, kept, tuple(table.load().telling(text)))

    def nearest(self, db: apsw.Connection, question: Question, scopes: Sequence[int], count: int) -> dict[int, float]:
        return self._shelves.nearest(db, question.kept, scopes, _vector(question), count)

    def near(self, db: apsw.Connection, question: Question, chunks: Sequence[int]) -> dict[int, float]:
        """How near these chunks are. One that still waits for its stronger vector is judged by the table's."""
        found = compare(db, question.kept, chunks, _vector(question))
        missing = [id for id in chunks if id not in found]
        if question.kept == "deep" and missing and found:
            plain = compare(db, "vectors", chunks, table.load().question(question.text))
            top, top_plain = max(found.values()), max(plain.values(), default=0.0)
            if top_plain > 0:
                found.update((id, plain[id] * top / top_plain) for id in missing if id in plain)
        return found

    def plain(self, db: apsw.Connection, question: Question, chunks: Sequence[int]) -> dict[int, float]:
        """How near these chunks are by the table, where the stronger model judges, too."""
        return compare(db, "vectors", chunks, table.load().question(question.text))

    def alike(self, db: apsw.Connection, question: Question, chunks: Iterable[int]) -> dict[int, float]:
        """The share of the question's words that each chunk has something like."""
        rows: list[Any] = db.execute(
            "select chunk, pieces, context from vectors where chunk in (select value from json_each(?))",
            (msgspec.json.encode(list(chunks)).decode(),),
        ).fetchall()
        scores = table.load().alike(question.wanted, [(row[1], row[2]) for row in rows])
        return dict(zip([row[0] for row in rows], scores.tolist(), strict=True))

    def _filled(self, db: apsw.Connection, scopes: Sequence[int]) -> bool:
        missing = 0
        for scope in scopes:
            low, high = span(scope)
            missing += len(
                db.execute(
                    f"select 1 from shallow where chunk between ? and ? limit {BEHIND + 1}", (low, high)
                ).fetchall()
            )
        return missing <= BEHIND


def _vector(question: Question) -> table.Floats:
    if question.kept == "deep":
        return encoder.load().question(question.text)
    return table.load().question(question.text)
