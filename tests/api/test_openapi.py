"""The OpenAPI document and the reference page match the API."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import httpx2
import pytest

from everhold.api import openapi
from everhold.api.rate_limits import RateLimit, RateLimitBuckets
from everhold.api.reference import build_route_table, render_reference
from tests.api.conftest import ADA, ELSEWHERE, OPERATOR, TOKENS, ApiGateway, configuration
from tests.api.programs import run_program
from tests.hostile.fuzzing import LONG_EXAMPLES
from tests.waiting import LIMIT_SECONDS

WIDE_QUOTAS = "quotas: {token: {requests_per_second: 100000}, member: {messages_per_minute: 0}}\n"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"


def test_the_reference_page_is_current() -> None:
    remedy = "python -m everhold.api.reference > docs/reference/http.md"
    assert PAGE.read_text(encoding="utf-8") == render_reference(), remedy


async def test_exactly_the_existing_routes_are_described(client: httpx2.AsyncClient) -> None:
    described = (await client.get("/openapi.json")).json()
    assert described == openapi.build_document(build_route_table())
    found = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert found == {(route.method, route.path) for route in build_route_table()}
    names = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)


def test_every_route_has_a_description() -> None:
    for route in build_route_table():
        assert route.summary[0].isupper(), route.path
        assert all(parameter.about.endswith(".") for parameter in route.parameters), route.path
        assert {name for name in route.path.split("/") if name.startswith("{")} == {
            f"{{{parameter.name}}}" for parameter in route.parameters if parameter.where == "path"
        }


async def test_a_query_parameter_is_required_where_a_request_without_it_is_refused(client: httpx2.AsyncClient) -> None:
    for route in build_route_table():
        if route.method != "GET" or "{" in route.path or route.path == "/api/events":
            continue
        answer = await client.get(route.path)
        required = [parameter.name for parameter in route.parameters if parameter.required]
        assert (answer.status_code == 400) == bool(required), route.path
        if required:
            assert answer.json()["error"]["type"] == "invalid_request"
            assert answer.json()["error"]["remedy"], route.path


async def test_an_invalid_request_has_one_type_wherever_it_is_noticed(client: httpx2.AsyncClient) -> None:
    for answer in (
        await client.post("/api/messages", json={}),
        await client.post("/api/messages", json={"text": "hello"}),
        await client.get("/api/sessions", params={"limit": "x"}),
        await client.get("/api/entries"),
    ):
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request")
        assert answer.json()["error"]["remedy"]


async def test_a_choice_that_the_document_does_not_list_is_refused_on_every_route(client: httpx2.AsyncClient) -> None:
    """Also where the handler would not look at it, such as `state` without `order=active`."""
    refused = []
    for route in build_route_table():
        listed = [it for it in route.parameters if it.where == "query" and it.schema.get("enum")]
        for parameter in listed:
            first = parameter.schema["enum"][0]
            for given in ("null", "", [first, "null"]):
                answer = await client.get(route.path, params={parameter.name: given})
                assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request"), given
                assert first in answer.json()["error"]["remedy"]
            assert (await client.get(route.path, params={parameter.name: first})).status_code == 200
            refused.append((route.path, parameter.name))
    assert {("/api/sessions", "state"), ("/api/sessions", "order"), ("/api/usage", "by")} <= {*refused}


@pytest.mark.slow
@pytest.mark.parametrize(
    "phases, examples",
    [
        ("examples,fuzzing", 3),
        pytest.param("examples,coverage,fuzzing,stateful", max(3, LONG_EXAMPLES // 100), marks=pytest.mark.prove),
    ],
    ids=["brief", "everything"],
)
@pytest.mark.parametrize("token", [OPERATOR, ADA, ""], ids=["operator", "member", "nobody"])
async def test_every_request_allowed_by_the_document_gets_a_documented_response(
    gateway: ApiGateway, tmp_path: Path, phases: str, examples: int, token: str
) -> None:
    async with gateway.client() as client:
        session = (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).json()["session"]
    await gateway.wait_until_idle(session)
    gateway.configure(configuration(gateway.model.openai, more=f"{TOKENS}{WIDE_QUOTAS}"))
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(openapi.build_document(build_route_table())))
    before = len(await gateway.running.store.read_feed())
    headers = {**ELSEWHERE, **({"Authorization": f"Bearer {token}"} if token else {})}
    wide = RateLimit(burst=1e9, per_second=1e9)  # the check counts 429 as a wrong answer to an invalid credential
    for name in ("_guess_buckets", "_anonymous_buckets"):
        setattr(gateway.web.guard, name, RateLimitBuckets(wide, monotonic=time.monotonic))
    gateway.running.api_context.personal_requests = RateLimitBuckets(wide, monotonic=time.monotonic)
    await run_program(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        str(document),
        "--url",
        gateway.url,
        *(part for name, value in headers.items() for part in ("--header", f"{name}: {value}")),
        "--exclude-path",
        "/api/events",  # the stream never ends; tests/api/test_events.py tests it
        "--exclude-path",
        "/api/drain",  # nothing is ready afterwards; tests/hosts tests it
        "--phases",
        phases,
        "--checks",
        "all",
        "--max-examples",
        str(examples),
        "--seed",
        "3",
        "--exclude-checks",
        # The API does not accept 1.0 as an integer, and /v1 has no schema. Nobody gets 401 for every other method.
        "positive_data_acceptance" if token else "positive_data_acceptance,unsupported_method",
        "--workers",
        "1",  # CPython 3.11 raises a SystemError if two threads parse Python at once
        "--request-timeout",
        "100",
        "--no-shrink",
        "--warnings",
        "off",
        cwd=tmp_path,
        seconds=6 * LIMIT_SECONDS * examples / 3,
    )
    report = await gateway.running.session_admin.audit_store()
    assert not report.broken_findings
    assert "http.failed" not in gateway.log.getvalue()
    assert gateway.web.guard.response_counts[429] == 0, "no limit answers in place of a route"
    assert token or len(await gateway.running.store.read_feed()) == before, "nobody stores anything"
