"""Decides whom a plug-in may serve. The owner always; others only after the canary has shown that it keeps them apart.

The result is stored, and applies until the plug-in's code or settings change.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.errors import InDoubt, Refused, Transient
from everhold.hermes.memory.canary import CanaryFinding, run_canary
from everhold.hermes.memory.homes import PluginHome, PluginHomes, read_json, write_json
from everhold.hermes.memory.host_pool import HostPool
from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from everhold.hermes.memory.settings import HermesSettings

CANARY_VERSION: Final = 1
"""Results of another version of the test do not count."""
RETRY_SECONDS: Final = 60.0
"""How long after a failure the test is repeated."""
UNPROVEN_SECONDS: Final = 3_600.0
"""How long after a test that proved nothing it is repeated, because the plug-in may only have been slow."""
_ONLY_OWNER: Final = "it serves only the owner, because"


class PluginIsolation:
    def __init__(self, settings: HermesSettings, context: PluginContext, *, homes: PluginHomes, pool: HostPool) -> None:
        self._settings = settings
        self._context = context
        self._homes = homes
        self._pool = pool
        self._file = Path(context.directory) / "isolation.json"
        self._finding = self._load_finding()
        """The stored result. It counts once the code of the plug-in is known to be the same."""
        self._code = ""
        """The digest of the code, as the last host that was started reported it."""
        self._check: asyncio.Task[CanaryFinding] | None = None
        self._retry_after = 0.0
        self._repeat_after = float("inf")
        self._has_refused = False

    def record_code(self, code: str) -> None:
        """Note the code that a host has loaded. A result for another code no longer counts."""
        self._code = code
        if self._finding is not None and self._finding.code != code:
            self._finding = None

    async def check_served(self, home: PluginHome, *, seconds: float) -> None:
        """Raise Refused if the plug-in may not serve a home, and Transient if that is not known within `seconds`."""
        serves = self._settings.serves
        if home.is_owner or serves == "everybody":
            return
        if serves == "owner":
            raise Refused("it serves only the owner, as its setting `serves` says")
        homes = self._homes
        if homes.configured is None and not homes.has_configured_owner and homes.is_only_home(home):
            return
        finding = await self.find_result(seconds=seconds)
        if problem := describe_problem(finding):
            self._has_refused = True
            raise Refused(f"{_ONLY_OWNER} {problem[0]}", remedy=problem[1])

    async def find_result(self, *, seconds: float) -> CanaryFinding:
        """Return the result of the canary, which is run if there is none. A caller that stops waiting does not stop
        it.
        """
        if self._context.clock.monotonic() >= self._repeat_after:
            self._finding, self._repeat_after = None, float("inf")
        if self._finding is not None and self._code == self._finding.code:
            return self._finding
        if self._check is None or self._check.done():
            if (wait := self._retry_after - self._context.clock.monotonic()) > 0:
                raise Transient(f"whether it keeps people apart could not be tested; the next test is in {wait:.0f} s")
            self._check = asyncio.get_running_loop().create_task(self._find_or_run())
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._check)
        except TimeoutError:
            raise Transient("it is being tested whether it keeps people apart") from None

    def describe_restriction(self) -> tuple[str, str] | None:
        """Return why the plug-in serves only the owner, and the remedy; None if it serves others, too.

        A test that proved nothing matters only if there is somebody else to serve.
        """
        if self._settings.serves != "checked" or self._finding is None or not (self.leaks or self._has_refused):
            return None
        problem = describe_problem(self._finding)
        return (f"{_ONLY_OWNER} {problem[0]}", problem[1]) if problem else None

    @property
    def leaks(self) -> bool:
        """Whether it is known to show one person's words to another."""
        return self._finding is not None and bool(self._finding.shown_in)

    async def close(self) -> None:
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)

    # -- internals -----------------------------------------------------------------------------------------------------

    async def _find_or_run(self) -> CanaryFinding:
        try:
            if self._finding is not None and not self._code:
                self.record_code(await self._read_code())
            if self._finding is None:
                self._finding = await self._run()
            return self._finding
        except (Transient, Refused, InDoubt) as error:
            self._retry_after = self._context.clock.monotonic() + RETRY_SECONDS
            raise Transient(f"it could not be tested whether it keeps people apart: {error}") from error

    async def _read_code(self) -> str:
        """Load the plug-in in an empty home, to know its code."""
        home = self._homes.make_throwaway()
        try:
            async with self._pool.borrow(home) as host:
                self._homes.prepare(home)
                await host.start()
                return str(host.description.get("code", ""))
        finally:
            await self._pool.close_home(home)
            shutil.rmtree(home, ignore_errors=True)

    async def _run(self) -> CanaryFinding:
        context = self._context
        found = await run_canary(self._pool, self._homes, agent=context.agent, deadline=self._settings.deadline_seconds)
        self._code = found.code
        self._homes.data_files = frozenset(found.data_files)
        if found.is_proven or found.shown_in:
            write_json(self._file, {"settings": self._compute_settings_digest(), **msgspec.to_builtins(found)})
        else:
            self._repeat_after = context.clock.monotonic() + UNPROVEN_SECONDS
        problem = describe_problem(found)
        if found.shown_in and problem:
            context.log.warning("memory.leaking", reason=problem[0], remedy=problem[1])
        else:
            context.log.info("memory.isolated", proven=found.is_proven)
        return found

    def _load_finding(self) -> CanaryFinding | None:
        """Return the stored result, if it is for the present settings."""
        stored = read_json(self._file)
        digest = stored.pop("settings", None)
        try:
            found = msgspec.convert(stored, CanaryFinding)
        except msgspec.ValidationError:
            return None
        self._homes.data_files = frozenset(found.data_files)
        if digest == self._compute_settings_digest():
            return found
        self._homes.data_files = frozenset()
        return None

    def _compute_settings_digest(self) -> str:
        """Return a digest of everything besides the code that decides where a plug-in keeps its data."""
        settings = self._settings
        environ = {name: it if isinstance(it, str) else it.reveal() for name, it in settings.environ.items()}
        parts: list[Any] = [CANARY_VERSION, settings.path, settings.python, settings.hermes_home, environ]
        parts += [list(settings.environ_from)]
        for file in self._homes.list_seed_files():
            parts.append([str(file), file.read_bytes().hex() if file.is_file() else ""])
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def describe_problem(finding: CanaryFinding) -> tuple[str, str] | None:
    """Return why others may not be served, and the remedy; None if they may."""
    if finding.shown_in:
        where = ", ".join(finding.shown_in)
        return (
            f"in a test it showed one person's words to another ({where})",
            "let it keep its data below HERMES_HOME or by user, or use another memory for the other people",
        )
    if not finding.is_proven:
        return (
            "in a test it showed a text not even to the person who said it, so it is unknown whether it keeps "
            "people apart",
            "set `serves: everybody` if you know that it does",
        )
    return None
