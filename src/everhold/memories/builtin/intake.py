"""Entries -> rows of the index. Whatever order entries are handed over in batches, the rows are the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import apsw
import msgspec
from msgspec import Struct

from everhold.core.entries import Began, Changed, Entry, Erased, Heard, Noted, Said, Stamp, Took, Undone
from everhold.memories.builtin.schema import SCOPE_BITS, meta, put
from everhold.memories.builtin.words import chunks, grams, tokens

SHORT: Final = 200
SHORT_BEFORE: Final = 300
"""A short message after a short one is read with it. Beside or after a long one that does harm."""


class State(IntEnum):
    """Why an item is not found any more. Erased ones are not there at all."""

    LIVE = 0
    UNDONE = 1
    SUPERSEDED = 2
    REMOVED = 3


class Piece(Struct, frozen=True):
    """A chunk that needs its vectors made again: its own words, and the words before it that it is read with."""

    id: int
    text: str
    context: str


class Words(Struct, frozen=True):
    """What an entry says, and under whose eyes."""

    text: str
    stamp: Stamp
    name: str = ""
    fact: str = ""


def words_of(entry: Entry) -> Words | None:
    """What there is to find in an entry; None if nothing is. Thoughts, notices and commands are nobody's words."""
    match entry.body:
        case Heard(command=None) as body:
            return Words(body.text, body.stamp, body.sender)
        case Said() as body:
            return Words(body.text, body.stamp)
        case Noted(action="remove"):
            return None
        case Noted() as body:
            return Words(body.text, body.stamp, "", body.fact)
        case _:
            return None


def audience_key(audience: Iterable[str]) -> str:
    return msgspec.json.encode(sorted(set(audience))).decode()


class Intake:
    """Writes the rows of entries in commit order. One transaction per batch, the position with it."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db
        self._scopes: dict[tuple[str, str], int] = {}

    @property
    def position(self) -> int:
        return int(meta(self.db, "position", "0"))

    @property
    def landmark(self) -> tuple[str, int, str] | None:
        """Session, seq and digest of the last entry taken in: how another log is told from this one."""
        session, seq, digest = meta(self.db, "landmark", "||").rsplit("|", 2)
        return (session, int(seq), digest) if session else None

    def agents(self, sessions: Iterable[str]) -> dict[str, str]:
        known: dict[str, str] = {}
        for session in sessions:
            agent = self.db.execute("select agent from sessions where id = ?", (session,)).get
            if agent is not None:
                known[session] = agent
        return known

    def take(self, entries: Sequence[Entry], agents: Mapping[str, str]) -> tuple[list[Piece], bool]:
        """Take in what follows the position; the chunks that are new or read differently, and whether words went."""
        self._scopes.clear()
        fresh: dict[int, Piece] = {}
        erased = False
        with self.db:
            for session, agent in agents.items():
                self.db.execute("insert or ignore into sessions values (?, ?)", (session, agent))
            for entry in entries:
                erased = self._one(entry, agents[entry.session], fresh) or erased
            if entries:
                last = entries[-1]
                put(self.db, "position", str(last.pos))
                put(self.db, "landmark", f"{last.session}|{last.seq}|{last.digest.hex()}")
        return list(fresh.values()), erased

    def _one(self, entry: Entry, agent: str, fresh: dict[int, Piece]) -> bool:
        match entry.body:
            case Began(takes=takes):
                self._taken(entry.session, entry.seq, takes)
            case Took(takes=takes) if entry.op is not None:
                self._taken(entry.session, entry.op, takes)
            case Changed(change=Undone() as undone):
                self._undo(entry.session, undone)
            case Erased(seqs=seqs):
                for seq in seqs:
                    self._forget(entry.session, seq, fresh)
                return True
            case Noted() as note:
                self._supersede(entry, note, agent)
        words = words_of(entry)
        if words is not None and words.text.strip() and words.stamp.audience:
            self._add(entry, words, agent, fresh)
        return False

    # -- what is found

    def _add(self, entry: Entry, words: Words, agent: str, fresh: dict[int, Piece]) -> None:
        scope = self._scope(agent, words.stamp.audience)
        before, context = self._before(entry.session, entry.seq, scope, len(words.text))
        pieces = chunks(words.text)
        first = self._number(scope, len(pieces))
        who = words.name or entry.author.partition(":")[2]
        self.db.execute(
            "insert or ignore into items values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                entry.pos, entry.session, entry.seq, scope, str(entry.kind), entry.op, entry.author,
                words.stamp.person, who, words.stamp.address, entry.at, words.fact, State.LIVE, "",
                before, len(words.text), first, len(pieces),
            ),
        )  # fmt: skip
        for number, text in enumerate(pieces):
            row = (first + number, entry.pos, text, who if number == 0 else "", context, grams(text))
            self._insert(row)
            fresh[first + number] = Piece(first + number, text, context)
        if entry.author.startswith("person:"):
            self._name(scope, entry.author, words.name, words.stamp.person)

    def _name(self, scope: int, author: str, *names: str) -> None:
        for word in {word for name in names for word in tokens(name)}:
            if len(word) > 1 and not word.isdigit():
                self.db.execute("insert or ignore into names values (?, ?, ?)", (scope, word, author))

    def _before(self, session: str, seq: int, scope: int, size: int) -> tuple[int, str]:
        """The item before a place in its session, and its words if the two are read together."""
        row = self.db.execute(
            "select pos, scope, size, first from items where session = ? and seq < ? order by seq desc limit 1",
            (session, seq),
        ).fetchone()
        if row is None or row[1] != scope:
            return 0, ""
        pos, _, size_before, first = row
        if size >= SHORT or size_before >= SHORT_BEFORE:
            return pos, ""
        return pos, self.db.execute("select self from chunks where id = ?", (first,)).get or ""

    def _insert(self, row: tuple[int, int, str, str, str, str]) -> None:
        self.db.execute("insert into chunks values (?, ?, ?, ?, ?, ?)", row)
        self.db.execute("insert into words (rowid, self, who, ctx, grams) values (?, ?, ?, ?, ?)", (row[0], *row[2:]))

    def _delete(self, id: int) -> tuple[int, int, str, str, str, str]:
        row = self.db.execute("select id, pos, self, who, ctx, grams from chunks where id = ?", (id,)).fetchone()
        assert row is not None, f"chunk {id} is not there"
        self.db.execute(
            "insert into words (words, rowid, self, who, ctx, grams) values ('delete', ?, ?, ?, ?, ?)",
            (id, *row[2:]),
        )
        for table, column in (("chunks", "id"), ("vectors", "chunk"), ("deep", "chunk"), ("shallow", "chunk")):
            self.db.execute(f"delete from {table} where {column} = ?", (id,))
        return row  # type: ignore[no-any-return]  # the columns named above

    # -- what is not found any more

    def _forget(self, session: str, seq: int, fresh: dict[int, Piece]) -> None:
        """Remove an item's words wherever they stand: its own chunks, and the context of the item after it."""
        found = self.db.execute(
            "select pos, scope, author, state, cause, first, chunks from items where session = ? and seq = ?",
            (session, seq),
        ).fetchone()
        state, cause = State.LIVE, ""
        if found is not None:
            pos, scope, author, state, cause, first, count = found
            for id in range(first, first + count):
                self._delete(id)
                fresh.pop(id, None)
            self.db.execute("delete from items where pos = ?", (pos,))
            for row in self.db.execute(
                "select pos, seq, scope, size, first, chunks from items where before = ?", (pos,)
            ).fetchall():
                self._reread(session, row, fresh)
            self._rename(scope, author)
        # what it had replaced is replaced by whatever replaced it
        self.db.execute("update items set state = ?, cause = ? where cause = ?", (state, cause, _cause(session, seq)))

    def _reread(self, session: str, row: tuple[Any, ...], fresh: dict[int, Piece]) -> None:
        """The item after one that went is read with the one before that."""
        pos, seq, scope, size, first, count = row
        before, context = self._before(session, seq, scope, size)
        self.db.execute("update items set before = ? where pos = ?", (before, pos))
        for id in range(first, first + count):
            old = self._delete(id)
            self._insert((*old[:4], context, old[5]))
            fresh[id] = Piece(id, old[2], context)

    def _rename(self, scope: int, author: str) -> None:
        self.db.execute("delete from names where scope = ? and person = ?", (scope, author))
        if author.startswith("person:"):
            left = "select distinct name, person from items where scope = ? and author = ?"
            for name, person in self.db.execute(left, (scope, author)).fetchall():
                self._name(scope, author, str(name), str(person))

    def _taken(self, session: str, op: int, takes: Sequence[int]) -> None:
        for seq in takes:
            self.db.execute("insert or ignore into takes values (?, ?, ?)", (session, seq, op))
            self._mark(session, seq, State.LIVE, was=State.UNDONE)  # taken again: it stands after all

    def _undo(self, session: str, undone: Undone) -> None:
        for op in undone.ops:
            self.db.execute(
                "update items set state = ? where session = ? and op = ? and kind = 'said' and state = ?",
                (State.UNDONE, session, op, State.LIVE),
            )
            if not undone.again:
                for (seq,) in self.db.execute("select seq from takes where session = ? and op = ?", (session, op)):
                    self._mark(session, seq, State.UNDONE)

    def _supersede(self, entry: Entry, note: Noted, agent: str) -> None:
        state = State.REMOVED if note.action == "remove" else State.SUPERSEDED
        cause = _cause(entry.session, entry.seq)
        if note.supersedes:
            self._mark(entry.session, note.supersedes, state, cause=cause)
        if note.fact and note.action != "add" and note.stamp.audience:
            self.db.execute(
                "update items set state = ?, cause = ? where scope = ? and fact = ? and state = ?",
                (state, cause, self._scope(agent, note.stamp.audience), note.fact, State.LIVE),
            )

    def _mark(self, session: str, seq: int, state: State, *, was: State = State.LIVE, cause: str = "") -> None:
        self.db.execute(
            "update items set state = ?, cause = ? where session = ? and seq = ? and state = ?",
            (state, cause, session, seq, was),
        )

    # -- scopes

    def _scope(self, agent: str, audience: Iterable[str]) -> int:
        key = (agent, audience_key(audience))
        if key not in self._scopes:
            self.db.execute("insert or ignore into scopes (agent, audience) values (?, ?)", key)
            found = self.db.execute("select id from scopes where agent = ? and audience = ?", key).get
            assert isinstance(found, int)
            self._scopes[key] = found
        return self._scopes[key]

    def _number(self, scope: int, count: int) -> int:
        """The number of the first of `count` new chunks."""
        last = self.db.execute("update scopes set next = next + ? where id = ? returning next", (count, scope)).get
        assert isinstance(last, int)
        return (scope << SCOPE_BITS) + last - count


def _cause(session: str, seq: int) -> str:
    return f"{session}|{seq}"
