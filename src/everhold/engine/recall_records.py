"""Find the recall records that repeat erased entries.

A recall record belongs to a turn of one session and repeats entries of others. It is found by reading the log from the
erased entries on, because earlier records cannot contain them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from msgspec import Struct

from everhold.core.entries import Entry, Heard, Noted, Said, Thought
from everhold.core.recall import list_traces
from everhold.core.recall_blobs import list_text_places, read_record, restore_text
from everhold.ports.store import Store


async def load_recalled_text(store: Store, digest: str) -> tuple[str | None, bytes]:
    """Return the text that a turn was shown from memory, and how it is stored. None: it was erased, or an entry that it
    shows was.
    """
    data = await store.get_blob(digest) if digest else b""
    if data is None:
        return None, b""
    places = list_text_places(data)
    cited = await store.get_cited_entries(places) if places else {}
    return restore_text(data, collect_texts(it.entry for it in cited.values())), data


def collect_texts(entries: Iterable[Entry]) -> dict[tuple[str, int], str]:
    """Return the texts of entries by their places."""
    return {(entry.session, entry.seq): text for entry in entries if (text := get_entry_text(entry))}


def get_entry_text(entry: Entry) -> str:
    """Return the words of an entry that recall can show."""
    return entry.body.text if isinstance(entry.body, Heard | Said | Noted) else ""


class ThoughtBlobs(Struct, frozen=True, kw_only=True):
    """The blobs to store with a thought; `records` are its recall records."""

    blobs: tuple[bytes, ...] = ()
    records: tuple[bytes, ...] = ()


class ThoughtRecall(Struct, frozen=True, kw_only=True):
    """What one thought was shown."""

    pos: int
    blobs: tuple[str, ...]
    places: frozenset[tuple[str, int]]
    """The places of the shown entries, as (session, seq). Seq 0: somewhere in the session; no session: anywhere."""


class RecallRecords:
    """Continues where it stopped, from the earliest entries it was asked about."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.read_upto_pos: int | None = None
        """Entries after this pos are not read yet."""
        self._read_from_pos = 0
        self._thoughts: list[ThoughtRecall] = []

    async def find_repeating_blobs(self, session: str, seqs: Collection[int]) -> tuple[str, ...]:
        """Return the blobs that show any of these entries, or may show them, because not every memory knows the source
        of its items.
        """
        if not seqs:
            return ()
        said = (await self.store.get_entry(session, min(seqs))).pos
        if self.read_upto_pos is None or said < self._read_from_pos:
            self.read_upto_pos, self._read_from_pos, self._thoughts = said, said, []
        self.read_upto_pos = await self._read_thoughts(self.read_upto_pos)
        telling = {("", 0), (session, 0), *((session, seq) for seq in seqs)}
        return tuple(
            dict.fromkeys(
                blob
                for record in self._thoughts
                if record.pos > said and not telling.isdisjoint(record.places)
                for blob in record.blobs
            )
        )

    async def _read_thoughts(self, upto: int) -> int:
        while page := await self.store.read_feed(after=upto):
            for entry in page:
                if isinstance(entry.body, Thought) and entry.body.why:
                    await self._add_thought(entry.pos, entry.body)
            upto = page[-1].pos
            await asyncio.sleep(0)  # let other tasks run
        return upto

    async def _add_thought(self, pos: int, thought: Thought) -> None:
        data = await self.store.get_blob(thought.why)
        if data is None:
            return  # erased with another entry; both are deleted together
        why = read_record(data)
        places = frozenset((one.session, one.seq) for one in list_traces(why))
        blobs = tuple(blob for blob in (thought.why, thought.recall) if blob)
        self._thoughts.append(ThoughtRecall(pos=pos, blobs=blobs, places=places))
