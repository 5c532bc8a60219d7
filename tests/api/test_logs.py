"""Log lines over HTTP: the last ones from the file in either format, and those that come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest

from everhold.api import console_schemas, logs
from everhold.telemetry.log_file import LogFilter
from tests.api.conftest import ADA, LOCAL, MODEL_KEY, ApiGateway, listen_to_events
from tests.waiting import wait_until

As = Callable[[str], httpx2.AsyncClient]


async def read_lines(client: httpx2.AsyncClient, **query: str | int) -> list[dict[str, Any]]:
    answer = await client.get("/api/logs", params=query)
    assert answer.status_code == 200, answer.text
    return msgspec.convert(answer.json(), console_schemas.LogLinesResponse).lines


async def test_the_last_lines_are_listed_and_filtered(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    log = gateway.running.log
    log.info("turn.started", session="s1", op=1)
    log.warning("memory.failing", memory="far", error="it said: nothing")
    log.error("store.failed", session="s1", error=RuntimeError(f"the key is {MODEL_KEY}"))
    assert [it["event"] for it in await read_lines(client, limit=3)] == [
        "turn.started",
        "memory.failing",
        "store.failed",
    ]
    assert [it["event"] for it in await read_lines(client, level="error")] == ["store.failed"]
    assert {it["event"] for it in await read_lines(client, event="memory.")} == {"memory.failing"}
    assert [it["event"] for it in await read_lines(client, session="s1")] == ["turn.started", "store.failed"]
    assert [it["event"] for it in await read_lines(client, q="SAID: nothing")] == ["memory.failing"]
    assert MODEL_KEY not in str(await read_lines(client))
    assert (await client.get("/api/logs?level=loud")).status_code == 400


async def test_new_lines_follow_the_last_ones_without_a_gap_and_without_a_repeat(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    log = gateway.running.log
    log.info("turn.started", session="s1", op=1)
    async with listen_to_events(client, "/api/logs?stream=1&limit=1&session=s1") as events:
        first, live = await anext(events), await anext(events)
        assert (first.event, first["op"], live.event) == ("line", 1, "live")
        log.info("turn.started", session="s2", op=9)
        log.info("turn.started", session="s1", op=2)
        other = threading.Thread(target=log.warning, args=("tool.failed",), kwargs={"session": "s1", "op": 3})
        other.start()
        other.join()
        second, third = await anext(events), await anext(events)
    assert [(it.event, it["event"], it["op"]) for it in (second, third)] == [
        ("line", "turn.started", 2),
        ("line", "tool.failed", 3),
    ]
    assert set(first) == set(second)
    await wait_until(lambda: not log._outlet.watchers)  # the stream has ended, so nothing is built for it any more


async def test_a_reader_that_is_too_slow_is_told_how_much_it_missed(
    gateway: ApiGateway, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING_LINES", 3)
    async with listen_to_events(client, "/api/logs?stream=1&limit=0&event=turn.") as events:
        assert (await anext(events)).event == "live"
        for number in range(5):
            gateway.running.log.info("turn.started", op=number)
        lost = await anext(events)
        seen = [(await anext(events))["op"] for _ in range(3)]
    assert (lost.event, lost["lines"], seen) == ("lost", 2, [2, 3, 4])


async def test_only_operators_read_the_log(gateway: ApiGateway, as_: As) -> None:
    assert (await as_(ADA).get("/api/logs")).status_code == 403
    assert (await as_(ADA).get("/api/logs?stream=1")).status_code == 403
    assert (await as_(LOCAL).get("/api/logs")).status_code == 200


def test_a_filter_takes_lines_of_programs_for_information() -> None:
    assert LogFilter().matches({"text": "Traceback"})
    assert LogFilter(words="trace").matches({"text": "Traceback"})
    assert not LogFilter(level="warning").matches({"text": "Traceback"})
