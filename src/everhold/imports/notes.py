"""Memory files -> facts: one note for each entry, in a session of its own, once however often it is imported."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

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
    session = await store.resolve(address)
    person = audience[0].removeprefix("person:") if audience else ""
    stamp = Stamp(person=person, audience=tuple(audience), address=address)
    for text in texts:
        text = clean(text.strip())[0]
        seal = hashlib.blake2b(f"{agent}\0{target}\0{text}".encode(), digest_size=12).hexdigest()
        key = f"note:{seal}"
        if not text or await store.placed(key) is not None:
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
        await store.session(session)
    except NotFound:
        return Opening(agent=agent, address=address)
    return None


def from_markdown(path: Path) -> list[tuple[str, str]]:
    """(file, passage) of a Markdown file or folder: a passage is a list item or a paragraph, with its headings."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*.md") if file.is_file())
    found: list[tuple[str, str]] = []
    for file in files:
        text = file.read_bytes()[:MOST_BYTES].decode("utf-8-sig", "replace")
        name = file.name if path.is_file() else str(file.relative_to(path))
        found += [(name, passage) for passage in passages(text)]
    return found


def passages(text: str) -> list[str]:
    """What stands in a Markdown text, each thing by itself and under its heading."""
    if "\n§\n" in text:
        return [part.strip() for part in text.split("\n§\n") if part.strip()]
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    headings: list[str] = []
    found: list[str] = []
    block: list[str] = []

    def end() -> None:
        words = "\n".join(block).strip()
        block.clear()
        if words:
            over = " / ".join(headings)
            found.append(f"{over}: {words}" if over else words)

    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        heading = re.match(r"(#{1,6})\s+(.*)", line) if not fenced else None
        if heading:
            end()
            headings[len(heading[1]) - 1 :] = [heading[2].strip()]
        elif not fenced and re.match(r"\s*(?:[-*+]|\d+[.)])\s+", line) and not line.startswith((" ", "\t")):
            end()
            block.append(re.sub(r"^\s*(?:[-*+]|\d+[.)])\s+", "", line))
        elif not line.strip() and not fenced:
            end()
        else:
            block.append(line)
    end()
    return found
