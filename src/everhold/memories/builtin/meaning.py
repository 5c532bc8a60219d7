"""What chunks mean: makes their vectors, and asks by them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import apsw

from everhold.memories.builtin import encoder, lookup, table
from everhold.memories.builtin.intake import Piece
from everhold.memories.builtin.lookup import Scope
from everhold.memories.builtin.rank import DEEP, KNOBS, Knobs, Ranked
from everhold.memories.builtin.schema import meta, put
from everhold.memories.builtin.words import without

if TYPE_CHECKING:
    from everhold.memories.builtin.shelf import Shelves, Stack

Use = Literal["auto", "table"]
BEHIND: Final = 64
"""Chunks that may lack their stronger vector; beyond that a scope is judged by the table."""
AT_ONCE: Final = 500
TELLING: Final = 8
"""Word pieces of a question that are compared one by one; of a longer one the rarest."""


class Meaning:
    """`use`: the best there is, or at most the table."""

    def __init__(self, use: Use = "auto", models: Path | None = None) -> None:
        self.models = models
        self.deep = use == "auto" and encoder.available(models)
        self.trouble = ""
        """Why the stronger model is not used although it is there."""
        self.ready = False
        """Whether everything that takes a while to load is loaded."""
        self._shelves: Shelves | None = None

    @property
    def level(self) -> str:
        return "model" if self.deep else "table"

    # -- making

    def embed(self, db: apsw.Connection, pieces: Collection[Piece]) -> None:
        """Make the table's vectors of these chunks, and put them in line for the stronger ones."""
        if not pieces:
            return
        known = table.load()
        db.executemany(
            "insert or replace into vectors values (?, ?, ?)",
            ((piece.id, known.stored(piece.text, piece.context), known.packed(piece.text)) for piece in pieces),
        )
        if self.deep:
            db.executemany("insert or ignore into shallow values (?)", ((piece.id,) for piece in pieces))
        self.ready = True

    def mend(self, db: apsw.Connection) -> list[int]:
        """Make the vectors that another table left missing; the chunks that got theirs."""
        model = str(table.MODEL)
        done: list[int] = []
        with db:
            if meta(db, "table", model) != model:
                db.execute("delete from vectors")
                put(db, "bare", "1")
            put(db, "table", model)
            if meta(db, "bare", "0") == "1":
                rows = lookup.pieces(db, f"where c.id not in (select chunk from vectors) limit {AT_ONCE}")
                self.embed(db, rows)
                done = [row.id for row in rows]
                if len(rows) < AT_ONCE:
                    put(db, "bare", "0")
            model = str(encoder.MODEL)
            if self.deep and meta(db, "deep") != model:
                if meta(db, "deep"):
                    db.execute("delete from deep")
                db.execute(
                    "insert or ignore into shallow select id from chunks where id not in (select chunk from deep)"
                )
                put(db, "deep", model)
        return done

    def waiting(self, db: apsw.Connection, limit: int) -> list[Piece]:
        """Chunks in line for their stronger vectors, the newest first: they are the likeliest to be asked about."""
        if not self.deep:
            return []
        return lookup.pieces(db, "join shallow s on s.chunk = c.id order by c.id desc limit ?", limit)

    def left(self, db: apsw.Connection) -> tuple[int, int]:
        """How many chunks there are, and how many of them wait for their stronger vectors."""
        chunks = db.execute("select count(*) from chunks").get
        waiting = db.execute("select count(*) from shallow").get if self.deep else 0
        assert isinstance(chunks, int)
        assert isinstance(waiting, int)
        return chunks, waiting

    def encode(self, pieces: Sequence[Piece]) -> list[bytes] | None:
        """Their stronger vectors; None if the model cannot be used."""
        model = self._model()
        return None if model is None else model.stored([(piece.text, piece.context) for piece in pieces])

    def _model(self) -> encoder.Encoder | None:
        """The stronger model; None, and no more of it, if it cannot be used."""
        try:
            return encoder.load(self.models)
        except (ValueError, OSError, ImportError) as error:
            self.trouble = str(error)
            self.deep = False
            return None

    def fill(self, db: apsw.Connection, pieces: Sequence[Piece], vectors: Sequence[bytes]) -> list[int]:
        """Keep stronger vectors, of chunks that are still what they were when their turn came; which those are."""
        done: list[int] = []
        with db:
            for piece, vector in zip(pieces, vectors, strict=True):
                if lookup.pieces(db, "where c.id = ?", piece.id) == [piece]:
                    db.execute("insert or replace into deep values (?, ?)", (piece.id, vector))
                    db.execute("delete from shallow where chunk = ?", (piece.id,))
                    done.append(piece.id)
        return done

    # -- what is kept in memory

    def changed(self) -> None:
        """Nobody knows what changed: what is kept in memory is read again."""
        if self._shelves is not None:
            self._shelves.clear()

    def warm(self, db: apsw.Connection, scope: Scope) -> None:
        """Have a scope, or its beginning, in memory."""
        self._kept().stack(db, [scope])

    def _kept(self) -> Shelves:
        if self._shelves is None:
            from everhold.memories.builtin import shelf  # numpy comes with it

            self._shelves = shelf.Shelves(deep=self.deep)
        return self._shelves

    def touch(self, db: apsw.Connection, chunks: Collection[int]) -> None:
        """These chunks are not what they were."""
        if self._shelves is not None and chunks:
            self._shelves.touch(db, chunks)

    # -- judging

    def rank(
        self,
        db: apsw.Connection,
        scopes: Sequence[Scope],
        text: str,
        *,
        spoken: Collection[str],
        authors: Collection[str],
        knobs: Knobs | None,
        only: Sequence[int] | None,
        skip: Sequence[int],
    ) -> Iterator[Ranked]:
        """The candidates in these scopes, best first. Names that are `spoken` say who is asked about, not what."""
        from everhold.memories.builtin import near  # numpy comes with it

        known = table.load()
        stack = self._kept().stack(db, scopes)
        about = without(text, spoken)
        model = self._model() if self.deep and _filled(stack) else None
        asked = near.Asked(
            terms=lookup.terms(about, known.rarity),
            wanted=known.rarest(known.telling(about), TELLING),
            vector=known.question(about),
            deep=None if model is None else model.question(about),
            authors=lookup.authors(db, authors),
        )
        self.ready = True
        return near.rank(
            db,
            stack,
            known,
            asked,
            knobs or (KNOBS if model is None else DEEP),
            only=None if only is None else stack.rows(only),
            skip=stack.rows(skip),
        )


def _filled(stack: Stack) -> bool:
    """Whether so few chunks lack their stronger vector that the model can judge."""
    filled = sum(shelf.filled for shelf in stack.shelves)
    return filled > 0 and sum(shelf.waiting for shelf in stack.shelves) <= BEHIND
