"""The tool `web_fetch`: pages as text, packed answers within a limit, and hostile pages that end only their call."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from everhold.app import SystemClock
from everhold.assembly.builtin_toolbox import BuiltinToolbox
from everhold.config import AgentSettings
from everhold.core.entries import Stamp
from everhold.core.policy import ToolReach
from everhold.errors import EverholdError, Refused
from everhold.infra.child_process import ChildProcesses
from everhold.infra.fetch import UrlFetcher
from everhold.ports.store import Store
from everhold.ports.tool import ToolContext, ToolResult, get_reach
from everhold.testing.platforms.loopback import LoopbackResponse
from everhold.tools import web_fetch
from everhold.tools.web_fetch import WebFetchTool
from tests.infra.test_fetch import Web
from tests.waiting import wait_until

MAX_BYTES = 200_000
PAGE = """<!doctype html><html><head><title> The  page </title><style>p {color: red}</style></head>
<body><nav>Home</nav><h2>News</h2><script>alert("hidden")</script><p>One &amp; two.<br>Three.</p>
<ul><li>first</li><li>see <a href="https://example.org/x">this</a></li></ul><p hidden>shown<p>last</body></html>"""


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as web:
        yield web


async def call(web: Web, path: str = "/page", **more: Any) -> ToolResult:
    fetch = UrlFetcher(allows=lambda _: True, most_bytes=MAX_BYTES, is_packed_allowed=True, agent="everhold test")
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp())
    return await WebFetchTool(fetch).run({"url": f"{web.url}{path}", **more}, context)


async def test_a_page_becomes_readable_text(web: Web) -> None:
    web.pages["/page"] = LoopbackResponse(body=PAGE.encode(), media="text/html; charset=utf-8")
    lines = (await call(web)).text.splitlines()
    assert lines[0].startswith("The page · ")
    assert lines[1:] == [
        "## News",
        "One & two.",
        "Three.",
        "- first",
        "- see this (https://example.org/x)",
        "shown",
        "last",
    ]
    assert web.asked[0].headers["user-agent"] == "everhold test"
    assert web.asked[0].headers["accept-encoding"] == "gzip, deflate"


async def test_a_long_page_is_read_in_parts(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_fetch, "MAX_PAGE_CHARS", 10)
    web.pages["/page"] = LoopbackResponse(body=b"0123456789abcdef", media="text/plain")
    assert (await call(web)).text.endswith("shown 0 to 10; continue with offset 10\n0123456789")
    assert (await call(web, offset=10)).text.endswith("shown 10 to 16\nabcdef")
    with pytest.raises(EverholdError, match="has 16 characters"):
        await call(web, offset=16)


def pack_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    "encoding, pack",
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", pack_raw), ("GZIP", gzip.compress)],
)
async def test_a_packed_page_is_unpacked_within_the_limit(web: Web, encoding: str, pack: Any) -> None:
    headers = {"content-encoding": encoding}
    web.pages["/page"] = LoopbackResponse(body=pack(b"packed words"), media="text/plain", headers=headers)
    assert (await call(web)).text.endswith("packed words")
    web.pages["/page"] = LoopbackResponse(body=pack(bytes(50_000_000)), media="text/plain", headers=headers)
    with pytest.raises(Refused, match="200,000 bytes"):
        await call(web)


@pytest.mark.parametrize("encoding, body", [("gzip", b"no gzip"), ("br", b"x"), ("gzip, gzip", b"x"), ("zstd", b"x")])
async def test_other_encodings_and_damaged_ones_are_refused(web: Web, encoding: str, body: bytes) -> None:
    web.pages["/page"] = LoopbackResponse(body=body, media="text/plain", headers={"content-encoding": encoding})
    with pytest.raises(Refused):
        await call(web)


async def test_a_file_is_stored_and_named(web: Web) -> None:
    result = await call(web, "/cat.png")
    (file,) = result.files
    assert (file.name, file.media, file.data) == ("cat.png", "image/png", b"meow")
    assert "stored as cat.png" in result.text


HOSTILE_PAGES = [
    b"<" * 100_000,
    b"<div>" * 30_000 + b"deep",
    b"<!--" * 30_000,
    b"<a href='" + b"x" * 100_000,
    b"&#x110000;&#xd800;&bogus;" * 3_000,
    b"\x00\xff\xfe" * 30_000,
    b"<script>" * 10_000 + b"</p>" * 10_000,
    b"<meta charset=punycode>" + b"a-" * 50_000,
    b"<meta charset=zlib>x",
    b"",
]


@pytest.mark.parametrize("page", HOSTILE_PAGES)
async def test_a_hostile_page_gets_a_bounded_answer(web: Web, page: bytes) -> None:
    web.pages["/page"] = LoopbackResponse(body=page, media="text/html")
    with contextlib.suppress(EverholdError):
        result = await call(web)
        assert len(result.text) <= web_fetch.MAX_PAGE_CHARS + 1_000
        assert result.text.encode()


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://169.254.169.254/latest/", "file:///etc/passwd", ""])
async def test_no_private_address_is_read(url: str) -> None:
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp())
    with pytest.raises(EverholdError):
        await WebFetchTool(UrlFetcher(is_packed_allowed=True)).run({"url": url}, context)


def test_its_reach_is_public() -> None:
    assert get_reach(WebFetchTool(UrlFetcher()), {"url": "https://example.org"}) is ToolReach.PUBLIC


async def test_few_pages_are_extracted_at_once_and_after_the_gateway(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names many slow pages would use all processors."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import json, os, pathlib, runpy, sys, time\n"
        f"runpy.run_path({str(web_fetch.EXTRACT_FILE)!r}, run_name='__main__')\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "(folder / f'{os.getpid()}.begun').write_text(str(os.nice(0)))\n"
        "while not (folder / 'go').exists(): time.sleep(0.01)\n"
    )
    monkeypatch.setattr(web_fetch, "EXTRACT_FILE", slow)
    web.pages["/page"] = LoopbackResponse(body=PAGE.encode(), media="text/html")
    fetch = UrlFetcher(allows=lambda _: True)
    toolbox = BuiltinToolbox(
        home=tmp_path,
        store=cast(Store, None),
        clock=SystemClock(),
        children=ChildProcesses(tmp_path),
        environ={},
        fetch=fetch,
    )
    agents = [AgentSettings(tools=("web_fetch",)) for _ in range(2)]
    tools = [toolbox.build_tools(agent)["web_fetch"]["web_fetch"] for agent in agents]
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp())
    calls = [asyncio.create_task(tool.run({"url": f"{web.url}/page"}, context)) for tool in tools for _ in range(3)]

    def list_begun() -> list[str]:
        return [path.read_text() for path in tmp_path.glob("*.begun")]

    await wait_until(lambda: len(list_begun()) == 2 and all(list_begun()) and len(web.asked) == 6)
    assert list_begun() == [str(min(os.nice(0) + 10, 19))] * 2
    (tmp_path / "go").touch()
    assert all("Three." in it.text for it in await asyncio.gather(*calls))
