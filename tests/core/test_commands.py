"""A message is a command only if it clearly is one: people write paths, and what is no command is text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from everhold.core.commands import ALIASES, COMMANDS, TALK, compress_arguments, help_text, number, parse
from everhold.core.entries import Command
from everhold.testing.house import House


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "//new",
        "/ new",
        "new",
        "see /new",
        "/usr/bin/env",
        "/etc",
        "/new/file.txt",
        "/newer",
        "/new.",
        "/new-ish",
        "/stop!",
        "/help@",
        "/@bot",
        "/123",
        "\\new",
        "/tmp is full",
        "/home/ada/notes.md please",
    ],
)
def test_a_slash_and_something_unknown_is_text(text: str) -> None:
    assert parse(text) is None


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(COMMANDS)), st.text(max_size=40), st.sampled_from(["", "@everhold_bot", "@a.b:matrix.org"])
)
def test_a_command_keeps_its_argument_to_the_letter(name: str, argument: str, bot: str) -> None:
    assert parse(f"/{name}{bot} {argument}") == Command(name=name, argument=argument.strip())
    assert parse(f"  /{name}{bot}\n{argument}") == Command(name=name, argument=argument.strip())


@pytest.mark.parametrize("alias, name", sorted(ALIASES.items()))
def test_an_alias_is_the_command_it_stands_for(alias: str, name: str) -> None:
    expected = Command(name=name, argument="x y") if name in COMMANDS else None
    assert parse(f"/{alias} x y") == parse(f"/{name} x y") == expected
    assert alias not in COMMANDS, "a name means one thing"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_there_is_can_be_said_and_is_in_the_help(name: str) -> None:
    assert parse(f"/{name}") == Command(name=name)
    assert f"/{name} — {COMMANDS[name]}" in help_text().splitlines()


def test_commands_that_are_talk_are_commands() -> None:
    assert set(COMMANDS) >= TALK


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="/newstop@ \n\t.a", max_size=30) | st.text(max_size=30))
def test_whatever_is_written_is_a_command_or_text_and_never_an_error(text: str) -> None:
    found = parse(text)
    if found is not None:
        assert found.name in COMMANDS
        assert text.strip().startswith("/")
        assert text.rstrip().endswith(found.argument)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("text", ["/new" + " " * 1_000_000 + "x", "/new@" + "a" * 1_000_000 + "\0 ", "/" * 1_000_000])
def test_a_megabyte_after_a_slash_holds_nobody_up(text: str) -> None:
    parse(text)


@pytest.mark.parametrize(
    "argument, meant",
    [
        ("", (None, "", False)),
        ("here 3", (3, "", False)),
        ("here 3 --preview", (3, "", True)),
        ("--preview here 0", (0, "", True)),
        ("here and now", (None, "here and now", False)),
        ("here", (None, "here", False)),
        ("here -3", (None, "here -3", False)),
        ("here ²", (None, "here ²", False)),
        ("the  prices   --preview", (None, "the prices", True)),
    ],
)
def test_what_compress_is_told(argument: str, meant: tuple[int | None, str, bool]) -> None:
    assert compress_arguments(argument) == meant


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=8) | st.integers(0, 10**9).map(str) | st.text(alphabet="0123456789²٣১", max_size=9))
def test_a_number_is_read_or_is_none_and_never_an_error(word: str) -> None:
    found = number(word, most=500)
    if found is None:
        assert not (word.isascii() and word.isdecimal())
    else:
        assert found == min(int(word), 500)


def test_a_number_of_any_length_is_bounded() -> None:
    assert number("9" * 100_000) == 1_000
    assert number("0" * 100_000 + "7") == 7


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_argument_keeps_the_next_command_from_being_obeyed(name: str, tmp_path: Path) -> None:
    """Commands are obeyed in order: one that cannot be would hold up all that come after it."""
    house = House(tmp_path)
    arguments = (
        "",
        "²",
        "9" * 5_000,
        "-1",
        "here ²",
        "here 2",
        "--preview",
        "--memory",
        "x --memory",
        "nul\0",
        "\ud800",
        "🙂",
    )
    with house.awake():
        house.say("hello")
        for argument in arguments:
            house.say(f"/{name} {argument}", rest=False)
            house.tick(1)
        house.say("/whoami", rest=False)
        house.tick(10)
        assert any(text.startswith("You are ada") for text in house.heard_back()[-3:])
        assert not house.diary.of("lane.failed")
        house.sound()
