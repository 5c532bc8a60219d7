"""The calls of Discord's API. A call is made once: the adapter decides about repeats.

The vendor's client knows the routes, the parameters and the errors. The requests themselves are sent with our own HTTP
client, because the vendor's takes several times the CPU time. Only uploads of files still use the vendor's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import discord
import msgspec
from discord.http import HTTPClient, Route
from msgspec import Struct

from everhold.infra.deep_json import load_json
from everhold.infra.http1 import Http1Transport, HttpAnswer

CALL_SECONDS: Final = 30.0
MAX_WAIT_SECONDS: Final = 5.0
"""How long a call waits for an exhausted rate limit to end. It fails at once if it would take longer."""
MAX_WINDOWS: Final = 1_000
MAX_WINDOW_SECONDS: Final = 3_600.0
"""Discord's limits end within seconds. A later end is not believed."""


class DiscordRateLimited(Exception):
    """Discord limits the rate, or has an internal error."""

    def __init__(self, status: int, *, wait_seconds: float | None, is_global: bool) -> None:
        super().__init__(f"Discord answered {status}")
        self.status = status
        self.wait_seconds = wait_seconds
        self.is_global = is_global


class DiscordAnswer(Struct, frozen=True):
    """An answer that is no success, with the attributes that the library's errors read."""

    status: int
    reason: str = ""


class RateLimitWindows:
    """The rate limits that are exhausted, each with the time at which it ends."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def learn(self, key: str, headers: Mapping[str, str], *, now: float) -> None:
        """Take note of the headers of an answer. The header names are in lower case."""
        if headers.get("x-ratelimit-remaining") != "0":
            return
        seconds = parse_seconds(headers.get("x-ratelimit-reset-after", ""))
        if seconds is None or seconds > MAX_WINDOW_SECONDS:
            return
        if len(self._ends) >= MAX_WINDOWS:
            self._ends = {it: end for it, end in self._ends.items() if end > now}
        if len(self._ends) < MAX_WINDOWS:
            self._ends[key] = now + seconds

    def compute_wait(self, key: str, *, now: float) -> float:
        """Return for how many seconds no call may be made."""
        return max(0.0, self._ends.get(key, now) - now)


def parse_seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def build_rate_limited(status: int, headers: Mapping[str, str]) -> DiscordRateLimited:
    """Return the error for an answer 429 or 5xx. The header names are in lower case."""
    seconds = parse_seconds(headers.get("retry-after") or headers.get("x-ratelimit-reset-after") or "")
    wait_seconds = (30.0 if seconds is None else seconds) if status == 429 else None
    return DiscordRateLimited(status, wait_seconds=wait_seconds, is_global="x-ratelimit-global" in headers)


def is_wait_asked(status: int) -> bool:
    return status == 429 or status >= 500


async def _raise_for_wait(session: object, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
    """Stop the library before it retries an upload."""
    answer = params.response
    if is_wait_asked(answer.status):
        answer.close()
        raise build_rate_limited(answer.status, {name.lower(): value for name, value in answer.headers.items()})


class DiscordHttpClient(HTTPClient):
    """The vendor's routes and parameters, each called once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, base: str) -> None:
        watch = aiohttp.TraceConfig()
        watch.on_request_end.append(_raise_for_wait)
        super().__init__(loop, http_trace=watch, max_ratelimit_timeout=30.0)
        self._base = base
        self._transport: Http1Transport | None = None
        self._windows = RateLimitWindows()

    async def close(self) -> None:
        await super().close()
        if self._transport is not None:
            await self._transport.close()
            self._transport = None

    async def request(
        self,
        route: Route,
        *,
        files: Sequence[discord.File] | None = None,
        form: Iterable[dict[str, Any]] | None = None,
        **given: Any,
    ) -> Any:
        if files or form:
            if self._base:
                route.url = self._base + route.url.removeprefix(Route.BASE)
            return await super().request(route, files=files, form=form, **given)
        key = f"{route.key}:{route.major_parameters}"
        await self._wait_for_window(key)
        answer = await self._fetch(route, params=given.get("params"), body=given.get("json"))
        self._windows.learn(key, answer.headers, now=self.loop.time())
        data = _load_answer(answer)
        if 200 <= answer.status < 300:
            return data
        if is_wait_asked(answer.status):
            raise build_rate_limited(answer.status, answer.headers)
        errors = {403: discord.Forbidden, 404: discord.NotFound}
        # the library's errors read no more of an answer than this
        response: Any = DiscordAnswer(answer.status)
        raise errors.get(answer.status, discord.HTTPException)(response, data)

    async def _wait_for_window(self, key: str) -> None:
        """Wait until the rate limit of a route allows a call."""
        seconds = self._windows.compute_wait(key, now=self.loop.time())
        if seconds > MAX_WAIT_SECONDS:
            raise DiscordRateLimited(429, wait_seconds=seconds, is_global=False)
        if seconds:
            await asyncio.sleep(seconds)

    async def _fetch(self, route: Route, *, params: Mapping[str, Any] | None, body: Any) -> HttpAnswer:
        if self._transport is None:
            self._transport = self._connect()
        path = route.url.removeprefix(Route.BASE).removeprefix("/")
        if params:
            path = f"{path}?{urlencode(params)}"
        sent = b"" if body is None else msgspec.json.encode(body)
        return await self._transport.fetch(route.method, path, sent, seconds=CALL_SECONDS)

    def _connect(self) -> Http1Transport:
        base = self._base or Route.BASE
        return Http1Transport(
            base,
            headers={
                "authorization": f"Bot {self.token}",
                "content-type": "application/json",
                "accept-encoding": "gzip",
                "user-agent": self.user_agent,
            },
            connect_seconds=CALL_SECONDS,
            send_seconds=CALL_SECONDS,
            trust=ssl.create_default_context() if base.startswith("https:") else None,
        )


def _load_answer(answer: HttpAnswer) -> Any:
    """Return the parsed answer, or its text if it is no JSON."""
    text = answer.body.decode("utf-8", "replace")
    if answer.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return text
    try:
        return load_json(text)
    except ValueError:
        return text
