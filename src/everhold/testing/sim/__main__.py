"""Run seeds of the simulator, search for planted bugs, or print the events of one seed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from everhold.testing.sim import statistics
from everhold.testing.sim.mutants import MUTANTS
from everhold.testing.sim.run import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m everhold.testing.sim", description=__doc__)
    parser.add_argument("--seeds", default="0:300", help="FROM:TO, by default 0:300")
    parser.add_argument("--hosts", action="store_true", help="several hosts on one store")
    parser.add_argument("--approvals", action="store_true", help="calls that need permission")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--bug", choices=[*MUTANTS, "all"], help="plant a bug, and run seeds until one finds it")
    parser.add_argument("--story", type=int, metavar="SEED", help="run one seed and print its events")
    parser.add_argument("--remember", type=Path, metavar="FILE", help="append failing seeds to this file")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition(":")
    seeds = range(int(first), int(last or int(first) + 1))
    if chosen.story is not None:
        return print_story(chosen.story, bug=chosen.bug or "", hosts=chosen.hosts, approvals=chosen.approvals)
    if chosen.bug is not None:
        return hunt_mutants(list(MUTANTS) if chosen.bug == "all" else [chosen.bug], seeds)
    return run_seeds(seeds, jobs=chosen.jobs, remember=chosen.remember, hosts=chosen.hosts, approvals=chosen.approvals)


def run_seeds(seeds: range, *, jobs: int, remember: Path | None, hosts: bool, approvals: bool) -> int:
    total = statistics.SeedTally()
    if jobs == 1:
        total = statistics.play_seeds(seeds, hosts=hosts, approvals=approvals)
    else:
        reported: set[int] = set()
        for total in statistics.play_seeds_in_parallel(seeds, jobs=jobs, hosts=hosts, approvals=approvals):
            for seed in sorted(total.failures.keys() - reported):
                reported.add(seed)
                sys.stderr.write(f"\nseed {seed}: {total.failures[seed][0]}\n")
            sys.stderr.write(f"\r{total.schedules} of {len(seeds)}, {len(total.failures)} failed ")
            sys.stderr.flush()
        sys.stderr.write("\n")
    sys.stdout.write("\n".join(total.format_table()) + "\n")
    if remember is not None:
        statistics.save_failed_seeds(remember, total.failures)
    return 1 if total.failures else 0


def hunt_mutants(bugs: list[str], seeds: range) -> int:
    missed = 0
    for bug in bugs:
        found = statistics.play_seeds(seeds, bug=bug, until_found=True)
        if found.failures:
            seed, problems = next(iter(found.failures.items()))
            result = f"seed {seed:>5}  {problems[0]}"
        else:
            missed += 1
            result = f"survives {found.schedules} schedules"
        sys.stdout.write(f"{bug:<22}{MUTANTS[bug].description:<54}{result}\n")
        sys.stdout.flush()
    return 1 if missed else 0


def print_story(seed: int, *, bug: str, hosts: bool, approvals: bool) -> int:
    parts, settings = (MUTANTS[bug].parts, MUTANTS[bug].settings) if bug else (None, {})
    if bug:
        hosts, approvals = MUTANTS[bug].hosts, MUTANTS[bug].approvals
    outcome = run_seed(seed, parts=parts, settings=settings, hosts=hosts, approvals=approvals)
    sys.stdout.write("\n".join([*outcome.lines, "", f"trace {outcome.trace}"]) + "\n")
    for problem in outcome.problems:
        sys.stdout.write(f"WRONG: {problem}\n")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
