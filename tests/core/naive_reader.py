"""What a model ought to be shown, told by walking the whole log, entry by entry, as a patient reader would.

Shares the nouns with core and nothing else. It knows no operations table, no selection, no pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from everhold.core.entries import (
    Began,
    BranchedFrom,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    EntryKind,
    Erased,
    Heard,
    OperationsUndone,
    Returned,
    Thought,
    Took,
)
from everhold.ports.model import ModelMessage

Shown: TypeAlias = tuple[str, ...]
Logs: TypeAlias = Mapping[str, Sequence[Entry]]

_MARK = re.compile(r"(fold|because)-\w+-\d+")


def summarize_messages(messages: Sequence[ModelMessage]) -> list[Shown]:
    """What matters of messages, without the wording around it."""
    out: list[Shown] = []
    for message in messages:
        if message.name == "everhold":
            mark = _MARK.search(message.text)
            out.append(("note", mark[0] if mark else ""))
        elif message.role == "tool":
            text = message.text if message.text.startswith("result-") else "-"
            out.append(("result", message.call, text))
        elif message.role == "assistant":
            out.append(("assistant", message.text, *(call.id for call in message.calls)))
        else:
            out.append(("user", message.text))
    return out


class NaiveReader:
    """Reads one session up to an entry and remembers what it would still know."""

    def __init__(self, logs: Logs, session: str, before: int, *, ended: bool = False) -> None:
        self.logs = logs
        self.log = logs[session]
        self.before = before
        self.only_ended = ended
        self.parent: BranchedFrom | None = None
        self.turns: list[int] = []
        self.ends: dict[int, Entry] = {}
        self.compressions: list[Entry] = []
        """In the order they were made; what is no longer true is taken out again."""
        for entry in self.log:
            if entry.seq < before:
                self.read(entry)
        # an erased summary can be shown to nobody, not even to one who looks at an earlier time
        self.compressions = [compression for compression in self.compressions if compression.body is not None]

    def read(self, entry: Entry) -> None:
        match entry.body:
            case Began(type="turn"):
                self.turns.append(entry.seq)
            case Ended():
                self.ends[entry.op or 0] = entry
            case Changed(change=ContextReset()):
                self.turns, self.compressions, self.parent = [], [], None
                self.reset_seq = entry.seq
            case Changed(change=BranchedFrom() as branched):
                self.parent = branched
            case Changed(change=OperationsUndone(ops=ops)):
                turns = [op for op in ops if self.is_turn(op)]
                self.turns = [op for op in self.turns if op not in ops]
                self.compressions = [
                    compression
                    for compression in self.compressions
                    if compression.op not in ops and not any(op <= self.covered_upto(compression) for op in turns)
                ]
            case Erased(compressions=compressions):
                self.compressions = [
                    compression for compression in self.compressions if compression.op not in compressions
                ]
            case Compressed(covers=covers):
                # one whose mark lies before a fresh context speaks of what was left behind there
                if covers >= self.reset_seq:
                    self.compressions.append(entry)
            case None if entry.kind is EntryKind.COMPRESSED:
                self.compressions.append(entry)
            case _:
                pass

    reset_seq = 0

    def is_turn(self, op: int) -> bool:
        began = self.log[op - 1].body
        return isinstance(began, Began) and began.type == "turn"

    def covered_upto(self, compression: Entry) -> int:
        return compression.body.covers if isinstance(compression.body, Compressed) else 0

    def read_context(self, pin: int | None = None) -> list[Shown]:
        """What is in sight. `pin`: the fold to show it under (0: none), wherever in the log that stands."""
        if pin is None:
            compression = self.compressions[-1] if self.compressions else None
        else:
            pinned = [entry for entry in self.log if entry.op == pin and isinstance(entry.body, Compressed)]
            compression = pinned[0] if pinned else None
        out: list[Shown] = []
        if compression is not None:
            assert isinstance(compression.body, Compressed)
            out.append(("note", compression.body.summary))
        elif self.parent is not None:
            out += NaiveReader(self.logs, self.parent.parent, self.parent.at + 1, ended=True).read_context()
        for op in self.turns:
            if compression is None or op > self.covered_upto(compression):
                out += self.read_turn(op)
        return out

    def read_turn(self, op: int) -> list[Shown]:
        ended = next((entry for entry in self.log if entry.op == op and isinstance(entry.body, Ended)), None)
        outcome = ended.body.outcome if ended is not None and isinstance(ended.body, Ended) else "running"
        if outcome in ("released", "refused", "erased"):
            return []
        if self.only_ended and (ended is None or ended.seq >= self.before):
            return []
        out: list[Shown] = []
        steps = [entry for entry in self.log if entry.op == op]
        for index, step in enumerate(steps):
            match step.body:
                case Began(takes=takes) | Took(takes=takes):
                    for seq in takes:
                        heard = self.log[seq - 1].body
                        if isinstance(heard, Heard):
                            out.append(("user", heard.text))
                case Thought(text=text, calls=calls):
                    out.append(("assistant", text, *(call.id for call in calls)))
                    results = self.read_results(steps[index + 1 :])
                    out += [("result", call.id, results.get(call.id, "-")) for call in calls]
                case Ended(outcome="failed", reason=reason):
                    out.append(("note", reason))
                case Ended(outcome="stopped" | "interrupted"):
                    out.append(("note", ""))
                case _:
                    pass
        return out

    def read_results(self, later: Sequence[Entry]) -> dict[str, str]:
        """What came back for the calls of one thought: everything up to the next one."""
        found: dict[str, str] = {}
        for entry in later:
            if entry.kind is EntryKind.THOUGHT:
                break
            if isinstance(entry.body, Returned):
                found[entry.body.call] = entry.body.text if entry.body.text.startswith("result-") else "-"
        return found


def make_reader(logs: Logs, session: str) -> NaiveReader:
    """A reader of everything there is."""
    return NaiveReader(logs, session, len(logs[session]) + 1)
