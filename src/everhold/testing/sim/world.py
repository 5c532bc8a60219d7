"""Everything that survives a crash: the disk, the far sides, the people, and the record of what really happened.

The world draws the faults, carries requests and keeps the trace. It never looks into the system under test, and the
system never sees anything of it but its ports.
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

from everhold.testing.sim.loop import SimLoop
from everhold.testing.sim.power import Power
from everhold.testing.sim.profile import JUMPS, Profile

T = TypeVar("T")

EPOCH: Final = 1_800_000_000.0
LONGEST_STALL: Final = 400.0
_SESSION: Final = re.compile(r"\b[0-9a-hjkmnp-tv-z]{26}\b")


class Sent(NamedTuple):
    """Which process sent the request that is being carried out, when, and under which fence."""

    process: str
    at: float
    fence: int


NOBODY: Final = Sent("", 0.0, 0)
SENT: contextvars.ContextVar[Sent] = contextvars.ContextVar("SENT")
LISTENING: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("LISTENING", default=lambda: True)
"""Whether whoever sent the request that is being carried out still waits for what comes of it."""


class Dice:
    """Seeded chance, as ports/clock.py wants it."""

    def __init__(self, seed: int, name: str) -> None:
        self.dice = random.Random(f"{seed}/{name}")

    def bytes(self, n: int, /) -> bytes:
        return self.dice.randbytes(n)

    def random(self) -> float:
        return self.dice.random()


class Trip(NamedTuple):
    """How a request travels. None: it never arrives, or its answer does not; `breaks`: when the caller is cut off."""

    there: float | None
    back: float | None
    breaks: float | None


class World:
    """One schedule's world."""

    def __init__(self, seed: int, profile: Profile, loop: SimLoop, disk: Path) -> None:
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
        """(gate, moment) -> how often a process fell there."""
        self.woke: dict[str, float] = {}
        """When a process that had stood still went on, the last time."""
        self.faults = 0
        self.calm = False
        """Set at the end of the storm; from then on nothing goes wrong."""
        self.lines: list[str] = []
        self._fate = random.Random(f"{seed}/fate")
        self._wire = random.Random(f"{seed}/wire")
        self._trace = hashlib.blake2b(digest_size=12)
        self._names: dict[str, str] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.power = Power(disk, fails=profile.power > 0)
        self.cut: Callable[[], None] = lambda: None
        """Have the power go. Whoever keeps the processes running knows how."""

    # -- the record

    def tell(self, who: str, what: str) -> None:
        """One line of the story."""
        line = f"{self.loop.time():10.3f} {who:<8} {self.shorten(what)}"
        self.lines.append(line)
        self._trace.update(line.encode("utf-8", "replace"))

    def shorten(self, text: str) -> str:
        """`text` with a short name for every session id."""
        return _SESSION.sub(self._name, text)

    def _name(self, match: re.Match[str]) -> str:
        return self._names.setdefault(match[0], f"S{len(self._names) + 1}")

    @property
    def trace(self) -> str:
        """Two runs with the same trace did the same, to the letter."""
        return self._trace.hexdigest()

    # -- time

    def now(self) -> float:
        return EPOCH + self.loop.time() + self.skew

    def monotonic(self) -> float:
        return self.loop.time()

    def jump(self) -> None:
        """The wall clock is set, by somebody or something."""
        by = self._fate.choice(JUMPS)
        self.skew += by
        self.jumps.append((self.loop.time(), by))
        self.stats["jumps"] += 1
        self.tell("clock", f"jumps by {by:+.0f} s")

    def jumped_forward_since(self, when: float) -> bool:
        return any(at >= when and by > 0 for at, by in self.jumps)

    async def never(self) -> None:
        """What a dead process waits for."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(future)
        await future

    # -- fate

    def fate(self, gate: str, moment: str) -> str:
        """What happens to a process that passes a gate: nothing, `crash` or `stall`."""
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

    def stall_seconds(self) -> float:
        return self._fate.choice((0.5, 5.0, 40.0, LONGEST_STALL)) * self._fate.random()

    def chance(self, likely: float) -> bool:
        """Whether something the storm brings happens now."""
        return not self.calm and likely > 0 and self._fate.random() < likely

    def pick(self, low: float, high: float) -> float:
        return low + (high - low) * self._fate.random()

    # -- the wire

    def trip(self, what: str, deadline: float) -> Trip:
        """How the next request fares."""
        wire, profile = self._wire, self.profile
        quick = 3.0 if what == "model" else 0.4
        there, back = quick * wire.random() / 2, quick * wire.random() / 2
        roll, manner = wire.random(), wire.random()
        if self.calm:
            return Trip(there, back, None)
        # somewhere between a broken connection and a far side that is heard of again only when it is too late
        breaks = None if manner < 0.5 else deadline * wire.random()
        if roll < profile.lost:
            self.stats["lost requests"] += 1
            return Trip(None, None, breaks)
        if roll < 2 * profile.lost:
            self.stats["lost answers"] += 1
            return Trip(there if manner < 0.3 else deadline * wire.random(), None, breaks)
        if roll < 2 * profile.lost + profile.slow:
            self.stats["slow"] += 1
            return Trip(deadline * wire.random() / 2, deadline * wire.random(), None)
        return Trip(there, back, None)

    def carry(self, work: Callable[[], Awaitable[T]], trip: Trip, *, sent: Sent, expires: float) -> asyncio.Future[T]:
        """Bring a request to the far side and its answer back, whatever becomes of the sender meanwhile.

        A request has no effect after its deadline: whoever gave up on it may rely on that.
        """
        answer: asyncio.Future[T] = self.loop.create_future()
        if trip.there is None or self.loop.time() + trip.there >= expires:
            return answer
        began = self.loop.time()
        context = contextvars.copy_context()
        context.run(SENT.set, sent)
        context.run(LISTENING.set, lambda: not answer.done())

        async def work_there() -> T:
            return await work()

        def arrived() -> None:
            if trip.breaks is not None and self.loop.time() > began + trip.breaks:
                self.stats["done late"] += 1  # its sender has given up, and may be asking already
            task = self.loop.create_task(work_there(), context=context)
            task.add_done_callback(worked)

        def worked(task: asyncio.Task[T]) -> None:
            error = task.exception()
            if trip.back is not None:
                self.loop.call_later(trip.back, returned, task, error)

        def returned(task: asyncio.Task[T], error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(task.result())
            else:
                answer.set_exception(error)
                answer.exception()  # its reader may be gone by now

        self.loop.call_later(trip.there, arrived)
        return answer


class Quiet:
    """A log whose lines become part of the story; an error is kept as a complaint."""

    def __init__(self, world: World, who: str, complaints: list[str], bound: dict[str, Any] | None = None) -> None:
        self.world = world
        self.who = who
        self.complaints = complaints
        self.bound = bound or {}

    def debug(self, event: str, /, **fields: object) -> None:
        self._tell(event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._tell(event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._tell(event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._tell(event, fields)
        self.complaints.append(f"{self.who} reported {event}: {fields.get('error')!r}")

    def bind(self, **fields: object) -> Quiet:
        return Quiet(self.world, self.who, self.complaints, {**self.bound, **fields})

    def _tell(self, event: str, fields: dict[str, object]) -> None:
        said = " ".join(f"{name}={value}" for name, value in {**self.bound, **fields}.items())
        self.world.tell(self.who, f". {event} {said}")
