"""The description of the API is true: for a machine that asks whatever it allows, and for people who read it."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx2
import pytest

from everhold.web import openapi
from everhold.web.reference import render, table
from tests.waiting import LIMIT_SECONDS
from tests.web.conftest import ELSEWHERE, OPERATOR, Gateway
from tests.web.programs import run

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"


def test_the_reference_page_is_current() -> None:
    remedy = "python -m everhold.web.reference > docs/reference/http.md"
    assert PAGE.read_text(encoding="utf-8") == render(), remedy


async def test_every_route_is_described_and_nothing_else(client: httpx2.AsyncClient) -> None:
    described = (await client.get("/openapi.json")).json()
    assert described == openapi.document(table())
    found = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert found == {(way.method, way.path) for way in table()}
    names = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)


def test_every_route_says_what_it_does() -> None:
    for way in table():
        assert way.summary[0].isupper(), way.path
        assert all(parameter.about.endswith(".") for parameter in way.parameters), way.path
        assert {name for name in way.path.split("/") if name.startswith("{")} == {
            f"{{{parameter.name}}}" for parameter in way.parameters if parameter.where == "path"
        }


@pytest.mark.slow
@pytest.mark.parametrize("phases", ["examples,fuzzing", pytest.param("coverage", marks=pytest.mark.prove)])
async def test_whatever_the_description_allows_is_answered_as_it_says(
    gateway: Gateway, tmp_path: Path, phases: str
) -> None:
    async with gateway.client() as client:
        session = (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).json()["session"]
    await gateway.rested(session)
    headers = {**ELSEWHERE, "Authorization": f"Bearer {OPERATOR}"}
    await run(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{gateway.url}/openapi.json",
        *(part for name, value in headers.items() for part in ("--header", f"{name}: {value}")),
        "--exclude-path",
        "/api/events",  # it never ends; tests/web/test_events.py asks it
        "--phases",
        phases,
        "--checks",
        "all",
        "--max-examples",
        "3",
        "--seed",
        "3",
        "--exclude-checks",
        "positive_data_acceptance",  # 1.0 is no whole number here, and /v1 has no schema of its own
        "--workers",
        "1",  # two threads that parse Python at once meet a fault of CPython 3.11 (a SystemError)
        "--request-timeout",
        "100",
        "--no-shrink",
        "--warnings",
        "off",
        cwd=tmp_path,
        seconds=6 * LIMIT_SECONDS,
    )
    report = await gateway.running.control.audit()
    assert not report.broken
    assert "http.failed" not in gateway.log.getvalue()
