"""What tests share: one Synapse for a whole run, however many workers there are, and what they must not share."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from everhold.testing.platforms.synapse import SynapseServer

# Hypothesis gives each example 200 ms and takes slow generation for a mistake: both would measure a busy machine.
settings.register_profile("everhold", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everhold")


def pytest_configure() -> None:
    """A run that was started in the background ignores Ctrl-C, and so would every program that the tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _tokens_of_ones_own() -> Iterator[None]:
    """A token is listened to by one gateway on a machine, and the tests of all workers use the same few tokens."""
    with tempfile.TemporaryDirectory(prefix="everhold-run-") as path, pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERHOLD_LOCKS", path)
        yield


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SynapseServer]:
    pytest.importorskip("synapse", reason="matrix-synapse is not installed: pip install -e '.[dev]'")
    own = tmp_path_factory.getbasetemp()
    server = SynapseServer((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "synapse")
    server.start()
    yield server
    server.stop()
