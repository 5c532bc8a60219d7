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

WATCHED_PATTERNS = ("*.json", "*.yaml", "*.yml", "*.toml", "*/config.json")
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


class PluginConfigWatch:
    def __init__(self) -> None:
        self._own_writes: set[str] = set()
        """Files that were written to in here since the last look."""
        self._file_states: dict[Path, tuple[int, int]] = {}
        self._signature = ""
        self._home = Path()

    def start(self, home: Path, said: str) -> None:
        self._home, self._file_states, self._signature = home, _scan_files(home), said
        sys.addaudithook(self._on_audit_event)

    def check_changed(self, said: str) -> str:
        """What stands for everything as it is now, if anything changed since the last time; or nothing."""
        written, self._own_writes = {os.path.realpath(name) for name in self._own_writes}, set()
        now = _scan_files(self._home)
        others = {path for path in {*now, *self._file_states} if now.get(path) != self._file_states.get(path)}
        same = said == self._signature and not {path for path in others if os.path.realpath(path) not in written}
        self._file_states, self._signature = now, said
        if same:
            return ""
        lines = [said, *(f"{path} {status}" for path, status in sorted(now.items()))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def _on_audit_event(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python for much of what it does, in every thread: quick, and never wrong."""
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITE_FLAGS and isinstance(path, str | bytes | os.PathLike):
                self._own_writes.add(os.fsdecode(path))
        elif event in ("os.rename", "os.remove", "os.truncate", "os.utime"):
            path = args[1] if event == "os.rename" else args[0]
            if isinstance(path, str | bytes | os.PathLike):
                self._own_writes.add(os.fsdecode(path))


def _scan_files(home: Path) -> dict[Path, tuple[int, int]]:
    found = {}
    for pattern in WATCHED_PATTERNS:
        for path in home.glob(pattern):
            with contextlib.suppress(OSError):
                status = path.stat()
                found[path] = (status.st_mtime_ns, status.st_size)
    return found
