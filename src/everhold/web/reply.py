"""Waits for the answer to a message that was accepted, as a reader of the log. Leaving early changes nothing there.

Words come as they grow; the last thing that comes is what was committed, or why there is nothing yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

from everhold.core.consumers import TURN
from everhold.core.entries import (
    OUTAGE,
    Began,
    Call as ToolCall,
    Changed,
    Ended,
    Entry,
    Erased,
    Notified,
    OperationsUndone,
    Said,
    Thought,
    Took,
    Usage,
)
from everhold.web.answers import Refusal, seconds
from everhold.web.office import Office
from everhold.web.tail import POLL_SECONDS, Piece

PAGE: Final = 200
_OUTAGE: Final = (OUTAGE, "model")
MOST_SECONDS: Final = 900.0
"""After this a caller is told that the message is kept, and leaves without an answer."""


@dataclasses.dataclass(frozen=True)
class Words:
    """Some more of the reply. Lossy."""

    text: str


@dataclasses.dataclass(frozen=True)
class Turned:
    """What was said so far was not the end: the agent uses a tool, or starts over."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """The record. `calls` are tools that the caller was asked to run; only where nothing is stored."""

    id: str
    text: str
    usage: Usage
    calls: tuple[ToolCall, ...] = ()
    cut: bool = False
    """It ends where the model's length limit is, not where the model would have."""


Growth: TypeAlias = Words | Turned | Reply


async def follow(office: Office, *, session: str, seq: int, growing: bool = True) -> AsyncIterator[Growth]:
    """The reply to entry `seq` as it is made; ends with a Reply, or raises a Refusal that says what became of it.

    Whoever does not want to see it `growing` is woken when there is something to tell, and not for each step before.
    """
    clock = office.control.gates.clock
    until = clock.monotonic() + MOST_SECONDS
    reader, after, due = _Reader(session, seq), seq, True
    with office.tail.watching(session, until=() if growing else (Ended, Notified, Erased)) as watch:
        if growing:
            reader.pieces += office.tail.grown(session)
        while not office.tail.closed:
            reader.pieces += watch.pieces()
            watch.grown = False
            page = await office.store.list_entries(session, after=after, limit=PAGE) if due else []
            for words in reader.grown():
                yield words
            for entry in page:
                after = entry.seq
                growth = reader.read(entry)
                if growth is not None:
                    yield growth
                if isinstance(growth, Reply):
                    return
            for words in reader.grown():
                yield words
            if len(page) == PAGE:
                continue
            if due and (not reader.op or reader.told):
                await _check(office, session)
            if clock.monotonic() > until:
                raise _kept(504, "timeout", "there is no answer yet")
            due = not await watch.wait(POLL_SECONDS) or watch.grown
    raise _kept(503, "closing", "everhold is stopping", wait=2.0)


class _Reader:
    """Recognises, in the entries of a session, what happens to one message."""

    def __init__(self, session: str, seq: int) -> None:
        self.session = session
        self.seq = seq
        self.op = 0
        """The operation that took it, 0 while none has."""
        self.turn = False
        """That is a turn: a model answers, and not the gateway."""
        self.again = False
        """It has messages answered once more: the turn that takes those is the answer."""
        self.told = False
        """The chat heard that no model can be asked."""
        self.pieces: list[Piece] = []
        self.size = 0
        """How much of the answer that is being made was passed on."""
        self.text = ""
        self.cut = False
        self.notice = ""

    def grown(self) -> list[Growth]:
        """What was said in our operation since the last look; while it is not known which that is, all is kept."""
        if not self.op or not self.pieces:
            return []
        growths: list[Growth] = []
        text = ""
        for piece in self.pieces:
            if piece.op != self.op:
                continue
            if piece.anew or not piece.at:  # an answer begins: the first one, the next, or the same once more
                growths += [Words(text), Turned()] if text else [Turned()]
                text, self.size = "", 0
            if piece.at == self.size:  # what does not go on where we are would stand there twice: the record brings it
                text += piece.text
                self.size += len(piece.text)
        self.pieces.clear()
        return [*growths, Words(text)] if text else growths

    def read(self, entry: Entry) -> Growth | None:
        body = entry.body
        if isinstance(body, Began | Took) and (self.seq in body.takes or self._retaken(body)):
            self.op, self.text, self.notice = entry.op or 0, "", ""
            self.turn = isinstance(body, Took) or body.type == "turn"
            return None
        if isinstance(body, Erased) and self.seq in body.seqs and not self.op:
            raise _over(410, "erased", "this message was erased before anybody answered it")
        if not self.op or entry.op != self.op:
            return None
        match body:
            case Thought(calls=calls, finish=finish):
                self.cut = not calls and finish == "length"
            case Said(text=text):
                self.text = text
            case Notified(text=text, about=about):
                self.told = self.turn and about in _OUTAGE
                self.notice = "" if self.told else text
            case Changed(change=OperationsUndone(again=True)):
                self.again = True
            case Ended() if self.again and not self.turn:
                self.op = 0
            case Ended():
                return self._ended(body)
            case _:
                pass
        return None

    def _retaken(self, body: Began | Took) -> bool:
        """Whether this turn has the messages that are answered once more: they are older than all that waits."""
        return self.again and not self.op and isinstance(body, Began) and body.type == "turn"

    def _ended(self, ended: Ended) -> Growth | None:
        match ended.outcome:
            case "done":
                text = self.text or self.notice
                return Reply(id=f"{self.session}-{self.op}", text=text, usage=ended.usage, cut=self.cut)
            case "released":
                self.op = 0
                return Turned()
            case "stopped":
                raise _over(409, "stopped", "somebody stopped this turn", "send it again, or undo it")
            case "interrupted":
                raise _over(409, "interrupted", "a later message cut this turn short", "read on in the log")
            case "erased":
                raise _over(410, "erased", "what this turn was about was erased")
            case _:
                raise _over(502, ended.outcome, ended.reason or "the turn failed", self.notice)


async def _check(office: Office, session: str) -> None:
    """Say so if the message waits for a model that cannot be asked now."""
    lane = await office.store.get_cursor(TURN, session)
    if lane is None or not lane.error or lane.owner or lane.since is None:
        return
    left = lane.since + lane.wait - office.control.gates.clock.now()
    raise _kept(503, "overloaded", f"no model can be asked now: {office.scrub(lane.error)}", wait=max(left, 1.0))


def _kept(status: int, type: str, message: str, *, wait: float | None = None) -> Refusal:
    headers = {"retry-after": seconds(wait)} if wait is not None else {}
    remedy = "your message is kept and will be answered; with the same Idempotency-Key this waits for that answer"
    return Refusal(status, type, message, remedy=remedy, headers=headers)


def _over(status: int, type: str, message: str, remedy: str = "") -> Refusal:
    """It was dealt with, and asking again gives the same."""
    return Refusal(status, type, message, remedy=remedy, headers={"x-should-retry": "false"})
