"""The store of a running gateway is deleted, moved or replaced while callers send messages.

A request that begins after the fault must not be acknowledged, `/ready` must not report readiness, and the process must
end with an error that names the remedy. What was acknowledged before is in the files that were moved away; if they were
deleted, the error says so.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx2
from msgspec import Struct

from everhold.core.entries import Heard
from everhold.infra.home import Home
from everhold.testing.kill import verdict
from everhold.testing.kill.gateway import KillableGateway

CALLERS: Final = 4
MESSAGES_BEFORE: Final = 24
"""How many messages are acknowledged before the fault."""
PATIENCE_SECONDS: Final = 300.0


def _move_home(home: Home) -> Path:
    return home.path.rename(home.path.with_name("moved"))


def _delete_home(home: Home) -> None:
    home.path.rename(trash := home.path.with_name("trash"))
    shutil.rmtree(trash)


def _replace_home(home: Home) -> Path:
    moved = _move_home(home)
    home.create()
    for file in (home.config, home.env):
        shutil.copy2(moved / file.name, file)
    return moved


def _replace_home_by_copy(home: Home) -> Path:
    moved = _move_home(home)
    shutil.copytree(moved, home.path, ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
    return moved


def _list_store_files(home: Home) -> list[Path]:
    return [path for path in home.path.iterdir() if path.name.startswith(home.store.name)]


def _delete_store(home: Home) -> None:
    for path in _list_store_files(home):
        path.unlink()


def _move_store(home: Home) -> Path:
    moved = home.path.with_name("moved")
    moved.mkdir(0o700)
    for path in _list_store_files(home):
        path.rename(moved / path.name)
    return moved


def _delete_wal(home: Home) -> None:
    home.store.with_name(home.store.name + "-wal").unlink()


def _delete_lock(home: Home) -> Path:
    home.lock.unlink()
    return home.path


def _replace_lock(home: Home) -> Path:
    home.lock.with_name("other").write_text("1\n")
    home.lock.with_name("other").replace(home.lock)
    return home.path


STORE_FAULTS: Final[dict[str, Callable[[Home], Path | None]]] = {
    "home deleted": _delete_home,
    "home moved": _move_home,
    "home replaced by a new one": _replace_home,
    "home replaced by its copy": _replace_home_by_copy,
    "store deleted": _delete_store,
    "store moved": _move_store,
    "write-ahead log deleted": _delete_wal,
    "lock deleted": _delete_lock,
    "lock replaced": _replace_lock,
}
"""Each fault returns the directory in which the acknowledged messages are, or None if they are deleted."""


class MissingStoreResult(Struct, kw_only=True):
    failures: list[str]
    acknowledged: int
    refused: int
    exit_code: int
    error: str

    def __str__(self) -> str:
        told = f"{self.acknowledged} acknowledged, {self.refused} refused, exit {self.exit_code}: {self.error}"
        return "\n".join([told, *(f"  FAILED {text}" for text in self.failures)])


class _StoreFaultTrial:
    def __init__(self, gateway: KillableGateway) -> None:
        self.gateway = gateway
        self.is_faulty = False
        self.acknowledged: list[str] = []
        self.refused = 0
        self.failures: list[str] = []
        self.enough = asyncio.Event()

    async def send_messages(self, name: str) -> None:
        """Send messages one after the other until the gateway is gone."""
        async with self.gateway.open_client(seconds=PATIENCE_SECONDS) as client:
            for number in range(1_000_000):
                text, began_after = f"{name}.m{number}", self.is_faulty
                body = {"chat": name, "text": text, "id": f"k{number}"}
                try:
                    answer = await client.post("/api/messages", json=body)
                except httpx2.TransportError:
                    return
                if answer.status_code in (200, 202):
                    self._on_acknowledged(text, began_after=began_after)
                else:
                    self._on_refused(text, answer)

    def _on_acknowledged(self, text: str, *, began_after: bool) -> None:
        if began_after:
            self.failures.append(f"{text} was sent after the fault and acknowledged")
        self.acknowledged.append(text)
        if len(self.acknowledged) >= MESSAGES_BEFORE:
            self.enough.set()

    def _on_refused(self, text: str, answer: httpx2.Response) -> None:
        self.refused += 1
        error = answer.json().get("error", {})
        if answer.status_code != 503 or not error.get("remedy"):
            self.failures.append(f"{text} was refused with {answer.status_code} {error}, not with 503 and a remedy")

    async def poll_readiness(self) -> None:
        async with self.gateway.open_client(seconds=PATIENCE_SECONDS) as client:
            while True:
                began_after = self.is_faulty
                try:
                    answer = await client.get("/ready")
                except httpx2.TransportError:
                    return
                if began_after and answer.status_code != 503:
                    self.failures.append(f"/ready answered {answer.status_code} after the fault")
                await asyncio.sleep(0.02)


async def run_store_fault(
    gateway: KillableGateway, fault: Callable[[Home], Path | None], *, talks: bool = True, exit_seconds: float = 120.0
) -> MissingStoreResult:
    """Let callers talk, apply the fault, and compare. Without `talks`, the callers stop before the fault, and the
    gateway has to notice it by itself."""
    await gateway.start()
    trial = _StoreFaultTrial(gateway)
    talking = [asyncio.create_task(trial.send_messages(f"http-{n}")) for n in range(CALLERS)]
    polling = asyncio.create_task(trial.poll_readiness())
    try:
        await asyncio.wait_for(trial.enough.wait(), PATIENCE_SECONDS)
        if not talks:
            await _cancel(talking)
        held = fault(gateway.home)
        trial.is_faulty = True
        try:
            code = await gateway.wait_until_ended(exit_seconds)
        except TimeoutError:
            trial.failures.append(f"the gateway still ran {exit_seconds:g} s after the fault")
            code = await gateway.kill()
        else:
            await asyncio.wait({*talking, polling}, timeout=PATIENCE_SECONDS)
    finally:
        await _cancel([*talking, polling])
    error = gateway.errors.read_text()
    trial.failures += _check_end(code, error)
    if held is not None:
        trial.failures += [
            f"{text} was acknowledged, and is not in {held.name}"
            for text in sorted(set(trial.acknowledged) - await _read_heard(held))
        ]
    return MissingStoreResult(
        failures=trial.failures,
        acknowledged=len(trial.acknowledged),
        refused=trial.refused,
        exit_code=code,
        error=error.strip().splitlines()[-1] if error.strip() else "",
    )


def _check_end(code: int, error: str) -> list[str]:
    found = [] if code > 0 else [f"the exit code is {code}"]
    for words in ("while everhold used it", "what was acknowledged before", "everhold restore"):
        if words not in error:
            found.append(f"the error does not say {words!r}: {error[-500:]}")
    return found


async def _read_heard(directory: Path) -> set[str]:
    contents = await verdict.read_store(directory, name="everhold.db")
    assert not contents.problems, contents.problems
    return {entry.body.text for log in contents.logs for entry in log.entries if isinstance(entry.body, Heard)}


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
