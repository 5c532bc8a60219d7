"""The search index: derived from the log by `pos`, rebuilt whenever that is simpler than repairing it.

What is committed is findable at once: a search reads on in the log first. What it reads is kept in memory and taken in
together with what follows, unless it could be an answer: then it is taken in before. What cannot be taken in (no room,
an import under way) is looked through as it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import apsw
from msgspec import Struct

from everhold.core.entries import Changed, Entry, Erased, Noted, OperationsUndone
from everhold.errors import NotFound
from everhold.memories.builtin import lookup, schema
from everhold.memories.builtin.intake import Intake, Words, words_of
from everhold.memories.builtin.lookup import Row, Scope
from everhold.memories.builtin.meaning import Meaning, Use
from everhold.memories.builtin.rank import Knobs, Ranked
from everhold.memories.builtin.tail import Hit, scan
from everhold.ports.store import Store

TAIL: Final = 512
"""Entries a search takes in, or looks through, before it answers."""
TOGETHER: Final = 256
"""Entries that wait to be taken in together. One transaction costs as much as a dozen of them."""
LIGHT: Final = 20_000
"""Chunks up to which a search is over sooner than a thread would have begun with it."""
KNOWN: Final = 10_000
ABOUT: Final = 48
"""Letters that are shown with each item: by whom, when, from where."""
PASSAGE: Final = 1_600
"""Characters of an item that are shown at once; of a longer one, those that matched."""

T = TypeVar("T")


class Asking(Struct, frozen=True, kw_only=True):
    """A search: what for, and for whom. Without an audience or an agent: for somebody who may see everything."""

    text: str
    agent: str | None
    audience: frozenset[str] | None
    session: str | None = None
    here: str = ""
    seen: Collection[int] = ()
    limit: int = 20
    letters: int | None = None

    def sees(self, place: Entry | Hit) -> bool:
        return place.session == self.here and place.seq in self.seen

    def concerns(self, entry: Entry, words: Words | None) -> bool:
        """Whether an entry that matters could be an answer to this, or change one."""
        if words is None or isinstance(entry.body, Noted):
            return True
        return not self.sees(entry) and (self.audience is None or self.audience.issubset(words.stamp.audience))


class Index:
    """One file. `inline` works on the caller's thread, for simulated worlds."""

    def __init__(
        self,
        path: Path,
        *,
        inline: bool = False,
        embeddings: Use = "auto",
        models: Path | None = None,
        knobs: Knobs | None = None,
    ) -> None:
        self.path = path
        self.inline = inline
        self.knobs = knobs
        self._meaning = Meaning(embeddings, models)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        """Taken after `_writing` by whoever takes both."""
        self._taking = asyncio.Lock()
        self._checked = False
        self._read: int | None = None
        """How far the log was read; what is not in the file yet is `_pending`."""
        self._pending: list[Entry] = []
        self._matters: list[tuple[Entry, Words | None]] = []
        """Those of them that somebody could ask for, with what they say; without, if they change answers."""
        self._after = 0
        self._known: dict[str, str] = {}
        """Sessions and their agents."""
        self._touched: list[int] = []
        """Chunks that changed in the file and, maybe, not yet in memory."""
        self._rewrites = 0
        self._writer = schema.for_writing(path)
        self._reader = schema.for_reading(path)
        self._intake = Intake(self._writer)

    # -- taking in

    async def catch_up(self, store: Store, limit: int = 500) -> int:
        """Take in up to `limit` entries that were committed since; how many there were."""
        async with self._taking:
            await self._read_on(store, limit)
            return await self._take_pending(store)

    async def wiped(self, store: Store) -> None:
        """Until nothing that the log does not have any more is left in the files."""
        while await self.catch_up(store):
            pass
        await self._write(self._wipe)

    async def rebuild(self) -> None:
        """Forget everything that was derived; what follows takes it in again."""
        async with self._taking:
            await self._write(self._anew)

    async def fill(self, limit: int = 16) -> int:
        """Give up to `limit` chunks their stronger vectors, beside everything else; how many got theirs."""
        if not self._meaning.deep:
            return 0
        waiting = await self._write(lambda: self._meaning.waiting(self._writer, limit))
        if waiting:
            encode = self._meaning.encode
            vectors = encode(waiting) if self.inline else await asyncio.to_thread(encode, waiting)
            if vectors is None:
                return 0
            await self._write(lambda: self._note(self._meaning.fill(self._writer, waiting, vectors)))
        return len(waiting)

    @property
    def level(self) -> str:
        """What finding goes by: `model` or `table`."""
        return self._meaning.level

    @property
    def trouble(self) -> str:
        """Why the stronger model is not used although it is there; nothing if all is well."""
        return self._meaning.trouble

    async def left(self) -> tuple[int, int]:
        """How many passages there are, and how many of them wait for their stronger vectors."""
        return await self._run(lambda: self._locked(lambda: self._meaning.left(self._reader)))

    async def _read_on(self, store: Store, limit: int) -> None:
        """Read what was committed since, until so many entries wait."""
        if not self._checked:
            await self._check(store)
        if self._read is None:
            self._read = await self._write(lambda: self._intake.position)
            await self._write(self._wipe)
            while await self._write(lambda: self._note(self._meaning.mend(self._writer))):
                pass
        if len(self._pending) < limit:
            entries = await store.read_feed(after=self._read, limit=limit - len(self._pending))
            if entries:
                if not self._pending:
                    self._after = self._read
                self._pending += entries
                self._matters += _mattering(entries)
                self._read = entries[-1].pos

    async def _take_pending(self, store: Store) -> int:
        """Take in what waits; how many entries did."""
        entries, after = self._pending, self._after
        if entries:
            agents = await self._agents(store, entries)
            taken = await self._write(lambda: self._take(entries, agents, after))
            self._pending, self._matters = [], []
            if not taken:
                self._read = None  # the file is not what it was: go on where it ends
        return len(entries)

    def _take(self, entries: Sequence[Entry], agents: dict[str, str], after: int) -> bool:
        """Take in entries that follow `after` in the log; False if the file does not reach as far as that."""
        with self._writer:
            position = self._intake.position
            if position < after:
                return False
            taken = self._intake.take([entry for entry in entries if entry.pos > position], agents, position)
            self._meaning.embed(self._writer, taken.fresh.values())
            self._count(taken.touched)
            if taken.erased:
                schema.put(self._writer, "unwiped", "1")  # whoever comes after a crash knows that it is left to do
        self._intake.settled(max(position, entries[-1].pos))
        self._touched += taken.touched  # not before others can read what they are now
        if taken.erased:
            self._wipe()
        return True

    def _wipe(self) -> None:
        """Take the last bytes of what was erased out of the files, if somebody left that to be done."""
        if schema.meta(self._writer, "unwiped", "0") == "1":
            schema.wipe(self._writer)
            schema.put(self._writer, "unwiped", "0")

    def _note(self, touched: Collection[int]) -> int:
        """Remember that these chunks are not what they were; how many."""
        self._count(touched)
        self._touched += touched
        return len(touched)

    def _count(self, touched: Collection[int]) -> None:
        """Write down that there was a change, for other processes: what they keep in memory is not what it was."""
        if touched:
            self._rewrites += 1
            schema.put(self._writer, "rewrites", str(int(schema.meta(self._writer, "rewrites", "0")) + 1))

    async def _agents(self, store: Store, entries: Iterable[Entry]) -> dict[str, str]:
        sessions = {entry.session for entry in entries}
        agents = {session: self._known[session] for session in sessions if session in self._known}
        for session in sessions - agents.keys():
            agents[session] = (await store.get_session(session)).agent
        if len(self._known) > KNOWN:
            self._known.clear()
        self._known.update(agents)
        return agents

    async def _check(self, store: Store) -> None:
        """Another log than the one this was derived from (a restored one, say) has other entries at the same places."""
        landmark = await self._write(lambda: self._intake.landmark)
        if landmark is not None:
            session, seq, digest = landmark
            try:
                same = (await store.get_entry(session, seq)).digest.hex() == digest
            except NotFound:
                same = False
            if not same:
                await self._write(self._anew)
        self._checked = True

    # -- finding

    async def search(
        self,
        store: Store,
        text: str,
        *,
        agent: str | None,
        audience: Sequence[str] | None,
        session: str | None = None,
        here: str = "",
        seen: Collection[int] = (),
        limit: int = 20,
        letters: int | None = None,
    ) -> list[Hit]:
        """The best items that everybody in `audience` may hear of, best first. None: whoever asks may see everything.

        `session` looks only there. `here` is where the question is asked, and `seen` what is seen there anyway: it is
        not found again. While the index is far behind, at least the newest of that session is looked through. `limit`
        and `letters` are how much is wanted, at most.
        """
        present = None if audience is None else frozenset(audience)
        if (present is not None and not present) or not text.strip():
            return []
        asking = Asking(
            text=text,
            agent=agent,
            audience=present,
            session=session,
            here=here,
            seen=seen,
            limit=limit,
            letters=letters,
        )
        tail = await self._tail(store, asking)
        hits = await self._look(asking)
        if tail:
            agents = await self._agents(store, tail)
            known = {(hit.session, hit.seq) for hit in hits}
            extra = scan(tail, text, agent=agent, audience=present, agents=agents, session=session)
            new = [hit for hit in extra if (hit.session, hit.seq) not in known and not asking.sees(hit)]
            hits = sorted([*hits, *new], key=_by_score)[:limit]
        return hits

    async def warm(self) -> None:
        """Read what large scopes need to be searched, before somebody waits for it. Others search in between."""
        scopes = await self._run(lambda: self._locked(lambda: lookup.scopes(self._reader, agent=None, audience=None)))
        for scope in sorted(scopes, key=lambda scope: scope.chunks):
            for upto in range(LIGHT, scope.chunks, LIGHT):
                part = Scope(scope.id, upto, scope.items)
                await self._run(
                    lambda part=part: self._locked(lambda: self._moment(lambda: self._meaning.warm(self._reader, part)))  # type: ignore[misc]
                )

    async def holding(self, store: Store, text: str, *, limit: int) -> list[tuple[str, int]]:
        """Where all words of `text` stand, in whatever form, newest first: for whoever may see everything."""
        while await self.catch_up(store):
            pass
        terms = lookup.every(text)
        if not terms:
            return []
        return await self._run(lambda: self._locked(lambda: lookup.holding(self._reader, terms, limit)))

    async def _tail(self, store: Store, asking: Asking) -> list[Entry]:
        """Entries the index has not got yet although they could matter: no room for them, or too many at once."""
        async with self._taking:
            await self._read_on(store, TAIL)
            waiting = len(self._pending)
            try:
                if waiting >= TOGETHER or any(asking.concerns(*one) for one in self._matters):
                    await self._take_pending(store)
            except (apsw.FullError, apsw.ReadOnlyError, apsw.BusyError):
                return list(self._pending)
        if waiting < TAIL or not asking.here or self._read is None:
            return []
        last = (await store.get_session(asking.here)).last_seq
        return [entry for entry in await store.list_entries(asking.here, after=last - TAIL) if entry.pos > self._read]

    async def _look(self, asking: Asking) -> list[Hit]:
        if self._meaning.ready and not self._meaning.deep and self._reading.acquire(blocking=False):
            try:  # here and now, if that is soon done
                return self._moment(lambda: self._find(asking, most=LIGHT))
            except (_TooMuch, *schema.DAMAGE):
                pass
            finally:
                self._reading.release()
        return await self._run(lambda: self._locked(lambda: self._moment(lambda: self._find(asking))))

    def _moment(self, read: Callable[[], T]) -> T:
        """What several reads find at one moment."""
        self._reader.execute("begin")
        try:
            return read()
        finally:
            if self._reader.in_transaction:
                self._reader.execute("rollback")

    def _find(self, asking: Asking, *, most: int | None = None) -> list[Hit]:
        db = self._reader
        scopes = lookup.scopes(db, agent=asking.agent, audience=asking.audience)
        if most is not None and sum(scope.chunks for scope in scopes) > most:
            raise _TooMuch
        ours = {scope.id for scope in scopes}
        seen = lookup.seen(db, asking.here, asking.seen) if asking.here and asking.seen else {}
        skip = [first for scope, firsts in seen.items() if scope in ours for first in firsts]
        if sum(scope.items for scope in scopes) <= len(skip):
            return []
        ranked = self._rank(asking, scopes, skip)
        found: list[tuple[Row, Ranked]] = []
        texts: dict[int, str] = {}
        while len(found) < asking.limit and (some := list(islice(ranked, asking.limit))):
            rows = lookup.heads(db, (one.first for one in some), texts)
            there = ((rows.get(one.first), one) for one in some)
            found += [(row, one) for row, one in there if row is not None and row.live]
        shown = [(row, one, _passage(row, one)) for row, one in _most(found[: asking.limit], asking.letters)]
        more = [id for *_, passage in shown for id in passage if id not in texts]
        if more:
            texts |= lookup.texts(db, more)
        return [_hit(row, one.score, passage, texts) for row, one, passage in shown]

    def _rank(self, asking: Asking, scopes: Sequence[Scope], skip: Sequence[int]) -> Iterator[Ranked]:
        db, meaning, text = self._reader, self._meaning, asking.text
        ids = [scope.id for scope in scopes]
        spoken, authors = lookup.named(db, text, ids)
        self._remember()
        only = None if asking.session is None else lookup.within(db, asking.session)
        return meaning.rank(db, scopes, text, spoken=spoken, authors=authors, knobs=self.knobs, only=only, skip=skip)

    def _remember(self) -> None:
        """Bring what is kept in memory up to the file."""
        rewrites = int(schema.meta(self._reader, "rewrites", "0"))
        touched, self._touched = self._touched, []
        if rewrites > self._rewrites:  # somebody else's work, of which nothing is known here
            self._rewrites = rewrites
            self._meaning.changed()
        elif touched:
            self._meaning.touch(self._reader, set(touched))

    # -- the file

    async def close(self) -> None:
        def work() -> None:
            with self._writing, self._reading:
                self._reader.close()
                self._writer.close()

        await self._run(work)

    async def _write(self, work: Callable[[], T]) -> T:
        """Do something with the writing connection; if the file is damaged, with a new one."""

        def locked() -> T:
            with self._writing:
                try:
                    return work()
                except schema.DAMAGE:
                    self._anew()
                    return work()

        return await self._run(locked)

    def _locked(self, read: Callable[[], T]) -> T:
        try:
            with self._reading:
                return read()
        except schema.DAMAGE:
            with self._writing:
                self._anew()
            with self._reading:
                return read()

    async def _run(self, work: Callable[[], T]) -> T:
        return work() if self.inline else await asyncio.to_thread(work)

    def _anew(self) -> None:
        """Called by whoever holds `_writing`."""
        with self._reading:
            for db in (self._reader, self._writer):
                db.close(True)
            schema.remove(self.path)
            self._meaning.changed()
            self._touched, self._rewrites = [], 0
            self._writer = schema.for_writing(self.path)
            self._reader = schema.for_reading(self.path)
            self._intake = Intake(self._writer)
            self._read, self._pending, self._matters = None, [], []


def _mattering(entries: Iterable[Entry]) -> Iterator[tuple[Entry, Words | None]]:
    """The entries that are an answer for somebody, with what they say, and without, those that change answers."""
    for entry in entries:
        words = words_of(entry)
        body = entry.body
        changes = isinstance(body, Erased | Noted) or (
            isinstance(body, Changed) and isinstance(body.change, OperationsUndone)
        )
        if changes or (words is not None and words.stamp.audience):
            yield entry, words


class _TooMuch(Exception):
    """More than can be looked through while others wait."""


def _most(found: list[tuple[Row, Ranked]], letters: int | None) -> list[tuple[Row, Ranked]]:
    """As many of the best as have so many letters together, and the one that has more."""
    if letters is not None:
        for count, (row, _) in enumerate(found, 1):
            letters -= min(row.size, PASSAGE) + ABOUT
            if letters < 0:
                return found[:count]
    return found


def _passage(row: Row, ranked: Ranked) -> range:
    """The chunks of an item to show: all of them, or of a long one the best and what follows it."""
    end = row.first + row.chunks
    if row.size <= PASSAGE:
        return range(row.first, end)
    return range(ranked.best, min(end, ranked.best + 2))


def _hit(row: Row, score: float, passage: range, texts: dict[int, str]) -> Hit:
    text = "".join(texts[id] for id in passage)
    if passage.start > row.first:
        text = f"… {text}"
    if passage.stop < row.first + row.chunks:
        text = f"{text} …"
    return Hit(
        text=text,
        score=score,
        session=row.session,
        seq=row.seq,
        pos=row.pos,
        kind=row.kind,
        author=row.author,
        person=row.person,
        name=row.name,
        address=row.address,
        origin=row.origin,
        at=row.at,
        size=row.size,
    )


def _by_score(hit: Hit) -> tuple[float, int]:
    return -hit.score, -hit.pos
