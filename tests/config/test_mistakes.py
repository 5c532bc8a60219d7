"""Mistakes in config.yaml: each is reported with file, line, key, cause and remedy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.app import build_plugin_check
from everhold.cli.main import run_command as main
from everhold.config import ConfigError, ConfigProblem, load_settings, parse_settings
from everhold.infra.home import MAX_READ_BYTES, Home

TABLE = Path(__file__).with_name("mistakes.txt")


def read_table() -> Iterator[tuple[str, str, list[str]]]:
    """Yield (name, text of config.yaml, expected problems) for every mistake in mistakes.txt."""
    for part in TABLE.read_text().split("\n### ")[1:]:
        name, _, rest = part.partition("\n")
        lines = rest.split("\n")
        text = "".join(f"{line}\n" for line in lines if line and not line.startswith("=> "))
        yield name, text, [line.removeprefix("=> ") for line in lines if line.startswith("=> ")]


MISTAKES = list(read_table())


def explain(text: str | bytes) -> list[ConfigProblem]:
    try:
        return list(parse_settings(text, validate_plugin=build_plugin_check()).problems)
    except ConfigError as error:
        return list(error.problems)


def test_there_are_at_least_a_hundred_mistakes() -> None:
    assert len(MISTAKES) >= 100


@pytest.mark.parametrize("text, said", [it[1:] for it in MISTAKES], ids=[it[0] for it in MISTAKES])
def test_each_mistake_gets_file_line_key_cause_and_remedy(text: str, said: list[str]) -> None:
    found = explain(text)
    assert [str(problem) for problem in found] == said
    for problem in found:
        assert problem.file == "config.yaml"
        assert 0 < problem.line <= text.count("\n") + 1
        assert problem.message
        assert problem.remedy
        assert "while " not in problem.message, "the parser's words"


def test_only_problems_of_the_whole_file_have_no_key() -> None:
    bare = {name for name, text, _ in MISTAKES if any(not problem.path for problem in explain(text))}
    assert bare == {"top list", "top scalar", "two docs", "toml", "ini", "no space after colon"}


@pytest.mark.parametrize(
    "data, said",
    [
        (bytes(range(256)), "config.yaml:1: is a binary file → write the configuration as UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "config.yaml:1: is a binary file → write the configuration as UTF-8 text"),
        (b"timezone: UTC\0\n", "config.yaml:1: is a binary file → write the configuration as UTF-8 text"),
        ("timezone: UTC".encode("utf-16"), "config.yaml:1: is UTF-16 text → save the file as UTF-8"),
        ("timezone: UTC".encode("utf-16-le"), "config.yaml:1: is UTF-16 text → save the file as UTF-8"),
        ("a: 1\nb: Grüße".encode("latin-1"), "config.yaml:2: is not UTF-8 text → save the file as UTF-8"),
        (
            b"a: 1\nb: \x07",
            "config.yaml:2: holds a control character, which YAML does not allow → remove the character",
        ),
        (b"timezone: UTC\r\nbackup: {keep: 0}\r\n", "config.yaml:2: backup.keep: must be at least 1 → write 1 or more"),
    ],
)
def test_files_that_are_not_utf8_text_are_refused(data: bytes, said: str) -> None:
    assert [str(problem) for problem in explain(data)] == [said]


def test_a_file_that_is_too_large_is_not_read(home: Home) -> None:
    home.config.write_bytes(b"# x\n" * (MAX_READ_BYTES // 4 + 1))
    with pytest.raises(ConfigError, match=r"config\.yaml: is larger than 1024 KiB → make it smaller"):
        load_settings(home, environ={})


def test_a_missing_persona_file_is_named(home: Home) -> None:
    home.config.write_text("agents:\n  main:\n    persona: gone.md\n")
    with pytest.raises(
        ConfigError, match=r":3: agents\.main\.persona: gone\.md: there is no such file → write the file"
    ):
        load_settings(home, environ={})


def test_config_check_prints_the_same_problems(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.config.write_text("agents:\n  main: {persona: Hi\n  coder: {persona: x}\n")
    assert main(["--home", str(home.path), "config", "check"]) == 78
    said = capsys.readouterr().err
    assert f"{home.config}:2: agents.main: a `{{` opens here and is not closed before line 3" in said
    assert "→ add the missing `}`, or a comma" in said


def test_an_unknown_tool_is_reported_with_the_known_ones(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.config.write_text("agents:\n  main:\n    tools: [weather]\n")
    assert main(["--home", str(home.path), "config", "check"]) == 0
    said = capsys.readouterr().out
    known = "attach, delegate, files, memory, schedule, send, session_search, shell, skill, web_fetch, web_search"
    assert f"there is no tool 'weather' (there is: {known})" in said
