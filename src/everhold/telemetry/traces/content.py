"""Put what was said into spans, if the operator asked for it. Secrets that this process knows are hidden."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from everhold.core.entries import Entry, Heard, Returned, Thought
from everhold.core.provenance import join_all_text
from everhold.telemetry.traces import names

MAX_CONTENT_CHARS: Final = 16_000
"""Of one text."""


class ContentCapture:
    """Renders messages as the conventions ask for: JSON lists of messages with parts."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    def describe_question(self, heard: Sequence[Entry]) -> dict[str, str]:
        """Return the messages that a turn answers. The rest of its context is not in a span."""
        texts = [join_all_text(entry.body) for entry in heard if isinstance(entry.body, Heard)]
        return {names.INPUT_MESSAGES: _dump([{"role": "user", "parts": [self._render_text(text)]} for text in texts])}

    def describe_answer(self, thought: Thought, finish: str) -> dict[str, str]:
        parts: list[dict[str, Any]] = [self._render_text(thought.text)] if thought.text else []
        for call in thought.calls:
            arguments = self._shorten(_dump(call.arguments))
            parts.append({"type": "tool_call", "id": call.id, "name": call.tool, "arguments": arguments})
        return {names.OUTPUT_MESSAGES: _dump([{"role": "assistant", "parts": parts, "finish_reason": finish}])}

    def describe_call(self, arguments: Mapping[str, Any], returned: Returned) -> dict[str, str]:
        return {
            names.TOOL_ARGUMENTS: self._shorten(_dump(arguments)),
            names.TOOL_RESULT: self._shorten(returned.text),
        }

    def _render_text(self, text: str) -> dict[str, str]:
        return {"type": "text", "content": self._shorten(text)}

    def _shorten(self, text: str) -> str:
        shown = self._redact(text)
        return shown if len(shown) <= MAX_CONTENT_CHARS else f"{shown[:MAX_CONTENT_CHARS]}…"


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
