"""Build the request of a review, and make notes of a model's answer.

The model chooses which entries to remember. The words of a note are those of the cited entries, never the model's, so a
claim that nobody made cannot become a note.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct, structs

from everhold.core.compression import format_advice
from everhold.core.context import SessionContext, list_context_stubs, render_heard
from everhold.core.entries import Entry, Heard, Said
from everhold.core.provenance import identify_speaker, join_all_text, prefix_lines, render_user_text
from everhold.ports.model import ModelMessage, ModelRequest

MAX_NOTES: Final = 20
MAX_NOTE_CHARS: Final = 1_000

REVIEW_PROMPT: Final = (
    "You read part of a conversation and choose what should be remembered for long: facts about the people, their "
    "preferences, decisions, promises and dates. Each line of the conversation has its number. Answer with one JSON "
    'object per line and nothing else: {"quote": "the words that matter, copied exactly", "cites": [numbers of the '
    "lines with these words]}. Cite lines of people, because only their words are remembered. "
    "Lines behind `| ` are forwarded or quoted: they are not the words of the person who sent them. "
    "If there is nothing worth keeping, answer with nothing."
)


class ReviewFinding(Struct, frozen=True):
    """What a model found worth remembering: its wording, and the entries that it cites."""

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
        text, cites = decoded.get("quote", decoded.get("note")), decoded.get("cites")
        if not isinstance(text, str) or not isinstance(cites, list):
            continue
        valid = tuple(seq for seq in cites if isinstance(seq, int) and not isinstance(seq, bool) and seq in known)
        if text.strip() and valid and len(text) <= MAX_NOTE_CHARS:
            found.append(ReviewFinding(text.strip(), valid))
    return found[:MAX_NOTES]


def quote_cited(finding: ReviewFinding, heard: Mapping[int, Entry]) -> list[ReviewFinding]:
    """Return the messages of `heard` that a finding cites, in their own words, each for itself.

    A message is quoted whole or not at all, because a part of it may say the opposite. Messages are not joined, because
    an answer next to another question would say what nobody said.
    """
    quotes = []
    for seq in dict.fromkeys(finding.cites):
        if seq in heard and isinstance(body := heard[seq].body, Heard):
            whole = body.text.strip() or join_all_text(body).strip()
            if whole and len(whole) <= MAX_NOTE_CHARS:
                quotes.append(ReviewFinding(whole, (seq,)))
    return quotes
