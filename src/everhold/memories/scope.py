"""Who may hear of something that a remote memory found: only those who were there, everybody who is present now.

Services know nothing of audiences, so what is sent carries its own, and what comes back is held against it.
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
    """The person, if nobody else is present; else nothing."""
    return (
        audience[0].removeprefix(_PERSON_PREFIX)
        if len(audience) == 1 and audience[0].startswith(_PERSON_PREFIX)
        else ""
    )


def build_audience_marks(audience: Sequence[str]) -> dict[str, str]:
    """What is written on something that was heard by these: one mark for each, so that it can be asked for by any."""
    return {f"everhold_for_{_hash_text(one, 16)}": "yes" for one in audience}


def can_hear(present: Sequence[str], about: Mapping[str, Any]) -> bool:
    """Whether everybody present was there when what carries `about` was said. Nobody hears nothing."""
    return bool(present) and all(about.get(mark) == value for mark, value in build_audience_marks(present).items())


def is_only_for(audience: Sequence[str], about: Mapping[str, Any]) -> bool:
    """Whether nobody else heard what carries `about`. What others than us put there is theirs whose place it is."""
    heard_by = {name for name in about if name.startswith("everhold_for_")}
    return not heard_by or heard_by == set(build_audience_marks(audience))


def hash_audience(audience: Sequence[str]) -> str:
    """An audience as one word, for where it is part of a name; empty for nobody."""
    if not audience:
        return ""
    return make_safe_id("|".join(sorted(audience)))


def expand_template(template: str, *, agent: str, audience: Sequence[str]) -> tuple[str, ...]:
    """What a template calls the place of those who are present; then what it was called while others could share it.

    Somebody whose name could be part of the agent's (`a` and `b-c` look like `a-b` and `c`) gets a hash of both.
    """
    person = get_only_person(audience)
    text = template.replace("{agent}", agent).replace("{person}", person or hash_audience(audience) or "nobody")
    between = _TEMPLATE_SEPARATOR.search(template)
    if not person or between is None or (between[1] and set(between[1]).isdisjoint(person)):
        return (make_safe_id(text),)
    return make_safe_id(text, parts=f"{agent}\0{person}"), make_safe_id(text)


def make_safe_id(text: str, *, limit: int = 100, parts: str = "") -> str:
    """`text` as an id of `[A-Za-z0-9_-]`, no two alike: a hash tells apart what cleaning made the same.

    `parts` is what to hash where even the text does not tell what it was made of.
    """
    plain = _UNSAFE_CHARS.sub("-", text).strip("-")
    if plain == text and len(plain) <= limit and not parts:
        return plain
    return f"{plain[: limit - 11].rstrip('-')}-{_hash_text(parts or text, 10)}".lstrip("-")


def make_safe_id_prefix(text: str) -> str:
    """How the handle begins of whatever begins with `text`, as far as that can be told."""
    return _UNSAFE_CHARS.sub("-", text).strip("-")[:80]


def _hash_text(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
