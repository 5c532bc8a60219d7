"""Conversations with questions about them, as small text files that a person can read and write.

    # The bakery moves
    language: en

    > Mara: Correction, the quote is 4,200.
    ! send_mail {"to": "okonjo"} = sent, message 7731
    < Thank you, 4,200 it is.

    ? correction: What does the move cost? = 4,200 | 4200 / 2,400

`>` is a person's message, `!` a call of a tool with an effect, `~` a call of a tool that only reads, `<` the reply. An
indented line continues the line before. A question has a kind, the accepted answers and, after ` / `, outdated answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from everhold.errors import InvalidRequest

_HEADER_PATTERN: Final = re.compile(r"([a-z]+):\s*(.*)")
_SAYS_PATTERN: Final = re.compile(r"([^:]{1,40}):\s?(.*)", re.DOTALL)
_CALLS_PATTERN: Final = re.compile(r"(\w+)\s+(\{.*\})\s+=\s+(.*)", re.DOTALL)
_ASKS_PATTERN: Final = re.compile(r"(\w+):\s*(.+?)\s+=\s+(.+?)(?:\s+/\s+(.+))?")


class EvalToolCall(Struct, frozen=True, kw_only=True):
    """A tool call and its result. `changes`: the call had an effect outside of everhold."""

    tool: str
    arguments: dict[str, Any] = {}
    result: str = ""
    changes: bool = True


class EvalTurn(Struct, frozen=True, kw_only=True):
    who: str
    text: str
    tool_calls: tuple[EvalToolCall, ...] = ()
    reply: str = ""

    def join_text(self) -> str:
        """All texts, tool calls and results of the turn."""
        done = [
            part
            for act in self.tool_calls
            for part in (act.tool, json.dumps(act.arguments, ensure_ascii=False), act.result)
        ]
        return "\n".join([f"{self.who}: {self.text}", *done, self.reply])


class EvalQuestion(Struct, frozen=True, kw_only=True):
    """A text that contains one of `answers` answers the question. `stale` lists answers that were corrected later."""

    kind: str
    ask: str
    answers: tuple[str, ...]
    stale: tuple[str, ...] = ()


class EvalConversation(Struct, frozen=True, kw_only=True):
    name: str
    title: str = ""
    language: str = ""
    turns: tuple[EvalTurn, ...]
    questions: tuple[EvalQuestion, ...] = ()

    def join_text(self) -> str:
        return "\n".join(turn.join_text() for turn in self.turns)


def load_bundled_conversations() -> list[EvalConversation]:
    """Return the conversations that ship with everhold, and one that joins all of them in one session."""
    folder = resources.files("everhold.evals") / "conversations"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".txt")), key=lambda file: file.name)
    found = [
        parse_conversation(file.read_text(encoding="utf-8"), name=file.name.removesuffix(".txt")) for file in files
    ]
    everything = EvalConversation(
        name="all-in-one",
        title="All of them, one after the other",
        language="mixed",
        turns=tuple(turn for one in found for turn in one.turns),
        questions=tuple(question for one in found for question in one.questions),
    )
    return [*found, everything]


def load_conversations(path: Path) -> list[EvalConversation]:
    """Read conversations in our own format: a file, or every `.txt` in a folder."""
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    return [parse_conversation(file.read_text(encoding="utf-8"), name=file.stem) for file in files]


def parse_conversation(text: str, *, name: str) -> EvalConversation:
    """Parse one file. Raises InvalidRequest with the line that is wrong."""
    found = EvalConversation(name=name, turns=())
    for number, mark, rest in _split_blocks(text):
        try:
            found = _add_block(found, mark, rest)
        except ValueError as error:
            raise InvalidRequest(
                f"{name}, line {number}: {error}", remedy="docs/how-to/evaluate-summaries.md shows the format"
            ) from None
    if not found.turns:
        raise InvalidRequest(f"{name} holds no conversation", remedy="a line such as `> Ada: hello` begins one")
    return found


def _split_blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, mark, text) of each line that begins with a mark, joined with the indented lines after it."""
    current: tuple[int, str, list[str]] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("  ") and current is not None:
            current[2].append(line[2:])
            continue
        if current is not None:
            yield current[0], current[1], "\n".join(current[2])
            current = None
        if line[:2] in ("> ", "< ", "! ", "~ ", "? ", "# "):
            current = (number, line[0], [line[2:]])
        elif line.strip():
            current = (number, "", [line])
    if current is not None:
        yield current[0], current[1], "\n".join(current[2])


def _add_block(found: EvalConversation, mark: str, text: str) -> EvalConversation:
    match mark:
        case "#":
            return structs.replace(found, title=text.strip())
        case ">":
            who, said = _split_fields(_SAYS_PATTERN, text, "a speaker, a colon and a message")
            return structs.replace(found, turns=(*found.turns, EvalTurn(who=who, text=said)))
        case "<" | "!" | "~":
            if not found.turns:
                raise ValueError("there is no message before this line")
            last = found.turns[-1]
            if mark == "<":
                last = structs.replace(last, reply=text)
            else:
                tool, arguments, result = _split_fields(
                    _CALLS_PATTERN, text, 'a tool, {"its": "arguments"}, = and its result'
                )
                act = EvalToolCall(tool=tool, arguments=json.loads(arguments), result=result, changes=mark == "!")
                last = structs.replace(last, tool_calls=(*last.tool_calls, act))
            return structs.replace(found, turns=(*found.turns[:-1], last))
        case "?":
            kind, ask, answers, stale = _split_fields(
                _ASKS_PATTERN, text, "a kind, a colon, the question, = and its answers"
            )
            question = EvalQuestion(kind=kind, ask=ask, answers=_split_list(answers), stale=_split_list(stale or ""))
            return structs.replace(found, questions=(*found.questions, question))
        case _:
            key, value = _split_fields(_HEADER_PATTERN, text, "a mark such as > or <")
            if key != "language":
                raise ValueError(f"{key!r} is not a known key")
            return structs.replace(found, language=value)


def _split_fields(shape: re.Pattern[str], text: str, wanted: str) -> tuple[Any, ...]:
    match = shape.fullmatch(text)
    if match is None:
        raise ValueError(f"expected {wanted}, not {text[:40]!r}")
    return match.groups()


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(" | ") if part.strip())
