"""The search index: derived from the log by `pos`, rebuilt whenever that is simpler than repairing it.

What is committed is findable at once: before a search the index takes in what it has not seen, and what it cannot take
in (no room, an import under way) is looked through as it is.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import apsw

from everhold.core.entries import Entry
from everhold.errors import NotFound
from everhold.memories.builtin import lookup, schema
from everhold.memories.builtin.intake import Intake
from everhold.memories.builtin.lookup import CANDIDATES, Row
from everhold.memories.builtin.meaning import Meaning, Use
from everhold.memories.builtin.rank import DEEP, KNOBS, Knobs, Sign, fuse, settle
from everhold.memories.builtin.tail import Hit, scan
from everhold.memories.builtin.words import without
from everhold.ports.store import Store

TAIL: Final = 512
"""Entries a search takes in, or looks through, before it answers."""
PASSAGE: Final = 1_600
"""Characters of an item that are shown at once; of a longer one, those that matched."""

CLOSER: Final = 120
"""Candidates that are looked at closely, with what stands beside them."""
EACH: Final = 4
"""Chunks of a candidate that are judged besides those that were found."""

T = TypeVar("T")


class Index:
    """One file. `inline` works on the caller's thread, for simulated worlds."""

    def __init__(
        self, path: Path, *, inline: bool = False, embeddings: Use = "auto", knobs: Knobs | None = None
    ) -> None:
        self.path = path
        self.inline = inline
        self.knobs = knobs
        self._meaning = Meaning(embeddings)
        self._lock = threading.Lock()
        self._taking = asyncio.Lock()
        self._checked = False
        self._writer = schema.for_writing(path)
        self._reader = schema.for_reading(path)
        self._intake = Intake(self._writer)

    # -- taking in

    async def catch_up(self, store: Store, limit: int = 500) -> int:
        """Take in up to `limit` entries that were committed since; how many there were."""
        async with self._taking:
            if not self._checked:
                await self._check(store)
            position = await self._run(lambda: self._intake.position)
            await self._run(lambda: self._meaning.mend(self._writer))
            entries = await store.feed(after=position, limit=limit)
            if entries:
                agents = await self._agents(store, entries)
                await self._run(lambda: self._take(entries, agents))
            return len(entries)

    async def rebuild(self) -> None:
        """Forget everything that was derived; what follows takes it in again."""
        async with self._taking:
            await self._run(self._anew)

    async def fill(self, limit: int = 16) -> int:
        """Give up to `limit` chunks their stronger vectors, beside everything else; how many got theirs."""
        waiting = await self._run(lambda: self._meaning.waiting(self._writer, limit))
        if waiting:
            vectors = (
                self._meaning.encode(waiting) if self.inline else await asyncio.to_thread(self._meaning.encode, waiting)
            )
            await self._run(lambda: self._meaning.fill(self._writer, waiting, vectors))
        return len(waiting)

    @property
    def level(self) -> str:
        """What finding goes by: `model`, `table`, or `words` alone (numpy is not installed)."""
        return self._meaning.level

    def _take(self, entries: Sequence[Entry], agents: dict[str, str]) -> None:
        pieces, erased = self._intake.take(entries, agents)
        self._meaning.embed(self._writer, pieces)
        if erased:
            self._meaning.changed()
            schema.wipe(self._writer)

    async def _agents(self, store: Store, entries: Iterable[Entry]) -> dict[str, str]:
        sessions = {entry.session for entry in entries}
        agents = await self._run(lambda: self._intake.agents(sessions))
        for session in sessions - agents.keys():
            agents[session] = (await store.session(session)).agent
        return agents

    async def _check(self, store: Store) -> None:
        """Another log than the one this was derived from (a restored one, say) has other entries at the same places."""
        landmark = await self._run(lambda: self._intake.landmark)
        if landmark is not None:
            session, seq, digest = landmark
            try:
                same = (await store.entry(session, seq)).digest.hex() == digest
            except NotFound:
                same = False
            if not same:
                await self._run(self._anew)
        self._checked = True

    # -- finding

    async def search(
        self,
        store: Store,
        text: str,
        *,
        agent: str,
        audience: Sequence[str],
        session: str | None = None,
        here: str = "",
        limit: int = 20,
    ) -> list[Hit]:
        """The best items that everybody in `audience` may hear of, best first.

        `session` looks only there. `here` is where the question is asked: while the index is far behind, at least the
        newest of that session is looked through.
        """
        if not audience or not text.strip():
            return []
        tail = await self._tail(store, here)
        hits = await self._run(lambda: self._moment(lambda: self._find(text, agent, audience, session, limit)))
        if tail:
            agents = await self._agents(store, tail)
            seen = {(hit.session, hit.seq) for hit in hits}
            extra = scan(tail, text, agent=agent, audience=audience, agents=agents, session=session)
            hits = sorted([*hits, *(hit for hit in extra if (hit.session, hit.seq) not in seen)], key=_by_score)[:limit]
        return hits

    async def _tail(self, store: Store, here: str) -> list[Entry]:
        """Entries the index has not got yet although it tried: no room for them, or too many at once."""
        try:
            taken = await self.catch_up(store, TAIL)
        except (apsw.FullError, apsw.ReadOnlyError, apsw.BusyError):
            return await store.feed(after=await self._run(lambda: self._position), limit=TAIL)
        if taken < TAIL or not here:
            return []
        last = (await store.session(here)).last_seq
        position = await self._run(lambda: self._position)
        return [entry for entry in await store.entries(here, after=last - TAIL) if entry.pos > position]

    @property
    def _position(self) -> int:
        return int(schema.meta(self._reader, "position", "0"))

    def _moment(self, read: Callable[[], T]) -> T:
        """What several reads find at one moment."""
        self._reader.execute("begin")
        try:
            return read()
        finally:
            if self._reader.in_transaction:
                self._reader.execute("rollback")

    def _find(self, text: str, agent: str, audience: Sequence[str], session: str | None, limit: int) -> list[Hit]:
        db = self._reader
        scopes = lookup.scopes(db, agent=agent, audience=audience)
        if not scopes:
            return []
        known = lookup.names(db, scopes)
        spoken, authors = lookup.named(text, known)
        words = lookup.full_text(db, lookup.expression(db, text), scopes, session=session)
        question = self._meaning.question(db, without(text, spoken), scopes)
        near = self._meaning.nearest(db, question, scopes, CANDIDATES) if question else {}
        if question:
            near |= self._meaning.near(db, question, [id for id in words if id not in near])
        owner = lookup.owners(db, words.keys() | near.keys())
        deep = question is not None and question.kept == "deep"
        knobs = self.knobs if self.knobs is not None else DEEP if deep else KNOBS
        by_model = knobs.deep if deep else knobs.meaning
        first = fuse(((knobs.words, _pool(words, owner)), (by_model, _pool(near, owner))))
        rows = self._surroundings(set(heapq.nlargest(CLOSER, first, key=first.__getitem__)))
        alike: dict[int, float] = {}
        plain: dict[int, float] = {}
        if question:
            owner = {id: pos for id, pos in owner.items() if pos in rows}
            owner |= {
                id: row.pos for row in rows.values() for id in range(row.first, row.first + min(row.chunks, EACH))
            }
            near |= self._meaning.near(db, question, [id for id in owner if id not in near])
            alike = self._meaning.alike(db, question, owner)
            plain = self._meaning.plain(db, question, list(owner)) if deep else {}
        arms = ((knobs.words, words), (by_model, near), (knobs.meaning, plain), (knobs.alike, alike))
        scores = fuse((weight, _pool(arm, owner)) for weight, arm in arms)
        signs = {pos: _sign(row, authors) for pos, row in rows.items()}
        ranked = settle(scores, signs, knobs)
        order = sorted(ranked, key=lambda pos: (-ranked[pos], -pos))
        best = [
            rows[pos] for pos in order if lookup.live(rows[pos]) and (session is None or rows[pos].session == session)
        ][:limit]
        judged = fuse(arms) if any(row.size > PASSAGE for row in best) else {}
        shown = {row.pos: _passage(row, judged) for row in best}
        texts = lookup.texts(db, (id for passage in shown.values() for id in passage))
        return [_hit(row, ranked[row.pos], shown[row.pos], texts) for row in best]

    def _surroundings(self, items: set[int]) -> dict[int, Row]:
        """The candidates and the items beside them in their conversations."""
        db = self._reader
        found = lookup.rows(db, items)
        after = lookup.neighbours(db, items)
        before = lookup.rows(db, {row.before for row in found.values()} - found.keys())
        return found | after | before

    # -- the file

    async def close(self) -> None:
        def work() -> None:
            self._reader.close()
            self._writer.close()

        await self._run(work, mend=False)

    async def _run(self, work: Callable[[], T], *, mend: bool = True) -> T:
        def locked() -> T:
            with self._lock:
                try:
                    return work()
                except schema.DAMAGE:
                    if not mend:
                        raise
                    self._anew()
                    return work()

        return locked() if self.inline else await asyncio.to_thread(locked)

    def _anew(self) -> None:
        for db in (self._reader, self._writer):
            db.close(True)
        schema.remove(self.path)
        self._meaning.changed()
        self._writer = schema.for_writing(self.path)
        self._reader = schema.for_reading(self.path)
        self._intake = Intake(self._writer)


def _passage(row: Row, judged: dict[int, float]) -> range:
    """The chunks of an item to show: all of them, or of a long one the best and what follows it."""
    end = row.first + row.chunks
    if row.size <= PASSAGE:
        return range(row.first, end)
    best = max(range(row.first, end), key=lambda id: (judged.get(id, 0.0), -id))
    return range(best, min(end, best + 2))


def _hit(row: Row, score: float, passage: range, texts: dict[int, str]) -> Hit:
    text = "".join(texts[id] for id in passage)
    if passage.start > row.first:
        text = f"… {text}"
    if passage.stop < row.first + row.chunks:
        text = f"{text} …"
    return Hit(
        text=text, score=score, session=row.session, seq=row.seq, pos=row.pos, kind=row.kind, author=row.author,
        person=row.person, name=row.name, address=row.address, at=row.at, size=row.size,
    )  # fmt: skip


def _pool(chunks: dict[int, float], owner: dict[int, int]) -> dict[int, float]:
    """A message is as good as its best chunk."""
    pooled: dict[int, float] = {}
    for chunk, score in chunks.items():
        item = owner.get(chunk)
        if item is not None and score > pooled.get(item, 0.0):
            pooled[item] = score
    return pooled


def _sign(row: Row, authors: set[str]) -> Sign:
    return Sign(
        before=row.before,
        human=row.author.startswith("person:"),
        named=row.author in authors,
        noted=row.kind == "noted",
        at=row.at,
    )


def _by_score(hit: Hit) -> tuple[float, int]:
    return -hit.score, -hit.pos
