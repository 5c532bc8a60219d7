"""The conformance checks pass for correct providers, and each of them can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.ports.memory import MemoryProvider
from everhold.testing.conformance import CHECKS, CheckOutcome, ServiceHarness, run_checks, run_checks_virtually
from everhold.testing.contracts import MemoryContract
from tests.contracts.providers import (
    WRONG_PROVIDERS,
    BlindProvider,
    CorrectProvider,
    DerivingProvider,
    ProbedProvider,
    ProviderService,
)


class TestCorrectProvider(MemoryContract):
    virtual = True
    kind: type[CorrectProvider] = CorrectProvider

    def harness(self) -> ServiceHarness | None:
        self.service = ProviderService()
        return self.service

    def make(self, agent: str, directory: Path) -> MemoryProvider:
        return self.kind(self.service, agent, directory)


class TestProbedProvider(TestCorrectProvider):
    kind = ProbedProvider


class TestBlindProvider(TestCorrectProvider):
    kind = BlindProvider


class TestDerivingProvider(TestCorrectProvider):
    kind = DerivingProvider


def run_checks_on(kind: type[CorrectProvider], path: Path, *only: str) -> list[CheckOutcome]:
    services: list[ProviderService] = []

    def make_service() -> ProviderService:
        services.append(ProviderService())
        return services[-1]

    return run_checks_virtually(
        lambda agent, where: kind(services[-1], agent, where), path, harness=make_service, only=only
    )


@pytest.mark.parametrize("kind", WRONG_PROVIDERS, ids=lambda kind: kind.__name__)
def test_a_wrong_provider_fails_its_check(kind: type[CorrectProvider], tmp_path: Path) -> None:
    (outcome,) = run_checks_on(kind, tmp_path, WRONG_PROVIDERS[kind])
    assert outcome.state == "failed", outcome
    assert outcome.reason


def test_every_check_can_fail() -> None:
    assert set(WRONG_PROVIDERS.values()) == set(CHECKS)


def test_no_check_is_skipped_for_a_correct_provider(tmp_path: Path) -> None:
    assert [(it.check, it.reason) for it in run_checks_on(CorrectProvider, tmp_path) if it.state != "passed"] == []


def test_checks_skipped_without_a_harness_are_reported(tmp_path: Path) -> None:
    service = ProviderService()
    found = run_checks_virtually(
        lambda agent, where: BlindProvider(service, agent, where), tmp_path, only=["service-outage", "signature"]
    )
    assert [(it.state, it.reason) for it in found] == [
        ("skipped", "the check needs a service that can be broken: pass a harness"),
        ("skipped", "it declares none"),
    ]


async def test_the_checks_run_in_real_time_too() -> None:
    service = ProviderService()
    names = ("basics", "lost-answer", "cancellation")
    found = [
        it
        async for it in run_checks(lambda agent, where: CorrectProvider(service, agent, where), only=names, seconds=3.0)
    ]
    assert [(it.check, it.state, it.reason) for it in found] == [(name, "passed", "") for name in names]
