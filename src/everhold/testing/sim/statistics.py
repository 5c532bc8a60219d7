"""Run many seeds and count schedules, speed, injected faults and failures."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from everhold.testing.sim.model import ModelFault
from everhold.testing.sim.mutants import MUTANTS
from everhold.testing.sim.run import run_seed

CHUNK_SEEDS = 25
MAX_SAVED_SEEDS = 3
"""Failing seeds that one run saves. More would add no information."""
MAX_STORIES = 3
"""Failing seeds of which a table prints the last events."""
STORY_LINES = 60
FAULT_NAMES = (
    "crashes", "power cuts", "lost with the power",
    "stalls", "zombies", "take-overs", "lost requests", "lost answers", "done late", "slow",
    "refusals", "jumps", "batches of several commits",
    "people joined", "people parted", "people forgotten", "aliases edited",
    "lies", "503 after execution", "idle resets", "batches refused", "batches kept in part",
    *ModelFault,
)  # fmt: skip
HOST_FAULT_NAMES = (
    "partitions", "unknown outcomes", "late commits", "drains", "accounts taken over", "accounts released",
)  # fmt: skip
"""Faults of schedules with several hosts."""


class SeedTally(Struct, kw_only=True):
    """The results of some seeds."""

    schedules: int = 0
    failures: dict[int, list[str]] = field(default_factory=dict)
    """seed -> its problems."""
    stories: dict[int, list[str]] = field(default_factory=dict)
    """seed -> its last events, for the first failing seeds."""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    virtual_seconds: float = 0.0
    stats: Counter[str] = field(default_factory=Counter)
    crashed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(gate, moment) -> how often a process crashed there."""

    def add(self, other: SeedTally) -> None:
        self.schedules += other.schedules
        self.failures.update(other.failures)
        self.stories.update(other.stories)
        self.cpu_seconds += other.cpu_seconds
        self.virtual_seconds += other.virtual_seconds
        self.stats.update(other.stats)
        self.crashed.update(other.crashed)

    def format_table(self) -> Iterator[str]:
        """Yield the lines of the table."""
        yield f"schedules            {self.schedules:>10,}"
        yield f"failures             {len(self.failures):>10,}"
        yield f"per CPU second       {self.schedules / max(self.cpu_seconds, 1e-9):>10.1f}"
        rate = self.schedules / max(self.wall_seconds, 1e-9)
        yield f"per second           {rate:>10.1f}   ({self.wall_seconds:.1f} s)"
        speed = self.virtual_seconds / max(self.wall_seconds, 1e-9)
        yield f"virtual hours        {self.virtual_seconds / 3600:>10.1f}   ({speed:,.0f} x real time)"
        yield f"commits              {self.stats['commits']:>10,}"
        for fault in FAULT_NAMES + HOST_FAULT_NAMES:
            if fault in FAULT_NAMES or self.stats[fault]:
                yield f"{fault:<37}{self.stats[fault]:>10,}"
        for seed, lines in sorted(self.stories.items())[:MAX_STORIES]:
            yield f"\nhow seed {seed} ended (`python -m everhold.testing.sim --story {seed}` prints all events)"
            yield from lines
            yield from (f"WRONG: {problem}" for problem in self.failures[seed])
        for seed, problems in sorted(self.failures.items()):
            yield f"seed {seed}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def play_seeds(
    seeds: Iterable[int], *, bug: str = "", until_found: bool = False, hosts: bool = False, approvals: bool = False
) -> SeedTally:
    """Run `seeds` in this process, one after another. `hosts`: with several hosts on one store. `approvals`: with calls
    that need permission."""
    tally = SeedTally()
    mutant = MUTANTS[bug] if bug else None
    how: dict[str, Any] = {"hosts": hosts, "approvals": approvals}
    if mutant is not None:
        how = {
            "parts": mutant.parts,
            "settings": mutant.settings,
            "hosts": mutant.hosts,
            "approvals": mutant.approvals,
        }
    started, began = time.perf_counter(), time.process_time()
    for seed in seeds:
        outcome = run_seed(seed, **how)
        tally.schedules += 1
        tally.virtual_seconds += outcome.seconds
        tally.stats.update(outcome.stats)
        tally.crashed.update(outcome.crashed)
        if outcome.problems:
            tally.failures[seed] = outcome.problems
            if len(tally.stories) < MAX_STORIES:
                tally.stories[seed] = outcome.lines[-STORY_LINES:]
            if until_found:
                break
    tally.cpu_seconds = time.process_time() - began
    tally.wall_seconds = time.perf_counter() - started
    return tally


def play_seeds_in_parallel(
    seeds: range, *, jobs: int, hosts: bool = False, approvals: bool = False
) -> Iterator[SeedTally]:
    """Run `seeds` in several processes; yield the tally after each chunk."""
    total = SeedTally()
    started = time.perf_counter()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        chunks = [seeds[start : start + CHUNK_SEEDS] for start in range(0, len(seeds), CHUNK_SEEDS)]
        for done in as_completed(
            [pool.submit(play_seeds, chunk, hosts=hosts, approvals=approvals) for chunk in chunks]
        ):
            total.add(done.result())
            total.wall_seconds = time.perf_counter() - started
            yield total


def save_failed_seeds(path: Path, failures: dict[int, list[str]]) -> None:
    """Append failing seeds to the file, so that the tests run them again. Schedules depend on the Python version."""
    known = path.read_text().splitlines() if path.exists() else []
    version = ".".join(platform.python_version_tuple()[:2])
    listed = {tuple(line.split()[:2]) for line in known if line and not line.startswith("#")}
    new = [
        f"{seed} {version} {problems[0]}"
        for seed, problems in sorted(failures.items())
        if (str(seed), version) not in listed
    ][:MAX_SAVED_SEEDS]
    if new:
        path.write_text("\n".join([*known, *new]) + "\n")


def load_failed_seeds(path: Path) -> list[int]:
    """Return the seeds of the file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted({int(line.split()[0]) for line in lines if line and not line.startswith("#")})
