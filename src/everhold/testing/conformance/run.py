"""Run the checks, each with its own scenario, and report the results."""

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
    """The result of one check."""

    check: str
    promise: str
    state: CheckState
    reason: str = ""
    seconds: float = 0.0


def read_promise(name: str) -> str:
    return (CHECKS[name].__doc__ or "").strip().partition("\n")[0]


async def run_check(name: str, scenario: ProviderScenario, *, most: float = MAX_CHECK_SECONDS) -> CheckOutcome:
    """Run one check and return its result."""
    promise, since = read_promise(name), time.monotonic()
    work = asyncio.wait_for(CHECKS[name](scenario), most)
    # the provider is foreign code, so any exception is a finding
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
    """Run every check, or those named in `only`, in real time, each with an empty provider."""
    for name in only or CHECKS:
        with tempfile.TemporaryDirectory(prefix="everhold-plugin-", ignore_cleanup_errors=True) as directory:
            scenario = ProviderScenario(Path(directory), make, harness=harness, seconds=seconds, patience=patience)
            yield await run_check(name, scenario)


def run_checks_virtually(
    make: MakeProvider, path: Path, *, harness: Callable[[], ServiceHarness] | None = None, only: Sequence[str] = ()
) -> list[CheckOutcome]:
    """Run the checks in virtual time, for a provider that waits only for asyncio."""
    outcomes = []
    for name in only or CHECKS:
        loop = SimLoop(name, shuffle=0.0)  # type: ignore[abstract]  # it lacks only sockets and signals
        scenario = ProviderScenario(
            path / name, make, harness=harness() if harness else None, seconds=30.0, patience=60.0
        )
        try:
            outcomes.append(loop.run(run_check(name, scenario, most=3_600.0)))
        finally:
            loop.close()
    return outcomes
