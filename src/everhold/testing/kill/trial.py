"""Starts a process, kills it, starts it again, and in the end lets it finish what it was given."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec import Struct

from everhold.core.entries import Returned
from everhold.flow.supervise import LEASE_SECONDS
from everhold.ports.store import Step
from everhold.testing.kill import verdict
from everhold.testing.kill.child import Terms
from everhold.testing.kill.gates import Gate
from everhold.testing.kill.people import People
from everhold.testing.kill.town import Town
from everhold.testing.kill.wire import Service

READY_SECONDS: Final = 2.0
"""How long a process may compute from its start to its serving, however busy the machine is."""
PATIENCE_SECONDS: Final = 100.0
"""How long anything in a trial may take before it counts as stuck."""
QUIET_SECONDS: Final = 300.0
SHORT_LEASE: Final = 1.2
"""So that renewing it can be seen within a trial."""


class Outcome(Struct, kw_only=True):
    """What a trial found, and how much there was to find it in."""

    seed: int
    failures: list[str]
    counts: Counter[str]
    ready: list[float]
    """Seconds from start to serving, of every process that got that far."""
    computed: list[float]
    """Of each of them, how many seconds it had computed by then."""

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        ready = "never ready"
        if self.ready:
            ready = f"ready in {median(self.ready):.2f} s, at most {max(self.ready):.2f} s"
            ready += f", of which {median(self.computed):.2f} s computing, at most {max(self.computed):.2f} s"
        return "\n".join([f"seed {self.seed}: {counts}; {ready}", *(f"  FAILED {text}" for text in self.failures)])


class Trial:
    """One home, one town around it, and as many lives as it takes."""

    def __init__(self, seed: int, *, mutant: str = "") -> None:
        self.seed = seed
        self.mutant = mutant
        self.dice = random.Random(f"trial/{seed}")
        self.town = Town(seed)
        self.people = People(self.town, seed)
        self.counts: Counter[str] = Counter()
        self.ready: list[float] = []
        self.computed: list[float] = []
        self.failures: list[str] = []
        self._directory = Path(tempfile.mkdtemp(prefix="everhold-kill-"))
        self.home = self._directory / "home"
        self.home.mkdir(mode=0o700)
        self._service = Service(self.town.answer)
        self._errors = (self._directory / "stderr").open("wb")

    async def __aenter__(self) -> Self:
        await self._service.start(self._directory / "town")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.people.rest()
        await self._service.close()
        self._errors.close()
        if self.mutant or not (self.failures or error):
            shutil.rmtree(self._directory)

    # -- lives -------------------------------------------------------------------------------------------------------

    async def start(self, *, gate: Gate | None = None, lease: float = LEASE_SECONDS) -> Life:
        """A new process."""
        terms = Terms(
            home=str(self.home), socket=str(self._directory / "town"), gate=gate, lease=lease, mutant=self.mutant
        )
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "everhold.testing.kill.child",
            msgspec.json.encode(terms).decode(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
        )
        self.counts["starts"] += 1
        return Life(self, process, started)

    async def storm(self, kills: int) -> None:
        """Kill at random moments, now and then before the process is even up."""
        self.people.start()
        for _ in range(kills):
            life = await self.start()
            if self.dice.random() < 0.1:
                await life.last(self.dice.random() * 0.3)
            else:
                await life.serving()
                await life.last(0.02 + self.dice.random() * self.dice.choice((0.1, 0.4, 0.8)))
            await life.kill()
        await self.people.rest()

    async def tour(self, gates: Iterable[Gate]) -> None:
        """Die at each of these gates, one life after the other, while people go on talking."""
        self.people.start(odd=False)
        for gate in gates:
            short = gate.step is Step.RENEW
            life = await self.start(gate=gate, lease=SHORT_LEASE if short else LEASE_SECONDS)
            for _ in range(gate.nth):
                self.people.provoke(gate.step)
            if await life.dies():
                self.counts["kills"] += 1
            else:
                self.failures.append(f"nobody came to {gate} within {PATIENCE_SECONDS:.0f} s")
                await life.kill()
        await self.people.rest()

    async def finish(self) -> Outcome:
        """Let a last process do what is left, end it, and compare."""
        self.town.luck.calm = True
        life = await self.start()
        await life.serving()
        await self._quiet()
        if self.dice.random() < 0.5:
            await life.kill()
        else:
            await life.end()
        books = await verdict.read(self.home, identities=self.people.linked, purses=self.people.purses)
        self.failures += verdict.failures(self.town, self.people, books, self.home)
        self.failures += self._complaints()
        self._count(books)
        if self.failures and not self.mutant:
            self.failures.append(f"what was left is in {self._directory}")
        return Outcome(
            seed=self.seed, failures=self.failures, counts=self.counts, ready=self.ready, computed=self.computed
        )

    async def _quiet(self) -> None:
        deadline = time.monotonic() + QUIET_SECONDS
        unrest = "nobody was asked"
        while time.monotonic() < deadline:
            try:
                unrest = await asyncio.wait_for(self.town.office.order("quiet"), PATIENCE_SECONDS)
            except TimeoutError:
                unrest = "the office got no answer"
                break
            unheard = sum(len(square.updates) - square.confirmed for square in self.town.squares.values())
            if not unrest and not unheard:
                return
            unrest = unrest or f"{unheard} messages were not confirmed"
            await asyncio.sleep(0.1)
        self.failures.append(f"never came to rest: {unrest}")

    def _complaints(self) -> list[str]:
        """What the processes themselves called an error: a part of them fell."""
        self._errors.flush()
        lines = (self._directory / "stderr").read_text("utf-8", "replace").splitlines()
        return [f"a process complained: {line[:2000]}" for line in lines if '"level":"warning"' not in line][:10]

    def _count(self, books: verdict.Books) -> None:
        counts = self.counts
        for log in books.logs:
            counts["entries"] += len(log.entries)
            counts["messages"] += sum(entry.kind == "heard" for entry in log.entries)
            counts["turns"] += sum(what == "turn" for what in log.what.values())
            counts["folds"] += sum(entry.kind == "compressed" for entry in log.entries)
            counts["failed turns"] += sum(ended.outcome == "failed" for ended in log.ended.values())
            counts["resumed turns"] += sum(op.type == "turn" and op.attempts > 1 for op in log.operations)
            counts["calls of unknown outcome"] += sum(
                isinstance(entry.body, Returned) and entry.body.unknown for entry in log.entries
            )
        counts["sessions"] += len(books.logs)
        counts["doubtful"] += sum(r.in_doubt for r in books.receipts.values()) + sum(p.in_doubt for p in books.parked)
        counts["repeats absorbed"] += self.town.squares["keyed"].repeats
        counts["drafts edited"] += self.town.squares["keyed"].edited


class Life:
    """One process, from its start to its end."""

    def __init__(self, trial: Trial, process: asyncio.subprocess.Process, started: float) -> None:
        self.trial = trial
        self.process = process
        self.started = started

    async def serving(self) -> None:
        """Wait until it says that it serves."""
        town, pid = self.trial.town, self.process.pid
        while pid not in town.ready:
            if self.process.returncode is not None:
                self.trial.failures.append(f"a process ended by itself with {self.process.returncode}")
                return
            if time.monotonic() - self.started > PATIENCE_SECONDS:
                self.trial.failures.append("a process never became ready")
                return
            town.news.clear()
            try:
                async with asyncio.timeout(0.05):
                    await town.news.wait()
            except TimeoutError:
                continue
        at, computed = town.ready[pid]
        self.trial.ready.append(at - self.started)
        self.trial.computed.append(computed)

    async def last(self, seconds: float) -> None:
        """Let it live for a while; it has no reason to end by itself."""
        try:
            async with asyncio.timeout(seconds):
                await self.process.wait()
        except TimeoutError:
            return
        self.trial.failures.append(f"a process ended by itself with {self.process.returncode}")

    async def dies(self) -> bool:
        """Wait until it came to its gate."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                code = await self.process.wait()
        except TimeoutError:
            return False
        if code != -signal.SIGKILL:
            self.trial.failures.append(f"a process ended by itself with {code}")
        return True

    async def kill(self) -> None:
        """What a kill -9, the out-of-memory killer or a power cut of the process amounts to."""
        if self.process.returncode is None:
            self.process.kill()
            self.trial.counts["kills"] += 1
        await self.process.wait()

    async def end(self) -> float:
        """Ask it to end; the seconds it took."""
        asked = time.monotonic()
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                code = await self.process.wait()
        except TimeoutError:
            self.trial.failures.append("a process did not end when it was asked to")
            await self.kill()
            return time.monotonic() - asked
        if code != 0:
            self.trial.failures.append(f"a process that was asked to end ended with {code}")
        return time.monotonic() - asked
