"""The `session_search` tool: an agent looks through what was said, and reads one entry in full. It sees what everybody
present may hear of, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from everhold.core.entries import Entry, Heard, Noted, Returned, Said, Stamp, Thought
from everhold.core.recall import by_whom
from everhold.errors import NotFound
from everhold.ports.memory import Found
from everhold.ports.model import ToolSpec
from everhold.ports.store import Store
from everhold.ports.tool import Effect, Result, ToolContext

MOST: Final = 20
PAGE: Final = 6_000
"""Characters of an entry that are read at once."""
EXCERPT: Final = 700
NOBODY: Final = "Nothing can be searched here: it is not known who is present."


class Searches(Protocol):
    """What finds: the built-in memory."""

    async def search(
        self, text: str, *, agent: str, audience: Sequence[str], session: str | None = None, limit: int = 10
    ) -> Sequence[Found]: ...


class Search:
    """Runs again without harm: it only reads."""

    effect = Effect.PURE
    deadline = 10.0

    def __init__(self, memory: Searches, store: Store) -> None:
        self.memory = memory
        self.store = store
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
                    "limit": {"type": "integer", "minimum": 1, "maximum": MOST},
                },
                "additionalProperties": False,
            },
        )

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        query, session, entry = arguments.get("query"), arguments.get("session"), arguments.get("entry")
        if not context.stamp.audience:
            return Result(text=NOBODY, error=True)
        if session is not None and not isinstance(session, str):
            return Result(text="`session` is the id that a search gave.", error=True)
        if isinstance(entry, int) and not isinstance(entry, bool):
            return await self._read(session or context.session, entry, _number(arguments.get("page"), 1), context)
        if not isinstance(query, str) or not query.strip():
            return Result(
                text="Say what to look for (`query`), or which `entry` of which `session` to read.", error=True
            )
        limit = min(_number(arguments.get("limit"), 8), MOST)
        found = await self.memory.search(
            query, agent=context.agent, audience=context.stamp.audience, session=session or None, limit=limit
        )
        if not found:
            return Result(text="Nothing was found.")
        return Result(text="\n\n".join(_shown(one) for one in found))

    async def probe(self, context: ToolContext) -> Result | None:
        return None

    async def _read(self, session: str, seq: int, page: int, context: ToolContext) -> Result:
        # what may not be known is answered like what is not there
        missing = Result(text=f"There is no entry {seq} to read in session {session}.", error=True)
        try:
            about = await self.store.get_session(session)
            entry = await self.store.get_entry(session, seq)
        except NotFound:
            return missing
        if isinstance(entry.body, Returned | Thought) and session == context.session:
            # the agent's own doing here: what a stub or a summary left out of its sight
            return _paged(entry, entry.body.text, page)
        stamped = _words(entry)
        if stamped is None or about.agent != context.agent:
            return missing
        text, stamp = stamped
        if not set(context.stamp.audience) <= set(stamp.audience):
            return missing
        return _paged(entry, text, page)


def _paged(entry: Entry, text: str, page: int) -> Result:
    pages = max(1, -(-len(text) // PAGE))
    if page > pages:
        return Result(text=f"Entry {entry.seq} has {pages} page{'s' if pages > 1 else ''}.", error=True)
    place = f"session {entry.session}, entry {entry.seq}, {entry.kind} by {entry.author}, {_when(entry.at)}"
    return Result(text=f"[{place}, page {page} of {pages}]\n{text[(page - 1) * PAGE : page * PAGE]}")


def _words(entry: Entry) -> tuple[str, Stamp] | None:
    match entry.body:
        case Heard() | Said() | Noted():
            return entry.body.text, entry.body.stamp
        case _:
            return None


def _shown(found: Found) -> str:
    text = found.text if len(found.text) <= EXCERPT else f"{found.text[:EXCERPT]} …"
    who = by_whom(found)
    origin = f"not said by a person but from {found.origin}" if found.origin else ""
    about = [f"session {found.session}", f"entry {found.seq}", who, _when(found.at), origin]
    return f"[{', '.join(part for part in about if part)}]\n{text}"


def _when(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
