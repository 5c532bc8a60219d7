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
from everhold.testing.conformance.scene import Failed, Harness, Make, Scene, Skipped
from everhold.testing.sim.loop import SimLoop

MOST_SECONDS: Final = 90.0
"""For one check."""


State: TypeAlias = Literal["passed", "failed", "skipped"]


class Outcome(Struct, frozen=True, kw_only=True):
    """How one check went."""

    check: str
    promise: str
    state: State
    reason: str = ""
    seconds: float = 0.0


def promise_of(name: str) -> str:
    return (CHECKS[name].__doc__ or "").strip().partition("\n")[0]


async def check(name: str, scene: Scene, *, most: float = MOST_SECONDS) -> Outcome:
    """One check, whatever comes of it."""
    promise, since = promise_of(name), time.monotonic()
    work = asyncio.wait_for(CHECKS[name](scene), most)
    # the provider is foreign code: whatever it raises is the finding
    (raised,) = await asyncio.gather(work, return_exceptions=True)
    state, reason = _verdict(raised)
    return Outcome(check=name, promise=promise, state=state, reason=reason, seconds=time.monotonic() - since)


def _verdict(raised: BaseException | None) -> tuple[State, str]:
    match raised:
        case None:
            return "passed", ""
        case Skipped():
            return "skipped", str(raised)
        case Failed():
            return "failed", str(raised)
        case TimeoutError() | asyncio.CancelledError():
            return "failed", "it did not answer within its deadline"
        case _:
            return "failed", f"it raised {type(raised).__name__}: {raised}"


async def run(
    make: Make,
    *,
    harness: Harness | None = None,
    only: Iterable[str] = (),
    seconds: float = 2.0,
    patience: float = 5.0,
) -> AsyncIterator[Outcome]:
    """Every check (or those named in `only`) in real time, each with a provider that has seen nothing."""
    for name in only or CHECKS:
        with tempfile.TemporaryDirectory(prefix="everhold-plugin-", ignore_cleanup_errors=True) as directory:
            scene = Scene(Path(directory), make, harness=harness, seconds=seconds, patience=patience)
            yield await check(name, scene)


def run_virtually(
    make: Make, path: Path, *, harness: Callable[[], Harness] | None = None, only: Sequence[str] = ()
) -> list[Outcome]:
    """The same in virtual time: for a provider that waits for nothing but asyncio, it takes a moment."""
    outcomes = []
    for name in only or CHECKS:
        loop = SimLoop(name, shuffle=0.0)  # type: ignore[abstract]  # it has what virtual worlds need
        scene = Scene(path / name, make, harness=harness() if harness else None, seconds=30.0, patience=60.0)
        try:
            outcomes.append(loop.run(check(name, scene, most=3_600.0)))
        finally:
            loop.close()
    return outcomes
