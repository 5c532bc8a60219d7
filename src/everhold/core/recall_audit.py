"""Check the recorded recall of turns: every entry that a turn was shown was for the people of that turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from everhold.core.people import IdentityProof, PeopleAction, PeopleDirectory, PeopleEvent, build_directory, can_hear
from everhold.core.recall import RecallRecord

MAX_DIRECTORIES: Final = 8
"""How many earlier states of the people directory are kept in memory."""
MAX_LATER_DIRECTORIES: Final = 6
"""How many changes of the people directory after the beginning of a turn are tried. The turn may have asked its
memories after any of them, and the log does not record after which."""


class CitedStamp(Struct, frozen=True):
    """What decides about who may be shown an entry."""

    agent: str
    audience: tuple[str, ...]
    at: float


class PeopleHistory:
    """The people directory at any epoch. Strangers who only spoke do not change who is who."""

    def __init__(self, events: Sequence[PeopleEvent]) -> None:
        self._events = events
        self._turning_points = [
            number + 1
            for number, event in enumerate(events)
            if event.action is not PeopleAction.MADE and event.proof != IdentityProof.SEEN
        ]
        """The number of events up to each event that changed who is who."""
        self._directories: dict[int, PeopleDirectory] = {}

    def list_directories(self, epoch: int) -> Iterator[PeopleDirectory]:
        """Yield the directory at an epoch, the next ones after it, and the present one."""
        begun = bisect_right(self._events, epoch, key=lambda event: event.n)
        yield self._get_directory(begun)
        later = self._turning_points[bisect_right(self._turning_points, begun) :]
        for count in dict.fromkeys((*later[:MAX_LATER_DIRECTORIES], *later[-1:])):
            yield self._get_directory(count)

    def _get_directory(self, count: int) -> PeopleDirectory:
        at = bisect_right(self._turning_points, count)
        count = self._turning_points[at - 1] if at else 0
        if count not in self._directories:
            while len(self._directories) >= MAX_DIRECTORIES:
                self._directories.pop(next(iter(self._directories)))
            self._directories[count] = build_directory(self._events[:count])
        return self._directories[count]


def find_leaks(
    record: RecallRecord,
    *,
    session: str,
    agent: str,
    cite: Callable[[str, int], CitedStamp | None],
    list_directories: Callable[[], Iterable[PeopleDirectory]],
) -> tuple[list[str], int]:
    """Return one line for each shown entry that was not for everybody present, and how many entries were compared.

    `cite` finds an entry that has an audience; `list_directories` returns who was who while the turn asked.
    """
    asked = record.asked.session
    lines = [] if asked == session else [f"a turn was shown what the session {asked} had asked for"]
    compared = 0
    present = set(record.audience)
    for shown in (*record.facts, *record.shown, *record.shadow):
        cited = cite(shown.session, shown.seq) if shown.session and shown.seq else None
        if cited is None:
            continue
        compared += 1
        place = f"entry {shown.seq} of {shown.session}"
        if cited.agent != agent:
            lines.append(f"{place} was shown, which belongs to the agent {cited.agent}")
        elif not present <= set(cited.audience) and not any(
            can_hear(people.expand_audience(record.audience), cited.audience, cited.at) for people in list_directories()
        ):
            lines.append(f"{place} was shown, which is not for everybody who was present")
    return lines, compared
