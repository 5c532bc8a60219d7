"""D8: the facts that summaries keep are compared with a baseline, and each comparison is shown to fail."""

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
from everhold.evals.conversation import EvalConversation, load_bundled_conversations
from everhold.evals.runner import ThreadedModel, score_conversation
from everhold.evals.score import CompressionScore, find_inventions, has_answer, normalize_text
from everhold.models.offline import OfflineModel
from everhold.ports.model import ModelRequest, ModelResponse
from tests.incident.test_incident import rotate_id

BASELINE = Path(__file__).parent / "baseline.json"
RENEW = "everhold eval compression --baseline tests/evals/baseline.json --renew"
BUNDLED = {conversation.name: conversation for conversation in load_bundled_conversations()}
SMALL = "night-of-the-outage"


def find_own_regressions(scores: list[CompressionScore]) -> list[str]:
    """The regressions of these scores. The baseline's other conversations are left out."""
    known = json.loads(BASELINE.read_text())
    mine = {report.make_score_key(score) for score in scores}
    assert mine <= known["scores"].keys(), f"new conversations? {RENEW}"
    known["scores"] = {name: mark for name, mark in known["scores"].items() if name in mine}
    return report.find_regressions(scores, json.dumps(known).encode())


class AlteredSummaryModel(OfflineModel):
    """The offline model, with a change applied to every summary."""

    def __init__(self, change: Callable[[str], str]) -> None:
        super().__init__()
        self.change = change

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        answer = await super().answer(request)
        return structs.replace(answer, text=self.change(answer.text))


# -- the conversations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLED)
def test_every_answer_is_literally_in_its_conversation(name: str) -> None:
    conversation = BUNDLED[name]
    said = normalize_text(conversation.join_text())
    for question in conversation.questions:
        assert has_answer(said, question.answers), question
        assert not question.stale or has_answer(said, question.stale), question
        assert not has_answer(normalize_text(question.ask), question.answers), f"it gives itself away: {question.ask}"


def test_the_conversations_have_two_languages_and_every_kind_of_fact() -> None:
    languages = [conversation.language for conversation in BUNDLED.values()]
    assert languages.count("en") >= 3
    assert languages.count("de") >= 3
    kinds = {question.kind for conversation in BUNDLED.values() for question in conversation.questions}
    assert kinds == {"name", "number", "decision", "correction", "question", "effect", "code", "rule"}


# -- the baseline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLED)
def test_no_score_is_below_the_baseline(name: str) -> None:
    scores = [score_conversation(BUNDLED[name], OfflineModel(), compressions=count) for count in (1, 3)]
    assert not find_own_regressions(scores), f"if this is meant to be: {RENEW}"
    for score in scores:
        assert score.is_sound
        assert score.count_outcomes("logged") == len(score.outcomes), "a compressed fact is no longer in the log"
        sure = [outcome for outcome in score.outcomes if outcome.kind == "effect"]
        assert all(outcome.kept for outcome in sure), "these must be kept, regardless of the summary"


def test_the_baseline_contains_only_these_conversations() -> None:
    known = json.loads(BASELINE.read_text())
    assert known["scores"].keys() == {f"{name}/{count}" for name in BUNDLED for count in (1, 3)}


def test_a_small_window_triggers_compressions() -> None:
    score = score_conversation(BUNDLED[SMALL], OfflineModel(), compressions=0)
    assert score.asked == "auto"
    assert score.compressions > 1
    assert score.is_sound


def test_the_same_conversation_always_gets_the_same_score() -> None:
    one, other = (score_conversation(BUNDLED[SMALL], OfflineModel(), compressions=3) for _ in range(2))
    assert structs.replace(one, seconds=0.0) == structs.replace(other, seconds=0.0)


# -- it can fail -------------------------------------------------------------------------------------------------------


def test_a_summariser_that_drops_numbers_is_detected() -> None:
    found = find_own_regressions(
        [
            score_conversation(
                BUNDLED["all-in-one"], AlteredSummaryModel(lambda text: re.sub(r"\d", "", text)), compressions=1
            )
        ]
    )
    assert any("kept" in line for line in found)
    assert any("lost: " in line for line in found)


def test_rules_corrections_and_effects_survive_an_empty_summary() -> None:
    score = score_conversation(
        BUNDLED[SMALL], AlteredSummaryModel(lambda text: "nothing much was said"), compressions=3
    )
    kept = {outcome.kind for outcome in score.outcomes if outcome.kept and not outcome.verbatim}
    assert {"rule", "correction", "effect"} <= kept
    assert score.count_outcomes("found") == len(score.outcomes), "a search no longer finds the originals"


@pytest.mark.parametrize(
    "lie, named",
    [
        ("- The outage cost 48,500 in refunds.", "48500"),
        ("- It was approved by Esmeralda Quint.", "Esmeralda Quint"),
        ("- The invoice preview was never mentioned.", "denied: invoice preview"),
    ],
)
def test_a_summariser_that_invents_facts_is_detected(lie: str, named: str) -> None:
    score = score_conversation(BUNDLED[SMALL], AlteredSummaryModel(lambda text: f"{text}\n{lie}"), compressions=1)
    assert named in score.invented
    assert any(line.endswith(named) for line in find_own_regressions([score]))


def test_an_out_of_date_fact_is_not_taken_for_the_correction() -> None:
    swapped = AlteredSummaryModel(lambda text: text.replace("18,500", "").replace("21,000", "18,500"))
    conversation = structs.replace(
        BUNDLED["two-tongues-one-kitchen"],
        turns=tuple(
            # a message this long is left to the summary
            structs.replace(turn, text=f"{turn.text} {'and so on ' * 60}", reply="Fine.")
            for turn in BUNDLED["two-tongues-one-kitchen"].turns
        ),
    )
    score = score_conversation(conversation, swapped, compressions=1)
    assert [outcome.ask for outcome in score.outcomes if outcome.stale] == ["What is the budget?"]


def test_a_compression_that_changes_the_session_id_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    rotate_id(monkeypatch)
    score = score_conversation(BUNDLED[SMALL], OfflineModel(), compressions=1)
    assert not score.same_session
    assert any("THE SESSION CHANGED" in line for line in find_own_regressions([score]))


def test_an_unavailable_summariser_compresses_nothing_and_loses_nothing() -> None:
    class UnavailableModel(OfflineModel):
        async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
            raise Overloaded("no capacity")

    score = score_conversation(BUNDLED[SMALL], UnavailableModel(), compressions=1)
    assert not score.is_sound
    assert score.compressions == 0
    assert score.count_outcomes("kept") == len(score.outcomes)
    assert "no capacity" in report.describe_trouble(score)


def test_a_larger_context_is_detected() -> None:
    score = score_conversation(BUNDLED[SMALL], OfflineModel(), compressions=1)
    grown = structs.replace(score, tokens_after=score.tokens_after * 2)
    assert any("tokens are left" in line for line in find_own_regressions([grown]))


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
def test_answers_are_matched_ignoring_case_and_format(text: str, answer: str, there: bool) -> None:
    assert has_answer(normalize_text(text), (answer,)) is there


def test_a_faithful_summary_contains_no_invention() -> None:
    said = "Mara: the oven costs 4,200 and weighs 1,180 kilos. The mover comes on 11 March."
    summary = "## Key Facts\n1. Oven: 4.200, 1180 kilos (#12)\n2. Mover on 11 March."
    assert find_inventions(summary, said) == ()
    assert find_inventions("- it weighs 1,190 kilos", said) == ("1190",)


def test_a_model_that_needs_a_real_loop_can_be_scored() -> None:
    class RealLoopModel(OfflineModel):
        async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
            await asyncio.to_thread(lambda: None)  # impossible in virtual time
            return await super().answer(request)

    threaded = ThreadedModel(RealLoopModel())
    try:
        score = score_conversation(BUNDLED[SMALL], threaded, compressions=1)
    finally:
        threaded.close()
    assert score.is_sound
    assert structs.replace(score, seconds=0.0) == structs.replace(
        score_conversation(BUNDLED[SMALL], OfflineModel(), compressions=1), seconds=0.0
    )


def test_scores_survive_a_round_trip(tmp_path: Path) -> None:
    score = score_conversation(BUNDLED[SMALL], OfflineModel(), compressions=1)
    assert msgspec.convert(msgspec.to_builtins(score), CompressionScore) == score
    assert report.find_regressions([score], report.encode_baseline([score])) == []
    assert report.find_regressions([], report.encode_baseline([score])) == [f"{SMALL}/1: was not scored"]


def test_a_conversation_can_be_written_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(
        "> Ada: The door code is 4711.\n  Really.\n< Fine.\n? number: Which code? = 4711\n"
    )
    from everhold.evals.datasets import read_conversations

    (mine,) = read_conversations(tmp_path)
    assert isinstance(mine, EvalConversation)
    assert mine.turns[0].text == "The door code is 4711.\nReally."
