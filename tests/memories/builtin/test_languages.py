"""Recall in other languages than English: the language of a question, its topic, endings of words, and vowel signs."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from bench.recall import parallel
from everhold.memories.builtin import candidates, embeddings, rank_fusion, schema
from everhold.memories.builtin.languages import find_language, select_topic
from everhold.memories.builtin.tokenizing import build_bigram_queries, cut_arabic_affixes, split_words
from tests.memories.builtin.index_scenario import IndexScenario

FLOORS = {
    "en": 0.95, "ar": 0.92, "de": 0.9, "es": 0.9, "fr": 0.9, "hi": 0.9, "ja": 0.9, "ko": 0.88, "pt": 0.9,
    "ru": 0.87, "zh": 0.86,
}  # fmt: skip


@pytest.fixture
async def scenario(tmp_path: Path) -> AsyncIterator[IndexScenario]:
    scenario = IndexScenario(tmp_path, embeddings="table")
    yield scenario
    await scenario.close()


@pytest.mark.parametrize("language", list(FLOORS))
async def test_facts_are_found_in_every_language(language: str) -> None:
    score = await parallel.measure(language, use="table", half="tuning")
    assert score.questions == parallel.TUNING_PAIRS
    assert score.at_5.mean >= FLOORS[language], score.missed


async def test_the_languages_have_the_same_facts() -> None:
    assert set(parallel.list_languages()) == set(FLOORS)
    assert len({len(parallel.read_pairs(language)) for language in FLOORS}) == 1
    for language in FLOORS:
        pairs = parallel.read_pairs(language)
        assert all(fact and question for fact, question in pairs)
        assert len({fact for fact, _ in pairs}) == len(pairs) == len({question for _, question in pairs})


@pytest.mark.parametrize(
    "language, planted",
    [
        ("ru", (candidates, "BEGINNING_SHARE", 1.0)),
        ("ar", (candidates, "cut_arabic_affixes", str)),
        ("de", (embeddings, "select_topic", lambda text, _: text)),
        ("zh", (rank_fusion, "FOREIGN_WEIGHTS", rank_fusion.STATIC_WEIGHTS)),
        ("ja", (embeddings, "find_language", lambda _: "")),
    ],
)
async def test_each_rule_is_needed(
    language: str, planted: tuple[object, str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*planted)
    assert (await parallel.measure(language, use="table", half="tuning")).at_5.mean < FLOORS[language]


@pytest.mark.parametrize(
    "text, language",
    [
        ("What did we plant in the garden?", ""),
        ("Did Maria die in Las Vegas?", ""),
        ("Who is Ana, and where is she from?", ""),
        ("Was haben wir im Garten gepflanzt?", "de"),
        ("¿Qué temo?", "es"),
        ("Où vit Sofia ?", "fr"),
        ("Onde está a chave da minha avó?", "pt"),
        ("Cosa abbiamo piantato nel giardino?", "it"),
        ("Где мой ключ?", "ru"),
        ("कुत्ता?", "hi"),
        ("أين المفتاح؟", "ar"),
        ("鍵はどこ？", "ja"),
        ("钥匙在哪里？", "zh"),
        ("열쇠는 어디에 있지?", "ko"),
    ],
)
def test_the_language_of_a_question(text: str, language: str) -> None:
    assert find_language(text) == language


@pytest.mark.parametrize(
    "text, topic",
    [
        ("Wo wohnt mein Bruder?", "wohnt Bruder"),
        ("かばんはどこ？", "かばんは ？"),  # the first syllable is a particle elsewhere
        ("鍵はどこにある？", "鍵 ある？"),
        ("Wo war ich?", "Wo war ich?"),  # nothing else is left
    ],
)
def test_the_topic_of_a_question(text: str, topic: str) -> None:
    assert select_topic(text, find_language(text)).split() == topic.split()


@pytest.mark.parametrize(
    "word, other",
    [
        ("السيارة", "سيارتي"),
        ("المفتاح", "مفتاحي"),
        ("والكتاب", "كتابها"),
        ("مدرسة", "المدرسة"),
        ("كلبنا", "الكلب"),
        ("مُدَرِّس", "مدرس"),
    ],
)
def test_arabic_words_are_found_without_their_affixes(word: str, other: str) -> None:
    assert cut_arabic_affixes(word) == cut_arabic_affixes(other)


@pytest.mark.parametrize(
    "said, asked",
    [
        ("Я потерял кошелёк в такси.", "Где мои кошельки?"),
        ("Die Straße wird im Mai gesperrt.", "Welche Straßen sind gesperrt?"),
        ("আমার কুকুর মাছ খায়।", "কুকুর"),
        ("எனது நாய் மீன் சாப்பிடும்.", "நாய்"),
        ("יֵשׁ לִי כֶּלֶב", "כֶּלֶב"),
        ("E\u0301cole buissonnie\u0300re", "École"),
    ],
)
async def test_a_word_with_an_ending_a_vowel_sign_or_an_accent_is_found(
    scenario: IndexScenario, said: str, asked: str
) -> None:
    await scenario.say(said)
    await scenario.say("Something else, of which nobody asked anything.", session="other")
    assert (await scenario.find(asked))[:1] == [said]


def test_words_are_split_no_finer_than_full_text_splits_them() -> None:
    """Otherwise a word of the question is in no text. A coarser word is a phrase for full text, and is found."""
    db = apsw.Connection(":memory:")
    tokenizer = " ".join((schema.TOKENIZER[0], *schema.TOKENIZER[1]))
    db.execute(f'create virtual table words using fts5 (text, tokenize="{tokenizer}")')
    db.execute("create virtual table parts using fts5vocab (words, instance)")
    marks = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Mn", "Mc") and c < "\u2000"]
    marks = [mark for mark in marks if not build_bigram_queries(mark)]
    assert len(marks) > 500
    finer = []
    for mark in marks:
        db.execute("delete from words")
        db.execute("insert into words values (?)", (f"ka{mark}pa",))
        if db.execute("select count(*) from parts").get == 1 and len(split_words(f"ka{mark}pa")) > 1:
            finer.append(mark)
    assert finer == []
