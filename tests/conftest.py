"""One Synapse for a whole test run, however many workers share it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everhold.testing.platforms.synapse import Synapse


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Synapse]:
    pytest.importorskip("synapse", reason="matrix-synapse is not installed: pip install -e '.[dev]'")
    own = tmp_path_factory.getbasetemp()
    server = Synapse((own if worker_id == "master" else own.parent) / "synapse")
    server.start()
    yield server
    server.stop()
