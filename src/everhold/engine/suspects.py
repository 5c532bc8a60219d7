"""Turns that several processes started without an end. One of them may be what ends the processes.

A process that ends takes all its turns with it, and nobody knows which of them was the reason. So the turns that were
there twice are tried one at a time, the least tried first. Only the turn that is tried counts another start; the others
are not claimed. A turn that was started too often is given up for now: the process must first have run for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from everhold.core.consumers import TURN
from everhold.core.turn import compute_stable_seconds
from everhold.ports.store import CURSOR_SEPARATOR, Operation, Store, name_cursor

SUSPECT_STARTS: Final = 2
"""A turn that was started so often, and runs at the start of another process, is a suspect."""


class TurnSuspects:
    """The suspects of one process, each with the time from which it may be tried."""

    def __init__(self, turns: Iterable[Operation] = (), *, at: float = 0.0) -> None:
        """`at` is when this process began to work."""
        self._began_at = at
        self._not_before: dict[str, float] = {}
        self._add(turns)

    @classmethod
    async def find(cls, store: Store, *, at: float) -> TurnSuspects:
        return cls(await store.list_restarted_turns(starts=SUSPECT_STARTS), at=at)

    async def refresh(self, store: Store) -> None:
        """Add the turns that ended other hosts since, and drop those that have ended. A host that died holds its turns
        until their leases end, so it is enough to look more often than that.
        """
        turns = await store.list_restarted_turns(starts=SUSPECT_STARTS)
        present = {name_cursor(turn.session, TURN) for turn in turns}
        self._not_before = {name: at for name, at in self._not_before.items() if name in present}
        self._add(turns)

    def _add(self, turns: Iterable[Operation]) -> None:
        for turn in sorted(turns, key=lambda turn: (turn.attempts, turn.session)):
            not_before = self._began_at + compute_stable_seconds(turn.attempts)
            self._not_before.setdefault(name_cursor(turn.session, TURN), not_before)

    def __bool__(self) -> bool:
        return bool(self._not_before)

    def clear(self, name: str) -> bool:
        """Remove a turn whose worker has ended and whose process still runs. Return whether it was a suspect."""
        return self._not_before.pop(name, None) is not None

    async def list_held_back(self, store: Store, *, at: float, running: Collection[str]) -> list[str]:
        """The cursors that must not be claimed now: all suspects but one, and that one, too, while another is tried.

        `at` is the time on the clock by which processes measure how long they run.
        """
        tried = next((name for name in self._not_before if name in running), "")
        if not tried:
            tried = await self._find_next(store, at=at)
        return [name for name in self._not_before if name != tried]

    async def _find_next(self, store: Store, *, at: float) -> str:
        now = await store.get_time()
        for name, not_before in list(self._not_before.items()):
            if at < not_before:
                continue
            cursor = await store.get_cursor(TURN, name.removeprefix(f"{TURN}{CURSOR_SEPARATOR}"))
            if cursor is None or cursor.since is None:
                self._not_before.pop(name, None)  # another process ended it, or its worker here has ended meanwhile
            elif not cursor.since <= now < cursor.since + cursor.wait:  # also if the clock went back
                if cursor.owner:
                    # Perhaps another host works on it. Then it is not claimed now, and the next one is tried after it.
                    self._not_before[name] = self._not_before.pop(name)
                return name
        return ""
