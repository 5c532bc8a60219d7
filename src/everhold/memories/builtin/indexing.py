"""Turns entries into rows of the index. The rows do not depend on how the entries are divided into batches."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, IntFlag
from typing import Any, Final

import apsw
import msgspec
from msgspec import Struct

from everhold.core.entries import Began, Changed, Entry, Erased, Heard, Noted, OperationsUndone, Said, Stamp, Took
from everhold.core.people import PERSON_MEMBER
from everhold.core.provenance import build_piece_origin, is_foreign
from everhold.core.statements import read_statements
from everhold.memories.builtin.languages import is_first_person
from everhold.memories.builtin.rank_fusion import DAY_SECONDS
from everhold.memories.builtin.schema import SCOPE_BITS, read_meta, write_meta
from everhold.memories.builtin.tokenizing import (
    build_hidden_terms,
    is_acknowledgement,
    is_bare_question,
    split_chunks,
    split_words,
)

SHORT_MESSAGE_CHARS: Final = 200
SHORT_PREVIOUS_CHARS: Final = 300
"""A short message after a short message is read together with it. With a long message that would harm the results."""
MAX_ITEMS_PER_ENTRY: Final = 16
"""An entry's own words and the texts that it forwards, quotes or embeds."""
MAX_STATEMENT_CHARS: Final = 2_000
"""The beginning of a text in which statements are looked for."""
MAX_CACHED_NAMES: Final = 2_000
"""How many sessions, scopes, authors and names together are cached."""


class ItemState(IntEnum):
    """Why an item is no longer found. Erased items are deleted from the index."""

    LIVE = 0
    UNDONE = 1
    SUPERSEDED = 2
    REMOVED = 3


class ItemFlag(IntFlag):
    """What ranking needs to know about an item without reading it."""

    HUMAN = 1
    NOTED = 2
    AFTER = 4
    """It is read together with the previous item."""
    BARE = 8
    """It only asks, or only acknowledges, so it tells a later turn nothing."""
    PERSONAL = 16
    """A person speaks of themselves."""


_HUMAN, _NOTED, _AFTER, _BARE = int(ItemFlag.HUMAN), int(ItemFlag.NOTED), int(ItemFlag.AFTER), int(ItemFlag.BARE)
_PERSONAL = int(ItemFlag.PERSONAL)
"""Plain integers, because they are combined for every item."""


class ChunkText(Struct, frozen=True):
    """A chunk whose vectors must be computed: its own words, and the preceding words that it is read with."""

    id: int
    text: str
    context: str


class IndexedBatch(Struct):
    """The result of indexing a batch."""

    new_chunks: dict[int, ChunkText]
    """Chunks that are new or whose context changed."""
    touched_chunks: set[int]
    """Existing chunks that changed."""
    removed_authors: set[tuple[int, str]]
    """Scopes and authors that lost words."""
    erased: bool = False


class EntryWords(Struct, frozen=True):
    """The words of an entry and its stamp."""

    text: str
    stamp: Stamp
    author: str
    """The entry's author. For a forwarded or quoted text this is its origin."""
    name: str = ""
    fact: str = ""
    origin: str = ""
    """The source of the words if it is not a person or agent of this chat: another bot, a tool, a file, or the author
    of a forwarded or quoted text.
    """


class LastItem(Struct, frozen=True):
    """The newest item of a session."""

    seq: int
    pos: int
    scope: int
    size: int
    first: int
    text: str
    """Its words, if it is short enough to be read together with the next item."""


def extract_words(entry: Entry) -> tuple[EntryWords, ...]:
    """Return what can be found in an entry. Thoughts, notices and commands are not indexed.

    Forwarded, quoted and embedded text is found, too, each piece by itself and never as the sender's words.
    """
    match entry.body:
        case Heard(command=None) as body:
            origin = f"bot:{body.sender}" if body.bot else ""
            own = EntryWords(body.text, body.stamp, entry.author, body.sender, origin=origin)
            return (own, *_extract_pieces(body)) if body.pieces else (own,)
        case Said() as body:
            return (EntryWords(body.text, body.stamp, entry.author),)
        case Noted(action="remove"):
            return ()
        case Noted() as body:
            return (EntryWords(body.text, body.stamp, entry.author, "", body.fact, body.origin),)
        case _:
            return ()


def _extract_pieces(body: Heard) -> tuple[EntryWords, ...]:
    """Return the foreign pieces of a message. The words of the agent and of the sender have their own entries."""
    foreign = [piece for piece in body.pieces if is_foreign(piece)][: MAX_ITEMS_PER_ENTRY - 1]
    return tuple(
        EntryWords(piece.text, body.stamp, origin, piece.name, origin=origin)
        for piece in foreign
        if (origin := build_piece_origin(piece))
    )


def make_item_number(pos: int, part: int) -> int:
    """Return the number of an item: an entry's own words are its part 0, its pieces follow."""
    return pos * MAX_ITEMS_PER_ENTRY + part


def number_occasion(session: str, at: float) -> int:
    """Return a number for what was said in a session on a day. Two occasions hardly ever share a number."""
    return zlib.crc32(f"{session}|{at // DAY_SECONDS:.0f}".encode("utf-8", "surrogatepass")) >> 1


def is_bare(entry: Entry, words: EntryWords) -> bool:
    """Whether an entry tells a later turn nothing: a message that only asks, or a reply that only acknowledges."""
    if isinstance(entry.body, Heard):
        return not words.origin and is_bare_question(words.text)
    return isinstance(entry.body, Said) and (is_bare_question(words.text) or is_acknowledgement(words.text))


def encode_audience(audience: Iterable[str]) -> str:
    return msgspec.json.encode(sorted(set(audience))).decode()


class IndexWriter:
    """Writes the rows of entries in commit order, together with the pos, inside the caller's transaction."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db
        self._scopes: dict[tuple[str, tuple[str, ...]], int] = {}
        self._authors: dict[str, int] = {}
        self._named: set[tuple[int, str, str, str]] = set()
        self._next: dict[int, int] = {}
        """Scope -> the number of its next chunk."""
        self._last: dict[str, LastItem] = {}
        self._knows: int | None = None
        """The pos at which the cache matches the file."""

    @property
    def position(self) -> int:
        return int(read_meta(self.db, "position", "0"))

    def mark_committed(self, position: int) -> None:
        """The transaction was committed, so the cache is valid until another process writes."""
        self._knows = position

    @property
    def last_entry(self) -> tuple[str, int, str] | None:
        """Session, seq and digest of the last indexed entry. A different log is recognised by them."""
        session, seq, digest = read_meta(self.db, "landmark", "||").rsplit("|", 2)
        return (session, int(seq), digest) if session else None

    def index_entries(self, entries: Sequence[Entry], agents: Mapping[str, str], position: int) -> IndexedBatch:
        """Index the entries that follow `position`, which is the pos of the file."""
        known = len(self._last) + len(self._scopes) + len(self._authors) + len(self._named)
        if self._knows != position or known > MAX_CACHED_NAMES:
            for remembered in (self._scopes, self._authors, self._named, self._next, self._last):
                remembered.clear()
        self._knows = None  # the transaction may be rolled back, so its cached values are not valid yet
        taken = IndexedBatch(new_chunks={}, touched_chunks=set(), removed_authors=set())
        for entry in entries:
            self._index_entry(entry, agents[entry.session], taken)
        for scope, author in taken.removed_authors:
            self._rebuild_names(scope, author)
        if entries:
            last = entries[-1]
            write_meta(self.db, "position", str(last.pos))
            write_meta(self.db, "landmark", f"{last.session}|{last.seq}|{last.digest.hex()}")
        return taken

    def _index_entry(self, entry: Entry, agent: str, taken: IndexedBatch) -> None:
        match entry.body:
            case Began(takes=takes):
                self._record_takes(entry.session, entry.seq, takes)
            case Took(takes=takes) if entry.op is not None:
                self._record_takes(entry.session, entry.op, takes)
            case Changed(change=OperationsUndone() as undone):
                self._mark_undone(entry.session, undone)
            case Erased(seqs=seqs):
                for seq in seqs:
                    self._remove_item(entry.session, seq, taken)
                taken.erased = True
            case Noted() as note:
                self._mark_superseded(entry, note, agent)
        for part, words in enumerate(extract_words(entry)):
            if words.text.strip():  # without an audience: found only by callers who may see everything
                self._add_item(entry, part, words, agent, taken)

    # -- items that are found

    def _add_item(self, entry: Entry, part: int, words: EntryWords, agent: str, taken: IndexedBatch) -> None:
        scope = self._get_scope_id(agent, words.stamp.audience)
        number = make_item_number(entry.pos, part)
        # A piece stands alone: it is not read together with the message before it.
        before, first_before, context = (
            (0, 0, "") if part else self._find_previous(entry.session, entry.seq, scope, len(words.text))
        )
        pieces = split_chunks(words.text)
        first = self._allocate_chunks(scope, len(pieces))
        who = words.name or words.author.partition(":")[2]
        self.db.execute(
            "insert into items values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                number,
                entry.session,
                entry.seq,
                part,
                scope,
                str(entry.kind),
                entry.op,
                words.author,
                words.stamp.person,
                who,
                words.stamp.address,
                words.origin,
                entry.at,
                words.fact,
                ItemState.LIVE,
                "",
                before,
                len(words.text),
                first,
                len(pieces),
            ),
        )
        human = words.author.startswith("person:")
        flags = _HUMAN * human | _NOTED * isinstance(entry.body, Noted) | _AFTER * bool(context)
        bare = is_bare(entry, words)
        flags |= _BARE * bare | _PERSONAL * (human and not bare and is_first_person(words.text))
        self.db.execute(
            "insert into places values (?, ?, ?, ?, ?, ?, ?)",
            (
                first,
                first_before,
                len(pieces),
                self._get_author_id(words.author),
                flags,
                entry.at,
                number_occasion(entry.session, entry.at),
            ),
        )
        for id, text in enumerate(pieces, first):
            self.db.execute("insert into chunks values (?, ?, ?)", (id, number, text))
            self.db.execute(
                "insert into words (rowid, self, grams) values (?, ?, ?)", (id, text, build_hidden_terms(text))
            )
            taken.new_chunks[id] = ChunkText(id, text, context)
        if part:
            return
        if not words.origin and (human or isinstance(entry.body, Noted)):
            self._add_statements(entry, words, scope, first)
        short = words.text if len(words.text) < SHORT_PREVIOUS_CHARS else ""
        self._last[entry.session] = LastItem(entry.seq, number, scope, len(words.text), first, short)
        if human:
            self._add_names(scope, words.author, words.name, _get_own_name(words.stamp.person))

    def _add_statements(self, entry: Entry, words: EntryWords, scope: int, first: int) -> None:
        """Record what somebody says of themselves, or what is noted of them, and since when it is known."""
        found = read_statements(words.text[:MAX_STATEMENT_CHARS], subjects=(words.stamp.person,))
        if not found:
            return
        author = words.author if words.author.startswith(PERSON_MEMBER) else f"{PERSON_MEMBER}{words.stamp.person}"
        at = self._find_time(entry)
        for one in found:
            self.db.execute(
                "insert or replace into statements values (?, ?, ?, ?, ?, ?, ?, ?)",
                (scope, one.topic, author, first, at, one.value, one.negated, one.weak),
            )

    def _find_time(self, entry: Entry) -> float:
        """Return when the words of an entry were said: a note that quotes a message is not newer than the message."""
        cites = entry.body.cites if isinstance(entry.body, Noted) else ()
        if not cites:
            return entry.at
        times = self.db.execute(
            "select max(at) from items where session = ? and seq in (select value from json_each(?))",
            (entry.session, msgspec.json.encode(cites).decode()),
        ).get
        return entry.at if times is None else float(times)

    def _add_names(self, scope: int, author: str, *names: str) -> None:
        key = (scope, author, names[0], names[-1])
        if key not in self._named:
            self._named.add(key)
            for word in {word for name in names for word in split_words(name)}:
                if len(word) > 1 and not word.isdigit():
                    self.db.execute("insert or ignore into names values (?, ?, ?)", (scope, word, author))

    def _find_previous(self, session: str, seq: int, scope: int, size: int) -> tuple[int, int, str]:
        """Return the previous item in its session, its first chunk, and its words if the two are read together."""
        last = self._last.get(session)
        if last is None or last.seq >= seq:
            last = self._load_previous(session, seq)
        if last is None or last.scope != scope:
            return 0, 0, ""
        if size >= SHORT_MESSAGE_CHARS or last.size >= SHORT_PREVIOUS_CHARS:
            return last.pos, last.first, ""
        return last.pos, last.first, last.text

    def _load_previous(self, session: str, seq: int) -> LastItem | None:
        """Return the previous item in its session."""
        row = self.db.execute(
            "select i.seq, i.pos, i.scope, i.size, i.first, c.self from items i join chunks c on c.id = i.first"
            " where i.session = ? and i.seq < ? and i.part = 0 order by i.seq desc limit 1",
            (session, seq),
        ).fetchone()
        return None if row is None else LastItem(*row)

    def _load_chunk_text(self, id: int) -> str:
        return self.db.execute("select self from chunks where id = ?", (id,)).get or ""

    # -- items that are no longer found

    def _remove_item(self, session: str, seq: int, taken: IndexedBatch) -> None:
        """Remove an item's words everywhere: in its own chunks and in the context of the next item."""
        found: list[Any] = self.db.execute(
            "select pos, scope, author, state, cause, first, chunks from items where session = ? and seq = ?",
            (session, seq),
        ).fetchall()
        state, cause = ItemState.LIVE, ""
        self._last.pop(session, None)
        for pos, scope, author, *standing, first, count in found:
            state, cause = standing  # the same for all words of an entry
            for id in range(first, first + count):
                self._delete_chunk(id)
                taken.new_chunks.pop(id, None)
                taken.touched_chunks.add(id)
            self.db.execute("delete from items where pos = ?", (pos,))
            self.db.execute("delete from places where first = ?", (first,))
            self.db.execute("delete from statements where first = ?", (first,))
            self.db.execute("update scopes set items = items - 1 where id = ?", (scope,))
            taken.removed_authors.add((scope, author))
        if found:
            self._refresh_next_context(session, seq, taken)
        # what it had replaced now counts as replaced by its successor
        self.db.execute(
            "update items set state = ?, cause = ? where cause = ?", (state, cause, _format_cause(session, seq))
        )

    def _delete_chunk(self, id: int) -> None:
        text = self._load_chunk_text(id)
        self.db.execute(
            "insert into words (words, rowid, self, grams) values ('delete', ?, ?, ?)",
            (id, text, build_hidden_terms(text)),
        )
        for table, column in (("chunks", "id"), ("vectors", "chunk"), ("deep", "chunk"), ("shallow", "chunk")):
            self.db.execute(f"delete from {table} where {column} = ?", (id,))

    def _refresh_next_context(self, session: str, seq: int, taken: IndexedBatch) -> None:
        """Connect the item after a removed item to the item before it, and update whether the two are read together."""
        row = self.db.execute(
            "select pos, seq, scope, size, first, before from items"
            " where session = ? and seq > ? and part = 0 order by seq limit 1",
            (session, seq),
        ).fetchone()
        if row is None:
            return
        pos, seq, scope, size, first, was = row
        before, first_before, context = self._find_previous(session, seq, scope, size)
        if before == was:
            return
        self.db.execute("update items set before = ? where pos = ?", (before, pos))
        self.db.execute(
            "update places set before = ?, flags = (flags & ~?) | ? where first = ?",
            (first_before, _AFTER, _AFTER * bool(context), first),
        )
        taken.touched_chunks.add(first)
        taken.new_chunks[first] = ChunkText(first, self._load_chunk_text(first), context)
        self.db.execute("delete from deep where chunk = ?", (first,))

    def _rebuild_names(self, scope: int, author: str) -> None:
        self.db.execute("delete from names where scope = ? and author = ?", (scope, author))
        self._named.clear()
        if author.startswith("person:"):
            left = "select distinct name, person from items where scope = ? and author = ?"
            for name, person in self.db.execute(left, (scope, author)).fetchall():
                self._add_names(scope, author, str(name), _get_own_name(str(person)))

    def _record_takes(self, session: str, op: int, takes: Sequence[int]) -> None:
        for seq in takes:
            self.db.execute("insert or ignore into takes values (?, ?, ?)", (session, seq, op))
            self._set_state(session, seq, ItemState.LIVE, was=ItemState.UNDONE)  # taken again, so it is valid after all

    def _mark_undone(self, session: str, undone: OperationsUndone) -> None:
        for op in undone.ops:
            self.db.execute(
                "update items set state = ? where session = ? and op = ? and kind = 'said' and state = ?",
                (ItemState.UNDONE, session, op, ItemState.LIVE),
            )
            if not undone.again:
                for (seq,) in self.db.execute("select seq from takes where session = ? and op = ?", (session, op)):
                    self._set_state(session, seq, ItemState.UNDONE)

    def _mark_superseded(self, entry: Entry, note: Noted, agent: str) -> None:
        state = ItemState.REMOVED if note.action == "remove" else ItemState.SUPERSEDED
        cause = _format_cause(entry.session, entry.seq)
        if note.supersedes:
            self._set_state(entry.session, note.supersedes, state, cause=cause)
        if note.fact and note.action != "add" and note.stamp.audience:
            # A person can only mean a fact that they could see, so search every scope they belong to.
            present = sorted(set(note.stamp.audience))
            seen = "select scope from members where agent = ? and member = ?"
            for (scope,) in self.db.execute(
                " intersect ".join([seen] * len(present)), _pair_members(agent, present)
            ).fetchall():
                self.db.execute(
                    "update items set state = ?, cause = ? where scope = ? and fact = ? and state = ?",
                    (state, cause, scope, note.fact, ItemState.LIVE),
                )

    def _set_state(
        self, session: str, seq: int, state: ItemState, *, was: ItemState = ItemState.LIVE, cause: str = ""
    ) -> None:
        self.db.execute(
            "update items set state = ?, cause = ? where session = ? and seq = ? and state = ?",
            (state, cause, session, seq, was),
        )

    # -- scopes

    def _get_scope_id(self, agent: str, audience: tuple[str, ...]) -> int:
        found = self._scopes.get((agent, audience))
        if found is None:
            key = (agent, encode_audience(audience))
            key_of = "select id from scopes where agent = ? and audience = ?"
            found = self.db.execute(key_of, key).get
            if found is None:
                self.db.execute("insert into scopes (agent, audience) values (?, ?)", key)
                found = self.db.execute(key_of, key).get
                self.db.executemany(
                    "insert into members values (?, ?, ?)", ((agent, member, found) for member in sorted(set(audience)))
                )
            assert isinstance(found, int)
            self._scopes[agent, audience] = found
        return found

    def _get_author_id(self, author: str) -> int:
        if author not in self._authors:
            self.db.execute("insert or ignore into authors (author) values (?)", (author,))
            found = self.db.execute("select id from authors where author = ?", (author,)).get
            assert isinstance(found, int)
            self._authors[author] = found
        return self._authors[author]

    def _allocate_chunks(self, scope: int, count: int) -> int:
        """Return the number of the first of `count` new chunks."""
        next = self._next.get(scope)
        if next is None:
            next = self.db.execute("select next from scopes where id = ?", (scope,)).get
            assert isinstance(next, int)
        self._next[scope] = next + count
        # Not `returning`: it opens a savepoint, at which full text writes a segment of the little it has collected so
        # far.
        self.db.execute("update scopes set next = ?, items = items + 1 where id = ?", (next + count, scope))
        return (scope << SCOPE_BITS) + next


def _get_own_name(identity: str) -> str:
    """Return the part of an identity that may be a name: the id without the platform."""
    return identity.partition(":")[2] or identity


def _pair_members(agent: str, members: Iterable[str]) -> list[str]:
    return [value for member in members for value in (agent, member)]


def _format_cause(session: str, seq: int) -> str:
    return f"{session}|{seq}"
