"""The results of the long trials of `make prove PART=hosts`: one line of JSON per run.

A run that passed on the same commit is not repeated, and no run begins after the minutes of a call, so a proof of
several hours goes on with every call. `python -m tests.hosts.trial_table` prints the table of all runs in the file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import pytest

from everhold.testing.kill.hosts_trial import HostKillResult
from everhold.testing.kill.trial import KillTrialResult
from everhold.testing.sim.run import SimOutcome
from tests.platforms.kill_table import ROOT, read_commit

COLUMNS: Final = (
    "kills",
    "drains",
    "failovers",
    "disturbances",
    "acknowledged",
    "lost",
    "doubled",
    "reordered",
    "in_doubt",
)
BEGAN: Final = time.monotonic()


class TrialRow(msgspec.Struct, kw_only=True):
    """The result of one run."""

    part: str
    run: int
    commit: str
    seconds: float
    load: float
    counts: dict[str, int]
    failures: list[str]

    @property
    def passed(self) -> bool:
        return not self.failures and not any(self.counts.get(name) for name in ("lost", "doubled", "reordered"))


TrialResult: TypeAlias = HostKillResult | KillTrialResult | SimOutcome


async def prove(part: str, run: int, trial: Callable[[], Awaitable[TrialResult]]) -> None:
    """Run a trial and record its result, unless it passed on this commit or the minutes of this call are over."""
    if has_passed(part, run):
        return
    minutes = float(os.environ.get("EVERHOLD_MINUTES") or 0)
    if minutes and time.monotonic() - BEGAN > 60 * minutes:
        pytest.skip("the minutes of this call are over; call it again")
    began = time.monotonic()
    found = await trial()
    row = TrialRow(
        part=part,
        run=run,
        commit=read_commit(),
        seconds=round(time.monotonic() - began, 1),
        load=round(os.getloadavg()[0], 1),
        counts=_count(found),
        failures=[text[:300] for text in _list_failures(found)[:10]],
    )
    append_row(row)
    assert row.passed, row


def _list_failures(found: TrialResult) -> list[str]:
    return found.problems if isinstance(found, SimOutcome) else found.failures


def _count(found: TrialResult) -> dict[str, int]:
    if isinstance(found, SimOutcome):
        return {"kills": found.stats["crashes"], "drains": found.stats["drains"], "hours": round(found.seconds / 3_600)}
    if isinstance(found, KillTrialResult):
        counts = {name.replace(" ", "_"): count for name, count in found.counts.items()}
        # its verdict names each message that is lost, doubled or out of order as a failure
        return {**counts, "acknowledged": counts.get("messages", 0)}
    return {name: value for name, value in msgspec.to_builtins(found).items() if isinstance(value, int)}


def find_table() -> Path:
    return Path(os.environ.get("EVERHOLD_HOSTS_TABLE") or ROOT / "out" / "hosts.jsonl")


def append_row(row: TrialRow) -> None:
    path = find_table()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as table:
        table.write(json.dumps(msgspec.to_builtins(row)) + "\n")


def read_rows() -> list[TrialRow]:
    path = find_table()
    lines = path.read_text().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=TrialRow) for line in lines]


def has_passed(part: str, run: int) -> bool:
    """Whether this run passed on this commit. A tree with changes proves nothing for the next call."""
    commit = read_commit()
    return not commit.endswith("+") and any(
        (it.part, it.run, it.commit) == (part, run, commit) and it.passed for it in read_rows()
    )


def render_table(rows: list[TrialRow]) -> str:
    by_part: dict[tuple[str, str], list[TrialRow]] = defaultdict(list)
    for row in rows:
        by_part[row.part, row.commit].append(row)
    lines = [
        f"| part | commit | runs | failed | {' | '.join(COLUMNS)} | minutes | load, at most |",
        "|---" * (len(COLUMNS) + 6) + "|",
    ]
    for (part, commit), own in by_part.items():
        sums: Counter[str] = Counter()
        for row in own:
            sums.update(row.counts)
        cells = [part, commit, len(own), sum(not row.passed for row in own), *(sums[name] for name in COLUMNS)]
        cells += [round(sum(row.seconds for row in own) / 60), max(row.load for row in own)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    failures = [f"{row.part} {row.run} on {row.commit}: {text}" for row in rows for text in row.failures]
    return "\n".join([*lines, "", *failures])


if __name__ == "__main__":
    sys.stdout.write(render_table(read_rows()).rstrip() + "\n")
