"""The `session_search` tool: an agent searches past conversations, and reads one entry in full. It finds only entries
whose audience includes everybody present."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from everhold.core.entries import Entry, Heard, Noted, Returned, Said, Stamp, Thought
from everhold.core.people import can_hear
from everhold.core.provenance import describe_origin, render_piece
from everhold.core.recall import describe_source
from everhold.core.roles import ToolAccess
from everhold.errors import NotFound
from everhold.ports.memory import MemoryHit
from everhold.ports.model import ToolSpec
from everhold.ports.store import Store
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult

MAX_RESULTS: Final = 20
PAGE_CHARS: Final = 6_000
"""Characters of an entry that are read at once."""
EXCERPT_CHARS: Final = 700
NOBODY_PRESENT: Final = "Nothing can be searched here, because it is not known who is present."


class SupportsSessionSearch(Protocol):
    """Searches: the built-in memory."""

    async def search(
        self, text: str, *, agent: str, audience: Sequence[str], session: str | None = None, limit: int = 10
    ) -> Sequence[MemoryHit]: ...


class SupportsRetractions(Protocol):
    """Knows which notes were replaced or taken back."""

    async def find_retracted(self, agent: str, entries: Iterable[Entry]) -> set[tuple[str, int]]: ...


class SessionSearchTool:
    """The tool only reads, so a repeat is harmless."""

    effect = ToolEffect.PURE
    access = ToolAccess.READ
    deadline = 10.0

    def __init__(
        self, memory: SupportsSessionSearch, store: Store, *, notes: SupportsRetractions | None = None
    ) -> None:
        self.memory = memory
        self.store = store
        self.notes = notes
        self.spec = ToolSpec(
            name="session_search",
            description=(
                "Search everything that was said and noted in this and earlier conversations, as far as everybody "
                "present may know it. Results name their session and entry; give both back, without a query, to read "
                "that entry in full, page by page (long or summarised messages can be read this way, too)."
            ),
            parameters={
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to look for."},
                    "session": {"type": "string", "description": "Only in this session; needed with entry."},
                    "entry": {"type": "integer", "minimum": 1, "description": "The entry to read in full."},
                    "page": {"type": "integer", "minimum": 1, "description": "Which page of the entry, from 1."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS},
                },
                "additionalProperties": False,
            },
        )

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        query, session, entry = arguments.get("query"), arguments.get("session"), arguments.get("entry")
        if not context.stamp.audience:
            return ToolResult(text=NOBODY_PRESENT, error=True)
        if session is not None and not isinstance(session, str):
            return ToolResult(text="`session` is the id that a search gave.", error=True)
        if isinstance(entry, int) and not isinstance(entry, bool):
            return await self._read_entry(
                session or context.session, entry, _as_positive_integer(arguments.get("page"), 1), context
            )
        if not isinstance(query, str) or not query.strip():
            return ToolResult(
                text="Say what to look for (`query`), or which `entry` of which `session` to read.", error=True
            )
        limit = min(_as_positive_integer(arguments.get("limit"), 8), MAX_RESULTS)
        found = await self.memory.search(
            query, agent=context.agent, audience=context.stamp.audience, session=session or None, limit=limit
        )
        found = await self._filter_hits(found, context)
        if not found:
            return ToolResult(text="Nothing was found.")
        return ToolResult(text="\n\n".join(_format_hit(one) for one in found))

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    async def _filter_hits(self, hits: Sequence[MemoryHit], context: ToolContext) -> list[MemoryHit]:
        """Return the hits that the log allows: it knows the people, and what was erased, undone or taken back."""
        cited = await self.store.get_cited_entries({(hit.session, hit.seq) for hit in hits})
        present = (await self.store.get_people()).expand_audience(context.stamp.audience)
        entries = [it.entry for it in cited.values()]
        gone = await self.notes.find_retracted(context.agent, entries) if self.notes is not None else set()
        allowed = {
            place
            for place, it in cited.items()
            if it.agent == context.agent
            and not it.undone
            and place not in gone
            and (stamped := _get_entry_text(it.entry)) is not None
            and can_hear(present, stamped[1].audience, it.entry.at)
        }
        return [hit for hit in hits if (hit.session, hit.seq) in allowed]

    async def _read_entry(self, session: str, seq: int, page: int, context: ToolContext) -> ToolResult:
        # an entry outside the audience gets the same answer as a missing one
        missing = ToolResult(text=f"There is no entry {seq} to read in session {session}.", error=True)
        try:
            about = await self.store.get_session(session)
            entry = await self.store.get_entry(session, seq)
        except NotFound:
            return missing
        if isinstance(entry.body, Returned | Thought) and session == context.session:
            # the agent's own entries in this session, which a stub or a summary may have replaced in its context
            return _format_page(entry, entry.body.text, page)
        stamped = _get_entry_text(entry)
        if stamped is None or about.agent != context.agent:
            return missing
        text, stamp = stamped
        present = (await self.store.get_people()).expand_audience(context.stamp.audience)
        if not can_hear(present, stamp.audience, entry.at):
            return missing
        return _format_page(entry, text, page)


def _format_page(entry: Entry, text: str, page: int) -> ToolResult:
    pages = max(1, -(-len(text) // PAGE_CHARS))
    if page > pages:
        return ToolResult(text=f"Entry {entry.seq} has {pages} page{'s' if pages > 1 else ''}.", error=True)
    place = f"session {entry.session}, entry {entry.seq}, {entry.kind} by {entry.author}, {_format_time(entry.at)}"
    return ToolResult(text=f"[{place}, page {page} of {pages}]\n{text[(page - 1) * PAGE_CHARS : page * PAGE_CHARS]}")


def _get_entry_text(entry: Entry) -> tuple[str, Stamp] | None:
    match entry.body:
        case Heard():
            own = [entry.body.text] if entry.body.text else []
            return "\n".join([*own, *map(render_piece, entry.body.pieces)]), entry.body.stamp
        case Said() | Noted():
            return entry.body.text, entry.body.stamp
        case _:
            return None


def _format_hit(found: MemoryHit) -> str:
    text = found.text if len(found.text) <= EXCERPT_CHARS else f"{found.text[:EXCERPT_CHARS]} …"
    who = describe_source(found)
    origin = describe_origin(found.origin) if found.origin else ""
    about = [f"session {found.session}", f"entry {found.seq}", who, _format_time(found.at), origin]
    return f"[{', '.join(part for part in about if part)}]\n{text}"


def _format_time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def _as_positive_integer(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
