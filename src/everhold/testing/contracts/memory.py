"""The suite every memory provider must pass, for pytest. A provider joins with a subclass that says how one is built:

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
    """Every check is a test of its own. `virtual`: it waits for nothing but asyncio, so time need not be real."""

    virtual: ClassVar[bool] = False
    seconds: ClassVar[float] = 2.0
    """What a call may take."""
    patience: ClassVar[float] = 5.0
    """How long something may need to be found."""

    def make(self, agent: str, directory: Path) -> MemoryProvider:
        """A provider for an agent, as the gateway would build it. It may keep what it likes in the directory."""
        raise NotImplementedError

    def harness(self) -> ServiceHarness | None:
        """Something that breaks its far side, if there is such a thing."""
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
