"""What can be wrong with a configuration, said so that a person can mend it: file, line, key, remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from everhold.config.file_stamp import SeenFile
from everhold.config.literals import mask_secrets
from everhold.errors import InvalidRequest

KeyPath: TypeAlias = tuple[str | int, ...]

EXIT_CONFIG: Final = 78
_PLAIN_KEY_PATTERN: Final = re.compile(r"[^\s.\[\]\"']+")


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong. A fatal one refuses the configuration; the others disable only what `disables` names."""

    message: str
    remedy: str = ""
    path: KeyPath = ()
    file: str = ""
    line: int = 0
    fatal: bool = True
    disables: str = ""
    """What does not work because of it, as a key path; empty if everything goes on."""

    @property
    def key(self) -> str:
        return format_key_path(self.path)

    def with_path(self, path: KeyPath) -> ConfigProblem:
        return replace(self, path=path)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        what = ": ".join(part for part in (where, self.key, self.message) if part)
        return f"{what} → {self.remedy}" if self.remedy else what


class ConfigError(InvalidRequest):
    """A configuration that is refused, with everything that is wrong with it at once. Commands exit 78."""

    exit_code: Final = EXIT_CONFIG

    def __init__(self, problems: Iterable[ConfigProblem], *, seen: Mapping[Path, SeenFile] | None = None) -> None:
        self.problems = tuple(sorted(set(problems), key=lambda p: (p.file, p.line, p.key, p.message)))
        self.seen: Mapping[Path, SeenFile] = seen or {}
        """What was read to find this out: once one of them changes, trying again makes sense."""
        super().__init__("\n".join(str(problem) for problem in self.problems))


def format_key_path(path: KeyPath) -> str:
    """`agents.coder.memories[1].name`. Odd keys are quoted, keys that look like secrets masked."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        part = mask_secrets(part)
        if not _PLAIN_KEY_PATTERN.fullmatch(part):
            part = '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
        text += f".{part}" if text else part
    return text


def find_nearest(word: str, known: Iterable[str]) -> str:
    """The known name that `word` is most likely meant to be, or nothing."""
    names = sorted(set(known))
    if word.lower() in names:
        return word.lower()
    # Short words differ by much when one letter does; long ones that share half of their letters are strangers.
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6 if len(word) <= 6 else 0.7)
    return near[0] if near else ""


def suggest_name(word: str, known: Iterable[str]) -> str:
    """A remedy for a name nobody knows: the nearest one, or what there is."""
    names = sorted(set(known))
    near = find_nearest(word, names)
    if near:
        return f"did you mean `{near}`?"
    if not names:
        return ""
    return "there is " + join_with_or(names[:12]) + (", …" if len(names) > 12 else "")


def join_with_or(names: Iterable[str]) -> str:
    """`a, b or c`."""
    quoted = [f"`{name}`" for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
