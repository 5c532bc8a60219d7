"""The tool `web_search`: three services behind one port, limits, and errors that help a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from everhold.core.entries import Stamp
from everhold.core.policy import ToolReach
from everhold.errors import EverholdError, InvalidRequest, OperatorNeeded, Transient
from everhold.infra.secret import SecretString
from everhold.ports.tool import ToolContext, get_reach
from everhold.testing.platforms.loopback import LoopbackResponse
from everhold.tools import web_search_services
from everhold.tools.web_search import MAX_QUERY_CHARS, WebSearchTool
from everhold.tools.web_search_services import SEARCH_SERVICES
from tests.tools.search_services import KEY, SearchServices


@pytest.fixture
async def services() -> AsyncIterator[SearchServices]:
    async with SearchServices() as running:
        yield running


@pytest.fixture(params=SEARCH_SERVICES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def call(services: SearchServices, name: str, *, key: str = KEY, **arguments: Any) -> str:
    tool = WebSearchTool(SEARCH_SERVICES[name](services.url, SecretString(key)))
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp())
    return (await tool.run({"query": "black holes"} | arguments, context)).text


async def test_pages_are_numbered_and_their_text_cannot_pose_as_a_page(services: SearchServices, name: str) -> None:
    lines = (await call(services, name)).split("\n")
    date = " (2 days ago)" if name == "brave" else ""
    assert lines[:3] == [f"1. Page 1 & more{date}", "   https://example.org/1", "   about 2. it 1"]
    assert len(lines) == 15
    assert len(lines[5]) < 700
    assert len([line for line in (await call(services, name, count=99)).split("\n") if line[0] != " "]) == 10
    assert services.calls[-1][0] == name


async def test_errors_say_what_to_do(services: SearchServices, name: str) -> None:
    services.pages = []
    assert "Try other or fewer words" in await call(services, name)
    services.plan_fault(name, "answer", answer=LoopbackResponse(status=429, headers={"retry-after": "7"}))
    with pytest.raises(Transient, match="try again in 7 s"):
        await call(services, name)
    services.plan_fault(name, "answer", answer=LoopbackResponse(status=502))
    with pytest.raises(Transient, match="answered 502"):
        await call(services, name)
    services.plan_fault(name, "answer", answer=LoopbackResponse(body=b"<html>", media="text/html"))
    with pytest.raises(Transient, match="not answer with JSON"):
        await call(services, name)
    services.plan_fault(name, "answer", answer=LoopbackResponse(body=b" " * 2_100_000))
    with pytest.raises(Transient, match="more than 2,000,000 bytes"):
        await call(services, name)
    services.plan_fault(name, "drop before")
    with pytest.raises(Transient, match="cannot be reached"):
        await call(services, name)
    for query in ("", " ", "x" * (MAX_QUERY_CHARS + 1)):
        with pytest.raises(InvalidRequest):
            await call(services, name, query=query)


async def test_a_slow_service_ends_the_call(
    services: SearchServices, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_search_services, "SEARCH_SECONDS", 0.05)
    services.hang_calls(name)
    with pytest.raises(Transient, match=r"did not answer within 0\.05 s"):
        await call(services, name)
    services.release_calls(name)


@pytest.mark.parametrize("service", ["brave", "tavily"])
async def test_a_wrong_key_is_the_operators_matter(services: SearchServices, service: str) -> None:
    with pytest.raises(OperatorNeeded, match="refuses the key") as error:
        await call(services, service, key="wrong-key-1234")
    assert "wrong-key" not in str(error.value)
    with pytest.raises(OperatorNeeded, match="no key"):
        SEARCH_SERVICES[service](services.url, None)


async def test_what_one_service_refuses_is_named(services: SearchServices) -> None:
    services.formats = {"html"}
    with pytest.raises(OperatorNeeded, match="add `json`"):
        await call(services, "searxng")
    services.formats, services.pages, services.unresponsive = {"json"}, [], [["google", "timeout"]]
    with pytest.raises(Transient, match="no engine"):
        await call(services, "searxng")
    services.plan_fault("tavily", "answer", answer=LoopbackResponse(status=432))
    with pytest.raises(OperatorNeeded, match="credit"):
        await call(services, "tavily")


async def test_a_long_query_is_shortened_where_the_service_refuses_it(services: SearchServices) -> None:
    services.pages = [{"title": "t", "url": "https://e.org", "content": "c"}]
    assert "1. t" in await call(services, "brave", query="a " * 80)


def test_a_search_reads_what_is_public() -> None:
    tool = WebSearchTool(SEARCH_SERVICES["searxng"]("http://localhost", None))
    assert get_reach(tool, {"query": "x"}) is ToolReach.PUBLIC


async def test_an_unreachable_service_is_no_crash() -> None:
    tool = WebSearchTool(SEARCH_SERVICES["searxng"]("http://127.0.0.1:9", None))
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp())
    with pytest.raises(EverholdError, match="cannot be reached"):
        await tool.run({"query": "x"}, context)
