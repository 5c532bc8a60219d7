"""What folds into a summary, what must not, and when it is due. Plans only; the log is never touched."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from everhold.core.context import View, messages
from everhold.core.entries import Ended, Folded
from everhold.core.tokens import weigh_messages
from everhold.ports.model import Message, Request

ASK: Final = (
    "You write the summary that stands for the conversation below, so that whoever reads only the summary can go on "
    "as if they had been there. Keep names, numbers, dates, decisions with their reasons, corrections, promises, open "
    "questions, and everything that was done outside (messages sent, files written, commits), with its outcome. "
    "Where something was corrected keep the correction. Never say that something is not known or was not discussed."
)


class Plan(Struct, frozen=True, kw_only=True):
    """Fold everything up to and with operation `covers`, starting from the summary already in force."""

    covers: int
    part: View
    based_on: int
    tokens_before: int
    tokens_kept: int


def tokens(messages_: tuple[Message, ...]) -> int:
    """A rough count that needs no network."""
    return weigh_messages(messages_)


def due(used: int, window: int, *, soft: float, hard: float) -> Literal["", "soft", "hard"]:
    """How urgent a fold is when `used` of `window` tokens are in use."""
    if used >= window * hard:
        return "hard"
    return "soft" if used >= window * soft else ""


def plan(view: View, *, keep: int) -> Plan | None:
    """What to fold so that the last `keep` exchanges stay verbatim; None if nothing is left to fold.

    Only whole, ended operations are covered; a message nobody has consumed is in no exchange and so never is.
    """
    ended = [e for e in view.exchanges if any(isinstance(s.body, Ended) for s in e.steps)]
    folded = ended[: max(0, len(ended) - keep)]
    if not folded:
        return None
    part = View(fold=view.fold, exchanges=tuple(folded))
    rest = View(exchanges=view.exchanges[len(folded) :])
    return Plan(
        covers=folded[-1].op,
        part=part,
        based_on=view.fold.op or 0 if view.fold is not None else 0,
        tokens_before=tokens(messages(view)),
        tokens_kept=tokens(messages(rest)),
    )


def request(plan_: Plan, *, focus: str = "") -> Request:
    """What the summarising model is asked."""
    system = ASK if not focus else f"{ASK}\nPay special attention to: {focus}"
    text = "\n".join(_line(message) for message in messages(plan_.part))
    return Request(system=system, messages=(Message(role="user", text=text),))


def objection(summary: str, plan_: Plan) -> str:
    """Why this summary must not replace what people said; empty if it may."""
    if not summary.strip():
        return "the summary is empty"
    before = tokens(messages(plan_.part))
    after = tokens((Message(role="user", text=summary),))
    if after >= before:
        return f"the summary does not shrink the context ({after} tokens for {before})"
    return ""


def tokens_after(folded: Folded, plan_: Plan) -> int:
    return tokens((Message(role="user", text=folded.summary),)) + plan_.tokens_kept


def _line(message: Message) -> str:
    who = message.name or message.role
    calls = "".join(f" [calls {call.tool}]" for call in message.calls)
    return f"{who}: {message.text}{calls}"
