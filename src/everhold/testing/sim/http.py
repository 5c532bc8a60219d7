"""The HTTP API of a simulated process: the real middleware and routes, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Struct, field
from starlette.requests import ClientDisconnect

from everhold.admin.memory import MemoryAdmin
from everhold.admin.session_overview import SessionOverview
from everhold.admin.sessions import SessionAdmin
from everhold.api.application import RouteDispatcher, build_application
from everhold.api.context import ApiContext, GatewayServices
from everhold.api.idempotency import IdempotentTasks
from everhold.api.log_tail import LogTail
from everhold.api.logins import LoginRegistry
from everhold.assembly.agents import ConfiguredAgents
from everhold.config import Settings
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.budgets import BudgetLedger
from everhold.infra.uploads import UploadFolder
from everhold.ports.plugin import FetchUrl
from everhold.testing.sim.process import SimProcess

CHECK_SECONDS: Final = 0.5
LOCAL_PERSON: Final = "ada"
TOKEN: Final = "simulated-operator-token-0123456789abcdef"
SETTINGS: Final = Settings.model_validate({"agents": {"main": {}}, "http": {"=operator_token": TOKEN}})


class CallerResponse(Struct):
    """What a caller has received of a response."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class _SimAgents:
    """The part of the agents that the routes use."""

    settings = SETTINGS

    def __init__(self, runtimes: AgentRuntimes) -> None:
        self._runtimes = runtimes

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        return self._runtimes.get_runtime(agent, choices)

    def get_today(self) -> str:
        return "today"


class SimApi:
    """The API of one process, called without sockets."""

    def __init__(
        self,
        process: SimProcess,
        control: SessionAdmin,
        *,
        runtimes: AgentRuntimes,
        budgets: BudgetLedger,
        tail: LogTail,
    ) -> None:
        self.process = process
        self.world = process.world
        clock = control.gates.clock
        self.context = ApiContext(
            control=control,
            memory=cast(MemoryAdmin, None),  # no caller uses the memory routes
            overview=cast(SessionOverview, None),  # nor the lists of sessions
            local_person=LOCAL_PERSON,
            agents=cast(ConfiguredAgents, _SimAgents(runtimes)),
            tail=tail,
            uploads=cast(UploadFolder, None),  # nor files
            fetch=cast(FetchUrl, None),
            log=control.gates.log,
            load_fresh_settings=_load_settings,
            get_trouble=str,
            redact_text=str,
            idempotent_tasks=IdempotentTasks(monotonic=clock.monotonic),
            budgets=budgets,
            gateway=cast(GatewayServices, None),  # nor the routes about the gateway
            logins=LoginRegistry(
                control.store,
                clock=clock,
                chance=control.gates.chance,
                local=LOCAL_PERSON,
                settings=lambda: SETTINGS.http,
            ),
        )
        self._app = build_application(self.context)
        assert isinstance(self._app.inner_app, RouteDispatcher)
        self._app.inner_app = self._app.inner_app.serve_request

    async def send_request(
        self, path: str, body: object, *, headers: Mapping[str, str], patience: float
    ) -> CallerResponse:
        """Send a request and return what arrives within `patience` seconds, or until the process dies."""
        response, left = CallerResponse(), asyncio.Event()
        unread = [msgspec.json.encode(body)]

        async def receive() -> dict[str, Any]:
            await self.process.wait_until_alive()
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            await self.process.pass_gate("http", "answering")
            if left.is_set():
                raise OSError("the caller disconnected")
            if message["type"] == "http.response.start":
                response.status = message["status"]
                response.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                response.body += message.get("body", b"")
                response.is_complete = not message.get("more_body", False)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "client": ("127.0.0.1", 50_000),
            "headers": [
                (b"host", b"127.0.0.1"),
                (b"authorization", f"Bearer {TOKEN}".encode()),
                *((k.encode(), v.encode()) for k, v in headers.items()),
            ],
        }
        serving = self.world.loop.create_task(self._app(scope, receive, send))
        until = self.world.loop.time() + patience
        while not self.process.dead and not serving.done() and self.world.loop.time() < until:
            await asyncio.wait((serving,), timeout=min(CHECK_SECONDS, until - self.world.loop.time()))
        left.set()
        serving.add_done_callback(self._check_served)
        return response

    def _check_served(self, task: asyncio.Task[None]) -> None:
        if (error := task.exception()) is not None and not isinstance(error, ClientDisconnect | OSError):
            self.process.witness.report_problem(f"a route failed: {error!r}")


async def _load_settings() -> Settings:
    return SETTINGS
