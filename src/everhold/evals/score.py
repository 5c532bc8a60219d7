"""Score a compression: which facts it kept and which it invented. Compares words only, for every model and language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from everhold.evals.conversation import EvalQuestion
from everhold.evals.denial_detection import extract_denied_words, is_denial_contradicted

_SPACE: Final = re.compile(r"\s+")
_MARKUP: Final = re.compile(r"[*`“”„«»\"]")
_GROUPS: Final = re.compile(r"(?<=\d)[.,'\u2019\u202f\u00a0](?=\d{3}(?!\d))")
_DASHES: Final = re.compile(r"[\u2010-\u2015]")
_FIGURE: Final = re.compile(r"(?<![\w@./:#%-])[\w@./:#%-]*\d[\w@./:#%-]*")
_ENTRY: Final = re.compile(r"#\d+\b")
"""An entry's number, as summaries cite it."""
_LISTED: Final = re.compile(r"^\s*(?:[-*•]\s*)?\(?\d{1,2}[.)]\s", re.MULTILINE)
_NAMES: Final = re.compile(r"(?<=[a-zäöüß,;] )([A-ZÄÖÜ][a-zäöüß]\w+) ([A-ZÄÖÜ][a-zäöüß]\w+)")


class QuestionOutcome(Struct, frozen=True, kw_only=True):
    """What happened to the answer of one question."""

    kind: str
    ask: str
    kept: bool
    """The next turn's context contains it."""
    verbatim: bool
    """The part of that context that was not compressed contains it."""
    found: bool
    """A search for the question finds an entry that contains it."""
    logged: bool
    """An entry of the log contains it."""
    stale: bool = False
    """The context contains only the answer from before a correction."""


class CompressionScore(Struct, frozen=True, kw_only=True):
    """The score of one conversation that one model compressed."""

    conversation: str
    language: str
    model: str
    asked: str
    """How often it was to be compressed: a number, or `auto` for whenever the small window filled up."""
    compressions: int
    same_session: bool
    broken: tuple[str, ...]
    """What an audit of the store found afterwards."""
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
        """Whether it was compressed as often as asked, in one session, with a sound store. Refusals are allowed."""
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
        """The number of facts that are no longer in the context verbatim, so only the summary can contain them."""
        return sum(not outcome.verbatim for outcome in self.outcomes)

    @property
    def kept_compressed(self) -> int:
        return sum(outcome.kept and not outcome.verbatim for outcome in self.outcomes)


def normalize_text(text: str) -> str:
    """Return `text` for comparison: without case, markup, kinds of space and dash, or thousands separators."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = _DASHES.sub("-", _MARKUP.sub("", text))
    return _SPACE.sub(" ", _GROUPS.sub("", text))


def has_answer(text: str, answers: Iterable[str]) -> bool:
    """Whether the normalized `text` contains one of `answers` as whole words."""
    return any(re.search(rf"(?<!\w){re.escape(normalize_text(answer))}(?!\w)", text) for answer in answers)


def judge_answer(
    question: EvalQuestion, *, shown: str, verbatim: str, hits: Sequence[str], log: str
) -> QuestionOutcome:
    """Judge one answer.

    `shown`, `verbatim` and `log` are normalized: the next turn's context, its uncompressed part, and all entries.
    """
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
    """Return the figures, names and denials in a summary that the original text does not support.

    A figure is any word with a digit. A name is two capitalised words in a row, neither of which is in the original.
    A denial claims that something was not said, although the original says it.
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
