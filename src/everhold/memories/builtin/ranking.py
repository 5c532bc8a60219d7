"""Ranks candidates by words, by embeddings and by their neighbours. It computes whole columns at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import apsw
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from everhold.memories.builtin import candidates
from everhold.memories.builtin.dates import DateRange
from everhold.memories.builtin.indexing import ItemFlag
from everhold.memories.builtin.rank_fusion import (
    DATE_HALF_LIFE_DAYS,
    DAY_SECONDS,
    LENGTH,
    MAX_EXAMINED_ITEMS,
    MAX_WANTED_ITEMS,
    MIN_LIKENESS,
    MIN_SCORE_SHARE,
    MIN_SIMILARITY,
    OCCASION_ITEMS,
    PREVIOUS_MESSAGE_WEIGHT,
    SATURATION,
    RankedItem,
    RankingWeights,
)
from everhold.memories.builtin.static_embeddings import QUANTIZATION_SCALE, StaticEmbeddings
from everhold.memories.builtin.vector_cache import Floats, RowNumbers, ScopeColumns, ScopeStack, expand_item_chunks

MAX_CANDIDATE_CHUNKS: Final = 200
"""Chunks that each signal may propose per scope."""
MAX_WANTED_EXAMINED: Final = 1_000
"""The newest items of the named dates, or of people about themselves, that are compared, per scope."""
MAX_EXTRA_CHUNKS: Final = 4
"""Chunks of a candidate that are scored in addition to those that were found."""
HUMAN, NOTED, AFTER, BARE = int(ItemFlag.HUMAN), int(ItemFlag.NOTED), int(ItemFlag.AFTER), int(ItemFlag.BARE)
PERSONAL: Final = int(ItemFlag.PERSONAL)
"""Plain integers, because a column is compared with them."""
LEAST_SCALE: Final = 1e-3
"""What the best score counts at least, so that a question without a topic has an order, too."""


class PreparedQuestion(Struct, frozen=True):
    """A question, prepared for comparison."""

    terms: Sequence[Sequence[candidates.TermPostings]]
    """Its words as sampled in each scope."""
    piece_rows: Sequence[int]
    """Table rows of its content word pieces."""
    vector: Floats
    deep: Floats | None
    """The stronger model's vector, if the model ranks."""
    authors: Sequence[int]
    """The authors it names."""
    dates: Sequence[DateRange] = ()
    """The dates it names."""
    personal: bool = False
    """It is about the person who asks, and about nothing else."""
    for_turn: bool = False
    """Leave out items that tell nothing or have hardly anything to do with the question."""


def rank_candidates(
    db: apsw.Connection,
    stack: ScopeStack,
    table: StaticEmbeddings,
    asked: PreparedQuestion,
    knobs: RankingWeights,
    *,
    only: RowNumbers | None,
    skip: RowNumbers,
) -> Iterator[RankedItem]:
    """Return the candidates, best first. `only` restricts the items, if given; `skip` items are removed at the end."""
    found, words = _match_words(db, stack, asked.terms, only)
    if only is None:
        close = stack.find_nearest(
            "vectors" if asked.deep is None else "deep", _get_question_vector(asked), MAX_CANDIDATE_CHUNKS
        )
    else:
        close = _select_item_chunks(stack, only, None)
    wanted = _find_wanted_chunks(db, stack, asked) if only is None else close[:0]
    rows = _merge_rows(found, close, wanted)
    if not len(rows):
        return iter(())
    heads, owner = _group_by_head(stack.resolve_links("head", rows))
    by_words = _pool_best(_spread_values(rows, found, words), owner, len(heads))
    by_model = knobs.meaning if asked.deep is None else knobs.deep
    first = _fuse_scores(
        (knobs.words, by_words), (by_model, _pool_best(_score_similarity(db, stack, rows, asked), owner, len(heads)))
    )
    if asked.dates or asked.personal:
        first = first + max(float(first.max()), LEAST_SCALE) * _score_wanted(stack, heads, asked, knobs)
    if len(heads) > MAX_EXAMINED_ITEMS:
        heads = np.sort(heads[np.argpartition(-first, MAX_EXAMINED_ITEMS)[:MAX_EXAMINED_ITEMS]])
    items = _merge_rows(heads, stack.resolve_links("before", heads), stack.resolve_links("after", heads))
    items = items[np.searchsorted(items, 0) :]  # without "nowhere"
    rows = _merge_rows(
        _select_item_chunks(stack, items, MAX_EXTRA_CHUNKS),
        found[_mask_members(stack.resolve_links("head", found), items)],
    )
    owner = np.searchsorted(items, stack.resolve_links("head", rows))
    arms = [
        (knobs.words, _spread_values(rows, found, words)),
        (by_model, _score_similarity(db, stack, rows, asked)),
        (knobs.alike, _score_word_likeness(db, stack, table, rows, asked.piece_rows)),
    ]
    if asked.deep is not None:
        arms.append((knobs.meaning, stack.compute_similarity(db, "vectors", rows, asked.vector)))
    scores = _fuse_scores(*((weight, _pool_best(arm, owner, len(items))) for weight, arm in arms))
    relevant = _mask_relevant(arms, owner, len(items)) if asked.for_turn and asked.deep is None else None
    scores, is_near = _adjust_scores(stack, items, scores, asked, knobs, relevant)
    order = np.lexsort((-items, -stack.get_column("at", items), -scores))
    order = order[~_mask_members(items[order], skip)]
    if asked.for_turn:
        order = order[((stack.get_column("flags", items)[order] & BARE) == 0) & is_near[order]]
    if only is not None:
        order = order[_mask_members(items[order], only)]
    best = _find_best_chunks(rows, owner, _fuse_scores(*arms), len(items))
    firsts, bests = stack.get_chunk_ids(items[order]), stack.get_chunk_ids(best[order])
    return map(RankedItem, firsts, scores[order].tolist(), bests)


# -- signals -----------------------------------------------------------------------------------------------------------


def _match_words(
    db: apsw.Connection,
    stack: ScopeStack,
    terms: Sequence[Sequence[candidates.TermPostings]],
    only: RowNumbers | None,
) -> tuple[RowNumbers, Floats]:
    """Return the chunks that share words with the question, the best of each scope, and their scores."""
    parts: list[RowNumbers] = []
    scores: list[Floats] = []
    for shelf, base, sampled in zip(stack.scopes, stack.bases.tolist(), terms, strict=False):
        rows, score = _score_bm25(db, shelf, sampled)
        if only is not None and len(rows):
            keep = _mask_members(shelf.head[rows].astype(np.int64) + base, only)
            rows, score = rows[keep], score[keep]
        if len(rows) > MAX_CANDIDATE_CHUNKS:
            picked = np.sort(np.argpartition(-score, MAX_CANDIDATE_CHUNKS)[:MAX_CANDIDATE_CHUNKS])
            rows, score = rows[picked], score[picked]
        parts.append(rows)
        scores.append(score)
    return stack.join_rows(parts), np.concatenate(scores)


def _score_bm25(
    db: apsw.Connection, shelf: ScopeColumns, sampled: Sequence[candidates.TermPostings]
) -> tuple[RowNumbers, Floats]:
    """Compute BM25 with each word counted once per chunk, and with less weight in the previous message."""
    total = shelf.used
    walked = candidates.find_term_chunks(db, sampled, shelf.scope, total)
    if not walked:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    counts = np.array([count for count, _, _ in walked])
    sizes = [len(rows) for _, rows, _ in walked]
    rarity = np.maximum(np.log((total - counts + 0.5) / (counts + 0.5)), 1e-6)
    rarity = np.repeat(rarity, sizes)
    here: RowNumbers = np.fromiter(chain.from_iterable(rows for _, rows, _ in walked), np.int64, sum(sizes))
    after = shelf.after[here].astype(np.int64)
    beside = (after >= 0) & ((shelf.flags[after] & AFTER) > 0)
    rows = np.concatenate([here, after[beside]])
    weight = np.concatenate([np.ones(len(here)), np.full(int(beside.sum()), PREVIOUS_MESSAGE_WEIGHT)])
    long = SATURATION * (1 - LENGTH + LENGTH * shelf.count_pieces(rows) / max(shelf.mean, 1.0))
    scores = np.concatenate([rarity, rarity[beside]]) * weight * (SATURATION + 1) / (weight + long)
    order = np.argsort(rows, kind="stable")
    found, owner = _group_by_head(rows[order])
    summed = np.bincount(owner, scores[order])
    there = shelf.head[found] >= 0
    return found[there], summed[there].astype(np.float32)


def _score_similarity(db: apsw.Connection, stack: ScopeStack, rows: RowNumbers, asked: PreparedQuestion) -> Floats:
    """Return the similarity of these chunks. One that lacks its stronger vector gets the similarity of the table."""
    if asked.deep is None:
        return stack.compute_similarity(db, "vectors", rows, asked.vector)
    near = stack.compute_similarity(db, "deep", rows, asked.deep)
    waits = ~stack.has_vectors("deep", rows)
    if waits.any() and not waits.all():
        plain = stack.compute_similarity(db, "vectors", rows, asked.vector)
        top = float(plain.max())
        if top > 0:
            near[waits] = plain[waits] * float(near.max()) / top
    return near


def _score_word_likeness(
    db: apsw.Connection, stack: ScopeStack, table: StaticEmbeddings, rows: RowNumbers, wanted: Sequence[int]
) -> Floats:
    """Return the share of the question's words for which a chunk or its context has a similar word."""
    reads = (stack.get_column("flags", rows) & AFTER) > 0
    before = stack.resolve_links("before", rows)
    every = _merge_rows(rows, before[reads])
    best = table.compute_best_similarities(wanted, stack.load_pieces(db, every))
    own = best[:, np.searchsorted(every, rows)]
    beside = np.zeros_like(own)
    beside[:, reads] = best[:, np.searchsorted(every, before[reads])]
    return table.compute_coverage(wanted, own, beside)


def _get_question_vector(asked: PreparedQuestion) -> Floats:
    return asked.vector if asked.deep is None else asked.deep


# -- combining ---------------------------------------------------------------------------------------------------------


def _merge_rows(*parts: RowNumbers) -> RowNumbers:
    """Return the union of these rows, in order."""
    every = np.concatenate(parts)
    every.sort()
    return every[np.concatenate([[True], every[1:] != every[:-1]])] if len(every) else every


def _mask_members(rows: RowNumbers, some: RowNumbers) -> npt.NDArray[np.bool_]:
    """Return which of these rows occur in a sorted array."""
    if not len(some):
        return np.zeros(len(rows), np.bool_)
    found: npt.NDArray[np.bool_] = some[np.minimum(np.searchsorted(some, rows), len(some) - 1)] == rows
    return found


def _group_by_head(heads: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
    """Return the first chunks of sorted rows, each once, and the index that maps rows to them."""
    new = np.concatenate([[True], heads[1:] != heads[:-1]])
    return heads[new], np.cumsum(new) - 1


def _select_item_chunks(stack: ScopeStack, items: RowNumbers, most: int | None) -> RowNumbers:
    """Return the chunks of these items, at most this many of each."""
    counts = stack.get_column("count", items).astype(np.int64)
    if most is not None:
        counts = np.minimum(counts, most)
    return expand_item_chunks(items, counts)


def _spread_values(rows: RowNumbers, some: RowNumbers, values: Floats) -> Floats:
    """Spread `values` of some rows over all rows."""
    spread: Floats = np.zeros(len(rows), np.float32)
    there = _mask_members(some, rows)
    spread[np.searchsorted(rows, some[there])] = values[there]
    return spread


def _pool_best(values: Floats, owner: RowNumbers, count: int) -> Floats:
    """Return the score of each item: the score of its best chunk."""
    pooled: Floats = np.zeros(count, np.float32)
    np.maximum.at(pooled, owner, values)
    return pooled


def _fuse_scores(*arms: tuple[float, Floats]) -> Floats:
    """Add the scores of several signals, each as a share of its best score, by their weights."""
    fused: Floats = np.zeros(len(arms[0][1]), np.float32)
    for weight, scores in arms:
        best = float(scores.max(initial=0.0))
        if best > 0:
            fused += np.maximum(scores, 0.0) * np.float32(weight / best)
    return fused


def _adjust_scores(
    stack: ScopeStack,
    items: RowNumbers,
    scores: Floats,
    asked: PreparedQuestion,
    knobs: RankingWeights,
    relevant: npt.NDArray[np.bool_] | None,
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the scores with the contributions of neighbours, authors and time, and which items are near enough to the
    question to be shown without being asked for: relevant ones, if that is known, their neighbours, and what is wanted
    anyway.
    """
    before = stack.resolve_links("before", items)
    place = np.minimum(np.searchsorted(items, before), len(items) - 1)
    follows = items[place] == before
    place = place[follows]
    smoothed = scores.copy()
    smoothed[follows] += knobs.smooth * scores[place]
    smoothed[place] += knobs.smooth * scores[follows]
    flags = stack.get_column("flags", items)
    favoured = (flags & HUMAN) > 0
    if asked.for_turn:  # a search asks for single items, and first for what people said
        favoured = _mask_favoured(flags, stack.get_column("count", items))
        smoothed += knobs.occasion * _score_occasions(stack.get_column("occasion", items), scores)
    at = stack.get_column("at", items)
    age_days = (at.max() - at) / DAY_SECONDS
    extra = knobs.human * favoured + knobs.noted * ((flags & NOTED) > 0)
    extra = extra + knobs.recent * 0.5 ** (age_days / knobs.half_life_days)
    if asked.authors:
        extra = extra + knobs.named * np.isin(stack.get_column("author", items), asked.authors)
    scale = max(float(smoothed.max()), LEAST_SCALE)
    if asked.dates or asked.personal:
        gained = scale * _score_wanted(stack, items, asked, knobs)
        smoothed += gained
        relevant = None if relevant is None else relevant | (gained > 0)
    is_near = smoothed > max(MIN_SCORE_SHARE * float(smoothed.max()), 0.0)
    if relevant is not None:
        near = relevant.copy()
        near[follows] |= relevant[place]
        near[place] |= relevant[follows]
        is_near &= near
    settled: Floats = (smoothed + scale * extra).astype(np.float32)
    return settled, is_near


def _mask_favoured(flags: npt.NDArray[np.uint8], chunks: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Return which items are words of people or short: all but long answers."""
    favoured: npt.NDArray[np.bool_] = ((flags & HUMAN) > 0) | (chunks == 1)
    return favoured


def _weigh_dates(asked: PreparedQuestion, knobs: RankingWeights) -> float:
    """Return the weight of the dates: the fewer other words a question has, the more it asks for a date."""
    return knobs.dated * (1 + 2 / max(1, len(asked.piece_rows)))


def _score_dates(at: npt.NDArray[np.float64], dates: Sequence[DateRange]) -> Floats:
    """Return 1 for what was said at one of the dates, and less for what was said after it."""
    best: Floats = np.zeros(len(at), np.float32)
    for one in dates:
        after_days = np.maximum(at - one.end, 0.0) / DAY_SECONDS
        best = np.maximum(best, np.where(at >= one.start, 0.5 ** (after_days / DATE_HALF_LIFE_DAYS), 0.0))
    return best.astype(np.float32)


def _score_wanted(stack: ScopeStack, items: RowNumbers, asked: PreparedQuestion, knobs: RankingWeights) -> Floats:
    """Return what items gain because the question asks for their date, or for what a person said of themselves."""
    gained: Floats = np.zeros(len(items), np.float32)
    if asked.dates:
        gained += _weigh_dates(asked, knobs) * _score_dates(stack.get_column("at", items), asked.dates)
    if asked.personal:
        gained += knobs.personal * ((stack.get_column("flags", items) & (PERSONAL | NOTED)) > 0)
    return gained


def _mask_relevant(arms: Sequence[tuple[float, Floats]], owner: RowNumbers, count: int) -> npt.NDArray[np.bool_]:
    """Return which items have a word of the question, a similar word, or a similar meaning."""
    words, meaning, alike = (_pool_best(arm, owner, count) for _, arm in arms[:3])
    near: npt.NDArray[np.bool_] = meaning >= MIN_SIMILARITY * QUANTIZATION_SCALE
    return (words > 0) | near | (alike >= MIN_LIKENESS)


def _find_wanted_chunks(db: apsw.Connection, stack: ScopeStack, asked: PreparedQuestion) -> RowNumbers:
    """Return the items of the dates that the question names, and what people said of themselves if it asks for that;
    of too many, those that are most similar to the question.
    """
    if not asked.dates and not asked.personal:
        return np.zeros(0, np.int64)
    parts = []
    for shelf in stack.scopes:
        at = shelf.at[: shelf.used]
        inside = np.zeros(len(at), np.bool_)
        for one in asked.dates:
            inside |= (at >= one.start) & (at < one.end + DATE_HALF_LIFE_DAYS * DAY_SECONDS)
        if asked.personal:
            inside |= (shelf.flags[: shelf.used] & (PERSONAL | NOTED)) > 0
        parts.append((inside & (shelf.head[: shelf.used] == np.arange(shelf.used))).nonzero()[0][-MAX_WANTED_EXAMINED:])
    rows = stack.join_rows(parts)
    if len(rows) > MAX_WANTED_ITEMS:
        near = stack.compute_similarity(db, "vectors", rows, asked.vector)
        rows = np.sort(rows[np.argpartition(-near, MAX_WANTED_ITEMS)[:MAX_WANTED_ITEMS]])
    return rows


def _score_occasions(occasions: npt.NDArray[np.int32], scores: Floats) -> Floats:
    """Return for each item the mean score of the best items of its occasion."""
    order = np.lexsort((-scores, occasions))
    sorted_occasions = occasions[order]
    starts = np.concatenate([[True], sorted_occasions[1:] != sorted_occasions[:-1]]).nonzero()[0]
    sizes = np.diff(np.append(starts, len(order)))
    ranks = np.arange(len(order)) - np.repeat(starts, sizes)
    sums = np.add.reduceat(np.where(ranks < OCCASION_ITEMS, scores[order], 0.0), starts)
    shared: Floats = np.empty(len(order), np.float32)
    shared[order] = np.repeat(sums / OCCASION_ITEMS, sizes)
    return shared


def _find_best_chunks(rows: RowNumbers, owner: RowNumbers, judged: Floats, count: int) -> RowNumbers:
    """Return the best chunk of each item; of equal ones, the first."""
    best = np.zeros(count, np.int64)
    order = np.lexsort((-rows, judged))  # later ones overwrite earlier ones
    best[owner[order]] = rows[order]
    return best
