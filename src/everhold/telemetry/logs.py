"""Log lines: how they are rendered, what is hidden in them, where they go. Keeps no record and never raises.

    log = open_log(clock=clock, home=home, form="json")
    log.info("config.loaded", revision=3)
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

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogSink: TypeAlias = Callable[[str], None]
"""Takes one rendered line; raises OSError or ValueError when it cannot."""

HIDDEN_TEXT: Final = "***"

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
_NEEDS_QUOTES: Final = re.compile(r"[ =\"'\\]")
_OPEN_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)  # Windows has neither
_MAX_CACHED_CHARS: Final = 64
_MAX_CACHED_TEXTS: Final = 4_096
_MIN_SECRET_CHARS: Final = 6
_MAX_DEPTH: Final = 6
_MAX_PLAIN_INT: Final = 1 << 63
_BOUNDED_REPR: Final = reprlib.Repr()  # bounded, and unlike repr() it survives an object that cannot describe itself
_BOUNDED_REPR.maxother = _BOUNDED_REPR.maxstring = 500


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


class SecretRedaction:
    """The secrets this process knows, and the shapes that secrets have."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.rendered_fields: dict[tuple[str, object], str] = {}
        """Fields and their short values as they look in a line, for whoever renders one; they hold until `hide`."""
        self._scrubbed_texts: dict[str, str] = {}
        """Short texts that were looked at before: the same few ids and names are in most lines."""

    def add_secrets(self, *secrets: str) -> None:
        """Never show these again, however they are escaped. What is too short to be one would blot out whole lines."""
        for secret in map(str.strip, secrets):
            if len(secret) >= _MIN_SECRET_CHARS:
                self._known |= {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
        longest_first = sorted(self._known, key=lambda secret: (-len(secret), secret))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._scrubbed_texts.clear()
        self.rendered_fields.clear()

    def scrub_text(self, text: str) -> str:
        """`text` without secrets."""
        if len(text) > _MAX_CACHED_CHARS:
            return self._scrub_uncached(text)
        found = self._scrubbed_texts.get(text)
        if found is None:
            if len(self._scrubbed_texts) >= _MAX_CACHED_TEXTS:
                self._scrubbed_texts.clear()
            found = self._scrubbed_texts[text] = self._scrub_uncached(text)
        return found

    def _scrub_uncached(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN_TEXT, text)
        return _SECRET_SHAPE.sub(
            lambda found: (found["keep"] or found["also"] or found["user"] or "") + HIDDEN_TEXT, text
        )

    def render_plain(self, value: object, *, name: str = "", depth: int = _MAX_DEPTH) -> object:
        """`value`, known under `name`, as data that may be shown."""
        match value:
            case None | bool():
                return value
            case int():
                return value if value.bit_length() < 1000 else hex(value)
            case float():
                return value if math.isfinite(value) else repr(value)
            case str():
                return HIDDEN_TEXT if value and _is_secret_name(name) else self.scrub_text(str.__str__(value))
            case BaseException():
                told = traceback.TracebackException(type(value), value, None).format_exception_only()
                return self.scrub_text("".join(told).strip())
            case datetime() | PurePath():
                return self.scrub_text(str(value))
            case dict() if depth:
                inside = {
                    self.scrub_text(k) if isinstance(k, str) else _BOUNDED_REPR.repr(k): v
                    for k, v in value.copy().items()
                }
                return {k: self.render_plain(v, name=k, depth=depth - 1) for k, v in inside.items()}
            case list() | tuple() | set() | frozenset() if depth:
                return [self.render_plain(item, name=name, depth=depth - 1) for item in list(value)]
            case _:
                return self.scrub_text(_BOUNDED_REPR.repr(value))

    def render_trace(self, values: Iterable[object]) -> str:
        """The trace of the first exception that has one."""
        for value in values:
            if isinstance(value, BaseException) and value.__traceback__ is not None:
                return self.scrub_text("".join(traceback.TracebackException.from_exception(value).format()).rstrip())
        return ""


# -- how a line looks --------------------------------------------------------------------------------------------------


class LogLine(NamedTuple):
    """One event, ready to be rendered: everything in it is plain and scrubbed."""

    at: str
    level: LogLevel
    event: str
    fields: Mapping[str, object]
    trace: str = ""


def render_json(line: LogLine) -> str:
    whole = {"at": line.at, "level": line.level, "event": line.event, **line.fields}
    if line.trace:
        whole["trace"] = line.trace
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def render_text(line: LogLine) -> str:
    fields = "".join(f" {name}={_render_value(value)}" for name, value in line.fields.items())
    trace = "".join(f"\n    {row}" for row in line.trace.splitlines())
    return f"{line.at} {line.level:<7} {line.event}{fields}{trace}"


def _render_value(value: object) -> str:
    """A value as one word, quoted as soon as it could be taken for more: no message can forge a line or a field."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"))
    plain = bool(value) and value.isprintable() and _NEEDS_QUOTES.search(value) is None
    return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())


def _format_time(seconds: float) -> str:
    try:
        whole = math.floor(seconds)
        return f"{_format_second(whole)}.{int((seconds - whole) * 1000):03d}Z"
    except (OverflowError, OSError, ValueError):  # a clock far out of this world still gets its lines
        return repr(seconds)


@lru_cache(maxsize=2)
def _format_second(seconds: int) -> str:
    """Most lines are of the same second as the one before."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


# -- where lines go ----------------------------------------------------------------------------------------------------


def build_stream_sink(stream: TextIO) -> LogSink:
    """Lines to an open stream, such as stderr, in whatever encoding it has."""
    encoding = stream.encoding or "utf-8"

    def write(line: str) -> None:
        if not line.isascii():
            line = line.encode(encoding, "backslashreplace").decode(encoding)
        stream.write(line + "\n")
        stream.flush()

    return write


class RotatingLogFile:
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
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _OPEN_FLAGS, 0o600)
        self._size = os.fstat(file).st_size
        return file

    def _rotate(self) -> None:
        for newer, older in reversed(list(zip(self._names, self._names[1:], strict=False))):
            if newer.exists():
                newer.replace(older)


# -- the log -----------------------------------------------------------------------------------------------------------

_LEVEL_RANK: Final[dict[LogLevel, int]] = {"debug": 0, "info": 1, "warning": 2, "error": 3}
_RESERVED_FIELDS: Final = frozenset({"at", "level", "event", "trace"})


class _LogOutlet:
    """What all logs of a process share."""

    def __init__(
        self,
        *,
        clock: Clock,
        sinks: Iterable[LogSink],
        render: Callable[[LogLine], str],
        level: LogLevel,
        redaction: SecretRedaction,
    ) -> None:
        self.min_rank = _LEVEL_RANK[level]
        self.redaction = redaction
        self._clock = clock
        self._render = render
        self._lost = dict.fromkeys(sinks, 0)
        self._lock = RLock()  # a finaliser may log in the middle of a line

    def emit_event(self, level: LogLevel, event: str, fields: Mapping[str, object]) -> None:
        at = _format_time(self._clock.now())
        if level == "error" or self._render is not render_text:
            text = self._render(self._build_line(at, level, event, fields))
        else:
            text = f"{at} {level:<7} {self.redaction.scrub_text(event)}{self._render_fields(fields)}"
        with self._lock:
            for sink, lost in self._lost.items():
                try:
                    if lost:
                        sink(self._render(LogLine(at, "warning", "log.lost", {"lines": lost})))
                        self._lost[sink] = 0
                    sink(text)
                except (OSError, ValueError):
                    self._lost[sink] += 1

    def _build_line(self, at: str, level: LogLevel, event: str, fields: Mapping[str, object]) -> LogLine:
        plain = self.redaction.render_plain
        shown = {_render_field_name(name): plain(value, name=name) for name, value in fields.items()}
        trace = self.redaction.render_trace(fields.values()) if level == "error" else ""
        return LogLine(at, level, self.redaction.scrub_text(event), shown, trace)

    def _render_fields(self, fields: Mapping[str, object]) -> str:
        """What `as_text` makes of fields. A turn has several lines, and most words of them were in those before."""
        told = ""
        known = self.redaction.rendered_fields
        for name, value in fields.items():
            if type(value) is int and -_MAX_PLAIN_INT < value < _MAX_PLAIN_INT:
                told += f" {_render_field_name(name)}={value}"
                continue
            short = type(value) is str and len(value) <= _MAX_CACHED_CHARS
            word = known.get((name, value)) if short else None
            if word is None:
                word = f" {_render_field_name(name)}={_render_value(self.redaction.render_plain(value, name=name))}"
                if short:
                    if len(known) >= _MAX_CACHED_TEXTS:
                        known.clear()
                    known[name, value] = word
            told += word
        return told


def _render_field_name(name: str) -> str:
    return f"{name}_" if name in _RESERVED_FIELDS else name


class StructuredLogger:
    """A `everhold.ports.log.EventLogger`. Binding gives a new one; nobody's lines change under them."""

    __slots__ = ("_bound", "_outlet")

    def __init__(self, outlet: _LogOutlet, bound: Mapping[str, object]) -> None:
        self._outlet = outlet
        self._bound = bound

    def debug(self, event: str, /, **fields: object) -> None:
        self._emit("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._emit("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._emit("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._emit("error", event, fields)

    def bind(self, **fields: object) -> StructuredLogger:
        return StructuredLogger(self._outlet, {**self._bound, **fields})

    @property
    def redaction(self) -> SecretRedaction:
        """Shared with every log bound from this one: who resolves a secret hides it here."""
        return self._outlet.redaction

    def _emit(self, level: LogLevel, event: str, fields: Mapping[str, object]) -> None:
        if _LEVEL_RANK[level] >= self._outlet.min_rank:
            self._outlet.emit_event(level, event, {**self._bound, **fields})


def open_log(
    *,
    clock: Clock,
    home: Path | None = None,
    form: LogFormat = "text",
    level: LogLevel = "info",
    stream: TextIO | None = None,
    redaction: SecretRedaction | None = None,
) -> StructuredLogger:
    """A log to `stream` (stderr unless given) and, with a `home`, to its logs/everhold.log."""
    sinks: list[LogSink] = [build_stream_sink(sys.stderr if stream is None else stream)]
    if home is not None:
        sinks.append(RotatingLogFile(home / "logs" / "everhold.log"))
    outlet = _LogOutlet(
        clock=clock,
        sinks=sinks,
        render=render_json if form == "json" else render_text,
        level=level,
        redaction=SecretRedaction() if redaction is None else redaction,
    )
    return StructuredLogger(outlet, {})


def adopt_stdlib(log: StructuredLogger) -> None:
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
