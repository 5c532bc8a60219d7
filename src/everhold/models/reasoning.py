"""Reasoning that has to be returned to its model. The text for people comes first, then the sealed parts for the model.

Signatures and encrypted parts must return to the model that made them unchanged, or it refuses to continue after a tool
call. Other models cannot use them and never receive them.
"""

from __future__ import annotations

import json
from typing import Any, Final

SEAL_CHAR: Final = "\x1e"
THINK_OPEN_TAG: Final = "<think>"
THINK_CLOSE_TAG: Final = "</think>"


def seal_reasoning(text: str, *, by: str, parts: Any) -> str:
    """Return `text` with `parts` attached for the model `by`."""
    return f"{text}{SEAL_CHAR}{json.dumps({'by': by, 'parts': parts}, ensure_ascii=True, separators=(',', ':'))}"


def strip_seal(reasoning: str) -> str:
    """Return the text for people."""
    text, mark, _ = reasoning.rpartition(SEAL_CHAR)
    return text if mark else reasoning


def open_seal(reasoning: str, *, by: str) -> Any:
    """Return the parts that `by` attached, or None if another model did."""
    _, mark, sealed = reasoning.rpartition(SEAL_CHAR)
    if not mark:
        return None
    try:
        found = json.loads(sealed)
    except ValueError:
        return None
    return found.get("parts") if isinstance(found, dict) and found.get("by") == by else None


class ThinkTagSplitter:
    """Separates reasoning from text on servers that do not: it is in think tags at the very beginning, or absent."""

    def __init__(self) -> None:
        self._state = "before"
        self._held = ""

    def feed(self, piece: str) -> tuple[str, str]:
        """Return the reasoning and the text of a piece. A possible beginning of a tag is held back."""
        if self._state == "text":
            return "", piece
        self._held += piece
        thought = ""
        if self._state == "before":
            start = self._held.lstrip()
            if THINK_OPEN_TAG.startswith(start[: len(THINK_OPEN_TAG)]):
                if len(start) < len(THINK_OPEN_TAG):
                    return "", ""
                self._state, self._held = "thinking", start[len(THINK_OPEN_TAG) :]
            else:
                return "", self._release_held()
        if self._state == "thinking":
            thought, mark, rest = self._held.partition(THINK_CLOSE_TAG)
            if not mark:
                keep = max(0, len(thought) - len(THINK_CLOSE_TAG) + 1)
                thought, self._held = thought[:keep], thought[keep:]
                return thought, ""
            self._state, self._held = "after", rest
        if not self._held.strip():
            return thought, ""
        self._held = self._held.lstrip()
        return thought, self._release_held()

    def close(self) -> tuple[str, str]:
        """Return what was held back, at the end of the stream."""
        thinking, after = self._state == "thinking", self._state == "after"
        rest = self._release_held()
        if after:
            return "", ""
        return (rest, "") if thinking else ("", rest)

    def _release_held(self) -> str:
        held, self._held, self._state = self._held, "", "text"
        return held
