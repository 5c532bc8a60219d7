"""Log lines are readable, name their operation, hide secrets, and never raise."""

from __future__ import annotations

import io
import json
import logging
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.core.trace_ids import OPERATION_SPAN, make_span_id, make_trace_id
from everhold.ports.log import EventLogger
from everhold.telemetry.logs import (
    HIDDEN_TEXT,
    MAX_TEXT_CHARS,
    LogLine,
    RotatingLogFile,
    SecretRedaction,
    StructuredLogger,
    adopt_stdlib,
    open_log,
    render_text,
)

NOON = 1_763_208_000.5


class FixedClock:
    def __init__(self, now: float = NOON) -> None:
        self.at = now

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(out: io.StringIO) -> StructuredLogger:
    return open_log(clock=FixedClock(), stream=out)


@pytest.fixture
def json_log(out: io.StringIO) -> StructuredLogger:
    return open_log(clock=FixedClock(), stream=out, form="json")


def test_a_line_is_an_event_and_its_fields(log: StructuredLogger, out: io.StringIO) -> None:
    log.info("compression.completed", entries=194, kept=26, model="big", ratio=0.25, ahead=True)
    assert out.getvalue() == (
        "2025-11-15T12:00:00.500Z info    compression.completed entries=194 kept=26 model=big ratio=0.25 ahead=true\n"
    )


def test_json_lines_have_the_same_fields(json_log: StructuredLogger, out: io.StringIO) -> None:
    json_log.warning("memory.dead_lettered", provider="a", items=[1, 2], reason={"status": 422})
    assert json.loads(out.getvalue()) == {
        "at": "2025-11-15T12:00:00.500Z",
        "level": "warning",
        "event": "memory.dead_lettered",
        "provider": "a",
        "items": [1, 2],
        "reason": {"status": 422},
    }


def test_a_bound_logger_names_its_operation_on_every_line(log: StructuredLogger, out: io.StringIO) -> None:
    first: EventLogger = log.bind(session="s1", op=7)
    second = first.bind(op=8)
    first.info("turn.started")
    second.info("turn.started")
    log.info("config.loaded", revision=2)
    assert [line.split(maxsplit=2)[2] for line in out.getvalue().splitlines()] == [
        "turn.started session=s1 op=7",
        "turn.started session=s1 op=8",
        "config.loaded revision=2",
    ]


def test_levels_below_the_chosen_one_are_not_rendered(out: io.StringIO) -> None:
    log = open_log(clock=FixedClock(), stream=out, level="warning")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [line.split()[2] for line in out.getvalue().splitlines()] == ["c", "d"]


FIELDS = [
    {"model": "big", "n": 3, "at": 1, "level": "x", "token": "abc", "token_count": 7, "odd": "a b", "empty": ""},
    {"huge": 1 << 2000, "less": -(1 << 63), "yes": True, "none": None, "part": 0.5, "list": [1, "a"], "nl": "a\nb"},
    {"long": "x" * 100, "path": Path("/a b"), "kept": "sk-0123456789abcdef0123"},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_a_line_is_the_same_with_and_without_the_cache(
    log: StructuredLogger, out: io.StringIO, fields: dict[str, object]
) -> None:
    redaction = log.redaction
    shown = {f"{k}_" if k in ("at", "level") else k: redaction.render_plain(v, name=k) for k, v in fields.items()}
    expected = render_text(LogLine("2025-11-15T12:00:00.500Z", "info", "x", shown)) + "\n"
    for _ in range(2):
        log.info("x", **fields)
    assert out.getvalue() == expected * 2


def test_a_cached_value_that_becomes_a_known_secret_is_hidden(log: StructuredLogger, out: io.StringIO) -> None:
    log.info("x", name="correct-horse")
    log.redaction.add_secrets("correct-horse")
    log.info("x", name="correct-horse")
    assert [line.partition("name=")[2] for line in out.getvalue().splitlines()] == ["correct-horse", HIDDEN_TEXT]


def test_the_cache_of_rendered_fields_is_bounded(log: StructuredLogger) -> None:
    for number in range(10_000):
        log.info("x", name=f"n{number}")
    assert len(log.redaction.rendered_fields) <= 4_096


def test_a_json_line_of_an_operation_names_its_trace(json_log: StructuredLogger, out: io.StringIO) -> None:
    of_turn = json_log.bind(session="s1").bind(op=7)
    of_turn.info("turn.started")
    of_turn.info("turn.completed", outcome="done")
    json_log.info("turn.started", session="s1", op=8)
    json_log.info("lease.lost", session="s1")
    first, second, other, none = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["trace_id"] == second["trace_id"] == make_trace_id("s1", 7) != other["trace_id"]
    assert first["span_id"] == make_span_id(make_trace_id("s1", 7), OPERATION_SPAN)
    assert re.fullmatch("[0-9a-f]{32} [0-9a-f]{16}", f"{first['trace_id']} {first['span_id']}")
    assert "trace_id" not in none


def test_a_field_cannot_replace_a_reserved_field(json_log: StructuredLogger, out: io.StringIO) -> None:
    json_log.info("message.accepted", event="edit", level="high", at=5)
    line = json.loads(out.getvalue())
    assert (line["event"], line["event_"], line["level_"], line["at_"]) == ("message.accepted", "edit", "high", 5)


@pytest.mark.parametrize(
    "text", ["a\nb", "a\x1b[31mb", "x=1 y=2", 'say "hi"', "", "a\u2028b", "\u202eevil", "back\\slash"]
)
def test_no_message_can_forge_a_line_or_a_field(log: StructuredLogger, out: io.StringIO, text: str) -> None:
    log.info("message.accepted", text=text, seq=1)
    line = out.getvalue()
    assert line.splitlines(keepends=True) == [line]
    assert line[:-1].isprintable()
    quoted = line.rstrip("\n").split("text=", 1)[1].rsplit(" seq=", 1)[0]
    assert json.loads(quoted) == text


def test_an_exception_is_logged_with_its_type_and_at_error_with_its_trace(
    log: StructuredLogger, out: io.StringIO
) -> None:
    try:
        raise LookupError("no such cursor")
    except LookupError as caught:
        log.warning("consumer.failed", error=caught)
        log.error("worker.crashed", error=caught)
    short, long, *trace = out.getvalue().splitlines()
    assert short.endswith('consumer.failed error="LookupError: no such cursor"')
    assert long.endswith('worker.crashed error="LookupError: no such cursor"')
    assert trace[0] == "    Traceback (most recent call last):"
    assert all(row.startswith("    ") for row in trace)


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_nothing_that_is_logged_raises_into_the_caller(json_log: StructuredLogger, out: io.StringIO) -> None:
    circle: list[object] = []
    circle.append(circle)
    strange = [
        Hostile(),
        HostileError(),
        circle,
        {Hostile: Hostile()},
        {1: {2: {3: {4: {5: {6: {7: {8: 9}}}}}}}},
        b"\xff",
        "\ud800",
        float("nan"),
        10**5000,
        Path("a"),
        {"b", 1},
        object(),
    ]
    for value in strange:
        json_log.error("strange", value=value)
    lines = out.getvalue().splitlines()
    assert len(lines) == len(strange)
    assert [json.loads(line)["event"] for line in lines] == ["strange"] * len(strange)


@pytest.mark.parametrize("now", [float("inf"), float("nan"), 1e18, -1e18])
def test_a_time_outside_of_the_calendar_is_still_logged(out: io.StringIO, now: float) -> None:
    open_log(clock=FixedClock(now), stream=out).info("tick")
    assert out.getvalue().split()[1:] == ["info", "tick"]


# -- secrets -----------------------------------------------------------------------------------------------------------

KNOWN = 'correct horse/"battery"'


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_known_secret_is_in_no_line_however_it_got_there(out: io.StringIO, form: str) -> None:
    log = open_log(clock=FixedClock(), stream=out, form="json" if form == "json" else "text")
    log.redaction.add_secrets(KNOWN)
    bound = log.bind(where=f"https://example.org/?q={KNOWN}")
    bound.info(
        f"event {KNOWN}",
        text=f"<{KNOWN}>",
        deep={"a": [(KNOWN, {KNOWN: KNOWN})]},
        url="correct%20horse%2F%22battery%22",
    )
    try:
        raise ValueError(KNOWN)
    except ValueError as caught:
        bound.error("failed", error=caught)
    assert "horse" not in out.getvalue()
    assert HIDDEN_TEXT in out.getvalue()


@pytest.mark.parametrize(
    "text, shown",
    [
        ("sk-proj-" + "aB3_" * 8, HIDDEN_TEXT),
        ("use xoxb-123456789012-abcdefghij now", f"use {HIDDEN_TEXT} now"),
        ("bot123456789:" + "A" * 35, f"bot{HIDDEN_TEXT}"),
        ("/bot123456789:" + "A" * 35 + "/getMe", f"/bot{HIDDEN_TEXT}/getMe"),
        ("Authorization: Bearer " + "abc.def-" * 4, f"Authorization: Bearer {HIDDEN_TEXT}"),
        ("GET /x?a=1&api_key=hunter2&b=3", f"GET /x?a=1&api_key={HIDDEN_TEXT}&b=3"),
        ("postgresql://ada:hunter2@db/x", f"postgresql://ada:{HIDDEN_TEXT}@db/x"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", HIDDEN_TEXT),
    ],
)
def test_values_shaped_like_secrets_are_hidden(text: str, shown: str) -> None:
    assert SecretRedaction().scrub_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8765/health",
        "agent-main-telegram-dm-1001",
        "tokens_before=145948",
        "2025-11-15T12:00:00.500Z",
        "the bearer of this",
        "everhold.memories.builtin.index",
        "7f3c1f0e2b5d4c6f8a9b0c1d2e3f4a5b6c7d8e9f",
        "task-force-of-the-year-twenty",
    ],
)
def test_ordinary_text_stays_readable(text: str) -> None:
    assert SecretRedaction().scrub_text(text) == text


def test_a_field_named_like_a_secret_is_hidden_and_a_count_is_not(json_log: StructuredLogger, out: io.StringIO) -> None:
    json_log.info("x", bot_token="1", settings={"password": "p"}, tokens=12, tokens_after=9, token=None)
    line = json.loads(out.getvalue())
    assert line["bot_token"] == HIDDEN_TEXT
    assert line["settings"] == {"password": HIDDEN_TEXT}
    assert (line["tokens"], line["tokens_after"], line["token"]) == (12, 9, None)


def test_a_very_short_secret_does_not_hide_ordinary_text() -> None:
    redaction = SecretRedaction()
    redaction.add_secrets("", "e", "   ")
    assert redaction.scrub_text("everhold") == "everhold"


# -- where lines go ----------------------------------------------------------------------------------------------------


def test_the_log_file_is_private(tmp_path: Path, out: io.StringIO) -> None:
    open_log(clock=FixedClock(), home=tmp_path / "home", stream=out).info("ready")
    written = tmp_path / "home" / "logs" / "everhold.log"
    assert written.read_text() == out.getvalue()
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(written.parent.stat().st_mode) == 0o700


def test_a_full_file_is_rotated_and_the_oldest_is_removed(tmp_path: Path) -> None:
    write = RotatingLogFile(tmp_path / "l", max_bytes=20, keep=2)
    for n in range(8):
        write(f"line {n:04}")
    assert {path.name: path.read_text().split() for path in tmp_path.iterdir()} == {
        "l": ["line", "0006", "line", "0007"],
        "l.1": ["line", "0004", "line", "0005"],
        "l.2": ["line", "0002", "line", "0003"],
    }
    write.close()


def test_a_later_process_appends_to_the_file(tmp_path: Path) -> None:
    for n in range(3):
        write = RotatingLogFile(tmp_path / "l", max_bytes=20, keep=2)
        write(f"line {n:04}")
        write.close()
    assert (tmp_path / "l").read_text() == "line 0002\n"
    assert (tmp_path / "l.1").read_text() == "line 0000\nline 0001\n"


def test_a_symlink_in_place_of_the_log_is_not_followed(tmp_path: Path, out: io.StringIO) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "everhold.log").symlink_to(tmp_path / "elsewhere")
    open_log(clock=FixedClock(), home=tmp_path, stream=out).info("ready")
    assert not (tmp_path / "elsewhere").exists()
    assert "ready" in out.getvalue()


class FullStream(io.StringIO):
    full = False

    def write(self, text: str, /) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lines_that_could_not_be_written_are_counted_and_the_count_is_logged() -> None:
    out = FullStream()
    log = open_log(clock=FixedClock(), stream=out)
    log.info("one")
    out.full = True
    log.info("two")
    log.info("three")
    out.full = False
    log.info("four")
    log.info("five")
    assert [line.split()[2:] for line in out.getvalue().splitlines()] == [
        ["one"],
        ["log.lost", "lines=2"],
        ["four"],
        ["five"],
    ]


def test_a_closed_terminal_stops_neither_the_caller_nor_the_file(tmp_path: Path) -> None:
    closed = io.StringIO()
    closed.close()
    open_log(clock=FixedClock(), home=tmp_path, stream=closed).info("ready")
    assert "ready" in (tmp_path / "logs" / "everhold.log").read_text()


def test_an_ascii_terminal_gets_escaped_text() -> None:
    raw = io.BytesIO()
    narrow = io.TextIOWrapper(raw, encoding="ascii")
    open_log(clock=FixedClock(), stream=narrow).info("ready", name="Zoë")
    assert raw.getvalue().endswith(b"ready name=Zo\\xeb\n")


@pytest.fixture
def stdlib_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []  # basicConfig closes what it replaces
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("stdlib_logging")
def test_a_library_line_shows_only_the_words_of_its_source(json_log: StructuredLogger, out: io.StringIO) -> None:
    adopt_stdlib(json_log)
    library = logging.getLogger("somelib.http")
    library.info("GET https://example.org/?token=hunter2")
    library.warning("GET %s", "https://example.org/?token=hunter2")
    library.error("%d is no number", "x")
    library.warning(f"the body is {'hunter2' + '!'}")
    try:
        raise ValueError("hunter2")
    except ValueError:
        library.exception("it failed")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["level"], line["library"], line["text"]) for line in lines] == [
        ("warning", "somelib.http", "GET %s"),
        ("error", "somelib.http", "%d is no number"),
        ("warning", "somelib.http", "the body is …"),
        ("error", "somelib.http", "it failed"),
    ]
    assert lines[-1]["error"] == "ValueError"
    assert lines[-1]["frames"][-1].endswith("test_a_library_line_shows_only_the_words_of_its_source")
    assert "hunter2" not in out.getvalue()


def test_a_long_text_is_cut_and_no_part_of_a_secret_is_left_at_the_cut(
    json_log: StructuredLogger, out: io.StringIO
) -> None:
    secret = "correct-horse-" * 40
    json_log.redaction.add_secrets(secret)
    for before in range(MAX_TEXT_CHARS - len(secret) - 10, MAX_TEXT_CHARS + len(secret) + 10, 97):
        json_log.info("config.loaded", text=f"{'x' * before}{secret}{'y' * 10_000}", many=list(range(100_000)))
        json_log.info("config.loaded", text=secret * 8 + "x" * before + secret * 2)
    assert "correct-horse" not in out.getvalue()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert all(len(line["text"]) < MAX_TEXT_CHARS + 100 for line in lines)
    assert all(len(line.get("many", ())) <= 201 for line in lines)


def test_logging_imports_only_the_standard_library_and_our_ports() -> None:
    heavy = "{'logging', 'asyncio', 'pydantic', 'msgspec', 'apsw'}"
    script = f"import sys, everhold.telemetry.logs; print(*(set(sys.modules) & {heavy}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
