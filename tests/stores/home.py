"""Opens stores for tests, and inspects their files."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from everhold.ports.store import Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom, StoreClock, StoreScenario

T = TypeVar("T")


def list_writing_methods() -> set[str]:
    """The writing methods of the store's port, found by their source, so that a new one is included."""
    return {
        name
        for name, method in inspect.getmembers(SqliteStore, inspect.isfunction)
        if name in vars(Store) and "self.writer.write(" in inspect.getsource(method)
    }


def run_coroutine(play: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(play)


def open_store(path: Path, **options: Any) -> SqliteStore:
    options.setdefault("chance", SeededRandom())
    return SqliteStore.open(path, **options)


async def open_scenario(path: Path, **options: Any) -> tuple[SqliteStore, StoreScenario]:
    """Return a store with session `s`, and a scenario for it."""
    clock = StoreClock()
    store = open_store(path, now=clock, **options)
    scenario = StoreScenario(store, clock)
    if not await store.list_sessions():
        await scenario.open_session("s")
    return store, scenario


def fingerprint_files(home: Path) -> dict[str, str]:
    """The hash of every file below `home`, except for empty and derived ones."""
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.stat().st_size > 0 and not path.name.endswith("-shm")
    }


def copy_crash_image(path: Path, to: Path) -> Path:
    """Copy the files as a power cut would leave them now."""
    to.mkdir(parents=True, exist_ok=True)
    for file in path.parent.glob(path.name + "*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, to / file.name)
        if file.name.endswith(".mark"):  # without the boot id, because the machine has restarted
            (to / file.name).write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    return to / path.name
