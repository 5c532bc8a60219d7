"""Computes the vectors of chunks and ranks chunks by them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import apsw

from everhold.memories.builtin import candidates, onnx_embeddings, static_embeddings
from everhold.memories.builtin.candidates import IndexScope
from everhold.memories.builtin.dates import DateRange
from everhold.memories.builtin.indexing import ChunkText
from everhold.memories.builtin.languages import find_language, is_inflected, select_topic, select_wishes
from everhold.memories.builtin.rank_fusion import RankedItem, RankingWeights, choose_weights
from everhold.memories.builtin.schema import read_meta, write_meta
from everhold.memories.builtin.tokenizing import remove_names

if TYPE_CHECKING:
    from everhold.memories.builtin.vector_cache import ScopeCache, ScopeStack

EmbeddingsMode = Literal["auto", "table"]
MAX_UNEMBEDDED_CHUNKS: Final = 64
"""Chunks of a scope that may lack the stronger vector. If more lack it, the static table ranks the scope."""
REPAIR_BATCH_SIZE: Final = 500
MAX_QUESTION_PIECES: Final = 8
"""Word pieces of a question that are compared one by one; of a longer question, the rarest."""


class ChunkEmbeddings:
    """Embeddings of chunks. `use`: `auto` for the best available, or `table` for the static table only."""

    def __init__(self, use: EmbeddingsMode = "auto", models: Path | None = None) -> None:
        self.models = models
        self.deep = use == "auto" and onnx_embeddings.is_available(models)
        self.model_problem = ""
        """Why the stronger model is not used although it is installed."""
        self.ready = False
        """Whether everything that is slow to load is loaded."""
        self._scope_cache: ScopeCache | None = None

    @property
    def level(self) -> str:
        return "model" if self.deep else "table"

    # -- computing

    def embed_chunks(self, db: apsw.Connection, pieces: Collection[ChunkText]) -> None:
        """Compute the static vectors of these chunks and queue the chunks for the stronger ones."""
        if not pieces:
            return
        known = static_embeddings.load_static_embeddings()
        db.executemany(
            "insert or replace into vectors values (?, ?, ?)",
            (
                (piece.id, known.embed_chunk(piece.text, piece.context), known.pack_pieces(piece.text))
                for piece in pieces
            ),
        )
        if self.deep:
            db.executemany("insert or ignore into shallow values (?)", ((piece.id,) for piece in pieces))
        self.ready = True

    def repair_missing(self, db: apsw.Connection) -> list[int]:
        """Compute vectors that are missing since the static table changed; return the chunks that got one."""
        model = str(static_embeddings.TABLE_VERSION)
        done: list[int] = []
        with db:
            if read_meta(db, "table", model) != model:
                db.execute("delete from vectors")
                write_meta(db, "bare", "1")
            write_meta(db, "table", model)
            if read_meta(db, "bare", "0") == "1":
                rows = candidates.load_chunk_texts(
                    db, f"where c.id not in (select chunk from vectors) limit {REPAIR_BATCH_SIZE}"
                )
                self.embed_chunks(db, rows)
                done = [row.id for row in rows]
                if len(rows) < REPAIR_BATCH_SIZE:
                    write_meta(db, "bare", "0")
            model = str(onnx_embeddings.MODEL_VERSION)
            if self.deep and read_meta(db, "deep") != model:
                if read_meta(db, "deep"):
                    db.execute("delete from deep")
                db.execute(
                    "insert or ignore into shallow select id from chunks where id not in (select chunk from deep)"
                )
                write_meta(db, "deep", model)
        return done

    def list_pending(self, db: apsw.Connection, limit: int) -> list[ChunkText]:
        """List the chunks that wait for their stronger vectors, newest first, because those are the likeliest to be
        searched.
        """
        if not self.deep:
            return []
        return candidates.load_chunk_texts(db, "join shallow s on s.chunk = c.id order by c.id desc limit ?", limit)

    def count_pending(self, db: apsw.Connection) -> tuple[int, int]:
        """Count all chunks, and those that wait for their stronger vectors."""
        chunks = db.execute("select count(*) from chunks").get
        waiting = db.execute("select count(*) from shallow").get if self.deep else 0
        assert isinstance(chunks, int)
        assert isinstance(waiting, int)
        return chunks, waiting

    def encode_chunks(self, pieces: Sequence[ChunkText]) -> list[bytes] | None:
        """Return the stronger vectors of these chunks; None if the model cannot be used."""
        model = self._load_model()
        return None if model is None else model.embed_chunks([(piece.text, piece.context) for piece in pieces])

    def _load_model(self) -> onnx_embeddings.OnnxEncoder | None:
        """Return the stronger model. If it cannot be used, return None and switch to the static table."""
        try:
            return onnx_embeddings.load_encoder(self.models)
        except (ValueError, OSError, ImportError) as error:
            self.model_problem = str(error)
            self.deep = False
            return None

    def store_vectors(self, db: apsw.Connection, pieces: Sequence[ChunkText], vectors: Sequence[bytes]) -> list[int]:
        """Store stronger vectors, but only of chunks that did not change since they were read; return those chunks."""
        done: list[int] = []
        with db:
            for piece, vector in zip(pieces, vectors, strict=True):
                if candidates.load_chunk_texts(db, "where c.id = ?", piece.id) == [piece]:
                    db.execute("insert or replace into deep values (?, ?)", (piece.id, vector))
                    db.execute("delete from shallow where chunk = ?", (piece.id,))
                    done.append(piece.id)
        return done

    # -- cached in memory

    def invalidate_cache(self) -> None:
        """Drop the cache, because it is unknown what changed in the file."""
        if self._scope_cache is not None:
            self._scope_cache.clear()

    def warm_scope(self, db: apsw.Connection, scope: IndexScope) -> None:
        """Load a scope, or its first part, into memory."""
        self._get_scope_cache().load_stack(db, [scope])

    def _get_scope_cache(self) -> ScopeCache:
        if self._scope_cache is None:
            from everhold.memories.builtin import vector_cache  # imports numpy

            self._scope_cache = vector_cache.ScopeCache(deep=self.deep)
        return self._scope_cache

    def reload_chunks(self, db: apsw.Connection, chunks: Collection[int]) -> None:
        """Read these chunks into the cache again, because they changed."""
        if self._scope_cache is not None and chunks:
            self._scope_cache.reload_chunks(db, chunks)

    # -- ranking

    def rank_candidates(
        self,
        db: apsw.Connection,
        scopes: Sequence[IndexScope],
        text: str,
        *,
        spoken: Collection[str],
        authors: Collection[str],
        knobs: RankingWeights | None,
        only: Sequence[int] | None,
        skip: Sequence[int],
        dates: Sequence[DateRange] = (),
        personal: bool = False,
        for_turn: bool = False,
    ) -> Iterator[RankedItem]:
        """Return the candidates in these scopes, best first. `spoken` are names in the question: they say whose words
        are wanted.
        """
        from everhold.memories.builtin import ranking  # imports numpy

        known = static_embeddings.load_static_embeddings()
        stack = self._get_scope_cache().load_stack(db, scopes)
        about = remove_names(text, spoken)
        model = self._load_model() if self.deep and _is_mostly_embedded(stack) else None
        if personal:
            about = select_wishes(about)
        language = find_language(about)
        if language:
            about = select_topic(about, language)
        queries = candidates.build_term_queries(about, known.get_rarity, inflected=is_inflected(language))
        terms = [candidates.sample_terms(db, queries, shelf.scope, shelf.used) for shelf in stack.scopes]
        common = candidates.find_common_names(
            about, terms, sum(shelf.used for shelf in stack.scopes), inflected=is_inflected(language)
        )
        topic = remove_names(about, common) if common else about
        asked = ranking.PreparedQuestion(
            terms=terms,
            piece_rows=known.select_rarest(known.select_content_pieces(topic), MAX_QUESTION_PIECES),
            vector=known.embed_question(topic or text),
            deep=None if model is None else model.embed_question(topic or text),
            authors=candidates.find_author_ids(db, authors),
            dates=dates,
            personal=personal,
            for_turn=for_turn,
        )
        self.ready = True
        return ranking.rank_candidates(
            db,
            stack,
            known,
            asked,
            knobs or choose_weights(english=not language, deep=model is not None),
            only=None if only is None else stack.find_rows(only),
            skip=stack.find_rows(skip),
        )


def _is_mostly_embedded(stack: ScopeStack) -> bool:
    """Whether few enough chunks lack their stronger vector for the model to rank these scopes."""
    filled = sum(shelf.embedded_count for shelf in stack.scopes)
    return filled > 0 and sum(shelf.pending_count for shelf in stack.scopes) <= MAX_UNEMBEDDED_CHUNKS
