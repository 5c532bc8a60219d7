"""What survives a crash: the disk, the remote services, the users, and the trace.

The world draws the faults, transports the requests and records the trace. It does not look into the system under test,
and the system sees only the ports.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from everhold.errors import OutcomeUnknown, StoreBusy
from everhold.testing.sim.loop import SimLoop
from everhold.testing.sim.power_loss import DiskPower
from everhold.testing.sim.profile import CLOCK_JUMPS_SECONDS, SimProfile

T = TypeVar("T")

EPOCH: Final = 1_800_000_000.0
MAX_STALL_SECONDS: Final = 400.0
MAX_HANG_SECONDS: Final = 30.0
"""How long a call may take that does not reach the store."""
_SESSION_PATTERN: Final = re.compile(r"\b[0-9a-hjkmnp-tv-z]{26}\b")


class RequestOrigin(NamedTuple):
    """Which process sent the current request, when, and under which fence."""

    process: str
    sent_at: float
    fence: int


NO_ORIGIN: Final = RequestOrigin("", 0.0, 0)
REQUEST_ORIGIN: contextvars.ContextVar[RequestOrigin] = contextvars.ContextVar("SENT")
CALLER_LISTENING: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("LISTENING", default=lambda: True)
"""Whether the sender of the current request still waits for its answer."""


class SimRandom:
    """A seeded RandomSource."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng = random.Random(f"{seed}/{name}")

    def bytes(self, n: int, /) -> bytes:
        return self.rng.randbytes(n)

    def random(self) -> float:
        return self.rng.random()


class RequestTrip(NamedTuple):
    """The transport of a request. None: the request or its answer is lost. `breaks`: when the connection breaks."""

    request_seconds: float | None
    response_seconds: float | None
    breaks_after_seconds: float | None


class SimWorld:
    """The world of one schedule."""

    def __init__(self, seed: int, profile: SimProfile, loop: SimLoop, disk: Path) -> None:
        self.seed = seed
        self.profile = profile
        self.loop = loop
        self.disk = disk
        self.skew = 0.0
        self.jumps: list[tuple[float, float]] = []
        """(when, by how much) of every clock jump."""
        self.stats: Counter[str] = Counter()
        self.passed: Counter[tuple[str, str]] = Counter()
        self.crashed: Counter[tuple[str, str]] = Counter()
        """(gate, moment) -> how often a process crashed there."""
        self.woke_at: dict[str, float] = {}
        """process -> the last time it continued after a stall."""
        self.faults = 0
        self.calm = False
        """True after the fault phase: no more faults occur."""
        self.lines: list[str] = []
        self._fate = random.Random(f"{seed}/fate")
        self._wire = random.Random(f"{seed}/wire")
        self._trace = hashlib.blake2b(digest_size=12)
        self._names: dict[str, str] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.power = DiskPower(disk, fails=profile.power > 0)
        self.cut_power: Callable[[], None] = lambda: None
        """Cut the power. The host sets this function."""

    # -- the record

    def record(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        line = f"{self.loop.time():10.3f} {who:<8} {self.shorten_ids(what)}"
        self.lines.append(line)
        self._trace.update(line.encode("utf-8", "replace"))

    def shorten_ids(self, text: str) -> str:
        """Replace every session id in `text` with a short name."""
        return _SESSION_PATTERN.sub(self._name_session, text)

    def _name_session(self, match: re.Match[str]) -> str:
        return self._names.setdefault(match[0], f"S{len(self._names) + 1}")

    @property
    def trace(self) -> str:
        """Return the digest of all lines. Runs with equal digests had equal events."""
        return self._trace.hexdigest()

    # -- time

    def now(self) -> float:
        return EPOCH + self.loop.time() + self.skew

    def monotonic(self) -> float:
        return self.loop.time()

    def jump_clock(self) -> None:
        """Set the wall clock forward or back."""
        by = self._fate.choice(CLOCK_JUMPS_SECONDS)
        self.skew += by
        self.jumps.append((self.loop.time(), by))
        self.stats["jumps"] += 1
        self.record("clock", f"jumps by {by:+.0f} s")

    def jumped_forward_since(self, when: float) -> bool:
        return any(at >= when and by > 0 for at, by in self.jumps)

    async def wait_forever(self) -> None:
        """Wait for ever, as a dead process does."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(future)
        await future

    # -- faults

    def draw_fate(self, gate: str, moment: str) -> str:
        """Draw what happens to a process at a gate: nothing, `crash` or `stall`."""
        self.passed[gate, moment] += 1
        profile = self.profile
        if (gate, moment) == profile.aim and self.passed[gate, moment] == profile.aim_at:
            return "crash"
        if self.calm or self.faults >= profile.most_faults:
            return ""
        roll = self._fate.random()
        if roll < profile.crash:
            self.faults += 1
            return "crash"
        if roll < profile.crash + profile.stall:
            self.faults += 1
            return "stall"
        return ""

    def draw_stall_seconds(self) -> float:
        return self._fate.choice((0.5, 5.0, 40.0, MAX_STALL_SECONDS)) * self._fate.random()

    def draw_partition_seconds(self) -> float:
        return self._fate.choice((2.0, 20.0, 100.0, MAX_STALL_SECONDS)) * self._fate.random()

    def draw_chance(self, likely: float) -> bool:
        """Draw whether a fault of this probability happens now."""
        return not self.calm and likely > 0 and self._fate.random() < likely

    def draw_between(self, low: float, high: float) -> float:
        return low + (high - low) * self._fate.random()

    # -- the network

    def draw_trip(self, what: str, deadline: float) -> RequestTrip:
        """Draw the transport of the next request."""
        wire, profile = self._wire, self.profile
        quick = 3.0 if what == "model" else 0.4
        there, back = quick * wire.random() / 2, quick * wire.random() / 2
        roll, manner = wire.random(), wire.random()
        if self.calm:
            return RequestTrip(there, back, None)
        # between an immediately broken connection and an answer after the deadline
        breaks = None if manner < 0.5 else deadline * wire.random()
        if roll < profile.lost:
            self.stats["lost requests"] += 1
            return RequestTrip(None, None, breaks)
        if roll < 2 * profile.lost:
            self.stats["lost answers"] += 1
            return RequestTrip(there if manner < 0.3 else deadline * wire.random(), None, breaks)
        if roll < 2 * profile.lost + profile.slow:
            self.stats["slow"] += 1
            return RequestTrip(deadline * wire.random() / 2, deadline * wire.random(), None)
        return RequestTrip(there, back, None)

    def carry_request(
        self, work: Callable[[], Awaitable[T]], trip: RequestTrip, *, sent: RequestOrigin, expires: float
    ) -> asyncio.Future[T]:
        """Transport a request to the remote service and its answer back, even if the sender dies.

        A request has no effect after its deadline, so the sender may rely on that after a timeout.
        """
        answer: asyncio.Future[T] = self.loop.create_future()
        if trip.request_seconds is None or self.loop.time() + trip.request_seconds >= expires:
            return answer
        began = self.loop.time()
        context = contextvars.copy_context()
        context.run(REQUEST_ORIGIN.set, sent)
        context.run(CALLER_LISTENING.set, lambda: not answer.done())

        async def work_there() -> T:
            return await work()

        def arrived() -> None:
            if trip.breaks_after_seconds is not None and self.loop.time() > began + trip.breaks_after_seconds:
                self.stats["done late"] += 1  # the sender has given up, and may already probe
            task = self.loop.create_task(work_there(), context=context)
            task.add_done_callback(worked)

        def worked(task: asyncio.Task[T]) -> None:
            error = task.exception()
            if trip.response_seconds is not None:
                self.loop.call_later(trip.response_seconds, returned, task, error)

        def returned(task: asyncio.Task[T], error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(task.result())
            else:
                answer.set_exception(error)
                answer.exception()  # the sender may be gone

        self.loop.call_later(trip.request_seconds, arrived)
        return answer


class SimLogger:
    """A logger whose lines become part of the trace. Errors are also collected as complaints."""

    def __init__(self, world: SimWorld, who: str, complaints: list[str], bound: dict[str, Any] | None = None) -> None:
        self.world = world
        self.who = who
        self.complaints = complaints
        self.bound = bound or {}

    def debug(self, event: str, /, **fields: object) -> None:
        self._record(event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._record(event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._record(event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._record(event, fields)
        if not isinstance(fields.get("error"), StoreBusy | OutcomeUnknown):  # the world cut the host off
            self.complaints.append(f"{self.who} reported {event}: {fields.get('error')!r}")

    def bind(self, **fields: object) -> SimLogger:
        return SimLogger(self.world, self.who, self.complaints, {**self.bound, **fields})

    def _record(self, event: str, fields: dict[str, object]) -> None:
        said = " ".join(f"{name}={value}" for name, value in {**self.bound, **fields}.items())
        self.world.record(self.who, f". {event} {said}")
