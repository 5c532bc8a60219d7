"""What makes one thing found before another; next to each sign stands what is found without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.memories.builtin import candidates
from everhold.memories.builtin.candidates import IndexScope
from everhold.memories.builtin.rank_fusion import DAY_SECONDS, RankingWeights
from tests.memories.builtin.index_scenario import ADA, IndexScenario

BOB = ("person:bob",)


@pytest.fixture
async def scenario(tmp_path: Path) -> AsyncIterator[IndexScenario]:
    scenario = IndexScenario(tmp_path, embeddings="table")
    yield scenario
    await scenario.close()


async def test_the_audience_is_settled_before_anything_is_ranked(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much better others' words match, they neither show nor push out what may be shown."""
    await scenario.say("there was a leak in the boiler room, a small one, nothing that could not be mended")
    for number in range(300):
        await scenario.say("boiler leak", session=f"b{number}", audience=BOB, who="bob")
    mine = "there was a leak in the boiler room, a small one, nothing that could not be mended"
    assert await scenario.find("boiler leak", limit=5) == [mine]
    everybody = candidates.find_scopes

    def planted(db: Any, *, agent: str | None, audience: Any) -> list[IndexScope]:
        return everybody(db, agent=agent, audience=None)

    monkeypatch.setattr(candidates, "find_scopes", planted)
    leaked = await scenario.find("boiler leak", limit=5)
    assert leaked == ["boiler leak"] * 5  # hidden afterwards, nothing would be left


async def test_what_is_newer_comes_first_of_equals(scenario: IndexScenario) -> None:
    await scenario.say("the boiler was repaired", session="new", at=400 * DAY_SECONDS)
    await scenario.say("the boiler was repaired!", session="old", at=0.0)
    assert (await scenario.hits("boiler repaired"))[0].session == "new"
    scenario.index.ranking_weights = RankingWeights(recent=-0.02)
    assert (await scenario.hits("boiler repaired"))[0].session == "old"


async def test_an_item_gains_from_what_stands_beside_it(scenario: IndexScenario) -> None:
    long = "I have been wondering for a while, and before we go on with anything else at all I would like to know it: "
    await scenario.say(f"{long * 3} which colour of paint did you choose for the kitchen?", who="bob", session="a")
    await scenario.say("The pale one, I think.", session="a")
    await scenario.say("The pale one, I think.", session="b")

    async def score(session: str) -> float:
        hits = await scenario.hits("paint colour kitchen")
        return next((it.score for it in hits if (it.session, it.text) == (session, "The pale one, I think.")), 0.0)

    beside, alone = await score("a"), await score("b")
    assert beside > alone + 0.1
    scenario.index.ranking_weights = RankingWeights(smooth=0.0)
    assert beside > await score("a") + 0.1
    assert abs(alone - await score("b")) < 0.1


async def test_an_item_gains_from_what_follows_it(scenario: IndexScenario) -> None:
    await scenario.say("The pale one, I think.", session="a")
    await scenario.say("Is that a colour of paint for the kitchen? " + "I had not thought of it. " * 20, session="a")
    await scenario.say("The pale one, I think.", session="b")

    async def score(session: str) -> float:
        hits = await scenario.hits("paint colour kitchen")
        return next((it.score for it in hits if (it.session, it.text) == (session, "The pale one, I think.")), 0.0)

    assert await score("a") > await score("b") + 0.1


async def test_a_short_answer_is_read_with_a_short_question_and_with_no_long_one(scenario: IndexScenario) -> None:
    await scenario.say("Which colour of paint for the kitchen?", who="bob", session="short")
    await scenario.say("The pale one, I think.", session="short")
    long = "I have been wondering for a while, and before we go on with anything else at all I would like to know it: "
    await scenario.say(f"{long * 3} Which colour of paint for the kitchen?", who="bob", session="long")
    await scenario.say("The pale one, I think.", session="long")
    await scenario.say("The pale one, I think.", session="alone")
    scenario.index.ranking_weights = RankingWeights(smooth=0.0)  # what its neighbour gives it is another sign
    hits = await scenario.hits("paint colour kitchen", limit=50)
    scores = {hit.session: hit.score for hit in hits if hit.text == "The pale one, I think."}
    alone = scores.get(
        "alone", RankingWeights().human + RankingWeights().recent
    )  # of the question itself it has nothing
    assert scores["short"] > alone + 0.1
    assert scores.get("long", alone) == pytest.approx(alone, abs=0.01)


async def test_what_those_said_whom_a_question_names_comes_first(scenario: IndexScenario) -> None:
    await scenario.say("the boiler was repaired", session="c", who="caro", name="Caroline")
    await scenario.say("the boiler was repaired", session="m", who="mel", name="Melanie")
    asked = "did Caroline say the boiler was repaired?"
    assert [hit.session for hit in await scenario.hits(asked)] == ["c", "m"]
    scenario.index.ranking_weights = RankingWeights(named=-0.12)
    assert [hit.session for hit in await scenario.hits(asked)] == ["m", "c"]


async def test_what_people_said_comes_before_what_was_answered(scenario: IndexScenario) -> None:
    await scenario.say("the boiler was repaired", session="said")
    await scenario.say("the boiler was repaired", session="answered", who="agent")
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["said", "answered"]
    scenario.index.ranking_weights = RankingWeights(human=-0.2)
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["answered", "said"]


async def test_what_was_noted_comes_before_what_was_said(scenario: IndexScenario) -> None:
    await scenario.say("the boiler was repaired", session="said")
    await scenario.note("the boiler was repaired", session="noted")
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["noted", "said"]
    scenario.index.ranking_weights = RankingWeights(noted=-0.1)
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["said", "noted"]


async def test_whom_a_question_names_is_not_what_it_is_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = IndexScenario(tmp_path)
    for number in range(6):
        await scenario.say(f"Hey Caroline! Number {number}?", who="mel", name="Melanie", session=f"m{number}")
    for number in range(20):
        await scenario.say(f"Let us meet at {number}.", who="mel", name="Melanie", session=f"n{number}")
    await scenario.say("I practise the violin every day.", who="caro", name="Caroline", session="c")
    asked = "Which instrument does Caroline play?"
    assert (await scenario.find(asked))[0] == "I practise the violin every day."
    monkeypatch.setattr(candidates, "find_named_authors", lambda *_: (set(), set()))
    assert (await scenario.find(asked))[0].startswith("Hey Caroline!")
    await scenario.close()


async def test_words_that_stand_everywhere_are_not_followed(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "SAMPLE_POSTINGS", 8)
    monkeypatch.setattr(candidates, "MAX_POSTINGS", 40)
    for number in range(60):
        await scenario.say(f"cup {'of tea' if number % 2 else ''} {number}", session=f"s{number}")
    await scenario.say("a cup of oolong tea", session="rare")
    assert (await scenario.find("cup tea oolong", limit=3))[0] == "a cup of oolong tea"
    (scope,) = candidates.find_scopes(scenario.index._reader, agent="main", audience=ADA)
    walked = candidates.find_term_chunks(
        scenario.index._reader, candidates.build_term_queries("cup tea oolong"), scope.id, scope.chunks
    )
    assert [(term, len(rows)) for _, rows, term in walked] == [('"oolong"', 1)]
    common = candidates.find_term_chunks(
        scenario.index._reader, candidates.build_term_queries("cup"), scope.id, scope.chunks
    )
    assert [(term, len(rows), rows[0]) for _, rows, term in common] == [('"cup"', 8, scope.chunks - 1)]  # the newest
