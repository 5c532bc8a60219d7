"""Decides which hits of a remote memory the people present may see: each of them must be in the audience of the hit.

Services do not know audiences. So every item is sent with marks for its audience, and every hit is checked against
them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_UNSAFE_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]+")
_PERSON_PREFIX: Final = "person:"
_TEMPLATE_SEPARATOR: Final = re.compile(r"\{(?:agent|person)\}(.*)\{(?:agent|person)\}")


def get_only_person(audience: Sequence[str]) -> str:
    """Return the person if the audience is exactly one person, else an empty string."""
    return (
        audience[0].removeprefix(_PERSON_PREFIX)
        if len(audience) == 1 and audience[0].startswith(_PERSON_PREFIX)
        else ""
    )


def build_audience_marks(audience: Sequence[str]) -> dict[str, str]:
    """Return the metadata that marks an item with its audience, one mark for each member, so that a query can filter by
    any.
    """
    return {f"everhold_for_{_hash_text(one, 16)}": "yes" for one in audience}


def can_hear(present: Sequence[str], about: Mapping[str, Any]) -> bool:
    """Whether all of `present` were in the audience of the item with the metadata `about`. False for no one."""
    return bool(present) and all(about.get(mark) == value for mark, value in build_audience_marks(present).items())


def is_only_for(audience: Sequence[str], about: Mapping[str, Any]) -> bool:
    """Whether the item with the metadata `about` has exactly this audience. Items without marks, which everhold did not
    write, count as belonging to it.
    """
    heard_by = {name for name in about if name.startswith("everhold_for_")}
    return not heard_by or heard_by == set(build_audience_marks(audience))


def hash_audience(audience: Sequence[str]) -> str:
    """Return an audience as one id, for use as part of a name; empty for an empty audience."""
    if not audience:
        return ""
    return make_safe_id("|".join(sorted(audience)))


def expand_template(template: str, *, agent: str, audience: Sequence[str]) -> tuple[str, ...]:
    """Return the name that a template gives to an audience, then the name it gave before names were made unambiguous.

    A person whose name could be confused with a part of the agent's name (`a` and `b-c` look like `a-b` and `c`) gets a
    hash of both.
    """
    person = get_only_person(audience)
    text = template.replace("{agent}", agent).replace("{person}", person or hash_audience(audience) or "nobody")
    between = _TEMPLATE_SEPARATOR.search(template)
    if not person or between is None or (between[1] and set(between[1]).isdisjoint(person)):
        return (make_safe_id(text),)
    return make_safe_id(text, parts=f"{agent}\0{person}"), make_safe_id(text)


def make_safe_id(text: str, *, limit: int = 100, parts: str = "") -> str:
    """Return `text` as an id of `[A-Za-z0-9_-]`. A hash keeps ids different whose cleaned texts are equal.

    `parts` is hashed instead of the text where the text does not show what it was made of.
    """
    plain = _UNSAFE_CHARS.sub("-", text).strip("-")
    if plain == text and len(plain) <= limit and not parts:
        return plain
    return f"{plain[: limit - 11].rstrip('-')}-{_hash_text(parts or text, 10)}".lstrip("-")


def make_safe_id_prefix(text: str) -> str:
    """Return the part that the ids of all texts that begin with `text` have in common."""
    return _UNSAFE_CHARS.sub("-", text).strip("-")[:80]


def _hash_text(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
