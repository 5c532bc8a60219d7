"""Start and kill processes, let the last one finish all work, and compare."""

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
"""How much CPU time a process may use until it is ready, however busy the machine is."""
PATIENCE_SECONDS: Final = 100.0
"""How long a part of a trial may take before it counts as stuck."""
QUIET_SECONDS: Final = 300.0
KILLS_PER_ORDER: Final = 6
"""How often processes are killed at random until the operator orders something."""
SHARED_LEASE_SECONDS: Final = 3.0
SHORT_LEASE_SECONDS: Final = 1.2
"""Short, so that a trial includes renewals."""


class KillTrialResult(Struct, kw_only=True):
    """The failures of a trial, and the numbers of its events."""

    seed: int
    failures: list[str]
    counts: Counter[str]
    startup_seconds: list[float]
    """Seconds from start to ready, of every process that became ready."""
    computed: list[float]
    """CPU seconds of each of them until then."""
    start_waits: list[float]
    """Seconds that each of them waited for timers until then."""
    stop_waits: list[float]
    """Seconds that a task waited for timers from SIGTERM to the end, of every process that ended so."""

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        ready = "never ready"
        if self.startup_seconds:
            ready = f"ready in {median(self.startup_seconds):.2f} s, at most {max(self.startup_seconds):.2f} s"
            ready += f", of which {median(self.computed):.2f} s computing, at most {max(self.computed):.2f} s"
            ready += f", and at most {max(self.start_waits):.2f} s waiting"
        if self.stop_waits:
            ready += f"; stopped after waiting at most {max(self.stop_waits):.2f} s"
        return "\n".join([f"seed {self.seed}: {counts}; {ready}", *(f"  FAILED {text}" for text in self.failures)])


class KillTrial:
    """One home, the services around it, and a sequence of processes."""

    def __init__(self, seed: int, *, mutant: str = "", store_url: str = "") -> None:
        """`store_url` is the address of an empty PostgreSQL database; without one, the store is a SQLite file."""
        self.seed = seed
        self.store_url = store_url
        self.usual_lease = SHARED_LEASE_SECONDS if store_url else LEASE_SECONDS
        """No host may end the leases of a killed one, so on a shared store they must be short."""
        self.mutant = mutant
        self.rng = random.Random(f"trial/{seed}")
        self.world = KillWorld(seed)
        self.people = KillPeople(self.world, seed)
        self.counts: Counter[str] = Counter()
        self.startup_seconds: list[float] = []
        self.computed: list[float] = []
        self.start_waits: list[float] = []
        self.failures: list[str] = []
        self._directory = Path(tempfile.mkdtemp(prefix="everhold-kill-"))
        self.home = self._directory / "home"
        self.home.mkdir(mode=0o700)
        self._service = KillServer(self.world.answer)
        self._errors = (self._directory / "stderr").open("wb")

    async def __aenter__(self) -> Self:
        await self._service.start(self._directory / "world")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.people.stop()
        await self._service.close()
        self._errors.close()
        if self.mutant or not (self.failures or error):
            shutil.rmtree(self._directory)

    # -- processes ---------------------------------------------------------------------------------------------------

    async def start(self, *, gate: KillGate | None = None, lease: float | None = None) -> KillTrialProcess:
        """Start a new process."""
        terms = ChildProcessTerms(
            home=str(self.home),
            socket=str(self._directory / "world"),
            store_url=self.store_url,
            gate=gate,
            lease=self.usual_lease if lease is None else lease,
            mutant=self.mutant,
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
        """Kill at random moments, sometimes before the process is ready."""
        self.people.start()
        for number in range(kills):
            if number % KILLS_PER_ORDER == 0:
                self.people.request_anything()
            child = await self.start()
            if self.rng.random() < 0.1:
                await child.let_run(self.rng.random() * 0.3)
            else:
                await child.wait_until_ready()
                await child.let_run(0.02 + self.rng.random() * self.rng.choice((0.1, 0.4, 0.8)))
            await child.kill()
        await self.people.stop()

    async def kill_at_gates(self, gates: Iterable[KillGate]) -> None:
        """Kill a process at each of these gates while users write."""
        self.people.start(odd=False)
        for gate in gates:
            short = gate.step is Step.RENEW
            child = await self.start(gate=gate, lease=SHORT_LEASE_SECONDS if short else None)
            for _ in range(gate.nth):
                self.people.provoke_commit(gate.step)
            if await child.wait_until_killed():
                self.counts["kills"] += 1
            else:
                self.failures.append(f"no process reached {gate} within {PATIENCE_SECONDS:.0f} s")
                await child.kill()
        await self.people.stop()

    async def finish_and_compare(self) -> KillTrialResult:
        """Let a last process finish all work, stop it, and compare."""
        self.world.network.calm = True
        child = await self.start()
        await child.wait_until_ready()
        await self._wait_until_idle()
        if self.rng.random() < 0.5:
            await child.kill()
        else:
            await child.stop()
        contents = await verdict.read_store(
            self.home,
            url=self.store_url,
            identities=[*self.people.linked, *self.people.unlinked],
            budgets=self.people.budgets,
        )
        self.failures += verdict.find_failures(self.world, self.people, contents, self.home)
        self.failures += self._read_reported_errors()
        self._count_entries(contents)
        if self.failures and not self.mutant:
            self.failures.append(f"the files of the trial are in {self._directory}")
        return KillTrialResult(
            seed=self.seed,
            failures=self.failures,
            counts=self.counts,
            startup_seconds=self.startup_seconds,
            computed=self.computed,
            start_waits=self.start_waits,
            stop_waits=list(self.world.stopped.values()),
        )

    async def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + QUIET_SECONDS
        remaining = "no process was asked"
        while time.monotonic() < deadline:
            try:
                remaining = await asyncio.wait_for(self.world.operator_orders.request("quiet"), PATIENCE_SECONDS)
            except TimeoutError:
                remaining = "the operator got no answer"
                break
            unheard = sum(
                len(platform.incoming_messages) - platform.confirmed for platform in self.world.platforms.values()
            )
            if not remaining and not unheard:
                return
            remaining = remaining or f"{unheard} messages were not confirmed"
            await asyncio.sleep(0.1)
        self.failures.append(f"work remains: {remaining}")

    def _read_reported_errors(self) -> list[str]:
        """Return the errors that the processes logged."""
        self._errors.flush()
        lines = (self._directory / "stderr").read_text("utf-8", "replace").splitlines()
        return [f"a process logged an error: {line[:2000]}" for line in lines if '"level":"warning"' not in line][:10]

    def _count_entries(self, contents: verdict.StoreContents) -> None:
        counts = self.counts
        for log in contents.logs:
            counts["entries"] += len(log.entries)
            counts["messages"] += sum(entry.kind == "heard" for entry in log.entries)
            counts["turns"] += sum(what == "turn" for what in log.operation_types.values())
            counts["compressions"] += sum(entry.kind == "compressed" for entry in log.entries)
            counts["failed turns"] += sum(ended.outcome == "failed" for ended in log.ended.values())
            counts["resumed turns"] += sum(op.type == "turn" and op.attempts > 1 for op in log.operations)
            counts["calls of unknown outcome"] += sum(
                isinstance(entry.body, Returned) and entry.body.unknown for entry in log.entries
            )
        counts["sessions"] += len(contents.logs)
        counts["in doubt"] += sum(r.in_doubt for r in contents.receipts.values()) + sum(
            p.in_doubt for p in contents.dead_letters
        )
        counts["repeats absorbed"] += self.world.platforms["keyed"].repeats
        counts["drafts edited"] += sum(platform.edited for platform in self.world.platforms.values())


class KillTrialProcess:
    """One process from start to end."""

    def __init__(self, trial: KillTrial, process: asyncio.subprocess.Process, started: float) -> None:
        self.trial = trial
        self.process = process
        self.started = started

    async def wait_until_ready(self) -> None:
        """Wait until the process reports that it is ready."""
        world, pid = self.trial.world, self.process.pid
        while pid not in world.ready:
            if self.process.returncode is not None:
                self.trial.failures.append(f"a process ended unexpectedly with {self.process.returncode}")
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
        at, computed, waited = world.ready[pid]
        self.trial.startup_seconds.append(at - self.started)
        self.trial.computed.append(computed)
        self.trial.start_waits.append(waited)

    async def let_run(self, seconds: float) -> None:
        """Let the process run for a while. It must not end."""
        try:
            async with asyncio.timeout(seconds):
                await self.process.wait()
        except TimeoutError:
            return
        self.trial.failures.append(f"a process ended unexpectedly with {self.process.returncode}")

    async def wait_until_killed(self) -> bool:
        """Wait until the process was killed at its gate."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                code = await self.process.wait()
        except TimeoutError:
            return False
        if code != -signal.SIGKILL:
            self.trial.failures.append(f"a process ended unexpectedly with {code}")
        return True

    async def kill(self) -> None:
        """Kill the process with SIGKILL, as the out-of-memory killer does."""
        if self.process.returncode is None:
            self.process.kill()
            self.trial.counts["kills"] += 1
        await self.process.wait()

    async def stop(self) -> float:
        """Stop the process with SIGTERM; return how many seconds it took."""
        asked = time.monotonic()
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                code = await self.process.wait()
        except TimeoutError:
            self.trial.failures.append("a process did not end after SIGTERM")
            await self.kill()
            return time.monotonic() - asked
        if code != 0:
            self.trial.failures.append(f"a process ended with {code} after SIGTERM")
        return time.monotonic() - asked
