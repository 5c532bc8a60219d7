"""The search index. It is derived from the log by `pos`, and rebuilt where that is simpler than repairing it.

A committed entry is findable at once, because a search first reads the new entries of the log. These are kept in memory
and indexed later together with others, unless one could be a hit or change one: then they are indexed before the
search. Entries that cannot be indexed now (no disk space, an import in progress) are scanned directly.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import apsw
from msgspec import Struct

from everhold.core.entries import Changed, Entry, Erased, Noted, OperationsUndone
from everhold.core.people import PresentAudience, can_hear
from everhold.errors import NotFound
from everhold.memories.builtin import candidates, schema
from everhold.memories.builtin.candidates import IndexRow, IndexScope
from everhold.memories.builtin.dates import DateRange
from everhold.memories.builtin.embeddings import ChunkEmbeddings, EmbeddingsMode
from everhold.memories.builtin.indexing import EntryWords, IndexWriter, extract_words
from everhold.memories.builtin.rank_fusion import RankedItem, RankingWeights
from everhold.memories.builtin.unindexed import IndexHit, scan_entries
from everhold.memories.builtin.updates import STILL_VALID, OutdatedMark, UpdateFinder, order_by_updates
from everhold.ports.store import Store

MAX_UNINDEXED_ENTRIES: Final = 512
"""Entries that a search indexes or scans before it answers."""
BATCH_ENTRIES: Final = 256
"""Entries that are collected before they are indexed. One transaction costs as much as a dozen entries."""
BATCH_CHARS: Final = 1_000_000
"""The text of entries that are collected, because a few long entries take as much memory as many short ones."""
MAX_INLINE_CHUNKS: Final = 20_000
"""Up to this many chunks, a search is faster than starting a thread for it."""
MAX_KNOWN_SESSIONS: Final = 10_000
ITEM_HEADER_CHARS: Final = 24
"""Characters that are shown with each item: author, time and origin."""
MAX_PASSAGE_CHARS: Final = 1_600
"""Characters of an item that are shown; of a longer item, the matching passage."""

T = TypeVar("T")


class IndexQuery(Struct, frozen=True, kw_only=True):
    """One search. Without an audience or an agent, the caller may see everything."""

    text: str
    agent: str | None
    present: PresentAudience | None
    named_authors: Mapping[str, Sequence[str]] = {}
    """Names of people in small letters -> the authors under which the log knows them."""
    session: str | None = None
    current_session: str = ""
    seen_seqs: Collection[int] = ()
    dates: tuple[DateRange, ...] = ()
    personal: bool = False
    """The question is about the person who asks, and about nothing else."""
    changes: bool = False
    """The question asks what changed, at one of the dates if there are any."""
    for_turn: bool = False
    """Leave out what would only fill the context of a turn: messages that only ask, replies that only acknowledge, and
    items that have hardly anything to do with the question.
    """
    limit: int = 20
    max_chars: int | None = None

    def has_seen(self, place: Entry | IndexHit) -> bool:
        return place.session == self.current_session and place.seq in self.seen_seqs

    def is_affected_by(self, entry: Entry, words: EntryWords | None) -> bool:
        """Whether an unindexed entry could be a hit of this search or change one."""
        if words is None or isinstance(entry.body, Noted):
            return True
        return not self.has_seen(entry) and (
            self.present is None or can_hear(self.present, words.stamp.audience, entry.at)
        )


class _ThreadSearch:
    """One search on another thread."""

    is_abandoned = False


class MemoryIndex:
    """One index file. `inline` works on the caller's thread, for simulations."""

    def __init__(
        self,
        path: Path,
        *,
        inline: bool = False,
        embeddings: EmbeddingsMode = "auto",
        models: Path | None = None,
        ranking_weights: RankingWeights | None = None,
    ) -> None:
        self.path = path
        self.inline = inline
        self.ranking_weights = ranking_weights
        self._embeddings = ChunkEmbeddings(embeddings, models)
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        """Acquired after `_writing` by code that needs both."""
        self._search_lock = threading.Lock()
        """Held only to begin, to end and to abandon a search."""
        self._running_search: _ThreadSearch | None = None
        self._indexing_lock = asyncio.Lock()
        self._checked = False
        self._read_upto_pos: int | None = None
        """The pos up to which the log was read. Entries that are not in the file yet are in `_pending`."""
        self._pending: list[Entry] = []
        self._pending_relevant: list[tuple[Entry, EntryWords | None]] = []
        """Pending entries that a search could find, with their words; entries that only change hits, without."""
        self._pending_after_pos = 0
        self._pending_chars = 0
        self._has_more = True
        """The log may have more than was read last."""
        self._session_agents: dict[str, str] = {}
        """Session -> its agent."""
        self._touched_chunks: list[int] = []
        """Chunks that changed in the file and perhaps not yet in the cache."""
        self._seen_rewrites = 0
        self._writer = schema.open_for_writing(path)
        self._reader = schema.open_for_reading(path)
        self._index_writer = IndexWriter(self._writer)

    # -- indexing

    async def catch_up(self, store: Store, limit: int = 500) -> int:
        """Index up to `limit` entries that were committed since; return their number."""
        async with self._indexing_lock:
            done = await self._read_new_entries(store, limit)
            return done + await self._index_pending(store)

    async def catch_up_to_end(self, store: Store) -> None:
        """Index up to the present end of the log. What is committed meanwhile is left for the next call, because it
        may never end."""
        while await self.catch_up(store) and self._has_more:
            pass

    async def wipe_erased(self, store: Store) -> None:
        """Index until the files contain nothing that was erased from the log."""
        await self.catch_up_to_end(store)
        await self._run_write(self._wipe_files)

    async def rebuild(self) -> None:
        """Drop the index. The next calls derive it again."""
        async with self._indexing_lock:
            await self._run_write(self._recreate_file)

    async def fill_embeddings(self, limit: int = 16) -> int:
        """Compute the stronger vectors of up to `limit` chunks in the background; return how many were stored."""
        if not self._embeddings.deep:
            return 0
        waiting = await self._run_write(lambda: self._embeddings.list_pending(self._writer, limit))
        if waiting:
            encode = self._embeddings.encode_chunks
            vectors = encode(waiting) if self.inline else await asyncio.to_thread(encode, waiting)
            if vectors is None:
                return 0
            await self._run_write(
                lambda: self._record_touched_chunks(self._embeddings.store_vectors(self._writer, waiting, vectors))
            )
        return len(waiting)

    @property
    def embedding_level(self) -> str:
        """The embeddings in use: `model` or `table`."""
        return self._embeddings.level

    @property
    def model_problem(self) -> str:
        """Why the stronger model is not used although it is installed; empty if there is no problem."""
        return self._embeddings.model_problem

    async def count_pending_embeddings(self) -> tuple[int, int]:
        """Count all chunks, and those that wait for their stronger vectors."""
        return await self._run_in_thread(
            lambda: self._run_locked_read(lambda: self._embeddings.count_pending(self._reader))
        )

    async def _read_new_entries(self, store: Store, limit: int) -> int:
        """Read the entries that were committed since, until this many entries are read and pending. If they are long,
        the first of them are indexed at once; return their number."""
        if not self._checked:
            await self._check_same_log(store)
        if self._read_upto_pos is None:
            self._read_upto_pos = await self._run_write(lambda: self._index_writer.position)
            await self._run_write(self._wipe_files)
            while await self._run_write(
                lambda: self._record_touched_chunks(self._embeddings.repair_missing(self._writer))
            ):
                pass
        done, self._has_more = 0, True
        while self._is_placed() and (left := limit - done - len(self._pending)) > 0:
            page = await store.read_feed(after=self._read_upto_pos, limit=left)
            self._has_more = page.has_more
            if not page:
                break
            if not self._pending:
                self._pending_after_pos = self._read_upto_pos
            self._pending += page
            self._pending_relevant += _select_relevant_entries(page)
            self._pending_chars += sum(len(getattr(entry.body, "text", "")) for entry in page)
            self._read_upto_pos = page[-1].pos
            if not page.has_more:
                break
            if self._pending_chars >= BATCH_CHARS:
                done += await self._index_pending(store)
        return done

    def _is_placed(self) -> bool:
        """Whether it is known where to continue in the log. It is not after the file was replaced."""
        return self._read_upto_pos is not None

    def _is_batch_full(self) -> bool:
        return len(self._pending) >= BATCH_ENTRIES or self._pending_chars >= BATCH_CHARS

    async def _index_pending(self, store: Store) -> int:
        """Index the pending entries and return their number."""
        entries, after = self._pending, self._pending_after_pos
        if entries:
            agents = await self._resolve_agents(store, entries)
            taken = await self._run_write(lambda: self._index_entries(entries, agents, after))
            self._pending, self._pending_relevant, self._pending_chars = [], [], 0
            if not taken:
                self._read_upto_pos, self._has_more = None, True  # the file was replaced: continue at its end
        return len(entries)

    def _index_entries(self, entries: Sequence[Entry], agents: dict[str, str], after: int) -> bool:
        """Index entries that follow `after` in the log. Returns False if the file does not reach that pos."""
        with self._writer:
            position = self._index_writer.position
            if position < after:
                return False
            taken = self._index_writer.index_entries(
                [entry for entry in entries if entry.pos > position], agents, position
            )
            self._embeddings.embed_chunks(self._writer, taken.new_chunks.values())
            self._record_rewrite(taken.touched_chunks)
            if taken.erased:
                schema.write_meta(
                    self._writer, "unwiped", "1"
                )  # a process that starts after a crash sees that this is still to do
        self._index_writer.mark_committed(max(position, entries[-1].pos))
        self._touched_chunks += taken.touched_chunks  # not before other connections can read the new state
        if taken.erased:
            self._wipe_files()
        return True

    def _wipe_files(self) -> None:
        """Remove the last bytes of erased entries from the files, if an earlier process left that to be done."""
        if schema.read_meta(self._writer, "unwiped", "0") == "1":
            schema.wipe_removed_bytes(self._writer)
            schema.write_meta(self._writer, "unwiped", "0")

    def _record_touched_chunks(self, touched: Collection[int]) -> int:
        """Remember that these chunks changed; return their number."""
        self._record_rewrite(touched)
        self._touched_chunks += touched
        return len(touched)

    def _record_rewrite(self, touched: Collection[int]) -> None:
        """Record that there was a change, so that other processes refresh their caches."""
        if touched:
            self._seen_rewrites += 1
            schema.write_meta(self._writer, "rewrites", str(int(schema.read_meta(self._writer, "rewrites", "0")) + 1))

    async def _resolve_agents(self, store: Store, entries: Iterable[Entry]) -> dict[str, str]:
        sessions = {entry.session for entry in entries}
        agents = {session: self._session_agents[session] for session in sessions if session in self._session_agents}
        for session in sessions - agents.keys():
            agents[session] = (await store.get_session(session)).agent
        if len(self._session_agents) > MAX_KNOWN_SESSIONS:
            self._session_agents.clear()
        self._session_agents.update(agents)
        return agents

    async def _check_same_log(self, store: Store) -> None:
        """Recreate the file if it was derived from a different log, for example before a restore. A different log has
        other entries at the same pos.
        """
        landmark = await self._run_write(lambda: self._index_writer.last_entry)
        if landmark is not None:
            session, seq, digest = landmark
            try:
                same = (await store.get_entry(session, seq)).digest.hex() == digest
            except NotFound:
                same = False
            if not same:
                await self._run_write(self._recreate_file)
        self._checked = True

    # -- searching

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
        dates: tuple[DateRange, ...] = (),
        personal: bool = False,
        changes: bool = False,
        for_turn: bool = False,
    ) -> list[IndexHit]:
        """Return the best items that everyone in `audience` may see, best first. None: the caller may see everything.

        `session` restricts the search to one session. `here` is the session of the question, and `seen` are its entries
        that the context shows anyway, so they are left out. While many entries are not indexed yet, the search scans at
        least the newest entries of `here`. `limit` and `letters` bound the result. Items from one of the `dates` rank
        higher. `personal`, `changes` and `for_turn`: as in `IndexQuery`.
        """
        if (audience is not None and not audience) or not text.strip():
            return []
        people = await store.get_people()
        present = None if audience is None else people.expand_audience(audience)
        asking = IndexQuery(
            text=text,
            agent=agent,
            present=present,
            named_authors=people.named_authors,
            session=session,
            current_session=here,
            seen_seqs=seen,
            dates=dates,
            personal=personal,
            changes=changes,
            for_turn=for_turn,
            limit=limit,
            max_chars=letters,
        )
        tail = await self._list_unindexed_entries(store, asking)
        hits = await self._run_query(asking)
        if tail:
            agents = await self._resolve_agents(store, tail)
            known = {(hit.session, hit.seq) for hit in hits}
            extra = scan_entries(tail, text, agent=agent, present=present, agents=agents, session=session)
            new = [hit for hit in extra if (hit.session, hit.seq) not in known and not asking.has_seen(hit)]
            hits = sorted([*hits, *new], key=_get_sort_key)[:limit]
        return hits

    async def warm_cache(self) -> None:
        """Load large scopes before a search needs them. Other searches can run in between."""
        scopes = await self._run_in_thread(
            lambda: self._run_locked_read(lambda: candidates.find_scopes(self._reader, agent=None, present=None))
        )
        for scope in sorted(scopes, key=lambda scope: scope.chunks):
            for upto in range(MAX_INLINE_CHUNKS, scope.chunks, MAX_INLINE_CHUNKS):
                part = IndexScope(scope.id, upto, scope.items)
                await self._run_in_thread(
                    lambda part=part: self._run_locked_read(
                        lambda: self._read_snapshot(lambda: self._embeddings.warm_scope(self._reader, part))
                    )  # type: ignore[misc]
                )

    async def find_entries_with_words(self, store: Store, text: str, *, limit: int) -> list[tuple[str, int]]:
        """Return where all words of `text` occur, in any form, newest first. The caller may see everything."""
        await self.catch_up_to_end(store)
        terms = candidates.build_all_word_queries(text)
        if not terms:
            return []
        return await self._run_in_thread(
            lambda: self._run_locked_read(lambda: candidates.find_items_with_words(self._reader, terms, limit))
        )

    async def _list_unindexed_entries(self, store: Store, asking: IndexQuery) -> list[Entry]:
        """Return unindexed entries that matter for this search: there is no disk space for them, or there are too many
        at once.
        """
        async with self._indexing_lock:
            try:
                waiting = await self._read_new_entries(store, MAX_UNINDEXED_ENTRIES) + len(self._pending)
                if self._is_batch_full() or any(asking.is_affected_by(*one) for one in self._pending_relevant):
                    await self._index_pending(store)
            except (apsw.FullError, apsw.ReadOnlyError, apsw.BusyError):
                return list(self._pending)
        if waiting < MAX_UNINDEXED_ENTRIES or not asking.current_session or self._read_upto_pos is None:
            return []
        last = (await store.get_session(asking.current_session)).last_seq
        return [
            entry
            for entry in await store.list_entries(asking.current_session, after=last - MAX_UNINDEXED_ENTRIES)
            if entry.pos > self._read_upto_pos
        ]

    async def _run_query(self, asking: IndexQuery) -> list[IndexHit]:
        if self._embeddings.ready and not self._embeddings.deep and self._read_lock.acquire(blocking=False):
            try:  # on this thread, if the search is short
                return self._read_snapshot(lambda: self._find_hits(asking, most=MAX_INLINE_CHUNKS))
            except (_TooManyChunks, *schema.DAMAGE_ERRORS):
                pass
            finally:
                self._read_lock.release()
        search = _ThreadSearch()
        try:
            return await self._run_in_thread(lambda: self._run_locked_read(lambda: self._run_search(search, asking)))
        except asyncio.CancelledError:
            self._abandon_search(search)
            raise

    def _run_search(self, search: _ThreadSearch, asking: IndexQuery) -> list[IndexHit]:
        """Search on this thread, unless the turn that asked has given up."""
        with self._search_lock:
            if search.is_abandoned:
                return []
            self._running_search = search
        try:
            return self._read_snapshot(lambda: self._find_hits(asking))
        except apsw.InterruptError:
            return []
        finally:
            with self._search_lock:
                self._running_search = None

    def _abandon_search(self, search: _ThreadSearch) -> None:
        """End a search that nobody waits for, because the next searches wait for it."""
        with self._search_lock:
            search.is_abandoned = True
            if self._running_search is search:
                self._reader.interrupt()

    def _read_snapshot(self, read: Callable[[], T]) -> T:
        """Run several reads on one snapshot of the file."""
        self._reader.execute("begin")
        try:
            return read()
        finally:
            if self._reader.in_transaction:
                self._reader.execute("rollback")

    def _find_hits(self, asking: IndexQuery, *, most: int | None = None) -> list[IndexHit]:
        db = self._reader
        scopes = candidates.find_scopes(db, agent=asking.agent, present=asking.present)
        if most is not None and sum(scope.chunks for scope in scopes) > most:
            raise _TooManyChunks
        scope_ids = {scope.id for scope in scopes}
        seen = (
            candidates.find_seen_chunks(db, asking.current_session, asking.seen_seqs)
            if asking.current_session and asking.seen_seqs
            else {}
        )
        skip = [first for scope, firsts in seen.items() if scope in scope_ids for first in firsts]
        if sum(scope.items for scope in scopes) <= len(skip):
            return []
        ranked = self._rank_candidates(asking, scopes, skip)
        found: list[tuple[IndexRow, RankedItem]] = []
        texts: dict[int, str] = {}
        replies: set[str] = set()
        while len(found) < asking.limit and (some := list(islice(ranked, asking.limit))):
            rows = candidates.load_rows_by_first_chunk(db, (one.first_chunk for one in some), texts)
            there = ((rows.get(one.first_chunk), one) for one in some)
            new = [(row, one) for row, one in there if row is not None and row.is_live]
            found += _drop_repeated_replies(new, texts, replies) if asking.for_turn else new
        finder = UpdateFinder(db, scopes, asking.present)
        if asking.changes:
            found = finder.put_changes_first(found, asking.dates, hidden=skip, texts=texts)
        found, outdated = order_by_updates(finder, found[: asking.limit], hidden=skip, texts=texts)
        shown = [(row, one, _select_passage(row, one)) for row, one in _limit_by_chars(found, asking.max_chars)]
        more = [id for *_, passage in shown for id in passage if id not in texts]
        if more:
            texts |= candidates.load_texts(db, more)
        return [
            _build_hit(row, one.score, passage, texts, outdated.get(row.first, STILL_VALID))
            for row, one, passage in shown
        ]

    def _rank_candidates(
        self, asking: IndexQuery, scopes: Sequence[IndexScope], skip: Sequence[int]
    ) -> Iterator[RankedItem]:
        db, meaning, text = self._reader, self._embeddings, asking.text
        ids = [scope.id for scope in scopes]
        spoken, authors = candidates.find_named_authors(db, text, ids, asking.named_authors)
        self._refresh_cache()
        only = None if asking.session is None else candidates.find_session_chunks(db, asking.session)
        return meaning.rank_candidates(
            db,
            scopes,
            text,
            spoken=spoken,
            authors=authors,
            knobs=self.ranking_weights,
            only=only,
            skip=skip,
            dates=asking.dates,
            personal=asking.personal,
            for_turn=asking.for_turn,
        )

    def _refresh_cache(self) -> None:
        """Update the cache from the file."""
        rewrites = int(schema.read_meta(self._reader, "rewrites", "0"))
        touched, self._touched_chunks = self._touched_chunks, []
        if rewrites > self._seen_rewrites:  # another process wrote, and its changes are unknown here
            self._seen_rewrites = rewrites
            self._embeddings.invalidate_cache()
        elif touched:
            self._embeddings.reload_chunks(self._reader, set(touched))

    # -- the file

    async def close(self) -> None:
        def work() -> None:
            with self._write_lock, self._read_lock:
                self._reader.close()
                self._writer.close()

        await self._run_in_thread(work)

    async def _run_write(self, work: Callable[[], T]) -> T:
        """Run `work` with the writing connection; if the file is damaged, with a new file."""

        def locked() -> T:
            with self._write_lock:
                try:
                    return work()
                except schema.DAMAGE_ERRORS:
                    self._recreate_file()
                    return work()

        return await self._run_in_thread(locked)

    def _run_locked_read(self, read: Callable[[], T]) -> T:
        try:
            with self._read_lock:
                return read()
        except schema.DAMAGE_ERRORS:
            with self._write_lock:
                self._recreate_file()
            with self._read_lock:
                return read()

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return work() if self.inline else await asyncio.to_thread(work)

    def _recreate_file(self) -> None:
        """Called while `_writing` is held."""
        with self._read_lock:
            for db in (self._reader, self._writer):
                db.close(True)
            schema.remove_index_file(self.path)
            self._embeddings.invalidate_cache()
            self._touched_chunks, self._seen_rewrites = [], 0
            self._writer = schema.open_for_writing(self.path)
            self._reader = schema.open_for_reading(self.path)
            self._index_writer = IndexWriter(self._writer)
            self._read_upto_pos, self._pending, self._pending_relevant = None, [], []


def _select_relevant_entries(entries: Iterable[Entry]) -> Iterator[tuple[Entry, EntryWords | None]]:
    """Return the entries that a search could find, with their words, and the entries that change hits, without."""
    for entry in entries:
        found = extract_words(entry)
        words = found[0] if found else None  # all words of an entry have the same stamp
        body = entry.body
        changes = isinstance(body, Erased | Noted) or (
            isinstance(body, Changed) and isinstance(body.change, OperationsUndone)
        )
        if changes or (words is not None and words.stamp.audience):
            yield entry, words


class _TooManyChunks(Exception):
    """There are more entries than can be scanned while other callers wait."""


def _drop_repeated_replies(
    found: Sequence[tuple[IndexRow, RankedItem]], texts: Mapping[int, str], replies: set[str]
) -> Iterator[tuple[IndexRow, RankedItem]]:
    """Yield the hits without replies that say the same as an earlier one. `replies` holds what was said."""
    for row, one in found:
        if row.kind == "said" and row.chunks == 1:
            if texts[row.first] in replies:
                continue
            replies.add(texts[row.first])
        yield row, one


def _limit_by_chars(found: list[tuple[IndexRow, RankedItem]], letters: int | None) -> list[tuple[IndexRow, RankedItem]]:
    """Return the best hits whose characters together reach the limit, including the one that exceeds it."""
    if letters is not None:
        for count, (row, _) in enumerate(found, 1):
            letters -= min(row.size, MAX_PASSAGE_CHARS) + ITEM_HEADER_CHARS
            if letters < 0:
                return found[:count]
    return found


def _select_passage(row: IndexRow, ranked: RankedItem) -> range:
    """Return the chunks of an item to show: all of them, or of a long item the best one and those after it."""
    end = row.first + row.chunks
    if row.size <= MAX_PASSAGE_CHARS:
        return range(row.first, end)
    return range(ranked.best_chunk, min(end, ranked.best_chunk + 2))


def _build_hit(row: IndexRow, score: float, passage: range, texts: dict[int, str], outdated: OutdatedMark) -> IndexHit:
    text = "".join(texts[id] for id in passage)
    if passage.start > row.first:
        text = f"… {text}"
    if passage.stop < row.first + row.chunks:
        text = f"{text} …"
    return IndexHit(
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
        until=outdated.until,
        replaced_by=outdated.by,
    )


def _get_sort_key(hit: IndexHit) -> tuple[float, int]:
    return -hit.score, -hit.pos
