"""Matrix keeps every promise of a platform, against a real Synapse on loopback."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from everhold.testing.contracts.platform import PlatformContract, Stage
from everhold.testing.platforms.synapse import Synapse
from tests.platforms.matrix_stage import matrix_stage


class TestMatrix(PlatformContract):
    @pytest.fixture(autouse=True)
    def _server(self, synapse: Synapse) -> None:
        self.synapse = synapse

    def stage(self) -> AbstractAsyncContextManager[Stage]:
        return matrix_stage(self.synapse)
