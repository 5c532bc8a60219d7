"""What a session does next with what it has heard: answer, steer, cut short, or wait. Looks at letters, moves none."""

from __future__ import annotations

import itertools
from typing import Literal, TypeAlias

from msgspec import Struct

from everhold.core.entries import ChatCommand, Entry, Heard

BusyPolicy: TypeAlias = Literal["queue", "steer", "interrupt"]


class PendingMessage(Struct, frozen=True, kw_only=True):
    """A heard message that no operation has consumed."""

    seq: int
    asks: bool = True
    command: ChatCommand | None = None
    busy: str = ""


class RunningTurn(Struct, frozen=True, kw_only=True):
    """The turn in flight. `boundary`: between a tool's result and the next question to the model."""

    op: int
    at_boundary: bool = False
    stop_requested: bool = False
    """Somebody asked for it to end."""


class BeginTurn(Struct, frozen=True):
    """Start a turn over these letters."""

    takes: tuple[int, ...]


class SteerTurn(Struct, frozen=True):
    """Let the running turn take these letters now."""

    takes: tuple[int, ...]


class CutTurn(Struct, frozen=True):
    """End the running turn; nothing pending is touched."""

    outcome: Literal["stopped", "interrupted"]


class ContinueTurn(Struct, frozen=True):
    """Let the running turn go on."""


class StayIdle(Struct, frozen=True):
    """Nothing to do until something is heard."""


InboxDecision: TypeAlias = BeginTurn | SteerTurn | CutTurn | ContinueTurn | StayIdle


def decide_next_step(
    letters: tuple[PendingMessage, ...],
    *,
    running: RunningTurn | None = None,
    compressing: bool = False,
    busy: BusyPolicy = "queue",
    most: int = 500,
) -> InboxDecision:
    """The next thing to do. Commands are not for the mind: they are obeyed beside it and do not wait in this queue.

    `folding`: a blocking fold is under way, and no turn begins. `most` letters go into one turn; the rest stay pending.
    """
    mail = tuple(letter for letter in letters if letter.command is None)
    asking = any(letter.asks for letter in mail)
    if running is None:
        if compressing or not asking:
            return StayIdle()
        return BeginTurn(_select_batch(mail, most))
    if running.stop_requested:
        return CutTurn("stopped")
    manners = {letter.busy or busy for letter in mail if letter.asks}
    if "interrupt" in manners:
        return CutTurn("interrupted")
    if "steer" in manners and running.at_boundary:
        willing = itertools.takewhile(lambda letter: not letter.asks or (letter.busy or busy) == "steer", mail)
        if takes := tuple(letter.seq for letter in willing)[:most]:
            return SteerTurn(takes)
    return ContinueTurn()


def list_pending_messages(pending: list[Entry]) -> tuple[PendingMessage, ...]:
    """Pending entries as letters. An erased one is still there to be consumed, and asks for nothing."""
    return tuple(
        PendingMessage(seq=entry.seq, asks=entry.body.asks, command=entry.body.command, busy=entry.body.busy)
        if isinstance(entry.body, Heard)
        else PendingMessage(seq=entry.seq, asks=False)
        for entry in pending
    )


def _select_batch(mail: tuple[PendingMessage, ...], most: int) -> tuple[int, ...]:
    """The first `most` letters; if none of them asks, up to and with the first that does, so a turn always answers."""
    first = next(index for index, letter in enumerate(mail) if letter.asks)
    return tuple(letter.seq for letter in mail[: max(most, first + 1)])
