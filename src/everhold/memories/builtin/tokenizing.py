"""Splits text into chunks and words, lists stop words, and handles scripts without spaces. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

CHUNK_CHARS: Final = 800
"""Characters of a long message that form one chunk."""

MAX_BARE_CHARS: Final = 120
"""A longer text always says something."""
MIN_TELLING_WORDS: Final = 2
MIN_CLAUSE_WORDS: Final = 3
_CLAUSE_BREAK: Final = re.compile(r"[,;:\u3001\uff0c\u060c]|\s[-\u2013\u2014]\s")
QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f", "\u037e")
"""Latin, full-width, Arabic and Greek."""
_SENTENCE: Final = re.compile(
    r"[^.!?\u3002\uff01\uff1f\u061f\u037e\u0964\n]++[.!?\u3002\uff01\uff1f\u061f\u037e\u0964]*+"
)
_WORD_CHAR: Final = re.compile(r"\w")

_MARKS: Final = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u07fd\u0816-\u082d\u0859-\u085b"
    "\u0890-\u0963\u0971-\u0df3\u0f18-\u0fc6\u135d-\u135f\u1712-\u1773\u180b-\u180f\u1885\u1886\u18a9\u1920-\u193b\u1a17-\u1cff\u1dc0-\u1dff"
)
"""Vowel signs and accents are parts of words. Some ranges are wider: full text splits such a word, and finds its parts
one after another.
"""
_WORD: Final = re.compile(f"(?:[^\\W_]|[{_MARKS}])+")
_BREAKS: Final = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s*"),
    re.compile(r"\s"),
)

# Scripts without spaces between words, and Hangul, whose words carry their endings.
_DENSE_SCRIPT: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)

MIN_ARABIC_STEM: Final = 3
_ARABIC: Final = re.compile("[\u0620-\u064a]")
_ARABIC_MARK: Final = re.compile("[\u0640\u064b-\u065f\u0670]")
_ARABIC_LETTERS: Final = str.maketrans("أإآىةؤئ", "اااييوي")
_ARABIC_PREFIXES: Final = "وال بال كال فال لل ال و ب ل ف".split()
_ARABIC_SUFFIXES: Final = "هما كما تين ها هم كم نا ان ات ون ين ته تي ه ي ت ك ا".split()
MAX_ARABIC_PREFIXES, MAX_ARABIC_SUFFIXES = 3, 2

STOP_WORDS: Final = frozenset(
    """
    a about after again all also am an and any are aren as at be because been before being between both but by can
    cannot could couldn d did didn do does doesn doing don done down during each else ever every few for from further
    get gets getting give go going got had hadn has hasn have haven having he her here hers herself him himself his how
    however i if in into is isn it its itself just know let like ll m made make many may me might mine more most much
    must my myself no nor not now of off on once one only or other our ours ourselves out over own part please re s
    said same say says shall she should shouldn since so some still such t tell than that the their theirs them
    themselves then there these they thing things this those through to too under until up upon us use used ve very
    want was wasn we were weren what when where whether which while who whom whose why will with within without won
    would wouldn yes yet you your yours yourself yourselves
    """.split()
)


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, in order."""
    return _WORD.findall(text.lower())


def extract_content_words(text: str) -> list[str]:
    """Return the words that are not stop words, each once; all words if all are stop words."""
    found = list(dict.fromkeys(split_words(text)))
    return [word for word in found if word not in STOP_WORDS] or found


def find_capitalised_words(text: str) -> set[str]:
    """Return, in lower case, the words that begin with a capital letter and go on in small ones."""
    return {
        word.lower()
        for word in _WORD.findall(text)
        if word[0].isupper() and word[1:].islower() and word.lower() not in STOP_WORDS
    }


def has_content_words(text: str) -> bool:
    """Whether a text has a word to search for."""
    return any(word not in STOP_WORDS for word in split_words(text))


def build_bigram_text(text: str) -> str:
    """Return overlapping character pairs of the parts written without spaces, where most words have two characters.

    The last character of a run is also added alone, so that a search for words that begin with it finds it.
    """
    return " ".join(pair for run in _find_dense_runs(text) for pair in dict.fromkeys([*_split_bigrams(run), run[-1]]))


def build_hidden_terms(text: str) -> str:
    """Return what a text can be found by beside its words: character pairs, and stems of Arabic words."""
    pairs = build_bigram_text(text)
    if text.isascii() or not _ARABIC.search(text):
        return pairs
    stems = dict.fromkeys(cut_arabic_affixes(word) for word in _WORD.findall(text) if _ARABIC.match(word))
    return " ".join([pairs, *stems]) if pairs else " ".join(stems)


def is_arabic(word: str) -> bool:
    return _ARABIC.match(word) is not None


def cut_arabic_affixes(word: str) -> str:
    """Return an Arabic word without article, prepositions and endings, marked so that it equals no whole word."""
    stem = _ARABIC_MARK.sub("", word).translate(_ARABIC_LETTERS)
    for _ in range(MAX_ARABIC_PREFIXES):
        known = (prefix for prefix in _ARABIC_PREFIXES if stem.startswith(prefix))
        stem = next((rest for prefix in known if len(rest := stem[len(prefix) :]) >= MIN_ARABIC_STEM), stem)
    for _ in range(MAX_ARABIC_SUFFIXES):
        known = (suffix for suffix in _ARABIC_SUFFIXES if stem.endswith(suffix))
        stem = next((rest for suffix in known if len(rest := stem[: -len(suffix)]) >= MIN_ARABIC_STEM), stem)
    return f"{stem}0"


def build_bigram_queries(text: str) -> list[str]:
    """Return the pairs to search in `grams`, each once. A single character matches every pair that begins with it."""
    return list(dict.fromkeys(pair for run in _find_dense_runs(text) for pair in _split_bigrams(run)))


def is_bare_question(text: str) -> bool:
    """Whether a short text only asks: every sentence is a question of one clause. A question with a number or with two
    longer clauses usually tells something, too.
    """
    if len(text) > MAX_BARE_CHARS or any(map(str.isdigit, text)):
        return False
    sentences = list(filter(_WORD_CHAR.search, _SENTENCE.findall(text)))
    return bool(sentences) and all(map(_is_one_clause_question, sentences))


def _is_one_clause_question(sentence: str) -> bool:
    clauses = [clause for clause in _CLAUSE_BREAK.split(sentence) if len(clause.split()) >= MIN_CLAUSE_WORDS]
    return sentence.rstrip().endswith(QUESTION_MARKS) and len(clauses) < 2


def is_acknowledgement(text: str) -> bool:
    """Whether a text has hardly a word that says something, and no number."""
    if len(text) > MAX_BARE_CHARS or any(map(str.isdigit, text)):
        return False
    words = [word for word in dict.fromkeys(split_words(text)) if word not in STOP_WORDS]
    return len(words) < MIN_TELLING_WORDS and not _find_dense_runs(text)


def remove_words(text: str, words: Collection[str]) -> str:
    """Return the words of a text, as they are written, without these."""
    return " ".join(word for word in _WORD.findall(text) if word.lower() not in words)


def remove_names(text: str, names: Iterable[str]) -> str:
    """Return `text` without these names and their possessives, because a name says whose words are wanted, not their
    topic.
    """
    parts = sorted({re.escape(name) for name in names if name}, key=len, reverse=True)
    if not parts:
        return text
    left = re.sub(rf"(?<!\w)(?:{'|'.join(parts)})(?:['\u2019]s?)?(?!\w)", " ", text, flags=re.IGNORECASE)
    return left if _WORD.search(left) else text


def split_chunks(text: str, size: int = CHUNK_CHARS) -> list[str]:
    """Split the text into pieces of about `size` characters at natural breaks. Joined, the pieces are the text."""
    pieces: list[str] = []
    start = 0
    while len(text) - start > size + size // 4:
        cut = _find_break(text, start + size // 2, start + size)
        pieces.append(text[start:cut])
        start = cut
    pieces.append(text[start:])
    return pieces


def _find_break(text: str, low: int, high: int) -> int:
    for pause in _BREAKS:
        last = 0
        for match in pause.finditer(text, low, high):
            last = match.end()
        if last > low:
            return last
    return high


def _find_dense_runs(text: str) -> list[str]:
    return [] if text.isascii() else _DENSE_SCRIPT.findall(text)


def _split_bigrams(run: str) -> list[str]:
    return [run] if len(run) == 1 else [run[at : at + 2] for at in range(len(run) - 1)]
