"""The guard: authentication, limits of size, time and rate, and the redaction of secrets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from everhold.api import middleware as guard_module
from everhold.api.application import RouteDispatcher
from everhold.api.auth import (
    RequestHead,
    find_client_address,
    is_forwarded,
    is_https_request,
    is_same_origin,
    parse_request_head,
)
from everhold.api.rate_limits import RateLimit, RateLimitBuckets, get_peer_network
from everhold.api.route_types import ApiRoute
from everhold.app import SystemClock, get_local_user, load_home_settings
from everhold.config import ConfigError
from everhold.core.callers import CallerRole
from everhold.testing.model_server import ModelServer, VendorFailure
from tests.api.conftest import (
    ADA,
    BOB,
    ELSEWHERE,
    LOCAL,
    MODEL_KEY,
    OPERATOR,
    SECRETS,
    TOKENS,
    ApiGateway,
    configuration,
)
from tests.waiting import LIMIT_SECONDS, wait_until

As = Callable[[str], httpx2.AsyncClient]


def list_routes(gateway: ApiGateway) -> tuple[ApiRoute, ...]:
    """Return all routes of the running server."""
    routes = gateway.web.guard.inner_app
    assert isinstance(routes, RouteDispatcher)
    return routes.table


def fill_path(route: ApiRoute) -> str:
    return route.path.replace("{id}", "last").replace("{name}", "x.js").replace("{op}", "1")


# -- every route is closed ---------------------------------------------------------------------------------------------

WRONG = {
    "nothing": {},
    "wrong": {"authorization": f"Bearer {'x' * len(OPERATOR)}"},
    "empty": {"authorization": "Bearer"},
    "prefix": {"authorization": f"Bearer {OPERATOR[:-1]}"},
    "longer": {"authorization": f"Bearer {OPERATOR}x"},
    "no scheme": {"authorization": OPERATOR},
    "as a cookie": {"cookie": f"token={OPERATOR}"},
    "as a password": {"authorization": "Basic " + b64encode(f"boss:{OPERATOR}".encode()).decode()},
    "as a key": {"x-everhold-key": OPERATOR},
}
OPEN = {"POST /hooks/{name}", "GET /health", "GET /ready", "GET /", "GET /static/{name}", "POST /api/login"}
"""What answers without a credential."""


@pytest.mark.parametrize("how", WRONG)
async def test_every_route_needs_a_credential(gateway: ApiGateway, how: str) -> None:
    routes = [it for it in list_routes(gateway) if it.call not in OPEN]
    assert len(routes) > 50
    paths = [(it.method, fill_path(it)) for it in routes]
    async with gateway.client("", **WRONG[how]) as client:
        for method, path in [*paths, ("GET", "/nowhere"), ("DELETE", "/health"), ("OPTIONS", "/api/messages")]:
            answer = await client.request(method, path)
            assert answer.status_code in (401, 429), f"{method} {path} answered {answer.status_code}"
            assert set(answer.json()["error"]) == {"type", "message", "remedy"} if method != "HEAD" else True
    assert await gateway.running.store.read_feed() == []


async def test_only_the_health_and_the_files_of_the_console_are_open(gateway: ApiGateway) -> None:
    assert {it.call for it in list_routes(gateway) if it.least is CallerRole.ANYBODY} == OPEN
    async with gateway.client("") as client:
        for path, words in (("/health", {"status": "ok"}), ("/ready", {"status": "ready"})):
            assert (await client.get(path)).json() == words, "a stranger learns one word"
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/static/index.js")).status_code == 200
        assert (await client.get("/static/x.py")).status_code == 404
        assert (await client.post("/api/login", json={})).status_code == 400
    async with gateway.client(OPERATOR) as client:
        assert set((await client.get("/health")).json()) == {"status", "version", "role"}


async def test_a_changed_token_applies_to_the_next_request(gateway: ApiGateway, as_: As) -> None:
    new = "new-token-" + "7" * 40
    old = as_(OPERATOR)
    assert (await old.get("/metrics")).status_code == 200
    gateway.home.env.write_text(SECRETS.replace(OPERATOR, new))
    assert (await old.get("/metrics")).status_code == 401
    assert (await as_(new).get("/metrics")).status_code == 200


async def test_a_token_whose_secret_is_missing_or_empty_gives_no_access(gateway: ApiGateway) -> None:
    gateway.home.env.write_text(SECRETS.replace(f"TOKEN_BOSS={OPERATOR}", "TOKEN_BOSS="))
    for given in ("Bearer", "Bearer None", "Bearer ***", f"Bearer {OPERATOR}"):
        async with gateway.client("", authorization=given) as client:
            assert (await client.get("/metrics")).status_code == 401


# -- this machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    "127.0.0.1 localhost 127.0.0.1:8765 LOCALHOST:1 127.8.9.1 [::1]:8765 evil.example 0.0.0.0".split(),
)
async def test_loopback_is_no_credential_whatever_the_host(gateway: ApiGateway, host: str) -> None:
    async with gateway.client("", host=host) as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"authorization": f"Bearer {OPERATOR}"})).status_code == 200


@pytest.mark.parametrize(
    "header",
    "Origin X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto X-Forwarded-Anything Forwarded Via X-Real-IP Host "
    "True-Client-IP CF-Connecting-IP CF-Ray X-Client-IP X-Original-URL Fly-Client-IP X-Envoy-External-Address".split(),
)
async def test_no_header_replaces_a_credential(gateway: ApiGateway, header: str) -> None:
    async with gateway.client("") as client:
        for value in ("127.0.0.1", "", "for=127.0.0.1", gateway.url, "http://localhost"):
            assert (await client.get("/metrics", headers={header: value})).status_code in (401, 403)


async def test_an_http_1_0_request_needs_a_credential(gateway: ApiGateway) -> None:
    answer = await raw(gateway, b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401")


async def test_a_known_token_determines_the_speaker(gateway: ApiGateway) -> None:
    async with gateway.client("sk-none") as client:
        assert (await client.get("/metrics")).status_code == 401
    async with gateway.client(ADA) as client:
        assert (await client.get("/metrics")).status_code == 403
        assert (await client.get("/api/me")).json()["name"] == "ada"
    async with gateway.client(LOCAL) as client:
        told = (await client.get("/api/me")).json()
        assert (told["local"], told["role"], told["name"]) == (True, "operator", get_local_user())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2"])
async def test_a_gateway_that_listens_beyond_this_machine_without_a_token_does_not_start(
    tmp_path: Path, model: ModelServer, host: str
) -> None:
    gateway = ApiGateway(tmp_path, model)
    gateway.configure(configuration(model.openai, more=f'http: {{host: "{host}", port: 0}}\n'))
    assert load_home_settings(gateway.home, environ={}).http.host == host
    gateway.home.env.write_text(f"MODEL_KEY={MODEL_KEY}\n")
    with pytest.raises(ConfigError, match="without a token"):
        load_home_settings(gateway.home, environ={})


# -- proxies -----------------------------------------------------------------------------------------------------------


def forwarded(peer: str, **headers: str) -> RequestHead:
    raw_headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return parse_request_head("GET", "/", peer, "1.1", [(b"host", b"h"), *raw_headers])


def test_only_a_trusted_proxy_says_who_the_client_is() -> None:
    trusted = ("127.0.0.1", "10.0.0.0/8")
    for peer, given, client in (
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("::ffff:127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "127.0.0.1, 203.0.113.9", "203.0.113.9"),  # the client wrote the first
        ("127.0.0.1", "198.51.100.1, 203.0.113.9, 10.1.2.3", "203.0.113.9"),  # through two of our proxies
        ("127.0.0.1", "203.0.113.9, nonsense", "127.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.2", "203.0.113.9", "127.0.0.2"),
        ("198.51.100.7", "127.0.0.1", "198.51.100.7"),
        ("", "127.0.0.1", ""),
    ):
        assert find_client_address(forwarded(peer, x_forwarded_for=given), trusted) == client
        assert find_client_address(forwarded(peer, x_forwarded_for=given), ()) == peer
    assert is_https_request(forwarded("127.0.0.1", x_forwarded_proto="https"), trusted)
    assert is_https_request(forwarded("127.0.0.1", x_forwarded_proto="http, https"), trusted)
    assert not is_https_request(forwarded("127.0.0.1", x_forwarded_proto="https, http"), trusted)
    assert not is_https_request(forwarded("127.0.0.2", x_forwarded_proto="https"), trusted)
    assert not is_https_request(forwarded("127.0.0.1", x_forwarded_proto="https"), ())


@pytest.mark.parametrize("trusted", [True, False])
async def test_behind_a_trusted_proxy_each_client_has_its_own_rate(
    tmp_path: Path, model: ModelServer, trusted: bool
) -> None:
    gateway = ApiGateway(tmp_path, model)
    proxies = "port: 0\n  trusted_proxies: [127.0.0.1]" if trusted else "port: 0"
    gateway.configure(configuration(model.openai, more=TOKENS.replace("port: 0", proxies)))
    await gateway.start()
    try:
        async with gateway.client("") as client:
            async with asyncio.timeout(LIMIT_SECONDS):
                while (await client.get("/api/me", headers={"x-forwarded-for": "203.0.113.1"})).status_code != 429:
                    pass
            other = await client.get("/api/me", headers={"x-forwarded-for": "203.0.113.2"})
            assert other.status_code == (401 if trusted else 429)
    finally:
        await gateway.stop()


# -- other origins -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://localhost.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    ],
)
async def test_pages_of_other_origins_can_neither_read_nor_write(
    gateway: ApiGateway, client: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    for token in ({}, {"authorization": f"Bearer {OPERATOR}"}):
        assert (await client.get("/api/sessions", headers={**headers, **token})).status_code == 403
        body = {"chat": "x", "text": "hello"}
        assert (await client.post("/api/messages", json=body, headers={**headers, **token})).status_code == 403
    assert await gateway.running.store.read_feed() == []


async def test_the_console_and_a_link_to_it_work(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    own = {"origin": gateway.url, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert (await client.post("/api/messages", json={"chat": "x", "text": "a"}, headers=own)).status_code == 202
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await client.get("/", headers=linked)).status_code == 200
    framed = {**linked, "sec-fetch-dest": "iframe"}
    assert (await client.get("/", headers=framed)).status_code == 403


async def test_a_browser_must_send_json(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    own = {"origin": gateway.url, "content-type": "text/plain"}
    assert (await client.post("/api/messages", content=b'{"chat":"x","text":"a"}', headers=own)).status_code == 415


def test_no_cross_origin_permission_is_ever_given() -> None:
    head = parse_request_head("GET", "/", "127.0.0.1", "1.1", [(b"host", b"a:1"), (b"origin", b"http://A:1")])
    assert is_same_origin(head)
    assert not is_forwarded(head)


async def test_every_response_carries_the_strict_headers(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    answers = [await client.get(path) for path in ("/", "/api/sessions", "/nowhere", "/static/app.js", "/metrics")]
    async with gateway.client("") as outside:
        answers += [await outside.get("/"), await outside.get("/api/me")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
            "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


# -- size and time limits ----------------------------------------------------------------------------------------------

CREDENTIAL = f"Authorization: Bearer {LOCAL}\r\n".encode()
POST = b"POST /api/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n" + CREDENTIAL


async def raw(gateway: ApiGateway, data: bytes, *, seconds: float = LIMIT_SECONDS) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        writer.write(data)
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                await writer.drain()
                return await reader.read()
        return b""
    finally:
        writer.close()


async def test_a_content_length_with_very_many_digits_is_refused(gateway: ApiGateway) -> None:
    head = POST + b"Content-Length: " + b"0" * 5_000 + b"2\r\n\r\n{}"
    assert (await raw(gateway, head)).startswith(b"HTTP/1.1 413 ")
    assert "ValueError" not in gateway.log.getvalue()


@pytest.mark.parametrize("headers", [{}, ELSEWHERE], ids=["here", "elsewhere"])
async def test_a_body_that_is_too_large_is_refused(gateway: ApiGateway, headers: dict[str, str]) -> None:
    async with gateway.client(**headers) as client:
        answer = await client.post("/api/messages", content=b'{"chat":"x","text":"' + b"a" * (1 << 20) + b'"}')
    assert answer.status_code == 413
    assert await gateway.running.store.read_feed() == []


async def test_a_body_of_almost_a_megabyte_is_accepted(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    body = b'{"chat":"x","text":"' + b"a" * ((1 << 20) - 22) + b'"}'
    assert len(body) == 1 << 20
    assert (await client.post("/api/messages", content=body)).status_code == 202


def rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("headers", [b"", b"X-Forwarded-For: 1.2.3.4\r\n"], ids=["here", "elsewhere"])
async def test_an_endless_body_is_cut_off_and_not_kept(gateway: ApiGateway, headers: bytes) -> None:
    head = POST + b"Transfer-Encoding: chunked\r\n" + headers + b"\r\n"
    piece = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    before, sent = rss(), 0
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head)
    async with asyncio.timeout(LIMIT_SECONDS):
        with contextlib.suppress(ConnectionError):
            while sent < 10 << 30:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
    writer.close()
    assert sent < 200 << 20, "the gateway did not stop the body"
    assert rss() - before < 20 << 20
    assert await gateway.running.store.read_feed() == []


async def test_a_body_that_arrives_too_slowly_is_refused(gateway: ApiGateway) -> None:
    gateway.web.guard.body_seconds = 0.2
    head = POST + b"Content-Length: 30\r\n\r\n{"
    answer = await raw(gateway, head)
    assert answer.startswith(b"HTTP/1.1 408")
    assert guard_module.BODY_SECONDS == 5.0


async def test_two_hundred_slow_callers_do_not_block_others(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    # if the gateway waited for one of them, our own client would time out
    guard = gateway.web.guard
    guard.body_seconds = gateway.web.idle_seconds = 10 * LIMIT_SECONDS
    known = POST + b"Content-Length: 1000\r\n"
    stranger = b"POST /api/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
    beginnings = [known + b"\r\n{"] * 30 + [stranger + b"\r\n{"] * 100 + [known, stranger] * 35
    slow: list[asyncio.StreamWriter] = []
    try:
        for beginning in beginnings:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            slow.append(writer)
            writer.write(beginning)
        # all of them have arrived: 30 are read from, and 100 are refused
        await wait_until(lambda: guard.arriving == 30 and sum(guard.response_counts.values()) == 100)
        assert (await client.get("/health")).status_code == 200
        posted = await client.post("/api/messages", json={"chat": "x", "text": "a"})
        assert posted.status_code == 202
    finally:
        for writer in slow:
            writer.close()


async def test_a_connection_without_a_complete_request_is_closed(tmp_path: Path, model: ModelServer) -> None:
    gateway = ApiGateway(tmp_path, model)
    await gateway.start()
    gateway.web.sweep_seconds = 0.05
    async with gateway.client() as client, client.stream("GET", "/api/events") as events:
        lines = events.aiter_lines()
        assert await anext(lines)
        gateway.web.idle_seconds = 0.2
        for beginning in (b"", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
            assert await raw(gateway, beginning) == b""
        gateway.web.idle_seconds = LIMIT_SECONDS  # even if this machine sends the next byte slowly
        await client.post("/api/messages", json={"chat": "x", "text": "a"})
        async with asyncio.timeout(LIMIT_SECONDS):
            while "heard" not in await anext(lines):
                pass  # an open stream is not idle
    await gateway.stop()


async def test_a_connection_with_repeated_requests_stays_open(
    tmp_path: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 0.0
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: time.monotonic() + ahead)
    gateway = ApiGateway(tmp_path, model)
    await gateway.start()
    gateway.web.idle_seconds = LIMIT_SECONDS
    gateway.web.sweep_seconds = 0.01
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        for _ in range(30):  # mostly idle, and in total for longer than the idle limit
            writer.write(b"GET /api/me HTTP/1.1\r\nHost: 127.0.0.1\r\n" + CREDENTIAL + b"\r\n")
            async with asyncio.timeout(LIMIT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
            assert head.startswith(b"HTTP/1.1 200"), head
            ahead += LIMIT_SECONDS / 10
            await asyncio.sleep(0.03)
    finally:
        writer.close()
        await gateway.stop()


async def test_at_most_sixty_four_bodies_are_read_at_once_and_half_of_them_for_one_token(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    guard = gateway.web.guard
    guard.body_seconds = 10 * LIMIT_SECONDS  # no connection is closed before all are open
    slow: list[asyncio.StreamWriter] = []
    try:
        for token, arriving, status in ((LOCAL, 32, 429), (OPERATOR, 64, 503)):
            credential = f"Authorization: Bearer {token}\r\n".encode()
            for _ in range(40):
                _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                slow.append(writer)
                writer.write(b"POST /api/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n" + credential)
                writer.write(b"Content-Length: 1000\r\n\r\n{")
            await wait_until(functools.partial(lambda most: guard.arriving >= most, arriving))
            posted = await client.post("/api/messages", json={"chat": "x", "text": "a"})
            assert posted.status_code == status
            assert guard.arriving == arriving
        assert (await client.get("/health")).status_code == 200, "a request without a body needs no place"
    finally:
        for writer in slow:
            writer.close()
    await wait_until(lambda: not guard.arriving)
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("beginning", [b"GET /health", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ", b"\r\n"])
async def test_an_endless_request_head_is_refused(gateway: ApiGateway, beginning: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    sent = 0
    with contextlib.suppress(ConnectionError):
        writer.write(beginning)
        async with asyncio.timeout(LIMIT_SECONDS):
            while sent < 4_000_000:
                writer.write((b"\r\n" if beginning == b"\r\n" else b"aa") * 8_192)
                sent += 16_384
                await writer.drain()
                await asyncio.sleep(0)
    assert sent < 4_000_000, "it went on listening"
    with contextlib.suppress(ConnectionError):
        writer.close()


ENDLESS_FRAMING = {
    "trailers": (b"0\r\n", b"a: b\r\n"),
    "one trailer": (b"0\r\na: ", b"b"),
    "chunk extensions": (b"1;", b"a=b;"),
    "chunks of one byte": (b"", b"1\r\nx\r\n"),
}
"""What surrounds a chunked body: how it begins, and what is repeated."""
CALLS_WITH_A_BODY = {
    "POST": b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "GET": b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n" + CREDENTIAL,
}


@pytest.mark.parametrize("call", CALLS_WITH_A_BODY)
@pytest.mark.parametrize("framing", ENDLESS_FRAMING)
async def test_what_surrounds_a_body_is_bounded(gateway: ApiGateway, call: str, framing: str) -> None:
    """The parser keeps it, and no limit of bodies counts it."""
    gateway.web.guard.body_seconds = 10 * LIMIT_SECONDS
    beginning, repeated = ENDLESS_FRAMING[framing]
    piece, sent = repeated * (8_192 // len(repeated)), 0
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    with contextlib.suppress(ConnectionError):
        writer.write(CALLS_WITH_A_BODY[call] + b"Transfer-Encoding: chunked\r\n\r\n" + beginning)
        async with asyncio.timeout(LIMIT_SECONDS):
            while sent < 4_000_000:
                writer.write(piece)
                sent += len(piece)
                await writer.drain()
                await asyncio.sleep(0)
    assert sent < 4_000_000, "it went on listening"
    with contextlib.suppress(ConnectionError):
        writer.close()


async def test_a_body_in_small_chunks_is_accepted(gateway: ApiGateway) -> None:
    body = b'{"chat":"x","text":"' + b"a" * 200_000 + b'"}'
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in batch_bytes(body, 16))
    head = POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await raw(gateway, head + chunks + b"0\r\n\r\n")).startswith(b"HTTP/1.1 202 ")


def batch_bytes(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def test_a_trailer_is_no_header(gateway: ApiGateway) -> None:
    """A proxy checks and removes headers, and it may forward trailers as they are."""
    head = b"POST /api/logout HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await raw(gateway, head + b"0\r\n" + CREDENTIAL + b"X: y\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401 "), answer


SMUGGLED = (
    b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    b"Content-Length: 2, 3\r\n\r\n{}",
    b"Content-Length: +2\r\n\r\n{}",
    b"Content-Length : 2\r\n\r\n{}",
    b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    b"X: a\n\r\n",
    b"X: a\r\n folded\r\nContent-Length: 2\r\n\r\n{}",
    b"X: a\0b\r\nContent-Length: 2\r\n\r\n{}",
)
"""Requests that two HTTP parsers could interpret differently."""


@pytest.mark.parametrize("rest", SMUGGLED)
async def test_an_ambiguous_request_length_is_refused(gateway: ApiGateway, rest: bytes) -> None:
    head = POST + b"Content-Type: application/json\r\nConnection: close\r\n"
    answer = await raw(gateway, head + rest)
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert b'"error"' not in answer, "no request may have come of it"


async def test_duplicate_security_headers_are_refused(gateway: ApiGateway) -> None:
    for doubled in (b"Host: evil.example", b"Authorization: Bearer x\r\nAuthorization: Bearer y"):
        answer = await raw(gateway, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + doubled + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400"), answer[:100]


async def test_a_web_socket_is_not_opened(gateway: ApiGateway) -> None:
    head = b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\nConnection: Upgrade\r\n"
    head += b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    assert (await raw(gateway, head)).startswith(b"HTTP/1.1 403")


# -- rate limits -------------------------------------------------------------------------------------------------------


async def test_token_guessing_is_rate_limited_whatever_its_headers(gateway: ApiGateway) -> None:
    seen: list[int] = []
    began = time.monotonic()
    async with gateway.client() as client:
        assert (await client.get("/api/sessions")).status_code == 200
        for number in range(300):
            headers = {
                "authorization": f"Bearer guess-{number}",
                "x-forwarded-for": f"198.51.100.{number % 256}",
                "x-real-ip": f"192.0.2.{number % 256}",
                "user-agent": f"agent {number}",
                "x-everhold-person": f"p{number}",
                "cookie": f"session={number}",
                "host": f"h{number}.example",
                "idempotency-key": str(number),
            }
            seen.append((await client.get("/api/sessions", headers=headers)).status_code)
        rate = guard_module.GUESS_RATE  # on a busy machine the requests take longer, and more of them are allowed
        assert seen.count(401) <= rate.burst + 1 + rate.per_second * (time.monotonic() - began)
        assert set(seen) == {429, 401}
        assert (rate.burst, rate.per_second) == (10, 1 / 6)
        # a valid token is accepted all the same, because behind a proxy everybody has the same address
        late = {**ELSEWHERE, "authorization": f"Bearer {OPERATOR}"}
        assert (await client.get("/api/sessions", headers=late)).status_code == 200
        assert (await client.get("/api/sessions")).status_code == 200


async def test_token_guessing_does_not_lock_out_a_known_caller(gateway: ApiGateway, as_: As) -> None:
    ada = as_(ADA)
    assert (await ada.get("/api/sessions")).status_code == 200
    async with gateway.client("", **ELSEWHERE) as client:
        for number in range(50):
            await client.get("/api/me", headers={"authorization": f"Bearer guess-{number}"})
    assert (await ada.get("/api/sessions")).status_code == 200


async def test_the_health_is_answered_whatever_token_comes_with_the_request(gateway: ApiGateway) -> None:
    async with gateway.client("") as client:

        async def ask(path: str, token: str) -> httpx2.Response:
            return await client.get(path, headers={"authorization": f"Bearer {token}"})

        assert "version" in (await ask("/health", LOCAL)).json()
        seen = [await ask(path, f"guess-{number}") for number in range(20) for path in ("/health", "/ready")]
        assert {answer.status_code for answer in seen} == {200}
        assert (await ask("/api/me", "guess")).status_code == 429, "they count as guesses"
        # the answer to a right token must not differ now, because it would confirm the next guess
        assert (await ask("/health", LOCAL)).json() == (await ask("/health", "guess")).json() == {"status": "ok"}
        assert (await ask("/api/me", LOCAL)).status_code == 200, "guesses lock nobody out"


async def ask_from(gateway: ApiGateway, peer: str) -> int:
    """Send a request without a token from another machine, and return the status of its answer."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/api/me", "http_version": "1.1", "client": (peer, 1)}
    await gateway.web.guard({**scope, "headers": [(b"host", b"gateway.example")]}, receive, send)
    return int(sent[0]["status"])


async def test_one_machine_cannot_use_up_the_share_of_another(gateway: ApiGateway) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while await ask_from(gateway, "203.0.113.1") != 429:
            pass
    assert await ask_from(gateway, "203.0.113.2") == 401


async def test_one_account_cannot_use_up_the_rate_limit_of_another(
    gateway: ApiGateway, as_: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = as_(ADA)
    monkeypatch.setattr(guard_module, "_build_token_rate", lambda _: RateLimit(burst=5, per_second=0.001))
    assert [(await ada.get("/health")).status_code for _ in range(7)] == [200] * 5 + [429] * 2
    assert (await as_(BOB).get("/health")).status_code == 200


def test_a_rate_limit_refills_with_time_and_not_with_requests() -> None:
    now = 0.0
    buckets = RateLimitBuckets(RateLimit(burst=2, per_second=0.5), monotonic=lambda: now)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 2, 2]
    assert buckets.take("b") == 0
    now = 1.0
    assert buckets.take("a") == 1
    now = 2.0
    assert [buckets.take("a"), buckets.take("a")] == [0, 2]


def test_an_ipv6_network_counts_as_one_peer() -> None:
    assert get_peer_network("2001:db8:1:2::1") == get_peer_network("2001:db8:1:2:ffff::9")
    assert get_peer_network("2001:db8:1:2::1") != get_peer_network("2001:db8:1:3::1")
    assert get_peer_network("::ffff:192.0.2.1") == get_peer_network("192.0.2.1")


# -- secrets and internal errors ---------------------------------------------------------------------------------------


async def test_no_secret_is_in_any_response_or_log_line(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    model.add_steps(VendorFailure(kind="unauthorized"), VendorFailure(kind="unauthorized"))
    asked: dict[str, Any] = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
    answers = [await client.post("/v1/chat/completions", json=asked)]
    answers.append(await client.post("/v1/chat/completions", json=asked, headers={"x-everhold-session": "x"}))
    answers.append(await client.get("/v1/models"))
    for route in list_routes(gateway):
        if route.path != "/api/events":
            answers.append(await client.request(route.method, fill_path(route)))
    async with gateway.client(f"{ADA}x") as outside:
        answers.append(await outside.get("/"))
    texts = [answer.text + str(answer.headers) for answer in answers] + [gateway.log.getvalue()]
    await gateway.stop()
    texts += [path.read_bytes().decode("utf-8", "replace") for path in gateway.home.path.rglob("*") if path.is_file()]
    kept = [text for text in texts if SECRETS not in text]
    assert len(kept) == len(texts) - 1, "the .env file itself holds them"
    for secret in (MODEL_KEY, OPERATOR, LOCAL, ADA, BOB):
        assert not [text for text in kept if secret in text]


async def test_an_internal_error_is_reported_without_details(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    routes = gateway.web.guard.inner_app
    assert isinstance(routes, RouteDispatcher)
    matcher, route = routes._routes[0]

    async def broken(call: object) -> Any:
        raise ZeroDivisionError("the secret recipe")

    routes._plain.clear()
    routes._routes[0] = (matcher, msgspec.structs.replace(route, handler=broken))
    answer = await client.request(route.method, route.path)
    assert answer.status_code == 500
    assert "recipe" not in answer.text
    assert set(answer.json()["error"]) == {"type", "message", "remedy"}
