"""Runs the real app with a real home in the test's event loop, with a fake model server."""

from __future__ import annotations

import io
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import httpx2

from everhold.app import GatewayApp, SystemClock, load_home_settings
from everhold.core.entries import Began, ChatLocation, Entry, EntryBody, Heard, Notified, Said, Took
from everhold.infra.home import Home
from everhold.ports.clock import Clock
from everhold.ports.platform import AcceptResult, IncomingMessage
from everhold.telemetry.logs import open_log
from tests.waiting import LIMIT_SECONDS, wait_until

TOKEN = "running-gateway-operator-token-0123456789abcdef"
KEY = "canary-key-of-the-model-0123456789"
B = TypeVar("B", bound=EntryBody)


def _get_own_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("EVERHOLD_LOCKS",) if name in os.environ}


class RunningGateway:
    """A home, and the app that runs in it."""

    def __init__(
        self,
        path: Path,
        config: str,
        *,
        env: str = f"MODEL_KEY={KEY}\n",
        clock: Clock | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.environ = environ
        self.clock = clock
        self.home = Home(path / "home").create()
        self.configure(config)
        self.write_secrets(env)
        self.log = io.StringIO()
        self._app: GatewayApp | None = None
        self.pieces: list[str] = []
        self._count = 0

    def configure(self, text: str) -> None:
        self.home.config.write_text(text)

    def write_secrets(self, text: str) -> None:
        self.home.env.touch(mode=0o600)
        self.home.env.write_text(f"{text}\nEVERHOLD_OPERATOR_TOKEN={TOKEN}\n")

    def open_client(self, url: str, *, seconds: float = LIMIT_SECONDS) -> httpx2.AsyncClient:
        """Return a client with the operator token."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx2.AsyncClient(base_url=url, headers=headers, timeout=seconds, trust_env=False)

    async def __aenter__(self) -> RunningGateway:
        log = open_log(clock=SystemClock(), home=self.home.path, stream=self.log, level="debug")
        settings, environ = (
            load_home_settings(self.home, environ=self.environ),
            {"PATH": "/usr/bin:/bin", **_get_own_environment(), **self.environ},
        )
        self._app = await GatewayApp.open(self.home, settings, log=log, environ=environ, clock=self.clock)
        self._app.text_watchers.append(lambda session, op, piece: self.pieces.append(piece))
        await self._app.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.app.stop(seconds=5.0)
        self._app = None

    @property
    def app(self) -> GatewayApp:
        assert self._app is not None
        return self._app

    async def send_message(self, text: str, *, chat: str = "me", agent: str = "", who: str = "ada") -> AcceptResult:
        """Send a message from this machine. It is committed when this returns."""
        self._count += 1
        place = ChatLocation(platform="terminal", chat=chat, message=f"m{self._count}")
        verdict = await self.app.accept(IncomingMessage(origin=place, text=text, sender=who, agent=agent))
        assert verdict.outcome == "accepted", verdict
        return verdict

    async def send_and_wait(self, text: str, **more: str) -> str:
        """Send a message and wait for the reply."""
        verdict = await self.send_message(text, **more)
        await self.wait_until(lambda: self._is_answered(verdict))
        return (await self._list_answers(verdict))[0]

    async def _is_answered(self, verdict: AcceptResult) -> bool:
        return bool(await self._list_answers(verdict))

    async def _list_answers(self, verdict: AcceptResult) -> list[str]:
        """Return the texts that answer a message. A turn that began before it answers it only if it took it later."""
        entries = await self.read_entries(verdict.session)
        takers = {e.op or e.seq for e in entries if isinstance(e.body, Began | Took) and verdict.seq in e.body.takes}
        return [
            e.body.text
            for e in entries
            if e.seq > verdict.seq
            and isinstance(e.body, Said | Notified)
            and (e.op is None or e.op > verdict.seq or e.op in takers)
        ]

    async def read_entries(self, session: str) -> list[Entry]:
        return await self.app.store.list_entries(session)

    async def read_bodies(self, session: str, kind: type[B]) -> list[B]:
        return [entry.body for entry in await self.read_entries(session) if isinstance(entry.body, kind)]

    async def wait_for_replies(self, session: str, count: int = 1) -> list[str]:
        """Return the replies of a session once there are this many."""

        async def enough() -> bool:
            return len(await self.read_bodies(session, Said)) >= count

        await self.wait_until(enough)
        return [said.text for said in await self.read_bodies(session, Said)]

    async def wait_until_idle(self) -> None:
        """Wait until no cursor is due and no worker runs."""

        async def resting() -> bool:
            if self.app.supervisor.tasks:
                return False
            due = await self.app.store.get_next_due()
            return due is None

        await self.wait_until(resting)

    async def wait_until(self, true: Callable[[], bool | Awaitable[bool]]) -> None:
        try:
            await wait_until(true)
        except TimeoutError:
            raise AssertionError(f"it did not happen; the log says:\n{self.log.getvalue()[-4_000:]}") from None

    async def assert_sound(self) -> None:
        """Check that every promise holds."""
        report = await self.app.session_admin.audit_store()
        assert report.checked.entries
        assert not report.broken_findings, report.broken_findings

    async def read_heard(self, session: str) -> list[str]:
        return [heard.text for heard in await self.read_bodies(session, Heard)]


def make_model_section(url: str, name: str = "fake", **more: Any) -> dict[str, Any]:
    """Return an entry of `models` as JSON, which is valid YAML."""
    given = {"provider": "openai", "base_url": url, "name": name, "api_key_env": "MODEL_KEY", "context_tokens": 100_000}
    return {**given, **more}
