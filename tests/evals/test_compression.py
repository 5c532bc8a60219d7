"""D8: what summaries keep is measured against a baseline, and the measure itself can fail."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from everhold.errors import Overloaded
from everhold.evals import report
from everhold.evals.conversation import Conversation, bundled
from everhold.evals.score import Score, holds, invented, normal
from everhold.evals.stage import Distant, play
from everhold.models.offline import OfflineModel
from everhold.ports.model import Answer, Request
from tests.incident.test_incident import rotate_id

BASELINE = Path(__file__).parent / "baseline.json"
RENEW = "everhold eval compression --baseline tests/evals/baseline.json --renew"
BUNDLED = {conversation.name: conversation for conversation in bundled()}
SMALL = "night-of-the-outage"


def behind(scores: list[Score]) -> list[str]:
    """What the baseline says against these scores; the others are somebody else's test."""
    known = json.loads(BASELINE.read_text())
    mine = {report.key(score) for score in scores}
    assert mine <= known["scores"].keys(), f"new conversations? {RENEW}"
    known["scores"] = {name: mark for name, mark in known["scores"].items() if name in mine}
    return report.worse(scores, json.dumps(known).encode())


class Altered(OfflineModel):
    """The offline model, with something done to every summary it writes."""

    def __init__(self, change: Callable[[str], str]) -> None:
        super().__init__()
        self.change = change

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        answer = await super().answer(request)
        return structs.replace(answer, text=self.change(answer.text))


# -- the conversations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLED)
def test_every_answer_stands_literally_in_its_conversation(name: str) -> None:
    conversation = BUNDLED[name]
    said = normal(conversation.words())
    for question in conversation.questions:
        assert holds(said, question.answers), question
        assert not question.stale or holds(said, question.stale), question
        assert not holds(normal(question.ask), question.answers), f"it gives itself away: {question.ask}"


def test_there_are_two_languages_and_every_kind_of_fact() -> None:
    languages = [conversation.language for conversation in BUNDLED.values()]
    assert languages.count("en") >= 3
    assert languages.count("de") >= 3
    kinds = {question.kind for conversation in BUNDLED.values() for question in conversation.questions}
    assert kinds == {"name", "number", "decision", "correction", "question", "effect", "code", "rule"}


# -- the baseline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLED)
def test_nothing_is_kept_worse_than_it_was(name: str) -> None:
    scores = [play(BUNDLED[name], OfflineModel(), folds=folds) for folds in (1, 3)]
    assert not behind(scores), f"if this is meant to be: {RENEW}"
    for score in scores:
        assert score.sound
        assert score.count("logged") == len(score.outcomes), "what folded is no longer in the log"
        sure = [outcome for outcome in score.outcomes if outcome.kind in ("rule", "correction", "effect")]
        assert all(outcome.kept for outcome in sure), "these stay whatever the summary says"


def test_the_baseline_knows_no_other_conversations() -> None:
    known = json.loads(BASELINE.read_text())
    assert known["scores"].keys() == {f"{name}/{folds}" for name in BUNDLED for folds in (1, 3)}


def test_it_folds_by_itself_when_the_window_is_small() -> None:
    score = play(BUNDLED[SMALL], OfflineModel(), folds=0)
    assert score.asked == "auto"
    assert score.folds > 1
    assert score.sound


def test_the_same_conversation_always_gets_the_same_score() -> None:
    one, other = (play(BUNDLED[SMALL], OfflineModel(), folds=3) for _ in range(2))
    assert structs.replace(one, seconds=0.0) == structs.replace(other, seconds=0.0)


# -- it can fail -------------------------------------------------------------------------------------------------------


def test_a_summariser_that_drops_numbers_is_found_out() -> None:
    found = behind([play(BUNDLED[SMALL], Altered(lambda text: re.sub(r"\d", "", text)), folds=1)])
    assert any("kept" in line for line in found)
    assert any("OPS-4417" in line or "Which ticket" in line for line in found)


def test_but_what_stays_word_for_word_survives_even_that() -> None:
    score = play(BUNDLED[SMALL], Altered(lambda text: "nothing much was said"), folds=3)
    kept = {outcome.kind for outcome in score.outcomes if outcome.kept and not outcome.verbatim}
    assert {"rule", "correction", "effect"} <= kept
    assert score.count("found") == len(score.outcomes), "the originals are still there to be searched"


@pytest.mark.parametrize(
    "lie, named",
    [
        ("- The outage cost 48,500 in refunds.", "48500"),
        ("- It was approved by Esmeralda Quint.", "Esmeralda Quint"),
        ("- The invoice preview was never mentioned.", "denied: invoice preview"),
    ],
)
def test_a_summariser_that_makes_things_up_is_found_out(lie: str, named: str) -> None:
    score = play(BUNDLED[SMALL], Altered(lambda text: f"{text}\n{lie}"), folds=1)
    assert named in score.invented
    assert any(line.endswith(named) for line in behind([score]))


def test_an_out_of_date_fact_is_not_taken_for_the_correction() -> None:
    swapped = Altered(lambda text: text.replace("18,500", "").replace("21,000", "18,500"))
    conversation = structs.replace(
        BUNDLED["two-tongues-one-kitchen"],
        turns=tuple(
            structs.replace(turn, text=turn.text.replace("Actually the", "The"), reply="Fine.")
            for turn in BUNDLED["two-tongues-one-kitchen"].turns
        ),
    )
    score = play(conversation, swapped, folds=1)
    assert [outcome.ask for outcome in score.outcomes if outcome.stale] == ["What is the budget?"]


def test_a_fold_that_rotates_the_id_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rotate_id(monkeypatch)
    score = play(BUNDLED[SMALL], OfflineModel(), folds=1)
    assert not score.same_session
    assert any("THE SESSION CHANGED" in line for line in behind([score]))


def test_a_summariser_that_is_down_folds_nothing_and_loses_nothing() -> None:
    class Down(OfflineModel):
        async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
            raise Overloaded("out to lunch")

    score = play(BUNDLED[SMALL], Down(), folds=1)
    assert not score.sound
    assert score.folds == 0
    assert score.count("kept") == len(score.outcomes)
    assert "out to lunch" in report.trouble(score)


def test_a_growing_context_is_found_out() -> None:
    score = play(BUNDLED[SMALL], OfflineModel(), folds=1)
    grown = structs.replace(score, tokens_after=score.tokens_after * 2)
    assert any("tokens are left" in line for line in behind([grown]))


# -- the measure -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, answer, there",
    [
        ("it costs **4,200** now", "4200", True),
        ("es kostet 4.200 Euro", "4,200", True),
        ("14,200", "4,200", False),
        ("build 1207b", "1207", False),
        ("Straße", "STRASSE", True),
        ("the third\u00a0floor", "third floor", True),
        ("“KV\u201388213”", "KV-88213", True),
        ("lock_timeout = 2s;", "lock_timeout = 2s", True),
    ],
)
def test_answers_are_matched_as_people_read_them(text: str, answer: str, there: bool) -> None:
    assert holds(normal(text), (answer,)) is there


def test_a_faithful_summary_has_made_nothing_up() -> None:
    said = "Mara: the oven costs 4,200 and weighs 1,180 kilos. The mover comes on 11 March."
    summary = "## Key Facts\n1. Oven: 4.200, 1180 kilos (#12)\n2. Mover on 11 March."
    assert invented(summary, said) == ()
    assert invented("- it weighs 1,190 kilos", said) == ("1190",)


def test_a_model_that_needs_a_real_loop_can_be_scored() -> None:
    class Slow(OfflineModel):
        async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
            await asyncio.to_thread(lambda: None)  # no virtual world has this
            return await super().answer(request)

    distant = Distant(Slow())
    try:
        score = play(BUNDLED[SMALL], distant, folds=1)
    finally:
        distant.close()
    assert score.sound
    assert structs.replace(score, seconds=0.0) == structs.replace(
        play(BUNDLED[SMALL], OfflineModel(), folds=1), seconds=0.0
    )


def test_scores_survive_a_round_trip(tmp_path: Path) -> None:
    score = play(BUNDLED[SMALL], OfflineModel(), folds=1)
    assert msgspec.convert(msgspec.to_builtins(score), Score) == score
    assert report.worse([score], report.baseline([score])) == []
    assert report.worse([], report.baseline([score])) == [f"{SMALL}/1: was not scored"]


def test_a_conversation_can_be_written_by_hand(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(
        "> Ada: The door code is 4711.\n  Really.\n< Fine.\n? number: Which code? = 4711\n"
    )
    from everhold.evals.foreign import read

    (mine,) = read(tmp_path)
    assert isinstance(mine, Conversation)
    assert mine.turns[0].text == "The door code is 4711.\nReally."
