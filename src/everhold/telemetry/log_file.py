"""Read the gateway's log file, whichever format its lines have, and find lines in it."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, get_args

from msgspec import Struct

from everhold.telemetry.logs import LogLevel, LogWatcher, StructuredLogger

LOG_LEVELS: Final[tuple[LogLevel, ...]] = get_args(LogLevel)
MAX_READ_BYTES: Final = 4_000_000
"""How much of the end of the file is searched."""
_FIELD: Final = re.compile(
    r' (\w+)=("(?:[^"\\]|\\.)*+(?:"|\Z)|[\[{](?:[^" ]|"(?:[^"\\]|\\.)*+(?:"|\Z))*+|\S*)', re.DOTALL
)
"""Outside of its texts, a value has no space. A text that does not end takes the rest of the line, so that the line is
read once."""


def parse_line(text: str) -> dict[str, Any]:
    """Return a log line of either format as an object; other lines, such as tracebacks, as `{"text"}`."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return {"text": text}
        return found if isinstance(found, dict) else {"text": text}
    head = re.match(r"(\S+) (\w+) +(\S+)", text)
    if head is None or head[2] not in LOG_LEVELS:
        return {"text": text}
    fields = {name: _parse_value(value) for name, value in _FIELD.findall(text[head.end() :])}
    return {"at": head[1], "level": head[2], "event": head[3], **fields}


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class LogFilter(Struct, frozen=True, kw_only=True):
    """Which lines to show. Empty values restrict nothing."""

    level: LogLevel = "debug"
    """Lines of at least this level. A line without a level, such as one of a program, counts as `info`."""
    event: str = ""
    """The beginning of the event's name."""
    session: str = ""
    words: str = ""

    def matches(self, line: dict[str, Any]) -> bool:
        level = line.get("level")
        rank = LOG_LEVELS.index(level) if level in LOG_LEVELS else LOG_LEVELS.index("info")
        return (
            rank >= LOG_LEVELS.index(self.level)
            and str(line.get("event", "")).startswith(self.event)
            and self.session in ("", line.get("session"))
            and (not self.words or self.words.lower() in json.dumps(line, ensure_ascii=False).lower())
        )


class LogFeed:
    """The log of this process: what is in its file, and what comes."""

    def __init__(self, path: Path, log: StructuredLogger) -> None:
        self._path = path
        self._log = log

    def watch(self, watcher: LogWatcher) -> tuple[int, Callable[[], None]]:
        """Call `watcher` for every line from now on. Return how long the file was before, and what ends the watch."""
        size = self._path.stat().st_size if self._path.exists() else 0
        return size, self._log.watch(watcher)

    def read_last(self, wanted: LogFilter, *, limit: int, upto: int | None = None) -> list[dict[str, Any]]:
        """Return the last lines that match, oldest first, of the first `upto` bytes of the file."""
        lines = (parse_line(text) for text in self._read_end(upto))
        return list(deque((line for line in lines if wanted.matches(line)), maxlen=limit))

    def _read_end(self, upto: int | None) -> Iterator[str]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            end = size if upto is None else min(size, upto)
            start = max(0, end - MAX_READ_BYTES)
            file.seek(start)
            data = file.read(end - start)
        texts = data.decode("utf-8", "backslashreplace").splitlines()
        yield from texts[1:] if start else texts
