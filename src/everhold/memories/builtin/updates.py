"""Finds in what was recalled what its author has said otherwise since, marks it, and puts the newer words before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import apsw
import msgspec
from msgspec import Struct, structs

from everhold.core.people import PresentAudience, can_hear
from everhold.core.statements import TopicStatement, replaces
from everhold.memories.builtin.candidates import IndexRow, IndexScope, load_rows_by_first_chunk
from everhold.memories.builtin.dates import DateRange
from everhold.memories.builtin.indexing import ItemState
from everhold.memories.builtin.rank_fusion import RankedItem

MAX_COMPARED: Final = 32
"""The newest statements of somebody on a topic that are compared."""
MAX_CHANGES: Final = 12
"""Topics that a question about changes is answered from."""


class OutdatedMark(Struct, frozen=True):
    """Since when an item no longer holds, and the entry that says so."""

    until: float = 0.0
    by: str = ""


STILL_VALID: Final = OutdatedMark()


class _PlacedStatement(Struct, frozen=True):
    """A statement, and the item it is in."""

    at: float
    first: int
    place: str
    what: TopicStatement


Ranked = tuple[IndexRow, RankedItem]


class UpdateFinder:
    """Compares statements within the scopes of one search. Nothing outside of them is read."""

    def __init__(self, db: apsw.Connection, scopes: Sequence[IndexScope], present: PresentAudience | None) -> None:
        self.db = db
        self.scopes = msgspec.json.encode([scope.id for scope in scopes]).decode()
        self.present = present
        self._same = _map_members(present)

    def find_outdated(self, firsts: Collection[int]) -> tuple[dict[int, OutdatedMark], dict[int, int]]:
        """Return which of these items no longer hold, and for each the item with its author's latest words on it."""
        topics = self._list_topics(firsts)
        outdated: dict[int, OutdatedMark] = {}
        latest: dict[int, int] = {}
        for said in self._load_topics(topics) if topics else ():
            for old, new, newest in _compare(said):
                if old.first in firsts and (old.first not in outdated or new.at < outdated[old.first].until):
                    outdated[old.first] = OutdatedMark(new.at, new.place)
                    latest[old.first] = newest.first
        return outdated, latest

    def put_changes_first(
        self, found: Sequence[Ranked], ranges: Sequence[DateRange], *, hidden: Collection[int], texts: dict[int, str]
    ) -> list[Ranked]:
        """Return what changed in these times, or at any time, the newest change first, and then the other items."""
        firsts = [first for first in self._list_changes(ranges) if first not in hidden]
        rows = load_rows_by_first_chunk(self.db, firsts, texts)
        best = max((one.score for _, one in found), default=1.0)
        changes = [(rows[first], RankedItem(first, best, first)) for first in firsts if first in rows]
        return [*changes, *((row, one) for row, one in found if row.first not in rows)]

    def _list_changes(self, ranges: Sequence[DateRange]) -> list[int]:
        """Return the items that say what changed, each followed by what it replaced."""
        rows: list[Any] = self.db.execute(
            "select topic from statements where scope in (select value from json_each(?))"
            " group by topic having count(distinct value || negated) > 1 order by max(at) desc limit ?",
            (self.scopes, MAX_CHANGES * 4),
        ).fetchall()
        changes = [
            (new.at, new.first, old.first)
            for said in self._load_topics([topic for (topic,) in rows])
            for old, new, _ in _compare(said)
            if not ranges or any(one.start <= new.at < one.end for one in ranges)
        ]
        changes.sort(reverse=True)
        return list(dict.fromkeys(first for _, *both in changes[:MAX_CHANGES] for first in both))

    def _list_topics(self, firsts: Iterable[int]) -> list[str]:
        rows = self.db.execute(
            "select distinct topic from statements where first in (select value from json_each(?))",
            (msgspec.json.encode(list(firsts)).decode(),),
        )
        return [topic for (topic,) in rows]

    def _load_topics(self, topics: Sequence[str]) -> list[list[_PlacedStatement]]:
        """Return what each person said on each of these topics, in order."""
        rows = self.db.execute(
            "select s.topic, s.author, s.at, s.first, s.value, s.negated, s.weak, i.session, i.seq, i.at, c.audience"
            " from statements s join chunks h on h.id = s.first join items i on i.pos = h.pos"
            " join scopes c on c.id = s.scope where s.topic in (select value from json_each(?))"
            " and s.scope in (select value from json_each(?)) and i.state = ?",
            (msgspec.json.encode(topics).decode(), self.scopes, ItemState.LIVE),
        )
        said = [
            (
                topic,
                self._same.get(author, author),
                _PlacedStatement(
                    at, first, f"{session}:{seq}", TopicStatement(topic, value, bool(negated), bool(weak))
                ),
            )
            for topic, author, at, first, value, negated, weak, session, seq, written, audience in rows
            if self.present is None or can_hear(self.present, msgspec.json.decode(audience), written)
        ]
        said.sort(key=lambda one: (one[0], one[1], one[2].at, one[2].first))
        return [[one for *_, one in group] for _, group in groupby(said, key=lambda one: one[:2])]


def order_by_updates(
    finder: UpdateFinder,
    found: Sequence[Ranked],
    *,
    hidden: Collection[int],
    texts: dict[int, str],
) -> tuple[list[Ranked], dict[int, OutdatedMark]]:
    """Return the items with the latest words on a topic before earlier ones, and which items no longer hold.

    Items that are `hidden`, because the context shows them anyway, are not added. `texts` gets the texts of added ones.
    """
    if not found:
        return [], {}
    ranked = {row.first: (row, one) for row, one in found}
    outdated, latest = finder.find_outdated(ranked)
    missing = set(latest.values()) - ranked.keys() - set(hidden)
    rows = load_rows_by_first_chunk(finder.db, missing, texts) if missing else {}
    ordered: dict[int, Ranked] = {}
    for first, (_, one) in ranked.items():
        newest = latest.get(first, first)
        if newest in rows:
            ordered.setdefault(newest, (rows[newest], RankedItem(newest, one.score, newest)))
        elif newest in ranked:
            row, own = ranked[newest]
            ordered.setdefault(newest, (row, structs.replace(own, score=max(own.score, one.score))))
        ordered.setdefault(first, ranked[first])
    return list(ordered.values()), outdated


def _compare(said: Sequence[_PlacedStatement]) -> list[tuple[_PlacedStatement, _PlacedStatement, _PlacedStatement]]:
    """Return the statements that no longer hold, each with the first one that says otherwise and with the latest."""
    said = said[-MAX_COMPARED:]
    replaced = [(old, new) for at, old in enumerate(said) if (new := _find_next(old, said[at + 1 :])) is not None]
    if not replaced:
        return []
    newest = max((new for _, new in replaced), key=lambda one: (one.at, one.first))
    return [(old, new, newest) for old, new in replaced]


def _find_next(old: _PlacedStatement, later: Iterable[_PlacedStatement]) -> _PlacedStatement | None:
    return next((new for new in later if new.first != old.first and replaces(new.what, old.what)), None)


def _map_members(present: PresentAudience | None) -> Mapping[str, str]:
    """Return each identity of somebody present with one that stands for them."""
    if present is None:
        return {}
    return {one.member: group[0].member for group in present.groups for one in group}
