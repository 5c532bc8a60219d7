"""A message is a command only if it clearly is one: people write paths, and what is no command is text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from everhold.core.commands import ALIASES, COMMANDS, TALK, help_text, parse
from everhold.core.entries import Command


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


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["/new" + " " * 1_000_000 + "x", "/new@" + "a" * 1_000_000 + "\0 ", "/" * 1_000_000])
def test_a_megabyte_after_a_slash_holds_nobody_up(text: str) -> None:
    parse(text)
