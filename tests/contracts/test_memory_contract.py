"""The conformance kit: lets good providers pass, and can see each thing that it is there to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.ports.memory import MemoryProvider
from everhold.testing.conformance import CHECKS, CheckOutcome, ServiceHarness, run_checks, run_checks_virtually
from everhold.testing.contracts import MemoryContract
from tests.contracts.providers import WRONG_PROVIDERS, BlindProvider, CorrectProvider, ProbedProvider, ProviderService


class TestCorrectProvider(MemoryContract):
    virtual = True
    kind: type[CorrectProvider] = CorrectProvider

    def harness(self) -> ServiceHarness | None:
        self.far = ProviderService()
        return self.far

    def make(self, agent: str, directory: Path) -> MemoryProvider:
        return self.kind(self.far, agent, directory)


class TestProbedProvider(TestCorrectProvider):
    kind = ProbedProvider


class TestBlindProvider(TestCorrectProvider):
    kind = BlindProvider


def run_checks_on(kind: type[CorrectProvider], path: Path, *only: str) -> list[CheckOutcome]:
    fars: list[ProviderService] = []

    def far() -> ProviderService:
        fars.append(ProviderService())
        return fars[-1]

    return run_checks_virtually(lambda agent, where: kind(fars[-1], agent, where), path, harness=far, only=only)


@pytest.mark.parametrize("kind", WRONG_PROVIDERS, ids=lambda kind: kind.__name__)
def test_one_that_is_wrong_is_found_out(kind: type[CorrectProvider], tmp_path: Path) -> None:
    (outcome,) = run_checks_on(kind, tmp_path, WRONG_PROVIDERS[kind])
    assert outcome.state == "failed", outcome
    assert outcome.reason


def test_every_check_can_fail() -> None:
    assert set(WRONG_PROVIDERS.values()) == set(CHECKS)


def test_a_good_one_is_not_merely_skipped(tmp_path: Path) -> None:
    assert [(it.check, it.reason) for it in run_checks_on(CorrectProvider, tmp_path) if it.state != "passed"] == []


def test_without_a_harness_it_is_said_what_was_not_looked_at(tmp_path: Path) -> None:
    far = ProviderService()
    found = run_checks_virtually(
        lambda agent, where: BlindProvider(far, agent, where), tmp_path, only=["far-side-outage", "signature"]
    )
    assert [(it.state, it.reason) for it in found] == [
        ("skipped", "the check needs a service that can be broken: pass a harness"),
        ("skipped", "it declares none"),
    ]


async def test_it_runs_in_real_time_too() -> None:
    far = ProviderService()
    names = ("basics", "lost-answer", "cancellation")
    found = [
        it async for it in run_checks(lambda agent, where: CorrectProvider(far, agent, where), only=names, seconds=3.0)
    ]
    assert [(it.check, it.state, it.reason) for it in found] == [(name, "passed", "") for name in names]
