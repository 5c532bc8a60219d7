"""A library logs what it received. None of it reaches our log: the log shows the words of the library's source."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import aiohttp
import httpx
import pytest
import uvicorn
from aiohttp import web

from everhold.app import SystemClock
from everhold.telemetry.logs import adopt_stdlib, open_log

CANARY: Final = "canary-9b1f-body"
LIBRARIES: Final = (
    "aiohttp",
    "asyncio",
    "discord",
    "h11",
    "httpcore",
    "httpx",
    "mcp",
    "nio",
    "slack_sdk",
    "telegram",
    "uvicorn",
)


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The lines of our log, while every library logs as much as it can."""
    out = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level, {name: logging.getLogger(name).level for name in LIBRARIES}
    root.handlers[:] = []
    adopt_stdlib(open_log(clock=SystemClock(), stream=out, form="json"))
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    root.handlers[:], level, levels = before
    root.setLevel(level)
    for name, old in levels.items():
        logging.getLogger(name).setLevel(old)


async def run_httpx() -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(500, text=CANARY))) as client:
        await client.post(f"http://example.org/{CANARY}", content=CANARY, headers={"x-canary": CANARY})
    logging.getLogger("httpx").warning("HTTP Request: %s %s", "POST", CANARY)


async def run_aiohttp() -> None:
    """The server reports a failed handler with the error's text, and the client a cookie that it refuses."""

    async def fail(request: web.Request) -> web.Response:
        raise ValueError(await request.text())

    app = web.Application()
    app.router.add_post("/", fail)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        address = runner.addresses[0]
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{address[1]}/", data=CANARY) as answer,
        ):
            assert answer.status == 500
    finally:
        await runner.cleanup()


async def run_asyncio() -> None:
    """A task whose error nobody reads."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": "Task exception was never retrieved", "exception": ValueError(CANARY), "future": CANARY}
    )


async def run_nio() -> None:
    from nio import Event, SyncResponse

    Event.parse_event({"type": "m.room.message", "content": {"body": CANARY}, "event_id": CANARY})
    SyncResponse.from_dict({"next_batch": CANARY, "rooms": CANARY})


async def run_telegram() -> None:
    from telegram.error import TelegramError
    from telegram.request import BaseRequest

    with pytest.raises(TelegramError):
        BaseRequest.parse_json_payload(f"<{CANARY}>".encode())


async def run_slack() -> None:
    """The library reports a failed listener with the error's text."""
    from slack_sdk.socket_mode.aiohttp import SocketModeClient

    class QuietClient(SocketModeClient):
        def __init__(self) -> None:  # no connection and no tasks: only the listeners
            self.logger = logging.getLogger("slack_sdk.socket_mode")
            self.message_listeners = [self.fail]
            self.socket_mode_request_listeners = []
            self.trace_enabled = False

        async def session_id(self) -> str:
            return CANARY

        async def fail(self, client: Any, message: Any, raw: Any) -> None:
            raise ValueError(raw)

    await QuietClient().run_message_listeners({"type": CANARY}, CANARY)


async def run_discord() -> None:
    from discord.state import logging_coroutine

    async def fail() -> None:
        raise ValueError(CANARY)

    await logging_coroutine(fail(), info=CANARY)


async def run_mcp() -> None:
    from mcp.client import session

    session.logger.warning("Failed to validate notification: %s", CANARY, exc_info=ValueError(CANARY))
    session.logger.warning(f"Tool {CANARY} not listed by server, cannot validate any structured content")


async def run_uvicorn() -> None:
    """The server reports a failed application with the error's text."""

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError((await receive())["body"])

    config = uvicorn.Config(fail, host="127.0.0.1", port=0, log_config=None, lifespan="off", access_log=False)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient() as client:
            await client.post(f"http://127.0.0.1:{port}/{CANARY}", content=CANARY)
    finally:
        await server.shutdown()


@pytest.mark.parametrize(
    "run",
    [run_httpx, run_aiohttp, run_asyncio, run_nio, run_telegram,
     run_slack, run_discord, run_mcp, run_uvicorn],
)  # fmt: skip
async def test_what_a_library_received_does_not_reach_the_log(
    lines: Callable[[], list[dict[str, Any]]], run: Callable[[], Awaitable[None]]
) -> None:
    await run()
    found = lines()
    assert found
    assert all(line["event"] == "library.warned" and line["level"] in ("warning", "error") for line in found)
    assert CANARY not in json.dumps(found)
