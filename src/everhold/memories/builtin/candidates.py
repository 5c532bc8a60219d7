"""Reads the candidates of a search from the index, before ranking. An audience is a range of chunk ids, so chunks
outside it are never scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import apsw
import msgspec
from msgspec import Struct

from everhold.core.people import PresentAudience
from everhold.memories.builtin.indexing import ChunkText, ItemFlag, ItemState
from everhold.memories.builtin.schema import SCOPE_BITS
from everhold.memories.builtin.tokenizing import (
    build_bigram_queries,
    cut_arabic_affixes,
    extract_content_words,
    find_capitalised_words,
    is_arabic,
    split_words,
)

MAX_POSTINGS: Final = 2_000
"""Index positions that one search may read in a scope. Beyond that, the most common words are left out."""
SAMPLE_POSTINGS: Final = 128
"""The number of newest positions from which the frequency of a word is estimated."""
MIN_BEGINNING: Final = 4
BEGINNING_SHARE: Final = 0.7
"""The share of an inflected word that is looked up. The rest may be its ending."""
MIN_NAME_CHUNKS: Final = 16
MIN_NAME_SHARE: Final = 0.03
"""A capitalised word in this many chunks, and in this share of them, is taken for the name of somebody who talks."""
MAX_TERMS: Final = 8
"""Words of a question that are looked up; of a longer question, the rarest."""

_COLUMNS: Final = (
    "pos, session, seq, scope, kind, author, person, name, address, origin, at, state, before, size, first, chunks"
)
_ITEM_COLUMNS: Final = ", ".join(f"i.{column}" for column in _COLUMNS.split(", "))


class IndexRow(Struct, frozen=True, array_like=True):
    """An item as the index stores it, without its words."""

    pos: int
    session: str
    seq: int
    scope: int
    kind: str
    author: str
    person: str
    name: str
    address: str
    origin: str
    at: float
    state: int
    before: int
    size: int
    first: int
    chunks: int

    @property
    def is_live(self) -> bool:
        return self.state == ItemState.LIVE


class IndexScope(Struct, frozen=True):
    """One audience's part of the index."""

    id: int
    chunks: int
    """Ids given to chunks so far, including deleted chunks."""
    items: int


def find_scopes(db: apsw.Connection, *, agent: str | None, present: PresentAudience | None) -> list[IndexScope]:
    """Return the scopes whose audience contains everyone present, under any of their identities. Nobody present: no
    scope. The times since when an identity is somebody's are not checked here, because a scope has no time.

    None stands for a caller who may see everything: any agent, any audience.
    """
    where, values = ("", ()) if agent is None else (" and m.agent = ?", (agent,))
    if present is None:
        return [
            IndexScope(*row) for row in db.execute(f"select id, next, items from scopes m where true{where}", values)
        ]
    groups = [[one.member for one in group] for group in present.groups]
    if not groups:
        return []
    first, *others = groups
    also = "".join(
        " and exists (select 1 from members o where o.agent = m.agent and o.scope = m.scope"
        f" and o.member in ({_list_places(group)}))"
        for group in others
    )
    rows = db.execute(
        "select distinct s.id, s.next, s.items from members m join scopes s on s.id = m.scope"
        f" where m.member in ({_list_places(first)}){where}{also} order by m.scope",
        (*first, *values, *(member for group in others for member in group)),
    )
    return [IndexScope(*row) for row in rows]


def _list_places(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def get_chunk_range(scope: int) -> tuple[int, int]:
    """Return the first and last chunk id of a scope."""
    return scope << SCOPE_BITS, ((scope + 1) << SCOPE_BITS) - 1


def find_named_authors(
    db: apsw.Connection, text: str, scopes: Iterable[int], labels: Mapping[str, Sequence[str]]
) -> tuple[set[str], set[str]]:
    """Return the names of speakers in these scopes that occur in a text, and the authors they stand for. `labels` has
    the authors of people by name.
    """
    said = set(split_words(text))
    words = msgspec.json.encode(list(said)).decode()
    names = {label for label in labels if label in said}
    authors = {author for label in names for author in labels[label]}
    for scope in scopes:
        for name, author in db.execute(
            "select name, author from names where scope = ? and name in (select value from json_each(?))",
            (scope, words),
        ):
            names.add(name)
            authors.add(author)
    return names, authors


def find_author_ids(db: apsw.Connection, names: Iterable[str]) -> list[int]:
    """Return the ids of these authors."""
    found = (db.execute("select id from authors where author = ?", (name,)).get for name in names)
    return [id for id in found if isinstance(id, int)]


def build_all_word_queries(text: str) -> list[str]:
    """Return the full-text queries for all words of a text, including stop words."""
    pairs = [f'"{pair}"' if len(pair) > 1 else f'"{pair}" *' for pair in build_bigram_queries(text)]
    return [*(f'"{word}"' for word in dict.fromkeys(split_words(text)) if not build_bigram_queries(word)), *pairs]


def build_term_queries(text: str, rarity: Callable[[str], int] = len, *, inflected: bool = False) -> list[str]:
    """Return the full-text queries for a question, one for each content word; of too many words, the rarest.

    In an `inflected` language, all words with the same beginning count.
    """
    words = extract_content_words(text)
    if len(words) > MAX_TERMS:
        words = sorted(words, key=rarity, reverse=True)[:MAX_TERMS]
    pairs = [f'"{pair}"' if len(pair) > 1 else f'"{pair}" *' for pair in build_bigram_queries(text)]
    terms = [_build_term(word, inflected=inflected) for word in words]
    return [*dict.fromkeys(terms), *pairs[:MAX_TERMS]]


def _build_term(word: str, *, inflected: bool) -> str:
    if not inflected or any(map(str.isdigit, word)):
        return f'"{word}"'
    if is_arabic(word):
        return f'"{cut_arabic_affixes(word)}"'
    beginning = word[: max(MIN_BEGINNING, round(len(word) * BEGINNING_SHARE))]
    return f'"{word}"' if beginning == word else f'"{beginning}" *'


_POSTINGS_SQL: Final = (  # returning one text is faster than returning many numbers
    "(select group_concat(id - :low) from (select rowid as id from words where words match {term}"
    " and rowid between :low and :high order by rowid desc limit :limit))"
)


def find_postings(db: apsw.Connection, term: str, scope: int, limit: int) -> list[int]:
    """Return the newest chunks of a scope that contain a word, counted from the scope's first chunk, newest first."""
    low, high = get_chunk_range(scope)
    given = {"term": term, "low": low, "high": high, "limit": limit}
    return _parse_numbers(db.execute(f"select {_POSTINGS_SQL.format(term=':term')}", given).get)


def _sample_postings(db: apsw.Connection, terms: Iterable[str], scope: int) -> list[tuple[str, list[int]]]:
    """Return the same for many words at once, as far as needed to see how common they are."""
    low, high = get_chunk_range(scope)
    given = {"terms": msgspec.json.encode(list(terms)).decode(), "low": low, "high": high, "limit": SAMPLE_POSTINGS}
    found: list[Any] = db.execute(
        f"select t.value, {_POSTINGS_SQL.format(term='t.value')} from json_each(:terms) t", given
    ).fetchall()
    return [(term, _parse_numbers(rows)) for term, rows in found if rows is not None]


def _parse_numbers(text: object) -> list[int]:
    return list(map(int, text.split(","))) if isinstance(text, str) else []


TermPostings: TypeAlias = tuple[float, list[int], str]
"""The approximate number of chunks with a word, the newest of those chunks, and the word's query."""


def sample_terms(db: apsw.Connection, terms: Iterable[str], scope: int, chunks: int) -> list[TermPostings]:
    """Estimate from the newest chunks how common each word is in a scope, the rarest word first."""
    looked: list[TermPostings] = []
    for term, rows in _sample_postings(db, terms, scope):
        spread = max(1, chunks - rows[-1])
        count = len(rows) if len(rows) < SAMPLE_POSTINGS else max(len(rows), len(rows) * chunks / spread)
        looked.append((count, rows, term))
    looked.sort(key=lambda one: (one[0], one[2]))
    return looked


def find_term_chunks(
    db: apsw.Connection, sampled: Iterable[TermPostings], scope: int, chunks: int
) -> list[TermPostings]:
    """Return for each useful word its chunks in the scope.

    It takes the rarest words first, until enough positions were read. A word that is too common for that is only looked
    up in the newest chunks.
    """
    chosen: list[TermPostings] = []
    left = MAX_POSTINGS
    for count, rows, term in sampled:
        if chosen and (count > left or count > chunks / 2):
            break  # a word that is in most chunks does not distinguish them
        if len(rows) < count <= left:
            rows = find_postings(db, term, scope, left)
            count = len(rows)
        chosen.append((count, rows, term))
        left -= len(rows)
    return chosen


def find_common_names(
    text: str, sampled: Iterable[Iterable[TermPostings]], chunks: int, *, inflected: bool = False
) -> set[str]:
    """Return the capitalised words of a question that occur so often that they are names of the people talking, or
    of something else that is always talked about. They do not say what the question is about.
    """
    names = {_build_term(name, inflected=inflected): name for name in find_capitalised_words(text)}
    if not names:
        return set()
    counts: dict[str, float] = {}
    for scope in sampled:
        for count, _, term in scope:
            if term in names:
                counts[term] = counts.get(term, 0.0) + count
    return {names[term] for term, count in counts.items() if count >= max(MIN_NAME_CHUNKS, MIN_NAME_SHARE * chunks)}


def find_items_with_words(db: apsw.Connection, terms: Sequence[str], limit: int) -> list[tuple[str, int]]:
    """Return the newest items that contain all of these words, without an audience check."""
    each = " and ".join(
        ["pos in (select pos from chunks where id in (select rowid from words where words match ?))"] * len(terms)
    )
    rows: list[Any] = db.execute(
        f"select session, seq from items where {each} group by session, seq order by max(pos) desc limit ?",
        (*terms, limit),
    ).fetchall()
    return rows


def find_seen_chunks(db: apsw.Connection, session: str, seqs: Iterable[int]) -> dict[int, list[int]]:
    """Return scope -> first chunks of the items in this range of a session."""
    wanted = set(seqs)
    rows = db.execute(
        "select scope, first, seq from items where session = ? and seq between ? and ?",
        (session, min(wanted), max(wanted)),
    )
    found: dict[int, list[int]] = {}
    for scope, first, seq in rows:
        if seq in wanted:
            found.setdefault(scope, []).append(first)
    return found


def find_session_chunks(db: apsw.Connection, session: str) -> list[int]:
    """Return the first chunks of a session's items."""
    return [row[0] for row in db.execute("select first from items where session = ?", (session,))]


def load_rows_by_first_chunk(db: apsw.Connection, firsts: Iterable[int], texts: dict[int, str]) -> dict[int, IndexRow]:
    """Return first chunk -> item, and add the texts of the chunks to `texts`."""
    found: list[Any] = db.execute(
        f"select c.self, {_ITEM_COLUMNS} from json_each(?) j"
        " join chunks c on c.id = j.value join items i on i.pos = c.pos",
        (_encode_numbers(firsts),),
    ).fetchall()
    rows: dict[int, IndexRow] = {}
    for text, *columns in found:
        row = IndexRow(*columns)
        rows[row.first] = row
        texts[row.first] = text
    return rows


def load_texts(db: apsw.Connection, chunks: Iterable[int]) -> dict[int, str]:
    rows = db.execute(
        "select id, self from chunks where id in (select value from json_each(?))", (_encode_numbers(chunks),)
    )
    return dict(rows)


def load_chunk_texts(db: apsw.Connection, where: str, *values: int) -> list[ChunkText]:
    """Load chunks with their context."""
    rows = db.execute(
        "select c.id, c.self, ifnull((select b.self from places p join chunks b on b.id = p.before"
        f" where p.first = c.id and p.flags & {int(ItemFlag.AFTER)}), '') from chunks c {where}",
        values,
    )
    return [ChunkText(*row) for row in rows]


def _encode_numbers(numbers: Iterable[int]) -> str:
    return msgspec.json.encode(list(numbers)).decode()
