"""Log lines: how they are rendered, what is hidden in them, where they go. Keeps no record and never raises.

    log = open_log(clock=clock, home=home, form="json")
    log.info("config.revision", revision=3)
    log.bind(session=claim.session, op=claim.op).info("turn.started")

What cannot be written (a full disk, a closed terminal) is counted, and the count is told once writing works again.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path, PurePath
from threading import RLock
from typing import Final, Literal, NamedTuple, TextIO, TypeAlias
from urllib.parse import quote

from everhold.ports.clock import Clock

Form: TypeAlias = Literal["text", "json"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Sink: TypeAlias = Callable[[str], None]
"""Takes one rendered line; raises OSError or ValueError when it cannot."""

HIDDEN: Final = "***"

# -- what must not be seen ---------------------------------------------------------------------------------------------

_SECRET_NAME: Final = re.compile(r"(?i)(?:^|_)(?:token|secret|password|passwd|api_key|authorization|cookie)$")
_SECRET_SHAPE: Final = re.compile(
    r"""
      (?P<keep> (?i: \bauthorization["']?\s*[:=]\s*["']?(?:\w+\s+)? | \bbearer\s+ ) ) [\w.~+/=-]{16,}
    | (?P<also> (?i: [?&](?:\w*_)?(?:key|token|secret|password|code|sig|signature)= ) ) [^\s&"'<>]+
    | (?P<user> ://[^\s/:@]*: ) [^\s/@]+ (?=@)                      # a password inside an address
    | \b(?:sk|rk|hf|hch|m0|gh[a-z]|glpat|syt|mct)[-_][\w-]{16,}      # tokens that say what they are
    | \bx(?:ox[a-z]|app)-[\w-]{10,}
    | (?<!\d)\d{6,12}:[\w-]{33,36}(?![\w-])                         # an account's number and its key
    | \b[MNO][\w-]{22,27}\.[\w-]{6,7}\.[\w-]{27,}                    # number, time, signature
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*                              # signed claims
    | \bAKIA[A-Z0-9]{16}\b
    """,
    re.VERBOSE | re.ASCII,
)
_QUOTED: Final = re.compile(r"[ =\"'\\]")
_CAREFULLY: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)  # Windows has neither
_SHORT: Final = 64
_REMEMBERED: Final = 4_096
_SHORTEST: Final = 6
_DEPTH: Final = 6
_PLAIN_INT: Final = 1 << 63
_DESCRIBE: Final = reprlib.Repr()  # bounded, and unlike repr() it survives an object that cannot describe itself
_DESCRIBE.maxother = _DESCRIBE.maxstring = 500


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


class Redaction:
    """The secrets this process knows, and the shapes that secrets have."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.words: dict[tuple[str, object], str] = {}
        """Fields and their short values as they look in a line, for whoever renders one; they hold until `hide`."""
        self._clean: dict[str, str] = {}
        """Short texts that were looked at before: the same few ids and names are in most lines."""

    def hide(self, *secrets: str) -> None:
        """Never show these again, however they are escaped. What is too short to be one would blot out whole lines."""
        for secret in map(str.strip, secrets):
            if len(secret) >= _SHORTEST:
                self._known |= {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
        longest_first = sorted(self._known, key=lambda secret: (-len(secret), secret))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._clean.clear()
        self.words.clear()

    def scrub(self, text: str) -> str:
        """`text` without secrets."""
        if len(text) > _SHORT:
            return self._scrub(text)
        found = self._clean.get(text)
        if found is None:
            if len(self._clean) >= _REMEMBERED:
                self._clean.clear()
            found = self._clean[text] = self._scrub(text)
        return found

    def _scrub(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        return _SECRET_SHAPE.sub(lambda found: (found["keep"] or found["also"] or found["user"] or "") + HIDDEN, text)

    def plain(self, value: object, *, name: str = "", depth: int = _DEPTH) -> object:
        """`value`, known under `name`, as data that may be shown."""
        match value:
            case None | bool():
                return value
            case int():
                return value if value.bit_length() < 1000 else hex(value)
            case float():
                return value if math.isfinite(value) else repr(value)
            case str():
                return HIDDEN if value and _is_secret_name(name) else self.scrub(str.__str__(value))
            case BaseException():
                told = traceback.TracebackException(type(value), value, None).format_exception_only()
                return self.scrub("".join(told).strip())
            case datetime() | PurePath():
                return self.scrub(str(value))
            case dict() if depth:
                inside = {
                    self.scrub(k) if isinstance(k, str) else _DESCRIBE.repr(k): v for k, v in value.copy().items()
                }
                return {k: self.plain(v, name=k, depth=depth - 1) for k, v in inside.items()}
            case list() | tuple() | set() | frozenset() if depth:
                return [self.plain(item, name=name, depth=depth - 1) for item in list(value)]
            case _:
                return self.scrub(_DESCRIBE.repr(value))

    def trace(self, values: Iterable[object]) -> str:
        """The trace of the first exception that has one."""
        for value in values:
            if isinstance(value, BaseException) and value.__traceback__ is not None:
                return self.scrub("".join(traceback.TracebackException.from_exception(value).format()).rstrip())
        return ""


# -- how a line looks --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One event, ready to be rendered: everything in it is plain and scrubbed."""

    at: str
    level: Level
    event: str
    fields: Mapping[str, object]
    trace: str = ""


def as_json(line: Line) -> str:
    whole = {"at": line.at, "level": line.level, "event": line.event, **line.fields}
    if line.trace:
        whole["trace"] = line.trace
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def as_text(line: Line) -> str:
    fields = "".join(f" {name}={_word(value)}" for name, value in line.fields.items())
    trace = "".join(f"\n    {row}" for row in line.trace.splitlines())
    return f"{line.at} {line.level:<7} {line.event}{fields}{trace}"


def _word(value: object) -> str:
    """A value as one word, quoted as soon as it could be taken for more: no message can forge a line or a field."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"))
    plain = bool(value) and value.isprintable() and _QUOTED.search(value) is None
    return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())


def _moment(seconds: float) -> str:
    try:
        whole = math.floor(seconds)
        return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"
    except (OverflowError, OSError, ValueError):  # a clock far out of this world still gets its lines
        return repr(seconds)


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    """Most lines are of the same second as the one before."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


# -- where lines go ----------------------------------------------------------------------------------------------------


def to_stream(stream: TextIO) -> Sink:
    """Lines to an open stream, such as stderr, in whatever encoding it has."""
    encoding = stream.encoding or "utf-8"

    def write(line: str) -> None:
        if not line.isascii():
            line = line.encode(encoding, "backslashreplace").decode(encoding)
        stream.write(line + "\n")
        stream.flush()

    return write


class RotatingFile:
    """Lines to a file that only its owner can read; a full file becomes `.1`, `.1` becomes `.2`, the oldest goes."""

    def __init__(self, path: Path, *, max_bytes: int = 10_000_000, keep: int = 5) -> None:
        self._max_bytes = max_bytes
        self._names = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, keep + 1))]
        self._file: int | None = None
        self._size = 0

    def __call__(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        if self._file is None:
            self._file = self._open()
        if self._size and self._size + len(data) > self._max_bytes:
            self.close()
            self._rotate()
            self._file = self._open()
        self._size += os.write(self._file, data)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _open(self) -> int:
        path = self._names[0]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _CAREFULLY, 0o600)
        self._size = os.fstat(file).st_size
        return file

    def _rotate(self) -> None:
        for newer, older in reversed(list(zip(self._names, self._names[1:], strict=False))):
            if newer.exists():
                newer.replace(older)


# -- the log -----------------------------------------------------------------------------------------------------------

_RANK: Final[dict[Level, int]] = {"debug": 0, "info": 1, "warning": 2, "error": 3}
_OWN_NAMES: Final = frozenset({"at", "level", "event", "trace"})


class _Outlet:
    """What all logs of a process share."""

    def __init__(
        self, *, clock: Clock, sinks: Iterable[Sink], render: Callable[[Line], str], level: Level, redaction: Redaction
    ) -> None:
        self.rank = _RANK[level]
        self.redaction = redaction
        self._clock = clock
        self._render = render
        self._lost = dict.fromkeys(sinks, 0)
        self._lock = RLock()  # a finaliser may log in the middle of a line

    def emit(self, level: Level, event: str, fields: Mapping[str, object]) -> None:
        at = _moment(self._clock.now())
        if level == "error" or self._render is not as_text:
            text = self._render(self._line(at, level, event, fields))
        else:
            text = f"{at} {level:<7} {self.redaction.scrub(event)}{self._words(fields)}"
        with self._lock:
            for sink, lost in self._lost.items():
                try:
                    if lost:
                        sink(self._render(Line(at, "warning", "log.lost", {"lines": lost})))
                        self._lost[sink] = 0
                    sink(text)
                except (OSError, ValueError):
                    self._lost[sink] += 1

    def _line(self, at: str, level: Level, event: str, fields: Mapping[str, object]) -> Line:
        plain = self.redaction.plain
        shown = {_field(name): plain(value, name=name) for name, value in fields.items()}
        trace = self.redaction.trace(fields.values()) if level == "error" else ""
        return Line(at, level, self.redaction.scrub(event), shown, trace)

    def _words(self, fields: Mapping[str, object]) -> str:
        """What `as_text` makes of fields. A turn has several lines, and most words of them were in those before."""
        told = ""
        known = self.redaction.words
        for name, value in fields.items():
            if type(value) is int and -_PLAIN_INT < value < _PLAIN_INT:
                told += f" {_field(name)}={value}"
                continue
            short = type(value) is str and len(value) <= _SHORT
            word = known.get((name, value)) if short else None
            if word is None:
                word = f" {_field(name)}={_word(self.redaction.plain(value, name=name))}"
                if short:
                    if len(known) >= _REMEMBERED:
                        known.clear()
                    known[name, value] = word
            told += word
        return told


def _field(name: str) -> str:
    return f"{name}_" if name in _OWN_NAMES else name


class Logger:
    """A `everhold.ports.log.Log`. Binding gives a new one; nobody's lines change under them."""

    __slots__ = ("_bound", "_outlet")

    def __init__(self, outlet: _Outlet, bound: Mapping[str, object]) -> None:
        self._outlet = outlet
        self._bound = bound

    def debug(self, event: str, /, **fields: object) -> None:
        self._say("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._say("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._say("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._say("error", event, fields)

    def bind(self, **fields: object) -> Logger:
        return Logger(self._outlet, {**self._bound, **fields})

    @property
    def redaction(self) -> Redaction:
        """Shared with every log bound from this one: who resolves a secret hides it here."""
        return self._outlet.redaction

    def _say(self, level: Level, event: str, fields: Mapping[str, object]) -> None:
        if _RANK[level] >= self._outlet.rank:
            self._outlet.emit(level, event, {**self._bound, **fields})


def open_log(
    *,
    clock: Clock,
    home: Path | None = None,
    form: Form = "text",
    level: Level = "info",
    stream: TextIO | None = None,
    redaction: Redaction | None = None,
) -> Logger:
    """A log to `stream` (stderr unless given) and, with a `home`, to its logs/everhold.log."""
    sinks: list[Sink] = [to_stream(sys.stderr if stream is None else stream)]
    if home is not None:
        sinks.append(RotatingFile(home / "logs" / "everhold.log"))
    outlet = _Outlet(
        clock=clock,
        sinks=sinks,
        render=as_json if form == "json" else as_text,
        level=level,
        redaction=Redaction() if redaction is None else redaction,
    )
    return Logger(outlet, {})


def adopt_stdlib(log: Logger) -> None:
    """Warnings of the libraries we use come through `log`, scrubbed like our own lines; their chatter does not."""
    import logging  # only a running gateway needs it

    class Bridge(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                text = record.getMessage()
            except (TypeError, ValueError, KeyError):  # the caller's arguments do not fit the caller's format
                text = str(record.msg)
            say = log.error if record.levelno >= logging.ERROR else log.warning
            error = record.exc_info[1] if record.exc_info else None
            say("library.warned", library=record.name, text=text, **({"error": error} if error else {}))

    logging.basicConfig(handlers=[Bridge()], level=logging.WARNING, force=True)
