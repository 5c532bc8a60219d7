"""The simplest reading of the log, from its first entry, as a reference for the optimised code.

It is a second implementation on purpose. It shares the types with core, but neither the selection nor the rendering.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from everhold.core.context import render_pins, render_summary
from everhold.core.entries import (
    Began,
    BranchedFrom,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    EntryPinned,
    Erased,
    Heard,
    Noted,
    OperationsUndone,
    Returned,
    Said,
    Thought,
    Took,
    ToolCall,
)
from everhold.core.pins import build_pinned
from everhold.core.recall_blobs import restore_text
from everhold.ports.model import ModelMessage, ModelRequest, ToolSpec

CONVERSATION_KINDS: Final = {"done", "failed", "stopped", "interrupted"}
NOTES: Final = {
    "failed": "[This was not answered: {}]",
    "stopped": "[The person stopped this turn before it was finished.]",
    "interrupted": "[This turn was cut short by the message that follows.]",
}
NOT_RUN: Final = "Not run: the turn ended before this call was started."
Logs = Mapping[str, Sequence[Entry]]


class InexactReading(Exception):
    """A part of the request was erased later, so the request cannot be reconstructed."""


class ReferenceReading:
    """One session's log as it was just before an entry."""

    def __init__(self, logs: Logs, session: str, before: int, pos: int, *, stubs: Sequence[int] = ()) -> None:
        self.logs = logs
        self.session = session
        self.stubs = stubs
        """Entries whose long text was shortened. In a branch they also name the parent's entries."""
        self.pos = pos
        """The moment in the order of all commits. Bodies that were erased later still existed."""
        self.log = [entry for entry in logs[session] if entry.seq < before]
        self.whole = {entry.seq: entry for entry in logs[session]}
        self.undone: set[int] = set()
        self.reset_seq = 0
        self.began: dict[int, Began] = {}
        self.ended: dict[int, Ended] = {}
        self.compressions: dict[int, Entry] = {}
        self.invalid_compressions: set[int] = set()
        self.uncertain_compressions: set[int] = set()
        """Compressions that were erased later, so it is unknown whether they covered an undone turn."""
        self.pins: dict[int, EntryPinned] = {}
        self.branch: BranchedFrom | None = None
        for entry in self.log:
            self._read_entry(entry)

    def _read_entry(self, entry: Entry) -> None:
        match entry.body:
            case Began() as began:
                self.began[entry.seq] = began
            case Ended() as ended:
                assert entry.op is not None
                self.ended[entry.op] = ended
            case Compressed():
                assert entry.op is not None
                self.compressions[entry.op] = entry
            case None if entry.kind == "compressed":
                assert entry.op is not None
                self.compressions[entry.op] = entry
            case Changed(change=ContextReset()):
                self.reset_seq = entry.seq
            case Changed(change=OperationsUndone(ops=ops)):
                self.undone.update(ops)
                # a summary that covers an undone turn is void
                turns = [op for op in ops if op in self.began and self.began[op].type == "turn"]
                if turns:
                    self.uncertain_compressions.update(
                        op for op, compression in self.compressions.items() if compression.body is None
                    )
                self.invalid_compressions.update(
                    op
                    for op, compression in self.compressions.items()
                    if any(turn <= self._get_covered_upto(compression) for turn in turns)
                )
            case Changed(change=EntryPinned() as pin):
                self.pins[entry.seq] = pin
            case Changed(change=BranchedFrom() as branch):
                self.branch = branch
            case Erased(compressions=compressions):
                self.invalid_compressions.update(compressions)
            case _:
                pass

    def _get_covered_upto(self, compression: Entry) -> int:
        if isinstance(compression.body, Compressed):
            return compression.body.covers
        return 0  # erased, so not in the context

    def find_newest_compression(self) -> int:
        """Return the valid compression, or 0. It is unknown whether a later erased one reached past a context reset."""
        if self.uncertain_compressions - self.invalid_compressions:
            raise InexactReading
        if self.reset_seq and any(
            compression.body is None and op not in self.invalid_compressions
            for op, compression in self.compressions.items()
        ):
            raise InexactReading
        valid = [
            op
            for op in self.compressions
            if op in self.ended
            and self.ended[op].outcome == "done"
            and op not in self.undone
            and op not in self.invalid_compressions
            and self._get_covered_upto(self.compressions[op]) >= self.reset_seq
        ]
        return max(valid, key=lambda op: self.compressions[op].seq, default=0)

    def read_history(self, compression: int | None = None) -> list[ModelMessage]:
        """Return the whole history for the model. `compression`: the chosen one, or None for the newest."""
        summary, turns = self._read_summary_and_turns(compression)
        return [*summary, *self._read_pins(), *turns]

    def _read_summary_and_turns(self, compression: int | None) -> tuple[list[ModelMessage], list[ModelMessage]]:
        chosen = self.find_newest_compression() if compression is None else compression
        summary: list[ModelMessage] = []
        shown: list[ModelMessage] = []
        after = self.reset_seq
        if chosen:
            entry = next(entry for entry in self.whole.values() if entry.op == chosen and entry.kind == "compressed")
            if not isinstance(entry.body, Compressed):
                raise InexactReading
            summary.append(ModelMessage(role="user", name="everhold", text=_format_summary(entry.body)))
            after = max(after, entry.body.covers)
        elif not self.reset_seq and self.branch is not None:
            parent = ReferenceReading(self.logs, self.branch.parent, self.branch.at + 1, self.pos, stubs=self.stubs)
            summary, shown = parent._read_summary_and_turns(None)
        for op, began in self.began.items():
            if began.type != "turn" or op <= after or op in self.undone:
                continue
            if op in self.ended and self.ended[op].outcome in CONVERSATION_KINDS:
                shown.extend(self.read_turn(op))
        return summary, shown

    def _read_pins(self) -> list[ModelMessage]:
        """Return the message with everything that is pinned, after a reset only what was pinned since."""
        pins = [pin for op, pin in self.pins.items() if op > self.reset_seq and op not in self.undone]
        entries = [self._get_pinned(pin) for pin in pins]
        shown = [text for entry in entries if entry is not None and (text := build_pinned(entry)) is not None]
        return [ModelMessage(role="user", name="everhold", text=render_pins(shown))] if shown else []

    def _get_pinned(self, pin: EntryPinned) -> Entry | None:
        session = pin.session or self.session
        entry = next(entry for entry in self.logs[session] if entry.seq == pin.seq)
        if entry.body is not None:
            return entry
        self._require_erased_before(self.logs[session], pin.seq)
        return None

    def read_turn(self, op: int, *, before: int | None = None, recalled: str = "") -> list[ModelMessage]:
        """Return the messages of one operation. While it runs, its recalled text comes first."""
        shown: list[ModelMessage] = []
        steps = [e for e in self.whole.values() if e.op == op and (before is None or e.seq < before)]
        for index, step in enumerate(steps):
            match step.body:
                case Began(takes=takes) | Took(takes=takes):
                    if recalled and step.seq == op:
                        shown.append(ModelMessage(role="user", name="memory", text=recalled))
                    shown.extend(message for seq in takes if (message := self._render_heard(seq)) is not None)
                case Thought(text=text, calls=calls, reasoning=reasoning):
                    if text or calls:
                        shown.append(ModelMessage(role="assistant", text=text, calls=calls, reasoning=reasoning))
                    shown.extend(self._render_result(call, steps[index + 1 :]) for call in calls)
                case Ended(outcome=outcome, reason=reason) if outcome in NOTES:
                    shown.append(ModelMessage(role="user", name="everhold", text=NOTES[outcome].format(reason)))
                case None:
                    raise InexactReading
                case _:
                    pass
        return shown

    def _render_heard(self, seq: int) -> ModelMessage | None:
        entry = self.whole[seq]
        if isinstance(entry.body, Heard):
            body = entry.body
            if body.approval is not None:
                text = self._get_entry_text(entry)
                return ModelMessage(role="user", text=text, name="everhold", pieces=body.pieces)
            is_named = bool(body.sender) or body.bot or body.stamp.audience[:1] != (entry.author,)
            return ModelMessage(
                role="user",
                text=self._get_entry_text(entry),
                name=body.sender,
                speaker=entry.author.removeprefix("person:") if is_named else "",
                pieces=body.pieces,
                attachments=body.attachments,
            )
        self._require_erased_before(self.whole.values(), seq)
        return None

    def _require_erased_before(self, log: Iterable[Entry], seq: int) -> None:
        """Raise InexactReading if an entry was erased after this moment, so that its text was still shown."""
        erased = [e for e in log if isinstance(e.body, Erased) and seq in e.body.seqs]
        if all(e.pos > self.pos for e in erased):
            raise InexactReading

    def _render_result(self, call: ToolCall, later: list[Entry]) -> ModelMessage:
        for entry in later:
            if isinstance(entry.body, Thought):
                break
            if isinstance(entry.body, Returned) and entry.body.call == call.id:
                return ModelMessage(role="tool", call=call.id, text=self._get_entry_text(entry), error=entry.body.error)
        return ModelMessage(role="tool", call=call.id, text=NOT_RUN, error=True)

    def _get_entry_text(self, entry: Entry) -> str:
        assert isinstance(entry.body, Heard | Returned)
        text = entry.body.text
        if entry.seq not in self.stubs or len(text) <= 1_728:
            return text
        return (
            f"{text[:1200]}\n[… {len(text) - 1600} of {len(text)} characters left out; "
            f"the whole is entry {entry.seq} of this session …]\n{text[-400:]}"
        )


def reconstruct_request(
    logs: Logs, thought: Entry, *, system: str, tools: Sequence[ToolSpec], blobs: Mapping[str, bytes]
) -> ModelRequest:
    """Reconstruct the request that a thought answered."""
    assert isinstance(thought.body, Thought)
    assert thought.op is not None
    log = {entry.seq: entry for entry in logs[thought.session]}
    own = [entry for entry in log.values() if entry.op == thought.op and entry.seq < thought.seq]
    pins = [e.body.compression for e in own if isinstance(e.body, Began | Took) and e.body.compression is not None]
    reading = ReferenceReading(logs, thought.session, thought.op, log[thought.op].pos, stubs=thought.body.stubs)
    recall = thought.body.recall
    if recall and recall not in blobs:
        raise InexactReading
    recalled = restore_text(blobs[recall], _collect_texts(logs)) if recall else ""
    if recalled is None:
        raise InexactReading
    current = reading.read_turn(thought.op, before=thought.seq, recalled=recalled)
    return ModelRequest(system=system, messages=(*reading.read_history(pins[-1]), *current), tools=tuple(tools))


def _collect_texts(logs: Logs) -> dict[tuple[str, int], str]:
    entries = (entry for log in logs.values() for entry in log)
    return {(it.session, it.seq): it.body.text for it in entries if isinstance(it.body, Heard | Said | Noted)}


def _format_summary(compression: Compressed) -> str:
    """Render a summary with the real code, because only its presence and place are checked, not its wording."""
    return render_summary(compression.summary, compression.kept, compression.effects)


def fingerprint_request(request: ModelRequest) -> str:
    """Return the digest without `files`, because the messages name their files by hash."""
    digested = {name: getattr(request, name) for name in ("system", "messages", "tools", "params")}
    return hashlib.sha256(msgspec.json.encode(digested)).hexdigest()
