"""Waits in the log for the reply to an accepted message. A caller that disconnects early does not affect the turn.

It yields the growing text. The last value is the committed reply, or an error says why there is none yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

from everhold.api.context import ApiContext
from everhold.api.errors import ApiError, format_retry_after
from everhold.api.log_tail import POLL_SECONDS
from everhold.core.consumers import TURN
from everhold.core.entries import (
    OUTAGE_NOTICE,
    Began,
    Changed,
    Ended,
    Entry,
    EntryKind,
    Erased,
    ModelUsage,
    Notified,
    OperationsUndone,
    Said,
    Thought,
    Took,
    ToolCall,
)
from everhold.ports.hosts import ReplyPiece
from everhold.ports.store import EntryPage

PAGE_SIZE: Final = 200
OUTCOME_KINDS: Final = (EntryKind.ENDED, EntryKind.NOTIFIED, EntryKind.ERASED)
"""After one of these, a caller that does not read the growing reply looks at the log."""
_OUTAGE_REASONS: Final = (OUTAGE_NOTICE, "model")
MAX_WAIT_SECONDS: Final = 900.0
"""After this time the caller gets an error that says that the message is stored."""


@dataclasses.dataclass(frozen=True)
class ReplyText:
    """More text of the reply. It may be lost."""

    text: str


@dataclasses.dataclass(frozen=True)
class ReplyRestarted:
    """The text so far is not the final reply, because the agent uses a tool or starts again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalReply:
    """The committed reply. `calls` are tools that the caller must run; only in requests without a session."""

    id: str
    text: str
    usage: ModelUsage
    calls: tuple[ToolCall, ...] = ()
    is_truncated: bool = False
    """The model stopped at its length limit."""


ReplyGrowth: TypeAlias = ReplyText | ReplyRestarted | FinalReply


async def follow_reply(
    context: ApiContext, *, session: str, seq: int, growing: bool = True
) -> AsyncIterator[ReplyGrowth]:
    """Yield the reply to entry `seq` as it grows. Ends with a FinalReply, or raises an ApiError with the outcome.

    Without `growing` it yields only the end, and wakes up only for entries that can bring it.
    """
    clock = context.control.gates.clock
    until = clock.monotonic() + MAX_WAIT_SECONDS
    reader, after, due = _ReplyReader(session, seq), seq, True
    until_kinds = () if growing else OUTCOME_KINDS
    with context.tail.count_reply_wait(), context.tail.watch(session, until=until_kinds) as watch:
        if growing:
            reader.pieces += context.tail.get_growing_reply(session)
        while not context.tail.closed:
            reader.pieces += watch.take_pieces()
            watch.grown = False
            page = await context.store.read_log(session, after=after, limit=PAGE_SIZE) if due else EntryPage()
            for part in reader.take_growth():
                yield part
            for entry in page:
                after = entry.seq
                growth = reader.read(entry)
                if growth is not None:
                    yield growth
                if isinstance(growth, FinalReply):
                    return
            for part in reader.take_growth():
                yield part
            if page.has_more:
                continue
            if due and (not reader.op or reader.outage_notified):
                await _check_model_outage(context, session)
            if clock.monotonic() > until:
                raise _build_kept_error(504, "timeout", "there is no answer yet")
            due = not await watch.wait(POLL_SECONDS) or watch.grown
    raise _build_kept_error(503, "closing", "everhold is stopping", wait=2.0)


class _ReplyReader:
    """Finds the outcome of one message in the entries of its session."""

    def __init__(self, session: str, seq: int) -> None:
        self.session = session
        self.seq = seq
        self.op = 0
        """The operation that took the message, 0 while none has."""
        self.turn = False
        """The operation is a turn, so a model answers and not the gateway."""
        self.again = False
        """The message is a command that has earlier messages answered again; the turn that takes them is the reply."""
        self.outage_notified = False
        """The chat was notified that no model is available."""
        self.pieces: list[ReplyPiece] = []
        self.size = 0
        """The number of characters of the growing reply that were passed on."""
        self.text = ""
        self.is_truncated = False
        self.notice = ""

    def take_growth(self) -> list[ReplyGrowth]:
        """Return the new text of our operation. Until the operation is known, all pieces are kept."""
        if not self.op or not self.pieces:
            return []
        growths: list[ReplyGrowth] = []
        text = ""
        for piece in self.pieces:
            if piece.op != self.op:
                continue
            if piece.reset or not piece.at:  # a reply starts: the first, the next, or the same one again
                growths += [ReplyText(text), ReplyRestarted()] if text else [ReplyRestarted()]
                text, self.size = "", 0
            if piece.at == self.size:  # other pieces would repeat text or leave a gap; the committed reply has it
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
            raise _build_final_error(410, "erased", "this message was erased before it was answered")
        if not self.op or entry.op != self.op:
            return None
        match body:
            case Thought(calls=calls, finish=finish):
                self.is_truncated = not calls and finish == "length"
            case Said(text=text):
                self.text = text
            case Notified(text=text, about=about):
                self.outage_notified = self.turn and about in _OUTAGE_REASONS
                self.notice = "" if self.outage_notified else text
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
        """Whether this turn has the messages that are answered again: they are older than all waiting messages."""
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
                raise _build_final_error(409, "stopped", "this turn was stopped", "send the message again, or undo it")
            case "interrupted":
                raise _build_final_error(
                    409, "interrupted", "a later message interrupted this turn", "the log has the later turn"
                )
            case "erased":
                raise _build_final_error(410, "erased", "the messages of this turn were erased")
            case _:
                raise _build_final_error(502, ended.outcome, ended.reason or "the turn failed", self.notice)


async def _check_model_outage(context: ApiContext, session: str) -> None:
    """Raise an ApiError if the message waits for a model that is not available."""
    cursor = await context.store.get_cursor(TURN, session)
    if cursor is None or not cursor.error or cursor.owner or cursor.since is None:
        return
    left = cursor.since + cursor.wait - context.control.gates.clock.now()
    raise _build_kept_error(
        503, "overloaded", f"no model is available: {context.redact_text(cursor.error)}", wait=max(left, 1.0)
    )


def _build_kept_error(status: int, type: str, message: str, *, wait: float | None = None) -> ApiError:
    headers = {"retry-after": format_retry_after(wait)} if wait is not None else {}
    remedy = "your message is stored and will be answered; a request with the same Idempotency-Key waits for the answer"
    return ApiError(status, type, message, remedy=remedy, headers=headers)


def _build_final_error(status: int, type: str, message: str, remedy: str = "") -> ApiError:
    """Return an error that tells clients not to retry, because the result would be the same."""
    return ApiError(status, type, message, remedy=remedy, headers={"x-should-retry": "false"})
