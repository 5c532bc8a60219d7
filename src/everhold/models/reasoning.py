"""Reasoning a model wants back. Text first, for people; behind a seal what only its maker can read.

Signatures and encrypted parts must return to the model that made them exactly as they came, or it refuses to go on
after a tool call. They mean nothing to any other model and are never sent to one.
"""

from __future__ import annotations

import json
from typing import Any, Final

SEAL_CHAR: Final = "\x1e"
THINK_OPEN_TAG: Final = "<think>"
THINK_CLOSE_TAG: Final = "</think>"


def seal_reasoning(text: str, *, by: str, parts: Any) -> str:
    """`text` with `parts` attached for the model `by`."""
    return f"{text}{SEAL_CHAR}{json.dumps({'by': by, 'parts': parts}, ensure_ascii=True, separators=(',', ':'))}"


def strip_seal(reasoning: str) -> str:
    """What of it is for people."""
    text, mark, _ = reasoning.rpartition(SEAL_CHAR)
    return text if mark else reasoning


def open_seal(reasoning: str, *, by: str) -> Any:
    """The parts that `by` attached, or None if it is not theirs."""
    _, mark, sealed = reasoning.rpartition(SEAL_CHAR)
    if not mark:
        return None
    try:
        found = json.loads(sealed)
    except ValueError:
        return None
    return found.get("parts") if isinstance(found, dict) and found.get("by") == by else None


class ThinkTagSplitter:
    """Tells reasoning from text on servers that do not: it stands in think tags at the very beginning, or nowhere."""

    def __init__(self) -> None:
        self._state = "before"
        self._held = ""

    def feed(self, piece: str) -> tuple[str, str]:
        """What of the piece is reasoning, and what is text. What may become a tag is held back."""
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
        """What was held back, once nothing more comes."""
        thinking, after = self._state == "thinking", self._state == "after"
        rest = self._release_held()
        if after:
            return "", ""
        return (rest, "") if thinking else ("", rest)

    def _release_held(self) -> str:
        held, self._held, self._state = self._held, "", "text"
        return held
