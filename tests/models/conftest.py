"""A fake model server on loopback, and models that call it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from everhold.models.anthropic import AnthropicModel
from everhold.models.openai import OpenAIModel
from everhold.models.settings import AnthropicSettings, OpenAISettings
from everhold.models.transcript import LoadBlob
from everhold.testing.model_server import ModelServer

KEY = "sk-test-canary-8f3a1c"
Vendor = OpenAIModel | AnthropicModel
Connect = Callable[..., Vendor]


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(key=KEY) as running:
        yield running


@pytest.fixture
async def openai(server: ModelServer) -> AsyncIterator[Callable[..., OpenAIModel]]:
    async with AsyncExitStack() as stack:

        def connect(load_blob: LoadBlob | None = None, **settings: Any) -> OpenAIModel:
            given = {"name": "fake", "base_url": server.openai, "api_key": KEY, **settings}
            model = OpenAIModel(OpenAISettings.model_validate(given), clock=SystemClock(), load_blob=load_blob)
            stack.push_async_callback(_closing(model))
            return model

        yield connect


@pytest.fixture
async def anthropic(server: ModelServer) -> AsyncIterator[Callable[..., AnthropicModel]]:
    async with AsyncExitStack() as stack:

        def connect(load_blob: LoadBlob | None = None, **settings: Any) -> AnthropicModel:
            given = {"name": "fake", "base_url": server.anthropic, "api_key": KEY, **settings}
            model = AnthropicModel(AnthropicSettings.model_validate(given), clock=SystemClock(), load_blob=load_blob)
            stack.push_async_callback(_closing(model))
            return model

        yield connect


@pytest.fixture(params=["openai", "anthropic"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Both vendors, one after the other."""
    made: Connect = request.getfixturevalue(request.param)
    return made


def _closing(model: Vendor) -> Callable[[], Awaitable[None]]:
    return model.aclose
