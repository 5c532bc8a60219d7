"""Runs the checks, each in a world of its own, and says how each went."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from everhold.testing.conformance.checks import CHECKS
from everhold.testing.conformance.scenario import (
    CheckFailed,
    CheckSkipped,
    MakeProvider,
    ProviderScenario,
    ServiceHarness,
)
from everhold.testing.sim.loop import SimLoop

MAX_CHECK_SECONDS: Final = 90.0
"""For one check."""


CheckState: TypeAlias = Literal["passed", "failed", "skipped"]


class CheckOutcome(Struct, frozen=True, kw_only=True):
    """How one check went."""

    check: str
    promise: str
    state: CheckState
    reason: str = ""
    seconds: float = 0.0


def read_promise(name: str) -> str:
    return (CHECKS[name].__doc__ or "").strip().partition("\n")[0]


async def run_check(name: str, scenario: ProviderScenario, *, most: float = MAX_CHECK_SECONDS) -> CheckOutcome:
    """One check, whatever comes of it."""
    promise, since = read_promise(name), time.monotonic()
    work = asyncio.wait_for(CHECKS[name](scenario), most)
    # the provider is foreign code: whatever it raises is the finding
    (raised,) = await asyncio.gather(work, return_exceptions=True)
    state, reason = _classify_result(raised)
    return CheckOutcome(check=name, promise=promise, state=state, reason=reason, seconds=time.monotonic() - since)


def _classify_result(raised: BaseException | None) -> tuple[CheckState, str]:
    match raised:
        case None:
            return "passed", ""
        case CheckSkipped():
            return "skipped", str(raised)
        case CheckFailed():
            return "failed", str(raised)
        case TimeoutError() | asyncio.CancelledError():
            return "failed", "it did not answer within its deadline"
        case _:
            return "failed", f"it raised {type(raised).__name__}: {raised}"


async def run_checks(
    make: MakeProvider,
    *,
    harness: ServiceHarness | None = None,
    only: Iterable[str] = (),
    seconds: float = 2.0,
    patience: float = 5.0,
) -> AsyncIterator[CheckOutcome]:
    """Every check (or those named in `only`) in real time, each with a provider that has seen nothing."""
    for name in only or CHECKS:
        with tempfile.TemporaryDirectory(prefix="everhold-plugin-", ignore_cleanup_errors=True) as directory:
            scenario = ProviderScenario(Path(directory), make, harness=harness, seconds=seconds, patience=patience)
            yield await run_check(name, scenario)


def run_checks_virtually(
    make: MakeProvider, path: Path, *, harness: Callable[[], ServiceHarness] | None = None, only: Sequence[str] = ()
) -> list[CheckOutcome]:
    """The same in virtual time: for a provider that waits for nothing but asyncio, it takes a moment."""
    outcomes = []
    for name in only or CHECKS:
        loop = SimLoop(name, shuffle=0.0)  # type: ignore[abstract]  # it has what virtual worlds need
        scenario = ProviderScenario(
            path / name, make, harness=harness() if harness else None, seconds=30.0, patience=60.0
        )
        try:
            outcomes.append(loop.run(run_check(name, scenario, most=3_600.0)))
        finally:
            loop.close()
    return outcomes
