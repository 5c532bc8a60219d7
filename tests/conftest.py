"""Shared fixtures: a Synapse server for a whole run, PostgreSQL servers, and a separate lock directory for the run."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from everhold.testing import postgres_server as servers
from everhold.testing.platforms.synapse import SynapseServer

# By default, Hypothesis fails an example after 200 ms and fails on slow generation. A busy machine would exceed both.
settings.register_profile("everhold", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everhold")


def pytest_configure() -> None:
    """Restore SIGINT.

    A run in the background ignores it, and the programs that the tests interrupt would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _separate_account_locks() -> Iterator[None]:
    """Use own account locks, because one gateway per machine may use a token, and all workers use the same few
    tokens."""
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


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.PostgresTestServer]:
    """A PostgreSQL server of this process. Processes share none, because a transaction of one would hold back the feed
    of another."""
    if obstacle := servers.find_obstacle():
        pytest.skip(obstacle)
    with servers.run_postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: servers.PostgresTestServer) -> Iterator[str]:
    """The DSN of an empty database with the schema of the store."""
    with postgres_server.lend_store_database() as url:
        yield url
