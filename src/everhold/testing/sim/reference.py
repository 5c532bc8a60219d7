"""The log read naively, from its first entry, as slowly as one likes: what the quick ways must agree with.

Written a second time on purpose. It shares the nouns with core and nothing else: not the choosing, not the rendering.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from everhold.core.context import rendered
from everhold.core.entries import (
    Began,
    BranchedFrom,
    Call,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    Erased,
    Heard,
    OperationsUndone,
    Returned,
    Thought,
    Took,
)
from everhold.ports.model import Message, Request, ToolSpec

CONVERSATION: Final = {"done", "failed", "stopped", "interrupted"}
NOTES: Final = {
    "failed": "[This was not answered: {}]",
    "stopped": "[The person stopped this turn before it was finished.]",
    "interrupted": "[This turn was cut short by the message that follows.]",
}
NOT_RUN: Final = "Not run: the turn ended before this call was started."
Logs = Mapping[str, Sequence[Entry]]


class Inexact(Exception):
    """Something the request was made of has been erased since: it cannot be told any more what it was."""


class Reading:
    """One session's log as it stood just before an entry."""

    def __init__(self, logs: Logs, session: str, before: int, pos: int, *, stubs: Sequence[int] = ()) -> None:
        self.logs = logs
        self.session = session
        self.stubs = stubs
        """Entries whose long text was shortened; a branch's also mean its parent's of that number."""
        self.pos = pos
        """The moment, in the order of all commits: what was erased after it was still there."""
        self.log = [entry for entry in logs[session] if entry.seq < before]
        self.whole = {entry.seq: entry for entry in logs[session]}
        self.undone: set[int] = set()
        self.fresh = 0
        self.began: dict[int, Began] = {}
        self.ended: dict[int, Ended] = {}
        self.folds: dict[int, Entry] = {}
        self.gone_folds: set[int] = set()
        self.unsure: set[int] = set()
        """Folds that are erased since: nobody can tell any more whether they spoke of a turn that was undone."""
        self.branch: BranchedFrom | None = None
        for entry in self.log:
            self._read(entry)

    def _read(self, entry: Entry) -> None:
        match entry.body:
            case Began() as began:
                self.began[entry.seq] = began
            case Ended() as ended:
                assert entry.op is not None
                self.ended[entry.op] = ended
            case Compressed():
                assert entry.op is not None
                self.folds[entry.op] = entry
            case None if entry.kind == "compressed":
                assert entry.op is not None
                self.folds[entry.op] = entry
            case Changed(change=ContextReset()):
                self.fresh = entry.seq
            case Changed(change=OperationsUndone(ops=ops)):
                self.undone.update(ops)
                # a summary that speaks of something undone is no longer true
                turns = [op for op in ops if self.began[op].type == "turn"]
                if turns:
                    self.unsure.update(op for op, fold in self.folds.items() if fold.body is None)
                self.gone_folds.update(
                    op for op, fold in self.folds.items() if any(turn <= self._covers(fold) for turn in turns)
                )
            case Changed(change=BranchedFrom() as branch):
                self.branch = branch
            case Erased(compressions=folds):
                self.gone_folds.update(folds)
            case _:
                pass

    def _covers(self, fold: Entry) -> int:
        if isinstance(fold.body, Compressed):
            return fold.body.covers
        return 0  # erased, and therefore out of the view anyway

    def newest_fold(self) -> int:
        """The fold in force, 0 for none. Whether one that was erased since reached behind a fresh start is unknown."""
        if self.unsure - self.gone_folds:
            raise Inexact
        if self.fresh and any(fold.body is None and op not in self.gone_folds for op, fold in self.folds.items()):
            raise Inexact
        valid = [
            op
            for op in self.folds
            if op in self.ended
            and self.ended[op].outcome == "done"
            and op not in self.undone
            and op not in self.gone_folds
            and self._covers(self.folds[op]) >= self.fresh
        ]
        return max(valid, key=lambda op: self.folds[op].seq, default=0)

    def history(self, fold: int | None = None) -> list[Message]:
        """Everything a model would be shown. `fold`: the one that was pinned, wherever its entry stands."""
        pinned = self.newest_fold() if fold is None else fold
        shown: list[Message] = []
        after = self.fresh
        if pinned:
            entry = next(entry for entry in self.whole.values() if entry.op == pinned and entry.kind == "compressed")
            if not isinstance(entry.body, Compressed):
                raise Inexact
            shown.append(Message(role="user", name="everhold", text=_summary(entry.body)))
            after = max(after, entry.body.covers)
        elif not self.fresh and self.branch is not None:
            parent = Reading(self.logs, self.branch.parent, self.branch.at + 1, self.pos, stubs=self.stubs)
            shown.extend(parent.history())
        for op, began in self.began.items():
            if began.type != "turn" or op <= after or op in self.undone:
                continue
            if op in self.ended and self.ended[op].outcome in CONVERSATION:
                shown.extend(self.turn(op))
        return shown

    def turn(self, op: int, *, before: int | None = None, recalled: str = "") -> list[Message]:
        """What one operation adds. What was recalled for it stands before all else, while it runs."""
        shown: list[Message] = []
        steps = [e for e in self.whole.values() if e.op == op and (before is None or e.seq < before)]
        for index, step in enumerate(steps):
            match step.body:
                case Began(takes=takes) | Took(takes=takes):
                    if recalled and step.seq == op:
                        shown.append(Message(role="user", name="memory", text=recalled))
                    shown.extend(message for seq in takes if (message := self._heard(seq)) is not None)
                case Thought(text=text, calls=calls, reasoning=reasoning):
                    if text or calls:
                        shown.append(Message(role="assistant", text=text, calls=calls, reasoning=reasoning))
                    shown.extend(self._result(call, steps[index + 1 :]) for call in calls)
                case Ended(outcome=outcome, reason=reason) if outcome in NOTES:
                    shown.append(Message(role="user", name="everhold", text=NOTES[outcome].format(reason)))
                case None:
                    raise Inexact
                case _:
                    pass
        return shown

    def _heard(self, seq: int) -> Message | None:
        entry = self.whole[seq]
        if isinstance(entry.body, Heard):
            body = entry.body
            return Message(role="user", text=self._text(entry), name=body.sender, attachments=body.attachments)
        erased = [e for e in self.whole.values() if isinstance(e.body, Erased) and seq in e.body.seqs]
        if all(e.pos > self.pos for e in erased):
            raise Inexact
        return None

    def _result(self, call: Call, later: list[Entry]) -> Message:
        for entry in later:
            if isinstance(entry.body, Thought):
                break
            if isinstance(entry.body, Returned) and entry.body.call == call.id:
                return Message(role="tool", call=call.id, text=self._text(entry), error=entry.body.error)
        return Message(role="tool", call=call.id, text=NOT_RUN, error=True)

    def _text(self, entry: Entry) -> str:
        assert isinstance(entry.body, Heard | Returned)
        text = entry.body.text
        if entry.seq not in self.stubs or len(text) <= 1_600:
            return text
        return (
            f"{text[:1200]}\n[… {len(text) - 1600} of {len(text)} characters left out; "
            f"the whole is entry {entry.seq} of this session …]\n{text[-400:]}"
        )


def request_of(
    logs: Logs, thought: Entry, *, system: str, tools: Sequence[ToolSpec], blobs: Mapping[str, bytes]
) -> Request:
    """The request that a recorded thought must have been the answer to."""
    assert isinstance(thought.body, Thought)
    assert thought.op is not None
    log = {entry.seq: entry for entry in logs[thought.session]}
    own = [entry for entry in log.values() if entry.op == thought.op and entry.seq < thought.seq]
    pins = [e.body.compression for e in own if isinstance(e.body, Began | Took) and e.body.compression is not None]
    reading = Reading(logs, thought.session, thought.op, log[thought.op].pos, stubs=thought.body.stubs)
    recall = thought.body.recall
    if recall and recall not in blobs:
        raise Inexact
    current = reading.turn(thought.op, before=thought.seq, recalled=blobs[recall].decode() if recall else "")
    return Request(system=system, messages=(*reading.history(pins[-1]), *current), tools=tuple(tools))


def _summary(fold: Compressed) -> str:
    """How a summary is worded is for whoever words it; that this one is shown, and here, is what is checked."""
    return rendered(fold.summary, fold.kept, fold.effects)


def fingerprint(request: Request) -> str:
    return hashlib.sha256(msgspec.json.encode(request)).hexdigest()
