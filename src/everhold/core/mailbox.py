"""What a session does next with what it has heard: answer, steer, cut short, or wait. Looks at letters, moves none."""

from __future__ import annotations

import itertools
from typing import Literal, TypeAlias

from msgspec import Struct

from everhold.core.entries import Command, Entry, Heard

Busy: TypeAlias = Literal["queue", "steer", "interrupt"]


class Letter(Struct, frozen=True, kw_only=True):
    """A heard message that no operation has consumed."""

    seq: int
    asks: bool = True
    command: Command | None = None
    busy: str = ""


class Running(Struct, frozen=True, kw_only=True):
    """The turn in flight. `boundary`: between a tool's result and the next question to the model."""

    op: int
    boundary: bool = False
    stop: bool = False
    """Somebody asked for it to end."""


class Begin(Struct, frozen=True):
    """Start a turn over these letters."""

    takes: tuple[int, ...]


class Steer(Struct, frozen=True):
    """Let the running turn take these letters now."""

    takes: tuple[int, ...]


class Cut(Struct, frozen=True):
    """End the running turn; nothing pending is touched."""

    outcome: Literal["stopped", "interrupted"]


class Stay(Struct, frozen=True):
    """Let the running turn go on."""


class Rest(Struct, frozen=True):
    """Nothing to do until something is heard."""


Decision: TypeAlias = Begin | Steer | Cut | Stay | Rest


def decide(
    letters: tuple[Letter, ...],
    *,
    running: Running | None = None,
    folding: bool = False,
    busy: Busy = "queue",
    most: int = 500,
) -> Decision:
    """The next thing to do. Commands are not for the mind: they are obeyed beside it and do not wait in this queue.

    `folding`: a blocking fold is under way, and no turn begins. `most` letters go into one turn; the rest stay pending.
    """
    mail = tuple(letter for letter in letters if letter.command is None)
    asking = any(letter.asks for letter in mail)
    if running is None:
        if folding or not asking:
            return Rest()
        return Begin(_batch(mail, most))
    if running.stop:
        return Cut("stopped")
    manners = {letter.busy or busy for letter in mail if letter.asks}
    if "interrupt" in manners:
        return Cut("interrupted")
    if "steer" in manners and running.boundary:
        willing = itertools.takewhile(lambda letter: not letter.asks or (letter.busy or busy) == "steer", mail)
        if takes := tuple(letter.seq for letter in willing)[:most]:
            return Steer(takes)
    return Stay()


def letters(pending: list[Entry]) -> tuple[Letter, ...]:
    """Pending entries as letters. An erased one is still there to be consumed, and asks for nothing."""
    return tuple(
        Letter(seq=entry.seq, asks=entry.body.asks, command=entry.body.command, busy=entry.body.busy)
        if isinstance(entry.body, Heard)
        else Letter(seq=entry.seq, asks=False)
        for entry in pending
    )


def _batch(mail: tuple[Letter, ...], most: int) -> tuple[int, ...]:
    """The first `most` letters; if none of them asks, up to and with the first that does, so a turn always answers."""
    first = next(index for index, letter in enumerate(mail) if letter.asks)
    return tuple(letter.seq for letter in mail[: max(most, first + 1)])
