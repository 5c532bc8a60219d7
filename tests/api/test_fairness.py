"""One abusive client leaves room for the others, and operators always have room."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.api import context as context_module, server as server_module
from everhold.api.idempotency import IdempotentTasks, TaskKey
from everhold.api.rate_limits import SlotCounter
from everhold.errors import Transient
from everhold.infra.connection_pool import ConnectionPool
from everhold.testing.model_server import ModelServer
from tests.api.conftest import ADA, BOB, ELSEWHERE, LOCAL, OPERATOR, TOKENS, ApiGateway, configuration
from tests.waiting import LIMIT_SECONDS, wait_until

As = Callable[[str], httpx2.AsyncClient]


@contextlib.asynccontextmanager
async def open_gateway(path: Path, model: ModelServer, quotas: str = "{}") -> AsyncIterator[ApiGateway]:
    gateway = ApiGateway(path, model)
    gateway.configure(configuration(model.openai, more=f"{TOKENS}quotas: {quotas}\n"))
    try:
        yield await gateway.start()
    finally:
        await gateway.stop()


def make_slow_post(token: str) -> bytes:
    return (
        b"POST /api/messages HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.9\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: 1000\r\n\r\n{" % token.encode()
    )


async def test_one_caller_cannot_use_up_the_tasks_with_a_key() -> None:
    tasks = IdempotentTasks[bool](monotonic=lambda: 0.0)
    left = [tasks.start(TaskKey("token:bob", f"user {n}", str(n)), b"", asyncio.Event().wait) for n in range(64)]
    with pytest.raises(Transient):
        tasks.start(TaskKey("token:bob", "new", "more"), b"", asyncio.Event().wait)
    left.append(tasks.start(TaskKey("token:ada", "ada", "1"), b"", asyncio.Event().wait))
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    tasks.start(TaskKey("token:bob", "new", "more"), b"", asyncio.Event().wait).cancel()


async def test_one_operator_token_leaves_streams_and_bodies_to_the_others(
    gateway: ApiGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, guard = gateway.web.context, gateway.web.guard
    monkeypatch.setattr(context, "operator_streams", SlotCounter(2))
    guard.operator_bodies = SlotCounter(2)
    async with contextlib.AsyncExitStack() as stack:

        async def open_stream(token: str) -> int:
            client = await stack.enter_async_context(gateway.client(token))
            return (await stack.enter_async_context(client.stream("GET", "/api/events"))).status_code

        assert [await open_stream(OPERATOR), await open_stream(OPERATOR), await open_stream(LOCAL)] == [200, 429, 200]
        assert guard.operator_bodies.take("token:boss", most=1)
        for token, status in ((OPERATOR, 429), (LOCAL, 202)):
            client = await stack.enter_async_context(gateway.client(token))
            assert (await client.post("/api/messages", json={"chat": "x", "text": "a"})).status_code == status


# -- slots -------------------------------------------------------------------------------------------------------------


def test_slots_are_limited_by_key_and_in_total() -> None:
    slots = SlotCounter(3)
    assert [slots.take("a", most=2) for _ in range(3)] == [True, True, False]
    assert not slots.is_full()
    assert [slots.take("b", most=2), slots.take("b", most=2)] == [True, False]
    assert slots.is_full()
    slots.release("a")
    assert slots.take("b", most=2)
    for key in ("a", "b", "b"):
        slots.release(key)
    assert slots.used == 0
    assert slots._by_key == {}, "a caller who left takes no memory"


class FakeConnection:
    def __init__(self, name: str, peer: str = "p", *, idle: bool = True, proven: bool = False) -> None:
        self.name, self.peer, self.is_proven = name, peer, proven
        self._idle = idle
        self.closed = False

    def is_idle(self) -> bool:
        return self._idle

    def close_idle(self) -> None:
        self.closed = True


def fill(most: int, *connections: FakeConnection) -> ConnectionPool:
    pool = ConnectionPool(most)
    assert all(pool.add(it) for it in connections)
    return pool


def test_a_full_pool_closes_the_oldest_idle_connection() -> None:
    busy, old, young = FakeConnection("busy", idle=False), FakeConnection("old"), FakeConnection("young")
    pool = fill(3, busy, old, young)
    assert pool.add(FakeConnection("new"))
    assert (busy.closed, old.closed, young.closed, len(pool)) == (False, True, False, 3)


def test_the_peer_with_the_most_connections_loses_one() -> None:
    honest, *greedy = FakeConnection("h", "honest"), FakeConnection("1", "greedy"), FakeConnection("2", "greedy")
    pool = fill(3, honest, *greedy)
    assert pool.add(FakeConnection("new", "another"))
    assert (honest.closed, [it.closed for it in greedy]) == (False, [True, False])


def test_a_connection_with_a_token_is_closed_after_those_without() -> None:
    proven, half_open = FakeConnection("proven", proven=True), FakeConnection("half open")
    pool = fill(2, proven, half_open)
    assert pool.add(FakeConnection("a"))
    assert (proven.closed, half_open.closed) == (False, True)


def test_a_used_connection_is_not_the_oldest() -> None:
    first, second = FakeConnection("first"), FakeConnection("second")
    pool = fill(2, first, second)
    pool.touch(first)
    assert pool.add(FakeConnection("new"))
    assert (first.closed, second.closed) == (False, True)


def test_a_pool_of_busy_connections_refuses_a_new_one() -> None:
    pool = fill(1, FakeConnection("busy", idle=False))
    assert not pool.add(FakeConnection("new"))
    assert len(pool) == 1


# -- attacks -----------------------------------------------------------------------------------------------------------


async def test_half_open_heads_do_not_keep_others_out(
    tmp_path: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 50)
    async with open_gateway(tmp_path, model) as gateway:
        gateway.web.idle_seconds = 10 * LIMIT_SECONDS  # nobody is closed for being slow
        half_open = []
        try:
            for _ in range(120):
                _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                half_open.append(writer)
            async with gateway.client(ADA) as ada, gateway.client(OPERATOR) as operator:
                for _ in range(10):
                    assert (await ada.get("/health")).status_code == 200
                    assert (await operator.get("/health")).status_code == 200
            assert len(gateway.web.pool) <= 50
            assert gateway.web.pool.closed >= 70
        finally:
            for writer in half_open:
                writer.close()
        await wait_until(lambda: len(gateway.web.pool) == 0)


async def test_slow_bodies_without_a_credential_keep_nobody_from_logging_in(
    tmp_path: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 50)
    async with open_gateway(tmp_path, model) as gateway:
        gateway.web.guard.body_seconds = gateway.web.idle_seconds = 10 * LIMIT_SECONDS  # nobody is closed as too slow
        slow = []
        try:
            for _ in range(120):
                _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                writer.write(b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
                slow.append(writer)
            await wait_until(lambda: gateway.web.pool.closed >= 70)
            async with gateway.client("") as page, gateway.client(BOB) as bob:
                assert (await page.post("/api/login", json={"token": ADA})).status_code == 200
                assert (await bob.post("/api/messages", json={"chat": "x", "text": "a"})).status_code == 202
        finally:
            for writer in slow:
                writer.close()


@pytest.mark.parametrize("way", ["sweep", "make room"])
async def test_a_client_that_does_not_read_loses_its_connection(
    tmp_path: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(server_module, "SWEEP_SECONDS", 0.01)
    async with open_gateway(tmp_path, model) as gateway:
        if way == "make room":
            gateway.web.idle_seconds = 10 * LIMIT_SECONDS
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            silent.connect(("127.0.0.1", gateway.port))
            silent.sendall(b"GET /static/preact.js HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
            await wait_until(lambda: len(gateway.web.pool) == 1)
            (connection,) = gateway.web.pool._connections
            transport: Any = connection.transport  # type: ignore[attr-defined]
            await wait_until(lambda: transport.get_write_buffer_size() > 0)
            if way == "sweep":
                gateway.web.idle_seconds = 0.0
            else:
                async with gateway.client(ADA) as ada:
                    assert (await ada.get("/health")).status_code == 200
            await wait_until(lambda: connection not in gateway.web._uvicorn.server_state.connections)


async def test_refused_requests_and_wrong_logins_of_one_address_keep_nobody_from_logging_in(
    gateway: ApiGateway, as_: As
) -> None:
    page = as_("")
    while (await page.get("/api/me")).status_code != 429:
        continue
    while (await page.post("/api/login", json={"token": "x" * 40})).status_code != 429:
        continue
    assert (await page.post("/api/login", json={"token": ADA})).status_code == 200


async def test_a_caller_without_a_credential_can_send_little(as_: As) -> None:
    long = await as_("").post("/api/login", json={"token": "x" * 20_000})
    assert (long.status_code, long.json()["error"]["message"]) == (413, "a request may have at most 16,384 bytes")


async def test_slow_bodies_of_one_token_do_not_keep_others_out(gateway: ApiGateway, as_: As) -> None:
    guard = gateway.web.guard
    guard.body_seconds = 10 * LIMIT_SECONDS
    slow = []
    try:
        for _ in range(64):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(make_slow_post(ADA))
            slow.append(writer)
        await wait_until(lambda: guard.response_counts[429] == 56)
        assert guard.arriving == 8
        own = await as_(ADA).post("/api/messages", json={"chat": "x", "text": "a"})
        assert (own.status_code, own.headers["retry-after"]) == (429, "1")
        for token in (BOB, OPERATOR):
            posted = await as_(token).post("/api/messages", json={"chat": "x", "text": "a"})
            assert posted.status_code == 202
    finally:
        for writer in slow:
            writer.close()
    await wait_until(lambda: not guard.arriving)


async def test_many_tokens_cannot_use_up_the_bodies_of_operators(gateway: ApiGateway, as_: As) -> None:
    guard = gateway.web.guard
    guard.bodies = SlotCounter(1)
    assert guard.bodies.take("token:other", most=1)
    refused = await as_(ADA).post("/api/messages", json={"chat": "x", "text": "a"})
    assert refused.status_code == 503
    posted = await as_(OPERATOR).post("/api/messages", json={"chat": "x", "text": "a"})
    assert posted.status_code == 202


async def test_requests_at_once_are_limited_by_token(tmp_path: Path, model: ModelServer) -> None:
    async with (
        open_gateway(tmp_path, model, "{token: {requests_at_once: 3}}") as gateway,
        contextlib.AsyncExitStack() as open_streams,
    ):
        ada, bob = gateway.client(ADA), gateway.client(BOB)
        for _ in range(3):
            stream = await open_streams.enter_async_context(ada.stream("GET", "/api/events"))
            assert stream.status_code == 200
        assert (await ada.get("/health")).status_code == 429
        assert (await bob.get("/health")).status_code == 200
        await open_streams.aclose()
        await wait_until(lambda: gateway.web.guard.requests.used == 0)
        assert (await ada.get("/health")).status_code == 200
        await ada.aclose()
        await bob.aclose()


async def test_event_streams_are_limited_by_token_and_operators_have_their_own(
    tmp_path: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "MAX_STREAMS", 3)
    async with (
        open_gateway(tmp_path, model, "{token: {event_streams: 2}}") as gateway,
        contextlib.AsyncExitStack() as open_streams,
    ):
        clients = {token: gateway.client(token) for token in (ADA, BOB, OPERATOR)}

        async def open_stream(token: str) -> int:
            response = await open_streams.enter_async_context(clients[token].stream("GET", "/api/events"))
            return response.status_code

        assert [await open_stream(ADA) for _ in range(3)] == [200, 200, 429]
        assert [await open_stream(BOB) for _ in range(2)] == [200, 503], "all streams are open"
        assert [await open_stream(OPERATOR) for _ in range(4)] == [200] * 4
        await open_streams.aclose()
        context = gateway.running.api_context
        await wait_until(lambda: (context.streams.used, context.operator_streams.used) == (0, 0))
        for client in clients.values():
            await client.aclose()


async def test_wrong_tokens_behind_a_proxy_do_not_lock_out_right_ones(gateway: ApiGateway, as_: As) -> None:
    async with gateway.client(**ELSEWHERE) as guesser:
        seen = [
            (await guesser.get("/api/status", headers={"authorization": f"Bearer guess-{n}"})).status_code
            for n in range(40)
        ]
    assert seen[-1] == 429
    for token in (ADA, OPERATOR):  # neither was used before
        assert (await as_(token).get("/health")).status_code == 200


async def test_a_token_has_one_rate_from_all_addresses(tmp_path: Path, model: ModelServer) -> None:
    async with open_gateway(tmp_path, model, "{token: {requests_per_second: 1}}") as gateway:
        gateway.web.guard.token_buckets._monotonic = lambda: 0.0

        async def ask(peer: str, token: str) -> int:
            sent = []

            async def receive() -> dict[str, object]:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: object) -> None:
                sent.append(message)

            headers = [(b"host", b"x"), (b"authorization", f"Bearer {token}".encode())]
            scope = {"type": "http", "method": "GET", "path": "/health", "http_version": "1.1", "headers": headers}
            await gateway.web.guard({**scope, "client": (peer, 1), "query_string": b""}, receive, send)
            return int(sent[0]["status"])  # type: ignore[index]

        seen = [await ask(f"203.0.113.{n}", ADA) for n in range(7)]
        assert seen == [200] * 5 + [429] * 2
        assert await ask("203.0.113.1", BOB) == 200
        assert await ask("203.0.113.1", OPERATOR) == 200


# -- messages ----------------------------------------------------------------------------------------------------------


async def test_a_refused_message_is_429_with_retry_after_and_operators_are_not_refused(
    tmp_path: Path, model: ModelServer
) -> None:
    async with open_gateway(tmp_path, model, "{member: {messages_per_minute: 2}}") as gateway:
        async with gateway.client(ADA) as ada, gateway.client(OPERATOR) as operator:
            sent = [await ada.post("/api/messages", json={"chat": "x", "text": "a", "id": str(n)}) for n in range(4)]
            assert [it.status_code for it in sent] == [202, 202, 429, 429]
            assert 1 <= int(sent[2].headers["retry-after"]) <= 60
            assert sent[2].json()["error"]["type"] == "quota"
            again = await ada.post("/api/messages", json={"chat": "x", "text": "a", "id": "1"})
            assert again.status_code == 200, "a repeated message is stored already"
            asked = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
            headers = {"x-everhold-session": "x"}
            assert (await ada.post("/v1/chat/completions", json=asked, headers=headers)).status_code == 429
            for n in range(5):
                posted = await operator.post("/api/messages", json={"chat": "x", "text": "a", "id": f"o{n}"})
                assert posted.status_code == 202
            status = (await operator.get("/api/status")).json()
            assert [(it["subject"], it["quota"], it["count"]) for it in status["limited"]] == [
                ("sender:http:ada", "messages_per_minute", 3)
            ]
            metrics = (await operator.get("/metrics")).text
            assert 'everhold_messages_limited_total{quota="messages_per_minute"} 3' in metrics


@pytest.mark.parametrize("quota", ["messages_per_minute: 4", "bytes_per_day: 3500"])
async def test_a_note_counts_like_a_message(tmp_path: Path, model: ModelServer, quota: str) -> None:
    async with open_gateway(tmp_path, model, f"{{member: {{{quota}, waiting_messages: 2}}}}") as gateway:
        async with gateway.client(ADA) as ada, gateway.client(OPERATOR) as operator:
            session = (await ada.post("/api/messages", json={"chat": "x", "text": "a"})).json()["session"]
            note = {"session": session, "text": "n" * 1_000}
            noted = [await ada.post("/api/notes", json=note) for _ in range(5)]
            assert [it.status_code for it in noted] == [202, 202, 202, 429, 429]
            assert int(noted[-1].headers["retry-after"]) >= 1
            assert (await operator.post("/api/notes", json=note)).status_code == 202
            kinds = [entry["kind"] for entry in await gateway.entries(session)]
            assert kinds.count("noted") == 4, "a refused note is not stored"
            limited = (await operator.get("/api/status")).json()["limited"]
            assert [(it["subject"], it["count"]) for it in limited] == [("sender:http:ada", 2)]


async def test_daily_spend_is_limited_for_people_who_are_not_owners(tmp_path: Path, model: ModelServer) -> None:
    async with open_gateway(tmp_path, model, "{spend: {tokens_per_day: 10}}") as gateway:
        asked = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
        for headers in ({}, {"x-everhold-session": "x"}):
            async with gateway.client(ADA) as ada, gateway.client(OPERATOR) as operator:
                refused = await ada.post("/v1/chat/completions", json=asked, headers=headers)
                assert refused.status_code >= 400
                assert "today's budget of person:http:ada" in refused.text
                assert (await operator.post("/v1/chat/completions", json=asked, headers=headers)).status_code == 200
