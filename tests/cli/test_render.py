"""Tables, colours, completions, the reference page."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest

from everhold.cli import reference
from everhold.cli.commands.completion import render_bash, render_fish, render_zsh
from everhold.cli.main import run_command as main
from everhold.cli.parser import build_parser, list_commands, list_subcommands
from everhold.cli.render import (
    CommandScreen,
    TextPainter,
    escape_control,
    format_count,
    format_duration,
    format_one_line,
    measure_width,
    truncate_to_columns,
)
from everhold.telemetry.log_file import parse_line

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_reference_page_matches_the_parser() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.render_reference(), (
        "python -m everhold.cli.reference > docs/reference/cli.md"
    )


def test_control_characters_are_escaped() -> None:
    assert escape_control("a\x1b[31mb\x07\r\n\tc\x9bd\u202e") == "a\\x1b[31mb\\x07\\x0d\n\tc\\x9bd\\u202e"
    assert format_one_line("a\nb\t c  d") == "a b c d"


def test_column_widths_match_the_terminal() -> None:
    assert measure_width("日本") == 4
    assert measure_width("e\u0301") == 1
    assert truncate_to_columns("日本語", 5) == "日本…"
    assert truncate_to_columns("short", 5) == "short"


def test_durations_and_counts_are_formatted() -> None:
    assert [format_duration(seconds) for seconds in (-1, 59, 60, 7200, 200_000)] == [
        "0 s",
        "59 s",
        "1 min",
        "2 h",
        "2 d",
    ]
    assert (format_count(1, "entry", "entries"), format_count(1200, "entry", "entries")) == ("1 entry", "1,200 entries")


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "stream, environ, coloured",
    [
        (Tty(), {}, True),
        (Tty(), {"NO_COLOR": "1"}, False),
        (Tty(), {"NO_COLOR": ""}, True),
        (Tty(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_used_only_in_terminals_that_want_them(
    stream: io.StringIO, environ: dict[str, str], coloured: bool
) -> None:
    screen = CommandScreen.from_streams(stream, stream, environ=environ, json=False)
    assert (screen.paint.enabled, screen.paint_err.enabled) == (coloured, coloured)


def test_a_table_is_shortened_in_a_terminal_and_complete_in_a_pipe() -> None:
    rows = [("a", "x" * 200)]
    out = io.StringIO()
    CommandScreen(out=out, err=out, json=False, paint=TextPainter(False), paint_err=TextPainter(False)).print_table(
        ("k", "v"), rows
    )
    assert out.getvalue() == f"K  V\na  {'x' * 200}\n"
    tty = Tty()
    CommandScreen(out=tty, err=tty, json=False, paint=TextPainter(True), paint_err=TextPainter(True)).print_table(
        ("k", "v"), rows
    )
    assert "…" in tty.getvalue()


@pytest.mark.parametrize(
    "line, found",
    [
        (
            '2026-01-01T00:00:00.000Z info    turn.completed op=3 outcome=done text="a \\"b\\" c=d"',
            {"at": "2026-01-01T00:00:00.000Z", "level": "info", "event": "turn.completed", "op": 3, "outcome": "done",
             "text": 'a "b" c=d'},
        ),
        ('{"level":"info","event":"x"}', {"level": "info", "event": "x"}),
        ("    Traceback (most recent call last):", {"text": "    Traceback (most recent call last):"}),
        ("{broken", {"text": "{broken"}),
        ('{"a":' * 50_000, {"text": '{"a":' * 50_000}),
        (f"t info x text={'[' * 50_000}", {"at": "t", "level": "info", "event": "x", "text": "[" * 50_000}),
    ],
    ids=["text", "json", "traceback", "broken", "deep", "deep-value"],
)  # fmt: skip
def test_log_lines_in_text_and_json_are_parsed(line: str, found: dict[str, object]) -> None:
    assert parse_line(line) == found


# -- completions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, expected",
    [
        (["everhold", "se"], {"send", "service", "sessions", "setup"}),
        (["everhold", "sessions", "sh"], {"show"}),
        (["everhold", "--home", "/tmp", "config", ""], {"check", "show", "get", "set"}),
        (["everhold", "undo", "last", ""], {"turn", "compress"}),
        (["everhold", "completion", ""], {"bash", "zsh", "fish"}),
        (["everhold", "send", "--ti"], {"--timeout"}),
        (["everhold", "--log", ""], {"text", "json"}),
        (["everhold", "sessions", "export", "last", "--format", "o"], {"openai"}),
    ],
)
def test_bash_completion_works(words: list[str], expected: set[str]) -> None:
    found = completed(words)
    assert expected <= found
    if words[-1]:
        assert found == expected


@pytest.mark.parametrize("words", [["chat", "--agent"], ["logs", "-n"], ["--json", "sessions", "search", "--limit"]])
def test_bash_offers_no_option_where_a_value_is_expected(words: list[str]) -> None:
    assert completed(["everhold", *words, ""]) == set()


def test_bash_offers_files_only_where_a_file_is_expected(tmp_path: Path) -> None:
    (tmp_path / "notes.md").touch()
    assert completed(["everhold", "sessions", "show", ""], at=tmp_path) >= {"last"}
    assert "notes.md" not in completed(["everhold", "sessions", "show", ""], at=tmp_path)
    assert completed(["everhold", "sessions", "show", "no"], at=tmp_path) == set()
    assert completed(["everhold", "sessions", "show", "la"], at=tmp_path) == {"last"}
    assert completed(["everhold", "memory", "import", "no"], at=tmp_path) == {"notes.md"}
    assert completed(["everhold", "eval", "compression", "--baseline", "no"], at=tmp_path) == {"notes.md"}
    assert "complete -o default" not in render_bash(), "or the shell offers files where nothing is known"


def completed(words: list[str], *, at: Path | None = None) -> set[str]:
    script = f"""{render_bash()}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}; _everhold
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=at)
    return set(done.stdout.split())


@pytest.mark.parametrize("shell, script", [("bash", render_bash), ("zsh", render_zsh), ("fish", render_fish)])
def test_completion_scripts_are_valid(shell: str, script: object, tmp_path: Path) -> None:
    assert callable(script)
    text = script()
    assert "everhold" in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["sessions"], ["sessions", "show"], ["up"], ["help"]])
def test_the_help_command_prints_the_same_as_the_help_option(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", *words]) == 0
    said = capsys.readouterr().out
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr().out == said
    assert said.startswith(f"usage: {' '.join(['everhold', *words])}")


@pytest.mark.parametrize(
    "words, said, remedy",
    [
        (["sesions"], "there is no command 'sesions' in `everhold`", "did you mean `sessions`?"),
        (["sessions", "shw"], "there is no command 'shw' in `everhold sessions`", "did you mean `show`?"),
        (["up", "now"], "there is no command 'now' in `everhold up`", "`everhold up --help` shows the arguments"),
    ],
)
def test_help_for_an_unknown_command_lists_the_commands(
    words: list[str], said: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", *words]) == 1
    assert capsys.readouterr().err == f"everhold: {said}\n  → {remedy}\n"


def test_a_description_that_is_a_question_ends_with_one_mark(capsys: pytest.CaptureFixture[str]) -> None:
    for words, parser in list_commands(build_parser()):
        assert "?." not in (parser.description or ""), words
    for name, parser in list_subcommands(build_parser()).items():
        assert "?." not in (parser.description or ""), name
