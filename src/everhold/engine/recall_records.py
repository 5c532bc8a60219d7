"""What turns were shown from memory, as far as it is on record -> what of it repeats something that is erased.

A record stands in its turn's session and repeats what was said in others. It is found here by reading the log on from
where the words were said: nothing that was recorded earlier can show them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec
from msgspec import Struct

from everhold.core.entries import Thought
from everhold.core.recall import RecallRecord
from everhold.ports.store import Store


class ThoughtBlobs(Struct, frozen=True, kw_only=True):
    """What a thought refers to, to be kept with it; `records`: what it was shown from memory."""

    blobs: tuple[bytes, ...] = ()
    records: tuple[bytes, ...] = ()


class ThoughtRecall(Struct, frozen=True, kw_only=True):
    """What one thought was shown."""

    pos: int
    blobs: tuple[str, ...]
    places: frozenset[tuple[str, int]]
    """Where the words stand, as (session, entry). Entry 0: somewhere there; no session either: anywhere."""


class RecallRecords:
    """Reads on where it stopped, from the first words on that it was asked about."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.read_upto_pos: int | None = None
        """Behind this position nothing has been looked at."""
        self._read_from_pos = 0
        self._thoughts: list[ThoughtRecall] = []

    async def find_repeating_blobs(self, session: str, seqs: Collection[int]) -> tuple[str, ...]:
        """The blobs that show any of these entries, or may: not every memory knows where it has something from."""
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
            await asyncio.sleep(0)  # others get their turn
        return upto

    async def _add_thought(self, pos: int, thought: Thought) -> None:
        data = await self.store.get_blob(thought.why)
        if data is None:
            return  # gone with something else; both go together
        why = msgspec.json.decode(data, type=RecallRecord)
        places = frozenset((one.session, one.seq) for one in (*why.facts, *why.shown, *why.left_out))
        blobs = tuple(blob for blob in (thought.why, thought.recall) if blob)
        self._thoughts.append(ThoughtRecall(pos=pos, blobs=blobs, places=places))
