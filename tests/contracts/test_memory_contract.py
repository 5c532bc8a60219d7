"""The conformance kit: lets good providers pass, and can see each thing that it is there to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.ports.memory import MemoryProvider
from everhold.testing.conformance import CHECKS, Harness, Outcome, run, run_virtually
from everhold.testing.contracts import MemoryContract
from tests.contracts.cabinet import WRONG, Asked, Blind, Cabinet, Far


class TestCabinet(MemoryContract):
    virtual = True
    kind: type[Cabinet] = Cabinet

    def harness(self) -> Harness | None:
        self.far = Far()
        return self.far

    def make(self, agent: str, directory: Path) -> MemoryProvider:
        return self.kind(self.far, agent, directory)


class TestOneThatCanBeAsked(TestCabinet):
    kind = Asked


class TestABlindOne(TestCabinet):
    kind = Blind


def outcomes(kind: type[Cabinet], path: Path, *only: str) -> list[Outcome]:
    fars: list[Far] = []

    def far() -> Far:
        fars.append(Far())
        return fars[-1]

    return run_virtually(lambda agent, where: kind(fars[-1], agent, where), path, harness=far, only=only)


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_one_that_is_wrong_is_found_out(kind: type[Cabinet], tmp_path: Path) -> None:
    (outcome,) = outcomes(kind, tmp_path, WRONG[kind])
    assert outcome.state == "failed", outcome
    assert outcome.reason


def test_every_check_can_fail() -> None:
    assert set(WRONG.values()) == set(CHECKS)


def test_a_good_one_is_not_merely_skipped(tmp_path: Path) -> None:
    assert [(it.check, it.reason) for it in outcomes(Cabinet, tmp_path) if it.state != "passed"] == []


def test_without_a_harness_it_is_said_what_was_not_looked_at(tmp_path: Path) -> None:
    far = Far()
    found = run_virtually(
        lambda agent, where: Blind(far, agent, where), tmp_path, only=["far-side-outage", "signature"]
    )
    assert [(it.state, it.reason) for it in found] == [
        ("skipped", "needs a far side that can be broken: give a harness"),
        ("skipped", "it declares none"),
    ]


async def test_it_runs_in_real_time_too() -> None:
    far = Far()
    names = ("basics", "lost-answer", "cancellation")
    found = [it async for it in run(lambda agent, where: Cabinet(far, agent, where), only=names, seconds=3.0)]
    assert [(it.check, it.state, it.reason) for it in found] == [(name, "passed", "") for name in names]
