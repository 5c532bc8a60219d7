"""The suite that every memory provider must pass, for pytest. A subclass says how a provider is built:

class TestMine(MemoryContract):
    def make(self, agent: str, directory: Path) -> MemoryProvider:
        return Mine(Settings(), context(agent=agent, directory=directory))
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest

from everhold.ports.memory import MemoryProvider
from everhold.testing.conformance import CHECKS, CheckOutcome, ProviderScenario, ServiceHarness, run_checks_virtually
from everhold.testing.conformance.run import run_check


class MemoryContract:
    """Every check is a test. `virtual`: the provider waits only for asyncio, so virtual time can be used."""

    virtual: ClassVar[bool] = False
    seconds: ClassVar[float] = 2.0
    """The limit of a call."""
    patience: ClassVar[float] = 5.0
    """How long an item may take until it is found."""

    def make(self, agent: str, directory: Path) -> MemoryProvider:
        """Build a provider for an agent, as the gateway does. It may use the directory freely."""
        raise NotImplementedError

    def harness(self) -> ServiceHarness | None:
        """Return a harness that can break the provider's service, or None."""
        return None

    @pytest.mark.parametrize("name", CHECKS)
    def test_memory(self, name: str, tmp_path: Path) -> None:
        outcome = self._run_check(name, tmp_path)
        if outcome.state == "skipped":
            pytest.skip(outcome.reason)
        assert outcome.state == "passed", f"{outcome.promise}\n{outcome.reason}"

    def _run_check(self, name: str, path: Path) -> CheckOutcome:
        harness = self.harness()
        if self.virtual:
            given = (lambda: harness) if harness is not None else None
            (outcome,) = run_checks_virtually(self.make, path, harness=given, only=[name])
            return outcome
        scenario = ProviderScenario(path, self.make, harness=harness, seconds=self.seconds, patience=self.patience)
        return asyncio.run(run_check(name, scenario))
