"""Read conversations from other sources: exports of `everhold sessions export`, and two public datasets.

Exports have no questions, so one is made of each figure that a person wrote, because summaries lose figures first. The
question is the rest of the figure's sentence. Of a dataset's questions, those with a literal answer in the text are
used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from everhold.errors import InvalidRequest, NotFound
from everhold.evals.conversation import EvalConversation, EvalQuestion, EvalToolCall, EvalTurn, load_conversations
from everhold.evals.score import has_answer, normalize_text

MAX_QUESTIONS: Final = 150
_FIGURE: Final = re.compile(r"(?<![\w@./:-])[\w@./:-]*\d[\w@./:-]*[\w%]")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_TRACE: Final = re.compile(r"(?<!\s)\s*->->.*$", re.DOTALL)


def read_conversations(path: Path) -> list[EvalConversation]:
    """Read the conversations at `path`: our own files, an export, or a dataset."""
    if not path.exists():
        raise NotFound(f"there is no {path}", remedy="--conversations wants a file or a folder")
    found = list(_read_path(path))
    if not found:
        raise InvalidRequest(
            f"{path} holds no conversations", remedy="docs/how-to/evaluate-summaries.md lists the formats"
        )
    return found


def _read_path(path: Path) -> Iterator[EvalConversation]:
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.is_dir() or file.suffix in (".txt", ".jsonl", ".json"):
                yield from _read_path(file)
    elif path.suffix == ".txt":
        yield from load_conversations(path)
    elif path.suffix == ".jsonl":
        yield from parse_export(path.read_text(encoding="utf-8").splitlines(), name=path.stem)
    elif path.name == "chat.json":
        yield _parse_beam(path)
    elif path.suffix == ".json" and "probing" not in path.name:
        yield from _parse_locomo(json.loads(path.read_text(encoding="utf-8")))


# -- our own exports ---------------------------------------------------------------------------------------------------


def parse_export(lines: Iterable[str], *, name: str) -> Iterator[EvalConversation]:
    """Yield the conversation of each session in an export."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line.strip():
            entry = json.loads(line)
            sessions.setdefault(entry["session"], []).append(entry)
    for session, entries in sessions.items():
        turns = _parse_turns(entries)
        if turns:
            title = name if len(sessions) == 1 else f"{name}:{session}"
            yield EvalConversation(name=title, title=session, turns=turns, questions=_make_figure_questions(turns))


def _parse_turns(entries: list[dict[str, Any]]) -> tuple[EvalTurn, ...]:
    heard = {
        e["seq"]: e["body"] for e in entries if e["kind"] == "heard" and e["body"] and not e["body"].get("command")
    }
    turns: list[EvalTurn] = []
    for began in entries:
        if began["kind"] != "began" or not began["body"] or began["body"].get("type") != "turn":
            continue
        mine = [e for e in entries if e["op"] == began["seq"] and e["body"]]
        takes = [
            seq for e in mine if e["kind"] in ("began", "took") for seq in e["body"].get("takes", ()) if seq in heard
        ]
        if not takes:
            continue
        thoughts = [e["body"] for e in mine if e["kind"] == "thought"]
        results = {e["body"]["call"]: e["body"].get("text", "") for e in mine if e["kind"] == "returned"}
        changes = {e["body"]["call"] for e in mine if e["kind"] == "called"}
        acts = tuple(
            EvalToolCall(
                tool=call["tool"],
                arguments=call.get("arguments", {}),
                result=results.get(call["id"], ""),
                changes=call["id"] in changes,
            )
            for thought in thoughts
            for call in thought.get("calls", ())
        )
        text = "\n".join(heard[seq]["text"] for seq in takes)
        who = heard[takes[0]].get("sender") or "unknown"
        reply = next((t["text"] for t in reversed(thoughts) if t.get("text")), "")
        turns.append(EvalTurn(who=who, text=text, tool_calls=acts, reply=reply))
    return tuple(turns)


def _make_figure_questions(turns: tuple[EvalTurn, ...]) -> tuple[EvalQuestion, ...]:
    """Make a question of each figure that a person wrote. If there are too many, the newest are kept."""
    found: dict[str, EvalQuestion] = {}
    for turn in turns:
        for sentence in _SENTENCE.split(turn.text):
            for figure in _FIGURE.findall(sentence):
                around = " ".join(sentence.replace(figure, " ").split())
                if len(figure) > 1 and len(around) > 8:
                    found.setdefault(
                        normalize_text(figure), EvalQuestion(kind="number", ask=around[:200], answers=(figure,))
                    )
    return tuple(found.values())[-MAX_QUESTIONS:]


# -- public datasets ---------------------------------------------------------------------------------------------------


def _parse_locomo(data: Any) -> Iterator[EvalConversation]:
    """Parse LoCoMo: two people talk over months. The second speaker is treated as the agent."""
    if not isinstance(data, list) or not all(isinstance(it, dict) and "conversation" in it for it in data):
        return
    for sample in data:
        talk = sample["conversation"]
        said = []
        number = 1
        while f"session_{number}" in talk or f"session_{number}_date_time" in talk:
            said += [(line["speaker"], line["text"]) for line in talk.get(f"session_{number}", [])]
            number += 1
        turns = _pair_turns(said, agent=talk["speaker_b"])
        asked = ((q["question"], str(q["answer"]), f"c{q['category']}") for q in sample["qa"] if "answer" in q)
        yield _make_conversation(str(sample["sample_id"]), turns, asked)


def _parse_beam(path: Path) -> EvalConversation:
    """Parse BEAM: a person and an assistant, with the questions in a folder beside the conversation."""
    batches = json.loads(path.read_text(encoding="utf-8"))
    said = [
        (message["role"], _TRACE.sub("", message["content"]))
        for batch in batches
        for turn in batch["turns"]
        for message in turn
    ]
    probes = path.parent / "probing_questions" / "probing_questions.json"
    asked = []
    if probes.exists():
        for kind, questions in json.loads(probes.read_text(encoding="utf-8")).items():
            asked += [
                (q["question"], str(q.get("answer") or q.get("ideal_answer") or ""), kind)
                for q in questions
                if q.get("question")
            ]
    return _make_conversation(f"chat-{path.parent.name}", _pair_turns(said, agent="assistant"), asked)


def _pair_turns(said: Iterable[tuple[str, str]], *, agent: str) -> tuple[EvalTurn, ...]:
    turns: list[EvalTurn] = []
    for who, text in said:
        if who == agent and turns and not turns[-1].reply:
            last = turns.pop()
            turns.append(EvalTurn(who=last.who, text=last.text, reply=text))
        else:
            turns.append(EvalTurn(who=who, text=text))
    return tuple(turns)


def _make_conversation(
    name: str, turns: tuple[EvalTurn, ...], asked: Iterable[tuple[str, str, str]]
) -> EvalConversation:
    words = normalize_text("\n".join(turn.join_text() for turn in turns))
    questions = tuple(
        EvalQuestion(kind=kind, ask=ask, answers=(answer,))
        for ask, answer, kind in asked
        if 1 < len(answer) <= 80 and has_answer(words, (answer,))
    )
    return EvalConversation(name=name, turns=turns, questions=questions)
