"""Put conversations into a real log, for searches with the built-in memory as a turn makes them."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from pathlib import Path

from bench.recall.data import Conversation, Said
from everhold.core.entries import ChatLocation, EntryDraft, Heard, Said as SaidBody, Stamp
from everhold.ports.store import Change, SessionOpening, Step, Store
from everhold.stores.sqlite import SqliteStore


class SeededSource:
    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def bytes(self, n: int, /) -> bytes:
        return self._random.randbytes(n)

    def random(self) -> float:
        return self._random.random()


def open_store(home: Path) -> Store:
    return SqliteStore.open(home / "log.db", chance=SeededSource(), synchronous="OFF")


async def tell(store: Store, talk: Conversation, *, opened: Collection[str] = ()) -> dict[tuple[str, int], str]:
    """Commit a conversation with one session per part; return the message id of each (session, seq).

    `opened`: sessions that exist already.
    """
    places: dict[tuple[str, int], str] = {}
    parts: dict[str, list[Said]] = {}
    for message in talk.messages:
        parts.setdefault(message.part, []).append(message)
    for part, messages in parts.items():
        session = f"{talk.name}.{part}"
        opens = None if session in opened else SessionOpening(agent="main", address=f"agent:main:bench:group:{session}")
        drafts = tuple(_draft(talk, message) for message in messages)
        done = await store.commit(
            Change(step=Step.ACCEPT, session=session, at=messages[0].at, entries=drafts, opens=opens)
        )
        places.update(((session, seq), message.id) for seq, message in zip(done.seqs, messages, strict=True))
    return places


def audience(talk: Conversation) -> tuple[str, ...]:
    return (f"chat:agent:main:bench:group:{talk.name}",)


def _draft(talk: Conversation, message: Said) -> EntryDraft:
    place = ChatLocation(platform="bench", account="main", chat=talk.name)
    stamp = Stamp(
        person=message.speaker.lower(), audience=audience(talk), address=f"agent:main:bench:group:{talk.name}"
    )
    if message.agent:
        return EntryDraft(body=SaidBody(text=message.text, to=place, stamp=stamp), author="agent:main")
    body = Heard(origin=place, text=message.text, sender=message.speaker, stamp=stamp)
    return EntryDraft(body=body, author=f"person:{message.speaker.lower()}")


def tokens(texts: Sequence[str]) -> int:
    """Estimate the tokens as a budget does: four characters per token and twelve tokens per item."""
    return sum(-(-len(text) // 4) + 12 for text in texts)
