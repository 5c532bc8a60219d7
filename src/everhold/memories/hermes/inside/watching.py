"""Whether a plug-in's own settings changed: by other hands than its own.

Many plug-ins keep what they are told in a file among their settings. Python says what is opened for writing in this
process; whatever else changes was somebody else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

WATCHED = ("*.json", "*.yaml", "*.yml", "*.toml", "*/config.json")
WRITING = os.O_WRONLY | os.O_RDWR


class Watch:
    def __init__(self) -> None:
        self._written: set[str] = set()
        """Files that were written to in here since the last look."""
        self._seen: dict[Path, tuple[int, int]] = {}
        self._said = ""
        self._home = Path()

    def begin(self, home: Path, said: str) -> None:
        self._home, self._seen, self._said = home, _look(home), said
        sys.addaudithook(self._hear)

    def changed(self, said: str) -> str:
        """What stands for everything as it is now, if anything changed since the last time; or nothing."""
        written, self._written = {os.path.realpath(name) for name in self._written}, set()
        now = _look(self._home)
        others = {path for path in {*now, *self._seen} if now.get(path) != self._seen.get(path)}
        same = said == self._said and not {path for path in others if os.path.realpath(path) not in written}
        self._seen, self._said = now, said
        if same:
            return ""
        lines = [said, *(f"{path} {status}" for path, status in sorted(now.items()))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python for much of what it does, in every thread: quick, and never wrong."""
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITING and isinstance(path, str | bytes | os.PathLike):
                self._written.add(os.fsdecode(path))
        elif event in ("os.rename", "os.remove", "os.truncate", "os.utime"):
            path = args[1] if event == "os.rename" else args[0]
            if isinstance(path, str | bytes | os.PathLike):
                self._written.add(os.fsdecode(path))


def _look(home: Path) -> dict[Path, tuple[int, int]]:
    found = {}
    for pattern in WATCHED:
        for path in home.glob(pattern):
            with contextlib.suppress(OSError):
                status = path.stat()
                found[path] = (status.st_mtime_ns, status.st_size)
    return found
