"""Selects sentences: the one that answers a question, or a few that represent many.

It uses no model and no randomness. Words are counted and weighted, so the same text always gives the same sentences.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from everhold.core.tokens import weigh_text

_WORD: Final = re.compile("[^\\W_]+(?:['\u2019][^\\W_]+)?")
_SENTENCE_END: Final = re.compile("(?<=[.!?…])[\"'”\u2019)]*\\s+(?=[\"'“\u2018(]?[^\\Wa-z])|\\n+")
_BULLET: Final = re.compile("^\\s*(?:[-*•\u2013]|\\d{1,2}[.)])\\s+")
_SPEAKER: Final = re.compile(r"([^\s:\[\]{}\"][^:\n\[\]{}\"]{0,39}):(?: |$)")
_WIDE_SCRIPT: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")

_STOP_WORDS: Final = frozenset(
    "a about after again all also am an and any are as at be because been but by can could did do does doing done for "
    "from get got had has have he her hers him his how i if in into is it its just know let like may me might mine "
    "more most must my of on once one or our ours please said say shall she should so some such tell than that the "
    "their them then there these they this those to told too up us very was we were what when where which who whom "
    "whose why will with would you your yours remember recall again ever still now "
    "der die das den dem des ein eine einen einem einer und oder ist sind war bin bist ich du er sie es wir ihr mein "
    "meine dein deine was wer wie wo wann warum mit von zu im am auf für nicht auch noch".split()
)
_SUFFIXES: Final = ("'s", "\u2019s", "ingly", "ings", "ing", "edly", "ied", "ies", "ed", "es", "ly", "s", "e")

_CORRECTION: Final = re.compile(
    r"\b(?:actually|correction|instead|no longer|not any ?more|i was wrong|was wrong|i meant|scratch that|changed? "
    r"(?:it |that |my mind |to )|rather than|moved? to|doch nicht|stattdessen|korrektur)\b|^no[,.:] |^sorry",
    re.IGNORECASE,
)
_DECISION: Final = re.compile(
    r"\b(?:decided?|decision|agreed?|we(?:'ll| will| shall)|let's|going to|chose|chosen|picked|settled|use|using|must|"
    r"deadline|due|promised?|plan(?:ned)?|booked|confirmed?|approved?|shipped|deployed|merged|committed|sent|wrote|"
    r"created|deleted|fixed|failed|beschlossen|entschieden|vereinbart|termin)\b",
    re.IGNORECASE,
)
_PERSONAL: Final = re.compile(
    r"\b(?:my|name is|call me|i am|i'm|i live|i work|i like|i love|i hate|i prefer|i want|i need|allergic|favou?rite|"
    r"birthday|remember|always|never|mein|meine|ich bin|ich heiße)\b",
    re.IGNORECASE,
)
_OPEN: Final = re.compile(
    r"\b(?:todo|to do|open|pending|not yet|still|waiting|unclear|unknown|need to|have to|later|next|offen|noch)\b",
    re.IGNORECASE,
)
_EMPTY_TALK: Final = re.compile(
    r"^(?:hi|hello|hey|thanks?|thank you|ok(?:ay)?|yes|no|sure|great|good|fine|bye|got it|cool|nice|hallo|danke|ja|"
    r"nein|good (?:morning|evening|night))\b[\s\w,]{0,20}[.!…]*$",
    re.IGNORECASE,
)
_ORDER: Final = re.compile(
    r"^(?:please |can you |could you )*(?:use|call|run) (?:the )?tool\b|^(?:please )?(?:search|look) (?:for|up)\b|"
    r"^(?:who|what) are you|\bsummari[sz]e (?:this|it)|^/\w+|"
    r"^(?:I heard|I remember|From earlier|So far|[\w ]{1,40} said): ",
    re.IGNORECASE,
)
"""Requests to an assistant, and its quotes. Their content is found elsewhere."""
_IDENTIFIER: Final = re.compile(
    r"https?://\S+|(?<![\w.-])[\w.-]*[/\\][\w./\\-]+|\b\w+_\w+\b|\b[a-z]+[A-Z]\w*|@\w+|#\w+|`[^`]+`|\"[^\"]+\"|“[^“”]+”"
)
_NUMBER: Final = re.compile(r"\d[\d.,:/-]*")
_NAME: Final = re.compile(r"(?<![.!?:]\s)(?<!^)\b[A-ZÀ-ÖØ-Þ][\w-]+")
_MONTH: Final = re.compile(
    r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b(?:january|february|march|april|may|june|july|august|september|"
    r"october|november|december|today|tomorrow|yesterday|morning|evening|night|noon|o'clock)\b",
    re.IGNORECASE,
)
_PLACE: Final = re.compile(r"\b(?:in|at|on|under|near|behind|beside|inside|from|to)\b", re.IGNORECASE)


class SpokenLine(Struct, frozen=True, kw_only=True):
    """One sentence, its speaker, and where it was found."""

    text: str
    speaker: str = ""
    source: str = "said"
    """`said`, `recalled`, `summary`, `tool`, or `kept`: it stays beside the summary."""


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, without bullets. Each line is at least one sentence."""
    found = (_BULLET.sub("", part).strip() for part in _SENTENCE_END.split(text))
    return [part for part in found if part]


def extract_keywords(text: str) -> list[str]:
    """Return the meaningful words of a text, reduced to their stems; for scripts without spaces, pairs of
    characters."""
    out: list[str] = []
    for word in _WORD.findall(text.lower()):
        if word in _STOP_WORDS:
            continue
        if _WIDE_SCRIPT.search(word):
            out += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        else:
            out.append(_stem_word(word))
    return out


def parse_spoken_lines(transcript: str) -> list[SpokenLine]:
    """Parse `Ada: text` lines of a transcript or a summary. A line without a speaker belongs to the previous
    speaker."""
    lines: list[SpokenLine] = []
    speaker = ""
    for raw in transcript.split("\n"):
        text = _BULLET.sub("", raw).strip()
        if mark := _SPEAKER.match(text):
            speaker, text = mark[1].strip(), text[mark.end() :].strip()
        lines += [SpokenLine(text=sentence, speaker=speaker) for sentence in split_sentences(text)]
    return lines


def find_best_line(question: str, lines: Sequence[SpokenLine], *, asker: str = "") -> SpokenLine | None:
    """Return the line that most likely answers the question, or None. The newest of equal lines wins."""
    wanted = list(dict.fromkeys(extract_keywords(question)))
    if not wanted or not lines:
        return None
    stems = [frozenset(extract_keywords(f"{line.speaker} {line.text}")) for line in lines]
    spread = Counter(stem for line in stems for stem in line)
    rarity = {word: math.log(1 + len(lines) / (1 + spread[word])) for word in wanted}
    whole = sum(rarity.values())
    found: tuple[float, int] | None = None
    for index, (line, has) in enumerate(zip(lines, stems, strict=True)):
        hit = sum(rarity[word] for word in wanted if word in has)
        if not hit or line.text.rstrip(" \"'”").endswith("?"):
            continue
        score = hit / whole + _score_fit(question, line, asker) + 0.1 * index / len(lines)
        if hit / whole >= 0.3 and (found is None or (score, index) >= found):
            found = (score, index)
    return lines[found[1]] if found else None


def select_key_lines(lines: Sequence[SpokenLine], *, tokens: int) -> list[SpokenLine]:
    """Return the lines worth keeping, in order, within a token limit. A corrected line is dropped before its
    correction."""
    first: dict[str, SpokenLine] = {}
    for line in lines:
        first.setdefault(" ".join(line.text.split()).lower(), line)
    lines = list(first.values())
    scores = [_score_line(line, index, len(lines)) for index, line in enumerate(lines)]
    stems = [frozenset(extract_keywords(line.text)) for line in lines]
    for later, line in enumerate(lines):
        if _CORRECTION.search(line.text):
            for earlier in range(later):
                if _compute_overlap(stems[earlier], stems[later]) >= 0.3 and not _CORRECTION.search(
                    lines[earlier].text
                ):
                    scores[earlier] -= 4
    kept: list[int] = []
    left = tokens
    for index in sorted(range(len(lines)), key=lambda i: (-scores[i], i)):
        cost = weigh_text(lines[index].text) + weigh_text(lines[index].speaker) + 2
        if scores[index] <= 0 or cost > left:
            continue
        if any(_compute_overlap(stems[index], stems[other]) > 0.8 for other in kept):
            continue
        kept.append(index)
        left -= cost
    return [lines[index] for index in sorted(kept)]


def _score_line(line: SpokenLine, index: int, count: int) -> float:
    text = line.text
    if _EMPTY_TALK.match(text) or _ORDER.search(text) or len(text) < 4:
        return -5.0
    score = 1.0 + 0.5 * index / max(1, count)
    score += 1.5 * min(3, len(_NUMBER.findall(text)))
    score += 1.0 * min(4, len(_NAME.findall(text)) + len(_IDENTIFIER.findall(text)))
    score += 4.0 * bool(_CORRECTION.search(text))
    score += 3.0 * bool(_DECISION.search(text))
    score += 3.0 * bool(_PERSONAL.search(text))
    score += 1.5 * bool(_OPEN.search(text))
    if text.rstrip().endswith("?"):  # a late question may still be open; an early one was answered
        score += 2.5 if index >= 0.75 * count else -3.0
    score += {"summary": 3.0, "tool": -1.0}.get(line.source, 0.0)
    score -= 4.0 * (line.speaker.lower() in ("assistant", "agent", "tool"))
    return score - max(0, len(text) - 300) / 150


def _score_fit(question: str, line: SpokenLine, asker: str) -> float:
    """Return the weight from the kind of question and the asker."""
    asked, text = question.lower(), line.text
    fit = 0.15 * bool(_CORRECTION.search(text)) + 0.1 * (line.source == "recalled")
    if re.search(r"\b(?:my|i|me|mine)\b", asked):
        fit += 0.15 * (bool(asker) and line.speaker == asker)
    if re.search(r"\bwhen|what (?:time|day|date)|how long", asked):
        fit += 0.2 * bool(_MONTH.search(text) or _NUMBER.search(text))
    elif re.search(r"\bhow (?:many|much|old|far)|number|which (?:port|version)", asked):
        fit += 0.2 * bool(_NUMBER.search(text))
    elif re.search(r"\bwho\b|\bwhose\b", asked):
        fit += 0.1 * bool(_NAME.search(text))
    elif re.search(r"\bwhere\b", asked):
        fit += 0.15 * bool(_PLACE.search(text))
    return fit


def _compute_overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / min(len(one), len(other)) if one and other else 0.0


def _stem_word(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


def format_bullets(lines: Iterable[SpokenLine]) -> str:
    return "\n".join(f"- {line.speaker}: {line.text}" if line.speaker else f"- {line.text}" for line in lines)
