"""Opens stores for tests and looks at what they left on the disk."""

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
from everhold.testing.contracts.store_scenario import SeededRandom, StoreScenario

T = TypeVar("T")


def list_writing_methods() -> set[str]:
    """The methods of the store's port that write, by what they do: a new one is among them whatever it is called."""
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
    """A store with session `s` in it, and the stage around it."""
    store = open_store(path, **options)
    scene = StoreScenario(store)
    if not await store.list_sessions():
        await scene.open_session("s")
    return store, scene


def fingerprint_files(home: Path) -> dict[str, str]:
    """Every file below `home` with its contents' hash, but those that hold nothing of their own."""
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.stat().st_size > 0 and not path.name.endswith("-shm")
    }


def copy_crash_image(path: Path, to: Path) -> Path:
    """The files as a power cut would leave them now."""
    to.mkdir(parents=True, exist_ok=True)
    for file in path.parent.glob(path.name + "*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, to / file.name)
        if file.name.endswith(".mark"):  # the machine that finds them has started since
            (to / file.name).write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    return to / path.name
