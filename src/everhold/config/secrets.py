"""Read secrets from the process environment, then from `.env` in the home. Errors never contain a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from everhold.config.errors import ConfigProblem
from everhold.config.literals import is_env_name
from everhold.infra.secret import SecretString

_LINE_PATTERN: Final = re.compile(r"\s*(?:export\s+)?(?P<name>[^\s=#]+)\s*=[ \t]*(?P<rest>.*)", re.DOTALL)
_COMMENT_PATTERN: Final = re.compile(r"(?:^|\s)#.*", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}
_BARE_VALUE_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:/@%+,=~-]*")


@dataclass(frozen=True, slots=True)
class EnvLine:
    """One assignment of a `.env` file. `line` counts from 1."""

    name: str
    value: SecretString
    line: int


def parse_env(data: bytes, *, file: str = ".env") -> tuple[list[EnvLine], list[ConfigProblem]]:
    """Parse a `.env` file: `NAME=value` per line, `#` comments, optional quotes. Nothing is expanded."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return [], [ConfigProblem("is not UTF-8 text", "save the file as UTF-8", file=file, line=line)]
    lines: list[EnvLine] = []
    problems: list[ConfigProblem] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        raw = raw.rstrip("\r")
        if not raw.strip() or raw.lstrip().startswith("#"):
            continue
        found = _LINE_PATTERN.fullmatch(raw)
        if found is None or not is_env_name(found["name"]):
            problems.append(
                ConfigProblem("is not NAME=value", "write NAME=value, or # before it", file=file, line=number)
            )
            continue
        value = _parse_value(found["rest"])
        if value is None or "\0" in value:
            problems.append(
                ConfigProblem(f"{found['name']} is not quoted properly", 'write NAME="value"', file=file, line=number)
            )
            continue
        lines.append(EnvLine(found["name"], SecretString(value), number))
    return lines, problems


def _parse_value(rest: str) -> str | None:
    """Return the value after the `=`, None if its quotes are wrong."""
    rest = rest.strip()
    quote = rest[:1]
    if quote not in ("'", '"') or not quote:
        return _COMMENT_PATTERN.sub("", rest).strip()
    value: list[str] = []
    place = 1
    while place < len(rest):
        char = rest[place]
        if char == quote:
            after = rest[place + 1 :]
            return "".join(value) if not _COMMENT_PATTERN.sub("", after).strip() else None
        if char == "\\" and quote == '"' and rest[place + 1 : place + 2] in _ESCAPES:
            place += 1
            char = _ESCAPES[rest[place]]
        value.append(char)
        place += 1
    return None


def format_env_line(name: str, value: SecretString) -> str:
    """Return a line that `parse_env` reads back as exactly this value."""
    text = value.reveal()
    if _BARE_VALUE_PATTERN.fullmatch(text):
        return f"{name}={text}"
    for char, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(char, escape)
    return f'{name}="{text}"'


class SecretEnvironment:
    """Looks up secrets by name. A blank variable counts as not set, because a blank key must not grant access."""

    def __init__(self, environ: Mapping[str, str], lines: list[EnvLine] | None = None) -> None:
        self._environ = environ
        self._file = {line.name: line.value for line in lines or ()}

    def get(self, name: str) -> SecretString | None:
        for value in (self._environ.get(name, ""), self._file.get(name, SecretString("")).reveal()):
            if value.strip():
                return SecretString(value)
        return None
