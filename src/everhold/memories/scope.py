"""Who may hear of something that a remote memory found: only those who were there, everybody who is present now.

Services know nothing of audiences, so what is sent carries its own, and what comes back is held against it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]+")
_PERSON: Final = "person:"


def alone(audience: Sequence[str]) -> str:
    """The person, if nobody else is present; else nothing."""
    return audience[0].removeprefix(_PERSON) if len(audience) == 1 and audience[0].startswith(_PERSON) else ""


def marks(audience: Sequence[str]) -> dict[str, str]:
    """What is written on something that was heard by these: one mark for each, so that it can be asked for by any."""
    return {f"everhold_for_{_short(one, 16)}": "yes" for one in audience}


def may_hear(present: Sequence[str], about: Mapping[str, Any]) -> bool:
    """Whether everybody present was there when what carries `about` was said. Nobody hears nothing."""
    return bool(present) and all(about.get(mark) == value for mark, value in marks(present).items())


def token(audience: Sequence[str]) -> str:
    """An audience as one word, for where it is part of a name; empty for nobody."""
    if not audience:
        return ""
    return handle("|".join(sorted(audience)))


def handle(text: str, *, limit: int = 100) -> str:
    """`text` as an id of `[A-Za-z0-9_-]`, no two alike: a hash tells apart what cleaning made the same."""
    plain = _OTHER.sub("-", text).strip("-")
    if plain == text and len(plain) <= limit:
        return plain
    return f"{plain[: limit - 11].rstrip('-')}-{_short(text, 10)}".lstrip("-")


def beginning(text: str) -> str:
    """How the handle begins of whatever begins with `text`, as far as that can be told."""
    return _OTHER.sub("-", text).strip("-")[:80]


def _short(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
