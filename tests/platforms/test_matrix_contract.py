"""Matrix keeps every promise of a platform, against a real Synapse on loopback."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from everhold.testing.contracts.platform import PlatformContract, RemotePlatform
from everhold.testing.platforms.synapse import SynapseServer
from tests.platforms.remote_matrix import open_remote_matrix


class TestMatrix(PlatformContract):
    @pytest.fixture(autouse=True)
    def _server(self, synapse: SynapseServer) -> None:
        self.synapse = synapse

    def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]:
        return open_remote_matrix(self.synapse)
