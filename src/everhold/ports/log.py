"""Where events are told as they happen. A log line is for the reader at the terminal; the record is the store."""

from __future__ import annotations

from typing import Protocol


class EventLogger(Protocol):
    """An event name and fields: `log.info("compression.completed", entries=194, kept=26)`. Never raises.

    Whoever holds a claim binds `session` and `op` from it once and passes the bound log on, so that no line of that
    work can name another session. An exception given as a field is told with its type, at `error` also with its trace.
    """

    def debug(self, event: str, /, **fields: object) -> None: ...

    def info(self, event: str, /, **fields: object) -> None: ...

    def warning(self, event: str, /, **fields: object) -> None: ...

    def error(self, event: str, /, **fields: object) -> None: ...

    def bind(self, **fields: object) -> EventLogger:
        """This log with `fields` on every line; a field bound later, or given with a line, wins."""
