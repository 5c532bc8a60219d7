"""The `web_search` tool: finds public pages. What it returns is written by others."""

from __future__ import annotations

import html
import re
from typing import Any, Final

from everhold.core.policy import ToolReach
from everhold.core.roles import ToolAccess
from everhold.errors import InvalidRequest
from everhold.ports.model import ToolSpec
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult
from everhold.ports.web_search import WebHit, WebSearch
from everhold.tools.files import get_number, get_text

MAX_QUERY_CHARS: Final = 400
MAX_COUNT: Final = 10
DEFAULT_COUNT: Final = 5
MAX_TITLE_CHARS: Final = 200
MAX_URL_CHARS: Final = 1_000
MAX_HIT_CHARS: Final = 600
_TAG: Final = re.compile(r"<[^<>]{0,200}>")
_SPACE: Final = re.compile(r"\s+")


class WebSearchTool:
    """The tool only reads, so a repeat is harmless. The query may carry words out, which the policy looks at."""

    effect = ToolEffect.PURE
    access = ToolAccess.READ
    deadline = 30.0
    spec = ToolSpec(
        name="web_search",
        description="Find public web pages. Read one of them with web_fetch, if you have it.",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "maxLength": MAX_QUERY_CHARS},
                "count": {"type": "integer", "minimum": 1, "maximum": MAX_COUNT, "description": "How many pages."},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    )

    def __init__(self, service: WebSearch) -> None:
        self._service = service

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach.PUBLIC

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        query = " ".join(get_text(arguments, "query").split())
        if not query or len(query) > MAX_QUERY_CHARS:
            raise InvalidRequest(
                f"the query has {len(query):,} characters, and may have 1 to {MAX_QUERY_CHARS}",
                remedy="search for the few words that matter",
            )
        count = min(max(1, get_number(arguments, "count", DEFAULT_COUNT)), MAX_COUNT)
        hits = (await self._service.search(query, count=count))[:count]
        if not hits:
            return ToolResult(text=f"Nothing was found for {query!r}. Try other or fewer words.")
        return ToolResult(text="\n".join(format_hit(number, hit) for number, hit in enumerate(hits, start=1)))


def format_hit(number: int, hit: WebHit) -> str:
    """Return a page in at most three lines, so that its text cannot pose as another page."""
    title, text = clean_markup(hit.title, MAX_TITLE_CHARS), clean_markup(hit.text, MAX_HIT_CHARS)
    date = clean_markup(hit.date, 40)
    head = f"{number}. {title or '(no title)'}{f' ({date})' if date else ''}"
    url = _SPACE.sub("%20", hit.url)[:MAX_URL_CHARS]
    return "\n".join(part for part in (head, f"   {url}", f"   {text}" if text else "") if part)


def clean_markup(text: str, most: int) -> str:
    """Return a text on one line without tags and entities."""
    plain = _SPACE.sub(" ", html.unescape(_TAG.sub("", text[: 20 * most]))).strip()
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
