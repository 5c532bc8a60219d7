"""Memory files -> facts: one note for each entry, in a session of its own, once however often it is imported."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from everhold.core import papers
from everhold.core.address import derive
from everhold.core.entries import Draft, Noted, Stamp, clean
from everhold.core.facts import LONGEST, fact_id
from everhold.core.ids import session_id
from everhold.errors import NotFound
from everhold.ports.store import Change, Opening, Step
from everhold.stores.sqlite import SqliteStore

CHAT: Final = "memory-files"
MOST_BYTES: Final = 4 << 20


class Remembered:
    """How many entries were noted, and how many were known."""

    def __init__(self) -> None:
        self.new = 0
        self.known = 0


async def remember(
    store: SqliteStore,
    *,
    agent: str,
    target: str,
    texts: Sequence[str],
    audience: Sequence[str],
    at: float,
    source: str,
) -> Remembered:
    """Note what a memory file says. `target` is what the facts are about, `audience` who may hear of them."""
    done = Remembered()
    address = str(derive(agent=agent, platform="terminal", account="", kind="dm", chat=CHAT))
    session = await store.resolve_address(address)
    person = audience[0].removeprefix("person:") if audience else ""
    stamp = Stamp(person=person, audience=tuple(audience), address=address)
    for text in texts:
        text = clean(text.strip())[0]
        seal = hashlib.blake2b(f"{agent}\0{target}\0{text}".encode(), digest_size=12).hexdigest()
        key = f"note:{seal}"
        if not text or await store.find_entry_place(key) is not None:
            done.known += bool(text)
            continue
        opens = None
        if session is None:
            session = session_id(at, hashlib.blake2b(address.encode(), digest_size=10).digest())
            opens = await _opening(store, session, agent, address)
        note = Noted(
            text=text,
            fact=fact_id(key) if len(text) <= LONGEST else "",
            tags=(target, f"imported:{source}"),
            stamp=stamp,
        )
        draft = Draft(body=note, author="system", dedup=key)
        await store.commit(Change(step=Step.NOTE, session=session, at=at, opens=opens, entries=(draft,)))
        done.new += 1
    return done


async def _opening(store: SqliteStore, session: str, agent: str, address: str) -> Opening | None:
    try:
        await store.get_session(session)
    except NotFound:
        return Opening(agent=agent, address=address)
    return None


def from_markdown(path: Path) -> list[tuple[str, str]]:
    """(file, entry) of a Markdown file, or of a folder with all that is in it."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*.md") if file.is_file())
    found: list[tuple[str, str]] = []
    for file in files:
        text = file.read_bytes()[:MOST_BYTES].decode("utf-8-sig", "replace")
        name = file.name if path.is_file() else str(file.relative_to(path))
        found += [(name, entry) for entry in papers.entries(text)]
    return found
