"""`everhold` for the trial of a whole task: it ends itself with SIGKILL once before and once after each commit of the
task, and reads pages of this machine, because there is no internet in a test.

The file `TASK_KILLS` lists the kills so far, so that the next process passes these commits.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

from everhold.assembly import builtin_toolbox
from everhold.cli import main
from everhold.core.entries import ApprovalDecided, ApprovalRequested, Began, Called, Ended, Heard, Returned, Thought
from everhold.engine import suspects
from everhold.engine.gates import Gates
from everhold.infra.fetch import UrlFetcher
from everhold.ports.store import Change, CommitResult

LIST_VARIABLE: Final = "TASK_KILLS"
AGAIN: Final = "+"
"""What the model appends to the id of a call that it makes again."""


def describe_commit(change: Change) -> str:
    """Return what a commit adds to the task, the same in every process; empty if it belongs to something else. A call
    that is made again, because nobody knows whether it was done, is the same call, or it would never be completed.
    """
    parts: list[str] = []
    for draft in change.entries:
        match draft.body:
            case Began(type=what, consumer=consumer):
                parts.append(f"began {what} {consumer}")
            case Thought(calls=calls, text=text):
                parts.append(f"thought {' '.join(call.id.rstrip(AGAIN) for call in calls) or text[:20]}")
            case Called(call=call):
                parts.append(f"called {call.rstrip(AGAIN)}")
            case Returned(call=call):
                parts.append(f"returned {call.rstrip(AGAIN)}")
            case ApprovalRequested(call=call):
                parts.append(f"requested {call}")
            case ApprovalDecided(outcome=outcome):
                parts.append(outcome)
            case Heard(delegated=delegated, approval=approval):
                parts.append("heard a result" if delegated else "heard an outcome" if approval else "heard")
            case Ended(outcome=outcome):
                parts.append(f"ended {outcome}")
    return f"{change.step}: {', '.join(parts)}" if parts else ""


def kill_once(record: Path, name: str) -> None:
    known = record.read_text().splitlines() if record.exists() else []
    if name not in known:
        with record.open("a") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())
        os.kill(os.getpid(), signal.SIGKILL)


def try_at_once(starts: int) -> float:
    """A turn that was killed so often would wait for minutes, which tests/kill/test_restart_storm.py is about."""
    return 0.0


def install(record: Path) -> None:
    commit = Gates.commit

    async def killing_commit(self: Gates, change: Change) -> CommitResult:
        name = describe_commit(change)
        if name:
            kill_once(record, f"before {name}")
        done = await commit(self, change)
        if name:
            kill_once(record, f"after {name}")
        return done

    Gates.commit = killing_commit  # type: ignore[method-assign]
    suspects.compute_stable_seconds = try_at_once  # type: ignore[attr-defined]
    builtin_toolbox.build_fetcher = lambda: UrlFetcher(allows=lambda _: True, is_packed_allowed=True)


if __name__ == "__main__":
    install(Path(os.environ[LIST_VARIABLE]))
    sys.exit(main())
