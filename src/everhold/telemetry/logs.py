"""Render log lines, hide secrets in them, and write them. Logging never raises.

    log = open_log(clock=clock, home=home, form="json")
    log.info("config.loaded", revision=3)
    log.bind(session=claim.session, op=claim.op).info("turn.started")

A JSON line with `session` and `op` also has the ids of the trace of that operation, whether traces are exported or not.

Lines that cannot be written (a full disk, a closed terminal) are counted. The count is logged when writing works again.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path, PurePath
from threading import RLock
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TextIO, TypeAlias
from urllib.parse import quote

from everhold.core.trace_ids import OPERATION_SPAN, make_span_id, make_trace_id
from everhold.ports.clock import Clock

if TYPE_CHECKING:
    from logging import LogRecord

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogSink: TypeAlias = Callable[[str], None]
"""Writes one rendered line. Raises OSError or ValueError if it cannot."""

HIDDEN_TEXT: Final = "***"

# -- secrets -----------------------------------------------------------------------------------------------------------

_SECRET_NAME: Final = re.compile(r"(?i)(?:^|_)(?:token|secret|password|passwd|api_key|authorization|cookie)$")
_SECRET_SHAPE: Final = re.compile(
    r"""
      (?P<keep> (?i: \bauthorization["']?\s*[:=]\s*["']?(?:\w+\s+)? | \bbearer\s+ ) ) [\w.~+/=-]{16,}
    | (?P<also> (?i: [?&](?:\w*_)?(?:key|token|secret|password|code|sig|signature)= ) ) [^\s&"'<>]+
    | (?P<user> ://[^\s/:@]*: ) [^\s/@]+ (?=@)                      # a password inside an address
    | \b(?:sk|rk|hf|hch|m0|gh[a-z]|glpat|syt|mct)[-_][\w-]{16,}      # tokens with a known prefix
    | \bx(?:ox[a-z]|app)-[\w-]{10,}
    | (?<!\d)\d{6,12}:[\w-]{33,36}(?![\w-])                         # an account's number and its key
    | \b[MNO][\w-]{22,27}\.[\w-]{6,7}\.[\w-]{27,}                    # number, time, signature
    | \bAKIA[A-Z0-9]{16}\b
    """,
    re.VERBOSE | re.ASCII,
)
_SIGNED_CLAIMS: Final = re.compile(
    r"(?<![\w-]) (?:(?!\beyJ)[\w-])*+ eyJ[\w-]{8,}+ \. [\w-]{8,}+ \. [\w-]*+", re.VERBOSE | re.ASCII
)
"""Begins only where a run of such characters begins, and reads each run once. So its cost is linear."""
_NEEDS_QUOTES: Final = re.compile(r"[ =\"'\\]")
_OPEN_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)  # Windows has neither
_MAX_CACHED_CHARS: Final = 64
_MAX_CACHED_TEXTS: Final = 4_096
_MIN_SECRET_CHARS: Final = 6
_MAX_DEPTH: Final = 6
MAX_TEXT_CHARS: Final = 4_000
"""Of one text in a log line. A longer one is cut before its secrets are hidden, so that its cost is bounded."""
MAX_TRACE_CHARS: Final = 32_000
_CUT_MARGIN_CHARS: Final = 256
"""Half of a secret at the cut is not recognized. So this much is read and not shown, or more if a secret is longer."""
_MAX_FRAMES: Final = 12
_MAX_ITEMS: Final = 200
"""Of all lists and mappings in one field."""
_MAX_PLAIN_INT: Final = 1 << 63
_BOUNDED_REPR: Final = reprlib.Repr()  # bounded, and unlike repr() it survives an object that cannot describe itself
_BOUNDED_REPR.maxother = _BOUNDED_REPR.maxstring = 500


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


class SecretRedaction:
    """Hides the secrets that this process knows, and texts that have the shape of a secret."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._margin_chars = _CUT_MARGIN_CHARS
        self.rendered_fields: dict[tuple[str, object], str] = {}
        """Cache of rendered fields with short values. Cleared by `add_secrets`."""
        self._scrubbed_texts: dict[str, str] = {}
        """Cache of scrubbed short texts, because most lines repeat the same ids and names."""

    def add_secrets(self, *secrets: str) -> None:
        """Hide these secrets from now on, also URL-quoted or JSON-escaped. Very short texts are ignored."""
        for secret in map(str.strip, secrets):
            if len(secret) >= _MIN_SECRET_CHARS:
                self._known |= {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
        self._margin_chars = max(_CUT_MARGIN_CHARS, *map(len, self._known), 0)
        longest_first = sorted(self._known, key=lambda secret: (-len(secret), secret))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._scrubbed_texts.clear()
        self.rendered_fields.clear()

    def scrub_text(self, text: str) -> str:
        """Return `text` with its secrets hidden."""
        if len(text) > _MAX_CACHED_CHARS:
            return self._scrub_uncached(text)
        found = self._scrubbed_texts.get(text)
        if found is None:
            if len(self._scrubbed_texts) >= _MAX_CACHED_TEXTS:
                self._scrubbed_texts.clear()
            found = self._scrubbed_texts[text] = self._scrub_uncached(text)
        return found

    def scrub_bounded(self, text: str, *, max_chars: int = MAX_TEXT_CHARS) -> str:
        """Return the beginning of `text` with its secrets hidden. What follows is not read."""
        if len(text) <= max_chars:
            return self.scrub_text(text)
        read = self.scrub_text(text[: max_chars + self._margin_chars])
        return f"{read[: -self._margin_chars]}… ({len(text):,} characters)"

    def _scrub_uncached(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN_TEXT, text)
        if "eyJ" in text:
            text = _SIGNED_CLAIMS.sub(HIDDEN_TEXT, text)
        return _SECRET_SHAPE.sub(
            lambda found: (found["keep"] or found["also"] or found["user"] or "") + HIDDEN_TEXT, text
        )

    def render_plain(self, value: object, *, name: str = "") -> object:
        """Return `value` of the field `name` as plain data without secrets, of a bounded size."""
        return self._render_inside(value, name, _MAX_DEPTH, iter(range(_MAX_ITEMS)))

    def _render_inside(self, value: object, name: str, depth: int, room: Iterator[int]) -> object:
        """Render a value. `room` has an item for each item of a list or mapping that may still be shown."""
        match value:
            case None | bool():
                return value
            case int():
                return value if value.bit_length() < 1000 else "a number of more than 300 digits"
            case float():
                return value if math.isfinite(value) else repr(value)
            case str():
                return HIDDEN_TEXT if value and _is_secret_name(name) else self.scrub_bounded(str.__str__(value))
            case BaseException():
                lines = traceback.TracebackException(type(value), value, None).format_exception_only()
                return self.scrub_bounded("".join(lines).strip())
            case datetime() | PurePath():
                return self.scrub_bounded(str(value))
            case dict() if depth:
                shown: dict[str, object] = {}
                for key, item in value.copy().items():
                    if next(room, None) is None:
                        shown["…"] = f"{len(value):,} items"
                        break
                    word = self.scrub_bounded(key) if isinstance(key, str) else _BOUNDED_REPR.repr(key)
                    shown[word] = self._render_inside(item, word, depth - 1, room)
                return shown
            case list() | tuple() | set() | frozenset() if depth:
                items: list[object] = []
                for item in list(value):
                    if next(room, None) is None:
                        items.append(f"… {len(value):,} items")
                        break
                    items.append(self._render_inside(item, name, depth - 1, room))
                return items
            case _:
                return self.scrub_bounded(_BOUNDED_REPR.repr(value))

    def render_trace(self, values: Iterable[object]) -> str:
        """Return the traceback of the first exception that has one."""
        for value in values:
            if isinstance(value, BaseException) and value.__traceback__ is not None:
                text = "".join(traceback.TracebackException.from_exception(value).format()).rstrip()
                return self.scrub_bounded(text, max_chars=MAX_TRACE_CHARS)
        return ""


# -- rendering ---------------------------------------------------------------------------------------------------------


class LogLine(NamedTuple):
    """One event, ready to be rendered. Its fields are plain data without secrets."""

    at: str
    level: LogLevel
    event: str
    fields: Mapping[str, object]
    trace: str = ""


def build_line_object(line: LogLine) -> dict[str, object]:
    """Return a line as one object, as a JSON line has it."""
    whole = {"at": line.at, "level": line.level, "event": line.event, **line.fields}
    return {**whole, "trace": line.trace} if line.trace else whole


def render_json(line: LogLine) -> str:
    return json.dumps(build_line_object(line), ensure_ascii=False, separators=(",", ":"))


def render_text(line: LogLine) -> str:
    fields = "".join(f" {name}={_render_value(value)}" for name, value in line.fields.items())
    trace = "".join(f"\n    {row}" for row in line.trace.splitlines())
    return f"{line.at} {line.level:<7} {line.event}{fields}{trace}"


LogWatcher: TypeAlias = Callable[[LogLine], None]
"""Sees each line after it was written. It must not wait or raise."""

_encode_compact: Final = json.JSONEncoder(separators=(",", ":")).encode
"""As `json.dumps`, which makes an encoder for every call with separators."""


def _render_value(value: object) -> str:
    """Render a value as one word. Ambiguous text is quoted, so that a message cannot forge a line or a field."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return _encode_compact(value)
    plain = bool(value) and value.isprintable() and _NEEDS_QUOTES.search(value) is None
    return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())


def _format_time(seconds: float) -> str:
    try:
        whole = math.floor(seconds)
        return f"{_format_second(whole)}.{int((seconds - whole) * 1000):03d}Z"
    except (OverflowError, OSError, ValueError):  # a time outside of the calendar
        return repr(seconds)


@lru_cache(maxsize=2)
def _format_second(seconds: int) -> str:
    """Render whole seconds. Cached, because most lines fall into the same second as the line before."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


# -- sinks -------------------------------------------------------------------------------------------------------------


def build_stream_sink(stream: TextIO) -> LogSink:
    """Return a sink that writes to an open stream, such as stderr, in the stream's encoding."""
    encoding = stream.encoding or "utf-8"

    def write(line: str) -> None:
        if not line.isascii():
            line = line.encode(encoding, "backslashreplace").decode(encoding)
        stream.write(line + "\n")
        stream.flush()

    return write


class RotatingLogFile:
    """Writes to a file with mode 0600. A full file is renamed to `.1`, `.1` to `.2`, and the oldest is removed."""

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


# -- loggers -----------------------------------------------------------------------------------------------------------

_LEVEL_RANK: Final[dict[LogLevel, int]] = {"debug": 0, "info": 1, "warning": 2, "error": 3}
_RESERVED_FIELDS: Final = frozenset({"at", "level", "event", "trace"})


class _LogOutlet:
    """The state that all loggers of a process share."""

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
        self.watchers: list[LogWatcher] = []
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
        if self.watchers:
            line = self._build_line(at, level, event, fields)
            for watcher in tuple(self.watchers):
                watcher(line)

    def _build_line(self, at: str, level: LogLevel, event: str, fields: Mapping[str, object]) -> LogLine:
        plain = self.redaction.render_plain
        shown = {_render_field_name(name): plain(value, name=name) for name, value in fields.items()}
        session, op = fields.get("session"), fields.get("op")
        if type(session) is str and type(op) is int and self._render is render_json:
            shown["trace_id"] = trace_id = make_trace_id(session, op)
            shown["span_id"] = make_span_id(trace_id, OPERATION_SPAN)
        trace = self.redaction.render_trace(fields.values()) if level == "error" else ""
        return LogLine(at, level, self.redaction.scrub_text(event), shown, trace)

    def _render_fields(self, fields: Mapping[str, object]) -> str:
        """Render fields as `render_text` does. Cached, because the lines of a turn repeat most of their values."""
        text = ""
        known = self.redaction.rendered_fields
        for name, value in fields.items():
            if type(value) is int and -_MAX_PLAIN_INT < value < _MAX_PLAIN_INT:
                text += f" {_render_field_name(name)}={value}"
                continue
            short = type(value) is str and len(value) <= _MAX_CACHED_CHARS
            word = known.get((name, value)) if short else None
            if word is None:
                word = f" {_render_field_name(name)}={_render_value(self.redaction.render_plain(value, name=name))}"
                if short:
                    if len(known) >= _MAX_CACHED_TEXTS:
                        known.clear()
                    known[name, value] = word
            text += word
        return text


def _render_field_name(name: str) -> str:
    return f"{name}_" if name in _RESERVED_FIELDS else name


class StructuredLogger:
    """An `everhold.ports.log.EventLogger`. `bind` returns a new logger and leaves this one unchanged."""

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

    def watch(self, watcher: LogWatcher) -> Callable[[], None]:
        """Call `watcher` for every line from now on, on the thread that logs it. Return what ends that."""
        self._outlet.watchers.append(watcher)
        return lambda: self._outlet.watchers.remove(watcher)

    def bind(self, **fields: object) -> StructuredLogger:
        return StructuredLogger(self._outlet, {**self._bound, **fields})

    @property
    def redaction(self) -> SecretRedaction:
        """The redaction, shared with every logger bound from this one. Add each resolved secret to it."""
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
    """Return a logger that writes to `stream` (default: stderr) and, if given a `home`, to its logs/everhold.log."""
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
    """Send warnings and errors of libraries to `log`. Their lower levels are dropped.

    A library may put what it received into its text: a body, an event, a header. So the log shows the words that its
    source contains, the place, the type of the error and the frames, and nothing that was formatted into them.
    """
    import logging  # only a running gateway needs it

    class LoggingBridge(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            emit = log.error if record.levelno >= logging.ERROR else log.warning
            error = record.exc_info[1] if record.exc_info else None
            emit(
                "library.warned",
                library=record.name,
                text=_extract_source_words(record),
                place=f"{record.module}:{record.lineno}",
                **({"error": type(error).__name__, "frames": _list_frames(error)} if error else {}),
            )

    bridge = LoggingBridge(level=logging.WARNING)
    logging.basicConfig(handlers=[bridge], level=logging.WARNING, force=True)


def _extract_source_words(record: LogRecord) -> str:
    """Return the longest text at the beginning of a message that is written in the source of the caller."""
    if not isinstance(record.msg, str):
        return "…"
    frame: FrameType | None = sys._getframe()
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (record.pathname, record.lineno):
        frame = frame.f_back
    if frame is None:
        return "…"
    if record.msg in frame.f_code.co_consts:
        return record.msg
    known = (text for text in frame.f_code.co_consts if isinstance(text, str) and text and record.msg.startswith(text))
    return f"{max(known, key=len, default='')}…"


def _list_frames(error: BaseException) -> list[str]:
    """Return where an error was raised, innermost last, without its message."""
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    return [f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
