"""Imports memory files as facts: one note for each entry, in a session of their own. Repeated imports add nothing.
An import with another owner moves the facts to that person.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from everhold.core import memory_files
from everhold.core.access import compute_audience
from everhold.core.address import derive_address
from everhold.core.entries import Entry, EntryDraft, Noted, Stamp, strip_surrogates
from everhold.core.facts import MAX_FACT_CHARS, build_fact_id
from everhold.core.ids import make_session_id
from everhold.errors import NotFound
from everhold.hermes.importer.places import IMPORTED_PLATFORM
from everhold.infra.safe_folder import open_markdown
from everhold.ports.store import Change, SessionOpening, Step, Store

NOTES_CHAT: Final = "memory-files"


class FactImportResult:
    """How many entries were noted, how many were known, and how many moved to another owner."""

    def __init__(self) -> None:
        self.added = 0
        self.known = 0
        self.moved = 0


async def import_facts(
    store: Store,
    *,
    agent: str,
    target: str,
    texts: Sequence[str],
    owner: str,
    at: float,
    source: str,
    moves: bool = False,
) -> FactImportResult:
    """Note the entries of a memory file. `target` is what the facts are about. Only `owner`, an identity, sees
    them. With `moves`, entries that an earlier import gave to another person are taken back there.
    """
    done = FactImportResult()
    place = derive_address(agent=agent, platform=IMPORTED_PLATFORM, account="", kind="dm", chat=f"{NOTES_CHAT}/{owner}")
    address = str(place)
    session = await store.resolve_address(address)
    stamp = Stamp(person=owner, audience=compute_audience(place, owner), address=address)
    people = await store.get_people()
    for text in texts:
        text = strip_surrogates(text.strip())[0]
        if not text:
            continue
        key, earlier = await _find_latest_note(store, build_note_key(agent, target, text))
        if earlier is not None:
            note = earlier.body
            # An erased entry stays erased.
            if not moves or not isinstance(note, Noted) or people.is_same_person(note.stamp.person, owner):
                done.known += 1
                continue
            await _take_back_note(store, earlier, note, key=f"{key}:moved", at=at)
            done.moved += 1
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
        done.added += earlier is None
    return done


async def _find_latest_note(store: Store, key: str) -> tuple[str, Entry | None]:
    """Return the key for the next note of an entry of a memory file, and the latest one; None if there is none.

    An entry has one note for each owner that imports gave it to, in this order.
    """
    latest, number = None, 1
    next_key = key
    while (found := await store.find_entry_place(next_key)) is not None:
        latest, number = found, number + 1
        next_key = f"{key}/{number}"
    return next_key, None if latest is None else await store.get_entry(latest[0], latest[1])


async def _take_back_note(store: Store, entry: Entry, note: Noted, *, key: str, at: float) -> None:
    """Take back a note in the session of its owner. The key makes it happen once, also after a crash."""
    if await store.find_entry_place(key) is not None:
        return
    removal = structs.replace(note, action="remove", supersedes=entry.seq)
    draft = EntryDraft(body=removal, author="system", dedup=key)
    await store.commit(Change(step=Step.NOTE, session=entry.session, at=at, entries=(draft,)))


def build_note_key(agent: str, target: str, text: str) -> str:
    """Return the key that identifies an entry of a memory file when it is imported again."""
    digest = hashlib.blake2b(f"{agent}\0{target}\0{text}".encode(), digest_size=12).hexdigest()
    return f"note:{digest}"


async def count_unknown(store: Store, *, agent: str, target: str, texts: Sequence[str]) -> int:
    """Count the entries of a memory file that were not imported before."""
    cleaned = (strip_surrogates(text.strip())[0] for text in texts)
    keys = [build_note_key(agent, target, text) for text in cleaned if text]
    return sum([await store.find_entry_place(key) is None for key in keys])


async def _make_opening(store: Store, session: str, agent: str, address: str) -> SessionOpening | None:
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
