"""Slack over HTTP: Slack calls us with a signature over the body; every promise of a platform holds."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from pydantic import ValidationError

from everhold.infra.secret import SecretString
from everhold.platforms.slack.adapter import SlackPlatform
from everhold.platforms.slack.events import REQUEST_HOLD_SECONDS, SlackEventsConnection, is_signature_valid
from everhold.platforms.slack.settings import SlackEventsSettings, SlackSettings
from everhold.ports.platform import Platform
from everhold.ports.plugin import PluginContext
from everhold.testing.contracts.platform import PlatformContract, PlatformHarness
from everhold.testing.platforms.slack import SlackServer
from tests.platforms.remote_slack import APP_TOKEN, BOT_TOKEN, RemoteSlack

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
EVENTS = SlackEventsSettings(url="https://proxy.example/slack/events", port=0)
SETTINGS: dict[str, Any] = {
    "bot_token": SecretString(BOT_TOKEN),
    "signing_secret": SecretString(SECRET),
    "events": EVENTS,
}


class RemoteSlackOverHttp(RemoteSlack):
    """The app is called. The adapter that was built last is at its request URL."""

    offers = RemoteSlack.offers - {"rivals"}

    def __init__(self, server: SlackServer) -> None:
        super().__init__(server)
        self.adapter: SlackPlatform | None = None
        server.apps[0].signing_secret = SECRET
        server.apps[0].request_url = self.url

    def url(self) -> str:
        return f"http://127.0.0.1:{self.adapter.port if self.adapter else 1}/slack/events"

    def settings(self) -> SlackSettings:
        return SlackSettings(**SETTINGS, base_url=f"{self.server.url}/api/")

    def build_adapter(self, context: PluginContext) -> Platform:
        self.adapter = SlackPlatform(self.settings(), context)
        self.server.now = context.clock.now
        return self.adapter

    async def send_invalid_utf8(self) -> None:
        assert await self.server.post_event(self.server.apps[0], b'{"event": "\xff\xfe\xc3(') == 200


@asynccontextmanager
async def open_remote_slack_over_http() -> AsyncIterator[RemoteSlackOverHttp]:
    async with SlackServer() as server:
        app = server.add_app(BOT_TOKEN, APP_TOKEN)
        server.invite_app(app, RemoteSlackOverHttp.chat)
        server.invite_app(app, RemoteSlackOverHttp.group)
        yield RemoteSlackOverHttp(server)


class TestSlackOverHttp(PlatformContract):
    @asynccontextmanager
    async def open_remote(self) -> AsyncIterator[RemoteSlackOverHttp]:
        async with open_remote_slack_over_http() as remote:
            yield remote

    # an app that is called has no connection to check; the history shows a gap at the next start
    test_an_hour_without_a_connection_loses_nothing = None  # type: ignore[assignment]


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[PlatformHarness]:
    async with open_remote_slack_over_http() as remote:
        harness = PlatformHarness(remote, tmp_path)
        harness.start()

        async def listening() -> bool:
            return bool(harness.healthy_reports)

        await harness.wait_until(listening, what="being there to be called")
        yield harness
        await harness.close()


def event(text: str = "hello") -> bytes:
    told = {"type": "message", "channel": "D1", "channel_type": "im", "user": "UADA", "text": text, "ts": "1700.000001"}
    return json.dumps({"type": "event_callback", "event_id": "Ev1", "event": told}).encode()


def headers(
    body: bytes, now: float, *, secret: str = SECRET, later: float = 0.0, version: str = "v0"
) -> dict[str, str]:
    stamp = str(int(now + later))
    digest = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"{version}={digest}"}


async def call(harness: PlatformHarness, body: bytes, given: dict[str, str]) -> httpx2.Response:
    assert isinstance(harness.remote, RemoteSlackOverHttp)
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(harness.remote.url(), content=body, headers=given)


def test_a_signature_of_slack_s_own_example_is_recognised() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name="
        b"foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2F"
        b"hooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015."
        b"47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    given = {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    assert is_signature_valid(SecretString(SECRET), given, body, now=1531420618.0)
    assert not is_signature_valid(SecretString(SECRET), given, body, now=1531420618.0 + 301)
    assert not is_signature_valid(SecretString(SECRET), given, body + b" ", now=1531420618.0)


async def test_a_signed_event_is_committed_and_then_confirmed(harness: PlatformHarness) -> None:
    body = event()
    assert (await call(harness, body, headers(body, harness.clock.now()))).status_code == 200
    assert await harness.read_texts() == ["hello"]
    assert (await call(harness, body, headers(body, harness.clock.now()))).status_code == 200, "a repeat is recognised"
    assert await harness.read_texts() == ["hello"]


@pytest.mark.parametrize(
    "forge",
    [
        lambda now: {},
        lambda now: {"X-Slack-Signature": "", "X-Slack-Request-Timestamp": ""},
        lambda now: headers(event("other"), now),
        lambda now: headers(event(), now, secret="another-secret-0123456789abcdef"),
        lambda now: headers(event(), now, secret=""),
        lambda now: headers(event(), now, later=-400),
        lambda now: headers(event(), now, later=400),
        lambda now: headers(event(), now, version="v1"),
        lambda now: {**headers(event(), now), "X-Slack-Request-Timestamp": "now"},
        lambda now: {**headers(event(), now), "X-Slack-Request-Timestamp": "9" * 40},
        lambda now: {key: value.upper() for key, value in headers(event(), now).items()},
    ],
    ids="none empty altered foreign blank late early version words number re-encoded".split(),
)
async def test_an_event_without_a_valid_signature_is_refused(
    harness: PlatformHarness, forge: Callable[[float], dict[str, str]]
) -> None:
    assert (await call(harness, event(), forge(harness.clock.now()))).status_code == 401
    assert await harness.read_texts() == []


async def test_slack_s_url_verification_is_answered(harness: PlatformHarness) -> None:
    body = b'{"type": "url_verification", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}'
    answer = await call(harness, body, headers(body, harness.clock.now()))
    assert (answer.status_code, answer.text) == (200, json.loads(body)["challenge"])
    assert (await call(harness, body, {})).status_code == 401


async def test_a_request_that_arrives_during_a_stop_does_not_delay_it(harness: PlatformHarness) -> None:
    connection = SlackEventsConnection(EVENTS, SecretString(SECRET), now=harness.clock.now)
    await connection.__aenter__()
    body = event()
    head = "".join(f"{name}: {value}\r\n" for name, value in headers(body, harness.clock.now()).items())
    reader, writer = await asyncio.open_connection("127.0.0.1", connection.port)
    writer.write(f"POST /slack/events HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n{head}".encode())
    writer.write(b"expect: 100-continue\r\n\r\n")
    assert b" 100 " in await reader.readuntil(b"\r\n\r\n"), "the server waits for the body"
    async with asyncio.timeout(REQUEST_HOLD_SECONDS * 0.75):
        stopping = asyncio.create_task(connection.__aexit__())
        await asyncio.sleep(0)
        writer.write(body)
        assert b" 503 " in await reader.readuntil(b"\r\n"), "Slack sends the event again"
        await stopping
    writer.close()


async def test_a_slash_command_is_heard(harness: PlatformHarness) -> None:
    assert isinstance(harness.remote, RemoteSlackOverHttp)
    await harness.remote.server.use_command("/everhold", "status", channel="D1")
    await harness.wait_until_heard("/status")


@pytest.mark.parametrize(
    "left_out",
    [
        {"signing_secret": None},
        {"signing_secret": SecretString("")},
        {"signing_secret": SecretString("short")},
        {"events": None},
    ],
)
def test_without_a_secret_the_webhook_does_not_start(left_out: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SlackSettings(**{**SETTINGS, **left_out})


async def test_a_replayed_command_is_heard_once(harness: PlatformHarness) -> None:
    """Whoever recorded a signed call can repeat it for five minutes."""
    given = {"command": "/everhold", "text": "status", "channel_id": "D1", "user_id": "UADA", "trigger_id": "1.2.ab"}
    body = urlencode(given).encode()
    signed = headers(body, harness.clock.now())
    for _ in range(3):
        assert (await call(harness, body, signed)).status_code == 200
    assert await harness.read_texts() == ["/status"]
