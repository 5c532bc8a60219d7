"""Later words on a topic replace earlier ones, if their wording says so, and nothing else does."""

from __future__ import annotations

import pytest

from everhold.core import statements
from everhold.core.statements import find_replacement, read_statements

UPDATES = [
    ("I live in Berlin, near the canal.", "Good news: we've moved to Oslo!"),
    ("Ich wohne in Berlin.", "Ich bin jetzt nach Oslo gezogen."),
    ("Vivo en Berlín.", "Me mudé a Oslo."),
    ("J'habite à Berlin.", "J'ai déménagé à Oslo."),
    ("Moro em Berlim.", "Mudei para Oslo."),
    ("Abito a Berlino.", "Mi sono trasferita a Oslo."),
    ("Я живу в Берлине.", "Я переехала в Осло."),
    ("मैं बर्लिन में रहता हूँ।", "मैं अब ओस्लो में रहता हूँ।"),
    ("أعيش في برلين.", "انتقلت إلى أوسلو."),
    ("我住在柏林。", "我搬到了奥斯陆。"),
    ("ベルリンに住んでいます。", "オスロに引っ越しました。"),
    ("저는 베를린에 살아요.", "저는 오슬로로 이사했어요."),
    ("I work at Siemens.", "I've started a new job at Bosch."),
    ("Ich arbeite bei Siemens.", "Ich arbeite jetzt bei Bosch."),
    ("Trabajo en una panadería.", "Ahora trabajo en una escuela."),
    ("My phone number is 0151 23.", "My new phone number is 0160 77."),
    ("Meine Adresse ist Hauptstraße 1.", "Meine neue Adresse ist Nebenweg 2."),
    ("Mi número es 12.", "Mi nuevo número es 15."),
    ("Mon adresse est rue Haute 1.", "Ma nouvelle adresse est rue Basse 2."),
    ("The standup is at ten.", "The standup was moved to eleven."),
    ("The rent is 900 euros.", "The rent is 950 euros."),
    ("I drink coffee.", "I don't drink coffee any more."),
    ("Ich trinke Kaffee.", "Ich trinke keinen Kaffee mehr."),
    ("Yo bebo café.", "Yo ya no bebo café."),
    ("Je bois du café.", "Je ne bois plus de café."),
    ("Я пью кофе.", "Я больше не пью кофе."),
    ("I'm vegetarian.", "I am no longer vegetarian."),
    ("I live in Berlin.", "I no longer live in Berlin."),
    ("Tom lives in Berlin.", "Tom moved to Oslo."),
    ("Lives in Berlin.", "The user moved to Oslo."),
]
UNRELATED = [
    ("I live in Berlin.", "I live in Berlin."),
    ("I live in Berlin.", "Do I live in Oslo?"),
    ("I live in Berlin.", "I moved to the next chapter."),
    ("I live in Berlin.", "Tom moved to Oslo."),
    ("I live in Berlin.", "They moved to Oslo."),
    ("I live in Oslo.", "I no longer live in Berlin."),
    ("I live in Berlin.", "I work at Bosch."),
    ("My dog is called Rex.", "My dog is tired."),
    ("My sister is a nurse.", "My sister is in Rome."),
    ("I drink coffee.", "I drink tea."),
    ("I drink coffee.", "I don't drink tea."),
    ("The kitchen is nice.", "The kitchen is dirty."),
    ("My phone number is 12.", "My birthday is in May."),
]


@pytest.mark.parametrize("older, newer", UPDATES)
def test_later_words_replace_earlier_ones(older: str, newer: str) -> None:
    assert find_replacement(read_statements(older), read_statements(newer))


@pytest.mark.parametrize("older, newer", UNRELATED)
def test_other_words_replace_nothing(older: str, newer: str) -> None:
    assert not find_replacement(read_statements(older), read_statements(newer))


def test_a_name_may_stand_for_the_author() -> None:
    facts = "Ada lives in Berlin.", "Ada moved to Oslo."
    older, newer = (read_statements(text, subjects=("ada",)) for text in facts)
    assert older[0].topic == "i|home"
    assert find_replacement(older, newer)


def test_the_last_words_of_a_text_count() -> None:
    (one,) = read_statements("I live in Berlin. No, I live in Oslo.")
    assert one.value == "oslo"


def test_a_long_text_is_read_only_at_its_beginning() -> None:
    text = "Nothing of note. " * statements.MAX_CLAUSES + "I live in Oslo."
    assert read_statements(text) == ()


def test_a_long_clause_is_not_read() -> None:
    assert read_statements("I live in Oslo")
    assert read_statements("I live in " + "Oslo " * statements.MAX_CLAUSE_CHARS) == ()
