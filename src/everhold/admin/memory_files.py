"""Memory as files: a person's export, and the import and export of memory files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from everhold.admin.memory import MemoryAdmin
from everhold.core import memory_files
from everhold.core.entries import EntryDraft, EntryKind, Heard, Noted, Stamp
from everhold.core.facts import MAX_FACT_CHARS, Fact, build_fact_id, count_fact_chars
from everhold.core.recall import format_time
from everhold.engine.memory import destination as memory_destination
from everhold.engine.memory.peers import build_peer_registry
from everhold.errors import InvalidRequest, NotFound
from everhold.infra.home import make_private_directory
from everhold.infra.safe_folder import open_markdown
from everhold.ports.store import Change, Session, Step

MAX_FILE_BYTES: Final = 1 << 20
"""The largest file that is read."""
MAX_FILES: Final = 1_000
DEFAULT_FACT_CHARS: Final[Mapping[str, int]] = {"user": 2_000, "memory": 3_000}
_UNSAFE_FILE_CHARS: Final = re.compile(r"[^A-Za-z0-9_.-]+")
"""Characters that are replaced in file names."""


def read_memory_files(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the Markdown files at a path by name, one file or all files in a folder, and the refused ones with the
    reason. Links are not followed.
    """
    if not path.exists():
        raise NotFound(f"{path} does not exist", remedy="name MEMORY.md, or its folder")
    folder, names = open_markdown(path)
    found: dict[str, str] = {}
    for name in names[:MAX_FILES]:
        text = folder.read_text(name, max_bytes=MAX_FILE_BYTES)
        if text is not None:
            found[name] = text
    if len(names) > MAX_FILES:
        folder.refused[names[MAX_FILES]] = f"it and what follows is left out: at most {MAX_FILES:,} files are read"
    return found, folder.refused


async def import_memory_files(
    memory: MemoryAdmin,
    name: str,
    files: Mapping[str, str],
    *,
    really: bool,
    limits: Mapping[str, int] = DEFAULT_FACT_CHARS,
) -> dict[str, Any]:
    """Add the contents of `files` to a session as notes. A text that was imported before is skipped. Without `really`
    nothing is added, and the result says what would be.

    USER.md and MEMORY.md become facts up to their limits, the rest become notes. SOUL.md describes the agent, so it is
    left out: it says nothing about the people of the session.
    """
    personas = sorted(file for file in files if file.rpartition("/")[2] == memory_files.PERSONA_FILE)
    files = {file: text for file, text in files.items() if file not in personas}
    session = await memory.control.find_session(name)
    stamp = await _find_stamp(memory, session)
    if not stamp.audience:
        raise InvalidRequest(
            f"session {session.id} has no messages, so its audience is unknown", remedy="send a message there first"
        )
    names = await _list_memory_names(memory, session, stamp)
    runtime = memory.runtimes.get_runtime(session.agent, session.choices)
    held = await runtime.fact_cache.list_valid(session.agent, stamp.audience) if runtime.fact_cache is not None else []
    drafts = _draft_notes(files, held, limits, agent=session.agent, names=tuple(names.values()), stamp=stamp)
    new = {draft.dedup: draft for draft in drafts if await memory.store.find_entry_place(draft.dedup or "") is None}
    noted = 0 if really else len(new)
    for draft in new.values() if really else ():
        change = Change(
            step=Step.NOTE,
            session=session.id,
            at=memory.gates.clock.now(),
            entries=(draft,),
            wakeups=runtime.list_memory_wakeups(),
        )
        noted += not (await memory.store.commit(change)).duplicate
        await asyncio.sleep(0)
    if noted and really:
        memory.control.wakeups.notify(session.id)
    notes = [draft.body for draft in drafts if isinstance(draft.body, Noted)]
    return {
        "session": session.id,
        "agent": session.agent,
        "files": sorted(files),
        "personas": personas,
        "facts": sum(bool(note.fact) for note in notes),
        "notes": sum(not note.fact for note in notes),
        "noted": noted,
        "done": really,
    }


def _draft_notes(
    files: Mapping[str, str],
    held: Sequence[Fact],
    limits: Mapping[str, int],
    *,
    agent: str,
    names: Sequence[str],
    stamp: Stamp,
) -> list[EntryDraft]:
    """The notes for the contents of the files, except for facts that exist already."""
    used = {target: count_fact_chars(held, target) for target in limits}
    known = {fact.text for fact in held}
    drafts: list[EntryDraft] = []
    for file, text in files.items():
        base = file.rpartition("/")[2]
        target = memory_files.TARGET_BY_FILE.get(base, "")
        for entry in memory_files.parse_memory_file(text):
            if not entry or (target and entry in known):
                continue
            key = memory_files.build_file_entry_key(agent=agent, names=names, file=base, text=entry)
            tags = (f"file:{base}", *((target,) if target else ()))
            fits = target and len(entry) <= MAX_FACT_CHARS and used[target] + len(entry) <= limits[target]
            if fits:
                used[target] += len(entry)
            note = Noted(text=entry, fact=build_fact_id(key) if fits else "", tags=tags, stamp=stamp)
            drafts.append(EntryDraft(body=note, author="operator", dedup=key))
    return drafts


async def _find_stamp(memory: MemoryAdmin, session: Session) -> Stamp:
    """The stamp of the session's last message from a person."""
    for entry in reversed(await memory.store.list_entries(session.id, kinds=(EntryKind.HEARD,))):
        if isinstance(entry.body, Heard) and not entry.body.bot:
            return entry.body.stamp
    return Stamp()


async def _list_memory_names(memory: MemoryAdmin, session: Session, stamp: Stamp) -> dict[str, str]:
    """Each memory's name for this session. Raises InvalidRequest if a name is only for this session, because imported
    notes would then not be found in other sessions."""
    runtime = memory.runtimes.get_runtime(session.agent, session.choices)
    peers = build_peer_registry(memory.gates, memory.runtimes)
    names = {}
    for instance in runtime.memories:
        peer = await peers.find_current_peer(instance, session.agent, stamp.person)
        origin = memory_destination.build_session_origin(session, stamp, peer=peer)
        names[instance] = session.names.get(instance) or runtime.choose_memory_name(instance, origin)
    for instance, name in names.items():
        if session.id in name:
            raise InvalidRequest(
                f"memory {instance} stores session {session.id} under a name of its own ({name})",
                remedy="import into a chat, or set session_strategy to per-directory, per-repo or global",
            )
    return names or {"": session.address}


async def render_memory_files(memory: MemoryAdmin, person: str) -> list[dict[str, str]]:
    """Each agent's facts about a person as memory files that can be imported: `agent`, `name`, `text`."""
    made: list[dict[str, str]] = []
    for agent in memory.agents():
        facts = [fact for fact in await memory.list_facts(agent, person) if fact.is_valid]
        for file, target in memory_files.TARGET_BY_FILE.items():
            texts = [fact.text for fact in facts if fact.target == target]
            if texts:
                made.append({"agent": agent, "name": file, "text": memory_files.render_memory_file(texts) + "\n"})
    return made


def write_memory_files(files: Sequence[Mapping[str, str]], directory: Path) -> list[str]:
    """Write the result of `render_memory_files` below `directory`, one folder per agent. Return the paths."""
    made: list[str] = []
    for file in files:
        name = _UNSAFE_FILE_CHARS.sub("-", file["name"]).strip("-.")
        path = directory / (_UNSAFE_FILE_CHARS.sub("-", file["agent"]).strip("-.") or "agent") / name
        make_private_directory(path.parent)
        with _open_private(path) as text:
            text.write(file["text"])
        made.append(str(path))
    return made


def _build_file_stem(person: str) -> str:
    """A unique file name for a person. If the name is not usable as a file name, a hash is appended."""
    fit = _UNSAFE_FILE_CHARS.sub("-", person).strip("-.")
    return fit if fit == person else f"{fit or 'person'}-{hashlib.sha256(person.encode()).hexdigest()[:8]}"


async def write_export(records: AsyncIterator[dict[str, Any]], person: str, directory: Path) -> dict[str, Any]:
    """Write an export as two files that only their owner can read: JSON lines, and Markdown for people."""
    make_private_directory(directory)
    stem = _build_file_stem(person)
    lines, pages = directory / f"{stem}.jsonl", directory / f"{stem}.md"
    count = 0
    missing: list[str] = []
    with _open_private(lines) as json, _open_private(pages) as text:
        text.write(f"# {person}\n")
        place: Sequence[str] = ()
        async for record in records:
            json.write(msgspec.json.encode(record).decode() + "\n")
            if "missing" in record:
                missing.append(f"{record['from']} (agent {record['agent']}): {record['missing']}")
                continue
            count += 1
            here = (record["from"], record["agent"], record.get("session", ""))
            if here != place:
                place = here
                text.write(f"\n## {' · '.join(part for part in here if part)}\n\n")
            body = record.get("body") or record
            who = record.get("author") or record.get("person") or ""
            words = body.get("text", "").replace("\n", "\n  ")
            text.write(f"- {format_time(record.get('at', 0.0))}, {who}: {words}\n")
        for line in missing:
            text.write(f"\nMissing: {line}\n")
    if not count and not missing:  # nothing was found, so a misspelt name leaves no files
        os.unlink(lines)
        os.unlink(pages)
        return {"person": person, "records": 0, "missing": [], "files": []}
    return {"person": person, "records": count, "missing": missing, "files": [str(lines), str(pages)]}


def _open_private(path: Path) -> TextIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8")
