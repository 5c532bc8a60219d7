"""Its `agent.log`: which compressions were begun and done, for whom, and under whose name the lines were written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROTATED_PATTERN: Final = re.compile(r"\.(\d+)$")

_LINE_PATTERN: Final = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)\S* \S+?(?: \[(?P<context>[^\]]+)\])? \S+: "
    r"context compression (?P<what>started|done): session=(?P<session>\S+)(?: messages=(?P<messages>[\d>-]+))?"
)


@dataclass(frozen=True)
class CompressionLogLine:
    """One line about a compression."""

    place: str
    """The file and the number of the line in it."""
    at: str
    what: str
    session: str
    context: str
    """The session the line was logged under, empty if none was."""
    messages: str


@dataclass(frozen=True)
class CompressionOddity:
    """Something about the compressions that should not be. `kind` is one of `renamed`, `foreign`, `unbegun`,
    `overlapping`, `unended`."""

    kind: str
    sessions: tuple[str, ...]
    since: str
    until: str
    lines: tuple[str, ...]
    """Where they stand."""


@dataclass(frozen=True)
class CompressionLogSummary:
    """What a log tells about compressions."""

    lines: int
    done: int
    oddities: list[CompressionOddity]


def read_compression_lines(path: Path) -> Iterator[CompressionLogLine]:
    """What `path` tells, and before it what was moved to `path.1`, `path.2` and so on when it had grown."""
    for part in (*reversed(list_rotated_logs(path)), path):
        with part.open("r", encoding="utf-8", errors="replace") as file:
            yield from parse_compression_lines(file, name=part.name)


def list_rotated_logs(path: Path) -> list[Path]:
    """The older parts of a log, newest first."""
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


def summarize_compressions(told: Iterable[CompressionLogLine]) -> CompressionLogSummary:
    """Pair starts with ends. A `done` ends the start of its own session, or else the oldest open one with as many
    messages: there the id may have changed on the way, which is what is looked for."""
    running: list[CompressionLogLine] = []
    odd: list[CompressionOddity] = []
    count = done = 0
    for line in told:
        count += 1
        if line.context and line.context != line.session:
            odd.append(CompressionOddity("foreign", (line.session, line.context), line.at, line.at, (line.place,)))
        if line.what == "started":
            for other in [other for other in running if other.session == line.session]:
                odd.append(
                    CompressionOddity("overlapping", (line.session,), other.at, line.at, (other.place, line.place))
                )
            running.append(line)
            continue
        start = _find_start(running, line)
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
