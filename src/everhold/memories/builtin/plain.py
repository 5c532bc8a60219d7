"""Candidates -> one order by words alone: what is left to go by when numpy is not installed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from typing import Final

import apsw

from everhold.memories.builtin import lookup
from everhold.memories.builtin.intake import SHORT, SHORT_BEFORE
from everhold.memories.builtin.lookup import Row, Scope
from everhold.memories.builtin.rank import BESIDE, LENGTH, SATURATION, Knobs, Ranked, Sign, fuse, settle
from everhold.memories.builtin.words import CHUNK

CANDIDATES: Final = 120
"""Items that are looked at closely, with what stands beside them."""


def rank(
    db: apsw.Connection,
    scopes: Sequence[Scope],
    terms: Sequence[str],
    authors: Collection[str],
    knobs: Knobs,
    *,
    session: str | None,
    skip: Collection[int],
) -> list[Ranked]:
    """The candidates, best first. `session` is the one to look in, if not all; `skip` are left out at the end."""
    rarity = _found(db, scopes, terms, session)
    owner = lookup.owners(db, rarity)
    raw: dict[int, float] = {}
    best: dict[int, int] = {}
    for chunk, score in rarity.items():
        item = owner[chunk]
        if score > raw.get(item, 0.0):
            raw[item], best[item] = score, chunk
    close = lookup.rows(db, heapq.nlargest(CANDIDATES, raw, key=raw.__getitem__))
    around = close | lookup.following(db, close.values())
    around |= lookup.rows(db, {row.before for row in around.values()} - around.keys())
    scores = _scores(raw, around)
    ranked = settle(fuse([(1.0, scores)]), {pos: _sign(row, authors) for pos, row in around.items()}, knobs)
    order = sorted(ranked, key=lambda pos: (-ranked[pos], -pos))
    shown = [
        around[pos]
        for pos in order
        if around[pos].first not in skip and (session is None or around[pos].session == session)
    ]
    return [Ranked(row.first, ranked[row.pos], best.get(row.pos, row.first)) for row in shown]


def _found(db: apsw.Connection, scopes: Sequence[Scope], terms: Sequence[str], session: str | None) -> dict[int, float]:
    """Chunks that share words with the question, and how rare those are together."""
    found: dict[int, float] = {}
    for scope in scopes:
        low, _ = lookup.span(scope.id)
        for count, rows, _ in lookup.walk(db, terms, scope.id, scope.chunks):
            rarity = max(math.log((scope.chunks - count + 0.5) / (count + 0.5)), 1e-6)
            for row in rows:
                found[low + row] = found.get(low + row, 0.0) + rarity
    if session is not None:
        inside = set(lookup.chunks_of(db, session))
        found = {chunk: score for chunk, score in found.items() if chunk in inside}
    return dict(heapq.nlargest(2 * CANDIDATES, found.items(), key=lambda one: one[1]))


def _scores(raw: dict[int, float], around: dict[int, Row]) -> dict[int, float]:
    """BM25, each word counted once; where it stands in the message before, less."""
    sizes = {
        pos: min(row.size, CHUNK) + (around[row.before].size if _together(row, around) else 0)
        for pos, row in around.items()
    }
    mean = max(1.0, sum(sizes.values()) / max(1, len(sizes)))
    scores: dict[int, float] = {}
    for pos, row in around.items():
        long = SATURATION * (1 - LENGTH + LENGTH * sizes[pos] / mean)
        scores[pos] = raw.get(pos, 0.0) / (1 + long)
        if _together(row, around):
            scores[pos] += raw.get(row.before, 0.0) * BESIDE / (BESIDE + long)
    return scores


def _together(row: Row, around: dict[int, Row]) -> bool:
    before = around.get(row.before)
    return before is not None and row.size < SHORT and before.size < SHORT_BEFORE


def _sign(row: Row, authors: Collection[str]) -> Sign:
    return Sign(
        before=row.before,
        human=row.author.startswith("person:"),
        named=row.author in authors,
        noted=row.kind == "noted",
        at=row.at,
    )
