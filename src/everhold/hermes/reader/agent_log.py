"""Reads `agent.log`: compressions that started and ended, their sessions, and the sessions the
lines were logged under.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everhold.infra.safe_folder import iter_log_lines

ROTATED_PATTERN: Final = re.compile(r"\.(\d+)$")

_LINE_PATTERN: Final = re.compile(
    r"[ \t]*(?P<at>\d{4}-\d\d-\d\d[ \tT][ \t]*\d\d:\d\d:\d\d)\S*[ \t]+\w+[ \t]+"
    r"(?:\[[ \t]*(?P<context>[^\]\s]+)[ \t]*\][ \t]*)?[^\s:]+[ \t]*:[ \t]*"
    r"context[ \t]+compression[ \t]+(?P<what>started|done)[ \t]*:[ \t]*session[ \t]*=[ \t]*(?P<session>\S+)"
    r"(?:[ \t]+messages[ \t]*=[ \t]*(?P<messages>\d+)(?:[ \t]*->[ \t]*\d+)?)?"
)
"""Any number of spaces may stand between two words: hermes-agent aligns some lines, and reports quote them anew."""


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
    """How many messages there were before; empty if the line does not say."""


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
        yield from parse_compression_lines(iter_log_lines(part, follow=True), name=part.name)


def list_rotated_logs(path: Path) -> list[Path]:
    """Return the rotated parts of a log, newest first."""
    found = [
        (int(it[1]), part) for part in path.parent.glob(f"{path.name}.*") if (it := ROTATED_PATTERN.search(part.name))
    ]
    return [part for number, part in sorted(found) if part.name == f"{path.name}.{number}" and part.is_file()]


def parse_compression_lines(text: Iterable[str], *, name: str) -> Iterator[CompressionLogLine]:
    for number, raw in enumerate(text, start=1):
        if "compression" in raw and (found := _LINE_PATTERN.match(raw)):
            yield CompressionLogLine(
                place=f"{name}:{number}",
                at=" ".join(found["at"].split()),
                what=found["what"],
                session=found["session"],
                context=found["context"] or "",
                messages=found["messages"] or "",
            )


def summarize_compressions(lines: Iterable[CompressionLogLine]) -> CompressionLogSummary:
    """Pair starts with ends. A `done` ends the start of its own session, else the oldest open start with the same
    number of messages, because the session id may have changed during the compression.
    """
    running = _RunningCompressions()
    odd: list[CompressionOddity] = []
    count = done = 0
    for line in lines:
        count += 1
        start = running.find_start(line) if line.what == "done" else None
        # the end of a compression that changed its session's id is logged under the old id
        if line.context not in ("", line.session, start.session if start else ""):
            odd.append(CompressionOddity("foreign", (line.session, line.context), line.at, line.at, (line.place,)))
        if line.what == "started":
            if (other := running.find_newest(line.session)) is not None:
                odd.append(
                    CompressionOddity("overlapping", (line.session,), other.at, line.at, (other.place, line.place))
                )
            running.add(line)
            continue
        if start is None:
            odd.append(CompressionOddity("unbegun", (line.session,), line.at, line.at, (line.place,)))
            continue
        running.remove(start)
        done += 1
        if start.session != line.session:
            sessions = (start.session, line.session)
            odd.append(CompressionOddity("renamed", sessions, start.at, line.at, (start.place, line.place)))
    for start in running.by_place.values():
        odd.append(CompressionOddity("unended", (start.session,), start.at, start.at, (start.place,)))
    return CompressionLogSummary(lines=count, done=done, oddities=odd)


class _RunningCompressions:
    """The starts without an end, oldest first. Each operation takes the same time, however many there are."""

    def __init__(self) -> None:
        self.by_place: dict[str, CompressionLogLine] = {}
        self._by_session: dict[str, OrderedDict[str, CompressionLogLine]] = {}
        self._by_messages: dict[str, OrderedDict[str, CompressionLogLine]] = {}

    def add(self, start: CompressionLogLine) -> None:
        self.by_place[start.place] = start
        self._by_session.setdefault(start.session, OrderedDict())[start.place] = start
        self._by_messages.setdefault(start.messages, OrderedDict())[start.place] = start

    def remove(self, start: CompressionLogLine) -> None:
        del self.by_place[start.place]
        del self._by_session[start.session][start.place]
        del self._by_messages[start.messages][start.place]

    def find_newest(self, session: str) -> CompressionLogLine | None:
        return next(reversed(self._by_session.get(session, OrderedDict()).values()), None)

    def find_start(self, end: CompressionLogLine) -> CompressionLogLine | None:
        mine = self._by_session.get(end.session) or self._by_messages.get(end.messages) or OrderedDict()
        return next(iter(mine.values()), None)
