"""One Synapse for a whole test run, however many workers share it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everhold.testing.platforms.synapse import Synapse


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Synapse]:
    pytest.importorskip("synapse", reason="matrix-synapse is not installed: pip install -e '.[dev]'")
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent
    state = shared / "synapse.json"
    with _locked(shared / "synapse.lock"):
        told = json.loads(state.read_text()) if state.exists() else {"users": 0}
        server = Synapse(shared / "synapse", at=told.get("port", 0))
        if told["users"]:
            server.pid = told["pid"]
        else:
            server.start()
        state.write_text(json.dumps({"users": told["users"] + 1, "port": server.port, "pid": server.pid}))
    yield server
    with _locked(shared / "synapse.lock"):
        told = json.loads(state.read_text())
        told["users"] -= 1
        state.write_text(json.dumps(told))
        if not told["users"]:
            server.stop()
