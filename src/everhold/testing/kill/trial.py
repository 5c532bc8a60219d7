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
from everhold.engine.supervisor import LEASE_SECONDS
from everhold.ports.store import Step
from everhold.testing.kill import verdict
from everhold.testing.kill.child import ChildProcessTerms
from everhold.testing.kill.gates import KillGate
from everhold.testing.kill.json_lines import KillServer
from everhold.testing.kill.people import KillPeople
from everhold.testing.kill.world import KillWorld

READY_SECONDS: Final = 2.0
"""How long a process may compute from its start to its serving, however busy the machine is."""
PATIENCE_SECONDS: Final = 100.0
"""How long anything in a trial may take before it counts as stuck."""
QUIET_SECONDS: Final = 300.0
SHORT_LEASE_SECONDS: Final = 1.2
"""So that renewing it can be seen within a trial."""


class KillTrialResult(Struct, kw_only=True):
    """What a trial found, and how much there was to find it in."""

    seed: int
    failures: list[str]
    counts: Counter[str]
    startup_seconds: list[float]
    """Seconds from start to serving, of every process that got that far."""
    computed: list[float]
    """Of each of them, how many seconds it had computed by then."""

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        ready = "never ready"
        if self.startup_seconds:
            ready = f"ready in {median(self.startup_seconds):.2f} s, at most {max(self.startup_seconds):.2f} s"
            ready += f", of which {median(self.computed):.2f} s computing, at most {max(self.computed):.2f} s"
        return "\n".join([f"seed {self.seed}: {counts}; {ready}", *(f"  FAILED {text}" for text in self.failures)])


class KillTrial:
    """One home, one town around it, and as many lives as it takes."""

    def __init__(self, seed: int, *, mutant: str = "") -> None:
        self.seed = seed
        self.mutant = mutant
        self.dice = random.Random(f"trial/{seed}")
        self.world = KillWorld(seed)
        self.people = KillPeople(self.world, seed)
        self.counts: Counter[str] = Counter()
        self.startup_seconds: list[float] = []
        self.computed: list[float] = []
        self.failures: list[str] = []
        self._directory = Path(tempfile.mkdtemp(prefix="everhold-kill-"))
        self.home = self._directory / "home"
        self.home.mkdir(mode=0o700)
        self._service = KillServer(self.world.answer)
        self._errors = (self._directory / "stderr").open("wb")

    async def __aenter__(self) -> Self:
        await self._service.start(self._directory / "town")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.people.stop()
        await self._service.close()
        self._errors.close()
        if self.mutant or not (self.failures or error):
            shutil.rmtree(self._directory)

    # -- lives -------------------------------------------------------------------------------------------------------

    async def start(self, *, gate: KillGate | None = None, lease: float = LEASE_SECONDS) -> KillTrialProcess:
        """A new process."""
        terms = ChildProcessTerms(
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
        return KillTrialProcess(self, process, started)

    async def kill_at_random(self, kills: int) -> None:
        """Kill at random moments, now and then before the process is even up."""
        self.people.start()
        for _ in range(kills):
            life = await self.start()
            if self.dice.random() < 0.1:
                await life.let_run(self.dice.random() * 0.3)
            else:
                await life.wait_until_ready()
                await life.let_run(0.02 + self.dice.random() * self.dice.choice((0.1, 0.4, 0.8)))
            await life.kill()
        await self.people.stop()

    async def kill_at_gates(self, gates: Iterable[KillGate]) -> None:
        """Die at each of these gates, one life after the other, while people go on talking."""
        self.people.start(odd=False)
        for gate in gates:
            short = gate.step is Step.RENEW
            life = await self.start(gate=gate, lease=SHORT_LEASE_SECONDS if short else LEASE_SECONDS)
            for _ in range(gate.nth):
                self.people.provoke_commit(gate.step)
            if await life.wait_until_killed():
                self.counts["kills"] += 1
            else:
                self.failures.append(f"nobody came to {gate} within {PATIENCE_SECONDS:.0f} s")
                await life.kill()
        await self.people.stop()

    async def finish_and_compare(self) -> KillTrialResult:
        """Let a last process do what is left, end it, and compare."""
        self.world.network.calm = True
        life = await self.start()
        await life.wait_until_ready()
        await self._wait_until_idle()
        if self.dice.random() < 0.5:
            await life.kill()
        else:
            await life.stop()
        contents = await verdict.read_store(self.home, identities=self.people.linked, budgets=self.people.budgets)
        self.failures += verdict.find_failures(self.world, self.people, contents, self.home)
        self.failures += self._read_reported_errors()
        self._count_entries(contents)
        if self.failures and not self.mutant:
            self.failures.append(f"what was left is in {self._directory}")
        return KillTrialResult(
            seed=self.seed,
            failures=self.failures,
            counts=self.counts,
            startup_seconds=self.startup_seconds,
            computed=self.computed,
        )

    async def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + QUIET_SECONDS
        unrest = "nobody was asked"
        while time.monotonic() < deadline:
            try:
                unrest = await asyncio.wait_for(self.world.operator_orders.request("quiet"), PATIENCE_SECONDS)
            except TimeoutError:
                unrest = "the office got no answer"
                break
            unheard = sum(
                len(platform.incoming_messages) - platform.confirmed for platform in self.world.platforms.values()
            )
            if not unrest and not unheard:
                return
            unrest = unrest or f"{unheard} messages were not confirmed"
            await asyncio.sleep(0.1)
        self.failures.append(f"never came to rest: {unrest}")

    def _read_reported_errors(self) -> list[str]:
        """What the processes themselves called an error: a part of them fell."""
        self._errors.flush()
        lines = (self._directory / "stderr").read_text("utf-8", "replace").splitlines()
        return [f"a process complained: {line[:2000]}" for line in lines if '"level":"warning"' not in line][:10]

    def _count_entries(self, contents: verdict.StoreContents) -> None:
        counts = self.counts
        for log in contents.logs:
            counts["entries"] += len(log.entries)
            counts["messages"] += sum(entry.kind == "heard" for entry in log.entries)
            counts["turns"] += sum(what == "turn" for what in log.operation_types.values())
            counts["folds"] += sum(entry.kind == "compressed" for entry in log.entries)
            counts["failed turns"] += sum(ended.outcome == "failed" for ended in log.ended.values())
            counts["resumed turns"] += sum(op.type == "turn" and op.attempts > 1 for op in log.operations)
            counts["calls of unknown outcome"] += sum(
                isinstance(entry.body, Returned) and entry.body.unknown for entry in log.entries
            )
        counts["sessions"] += len(contents.logs)
        counts["doubtful"] += sum(r.in_doubt for r in contents.receipts.values()) + sum(
            p.in_doubt for p in contents.dead_letters
        )
        counts["repeats absorbed"] += self.world.platforms["keyed"].repeats
        counts["drafts edited"] += self.world.platforms["keyed"].edited


class KillTrialProcess:
    """One process, from its start to its end."""

    def __init__(self, trial: KillTrial, process: asyncio.subprocess.Process, started: float) -> None:
        self.trial = trial
        self.process = process
        self.started = started

    async def wait_until_ready(self) -> None:
        """Wait until it says that it serves."""
        world, pid = self.trial.world, self.process.pid
        while pid not in world.ready:
            if self.process.returncode is not None:
                self.trial.failures.append(f"a process ended by itself with {self.process.returncode}")
                return
            if time.monotonic() - self.started > PATIENCE_SECONDS:
                self.trial.failures.append("a process never became ready")
                return
            world.process_ready.clear()
            try:
                async with asyncio.timeout(0.05):
                    await world.process_ready.wait()
            except TimeoutError:
                continue
        at, computed = world.ready[pid]
        self.trial.startup_seconds.append(at - self.started)
        self.trial.computed.append(computed)

    async def let_run(self, seconds: float) -> None:
        """Let it live for a while; it has no reason to end by itself."""
        try:
            async with asyncio.timeout(seconds):
                await self.process.wait()
        except TimeoutError:
            return
        self.trial.failures.append(f"a process ended by itself with {self.process.returncode}")

    async def wait_until_killed(self) -> bool:
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

    async def stop(self) -> float:
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
