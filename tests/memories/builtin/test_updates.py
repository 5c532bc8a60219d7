"""Later words come before what they make outdated, which is marked. Each rule, and the result without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import EntryDraft, Noted, Stamp
from everhold.memories.builtin import index, indexing, updates
from everhold.memories.builtin.languages import is_about_changes
from everhold.memories.builtin.rank_fusion import DAY_SECONDS
from everhold.ports.memory import MemoryHit, MemoryQuery
from tests.memories.builtin.index_scenario import ADA, IndexScenario

OLD, NEW = "I live in Berlin, close to the canal.", "We moved to Oslo!"
BOTH = ("person:ada", "person:bob")


@pytest.fixture
async def scenario(tmp_path: Path) -> AsyncIterator[IndexScenario]:
    scenario = IndexScenario(tmp_path, embeddings="table")
    yield scenario
    await scenario.close()


async def fill(scenario: IndexScenario) -> None:
    for number in range(30):
        await scenario.say(f"The boiler was serviced once more, says report {number}.", session=f"z{number}")


async def recall(scenario: IndexScenario, text: str, *, audience: tuple[str, ...] = ADA) -> list[MemoryHit]:
    query = MemoryQuery(
        text=text,
        agent="main",
        session="now",
        name="n",
        audience=audience,
        person="ada",
        limit=8,
        asked_at=203 * DAY_SECONDS,
    )
    return list(await scenario.provider().find(query))


async def test_the_latest_words_come_first_and_older_ones_are_marked(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(scenario)
    await scenario.say(OLD, session="a", at=10 * DAY_SECONDS)
    seq = await scenario.say(NEW, session="b", at=90 * DAY_SECONDS)
    first, second, *_ = await recall(scenario, "Where do I live?")
    assert (first.text, first.until, first.replaced_by) == (NEW, 0.0, "")
    assert (second.text, second.until, second.replaced_by) == (OLD, 90 * DAY_SECONDS, f"b:{seq}")
    monkeypatch.setattr(index, "order_by_updates", lambda finder, found, **_: (list(found), {}))
    assert (await recall(scenario, "Where do I live?"))[0].text == OLD


async def test_what_was_said_again_holds_again(scenario: IndexScenario) -> None:
    for at, text in enumerate((OLD, NEW, "I live in Berlin again."), 1):
        await scenario.say(text, session=f"s{at}", at=at * DAY_SECONDS)
    hits = {hit.session: hit.until for hit in await recall(scenario, "Where do I live?")}
    assert hits == {"s1": 2 * DAY_SECONDS, "s2": 3 * DAY_SECONDS, "s3": 0.0}


async def test_only_its_author_makes_words_outdated(scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    await scenario.say(OLD, audience=BOTH, at=DAY_SECONDS)
    await scenario.say(NEW, audience=BOTH, who="bob", at=2 * DAY_SECONDS)
    assert [hit.until for hit in await recall(scenario, "Where do I live?") if hit.text == OLD] == [0.0]
    monkeypatch.setattr(updates, "_map_members", lambda present: dict.fromkeys(BOTH, "person:ada"))
    assert [hit.until for hit in await recall(scenario, "Where do I live?") if hit.text == OLD] == [2 * DAY_SECONDS]


async def test_words_for_another_audience_change_nothing(scenario: IndexScenario) -> None:
    """What Ada told only Bob must not show in a chat with somebody else, not even as a date."""
    others = ("person:ada", "person:caro")
    await scenario.say(OLD, audience=others, at=DAY_SECONDS)
    await scenario.say(NEW, audience=BOTH, session="b", at=2 * DAY_SECONDS)
    assert [(hit.text, hit.until) for hit in await recall(scenario, "Where do I live?", audience=others)] == [
        (OLD, 0.0)
    ]


async def test_replies_and_foreign_texts_make_nothing_outdated(scenario: IndexScenario) -> None:
    await scenario.say(OLD, at=DAY_SECONDS)
    await scenario.say("I moved to Rome.", who="agent", at=2 * DAY_SECONDS)
    body = Noted(text="I moved to Paris.", origin="tool:fetch", stamp=Stamp(person="ada", audience=ADA))
    await scenario._put(EntryDraft(body=body, author="agent:main"), "s", 3 * DAY_SECONDS)
    assert [hit.until for hit in await recall(scenario, "Where do I live?") if hit.text == OLD] == [0.0]


async def test_a_note_that_quotes_a_message_is_as_old_as_the_message(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    cited = await scenario.say(OLD, at=DAY_SECONDS)
    await scenario.say(NEW, at=2 * DAY_SECONDS)
    body = Noted(text=OLD, cites=(cited,), stamp=Stamp(person="ada", audience=ADA))
    await scenario._put(EntryDraft(body=body, author="system"), "s", 3 * DAY_SECONDS)
    hits = await recall(scenario, "Where do I live?")
    assert {hit.until for hit in hits if hit.text == OLD} == {2 * DAY_SECONDS}
    assert hits[0].text == NEW
    monkeypatch.setattr(indexing.IndexWriter, "_find_time", lambda self, entry: entry.at)
    await scenario.index.rebuild()
    assert (await recall(scenario, "Where do I live?"))[0].text == OLD


async def test_erased_and_undone_words_make_nothing_outdated(scenario: IndexScenario) -> None:
    await scenario.say(OLD, session="a", at=DAY_SECONDS)
    seq = await scenario.say(NEW, session="b", at=2 * DAY_SECONDS)
    assert (await recall(scenario, "Where do I live?"))[0].text == NEW
    await scenario.erase_entries(seq, session="b")
    assert [(hit.text, hit.until) for hit in await recall(scenario, "Where do I live?")] == [(OLD, 0.0)]
    assert b"oslo" not in scenario.files().lower()


async def test_what_changed_is_answered_with_the_changes(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(scenario)
    await scenario.say(OLD, session="a", at=10 * DAY_SECONDS)
    await scenario.say("I drink coffee.", session="a", at=11 * DAY_SECONDS)
    await scenario.say(NEW, session="b", at=90 * DAY_SECONDS)
    await scenario.say("I don't drink coffee any more.", session="c", at=201 * DAY_SECONDS)
    texts = [hit.text for hit in await recall(scenario, "What has changed?")]
    assert texts[:4] == ["I don't drink coffee any more.", "I drink coffee.", NEW, OLD]
    texts = [hit.text for hit in await recall(scenario, "What has changed this week?")]
    assert texts[:2] == ["I don't drink coffee any more.", "I drink coffee."]
    assert texts[2:4] != [NEW, OLD]
    monkeypatch.setattr("everhold.memories.builtin.provider.is_about_changes", lambda text: False)
    assert "I drink coffee." not in [hit.text for hit in await recall(scenario, "What has changed?")]


@pytest.mark.parametrize(
    "text",
    [
        "What's new with me?",
        "Was hat sich bei mir geändert?",
        "¿Qué ha cambiado?",
        "Qu'est-ce qui a changé ?",
        "O que mudou?",
        "Что изменилось?",
        "क्या बदला है?",
        "ما الذي تغير؟",
        "最近有什么变化?",
        "何が変わりましたか?",
        "뭐가 바뀌었나요?",
    ],
)
def test_questions_about_changes_are_recognised(text: str) -> None:
    assert is_about_changes(text)


@pytest.mark.parametrize(
    "text", ["What changed in the budget?", "How do I change a tyre?", "Where do I live?", "什么?"]
)
def test_other_questions_are_not_about_changes(text: str) -> None:
    assert not is_about_changes(text)


async def test_a_message_in_the_context_is_not_repeated_as_the_latest_words(scenario: IndexScenario) -> None:
    await scenario.say(OLD, session="a", at=DAY_SECONDS)
    seq = await scenario.say(NEW, session="now", at=2 * DAY_SECONDS)
    found: list[Any] = await scenario.index.search(
        scenario.log, "Where do I live?", agent="main", audience=ADA, here="now", seen=(seq,), for_turn=True
    )
    assert [(hit.text, hit.until) for hit in found] == [(OLD, 2 * DAY_SECONDS)]
