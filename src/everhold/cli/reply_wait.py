"""Finds the reply to a message in the entries of its session."""

from __future__ import annotations

from typing import Any


class ReplyWait:
    """The outcome of the message at `seq`. `outcome` is empty until the operation that took it has ended."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.op: int | None = None
        self.outcome = ""
        self.reason = ""
        self.released = False
        """A turn took it and released it, because no model is available."""
        self.again = self.ordered = False
        """The message is a command that has earlier messages answered again; the turn that takes them is the reply."""
        self.said: list[str] = []
        self.notices: list[str] = []
        self.reply_notice = ""
        """A notice about the reply itself, for example that it was cut off."""

    def observe_entry(self, entry: dict[str, Any]) -> bool:
        """Process the next entry after `seq`. Returns whether the message is answered now."""
        kind, body, op = entry["kind"], entry["body"] or {}, entry["op"]
        if kind in ("began", "took") and self.seq in body.get("takes", ()):
            self.op = entry["seq"] if kind == "began" else op
        elif self.again and self.op is None and kind == "began" and body.get("type") == "turn":
            self.op = entry["seq"]  # those messages are older than all waiting ones, so the next turn takes them
        if self.op is None or op != self.op:
            return False
        if kind == "said":
            self.said.append(body.get("text", ""))
        elif kind == "notified":
            self.notices.append(body.get("text", ""))
            self.reply_notice = body.get("text", "") if body.get("about") == "reply" else self.reply_notice
        elif kind == "changed" and body.get("change", {}).get("again"):
            self.again = self.ordered = True
        elif kind == "ended":
            if self.ordered:  # the command itself has ended, and its turn follows
                self.op, self.ordered = None, False
            elif body.get("outcome") == "released":  # it waits for a model, and a later turn takes it
                self.op, self.released = None, True
            else:
                self.outcome, self.reason = body.get("outcome", "done"), body.get("reason", "")
        return bool(self.outcome)

    @property
    def reply_text(self) -> str:
        """The reply; for a command, the gateway's notices."""
        return "\n".join(self.said or self.notices)
