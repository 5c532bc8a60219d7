"""Detects changes of a plug-in's settings that the plug-in did not make itself.

Many plug-ins store data in a file among their settings. Python's audit events report the files that this process opens
for writing, so every other change came from outside.
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
        """Files that this process wrote since the last check."""
        self._file_states: dict[Path, tuple[int, int]] = {}
        self._signature = ""
        self._home = Path()
        self._others: list[Path] = []
        """Files outside the home."""

    def start(self, home: Path, others: list[Path], said: str) -> None:
        self._home, self._others, self._signature = home, others, said
        self._file_states = _scan_files(home, others)
        sys.addaudithook(self._on_audit_event)

    def check_changed(self, said: str) -> str:
        """Return a digest of the present state if it changed from outside since the last check;
        else an empty string.
        """
        written, self._own_writes = {os.path.realpath(name) for name in self._own_writes}, set()
        now = _scan_files(self._home, self._others)
        others = {path for path in {*now, *self._file_states} if now.get(path) != self._file_states.get(path)}
        same = said == self._signature and not {path for path in others if os.path.realpath(path) not in written}
        self._file_states, self._signature = now, said
        if same:
            return ""
        lines = [said, *(f"{path} {status}" for path, status in sorted(now.items()))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def _on_audit_event(self, event: str, args: tuple[Any, ...]) -> None:
        """Record written files. Python calls this for many events in every thread, so it must be fast and must not
        raise.
        """
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITE_FLAGS and isinstance(path, str | bytes | os.PathLike):
                self._own_writes.add(os.fsdecode(path))
        elif event in ("os.rename", "os.remove", "os.truncate", "os.utime"):
            path = args[1] if event == "os.rename" else args[0]
            if isinstance(path, str | bytes | os.PathLike):
                self._own_writes.add(os.fsdecode(path))


def _scan_files(home: Path, others: list[Path]) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in (*(path for pattern in WATCHED_PATTERNS for path in home.glob(pattern)), *others):
        with contextlib.suppress(OSError):
            status = path.stat()
            found[path] = (status.st_mtime_ns, status.st_size)
    return found
