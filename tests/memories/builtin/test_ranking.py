"""Each signal of ranking, with the result that search would give without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.people import build_present
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


async def test_the_audience_is_filtered_before_ranking(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better matches of another audience are neither shown nor displace hits."""
    await scenario.say("there was a leak in the boiler room, a small one, nothing that could not be mended")
    for number in range(300):
        await scenario.say("boiler leak", session=f"b{number}", audience=BOB, who="bob")
    mine = "there was a leak in the boiler room, a small one, nothing that could not be mended"
    assert await scenario.find("boiler leak", limit=5) == [mine]
    find_scopes = candidates.find_scopes

    def planted(db: Any, *, agent: str | None, present: Any) -> list[IndexScope]:
        return find_scopes(db, agent=agent, present=None)

    monkeypatch.setattr(candidates, "find_scopes", planted)
    leaked = await scenario.find("boiler leak", limit=5)
    assert leaked == ["boiler leak"] * 5  # filtering after ranking would leave nothing


async def test_the_newer_of_equal_hits_is_first(scenario: IndexScenario) -> None:
    await scenario.say("the boiler was repaired", session="new", at=400 * DAY_SECONDS)
    await scenario.say("the boiler was repaired!", session="old", at=0.0)
    assert (await scenario.hits("boiler repaired"))[0].session == "new"
    scenario.index.ranking_weights = RankingWeights(recent=-0.02)
    assert (await scenario.hits("boiler repaired"))[0].session == "old"


async def test_an_entry_gains_from_the_entry_before_it(scenario: IndexScenario) -> None:
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


async def test_an_entry_gains_from_the_entry_after_it(scenario: IndexScenario) -> None:
    await scenario.say("The pale one, I think.", session="a")
    await scenario.say("Is that a colour of paint for the kitchen? " + "I had not thought of it. " * 20, session="a")
    await scenario.say("The pale one, I think.", session="b")

    async def score(session: str) -> float:
        hits = await scenario.hits("paint colour kitchen")
        return next((it.score for it in hits if (it.session, it.text) == (session, "The pale one, I think.")), 0.0)

    assert await score("a") > await score("b") + 0.1


async def test_a_short_answer_is_indexed_with_a_short_question_only(scenario: IndexScenario) -> None:
    await scenario.say("Which colour of paint for the kitchen?", who="bob", session="short")
    await scenario.say("The pale one, I think.", session="short")
    long = "I have been wondering for a while, and before we go on with anything else at all I would like to know it: "
    await scenario.say(f"{long * 3} Which colour of paint for the kitchen?", who="bob", session="long")
    await scenario.say("The pale one, I think.", session="long")
    await scenario.say("The pale one, I think.", session="alone")
    scenario.index.ranking_weights = RankingWeights(smooth=0.0)  # the neighbour's contribution is another signal
    hits = await scenario.hits("paint colour kitchen", limit=50)
    scores = {hit.session: hit.score for hit in hits if hit.text == "The pale one, I think."}
    alone = scores.get("alone", RankingWeights().human + RankingWeights().recent)  # it shares no word with the question
    assert scores["short"] > alone + 0.1
    assert scores.get("long", alone) == pytest.approx(alone, abs=0.01)


async def test_entries_of_the_named_people_are_first(scenario: IndexScenario) -> None:
    await scenario.say("the boiler was repaired", session="c", who="caro", name="Caroline")
    await scenario.say("the boiler was repaired", session="m", who="mel", name="Melanie")
    asked = "did Caroline say the boiler was repaired?"
    assert [hit.session for hit in await scenario.hits(asked)] == ["c", "m"]
    scenario.index.ranking_weights = RankingWeights(named=-0.12)
    assert [hit.session for hit in await scenario.hits(asked)] == ["m", "c"]


async def test_entries_of_people_rank_above_replies(scenario: IndexScenario) -> None:
    await scenario.say("the boiler was repaired", session="said")
    await scenario.say("the boiler was repaired", session="answered", who="agent")
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["said", "answered"]
    scenario.index.ranking_weights = RankingWeights(human=-0.2)
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["answered", "said"]


async def test_notes_rank_above_messages(scenario: IndexScenario) -> None:
    await scenario.say("the boiler was repaired", session="said")
    await scenario.note("the boiler was repaired", session="noted")
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["noted", "said"]
    scenario.index.ranking_weights = RankingWeights(noted=-0.1)
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["said", "noted"]


async def test_names_in_a_question_are_not_matched_as_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_very_frequent_words_are_not_looked_up(scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "SAMPLE_POSTINGS", 8)
    monkeypatch.setattr(candidates, "MAX_POSTINGS", 40)
    for number in range(60):
        await scenario.say(f"cup {'of tea' if number % 2 else ''} {number}", session=f"s{number}")
    await scenario.say("a cup of oolong tea", session="rare")
    assert (await scenario.find("cup tea oolong", limit=3))[0] == "a cup of oolong tea"
    (scope,) = candidates.find_scopes(scenario.index._reader, agent="main", present=build_present(ADA))
    walked = candidates.find_term_chunks(
        scenario.index._reader, candidates.build_term_queries("cup tea oolong"), scope.id, scope.chunks
    )
    assert [(term, len(rows)) for _, rows, term in walked] == [('"oolong"', 1)]
    common = candidates.find_term_chunks(
        scenario.index._reader, candidates.build_term_queries("cup"), scope.id, scope.chunks
    )
    assert [(term, len(rows), rows[0]) for _, rows, term in common] == [('"cup"', 8, scope.chunks - 1)]  # the newest
