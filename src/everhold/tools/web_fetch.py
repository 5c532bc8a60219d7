"""The `web_fetch` tool: reads a public web page as text. It connects to public addresses only (infra/fetch.py)."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from everhold.core.attachments import sanitize_file_name
from everhold.core.policy import ToolReach
from everhold.core.roles import ToolAccess
from everhold.errors import InvalidRequest
from everhold.ports.model import ToolSpec
from everhold.ports.plugin import FetchedContent
from everhold.ports.tool import ToolContext, ToolEffect, ToolFile, ToolResult
from everhold.tools.files import get_number, get_text

MAX_PAGE_CHARS: Final = 50_000
"""Characters of a page that one call returns."""
MAX_URL_CHARS: Final = 2_000
EXTRACT_SECONDS: Final = 20.0
MAX_EXTRACTIONS: Final = 2
"""How many pages are turned into text at once, for all agents. Each may use a processor and a lot of memory."""
EXTRACT_FILE: Final = Path(__file__).with_name("html_text.py")
_HTML_MEDIA: Final = frozenset({"text/html", "application/xhtml+xml", ""})
_TEXT_MEDIA: Final = frozenset(f"application/{name}" for name in ("json", "xml", "yaml", "javascript"))
CHARSETS: Final = frozenset(
    "utf-8 utf8 us-ascii ascii iso-8859-1 iso-8859-2 iso-8859-15 windows-1250 windows-1251 windows-1252 koi8-r koi8-u "
    "shift_jis euc-jp gb2312 gbk gb18030 big5 euc-kr".split()
)
"""The charsets that a page may declare. Some codecs of Python need much time, or are none for texts."""
_META_CHARSET: Final = re.compile(rb"charset=[\"']?([A-Za-z0-9_.:-]{1,40})")

FetchUrl = Callable[[str], Awaitable[FetchedContent]]


class WebFetchTool:
    """The tool only reads, so a repeat is harmless. The address may carry words out, which the policy looks at."""

    effect = ToolEffect.PURE
    access = ToolAccess.READ
    deadline = 60.0
    spec = ToolSpec(
        name="web_fetch",
        description=(
            "Read a public web page as text. Pictures and other files are stored as files of this conversation. A long "
            "page is read in parts, with `offset`."
        ),
        parameters={
            "type": "object",
            "properties": {
                "url": {"type": "string", "maxLength": MAX_URL_CHARS},
                "offset": {"type": "integer", "minimum": 0, "description": "The character to continue at."},
            },
            "required": ["url"],
            "additionalProperties": False,
        },
    )

    def __init__(self, fetch: FetchUrl, extractions: asyncio.Semaphore | None = None) -> None:
        """`extractions` is shared by the tools of all agents."""
        self._fetch = fetch
        self._extractions = extractions or asyncio.Semaphore(MAX_EXTRACTIONS)

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach.PUBLIC

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        url, offset = get_text(arguments, "url"), max(0, get_number(arguments, "offset", 0))
        if len(url) > MAX_URL_CHARS:
            raise InvalidRequest(f"the address has more than {MAX_URL_CHARS:,} characters", remedy="use a shorter one")
        content = await self._fetch(url)
        media = content.media.lower()
        if media not in _HTML_MEDIA and not is_text(media):
            name = sanitize_file_name(url.partition("?")[0].rpartition("/")[2]) or "download"
            file = ToolFile(data=content.data, name=name, media=media)
            return ToolResult(text=f"{url} is {media}, {len(content.data):,} bytes, stored as {name}.", files=(file,))
        title, text = "", decode_page(content.data)
        if media in _HTML_MEDIA:
            async with self._extractions:
                title, text = await extract_readable(text)
        if offset and offset >= len(text):
            raise InvalidRequest(f"the page has {len(text):,} characters", remedy="use a smaller offset")
        part = text[offset : offset + MAX_PAGE_CHARS]
        end = offset + len(part)
        more = f"; continue with offset {end}" if end < len(text) else ""
        head = f"{title or url} · {len(text):,} characters, shown {offset} to {end}{more}"
        return ToolResult(text=f"{head}\n{part or '(The page contains no text.)'}")


def is_text(media: str) -> bool:
    return media.startswith("text/") or media.endswith(("+json", "+xml")) or media in _TEXT_MEDIA


def decode_page(data: bytes) -> str:
    """Return a page as text, by the charset that it declares, else UTF-8."""
    declared = _META_CHARSET.search(data[:2_048])
    charset = declared[1].decode().lower() if declared else "utf-8"
    return data.decode(charset if charset in CHARSETS else "utf-8", "replace")


async def extract_readable(html: str) -> tuple[str, str]:
    """Return title and text of a page. A process extracts them that is ended if it takes too long."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(EXTRACT_FILE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    try:
        async with asyncio.timeout(EXTRACT_SECONDS):
            out, _ = await process.communicate(html.encode("utf-8", "replace"))
    except TimeoutError:
        raise InvalidRequest(
            f"reading the page took more than {EXTRACT_SECONDS:g} s and was ended", remedy="try another address"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise InvalidRequest("reading the page used too much memory and was ended", remedy="try another address")
    found: dict[str, str] = json.loads(out)
    return found["title"], found["text"]
