"""Search hits, and the linear scan of entries that are not in the index yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from everhold.core.entries import Entry, Erased
from everhold.core.people import PresentAudience, can_hear
from everhold.memories.builtin.indexing import EntryWords, extract_words, make_item_number
from everhold.memories.builtin.tokenizing import build_bigram_queries, extract_content_words

STEM_CHARS: Final = 5
"""Letters that two words must share at the start to count as forms of one word."""


class IndexHit(Struct, frozen=True, kw_only=True):
    """A found item with everything that is known about its origin."""

    text: str
    score: float
    session: str
    seq: int
    pos: int
    kind: str
    author: str
    person: str
    name: str
    address: str
    origin: str
    """The source of the words if it is not a person or agent of this chat: another bot, a tool or a file."""
    at: float
    size: int
    """Characters of the whole item; `text` is a passage of it if the item is longer."""
    until: float = 0.0
    """When its author said something else about it; 0 if it still holds, as far as the wording shows."""
    replaced_by: str = ""
    """Where they said so: `session:seq`."""


def scan_entries(
    entries: Sequence[Entry],
    text: str,
    *,
    agent: str | None,
    present: PresentAudience | None,
    agents: Mapping[str, str],
    session: str | None = None,
) -> list[IndexHit]:
    """Return the entries that share words with `text` and that everyone present may see, in no particular order."""
    wanted = _extract_stems(text)
    erased = {(one.session, seq) for one in entries if isinstance(one.body, Erased) for seq in one.body.seqs}
    hits: list[IndexHit] = []
    for entry in entries:
        if session is not None and entry.session != session:
            continue
        if (agent is not None and agents[entry.session] != agent) or (entry.session, entry.seq) in erased:
            continue
        for part, words in enumerate(extract_words(entry)):
            if present is not None and not can_hear(present, words.stamp.audience, entry.at):
                continue
            share = len(wanted & _extract_stems(words.text)) / max(1, len(wanted))
            if share:
                hits.append(_build_hit(entry, part, words, share))
    return hits


def _build_hit(entry: Entry, part: int, words: EntryWords, score: float) -> IndexHit:
    return IndexHit(
        text=words.text,
        score=score,
        session=entry.session,
        seq=entry.seq,
        pos=make_item_number(entry.pos, part),
        kind=str(entry.kind),
        author=words.author,
        person=words.stamp.person,
        name=words.name,
        address=words.stamp.address,
        origin=words.origin,
        at=entry.at,
        size=len(words.text),
    )


def _extract_stems(text: str) -> set[str]:
    return {word[:STEM_CHARS] for word in extract_content_words(text)} | set(build_bigram_queries(text))
