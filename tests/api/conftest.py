"""Runs a real gateway on loopback, in the test's event loop, with a fake model server."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.api.server import HttpServer
from everhold.app import GatewayApp, SystemClock, load_home_settings
from everhold.infra.home import Home
from everhold.telemetry.logs import open_log
from everhold.testing.model_server import ModelServer
from tests.api.programs import install_node_packages
from tests.waiting import LIMIT_SECONDS, wait_until

MODEL_KEY = "sk-canary-model-5b1f0c9d2e"
LOCAL = "local-operator-token-0123456789abcdef0123456789"
"""The token that `up` makes. It speaks for the user who runs the gateway."""
OPERATOR = "operator-token-0123456789abcdef0123456789abcdef"
ADA = "ada-token-0123456789abcdef0123456789abcdef012345"
BOB = "bob-token-fedcba9876543210fedcba9876543210fedcba"
TOKENS = """\
http:
  port: 0
  tokens:
    - {name: boss, token_env: TOKEN_BOSS, role: operator}
    - {name: laptop, token_env: TOKEN_ADA, person: ada}
    - {name: bob, token_env: TOKEN_BOB}
people:
  - {name: ada, identities: ["telegram:1001"]}
"""
SECRETS = f"""\
EVERHOLD_OPERATOR_TOKEN={LOCAL}
TOKEN_BOSS={OPERATOR}
TOKEN_ADA={ADA}
TOKEN_BOB={BOB}
MODEL_KEY={MODEL_KEY}
"""
ELSEWHERE = {"x-forwarded-for": "203.0.113.9"}
"""What a proxy adds. It has no effect, because the proxy is not a trusted one."""


def configuration(model: str, *, more: str = TOKENS) -> str:
    return f"""\
{more}
models:
  fake: {{provider: openai, base_url: {model}, name: fake, api_key_env: MODEL_KEY, context_tokens: 100000}}
agents:
  main: {{persona: You are a test., memories: []}}
  coder: {{persona: You write code., memories: []}}
"""


class ApiGateway:
    """A home whose gateway can be started and stopped repeatedly."""

    def __init__(self, path: Path, model: ModelServer) -> None:
        self.home = Home(path / "home").create()
        self.model = model
        self.log = io.StringIO()
        self.environ: Mapping[str, str] = {}
        self.configure(configuration(model.openai))
        self.home.env.write_text(SECRETS)
        self.home.env.chmod(0o600)
        self.app: GatewayApp | None = None
        self.port = 0

    def configure(self, text: str) -> None:
        self.home.config.write_text(text)
        self.home.config.chmod(0o600)

    async def start(self) -> ApiGateway:
        log = open_log(clock=SystemClock(), home=self.home.path, stream=self.log)
        settings = load_home_settings(self.home, environ=self.environ)
        self.app = GatewayApp(self.home, settings, log=log, environ=self.environ)
        await self.app.start()
        url = await self.app.serve(port=self.port)
        self.port = int(url.rpartition(":")[2])
        return self

    async def stop(self, *, seconds: float = 5.0) -> None:
        if self.app is not None:
            app, self.app = self.app, None
            await app.stop(seconds=seconds)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> GatewayApp:
        assert self.app is not None
        return self.app

    @property
    def web(self) -> HttpServer:
        assert self.running.http_server is not None
        return self.running.http_server

    def client(self, token: str = LOCAL, **headers: str) -> httpx2.AsyncClient:
        """Return a client with a token: that of the user who runs the gateway, unless another is given."""
        given = {"authorization": f"Bearer {token}"} if token else {}
        return httpx2.AsyncClient(
            base_url=self.url, headers={**given, **headers}, timeout=LIMIT_SECONDS, trust_env=False
        )

    async def entries(self, session: str) -> list[dict[str, Any]]:
        async with self.client() as client:
            found: list[dict[str, Any]] = (await client.get(f"/api/sessions/{session}/entries")).json()["entries"]
            return found

    async def wait_until_idle(self, session: str, *, said: int = 1) -> list[dict[str, Any]]:
        """Return the log of a session once it has this number of replies and is idle."""
        found: list[dict[str, Any]] = []

        async def look() -> bool:
            nonlocal found
            found = await self.entries(session)
            kinds = [entry["kind"] for entry in found]
            return kinds.count("said") >= said and kinds[-1] in ("ended", "said", "notified")

        await wait_until(look)
        return found


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer(key=MODEL_KEY) as running:
        yield running


@pytest.fixture
async def gateway(tmp_path: Path, model: ModelServer) -> AsyncIterator[ApiGateway]:
    made = ApiGateway(tmp_path, model)
    try:
        yield await made.start()
    finally:
        await made.stop()


@pytest.fixture
async def client(gateway: ApiGateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with gateway.client() as at_this_machine:
        yield at_this_machine


@pytest.fixture
async def as_(gateway: ApiGateway) -> AsyncIterator[Callable[[str], httpx2.AsyncClient]]:
    """Return a client with a token."""
    async with AsyncExitStack() as stack:
        made: list[httpx2.AsyncClient] = []

        def connect(token: str) -> httpx2.AsyncClient:
            made.append(gateway.client(token))
            stack.push_async_callback(made[-1].aclose)
            return made[-1]

        yield connect


@pytest.fixture
async def node(pytestconfig: pytest.Config) -> Path:
    """Return a directory with the packages of tests/api/node/package.json."""
    assert pytestconfig.cache is not None
    return await install_node_packages(pytestconfig.cache.mkdir("web-node"))


# -- server-sent events ------------------------------------------------------------------------------------------------


class StreamEvent(dict[str, Any]):
    """Parse one event: its data with `id` and `event`."""

    id: str = ""
    event: str = "message"


@asynccontextmanager
async def listen_to_events(
    client: httpx2.AsyncClient, path: str = "/api/events", **headers: str
) -> AsyncIterator[AsyncIterator[StreamEvent]]:
    """Yield server-sent events."""
    async with client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        yield events_of(response)


async def events_of(response: httpx2.Response) -> AsyncIterator[StreamEvent]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields and fields["data"] != "[DONE]":
            event = StreamEvent(json.loads(fields["data"]))
            event.id, event.event = fields.get("id", ""), fields.get("event", "message")
            yield event
        fields = {}


async def read_until(
    events: AsyncIterator[StreamEvent], kind: str, *, seconds: float = LIMIT_SECONDS
) -> list[StreamEvent]:
    """Return the entries up to and including the first of `kind`."""
    found: list[StreamEvent] = []
    async with asyncio.timeout(seconds):
        async for event in events:
            if event.event == "entry":
                found.append(event)
                if event["kind"] == kind:
                    return found
    raise AssertionError(f"the stream ended before {kind}")
