"""The comparison of memories: what an answer used, what memories have in common, and what each adds."""

from __future__ import annotations

import pytest

from everhold.core.memory_comparison import QuestionRecord, compare_memories, is_used, measure_overlap
from everhold.core.recall import MemoryAnswer, RecallRecord, RecallTarget, RecallTrace


def ask(
    question: str, answer: str, *, shown: dict[str, list[str]], shadow: dict[str, list[str]] | None = None
) -> QuestionRecord:
    found = {**shown, **(shadow or {})}
    answers = {
        name: MemoryAnswer(seconds=0.1 * (number + 1), found=len(texts), tokens=10 * len(texts))
        for number, (name, texts) in enumerate(found.items())
    }
    return QuestionRecord(
        session="s",
        seq=4,
        at=1.0,
        question=question,
        answer=answer,
        record=RecallRecord(
            asked=RecallTarget(session="s", generation=0, takes=(1,)),
            audience=("person:a",),
            shown=tuple(RecallTrace(provider=name, text=text) for name, texts in shown.items() for text in texts),
            shadow=tuple(
                RecallTrace(provider=name, text=text) for name, texts in (shadow or {}).items() for text in texts
            ),
            answers=answers,
        ),
        texts={},
    )


@pytest.mark.parametrize(
    "text, answer, used",
    [
        ("Ada moved to Lisbon in March", "You have lived in Lisbon since March.", True),
        ("Ada moved to Lisbon in March", "I do not know where you live.", False),
        ("Ada likes bouldering on Thursdays", "You have lived in Lisbon since March.", False),
        ("Where do I live now?", "You live in Lisbon now.", False),  # has nothing that the question does not have
    ],
)
def test_a_hit_is_used_if_the_answer_has_its_own_words(text: str, answer: str, used: bool) -> None:
    assert is_used(text, ask("Where do I live now?", answer, shown={})) is used


def test_the_comparison_counts_what_each_memory_adds() -> None:
    home, sport = "Ada moved to Lisbon in March", "Ada goes bouldering on Thursdays"
    questions = [
        ask("Where do I live?", "In Lisbon, since March.", shown={"one": [home]}, shadow={"two": [home, sport]}),
        ask("What sport do I do?", "Bouldering, on Thursdays.", shown={"one": []}, shadow={"two": [sport]}),
    ]
    found = compare_memories(questions, modes={"one": "primary", "two": "shadow"})
    one, two = found.memories
    assert (one.mode, one.asked, one.found_nothing, one.helped, one.alone) == ("primary", 2, 1, 1, 0)
    assert (two.mode, two.found, two.helped, two.alone) == ("shadow", 1.5, 2, 1)
    assert (one.seconds_p50, two.seconds_p95, two.tokens) == (0.1, 0.2, 15.0)
    (overlap,) = found.overlaps
    assert (overlap.first, overlap.second, overlap.share) == ("one", "two", 0.25)  # 1/2 and 0
    assert found.questions[1].used == (sport,)


def test_texts_that_say_the_same_in_other_words_overlap() -> None:
    assert measure_overlap(["Ada moved to Lisbon in March"], ["In March, Ada moved to Lisbon."]) == 1.0
    assert measure_overlap(["Ada moved to Lisbon"], ["Bob sold his bicycle"]) == 0.0
    assert measure_overlap([], ["Bob sold his bicycle"]) == 0.0
