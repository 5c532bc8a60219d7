"""Knows from a session's entries when a message has been answered, and with what."""

from __future__ import annotations

from typing import Any


class ReplyWait:
    """What becomes of the message at `seq`. `outcome` is empty until the operation that took it is over."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.op: int | None = None
        self.outcome = ""
        self.reason = ""
        self.released = False
        """It was taken up once and waits again, for a model that cannot be asked now."""
        self.again = self.ordered = False
        """It has messages answered once more: the turn that takes those is the answer."""
        self.said: list[str] = []
        self.told: list[str] = []
        self.beside = ""
        """What there is to know about the reply itself."""

    def observe_entry(self, entry: dict[str, Any]) -> bool:
        """Take the next entry behind `seq` into account; whether the message is answered now."""
        kind, body, op = entry["kind"], entry["body"] or {}, entry["op"]
        if kind in ("began", "took") and self.seq in body.get("takes", ()):
            self.op = entry["seq"] if kind == "began" else op
        elif self.again and self.op is None and kind == "began" and body.get("type") == "turn":
            self.op = entry["seq"]  # they are older than all that waits, so the next turn has them
        if self.op is None or op != self.op:
            return False
        if kind == "said":
            self.said.append(body.get("text", ""))
        elif kind == "notified":
            self.told.append(body.get("text", ""))
            self.beside = body.get("text", "") if body.get("about") == "reply" else self.beside
        elif kind == "changed" and body.get("change", {}).get("again"):
            self.again = self.ordered = True
        elif kind == "ended":
            if self.ordered:  # that was the order itself
                self.op, self.ordered = None, False
            elif body.get("outcome") == "released":  # it waits for a model: somebody will take it up again
                self.op, self.released = None, True
            else:
                self.outcome, self.reason = body.get("outcome", "done"), body.get("reason", "")
        return bool(self.outcome)

    @property
    def reply_text(self) -> str:
        """The reply; for a command, which no model answers, what the gateway said about it."""
        return "\n".join(self.said or self.told)
