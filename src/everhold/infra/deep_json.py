"""Parses JSON of others. What is nested too deeply is left out, so that one event cannot hide its neighbours."""

from __future__ import annotations

import json
import re
from typing import Any, Final

MAX_DEPTH: Final = 100
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)


def load_json(text: str) -> Any:
    """Parse JSON. Lists and objects below MAX_DEPTH become null if the whole cannot be parsed. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(cut_deep_parts(text))


def cut_deep_parts(text: str, *, max_depth: int = MAX_DEPTH) -> str:
    """Replace each list and object below `max_depth` by null. Reads the text once and does not recurse."""
    kept: list[str] = []
    depth = at = 0
    for token in _TOKEN.finditer(text):
        if token[0] in ("[", "{"):
            depth += 1
            if depth == max_depth + 1:
                kept.append(text[at : token.start()] + "null")
        elif token[0] in ("]", "}"):
            if depth == max_depth + 1:
                at = token.end()
            depth -= 1
    return "".join(kept) + (text[at:] if depth <= max_depth else "")
