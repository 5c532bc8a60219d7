"""Read the development data: conversations, questions and their evidence. The data is not part of the package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
ABSENT = f"""The data is not here: {DATA} (or pass --data).
LoCoMo: https://github.com/snap-research/locomo (data/locomo10.json, CC BY-NC 4.0) as locomo-dev.json.
BEAM: https://huggingface.co/datasets/Mohammadta/BEAM, a folder per chat under beam-dev/."""


class Said(Struct, frozen=True):
    id: str
    part: str
    """The session or batch it belongs to."""
    speaker: str
    agent: bool
    text: str
    at: float


class Question(Struct, frozen=True):
    text: str
    kind: str
    evidence: frozenset[str]


class Conversation(Struct, frozen=True):
    name: str
    messages: tuple[Said, ...]
    questions: tuple[Question, ...]


def locomo(data: Path) -> list[Conversation]:
    """Two people talk over months; the unit is the turn."""
    path = data / "locomo-dev.json"
    return [_locomo(sample) for sample in json.loads(path.read_text())] if path.exists() else []


def beam(data: Path) -> list[Conversation]:
    """One person and an assistant; the unit is the message."""
    paths = sorted((data / "beam-dev").glob("*/chat.json"), key=lambda path: int(path.parent.name))
    return [_beam(path) for path in paths]


def _locomo(sample: dict[str, Any]) -> Conversation:
    talk = sample["conversation"]
    messages: list[Said] = []
    number = 1
    while f"session_{number}" in talk or f"session_{number}_date_time" in talk:
        at = _when(talk.get(f"session_{number}_date_time", ""))
        for count, turn in enumerate(talk.get(f"session_{number}", [])):
            caption = turn.get("blip_caption")
            text = turn["text"] + (f" [shares {caption}]" if caption else "")
            messages.append(Said(turn["dia_id"], str(number), turn["speaker"], False, text, at + 30 * count))
        number += 1
    known = {message.id for message in messages}
    questions = []
    for question in sample["qa"]:
        ids = {
            f"D{int(part)}:{int(turn)}"
            for evidence in question.get("evidence", [])
            for part, turn in re.findall(r"D:?(\d+):(\d+)", evidence)
        } & known
        if ids:
            questions.append(Question(question["question"], f"c{question['category']}", frozenset(ids)))
    return Conversation(str(sample["sample_id"]), tuple(messages), tuple(questions))


def _beam(path: Path) -> Conversation:
    messages = [
        Said(
            str(message["id"]),
            str(batch["batch_number"]),
            message["role"],
            message["role"] != "user",
            re.sub(r"\s*->->.*$", "", message["content"]),
            1.7e9 + 86_400.0 * 7 * int(batch["batch_number"]) + 30 * count,
        )
        for batch in json.loads(path.read_text())
        for count, message in enumerate(message for turn in batch["turns"] for message in turn)
    ]
    known = {message.id for message in messages}
    probes = json.loads((path.parent / "probing_questions" / "probing_questions.json").read_text())
    questions = []
    for kind, asked in probes.items():
        for question in asked:
            ids = {str(id) for id in _numbers(question.get("source_chat_ids"))} & known
            text = question.get("question") or question.get("instruction_being_tested")
            if ids and text:
                questions.append(Question(text, kind, frozenset(ids)))
    return Conversation(path.parent.name, tuple(messages), tuple(questions))


def _numbers(value: Any) -> Iterator[int]:
    match value:
        case dict():
            for inner in value.values():
                yield from _numbers(inner)
        case list():
            for inner in value:
                yield from _numbers(inner)
        case int():
            yield value
        case str() if value.isdigit():
            yield int(value)


def _when(text: str) -> float:
    try:
        return datetime.strptime(text, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
