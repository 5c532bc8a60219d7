"""Who may hear of something that a remote memory found: only those who were there, everybody who is present now.

Services know nothing of audiences, so what is sent carries its own, and what comes back is held against it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]+")
_PERSON: Final = "person:"


def alone(audience: Sequence[str]) -> str:
    """The person, if nobody else is present; else nothing."""
    return audience[0].removeprefix(_PERSON) if len(audience) == 1 and audience[0].startswith(_PERSON) else ""


def token(audience: Sequence[str]) -> str:
    """An audience as one word that can be compared, and filtered by where a service has filters; empty for nobody."""
    if not audience:
        return ""
    return handle("|".join(sorted(audience)))


def handle(text: str, *, limit: int = 100) -> str:
    """`text` as an id of `[A-Za-z0-9_-]`, no two alike: a hash tells apart what cleaning made the same."""
    plain = _OTHER.sub("-", text).strip("-")
    if plain == text and len(plain) <= limit:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{plain[: limit - 11].rstrip('-')}-{digest}".lstrip("-")
