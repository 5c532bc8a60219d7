"""What people tell the agent and a compression keeps, in six languages, with a summary that says nothing of it."""

from __future__ import annotations

from bench.table import Row, at_most
from everhold.evals.kept_words import LANGUAGES, measure_kept_words

LEAST_SHARE = 0.9
MOST_GROWTH = 1.15


def kept_words_rows(rounds: int) -> list[Row]:
    """The result is deterministic, so one round is enough."""
    rows = []
    for language in LANGUAGES:
        score = measure_kept_words(language)
        rows.append(
            Row(
                what=f"instructions kept after {score.compressions} compressions, {language}",
                value=score.share * 100,
                unit="%",
                beside=f"{score.sentences} sentences",
                target=f"≥ {LEAST_SHARE:.0%}",
                holds=score.share >= LEAST_SHARE,
            )
        )
        rows.append(
            at_most(
                f"context with them, {language}",
                score.context_tokens,
                "tokens",
                MOST_GROWTH,
                beside="word lists (a8acf06)",
                ratio=score.growth,
            )
        )
    return rows


if __name__ == "__main__":
    from bench.table import render

    print(render(kept_words_rows(1)))
