"""Reasoning a model wants back. Text first, for people; behind a seal what only its maker can read.

Signatures and encrypted parts must return to the model that made them exactly as they came, or it refuses to go on
after a tool call. They mean nothing to any other model and are never sent to one.
"""

from __future__ import annotations

import json
from typing import Any, Final

SEAL: Final = "\x1e"


def seal(text: str, *, by: str, parts: Any) -> str:
    """`text` with `parts` attached for the model `by`."""
    return f"{text}{SEAL}{json.dumps({'by': by, 'parts': parts}, ensure_ascii=True, separators=(',', ':'))}"


def shown(reasoning: str) -> str:
    """What of it is for people."""
    text, mark, _ = reasoning.rpartition(SEAL)
    return text if mark else reasoning


def opened(reasoning: str, *, by: str) -> Any:
    """The parts that `by` attached, or None if it is not theirs."""
    _, mark, sealed = reasoning.rpartition(SEAL)
    if not mark:
        return None
    try:
        found = json.loads(sealed)
    except ValueError:
        return None
    return found.get("parts") if isinstance(found, dict) and found.get("by") == by else None
