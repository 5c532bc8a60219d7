"""The logger for log lines. Log lines are for people at a terminal; the durable record is the session's log."""

from __future__ import annotations

from typing import Protocol


class EventLogger(Protocol):
    """Logs an event name and fields: `log.info("compression.completed", entries=194, kept=26)`. Never raises.

    A worker binds `session` and `op` of its claim once and passes the bound logger on, so that no line of its work can
    name another session. An exception in a field is logged with its type, and at level `error` also with its traceback.
    """

    def debug(self, event: str, /, **fields: object) -> None: ...

    def info(self, event: str, /, **fields: object) -> None: ...

    def warning(self, event: str, /, **fields: object) -> None: ...

    def error(self, event: str, /, **fields: object) -> None: ...

    def bind(self, **fields: object) -> EventLogger:
        """Return this logger with `fields` on every line. A field that is bound later or given with a line wins."""
