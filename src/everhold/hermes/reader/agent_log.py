"""Reads `agent.log`: compressions that started and ended, their sessions, and the sessions the
lines were logged under.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROTATED_PATTERN: Final = re.compile(r"\.(\d+)$")

_LINE_PATTERN: Final = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)\S* \S+?(?: \[(?P<context>[^\]]+)\])? \S+: "
    r"context compression (?P<what>started|done):\s+session=(?P<session>\S+)(?: messages=(?P<messages>[\d>-]+))?"
)


@dataclass(frozen=True)
class CompressionLogLine:
    """One log line about a compression."""

    place: str
    """The file and the line number in it."""
    at: str
    what: str
    session: str
    context: str
    """The session that the line was logged under; empty if there was none."""
    messages: str


@dataclass(frozen=True)
class CompressionOddity:
    """An irregularity of compressions. `kind` is `renamed`, `foreign`, `unbegun`, `overlapping` or `unended`."""

    kind: str
    sessions: tuple[str, ...]
    since: str
    until: str
    lines: tuple[str, ...]
    """Their places in the log."""


@dataclass(frozen=True)
class CompressionLogSummary:
    """What a log says about compressions."""

    lines: int
    done: int
    oddities: list[CompressionOddity]


def read_compression_lines(path: Path) -> Iterator[CompressionLogLine]:
    """Yield the lines of `path` and, before them, those of its rotated parts `path.1`, `path.2` and so on."""
    for part in (*reversed(list_rotated_logs(path)), path):
        with part.open("r", encoding="utf-8", errors="replace") as file:
            yield from parse_compression_lines(file, name=part.name)


def list_rotated_logs(path: Path) -> list[Path]:
    """Return the rotated parts of a log, newest first."""
    found = [
        (int(it[1]), part) for part in path.parent.glob(f"{path.name}.*") if (it := ROTATED_PATTERN.search(part.name))
    ]
    return [part for number, part in sorted(found) if part.name == f"{path.name}.{number}" and part.is_file()]


def parse_compression_lines(text: Iterable[str], *, name: str) -> Iterator[CompressionLogLine]:
    for number, raw in enumerate(text, start=1):
        if "context compression " in raw and (found := _LINE_PATTERN.match(raw)):
            context = found["context"] or ""
            yield CompressionLogLine(
                f"{name}:{number}", found["at"], found["what"], found["session"], context, found["messages"] or ""
            )


def summarize_compressions(lines: Iterable[CompressionLogLine]) -> CompressionLogSummary:
    """Pair starts with ends. A `done` ends the start of its own session, else the oldest open start with the same
    number of messages, because the session id may have changed during the compression.
    """
    running: list[CompressionLogLine] = []
    odd: list[CompressionOddity] = []
    count = done = 0
    for line in lines:
        count += 1
        start = _find_start(running, line) if line.what == "done" else None
        # the end of a compression that changed its session's id is logged under the old id
        if line.context not in ("", line.session, start.session if start else ""):
            odd.append(CompressionOddity("foreign", (line.session, line.context), line.at, line.at, (line.place,)))
        if line.what == "started":
            for other in [other for other in running if other.session == line.session]:
                odd.append(
                    CompressionOddity("overlapping", (line.session,), other.at, line.at, (other.place, line.place))
                )
            running.append(line)
            continue
        if start is None:
            odd.append(CompressionOddity("unbegun", (line.session,), line.at, line.at, (line.place,)))
            continue
        running.remove(start)
        done += 1
        if start.session != line.session:
            sessions = (start.session, line.session)
            odd.append(CompressionOddity("renamed", sessions, start.at, line.at, (start.place, line.place)))
    for start in running:
        odd.append(CompressionOddity("unended", (start.session,), start.at, start.at, (start.place,)))
    return CompressionLogSummary(lines=count, done=done, oddities=odd)


def _find_start(running: list[CompressionLogLine], line: CompressionLogLine) -> CompressionLogLine | None:
    mine = [start for start in running if start.session == line.session]
    if mine:
        return mine[0]
    before = line.messages.partition("->")[0]
    return next((start for start in running if start.messages == before), None)
