"""Each signal of ranking, with the result that search would give without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everhold.core.people import build_present
from everhold.memories.builtin import candidates, indexing, provider, ranking
from everhold.memories.builtin.candidates import IndexScope
from everhold.memories.builtin.languages import is_about_oneself
from everhold.memories.builtin.rank_fusion import DAY_SECONDS, RankingWeights
from everhold.ports.memory import MemoryQuery
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
    # the contributions of the neighbour and of the session are other signals
    scenario.index.ranking_weights = RankingWeights(smooth=0.0, occasion=0.0)
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


LONG = "It took a while, and this is how it went, from the first call to the last bolt that was turned. " * 15


async def test_entries_of_people_rank_above_long_replies(scenario: IndexScenario) -> None:
    await scenario.say(f"the boiler was repaired. {LONG}", session="said")
    await scenario.say(f"the boiler was repaired. {LONG}", session="answered", who="agent")
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["said", "answered"]
    scenario.index.ranking_weights = RankingWeights(human=-0.3)
    assert [hit.session for hit in await scenario.hits("boiler repaired")] == ["answered", "said"]


async def test_short_replies_rank_like_entries_of_people(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scenario.say("the boiler was repaired", session="said")
    await scenario.say("the boiler was repaired", session="answered", who="agent")
    one, other = await scenario.hits("boiler repaired", for_turn=True)
    assert one.score == other.score
    searched, _ = await scenario.hits("boiler repaired")  # a search shows first what people said
    assert searched.session == "said"
    monkeypatch.setattr(ranking, "_mask_favoured", lambda flags, _: (flags & ranking.HUMAN) > 0)
    one, other = await scenario.hits("boiler repaired", for_turn=True)
    assert (one.session, other.session) == ("said", "answered")
    assert one.score > other.score + 0.1


async def test_an_item_gains_from_the_best_items_of_its_session_and_day(scenario: IndexScenario) -> None:
    for session in ("trip", "lone"):
        await scenario.say("We took the ferry at dawn, and the whole deck was wet.", session=session)
    for number in range(4):  # these lie apart, so they are no neighbours
        await scenario.say(f"Unrelated remark number {number} about the tax return of the firm.", session="trip")
        await scenario.say(f"On Corfu we ate grilled fish on evening {number}.", session="trip")

    async def score(session: str) -> float:
        hits = await scenario.hits("Corfu ferry fish", for_turn=True)
        return next(hit.score for hit in hits if hit.session == session and "ferry" in hit.text)

    gain = await score("trip") - await score("lone")
    scenario.index.ranking_weights = RankingWeights(occasion=0.0)
    assert gain > await score("trip") - await score("lone") + 0.1


async def test_words_of_a_named_date_are_first(scenario: IndexScenario) -> None:
    may, june = (datetime(2023, month, 8, 12, tzinfo=UTC).timestamp() for month in (5, 6))
    await scenario.say("I repaired the boiler in the cellar", session="may", at=may)
    await scenario.say("I repaired the boiler in the cellar!", session="june", at=june)

    async def first(question: str, now: float = june + 40 * DAY_SECONDS) -> str:
        query = MemoryQuery(
            text=question, agent="main", session="t", name="n", audience=ADA, person="ada", asked_at=now
        )
        return (await scenario.provider().find(query))[0].session

    assert await first("Which boiler did I repair on 7 May 2023?") == "may"  # told on the day after
    assert await first("Which boiler did I repair in June?") == "june"
    assert await first("Welchen Boiler habe ich im Mai repariert?") == "may"
    assert await first("Which boiler did I repair last month?", now=june) == "may"
    scenario.index.ranking_weights = RankingWeights(dated=-0.4)
    assert await first("Which boiler did I repair on 7 May 2023?") == "june"


async def test_a_date_alone_finds_what_was_said_then(scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    day = datetime(2023, 5, 8, 12, tzinfo=UTC).timestamp()
    for number in range(1_200):
        await scenario.say(f"What happened was number {number}.", session=f"s{number % 9}", at=day + 9e6)
    await scenario.say("Zebras arrived", session="wanted", at=day)
    query = MemoryQuery(
        text="What happened yesterday?", agent="main", session="t", name="n", audience=ADA, person="ada",
        asked_at=day + DAY_SECONDS,
    )  # fmt: skip
    while await scenario.index.catch_up(scenario.log):
        pass
    assert [hit.text for hit in await scenario.provider().find(query)][:1] == ["Zebras arrived"]
    monkeypatch.setattr(ranking, "_find_wanted_chunks", lambda _db, _stack, _asked: np.zeros(0, np.int64))
    assert "Zebras arrived" not in [hit.text for hit in await scenario.provider().find(query)][:1]


@pytest.mark.parametrize(
    "text, who",
    [
        ("Which colour of paint did I choose for the kitchen?", "ada"),
        ("Welche Farbe habe ich für die Küche gewählt: paint?", "ada"),
        ("Paint it is.", "agent"),
    ],
)
async def test_bare_questions_and_empty_replies_are_not_recalled(
    scenario: IndexScenario, text: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = MemoryQuery(text="paint kitchen", agent="main", session="t", name="n", audience=ADA, person="ada")
    await scenario.say(text, who=who)
    await scenario.say("The paint of the kitchen is pale green.", session="b")
    assert [hit.text for hit in await scenario.provider().find(query)] == ["The paint of the kitchen is pale green."]
    assert text in await scenario.find("paint kitchen")  # a person who searches still finds it
    await scenario.index.rebuild()
    monkeypatch.setattr(indexing, "is_bare", lambda _entry, _words: False)
    assert text in [hit.text for hit in await scenario.provider().find(query)]


async def test_a_question_that_also_tells_something_is_recalled(scenario: IndexScenario) -> None:
    told = "My dog Rex is 7 now, do you think he needs other food?"
    await scenario.say(told)
    query = MemoryQuery(text="How old is Rex?", agent="main", session="t", name="n", audience=ADA, person="ada")
    assert [hit.text for hit in await scenario.provider().find(query)] == [told]


async def test_an_answer_that_was_given_often_is_found_once(scenario: IndexScenario) -> None:
    for number in range(5):
        await scenario.say("The boiler needs a new valve, as I said.", who="agent", session=f"s{number}")
    query = MemoryQuery(text="boiler valve", agent="main", session="t", name="n", audience=ADA, person="ada")
    assert len(await scenario.provider().find(query)) == 1


async def test_the_name_of_the_other_side_is_not_a_topic(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may be called by a name that no author has."""
    for number in range(30):
        await scenario.say(f"Hey Melanie! The meeting number {number} is over.", session=f"m{number}")
    await scenario.say("I practise the violin every day.", who="agent", session="v")
    asked = "Which instrument does Melanie play?"
    assert (await scenario.find(asked))[0] == "I practise the violin every day."
    monkeypatch.setattr(candidates, "find_common_names", lambda *_, **__: set())
    assert (await scenario.find(asked))[0].startswith("Hey Melanie!")


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
    walked = _walk(scenario, "cup tea oolong", scope)
    assert [(term, len(rows)) for _, rows, term in walked] == [('"oolong"', 1)]
    common = _walk(scenario, "cup", scope)
    assert [(term, len(rows), rows[0]) for _, rows, term in common] == [('"cup"', 8, scope.chunks - 1)]  # the newest


def _walk(scenario: IndexScenario, text: str, scope: IndexScope) -> list[candidates.TermPostings]:
    db, queries = scenario.index._reader, candidates.build_term_queries(text)
    sampled = candidates.sample_terms(db, queries, scope.id, scope.chunks)
    return candidates.find_term_chunks(db, sampled, scope.id, scope.chunks)


ABOUT_ME = (
    "I live in Oslo.",
    "My dog is called Rex.",
    "I am allergic to peanuts.",
    "I work as a nurse at night.",
)


@pytest.mark.parametrize(
    "asked",
    [
        "What do you know about me?",
        "Tell me about myself",
        "Who am I?",
        "What do I like?",
        "What do I want?",
        "Was weißt du über mich?",
        "¿Qué sabes de mí?",
        "Que sais-tu de moi ?",
        "Что ты знаешь обо мне?",
        "O que você sabe sobre mim?",
        "तुम मेरे बारे में क्या जानते हो?",
        "ماذا تعرف عني؟",
        "你知道关于我的什么？",
        "私について何を知っていますか？",
        "나에 대해 뭘 알고 있니?",
    ],
)
async def test_a_question_about_oneself_finds_what_a_person_said_of_themselves(
    scenario: IndexScenario, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, text in enumerate(ABOUT_ME):
        await scenario.say(text, session=f"p{number}")
    for number in range(60):
        await scenario.say(f"The report number {number} has to be printed on paper.", session=f"s{number % 7}")
        await scenario.say(f"Report {number} is printed, and the paper is full.", session=f"s{number % 7}", who="agent")
    query = MemoryQuery(
        text=asked, agent="main", session="t", name="n", audience=ADA, person="ada", tokens=400, limit=40
    )
    found = [hit.text for hit in await scenario.provider().find(query)]
    assert set(ABOUT_ME) <= set(found[:8])
    monkeypatch.setattr(provider, "is_about_oneself", lambda _: False)
    assert not set(ABOUT_ME) <= {hit.text for hit in (await scenario.provider().find(query))[:8]}


async def test_notes_answer_a_question_about_oneself(scenario: IndexScenario) -> None:
    await scenario.note("likes dry biscuits")
    for number in range(20):
        await scenario.say(f"The report number {number} has to be printed.", session=f"s{number}")
    query = MemoryQuery(
        text="What do you know about me?", agent="main", session="t", name="n", audience=ADA, person="ada"
    )
    assert (await scenario.provider().find(query))[0].text == "likes dry biscuits"


@pytest.mark.parametrize("asked", ["Where do I live?", "Was ist mein Beruf?", "What is my dog called?", "Who is Rex?"])
def test_a_question_with_a_topic_is_not_about_oneself_alone(asked: str) -> None:
    assert not is_about_oneself(asked)


async def test_what_has_nothing_to_do_with_the_question_is_not_recalled(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a small store everything would fit."""
    told = "The boiler in the cellar was repaired by a plumber."
    others = ["We watched an opera.", "The exam went well.", "Cheese fondue tonight.", "Her violin is very old."]
    for number, text in enumerate([told, *others]):
        await scenario.say(text, session=f"s{number}")
    query = MemoryQuery(text="boiler plumber", agent="main", session="t", name="n", audience=ADA, person="ada")
    assert [hit.text for hit in await scenario.provider().find(query)] == [told]
    monkeypatch.setattr(ranking, "MIN_SCORE_SHARE", 0.0)
    monkeypatch.setattr(ranking, "_mask_relevant", lambda _arms, _owner, count: np.ones(count, np.bool_))
    assert len(await scenario.provider().find(query)) > 1
