"""What a review may note: reads a model's answer into facts, and trusts none that cites nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from everhold.core.compression import advised
from everhold.core.context import View, shortened, stubbed
from everhold.core.entries import Heard, Said
from everhold.ports.model import Message, Request

MOST_NOTES: Final = 20
LONGEST_NOTE: Final = 1_000

ASK: Final = (
    "You read part of a conversation and write down what should be remembered for long: facts about the people, their "
    "preferences, decisions, promises, dates, and what was done with which outcome. Each line of the conversation has "
    "its number. Answer with one JSON object per line and nothing else: "
    '{"note": "one self-contained sentence", "cites": [numbers of the lines it rests on]}. '
    "Note only what the lines say. Never note that something is unknown or was not discussed. "
    "If there is nothing worth keeping, answer with nothing."
)
_OBJECT: Final = re.compile(r"\{.*\}")


class Finding(Struct, frozen=True):
    """Something worth noting, and the entries it rests on."""

    text: str
    cites: tuple[int, ...]


def request(view: View, *, advice: str = "") -> Request | None:
    """What the reviewing model is asked about; None if nobody said anything."""
    lines, stubs = [], stubbed(view)
    for exchange in view.exchanges:
        for entry in (*exchange.heard, *exchange.steps):
            if isinstance(entry.body, Heard):
                text = shortened(entry.body.text, entry.seq) if entry.seq in stubs else entry.body.text
                lines.append(f"#{entry.seq} {entry.body.sender or entry.author}: {text}")
            elif isinstance(entry.body, Said):
                lines.append(f"#{entry.seq} {entry.author}: {entry.body.text}")
    if not lines:
        return None
    return Request(system=ASK, messages=(Message(role="user", text="\n".join(lines) + advised(advice)),))


def seqs(view: View) -> set[int]:
    """The entries a finding about this view may cite."""
    return {
        entry.seq
        for exchange in view.exchanges
        for entry in (*exchange.heard, *exchange.steps)
        if isinstance(entry.body, Heard | Said)
    }


def findings(answer: str, known: Collection[int]) -> list[Finding]:
    """The findings in a model's answer that cite entries it was shown. Everything else in it is ignored."""
    found: list[Finding] = []
    for line in answer.splitlines():
        match = _OBJECT.search(line)
        if match is None:
            continue
        try:
            told = json.loads(match[0])
        except ValueError:
            continue
        if not isinstance(told, dict):
            continue
        text, cites = told.get("note"), told.get("cites")
        if not isinstance(text, str) or not isinstance(cites, list):
            continue
        valid = tuple(seq for seq in cites if isinstance(seq, int) and not isinstance(seq, bool) and seq in known)
        if text.strip() and valid and len(text) <= LONGEST_NOTE:
            found.append(Finding(text.strip(), valid))
    return found[:MOST_NOTES]
