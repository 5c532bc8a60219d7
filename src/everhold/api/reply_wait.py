"""Waits for the answer to a message that was accepted, as a reader of the log. Leaving early changes nothing there.

Words come as they grow; the last thing that comes is what was committed, or why there is nothing yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

from everhold.api.context import ApiContext
from everhold.api.errors import ApiError, format_retry_after
from everhold.api.log_tail import POLL_SECONDS, ReplyPiece
from everhold.core.consumers import TURN
from everhold.core.entries import (
    OUTAGE_NOTICE,
    Began,
    Changed,
    Ended,
    Entry,
    Erased,
    ModelUsage,
    Notified,
    OperationsUndone,
    Said,
    Thought,
    Took,
    ToolCall,
)

PAGE_SIZE: Final = 200
_OUTAGE_REASONS: Final = (OUTAGE_NOTICE, "model")
MAX_WAIT_SECONDS: Final = 900.0
"""After this a caller is told that the message is kept, and leaves without an answer."""


@dataclasses.dataclass(frozen=True)
class ReplyText:
    """Some more of the reply. Lossy."""

    text: str


@dataclasses.dataclass(frozen=True)
class ReplyRestarted:
    """What was said so far was not the end: the agent uses a tool, or starts over."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalReply:
    """The record. `calls` are tools that the caller was asked to run; only where nothing is stored."""

    id: str
    text: str
    usage: ModelUsage
    calls: tuple[ToolCall, ...] = ()
    is_truncated: bool = False
    """It ends where the model's length limit is, not where the model would have."""


ReplyGrowth: TypeAlias = ReplyText | ReplyRestarted | FinalReply


async def follow_reply(
    context: ApiContext, *, session: str, seq: int, growing: bool = True
) -> AsyncIterator[ReplyGrowth]:
    """The reply to entry `seq` as it is made; ends with a Reply, or raises a Refusal that says what became of it.

    Whoever does not want to see it `growing` is woken when there is something to tell, and not for each step before.
    """
    clock = context.control.gates.clock
    until = clock.monotonic() + MAX_WAIT_SECONDS
    reader, after, due = _ReplyReader(session, seq), seq, True
    with context.tail.watch(session, until=() if growing else (Ended, Notified, Erased)) as watch:
        if growing:
            reader.pieces += context.tail.get_growing_reply(session)
        while not context.tail.closed:
            reader.pieces += watch.take_pieces()
            watch.grown = False
            page = await context.store.list_entries(session, after=after, limit=PAGE_SIZE) if due else []
            for words in reader.take_growth():
                yield words
            for entry in page:
                after = entry.seq
                growth = reader.read(entry)
                if growth is not None:
                    yield growth
                if isinstance(growth, FinalReply):
                    return
            for words in reader.take_growth():
                yield words
            if len(page) == PAGE_SIZE:
                continue
            if due and (not reader.op or reader.told):
                await _check_model_outage(context, session)
            if clock.monotonic() > until:
                raise _build_kept_error(504, "timeout", "there is no answer yet")
            due = not await watch.wait(POLL_SECONDS) or watch.grown
    raise _build_kept_error(503, "closing", "everhold is stopping", wait=2.0)


class _ReplyReader:
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
        self.pieces: list[ReplyPiece] = []
        self.size = 0
        """How much of the answer that is being made was passed on."""
        self.text = ""
        self.is_truncated = False
        self.notice = ""

    def take_growth(self) -> list[ReplyGrowth]:
        """What was said in our operation since the last look; while it is not known which that is, all is kept."""
        if not self.op or not self.pieces:
            return []
        growths: list[ReplyGrowth] = []
        text = ""
        for piece in self.pieces:
            if piece.op != self.op:
                continue
            if piece.reset or not piece.at:  # an answer begins: the first one, the next, or the same once more
                growths += [ReplyText(text), ReplyRestarted()] if text else [ReplyRestarted()]
                text, self.size = "", 0
            if piece.at == self.size:  # what does not go on where we are would stand there twice: the record brings it
                text += piece.text
                self.size += len(piece.text)
        self.pieces.clear()
        return [*growths, ReplyText(text)] if text else growths

    def read(self, entry: Entry) -> ReplyGrowth | None:
        body = entry.body
        if isinstance(body, Began | Took) and (self.seq in body.takes or self._is_retaken(body)):
            self.op, self.text, self.notice = entry.op or 0, "", ""
            self.turn = isinstance(body, Took) or body.type == "turn"
            return None
        if isinstance(body, Erased) and self.seq in body.seqs and not self.op:
            raise _build_final_error(410, "erased", "this message was erased before anybody answered it")
        if not self.op or entry.op != self.op:
            return None
        match body:
            case Thought(calls=calls, finish=finish):
                self.is_truncated = not calls and finish == "length"
            case Said(text=text):
                self.text = text
            case Notified(text=text, about=about):
                self.told = self.turn and about in _OUTAGE_REASONS
                self.notice = "" if self.told else text
            case Changed(change=OperationsUndone(again=True)):
                self.again = True
            case Ended() if self.again and not self.turn:
                self.op = 0
            case Ended():
                return self._handle_end(body)
            case _:
                pass
        return None

    def _is_retaken(self, body: Began | Took) -> bool:
        """Whether this turn has the messages that are answered once more: they are older than all that waits."""
        return self.again and not self.op and isinstance(body, Began) and body.type == "turn"

    def _handle_end(self, ended: Ended) -> ReplyGrowth | None:
        match ended.outcome:
            case "done":
                text = self.text or self.notice
                return FinalReply(
                    id=f"{self.session}-{self.op}", text=text, usage=ended.usage, is_truncated=self.is_truncated
                )
            case "released":
                self.op = 0
                return ReplyRestarted()
            case "stopped":
                raise _build_final_error(409, "stopped", "somebody stopped this turn", "send it again, or undo it")
            case "interrupted":
                raise _build_final_error(
                    409, "interrupted", "a later message cut this turn short", "read on in the log"
                )
            case "erased":
                raise _build_final_error(410, "erased", "what this turn was about was erased")
            case _:
                raise _build_final_error(502, ended.outcome, ended.reason or "the turn failed", self.notice)


async def _check_model_outage(context: ApiContext, session: str) -> None:
    """Say so if the message waits for a model that cannot be asked now."""
    cursor = await context.store.get_cursor(TURN, session)
    if cursor is None or not cursor.error or cursor.owner or cursor.since is None:
        return
    left = cursor.since + cursor.wait - context.control.gates.clock.now()
    raise _build_kept_error(
        503, "overloaded", f"no model can be asked now: {context.redact_text(cursor.error)}", wait=max(left, 1.0)
    )


def _build_kept_error(status: int, type: str, message: str, *, wait: float | None = None) -> ApiError:
    headers = {"retry-after": format_retry_after(wait)} if wait is not None else {}
    remedy = "your message is kept and will be answered; with the same Idempotency-Key this waits for that answer"
    return ApiError(status, type, message, remedy=remedy, headers=headers)


def _build_final_error(status: int, type: str, message: str, remedy: str = "") -> ApiError:
    """It was dealt with, and asking again gives the same."""
    return ApiError(status, type, message, remedy=remedy, headers={"x-should-retry": "false"})
