"""The `session_search` tool: what exactly was said? Searches what everybody present may hear of, and reads originals.

What a summary stands for and what a stub left out is still in the log; this is the way back to it.
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol

from everhold.core.entries import Entry, Heard, Noted, Returned, Said, Thought
from everhold.errors import NotFound
from everhold.ports.memory import Found
from everhold.ports.model import ToolSpec
from everhold.ports.store import Store
from everhold.ports.tool import Effect, Result, ToolContext

MOST_HITS: Final = 10
PAGE: Final = 8_000
"""Characters of an original shown at once."""
SHORT: Final = 400


class Finder(Protocol):
    """Whoever can find things in the log, for those who are present."""

    def __call__(
        self, text: str, *, agent: str, audience: Sequence[str], session: str | None = None, limit: int = 10
    ) -> Awaitable[Sequence[Found]]: ...


class Search:
    """Looks, and changes nothing."""

    effect = Effect.PURE
    deadline = 20.0
    spec = ToolSpec(
        name="session_search",
        description=(
            "Find what was said, here or in earlier conversations with the same people; or read one entry in full by "
            "its number (entries are numbered #N in summaries and in what this finds). Use it before you say that "
            "something was not said."
        ),
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "what to look for"},
                "here": {"type": "boolean", "description": "look only in this conversation"},
                "entry": {
                    "type": "integer",
                    "description": "the number of an entry of this conversation to read in full",
                },
                "page": {"type": "integer", "description": "which part of a long entry, from 1"},
            },
            "additionalProperties": False,
        },
    )

    def __init__(self, find: Finder, store: Store) -> None:
        self.find = find
        self.store = store

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        entry, query = arguments.get("entry"), arguments.get("query")
        if isinstance(entry, int) and not isinstance(entry, bool):
            page = arguments.get("page")
            return await self._read(context, entry, page if isinstance(page, int) and page > 0 else 1)
        if not isinstance(query, str) or not query.strip():
            return Result(text="Say what to look for (`query`), or which entry to read (`entry`).", error=True)
        session = context.session if arguments.get("here") is True else None
        hits = await self.find(
            query, agent=context.agent, audience=context.stamp.audience, session=session, limit=MOST_HITS
        )
        if not hits:
            return Result(text=f"Nothing was found for {query!r}. It may have been said in other words.")
        return Result(text="\n".join(_line(hit, here=context.session) for hit in hits))

    async def probe(self, context: ToolContext) -> Result | None:
        return None

    async def _read(self, context: ToolContext, seq: int, page: int) -> Result:
        try:
            entry = await self.store.entry(context.session, seq)
        except NotFound:
            return Result(text=f"This conversation has no entry #{seq}.", error=True)
        text = _text(entry)
        if text is None:
            return Result(text=f"#{seq} holds no words, or they were erased.", error=True)
        pages = max(1, -(-len(text) // PAGE))
        part = text[(page - 1) * PAGE : page * PAGE]
        if not part:
            return Result(text=f"#{seq} has only {pages} pages.", error=True)
        head = f"#{seq} {entry.kind} {entry.author}, {_when(entry.at)}"
        return Result(text=f"{head}, page {page} of {pages}:\n{part}" if pages > 1 else f"{head}:\n{part}")


def _text(entry: Entry) -> str | None:
    match entry.body:
        case Heard(text=text) | Said(text=text) | Noted(text=text) | Returned(text=text) | Thought(text=text):
            return text
        case _:
            return None


def _line(hit: Found, *, here: str) -> str:
    where = f"#{hit.seq}" if hit.session == here else f"another conversation ({hit.session})"
    text = " ".join(hit.text.split())
    short = text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"
    return f"{where}, {hit.person or 'somebody'}, {_when(hit.at)}: {short}"


def _when(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M")
