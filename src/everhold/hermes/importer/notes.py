"""Imports memory files as facts: one note for each entry, in a session of their own. Repeated imports add nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from everhold.core import memory_files
from everhold.core.access import compute_audience
from everhold.core.address import derive_address
from everhold.core.entries import EntryDraft, Noted, Stamp, strip_surrogates
from everhold.core.facts import MAX_FACT_CHARS, build_fact_id
from everhold.core.ids import make_session_id
from everhold.errors import NotFound
from everhold.hermes.importer.places import IMPORTED_PLATFORM
from everhold.infra.safe_folder import open_markdown
from everhold.ports.store import Change, SessionOpening, Step
from everhold.stores.sqlite import SqliteStore

NOTES_CHAT: Final = "memory-files"


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
    owner: str,
    at: float,
    source: str,
) -> FactImportResult:
    """Note the entries of a memory file. `target` is what the facts are about. Only `owner`, an identity, sees
    them.
    """
    done = FactImportResult()
    place = derive_address(agent=agent, platform=IMPORTED_PLATFORM, account="", kind="dm", chat=f"{NOTES_CHAT}/{owner}")
    address = str(place)
    session = await store.resolve_address(address)
    stamp = Stamp(person=owner, audience=compute_audience(place, owner), address=address)
    for text in texts:
        text = strip_surrogates(text.strip())[0]
        key = build_note_key(agent, target, text)
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


def build_note_key(agent: str, target: str, text: str) -> str:
    """Return the key that identifies an entry of a memory file when it is imported again."""
    digest = hashlib.blake2b(f"{agent}\0{target}\0{text}".encode(), digest_size=12).hexdigest()
    return f"note:{digest}"


async def count_unknown(store: SqliteStore, *, agent: str, target: str, texts: Sequence[str]) -> int:
    """Count the entries of a memory file that were not imported before."""
    cleaned = (strip_surrogates(text.strip())[0] for text in texts)
    keys = [build_note_key(agent, target, text) for text in cleaned if text]
    return sum([await store.find_entry_place(key) is None for key in keys])


async def _make_opening(store: SqliteStore, session: str, agent: str, address: str) -> SessionOpening | None:
    try:
        await store.get_session(session)
    except NotFound:
        return SessionOpening(agent=agent, address=address)
    return None


def read_markdown_entries(path: Path) -> tuple[list[tuple[str, str]], str, dict[str, str]]:
    """Return (file, entry) for a Markdown file or for all Markdown files of a directory, the persona among them, and
    the files that were refused.
    """
    folder, names = open_markdown(path)
    found: list[tuple[str, str]] = []
    persona = ""
    for name in names:
        text = folder.read_text(name)
        if text is None:
            continue
        if Path(name).name == memory_files.PERSONA_FILE:
            persona = persona or text.strip()
        else:
            found += [(name, entry) for entry in memory_files.parse_memory_file(text)]
    return found, persona, folder.refused
