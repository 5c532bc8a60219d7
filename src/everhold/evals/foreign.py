"""Conversations that were not written for this: what `everhold sessions export` gives, and two public collections.

Exports come without questions, so what is asked for is what a summary loses first: the figures people named, each with
the sentence it stood in. Of the collections' questions those are taken whose answer literally stands in the talk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from everhold.errors import Misuse, NotFound
from everhold.evals.conversation import Act, Conversation, Question, Turn, load
from everhold.evals.score import holds, normal

MOST_QUESTIONS: Final = 150
_FIGURE: Final = re.compile(r"(?<!\w)[\w@./:-]*\d[\w@./:-]*[\w%]")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_TRACE: Final = re.compile(r"\s*->->.*$", re.DOTALL)


def read(path: Path) -> list[Conversation]:
    """Whatever is at `path`: our own files, an export, or a collection."""
    if not path.exists():
        raise NotFound(f"there is no {path}", remedy="--conversations wants a file or a folder")
    found = list(_read(path))
    if not found:
        raise Misuse(
            f"{path} holds no conversations", remedy="docs/how-to/evaluate-summaries.md says what is understood"
        )
    return found


def _read(path: Path) -> Iterator[Conversation]:
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.is_dir() or file.suffix in (".txt", ".jsonl", ".json"):
                yield from _read(file)
    elif path.suffix == ".txt":
        yield from load(path)
    elif path.suffix == ".jsonl":
        yield from exported(path.read_text(encoding="utf-8").splitlines(), name=path.stem)
    elif path.name == "chat.json":
        yield _chat(path)
    elif path.suffix == ".json" and "probing" not in path.name:
        yield from _dialogues(json.loads(path.read_text(encoding="utf-8")))


# -- our own exports ---------------------------------------------------------------------------------------------------


def exported(lines: Iterable[str], *, name: str) -> Iterator[Conversation]:
    """The conversation of each session in an export."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line.strip():
            entry = json.loads(line)
            sessions.setdefault(entry["session"], []).append(entry)
    for session, entries in sessions.items():
        turns = _turns(entries)
        if turns:
            title = name if len(sessions) == 1 else f"{name}:{session}"
            yield Conversation(name=title, title=session, turns=turns, questions=_figures(turns))


def _turns(entries: list[dict[str, Any]]) -> tuple[Turn, ...]:
    heard = {
        e["seq"]: e["body"] for e in entries if e["kind"] == "heard" and e["body"] and not e["body"].get("command")
    }
    turns: list[Turn] = []
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
            Act(
                tool=call["tool"],
                arguments=call.get("arguments", {}),
                result=results.get(call["id"], ""),
                changes=call["id"] in changes,
            )
            for thought in thoughts
            for call in thought.get("calls", ())
        )
        text = "\n".join(heard[seq]["text"] for seq in takes)
        who = heard[takes[0]].get("sender") or "somebody"
        reply = next((t["text"] for t in reversed(thoughts) if t.get("text")), "")
        turns.append(Turn(who=who, text=text, acts=acts, reply=reply))
    return tuple(turns)


def _figures(turns: tuple[Turn, ...]) -> tuple[Question, ...]:
    """The figures that people named, newest first when there are too many, each asked for by its sentence."""
    found: dict[str, Question] = {}
    for turn in turns:
        for sentence in _SENTENCE.split(turn.text):
            for figure in _FIGURE.findall(sentence):
                around = " ".join(sentence.replace(figure, " ").split())
                if len(figure) > 1 and len(around) > 8:
                    found.setdefault(normal(figure), Question(kind="number", ask=around[:200], answers=(figure,)))
    return tuple(found.values())[-MOST_QUESTIONS:]


# -- public collections ------------------------------------------------------------------------------------------------


def _dialogues(data: Any) -> Iterator[Conversation]:
    """LoCoMo: two people talk over months. One of them is taken for the agent."""
    if not isinstance(data, list) or not all(isinstance(it, dict) and "conversation" in it for it in data):
        return
    for sample in data:
        talk = sample["conversation"]
        said = []
        number = 1
        while f"session_{number}" in talk or f"session_{number}_date_time" in talk:
            said += [(line["speaker"], line["text"]) for line in talk.get(f"session_{number}", [])]
            number += 1
        turns = _pairs(said, agent=talk["speaker_b"])
        asked = ((q["question"], str(q["answer"]), f"c{q['category']}") for q in sample["qa"] if "answer" in q)
        yield _literal(str(sample["sample_id"]), turns, asked)


def _chat(path: Path) -> Conversation:
    """BEAM: a person and an assistant, with questions in a folder beside it."""
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
    return _literal(f"chat-{path.parent.name}", _pairs(said, agent="assistant"), asked)


def _pairs(said: Iterable[tuple[str, str]], *, agent: str) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for who, text in said:
        if who == agent and turns and not turns[-1].reply:
            last = turns.pop()
            turns.append(Turn(who=last.who, text=last.text, reply=text))
        else:
            turns.append(Turn(who=who, text=text))
    return tuple(turns)


def _literal(name: str, turns: tuple[Turn, ...], asked: Iterable[tuple[str, str, str]]) -> Conversation:
    words = normal("\n".join(turn.words() for turn in turns))
    questions = tuple(
        Question(kind=kind, ask=ask, answers=(answer,))
        for ask, answer, kind in asked
        if 1 < len(answer) <= 80 and holds(words, (answer,))
    )
    return Conversation(name=name, turns=turns, questions=questions)
