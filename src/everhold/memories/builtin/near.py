"""Candidates -> one order, by words, by meaning, and by what stands beside them. All of a column at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import apsw
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from everhold.memories.builtin import lookup
from everhold.memories.builtin.intake import Flag
from everhold.memories.builtin.rank import BESIDE, CLOSER, DAY, LENGTH, SATURATION, Knobs, Ranked
from everhold.memories.builtin.shelf import Floats, Places, Shelf, Stack, chunks_of
from everhold.memories.builtin.table import Table

CANDIDATES: Final = 200
"""Chunks each way of looking may propose, of each scope."""
EACH: Final = 4
"""Chunks of a candidate that are judged besides those that were found."""
HUMAN, NOTED, AFTER = int(Flag.HUMAN), int(Flag.NOTED), int(Flag.AFTER)
"""As plain numbers: a column is compared with them, not a single flag."""


class Asked(Struct, frozen=True):
    """A question, ready to be compared."""

    terms: Sequence[str]
    wanted: Sequence[int]
    """Rows of its telling word pieces."""
    vector: Floats
    deep: Floats | None
    """The stronger model's vector, where that judges."""
    authors: Sequence[int]
    """Those it names."""


def rank(
    db: apsw.Connection, stack: Stack, table: Table, asked: Asked, knobs: Knobs, *, only: Places | None, skip: Places
) -> Iterator[Ranked]:
    """The candidates, best first. `only` are the items to look among, if not all; `skip` are left out at the end."""
    found, words = _words(db, stack, asked.terms, only)
    if only is None:
        close = stack.nearest("vectors" if asked.deep is None else "deep", _vector(asked), CANDIDATES)
    else:
        close = _chunks(stack, only, None)
    rows = _union(found, close)
    if not len(rows):
        return iter(())
    heads, owner = _grouped(stack.link("head", rows))
    by_words = _pool(_spread(rows, found, words), owner, len(heads))
    by_model = knobs.meaning if asked.deep is None else knobs.deep
    first = _fuse((knobs.words, by_words), (by_model, _pool(_near(db, stack, rows, asked), owner, len(heads))))
    if len(heads) > CLOSER:
        heads = np.sort(heads[np.argpartition(-first, CLOSER)[:CLOSER]])
    items = _union(heads, stack.link("before", heads), stack.link("after", heads))
    items = items[np.searchsorted(items, 0) :]  # without "nowhere"
    rows = _union(_chunks(stack, items, EACH), found[_among(stack.link("head", found), items)])
    owner = np.searchsorted(items, stack.link("head", rows))
    arms = [
        (knobs.words, _spread(rows, found, words)),
        (by_model, _near(db, stack, rows, asked)),
        (knobs.alike, _alike(db, stack, table, rows, asked.wanted)),
    ]
    if asked.deep is not None:
        arms.append((knobs.meaning, stack.near(db, "vectors", rows, asked.vector)))
    scores = _fuse(*((weight, _pool(arm, owner, len(items))) for weight, arm in arms))
    scores = _settle(stack, items, scores, asked.authors, knobs)
    order = np.lexsort((-items, -stack.column("at", items), -scores))
    order = order[~_among(items[order], skip)]
    if only is not None:
        order = order[_among(items[order], only)]
    best = _best(rows, owner, _fuse(*arms), len(items))
    firsts, bests = stack.ids(items[order]), stack.ids(best[order])
    return map(Ranked, firsts, scores[order].tolist(), bests)


# -- the arms ----------------------------------------------------------------------------------------------------------


def _words(db: apsw.Connection, stack: Stack, terms: Sequence[str], only: Places | None) -> tuple[Places, Floats]:
    """The chunks that share words with the question, the best of each scope, and how well they match."""
    parts: list[Places] = []
    scores: list[Floats] = []
    for shelf, base in zip(stack.shelves, stack.bases.tolist(), strict=False):
        rows, score = _matches(db, shelf, terms)
        if only is not None and len(rows):
            keep = _among(shelf.head[rows].astype(np.int64) + base, only)
            rows, score = rows[keep], score[keep]
        if len(rows) > CANDIDATES:
            picked = np.sort(np.argpartition(-score, CANDIDATES)[:CANDIDATES])
            rows, score = rows[picked], score[picked]
        parts.append(rows)
        scores.append(score)
    return stack.joined(parts), np.concatenate(scores)


def _matches(db: apsw.Connection, shelf: Shelf, terms: Sequence[str]) -> tuple[Places, Floats]:
    """BM25, each word counted once a chunk; where it stands in the message before, less."""
    total = shelf.used
    walked = lookup.walk(db, terms, shelf.scope, total)
    if not walked:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    counts = np.array([count for count, _, _ in walked])
    sizes = [len(rows) for _, rows, _ in walked]
    rarity = np.maximum(np.log((total - counts + 0.5) / (counts + 0.5)), 1e-6)
    rarity = np.repeat(rarity, sizes)
    here: Places = np.fromiter(chain.from_iterable(rows for _, rows, _ in walked), np.int64, sum(sizes))
    after = shelf.after[here].astype(np.int64)
    beside = (after >= 0) & ((shelf.flags[after] & AFTER) > 0)
    rows = np.concatenate([here, after[beside]])
    weight = np.concatenate([np.ones(len(here)), np.full(int(beside.sum()), BESIDE)])
    long = SATURATION * (1 - LENGTH + LENGTH * shelf.length(rows) / max(shelf.mean, 1.0))
    scores = np.concatenate([rarity, rarity[beside]]) * weight * (SATURATION + 1) / (weight + long)
    order = np.argsort(rows, kind="stable")
    found, owner = _grouped(rows[order])
    summed = np.bincount(owner, scores[order])
    there = shelf.head[found] >= 0
    return found[there], summed[there].astype(np.float32)


def _near(db: apsw.Connection, stack: Stack, rows: Places, asked: Asked) -> Floats:
    """How near these chunks are. One that still waits for its stronger vector is judged by the table's."""
    if asked.deep is None:
        return stack.near(db, "vectors", rows, asked.vector)
    near = stack.near(db, "deep", rows, asked.deep)
    waits = ~stack.has("deep", rows)
    if waits.any() and not waits.all():
        plain = stack.near(db, "vectors", rows, asked.vector)
        top = float(plain.max())
        if top > 0:
            near[waits] = plain[waits] * float(near.max()) / top
    return near


def _alike(db: apsw.Connection, stack: Stack, table: Table, rows: Places, wanted: Sequence[int]) -> Floats:
    """The share of the question's words that each chunk, or what it is read with, has something like."""
    reads = (stack.column("flags", rows) & AFTER) > 0
    before = stack.link("before", rows)
    every = _union(rows, before[reads])
    best = table.best(wanted, stack.pieces(db, every))
    own = best[:, np.searchsorted(every, rows)]
    beside = np.zeros_like(own)
    beside[:, reads] = best[:, np.searchsorted(every, before[reads])]
    return table.share(wanted, own, beside)


def _vector(asked: Asked) -> Floats:
    return asked.vector if asked.deep is None else asked.deep


# -- putting together --------------------------------------------------------------------------------------------------


def _union(*parts: Places) -> Places:
    """All of these rows, each once, in order."""
    every = np.concatenate(parts)
    every.sort()
    return every[np.concatenate([[True], every[1:] != every[:-1]])] if len(every) else every


def _among(rows: Places, some: Places) -> npt.NDArray[np.bool_]:
    """Which of these rows are among some others, which are in order."""
    if not len(some):
        return np.zeros(len(rows), np.bool_)
    found: npt.NDArray[np.bool_] = some[np.minimum(np.searchsorted(some, rows), len(some) - 1)] == rows
    return found


def _grouped(heads: Places) -> tuple[Places, Places]:
    """The heads of rows that are in order, each once, and which is whose."""
    new = np.concatenate([[True], heads[1:] != heads[:-1]])
    return heads[new], np.cumsum(new) - 1


def _chunks(stack: Stack, items: Places, most: int | None) -> Places:
    """The chunks of these items, at most so many of each."""
    counts = stack.column("count", items).astype(np.int64)
    if most is not None:
        counts = np.minimum(counts, most)
    return chunks_of(items, counts)


def _spread(rows: Places, some: Places, values: Floats) -> Floats:
    """`values` of some rows, as values of all."""
    spread: Floats = np.zeros(len(rows), np.float32)
    there = _among(some, rows)
    spread[np.searchsorted(rows, some[there])] = values[there]
    return spread


def _pool(values: Floats, owner: Places, count: int) -> Floats:
    """An item is as good as its best chunk."""
    pooled: Floats = np.zeros(count, np.float32)
    np.maximum.at(pooled, owner, values)
    return pooled


def _fuse(*arms: tuple[float, Floats]) -> Floats:
    """Scores of several arms, each as shares of its best, added by the arms' weights."""
    fused: Floats = np.zeros(len(arms[0][1]), np.float32)
    for weight, scores in arms:
        best = float(scores.max(initial=0.0))
        if best > 0:
            fused += np.maximum(scores, 0.0) * np.float32(weight / best)
    return fused


def _settle(stack: Stack, items: Places, scores: Floats, authors: Sequence[int], knobs: Knobs) -> Floats:
    """Scores with what neighbours, authors and time add."""
    before = stack.link("before", items)
    place = np.minimum(np.searchsorted(items, before), len(items) - 1)
    follows = items[place] == before
    place = place[follows]
    smoothed = scores.copy()
    smoothed[follows] += knobs.smooth * scores[place]
    smoothed[place] += knobs.smooth * scores[follows]
    flags, at = stack.column("flags", items), stack.column("at", items)
    age_days = (at.max() - at) / DAY
    extra = knobs.human * ((flags & HUMAN) > 0) + knobs.noted * ((flags & NOTED) > 0)
    extra = extra + knobs.recent * 0.5 ** (age_days / knobs.half_life_days)
    if authors:
        extra = extra + knobs.named * np.isin(stack.column("author", items), authors)
    settled: Floats = (smoothed + float(smoothed.max()) * extra).astype(np.float32)
    return settled


def _best(rows: Places, owner: Places, judged: Floats, count: int) -> Places:
    """The best chunk of each item, the first of equals."""
    best = np.zeros(count, np.int64)
    order = np.lexsort((-rows, judged))  # later ones overwrite
    best[owner[order]] = rows[order]
    return best
