"""The real app over a real home, in the test's own loop; only the model's vendor is ours."""

from __future__ import annotations

import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from everhold.app import App, SystemClock, settings_of
from everhold.core.entries import Body, Entry, Heard, Notified, Place, Said
from everhold.home import Home
from everhold.logs import open_log
from everhold.ports.clock import Clock
from everhold.ports.platform import Incoming, Verdict
from tests.waiting import wait_until

KEY = "canary-key-of-the-model-0123456789"
B = TypeVar("B", bound=Body)


def _mine() -> dict[str, str]:
    return {name: os.environ[name] for name in ("EVERHOLD_LOCKS",) if name in os.environ}


class Town:
    """One home and whoever runs in it."""

    def __init__(self, path: Path, config: str, *, env: str = f"MODEL_KEY={KEY}\n", clock: Clock | None = None) -> None:
        self.clock = clock
        self.home = Home(path / "home").create()
        self.configure(config)
        self.secrets(env)
        self.log = io.StringIO()
        self._app: App | None = None
        self.pieces: list[str] = []
        self._count = 0

    def configure(self, text: str) -> None:
        self.home.config.write_text(text)

    def secrets(self, text: str) -> None:
        self.home.env.touch(mode=0o600)
        self.home.env.write_text(text)

    async def __aenter__(self) -> Town:
        log = open_log(clock=SystemClock(), home=self.home.path, stream=self.log, level="debug")
        settings, environ = settings_of(self.home, environ={}), {"PATH": "/usr/bin:/bin", **_mine()}
        self._app = App(self.home, settings, log=log, environ=environ, clock=self.clock)
        self._app.watchers.append(lambda session, op, piece: self.pieces.append(piece))
        await self._app.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.app.stop(seconds=5.0)
        self._app = None

    @property
    def app(self) -> App:
        assert self._app is not None
        return self._app

    async def say(self, text: str, *, chat: str = "me", agent: str = "", who: str = "ada") -> Verdict:
        """Somebody says something at this machine; it is kept once this returns."""
        self._count += 1
        place = Place(platform="terminal", chat=chat, message=f"m{self._count}")
        verdict = await self.app.accept(Incoming(origin=place, text=text, sender=who, agent=agent))
        assert verdict.outcome == "accepted", verdict
        return verdict

    async def ask(self, text: str, **more: str) -> str:
        """Say something, and wait for the reply to it."""
        verdict = await self.say(text, **more)
        await self.until(lambda: self._answered(verdict))
        bodies = [e.body for e in await self.entries(verdict.session) if e.seq > verdict.seq]
        return next(body.text for body in bodies if isinstance(body, Said | Notified))

    async def _answered(self, verdict: Verdict) -> bool:
        entries = await self.entries(verdict.session)
        return any(e.seq > verdict.seq and isinstance(e.body, Said | Notified) for e in entries)

    async def entries(self, session: str) -> list[Entry]:
        return await self.app.store.list_entries(session)

    async def bodies(self, session: str, kind: type[B]) -> list[B]:
        return [entry.body for entry in await self.entries(session) if isinstance(entry.body, kind)]

    async def said(self, session: str, count: int = 1) -> list[str]:
        """What was replied there, once it is so much."""

        async def enough() -> bool:
            return len(await self.bodies(session, Said)) >= count

        await self.until(enough)
        return [said.text for said in await self.bodies(session, Said)]

    async def rest(self) -> None:
        """Until nothing is due and nobody works."""

        async def resting() -> bool:
            if self.app.supervisor.tasks:
                return False
            due = await self.app.store.get_next_due(at=self.app.clock.now())
            return due is None

        await self.until(resting)

    async def until(self, true: Callable[[], bool | Awaitable[bool]]) -> None:
        try:
            await wait_until(true)
        except TimeoutError:
            raise AssertionError(f"it did not happen; the log says:\n{self.log.getvalue()[-4_000:]}") from None

    async def sound(self) -> None:
        """Every promise holds."""
        report = await self.app.control.audit()
        assert report.checked.entries
        assert not report.broken, report.broken

    async def heard(self, session: str) -> list[str]:
        return [heard.text for heard in await self.bodies(session, Heard)]


def endpoint(url: str, name: str = "fake", **more: Any) -> dict[str, Any]:
    """An entry of `models`, as data: YAML takes JSON."""
    given = {"provider": "openai", "base_url": url, "name": name, "api_key_env": "MODEL_KEY", "context_tokens": 100_000}
    return {**given, **more}
