"""Decide what a session does next with its pending messages: begin a turn, steer, cut, continue or wait. Nothing here
changes the messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from everhold.core.entries import ChatCommand, Entry, Heard

BusyPolicy: TypeAlias = Literal["queue", "steer", "interrupt"]


MAX_TURN_MESSAGES: Final = 500
"""One turn takes at most so many messages."""


class PendingMessage(Struct, frozen=True, kw_only=True):
    """A heard message that no operation has consumed. It is small, because a hundred thousand may wait."""

    seq: int
    author: str = ""
    asks: bool = True
    command: ChatCommand | None = None
    busy: str = ""


class RunningTurn(Struct, frozen=True, kw_only=True):
    """The running turn. `at_boundary`: it is between a tool result and the next model call."""

    op: int
    at_boundary: bool = False
    stop_requested: bool = False
    """A person asked to stop it."""


class BeginTurn(Struct, frozen=True):
    """Start a turn that consumes these messages."""

    takes: tuple[int, ...]


class SteerTurn(Struct, frozen=True):
    """Let the running turn consume these messages now."""

    takes: tuple[int, ...]


class CutTurn(Struct, frozen=True):
    """End the running turn; pending messages stay pending."""

    outcome: Literal["stopped", "interrupted"]


class ContinueTurn(Struct, frozen=True):
    """Let the running turn continue."""


class StayIdle(Struct, frozen=True):
    """Do nothing until a message arrives."""


InboxDecision: TypeAlias = BeginTurn | SteerTurn | CutTurn | ContinueTurn | StayIdle


def decide_next_step(
    pending: tuple[PendingMessage, ...],
    *,
    running: RunningTurn | None = None,
    compressing: bool = False,
    busy: BusyPolicy = "queue",
    most: int = MAX_TURN_MESSAGES,
) -> InboxDecision:
    """Return the next step of a session. Commands are ignored here, because the command worker handles them beside
    turns.

    `compressing`: a blocking compression is running, so no turn begins. One turn takes at most `most` messages; the
    rest stay pending.
    """
    messages = tuple(message for message in pending if message.command is None)
    asking = any(message.asks for message in messages)
    if running is None:
        if compressing or not asking:
            return StayIdle()
        return BeginTurn(_select_batch(messages, most))
    if running.stop_requested:
        return CutTurn("stopped")
    policies = {message.busy or busy for message in messages if message.asks}
    if "interrupt" in policies:
        return CutTurn("interrupted")
    if "steer" in policies and running.at_boundary:
        steering = itertools.takewhile(lambda it: not it.asks or (it.busy or busy) == "steer", messages)
        if takes := tuple(message.seq for message in steering)[:most]:
            return SteerTurn(takes)
    return ContinueTurn()


def list_pending_messages(pending: Sequence[Entry]) -> tuple[PendingMessage, ...]:
    """Return pending entries as messages. An erased entry still has to be consumed, and asks for nothing."""
    return tuple(
        PendingMessage(
            seq=entry.seq,
            author=entry.author,
            asks=entry.body.asks,
            command=entry.body.command,
            busy=entry.body.busy,
        )
        if isinstance(entry.body, Heard)
        else PendingMessage(seq=entry.seq, author=entry.author, asks=False)
        for entry in pending
    )


def _select_batch(messages: tuple[PendingMessage, ...], most: int) -> tuple[int, ...]:
    """Return the first `most` messages. If none of them asks, return those up to and including the first that does, so
    every turn has a message to answer.
    """
    first = next(index for index, message in enumerate(messages) if message.asks)
    return tuple(message.seq for message in messages[: max(most, first + 1)])
