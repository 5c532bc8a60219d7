"""Problems of a configuration, with file, line, key and remedy."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from everhold.config.file_stamp import SeenFile
from everhold.config.literals import mask_secrets
from everhold.errors import InvalidRequest

KeyPath: TypeAlias = tuple[str | int, ...]

EXIT_CONFIG: Final = 78
MAX_NAMES: Final = 20
"""How many known names a remedy lists."""
_PLAIN_KEY_PATTERN: Final = re.compile(r"[^\s.\[\]\"']+")


class ProblemCause(enum.StrEnum):
    """What is missing on this machine."""

    UNKNOWN_PROVIDER = "unknown_provider"
    MISSING_KEY = "missing_key"
    MISSING_PACKAGE = "missing_package"
    MISSING_PROGRAM = "missing_program"
    MISSING_SERVICE = "missing_service"


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem. A fatal problem refuses the configuration, any other disables only what `disables` names."""

    message: str
    remedy: str = ""
    path: KeyPath = ()
    file: str = ""
    line: int = 0
    fatal: bool = True
    disables: str = ""
    """The key path of what is disabled; empty if everything still works."""
    cause: ProblemCause | None = None
    """What is missing, if something is disabled because of that."""

    @property
    def key(self) -> str:
        return format_key_path(self.path)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        what = ": ".join(part for part in (where, self.key, self.message) if part)
        return f"{what} → {self.remedy}" if self.remedy else what


class ConfigError(InvalidRequest):
    """The configuration is refused. Lists all its problems. Commands exit with 78."""

    exit_code: Final = EXIT_CONFIG

    def __init__(self, problems: Iterable[ConfigProblem], *, seen: Mapping[Path, SeenFile] | None = None) -> None:
        self.problems = tuple(sorted(set(problems), key=lambda p: (p.file, p.line, p.key, p.message)))
        self.seen: Mapping[Path, SeenFile] = seen or {}
        """The files that were read. When one of them changes, loading is tried again."""
        super().__init__("\n".join(str(problem) for problem in self.problems))


def format_key_path(path: KeyPath) -> str:
    """Format a path as `agents.coder.memories[1].name`. Quotes unusual keys and masks keys that look like secrets."""
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
    """Return the known name nearest to `word`, or an empty text if none is near."""
    names = sorted(set(known))
    if word.lower() in names:
        return word.lower()
    # One wrong letter is a large share of a short word. Long words that share only half of their letters are unrelated.
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6 if len(word) <= 6 else 0.7)
    return near[0] if near else ""


def suggest_name(word: str, known: Iterable[str]) -> str:
    """Return a remedy for an unknown name: the nearest known name, or the list of known names."""
    names = sorted(set(known))
    near = find_nearest(word, names)
    if near:
        return f"did you mean `{near}`?"
    if not names:
        return ""
    if len(names) > MAX_NAMES:
        return "use one of " + ", ".join(f"`{name}`" for name in names[:MAX_NAMES]) + ", …"
    return "use " + join_with_or(names)


def join_with_or(names: Iterable[str]) -> str:
    """Return `a, b or c`, each in backticks."""
    quoted = [f"`{name}`" for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
