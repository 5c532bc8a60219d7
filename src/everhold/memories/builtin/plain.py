"""Candidates -> one order by words alone: what is left to go by when numpy is not installed."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Final

import apsw

from everhold.memories.builtin import lookup
from everhold.memories.builtin.intake import SHORT, SHORT_BEFORE
from everhold.memories.builtin.lookup import Row, Scope
from everhold.memories.builtin.rank import BESIDE, CLOSER, Knobs, Ranked, Sign, fuse, settle

CANDIDATES: Final = 200
"""Chunks of each scope that may be meant."""


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
    found: dict[int, float] = {}
    for scope in scopes:
        chosen = lookup.walk(db, terms, scope.id, scope.chunks)
        if chosen:
            since = min((rows[-1] for count, rows, _ in chosen if len(rows) < count), default=0)
            found |= lookup.full_text(
                db, [term for *_, term in chosen], scope.id, since=since, limit=CANDIDATES, session=session
            )
    owner = lookup.owners(db, found)
    words: dict[int, float] = {}
    best: dict[int, int] = {}
    for chunk, score in found.items():
        item = owner[chunk]
        if score > words.get(item, 0.0):
            words[item], best[item] = score, chunk
    close = lookup.rows(db, heapq.nlargest(CLOSER, words, key=words.__getitem__))
    around = close | lookup.following(db, close.values())
    around |= lookup.rows(db, {row.before for row in around.values()} - around.keys())
    scores = {
        pos: words.get(pos, 0.0) + (BESIDE * words.get(row.before, 0.0) if _together(row, around) else 0.0)
        for pos, row in around.items()
    }
    ranked = settle(fuse([(1.0, scores)]), {pos: _sign(row, authors) for pos, row in around.items()}, knobs)
    order = sorted(ranked, key=lambda pos: (-ranked[pos], -pos))
    shown = [
        around[pos]
        for pos in order
        if around[pos].first not in skip and (session is None or around[pos].session == session)
    ]
    return [Ranked(row.first, ranked[row.pos], best.get(row.pos, row.first)) for row in shown]


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
