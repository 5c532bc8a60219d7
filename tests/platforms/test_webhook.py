"""Webhooks: only the platform may call, sizes are limited, and an update is acknowledged after the commit."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from everhold.errors import StoreFull
from everhold.infra.secret import SecretString
from everhold.platforms import webhook
from everhold.platforms.telegram.adapter import TelegramPlatform
from everhold.platforms.telegram.settings import TelegramSettings, TelegramWebhookSettings
from everhold.platforms.webhook import WebhookServer
from everhold.ports.plugin import PluginContext
from everhold.testing.contracts.platform import PlatformHarness
from everhold.testing.platforms.telegram import TelegramServer
from tests.platforms.remote_telegram import TOKEN, RemoteTelegram
from tests.waiting import LIMIT_SECONDS, wait_until

SECRET = "a-secret-that-only-telegram-knows-0123456789"
HEADER = "X-Telegram-Bot-Api-Secret-Token"


class RemoteTelegramWebhook(RemoteTelegram):
    def build_adapter(self, context: PluginContext) -> TelegramPlatform:
        webhook = TelegramWebhookSettings(url="https://proxy.example/hook/main", port=0)
        settings = TelegramSettings(
            token=SecretString(TOKEN), base_url=self.server.url, webhook=webhook, webhook_secret=SecretString(SECRET)
        )
        return TelegramPlatform(settings, context)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[PlatformHarness]:
    async with TelegramServer() as server:
        server.add_bot(TOKEN)
        harness = PlatformHarness(RemoteTelegramWebhook(server), tmp_path)
        harness.start()

        async def announced() -> bool:
            return bool(harness.healthy_reports)

        await harness.wait_until(announced, what="the webhook being announced")
        assert server.bots[TOKEN].webhook == "https://proxy.example/hook/main"
        yield harness
        await harness.close()


def update(text: str = "hello", id: int = 1) -> dict[str, Any]:
    user = {"id": 1001, "is_bot": False, "first_name": "Ada"}
    chat = {"id": 1001, "type": "private"}
    return {"update_id": id, "message": {"message_id": id, "date": 1, "chat": chat, "from": user, "text": text}}


async def call(
    harness: PlatformHarness,
    body: bytes | None = None,
    *,
    path: str = "/hook/main",
    secret: bytes | None = SECRET.encode(),
) -> int:
    assert isinstance(harness.platform, TelegramPlatform)
    given = {} if secret is None else {HEADER.encode(): secret}
    async with httpx2.AsyncClient() as client:
        url = f"http://127.0.0.1:{harness.platform.port}{path}"
        sent = json.dumps(update()).encode() if body is None else body
        return (await client.post(url, content=sent, headers=given)).status_code


async def test_an_update_is_committed_and_then_acknowledged(harness: PlatformHarness) -> None:
    assert await call(harness) == 200
    assert await harness.read_texts() == ["hello"]
    assert await call(harness) == 200, "sent again, and recognised as a duplicate"
    assert await harness.read_texts() == ["hello"]


@pytest.mark.parametrize("given", [None, "", SECRET[:-1], SECRET + "x", SECRET.upper(), SECRET[::-1], "ü"])
async def test_a_call_without_the_secret_is_refused(harness: PlatformHarness, given: str | None) -> None:
    assert await call(harness, secret=None if given is None else given.encode()) == 401
    assert await harness.read_texts() == []


async def test_only_one_path_and_method_are_served(harness: PlatformHarness) -> None:
    assert await call(harness, path="/hook/other") == 404
    assert await call(harness, path="/") == 404
    assert isinstance(harness.platform, TelegramPlatform)
    async with httpx2.AsyncClient() as client:
        found = await client.get(f"http://127.0.0.1:{harness.platform.port}/hook/main", headers={HEADER: SECRET})
    assert found.status_code == 405


async def test_an_unparsable_update_is_acknowledged_and_stored_if_its_sender_can_be_read(
    harness: PlatformHarness,
) -> None:
    assert await call(harness, b"\xff not json") == 200
    assert await call(harness, b'{"update_id": 5, "message": {"chat": 7, "from": {"id": 1001}}}') == 200
    assert [body.asks for body in await harness.read_heard()] == [False]


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(harness: PlatformHarness) -> None:
    assert await call(harness, b"x" * (1 << 20) + b"x") == 413
    assert await harness.read_texts() == []


async def test_an_update_that_was_not_committed_is_sent_again(harness: PlatformHarness) -> None:
    async def full(body: bytes) -> None:
        raise StoreFull("no room")

    assert await status(WebhookServer(path="/", proof=lambda *_: True, accept_body=full), b"{}") == 503


async def test_a_missing_body_times_out() -> None:
    async def taken(body: bytes) -> None:
        raise AssertionError("nothing came")

    hook = WebhookServer(path="/", proof=lambda *_: True, accept_body=taken, seconds=0.05)
    assert await status(hook, None) == 408


async def test_a_body_without_a_length_ends_at_the_limit() -> None:
    async def taken(body: bytes) -> None:
        raise AssertionError("too much came")

    hook = WebhookServer(path="/", proof=lambda *_: True, accept_body=taken, most_bytes=1000)
    assert await status(hook, b"x" * 400, endless=True) == 413


async def status(hook: WebhookServer, body: bytes | None, *, endless: bool = False) -> int:
    """Return a webhook's answer to a body, to one that never comes (None), or to one that never ends."""
    seen: list[int] = []

    async def receive() -> dict[str, Any]:
        if body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": endless}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen.append(message["status"])

    await hook({"type": "http", "path": "/", "method": "POST", "headers": []}, receive, send)
    return seen[0]


@pytest.mark.parametrize("secret", ["", " ", "short", "x" * 31, "with spaces in it, which telegram does not take"])
def test_without_a_valid_secret_the_webhook_does_not_start(secret: str) -> None:
    webhook = TelegramWebhookSettings(url="https://proxy.example/hook")
    with pytest.raises(ValidationError):
        TelegramSettings(token=SecretString(TOKEN), webhook=webhook, webhook_secret=SecretString(secret))
    with pytest.raises(ValidationError):
        TelegramSettings(token=SecretString(TOKEN), webhook=webhook)
    with pytest.raises(ValidationError):
        TelegramWebhookSettings(url="http://proxy.example/hook")


async def test_a_port_in_use_is_reported(harness: PlatformHarness) -> None:
    from everhold.errors import Refused

    assert isinstance(harness.platform, TelegramPlatform)
    hook = WebhookServer(path="/", proof=lambda *_: True, accept_body=lambda _: asyncio.sleep(0))
    with pytest.raises(Refused):
        await hook.serve(host="127.0.0.1", port=harness.platform.port)


async def open_raw(harness: PlatformHarness) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    assert isinstance(harness.platform, TelegramPlatform)
    return await asyncio.open_connection("127.0.0.1", harness.platform.port)


@pytest.mark.parametrize(
    "beginning, repeated",
    [
        (b"POST /hook/main HTTP/1.1\r\nX-Long: ", b"a"),
        (b"POST /hook/main HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
        (b"POST /hook/main HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a=b;"),
    ],
    ids=["head", "trailers", "chunk extension"],
)
async def test_an_endless_head_is_cut_off(harness: PlatformHarness, beginning: bytes, repeated: bytes) -> None:
    _, writer = await open_raw(harness)
    sent = 0
    with contextlib.suppress(ConnectionError):
        writer.write(beginning)
        async with asyncio.timeout(LIMIT_SECONDS):
            while sent < 4_000_000:
                writer.write(repeated * (8_192 // len(repeated)))
                sent += 8_192
                await writer.drain()
                await asyncio.sleep(0)
    assert sent < 4_000_000, "it went on listening"
    with contextlib.suppress(ConnectionError):
        writer.close()


async def test_a_secret_in_a_trailer_proves_nothing(harness: PlatformHarness) -> None:
    reader, writer = await open_raw(harness)
    writer.write(b"POST /hook/main HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"0\r\n" + f"{HEADER}: {SECRET}\r\nX: y\r\n\r\n".encode())
    assert (await reader.read()).startswith(b"HTTP/1.1 401")
    writer.close()


async def test_a_connection_without_a_request_is_closed(
    harness: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "HEAD_SECONDS", 0.05)
    for beginning in (b"", b"POST /hook/main HTTP/1.1\r\n", b"GET /x HTTP/1.1\r\nHost: x\r\n\r\nGET"):
        reader, writer = await open_raw(harness)
        writer.write(beginning)
        async with asyncio.timeout(LIMIT_SECONDS):
            await reader.read()  # ends when the connection is closed
        writer.close()


# -- strangers, who need no secret to send something slowly ------------------------------------------------------------


class ServedHook:
    """A webhook whose proof is a word in the body, as a signature needs the whole body."""

    def __init__(self, **options: Any) -> None:
        self.bodies: list[bytes] = []
        self.server = WebhookServer(
            path="/hook", proof=lambda _, body: body == b"signed", accept_body=self._take, **options
        )
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def _take(self, body: bytes) -> None:
        self.bodies.append(body)

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[ServedHook]:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self.server.serve(host="127.0.0.1", port=0, ready=port.set_result))
        self.port = await port
        try:
            yield self
        finally:
            for writer in self._writers:
                writer.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def open(self, beginning: bytes, times: int) -> list[asyncio.StreamReader]:
        opened = []
        for _ in range(times):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(beginning)
            await writer.drain()
            self._writers.append(writer)
            opened.append(reader)
        return opened

    async def call(self) -> int:
        async with httpx2.AsyncClient(trust_env=False) as client:
            return (await client.post(f"http://127.0.0.1:{self.port}/hook", content=b"signed")).status_code


SLOW_BODY = b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx"


async def test_slow_bodies_of_strangers_keep_the_platform_from_nothing() -> None:
    async with ServedHook(seconds=10 * LIMIT_SECONDS).run() as hook:
        opened = await hook.open(SLOW_BODY, webhook.MAX_CONCURRENT_REQUESTS)
        await wait_until(lambda: hook.server.arriving == webhook.MAX_CONCURRENT_REQUESTS)
        assert await hook.call() == 200
        assert hook.bodies == [b"signed"]
        assert hook.server.arriving == webhook.MAX_CONCURRENT_REQUESTS - 1, "the oldest one made room"
        async with asyncio.timeout(LIMIT_SECONDS):
            assert (await opened[0].readline()).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("beginning", [b"", b"POST /hook HTTP/1.1\r\nX: y", SLOW_BODY], ids=["empty", "head", "body"])
async def test_open_connections_of_strangers_keep_the_platform_from_nothing(
    monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(webhook, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(webhook, "CLOSING_CONNECTIONS", 5)
    monkeypatch.setattr(webhook, "HEAD_SECONDS", 10 * LIMIT_SECONDS)
    async with ServedHook(seconds=10 * LIMIT_SECONDS).run() as hook:
        opened = await hook.open(beginning, 30)
        assert await hook.call() == 200
        async with asyncio.timeout(LIMIT_SECONDS):
            await opened[0].read()  # ends when the connection is closed


async def test_without_the_secret_no_body_is_awaited(harness: PlatformHarness) -> None:
    reader, writer = await open_raw(harness)
    writer.write(b"POST /hook/main HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
    async with asyncio.timeout(LIMIT_SECONDS):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.close()
