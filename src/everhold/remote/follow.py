"""Lets readers see a session grow: every entry as it is committed, and the reply being made as far as it is known.

Entries come from the log, so nothing of them is missed. The growing reply is a hint: it may skip, and it ends when the
entry is there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from everhold.control import Control, entry_json
from everhold.ports.store import Change, Step

LOOK_SECONDS: Final = 1.0
"""How often the log is looked at when nobody says that it grew."""
BREATH_SECONDS: Final = 0.03
"""A growing reply is shown at most this often."""
MOST_CHARS: Final = 1 << 20
_SETTLES: Final = frozenset({Step.BEGIN, Step.THINK, Step.END, Step.PAUSE})
"""Commits after which what had grown is in the log, or is begun anew."""


class Followers:
    """Who looks at which session right now."""

    def __init__(self) -> None:
        self._bells: dict[str, list[asyncio.Event]] = {}
        self._growing: dict[str, tuple[int, str]] = {}

    def committed(self, change: Change) -> None:
        """Something was written: for the store to call after each commit."""
        if change.step in _SETTLES:
            self._growing.pop(change.session, None)
        if self._bells:
            self._ring(change.session)

    def grew(self, session: str, op: int, piece: str | None) -> None:
        """A reply grew by `piece`; None: it begins anew."""
        if piece is None:
            self._growing.pop(session, None)
            return
        before = self._growing.get(session)
        text = before[1] if before is not None and before[0] == op else ""
        if len(text) < MOST_CHARS:
            self._growing[session] = (op, text + piece)
            self._ring(session)

    async def follow(self, control: Control, session: str, *, after: int) -> AsyncIterator[dict[str, Any]]:
        """`{"entry": …}` for each entry behind `after`, in order, for ever; between them `{"piece": {op, at, text}}`.

        A piece says: from character `at` on, the reply of operation `op` now reads `text`.
        """
        await control.store.get_session(session)  # or say at once that there is none
        shown = (0, "")
        with self._listening(session) as bell:
            while True:
                bell.clear()
                found = False
                async for entry in control.entries(session, after=after):
                    found = True
                    after = entry.seq
                    yield {"entry": entry_json(entry)}
                if found:
                    continue
                growing = self._growing.get(session, (0, ""))
                if growing != shown and growing[1]:
                    yield {"piece": _difference(shown, growing)}
                    await asyncio.sleep(BREATH_SECONDS)
                shown = growing
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await bell.wait()

    def _ring(self, session: str) -> None:
        for bell in self._bells.get(session, ()):
            bell.set()

    @contextlib.contextmanager
    def _listening(self, session: str) -> Iterator[asyncio.Event]:
        bell = asyncio.Event()
        bells = self._bells.setdefault(session, [])
        bells.append(bell)
        try:
            yield bell
        finally:
            bells.remove(bell)
            if not bells:
                self._bells.pop(session, None)


def _difference(shown: tuple[int, str], growing: tuple[int, str]) -> dict[str, Any]:
    op, text = growing
    at = len(shown[1]) if op == shown[0] and text.startswith(shown[1]) else 0
    return {"op": op, "at": at, "text": text[at:]}
