"""Find claims that something was never said or is not known. They are recognised by their wording, so that the log can
be searched before such a claim is accepted.
"""

from __future__ import annotations

import re
from typing import Final

_ABSENCE_CLAIM: Final = re.compile(
    r"\b(?:no (?:record|memory|recollection|mention|knowledge|information|trace|evidence)\b(?: (?:of|about|on|that))?"
    r"|(?:never|not) (?:been )?(?:mentioned|discussed|said|told|talked about|heard|asked|stated|agreed|decided)\b"
    r"(?: (?:about|of))?"
    r"|(?:don't|do not|doesn't|does not|didn't|did not|can't|cannot) (?:remember|recall|know|have)\b"
    r"(?: (?:anything|any))?(?: (?:about|of))?"
    r"|(?:keine (?:aufzeichnung|erinnerung|kenntnis|information)(?:en)?\b(?: (?:an|über|von|zu))?)"
    r"|(?:nie|niemals|nicht) (?:erwähnt|besprochen|gesagt|gehört)\b)",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[^\W_][\w'-]{2,}")
_STOP_WORDS: Final = frozenset(
    "the and for with that this was were has have had been about from any anything there here they them their user her "
    "his its our your him she you person said say says mention mentioned conversation session log ever before what "
    "which when where who how are der die das und für mit dass von über den dem ein eine".split()
)


def extract_denied_words(text: str) -> tuple[str, ...]:
    """Return the words that a claim of absence is about; empty if the text makes no such claim."""
    match = _ABSENCE_CLAIM.search(text)
    if match is None:
        return ()
    # The missing thing usually follows the claim ("never mentioned her sister"), else it precedes it.
    return _extract_content_words(text[match.end() :]) or _extract_content_words(text[: match.start()])


def _extract_content_words(text: str) -> tuple[str, ...]:
    words = (word.lower() for word in _WORD.findall(text))
    return tuple(dict.fromkeys(word for word in words if word not in _STOP_WORDS))


def is_denial_contradicted(about: tuple[str, ...], said: str) -> bool:
    """Return whether `said` contradicts a claim of absence: it contains most of the claim's words."""
    if not about:
        return False
    text = said.lower()
    there = sum(word in text for word in about)
    return there >= max(1, (2 * len(about) + 2) // 3)
