"""Mistakes in the arguments of a command: what is printed, as text and as JSON, and the exit code."""

from __future__ import annotations

import json

import pytest

from everhold.cli.main import run_command
from everhold.cli.reference import render_reference
from tests.cli.command_home import CommandHome


def fail(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command whose arguments are invalid and return what it prints to standard error."""
    assert run_command(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


@pytest.mark.parametrize(
    "words, command",
    [
        (("send", "/title", "tea"), "everhold send"),
        (("undo", "last", "turn", "5"), "everhold undo"),
        (("sessions", "show", "last", "5"), "everhold sessions show"),
        (("--home", "x", "status", "5"), "everhold status"),
    ],
)
def test_unknown_arguments_name_the_command_and_the_need_for_quotes(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], command: str
) -> None:
    told = fail(capsys, *words)
    assert told == (
        f"{command}: unknown arguments: {words[-1]}\n"
        f"  → `{command} --help` shows the arguments; put text that contains spaces in quotes\n"
    )


def test_an_unknown_option_needs_no_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(capsys, "status", "--watchh") == (
        "everhold status: unknown arguments: --watchh\n  → `everhold status --help` shows the arguments\n"
    )


@pytest.mark.parametrize(
    "words, name",
    [
        (("sessions", "show", ""), "ID"),
        (("audit", ""), "ID"),
        (("stop", ""), "ID"),
        (("schedules", "remove", ""), "ID"),
        (("pairing", "approve", ""), "CODE"),
        (("pairing", "revoke", ""), "PLATFORM:ID"),
        (("people", "link", "telegram:1", ""), "PERSON"),
        (("memory", "forget", ""), "PERSON"),
        (("send", "hello", "--id", ""), "--id"),
        (("chat", "--session", ""), "--session"),
    ],
)
def test_an_empty_name_is_refused_because_it_could_mean_everything(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], name: str
) -> None:
    assert f"argument {name} is empty\n" in fail(capsys, *words)


def test_a_seq_is_not_negative(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'-1' is not a number of 0 or more" in fail(capsys, "sessions", "show", "last", "--after", "-1")


@pytest.mark.parametrize("words", [("--json", "nope"), ("status", "--json", "x"), ("logs", "-n", "0", "--json")])
def test_a_mistake_in_the_arguments_is_json_too(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert run_command(words) == 2
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert error["type"] == "invalid_request"
    assert error["message"] in printed.err
    assert error["remedy"] in printed.err


def test_the_reference_shows_what_is_required_and_what_may_be_left_out() -> None:
    page = render_reference()
    assert "everhold sessions diff ID --compression OP\n" in page
    assert "[--bundle [FILE]]" in page
    assert "[--limit N]" in page


def test_what_does_not_exist_is_reported_with_exit_code_1(busy: CommandHome) -> None:
    for words, message in (
        (("people", "unlink", "telegram:77"), "telegram:77 belongs to no person"),
        (("people", "link", "telegram:77", "zed"), "there is no person 'zed'"),
        (("dead-letters", "replay", "99"), "there is no dead letter 99"),
        (("schedules", "remove", "x"), "there is no schedule 'x'"),
    ):
        done = busy.run_in_process(*words)
        assert done.code == 1, words
        assert f"everhold: {message}\n  → " in done.err
