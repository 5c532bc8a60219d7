"""Explain why a text is not valid YAML, with a remedy. Never repeats a value, because it might be a secret."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from everhold.config.errors import ConfigProblem, KeyPath
from everhold.config.literals import mask_secrets

_QUOTED: Final = re.compile(r"'[^'<]{2,}'|\"[^\"<]{2,}\"")
_FOUND: Final = re.compile(r"found '([^']*)'")
_NO_SPACE: Final = re.compile(r"[ -]*+[\w-]+:[^\s:]")
_GENERAL_REMEDY: Final = "indent with spaces, and put text with special characters in quotes"


@dataclass(slots=True)
class _OpenCollection:
    """A mapping or list that is open at the current place of the parser."""

    path: KeyPath
    is_mapping: bool
    in_braces: bool
    line: int
    column: int
    key: str | None = None
    """The last key of a mapping."""
    awaits_value: bool = False
    index: int = -1

    @property
    def inner_path(self) -> KeyPath:
        """The path of the current place inside of this collection."""
        if self.is_mapping:
            return self.path if self.key is None else (*self.path, self.key)
        return self.path if self.index < 0 else (*self.path, self.index)


def explain_syntax_error(error: YAMLError, text: str) -> ConfigProblem:
    """Return the problem with `text`, with its line and, if the parser found it, its key. The caller adds the file."""
    if isinstance(error, ReaderError):
        return ConfigProblem(
            "holds a control character, which YAML does not allow",
            "remove the character",
            line=text.count("\n", 0, error.position) + 1,
        )
    if not isinstance(error, MarkedYAMLError):
        return ConfigProblem("is not YAML", _GENERAL_REMEDY)
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    opened = _read_open_collections(text, before=(line, column) if "alias" in (error.problem or "") else None)
    path = opened[-1].inner_path if opened else ()
    problem = (
        _explain_quote(error, path)
        or _explain_brackets(error, opened, line)
        or _explain_indentation(error, text, line)
        or _explain_colon(error, text, line)
        or _explain_value(error, text, line, column)
        or _explain_document(error)
    )
    if problem is None:
        words = " ".join(str(part) for part in (error.context, error.problem) if part)
        detail = mask_secrets(_QUOTED.sub("'…'", " ".join(words.split())))
        problem = ConfigProblem(f"is not YAML: {detail}" if detail else "is not YAML", _GENERAL_REMEDY)
    return replace(problem, path=problem.path or path, line=problem.line or line + 1)


def _read_open_collections(text: str, *, before: tuple[int, int] | None) -> list[_OpenCollection]:
    """Return the collections open where the parser failed, or at the place `before`; outermost first."""
    opened: list[_OpenCollection] = []
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            if before is not None and (event.start_mark.line, event.start_mark.column) >= before:
                break
            _follow_event(opened, event)
    except (YAMLError, RecursionError, ValueError, AttributeError, IndexError, AssertionError, TypeError):
        pass  # the caller has the error, and the library fails in these ways on broken text
    return opened


def _follow_event(opened: list[_OpenCollection], event: Event) -> None:
    if isinstance(event, MappingEndEvent | SequenceEndEvent):
        opened.pop()
        return
    if not isinstance(event, MappingStartEvent | SequenceStartEvent | ScalarEvent | AliasEvent):
        return
    around = opened[-1] if opened else None
    if around is not None and not around.is_mapping:
        around.index += 1
    elif around is not None and not around.awaits_value:
        around.key = event.value if isinstance(event, ScalarEvent) else None
        around.awaits_value = True
        if isinstance(event, ScalarEvent | AliasEvent):
            return
    elif around is not None:
        around.awaits_value = False
    if isinstance(event, MappingStartEvent | SequenceStartEvent):
        opened.append(
            _OpenCollection(
                path=around.inner_path if around is not None else (),
                is_mapping=isinstance(event, MappingStartEvent),
                in_braces=bool(event.flow_style),
                line=event.start_mark.line,
                column=event.start_mark.column,
            )
        )


def _explain_quote(error: MarkedYAMLError, path: KeyPath) -> ConfigProblem | None:
    context = error.context or ""
    if "quoted scalar" not in context:
        return None
    if "escape" in (error.problem or ""):
        return ConfigProblem("holds a backslash that is no escape", "write the text in single quotes, or double the \\")
    line = error.context_mark.line + 1 if error.context_mark else 0
    return ConfigProblem("a quote opens here and is never closed", "add the closing quote", path=path, line=line)


def _explain_brackets(error: MarkedYAMLError, opened: list[_OpenCollection], line: int) -> ConfigProblem | None:
    """Explain an unclosed brace or bracket, one that is closed too often, or a missing comma."""
    context, said = error.context or "", error.problem or ""
    found = _FOUND.search(said)
    if found and found[1] in ("}", "]") and "block" in context:
        return ConfigProblem(f"there is a `{found[1]}` too many", "remove it, or add the one that opens")
    if "flow" not in context:
        return None
    begun = [it for it in opened if it.in_braces]
    if error.context_mark is not None and "flow node" not in context:
        place = (error.context_mark.line, error.context_mark.column)
        begun = [it for it in begun if (it.line, it.column) == place] or begun
    if not begun:
        return None
    it = begun[-1]
    opening, closing = ("{", "}") if it.is_mapping else ("[", "]")
    if "<stream end>" in said:
        return ConfigProblem(
            f"a `{opening}` opens here and is never closed",
            f"add the missing `{closing}`; put text with a # in quotes, or it becomes a comment",
            path=it.path,
            line=it.line + 1,
        )
    if line > it.line:
        return ConfigProblem(
            f"a `{opening}` opens here and is not closed before line {line + 1}",
            f"add the missing `{closing}`, or a comma",
            path=it.path,
            line=it.line + 1,
        )
    return ConfigProblem(
        f"a comma or a `{closing}` is missing",
        f"write {'{a: 1, b: 2}' if it.is_mapping else '[a, b]'}, and put text with special characters in quotes",
    )


def _explain_indentation(error: MarkedYAMLError, text: str, line: int) -> ConfigProblem | None:
    said = error.problem or ""
    lines = text.split("\n")
    here = lines[line] if line < len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())]:
        return ConfigProblem("is indented with a tab", "indent with spaces")
    if "expected <block end>" not in said:
        return None
    if any(found in said for found in ("'<block mapping start>'", "'<block sequence start>'", "'?'", "'-'")):
        return ConfigProblem(
            "is not indented like the lines around it",
            "start all keys of a section, or all dashes of a list, in the same column",
        )
    return ConfigProblem("something follows the value", "put the whole value in quotes, or write a list: [a, b]")


def _explain_colon(error: MarkedYAMLError, text: str, line: int) -> ConfigProblem | None:
    said = error.problem or ""
    if "could not find expected ':'" in said:
        at = error.context_mark.line + 1 if error.context_mark else line + 1
        return ConfigProblem("is not `key: value`", "write a key, a colon, a space and the value", line=at)
    if "mapping values are not allowed" not in said:
        return None
    lines = text.split("\n")
    before = line - 1
    while before >= 0 and not lines[before].strip():
        before -= 1
    if before >= 0 and _NO_SPACE.match(lines[before]):
        return ConfigProblem("there is no space after the colon", "write `key: value`", line=before + 1)
    if before >= 0 and ":" not in lines[before] and not lines[before].lstrip().startswith(("#", "-")):
        return ConfigProblem("is not `key: value`", "write a key, a colon, a space and the value", line=before + 1)
    return ConfigProblem("there is a second `: ` in the value", "put the value in quotes")


def _explain_value(error: MarkedYAMLError, text: str, line: int, column: int) -> ConfigProblem | None:
    context, said = error.context or "", error.problem or ""
    if "cannot start any token" in said:
        lines = text.split("\n")
        found = lines[line][column : column + 1] if line < len(lines) else ""
        if found == "\t":
            return ConfigProblem("is indented with a tab", "indent with spaces")
        shown = "a backtick" if found == "`" else f"`{found}`"
        return ConfigProblem(f"starts with {shown}, which has a meaning of its own in YAML", "put the value in quotes")
    if "undefined alias" in said or "an alias" in context or "an anchor" in context:
        return ConfigProblem("starts with `*` or `&`, which YAML keeps for aliases", "put the value in quotes")
    if "a block scalar" in context:
        return ConfigProblem("starts with `|` or `>`, which begins a block of text", "put the value in quotes")
    if "a directive" in context:
        return ConfigProblem("starts with `%`, which YAML keeps for directives", "remove the line, or put it in quotes")
    return None


def _explain_document(error: MarkedYAMLError) -> ConfigProblem | None:
    said = error.problem or ""
    if "another document" in said or "single document" in (error.context or ""):
        return ConfigProblem("a second document begins here", "remove the line `---`: the file is one document")
    if "<document start>" in said:
        return ConfigProblem(
            "this is not `key: value`",
            "write YAML: `key: value`, and the keys of a section indented below it",
        )
    return None
