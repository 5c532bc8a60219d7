"""What people tell the agent and a compression keeps, in six languages, with a summary that says nothing of it."""

from __future__ import annotations

from bench.table import Row, at_most
from everhold.evals.kept_words import LANGUAGES, ConversationKind, SentenceOrigin, measure_kept_words

LEAST_SHARE = 0.9
MOST_GROWTH = 1.15
CASES: tuple[tuple[SentenceOrigin, ConversationKind], ...] = (
    ("held_out_20261118", "work"),
    ("held_out_20261118", "talk"),
    ("held_out", "work"),
    ("held_out", "talk"),
    ("wording", "work"),
)


def kept_words_rows(rounds: int) -> list[Row]:
    """The result is deterministic, so one round is enough."""
    return [
        row for origin, kind in CASES for language in LANGUAGES[origin] for row in _measure_rows(origin, kind, language)
    ]


def _measure_rows(origin: SentenceOrigin, kind: ConversationKind, language: str) -> list[Row]:
    score = measure_kept_words(origin, language, kind)
    name = f"{origin.replace('_', '-')} sentences, {kind}, {language}"
    return [
        Row(
            what=f"instructions kept after {score.compressions} compressions, {name}",
            value=score.share * 100,
            unit="%",
            beside=f"{score.sentences} sentences; {score.chatter_kept} of {score.chatter} others kept",
            target=f"≥ {LEAST_SHARE:.0%}",
            holds=score.share >= LEAST_SHARE,
        ),
        at_most(
            f"context after a compression, {name}",
            score.context_tokens,
            "tokens",
            MOST_GROWTH,
            beside="word lists (33c06b3)",
            ratio=score.growth,
        ),
        at_most(
            f"context in the mean of all requests, {name}",
            score.mean_tokens,
            "tokens",
            MOST_GROWTH,
            beside="word lists (33c06b3)",
            ratio=score.mean_growth,
        ),
    ]


if __name__ == "__main__":
    from bench.table import render

    print(render(kept_words_rows(1)))
