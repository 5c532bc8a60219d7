"""Imports memory files as facts: one note for each entry, in a session of their own. Repeated imports add nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from everhold.core import memory_files
from everhold.core.address import derive_address
from everhold.core.entries import EntryDraft, Noted, Stamp, strip_surrogates
from everhold.core.facts import MAX_FACT_CHARS, build_fact_id
from everhold.core.ids import make_session_id
from everhold.errors import NotFound
from everhold.ports.store import Change, SessionOpening, Step
from everhold.stores.sqlite import SqliteStore

NOTES_CHAT: Final = "memory-files"
MAX_FILE_BYTES: Final = 4 << 20


class FactImportResult:
    """How many entries were noted, and how many were known."""

    def __init__(self) -> None:
        self.added = 0
        self.known = 0


async def import_facts(
    store: SqliteStore,
    *,
    agent: str,
    target: str,
    texts: Sequence[str],
    audience: Sequence[str],
    at: float,
    source: str,
) -> FactImportResult:
    """Note the entries of a memory file. `target` is what the facts are about, `audience` is who may see them."""
    done = FactImportResult()
    address = str(derive_address(agent=agent, platform="terminal", account="", kind="dm", chat=NOTES_CHAT))
    session = await store.resolve_address(address)
    person = audience[0].removeprefix("person:") if audience else ""
    stamp = Stamp(person=person, audience=tuple(audience), address=address)
    for text in texts:
        text = strip_surrogates(text.strip())[0]
        seal = hashlib.blake2b(f"{agent}\0{target}\0{text}".encode(), digest_size=12).hexdigest()
        key = f"note:{seal}"
        if not text or await store.find_entry_place(key) is not None:
            done.known += bool(text)
            continue
        opens = None
        if session is None:
            session = make_session_id(at, hashlib.blake2b(address.encode(), digest_size=10).digest())
            opens = await _make_opening(store, session, agent, address)
        note = Noted(
            text=text,
            fact=build_fact_id(key) if len(text) <= MAX_FACT_CHARS else "",
            tags=(target, f"imported:{source}"),
            stamp=stamp,
        )
        draft = EntryDraft(body=note, author="system", dedup=key)
        await store.commit(Change(step=Step.NOTE, session=session, at=at, opens=opens, entries=(draft,)))
        done.added += 1
    return done


async def _make_opening(store: SqliteStore, session: str, agent: str, address: str) -> SessionOpening | None:
    try:
        await store.get_session(session)
    except NotFound:
        return SessionOpening(agent=agent, address=address)
    return None


def read_markdown_entries(path: Path) -> list[tuple[str, str]]:
    """Return (file, entry) for a Markdown file, or for all Markdown files of a directory."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*.md") if file.is_file())
    found: list[tuple[str, str]] = []
    for file in files:
        text = file.read_bytes()[:MAX_FILE_BYTES].decode("utf-8-sig", "replace")
        name = file.name if path.is_file() else str(file.relative_to(path))
        found += [(name, entry) for entry in memory_files.parse_memory_file(text)]
    return found
