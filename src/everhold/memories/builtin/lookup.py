"""Reads the index: which items could be meant, before anything is ranked. An audience is a range of chunk numbers, so
nothing outside it is ever scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import apsw
import msgspec
from msgspec import Struct

from everhold.memories.builtin.intake import State
from everhold.memories.builtin.schema import SCOPE_BITS, TOKENIZER
from everhold.memories.builtin.words import content, dense, tokens

WEIGHTS: Final = (1.0, 0.5, 0.5, 1.0)
"""What a word counts in a message itself, its author's name, the message before it, and its pairs of characters."""
POSTINGS: Final = 4_000
"""Places in the index one search may walk through; the commonest words are left out beyond that."""
CANDIDATES: Final = 200
"""Chunks each way of looking may propose."""

_COLUMNS: Final = (
    "pos, session, seq, scope, kind, author, person, name, address, at, state, before, size, first, chunks"
)


class Row(Struct, frozen=True, array_like=True):
    """An item as the index keeps it, without its words."""

    pos: int
    session: str
    seq: int
    scope: int
    kind: str
    author: str
    person: str
    name: str
    address: str
    at: float
    state: int
    before: int
    size: int
    first: int
    chunks: int


def scopes(db: apsw.Connection, *, agent: str, audience: Iterable[str]) -> list[int]:
    """The scopes that whoever is present may hear of: all of them must be in its audience. Nobody hears nothing."""
    present = set(audience)
    if not present:
        return []
    rows = db.execute("select id, audience from scopes where agent = ?", (agent,))
    return [id for id, members in rows if present <= set(msgspec.json.decode(members, type=list[str]))]


def span(scope: int) -> tuple[int, int]:
    """The first and last chunk number of a scope."""
    return scope << SCOPE_BITS, ((scope + 1) << SCOPE_BITS) - 1


def names(db: apsw.Connection, scopes: Sequence[int]) -> dict[str, set[str]]:
    """Name -> the authors who go by it, of everybody who spoke in these scopes."""
    found: dict[str, set[str]] = {}
    for scope in scopes:
        for name, author in db.execute("select name, person from names where scope = ?", (scope,)):
            found.setdefault(name, set()).add(author)
    return found


def expression(db: apsw.Connection, text: str) -> str:
    """The full-text query for a question: its words that say something, without the commonest once that would cost."""
    terms = content(text)
    stem = db.fts5_tokenizer(*TOKENIZER)
    counted: list[tuple[int, str]] = []
    for term in terms:
        stems = list(
            stem(term.encode(), apsw.FTS5_TOKENIZE_QUERY, None, include_offsets=False, include_colocated=False)
        )
        if stems:
            count = db.execute("select doc from vocab where term = ?", (str(stems[0]),)).get or 0
            if count:
                counted.append((count, f'"{term}"'))
    counted.sort()
    chosen: list[str] = []
    walked = 0
    for count, term in counted:
        walked += count
        if chosen and walked > POSTINGS:
            break
        chosen.append(term)
    parts = [f"{{self who ctx}} : ({' OR '.join(chosen)})"] if chosen else []
    pairs = [f'"{pair}"' if len(pair) > 1 else f'"{pair}" *' for pair in dense(text)]
    if pairs:
        parts.append(f"{{grams}} : ({' OR '.join(pairs)})")
    return " OR ".join(parts)


def full_text(
    db: apsw.Connection, match: str, scopes: Sequence[int], *, session: str | None = None, limit: int = CANDIDATES
) -> dict[int, float]:
    """Chunk -> how well it matches, the best `limit` of these scopes."""
    if not match:
        return {}
    within = (
        ""
        if session is None
        else " and rowid in (select c.id from chunks c join items i using (pos) where i.session = :session)"
    )
    found: dict[int, float] = {}
    for scope in scopes:
        low, high = span(scope)
        rows = db.execute(
            f"select rowid, rank from words where words match :match and rowid between :low and :high{within}"
            f" and rank match 'bm25({', '.join(map(str, WEIGHTS))})' order by rank limit :limit",
            {"match": match, "low": low, "high": high, "limit": limit, "session": session},
        )
        found.update((id, -rank) for id, rank in rows)
    return found


def owners(db: apsw.Connection, chunks: Iterable[int]) -> dict[int, int]:
    """Chunk -> the item it belongs to."""
    rows = db.execute("select id, pos from chunks where id in (select value from json_each(?))", (_list(chunks),))
    return dict(rows)


def rows(db: apsw.Connection, items: Iterable[int]) -> dict[int, Row]:
    found = db.execute(f"select {_COLUMNS} from items where pos in (select value from json_each(?))", (_list(items),))
    return {row[0]: Row(*row) for row in found}


def neighbours(db: apsw.Connection, items: Iterable[int]) -> dict[int, Row]:
    """The items right after these in their sessions. The ones right before are named in their rows."""
    found = db.execute(
        f"select {_COLUMNS} from items where before in (select value from json_each(?))", (_list(items),)
    )
    return {row[0]: Row(*row) for row in found}


def texts(db: apsw.Connection, chunks: Iterable[int]) -> dict[int, str]:
    rows = db.execute("select id, self from chunks where id in (select value from json_each(?))", (_list(chunks),))
    return dict(rows)


def live(row: Row) -> bool:
    return row.state == State.LIVE


def named(text: str, known: dict[str, set[str]]) -> tuple[set[str], set[str]]:
    """Names that occur in a text, and the authors they stand for."""
    spoken = {word for word in tokens(text) if word in known}
    return spoken, {author for name in spoken for author in known[name]}


def _list(numbers: Iterable[int]) -> str:
    return msgspec.json.encode(list(numbers)).decode()
