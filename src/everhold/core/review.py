"""Build the request of a review, and parse the notes in a model's answer. A note must cite entries."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from msgspec import Struct, structs

from everhold.core.compression import format_advice
from everhold.core.context import SessionContext, list_context_stubs, render_heard
from everhold.core.entries import Entry, Heard, Said
from everhold.core.provenance import identify_speaker, prefix_lines, render_user_text
from everhold.ports.model import ModelMessage, ModelRequest

MAX_NOTES: Final = 20
MAX_NOTE_CHARS: Final = 1_000

REVIEW_PROMPT: Final = (
    "You read part of a conversation and write down what should be remembered for long: facts about the people, their "
    "preferences, decisions, promises, dates, and what was done with which outcome. Each line of the conversation has "
    "its number. Answer with one JSON object per line and nothing else: "
    '{"note": "one self-contained sentence", "cites": [numbers of the lines it rests on]}. '
    "Lines behind `| ` are forwarded or quoted: they are not the words of the person who sent them. "
    "Note only what the lines say. Never note that something is unknown or was not discussed. "
    "If there is nothing worth keeping, answer with nothing."
)


class ReviewFinding(Struct, frozen=True):
    """A note, and the entries that support it."""

    text: str
    cites: tuple[int, ...]


def build_review_request(view: SessionContext, *, advice: str = "") -> ModelRequest | None:
    """Return the request to the reviewing model; None if the context has no messages."""
    lines, stubs = [], list_context_stubs(view)
    for exchange in view.turns:
        for entry in (*exchange.heard, *exchange.steps):
            if isinstance(entry.body, Heard):
                lines.append(f"#{entry.seq} {_render_heard(entry, entry.body, stubs)}")
            elif isinstance(entry.body, Said):
                lines.append(f"#{entry.seq} {entry.author}: {prefix_lines(entry.body.text)}")
    if not lines:
        return None
    return ModelRequest(
        system=REVIEW_PROMPT, messages=(ModelMessage(role="user", text="\n".join(lines) + format_advice(advice)),)
    )


def _render_heard(entry: Entry, body: Heard, stubs: Collection[int]) -> str:
    message = render_heard(entry, body, stubs)
    return render_user_text(structs.replace(message, speaker=identify_speaker(entry, body)))


def parse_findings(answer: str, known: Collection[int]) -> list[ReviewFinding]:
    """Return the findings in a model's answer that cite entries it was shown. The rest of the answer is ignored."""
    found: list[ReviewFinding] = []
    for line in answer.splitlines():
        try:
            decoded = json.loads(line[max(line.find("{"), 0) : line.rfind("}") + 1])
        except (ValueError, RecursionError):
            continue
        if not isinstance(decoded, dict):
            continue
        text, cites = decoded.get("note"), decoded.get("cites")
        if not isinstance(text, str) or not isinstance(cites, list):
            continue
        valid = tuple(seq for seq in cites if isinstance(seq, int) and not isinstance(seq, bool) and seq in known)
        if text.strip() and valid and len(text) <= MAX_NOTE_CHARS:
            found.append(ReviewFinding(text.strip(), valid))
    return found[:MAX_NOTES]
