"""What a fold kept, and what it made up: pure comparisons of words, the same for every model and every language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from everhold.core.denial_detection import extract_denied_words, is_denial_contradicted
from everhold.evals.conversation import EvalQuestion

_SPACE: Final = re.compile(r"\s+")
_DRESS: Final = re.compile(r"[*`“”„«»\"]")
_GROUPS: Final = re.compile(r"(?<=\d)[.,'\u2019\u202f\u00a0](?=\d{3}(?!\d))")
_DASHES: Final = re.compile(r"[\u2010-\u2015]")
_FIGURE: Final = re.compile(r"[\w@./:#%-]*\d[\w@./:#%-]*")
_ENTRY: Final = re.compile(r"#\d+\b")
"""An entry's number, as folds cite them."""
_LISTED: Final = re.compile(r"^\s*(?:[-*•]\s*)?\(?\d{1,2}[.)]\s", re.MULTILINE)
_NAMES: Final = re.compile(r"(?<=[a-zäöüß,;] )([A-ZÄÖÜ][a-zäöüß]\w+) ([A-ZÄÖÜ][a-zäöüß]\w+)")


class QuestionOutcome(Struct, frozen=True, kw_only=True):
    """What became of one question's answer."""

    kind: str
    ask: str
    kept: bool
    """It stands in what the next turn is shown."""
    verbatim: bool
    """It stands there as it was said, in the part that did not fold."""
    found: bool
    """Searching for the question finds an entry that has it."""
    logged: bool
    """Some entry of the log has it."""
    stale: bool = False
    """Only what was true before a correction is still there."""


class CompressionScore(Struct, frozen=True, kw_only=True):
    """One conversation, folded in one way by one model."""

    conversation: str
    language: str
    model: str
    asked: str
    """How it was folded: a number of times, or `auto` for whenever its small window filled up."""
    compressions: int
    same_session: bool
    broken: tuple[str, ...]
    """What an audit of the store found against it afterwards."""
    refused: tuple[str, ...]
    outcomes: tuple[QuestionOutcome, ...]
    invented: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    read: int
    """Tokens that the summaries cost to make."""
    written: int
    usd: float
    seconds: float

    @property
    def is_sound(self) -> bool:
        """It was folded as asked, under one id, and the store is as it should be. A refusal by itself is no fault."""
        return (
            self.same_session
            and not self.broken
            and self.compressions > 0
            and self.asked in ("auto", str(self.compressions))
        )

    def count_outcomes(self, what: str) -> int:
        return sum(getattr(outcome, what) for outcome in self.outcomes)  # `what` is a field of ours

    @property
    def compressed(self) -> int:
        """Facts that stand nowhere any more as they were said: the summary alone can have them."""
        return sum(not outcome.verbatim for outcome in self.outcomes)

    @property
    def kept_compressed(self) -> int:
        return sum(outcome.kept and not outcome.verbatim for outcome in self.outcomes)


def normalize_text(text: str) -> str:
    """A text as it is compared: without case, dress, kinds of space and dash, or how thousands are set apart."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = _DASHES.sub("-", _DRESS.sub("", text))
    return _SPACE.sub(" ", _GROUPS.sub("", text))


def has_answer(text: str, answers: Iterable[str]) -> bool:
    """Whether one of `answers` stands in `text` (normal already), as words of its own."""
    return any(re.search(rf"(?<!\w){re.escape(normalize_text(answer))}(?!\w)", text) for answer in answers)


def judge_answer(
    question: EvalQuestion, *, shown: str, verbatim: str, hits: Sequence[str], log: str
) -> QuestionOutcome:
    """`shown`, `verbatim` and `log` are normal texts: all the next turn sees, its unfolded part, and every entry."""
    kept = has_answer(shown, question.answers)
    return QuestionOutcome(
        kind=question.kind,
        ask=question.ask,
        kept=kept,
        verbatim=has_answer(verbatim, question.answers),
        found=any(has_answer(normalize_text(hit), question.answers) for hit in hits),
        logged=has_answer(log, question.answers),
        stale=not kept and bool(question.stale) and has_answer(shown, question.stale),
    )


def find_inventions(summary: str, said: str) -> tuple[str, ...]:
    """Figures, names and denials in a summary that what it stands for does not bear out.

    Figures are everything with a digit in it, names two capitalised words in a row neither of which was ever said, and
    denials claims that something was not said although it was.
    """
    known = normalize_text(said)
    out: dict[str, None] = {}
    for figure in _FIGURE.findall(normalize_text(_ENTRY.sub(" ", _LISTED.sub(" ", summary)))):
        bare = figure.strip(".,:#/-%")
        if bare and bare not in known:
            out[bare] = None
    words = set(re.findall(r"\w+", known))
    for line in summary.splitlines():
        if line.lstrip().startswith("#"):
            continue  # a heading
        for first, last in _NAMES.findall(line):
            if normalize_text(first) not in words and normalize_text(last) not in words:
                out[f"{first} {last}"] = None
        if (
            (about := extract_denied_words(line))
            and is_denial_contradicted(about, said)
            and normalize_text(line.strip("-*• ")) not in known
        ):
            out[f"denied: {' '.join(about)}"] = None
    return tuple(out)
