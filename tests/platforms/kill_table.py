"""The results of the kills behind failing platforms: one line of JSON per run, and the table of docs/benchmarks.md.

`python -m tests.platforms.kill_table` prints the table of all runs in the file, and which commits they ran on.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parent.parent.parent
COLUMNS: Final = {
    "kills": "kills",
    "faults": "send faults",
    "sent": "sent",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "doubled": "doubled, visible",
    "uncounted": "doubled, not counted",
    "reordered": "reordered",
    "given_up": "answered with a failure",
    "suspects": "started more than five times",
    "suspects_answered": "of them answered",
}


class KillCounts(msgspec.Struct, kw_only=True):
    """The result of one run."""

    platform: str
    run: int = 0
    commit: str = ""
    seconds: float = 0.0
    settled_seconds: float = 0.0
    """How long after the last kill everything was answered."""
    kills: int = 0
    faults: int = 0
    sent: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    """Replies that are shown more than once, and parts of replies that are shown beside the reply."""
    counted: int = 0
    """How many deliveries `status` counts as in doubt."""
    reordered: int = 0
    given_up: int = 0
    """Replies that say that there is no answer."""
    suspects: int = 0
    """Turns that were started more often than is tried at once."""
    suspects_answered: int = 0
    problems: list[str] = []

    @property
    def uncounted(self) -> int:
        return max(0, self.doubled - self.counted)

    @property
    def passed(self) -> bool:
        wrong = self.lost or self.reordered or self.uncounted or self.given_up
        return not wrong and self.acknowledged == self.sent and self.suspects == self.suspects_answered

    def append_to_table(self) -> None:
        self.commit = read_commit()
        path = find_table()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as table:
            table.write(json.dumps(msgspec.to_builtins(self)) + "\n")


def find_table() -> Path:
    return Path(os.environ.get("EVERHOLD_PLATFORM_TABLE") or ROOT / "out" / "platform-kills.jsonl")


@functools.cache
def read_commit() -> str:
    """Return the commit, with a plus sign if the sources differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def read_table() -> list[KillCounts]:
    path = find_table()
    lines = path.read_text().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=KillCounts) for line in lines]


def has_passed(platform: str, run: int, kills: int) -> bool:
    """Whether this run passed on this commit. A tree with changes proves nothing for the next call."""
    commit = read_commit()
    return not commit.endswith("+") and any(
        (it.platform, it.run, it.kills, it.commit) == (platform, run, kills, commit) and it.passed
        for it in read_table()
    )


def render_table(runs: list[KillCounts]) -> str:
    by_platform: dict[str, list[KillCounts]] = defaultdict(list)
    for run in runs:
        by_platform[run.platform].append(run)
    lines = [
        f"| platform | runs | {' | '.join(COLUMNS.values())} | all answered after the last kill, at most |",
        "|---" * (len(COLUMNS) + 3) + "|",
    ]
    for platform, own in by_platform.items():
        sums = [str(sum(getattr(run, name) for run in own)) for name in COLUMNS]
        longest = max(run.settled_seconds for run in own)
        lines.append(f"| {platform.title()} | {len(own)} | {' | '.join(sums)} | {longest:.0f} s |")
    commits = ", ".join(sorted({run.commit for run in runs}))
    seconds = sum(run.seconds for run in runs)
    return "\n".join([*lines, "", f"Commits: {commits}. Seconds of all runs: {seconds:,.0f}."])


if __name__ == "__main__":
    sys.stdout.write(render_table(read_table()) + "\n")
