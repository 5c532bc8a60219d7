"""The HTTP side of a simulated process: the real guard and the real routes, with no socket in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Struct, field
from starlette.requests import ClientDisconnect

from everhold.agents import Agents
from everhold.config import Settings
from everhold.control import Control
from everhold.flow.purse import Purses
from everhold.flow.runtime import Runtime, Runtimes
from everhold.memory import Memory
from everhold.testing.sim.process import Process
from everhold.web.application import Routes, application
from everhold.web.office import GatewayServices, Office
from everhold.web.once import Once
from everhold.web.tail import Tail

LOOK_SECONDS: Final = 0.5
LOCAL: Final = "ada"
SETTINGS: Final = Settings.model_validate({"agents": {"main": {}}})


class Heard(Struct):
    """What a caller got to hear: nothing yet, or some of it, or all of it."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class _Agents:
    """What the routes want to know of the agents."""

    settings = SETTINGS

    def __init__(self, runtimes: Runtimes) -> None:
        self._runtimes = runtimes

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime:
        return self._runtimes.runtime(agent, choices)

    def day(self) -> str:
        return "today"


class Door:
    """Where the callers of one process come in."""

    def __init__(self, process: Process, control: Control, *, runtimes: Runtimes, purses: Purses, tail: Tail) -> None:
        self.process = process
        self.world = process.world
        clock = control.gates.clock
        self.office = Office(
            control=control,
            memory=cast(Memory, None),  # nobody here asks what is remembered
            local=LOCAL,
            agents=cast(Agents, _Agents(runtimes)),
            tail=tail,
            log=control.gates.log,
            fresh=_settings,
            trouble=str,
            scrub=str,
            once=Once(monotonic=clock.monotonic),
            purses=purses,
            gateway=cast(GatewayServices, None),  # nor about the gateway itself
        )
        self._app = application(self.office)
        assert isinstance(self._app.inner, Routes)
        self._app.inner = self._app.inner.serve

    async def ask(self, path: str, body: object, *, headers: Mapping[str, str], patience: float) -> Heard:
        """What a caller hears who waits so long: a connection to a process that dies ends at once."""
        heard, left = Heard(), asyncio.Event()
        told = [msgspec.json.encode(body)]

        async def receive() -> dict[str, Any]:
            await self.process.breathe()
            if told:
                return {"type": "http.request", "body": told.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            await self.process.gate("http", "answering")
            if left.is_set():
                raise OSError("the caller left")
            if message["type"] == "http.response.start":
                heard.status = message["status"]
                heard.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                heard.body += message.get("body", b"")
                heard.whole = not message.get("more_body", False)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "client": ("127.0.0.1", 50_000),
            "headers": [(b"host", b"127.0.0.1"), *((k.encode(), v.encode()) for k, v in headers.items())],
        }
        serving = self.world.loop.create_task(self._app(scope, receive, send))
        until = self.world.loop.time() + patience
        while not self.process.dead and not serving.done() and self.world.loop.time() < until:
            await asyncio.wait((serving,), timeout=min(LOOK_SECONDS, until - self.world.loop.time()))
        left.set()
        serving.add_done_callback(self._served)
        return heard

    def _served(self, task: asyncio.Task[None]) -> None:
        if (error := task.exception()) is not None and not isinstance(error, ClientDisconnect | OSError):
            self.process.witness.problem(f"a route broke: {error!r}")


async def _settings() -> Settings:
    return SETTINGS
