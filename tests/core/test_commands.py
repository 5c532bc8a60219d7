"""A message is a command only if it names a known one. Any other text, such as a path, is a message."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from everhold.cli import chat_reference
from everhold.core.commands import (
    ALIASES,
    ALONE,
    COMMAND_MENU,
    COMMAND_SPECS,
    COMMANDS,
    MESSAGE_COMMANDS,
    MISTYPED,
    CommandSpec,
    TitleArguments,
    UndoArguments,
    complete_command,
    find_mistyped_command,
    name_action,
    parse_command,
    parse_compress_arguments,
    parse_count,
    parse_title,
    parse_undo,
    render_help,
    suggest_command,
)
from everhold.core.entries import ChatCommand
from everhold.core.roles import COMMAND_ROLES
from everhold.engine.commands.handlers import COMMAND_HANDLERS
from everhold.testing.gateway import InProcessGateway


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
def test_a_slash_before_an_unknown_word_is_text(text: str) -> None:
    assert parse_command(text) is None
    assert find_mistyped_command(text) is None


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("/undoo", "undo"),
        ("/udno", "undo"),
        ("/Undo", "undo"),
        ("/stp", "stop"),
        ("/hlep me", "help"),
        ("/compres", "compress"),
        ("/remember that I like tea", "memory note"),
        ("/clear", "new"),
        ("/bakcground do it", "background"),
        ("/undoo@everhold_bot 3", "undo"),
    ],
)
def test_a_mistyped_command_is_recognised_with_what_was_meant(typed: str, meant: str) -> None:
    assert parse_command(typed) is None
    found = find_mistyped_command(typed)
    assert found is not None
    assert found.name == MISTYPED
    assert suggest_command(found.argument) == meant


@pytest.mark.parametrize(
    "text", ["/bin is full", "/tmp", "/start", "/quotes please", "/a", "/x", "undoo", "/Users/ada"]
)
def test_a_word_that_resembles_no_command_is_text(text: str) -> None:
    assert find_mistyped_command(text) is None


@pytest.mark.parametrize("name", sorted({*COMMANDS, *ALIASES}))
def test_a_command_is_never_mistyped_and_every_suggestion_exists(name: str) -> None:
    assert find_mistyped_command(f"/{name} x") is None
    for wrong in (f"{name}q", name[1:], name[:-1], f"{name[0]}{name}"):
        meant = suggest_command(wrong)
        assert not meant or meant.partition(" ")[0] in COMMANDS


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_the_search_for_mistyped_commands(text: str) -> None:
    for typed in (text, f"/{text}"):
        found = find_mistyped_command(typed)
        assert found is None or suggest_command(found.argument)


def test_a_mistyped_command_gets_a_suggestion_and_no_call_of_a_model(tmp_path: Path) -> None:
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        gateway.send_message("hello")
        calls = len(gateway.runtimes.model.requests)
        gateway.send_message("/undoo", rest=False)
        gateway.pass_time(1)
        assert "Did you mean /undo?" in gateway.list_shown_texts()[-1]
        gateway.send_message("and now?")
        assert len(gateway.runtimes.model.requests) == calls + 1
        assert "/undoo" not in str(gateway.runtimes.model.requests[-1].messages)
        gateway.assert_sound()


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(COMMANDS)), st.text(max_size=40), st.sampled_from(["", "@everhold_bot", "@a.b:matrix.org"])
)
def test_a_command_keeps_its_argument_unchanged(name: str, argument: str, bot: str) -> None:
    assert parse_command(f"/{name}{bot} {argument}") == ChatCommand(name=name, argument=argument.strip())
    assert parse_command(f"  /{name}{bot}\n{argument}") == ChatCommand(name=name, argument=argument.strip())


@pytest.mark.parametrize("alias, name", sorted(ALIASES.items()))
def test_an_alias_is_parsed_as_its_command(alias: str, name: str) -> None:
    expected = ChatCommand(name=name, argument="x y") if name in COMMANDS else None
    assert parse_command(f"/{alias} x y") == parse_command(f"/{name} x y") == expected
    assert alias not in COMMANDS, "a name means one thing"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_can_be_parsed_and_is_in_the_help(name: str) -> None:
    assert parse_command(f"/{name}") == ChatCommand(name=name)
    assert f"{COMMANDS[name].usage} — {COMMANDS[name].help}" in render_help().splitlines()


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "chat-commands.md"


def test_every_command_of_the_table_has_one_handler_and_every_handler_a_command() -> None:
    assert set(COMMAND_HANDLERS) == {*COMMANDS, ALONE, MISTYPED}
    assert not {ALONE, MISTYPED} & {*COMMANDS, *ALIASES}, "a command that only ingress creates cannot be typed"


@pytest.mark.parametrize("spec", COMMAND_SPECS, ids=lambda spec: spec.name)
def test_a_handler_takes_what_its_command_s_parser_returns(spec: CommandSpec) -> None:
    parsed = typing.get_type_hints(spec.parse)["return"]
    hints = typing.get_type_hints(COMMAND_HANDLERS[spec.name])
    taken = [hint for name, hint in hints.items() if name != "return"]
    assert taken[1] == parsed
    for text in ("", "x", "x y", "9" * 5_000, "--memory", "\0"):
        spec.parse(text)


@pytest.mark.parametrize("spec", COMMAND_SPECS, ids=lambda spec: spec.name)
def test_a_command_has_a_typable_name_and_a_short_help(spec: CommandSpec) -> None:
    assert re.fullmatch("[a-z]{1,32}", spec.name)
    assert spec.help[0].isupper()
    assert not spec.help.endswith(".")
    assert len(spec.menu_line) <= 100, "the shortest limit of all platforms"


def test_names_and_aliases_are_unique_and_the_menu_lists_each_command_once() -> None:
    names = [name for spec in COMMAND_SPECS for name in (spec.name, *spec.aliases)]
    assert len(names) == len(set(names))
    assert list(COMMAND_MENU) == [spec.name for spec in COMMAND_SPECS]


def test_a_menu_line_says_what_the_command_does_and_how_it_is_written() -> None:
    assert COMMAND_MENU["stop"] == COMMANDS["stop"].help
    assert COMMAND_MENU["resume"] == "Continue one of your earlier sessions: /resume ID"


def test_every_command_has_a_row_in_the_table_of_roles() -> None:
    assert set(COMMANDS) <= set(COMMAND_ROLES)
    assert {action.split()[0] for action in COMMAND_ROLES} == set(COMMANDS)


@pytest.mark.parametrize(
    "text, action",
    [
        ("/title", "title"),
        ("/title My plan", "title"),
        ("/title My plan --memory", "title --memory"),
        ("/memory", "memory"),
        ("/memory why", "memory why"),
        ("/memory search x", "memory search"),
        ("/memory note x", "memory note"),
        ("/memory forget x", "memory forget"),
        ("/memory whatever", "memory"),
        ("/schedule", "schedule"),
        ("/schedule list", "schedule"),
        ("/schedule remove x", "schedule remove"),
        ("/schedule delete x", "schedule remove"),
        ("/schedule daily 8:00 x", "schedule make"),
        ("/schedule listen to me", "schedule make"),
        ("/reset", "new"),
    ],
)
def test_a_command_belongs_to_the_row_of_its_subcommand(text: str, action: str) -> None:
    command = parse_command(text)
    assert command is not None
    assert name_action(command) == action


def test_the_reference_page_matches_the_command_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == chat_reference.render_reference(), (
        "python -m everhold.cli.chat_reference > docs/reference/chat-commands.md"
    )


@pytest.mark.parametrize(
    "text, offered",
    [("/co", ["/compact", "/compress"]), ("/undo", ["/undo"]), ("/x", []), ("", []), ("hel", [])],
)
def test_a_prompt_completes_a_slash_and_a_name_prefix(text: str, offered: list[str]) -> None:
    assert complete_command(text) == offered
    assert complete_command("/") == sorted(f"/{name}" for name in (*COMMANDS, *ALIASES))


@pytest.mark.parametrize(
    "text, meant",
    [
        ("", UndoArguments(turns=1)),
        ("3", UndoArguments(turns=3)),
        ("compress", UndoArguments(compression=True)),
        ("0", UndoArguments()),
        ("-1", UndoArguments()),
        ("two", UndoArguments()),
    ],
)
def test_undo_arguments_are_parsed(text: str, meant: UndoArguments) -> None:
    assert parse_undo(text) == meant


@pytest.mark.parametrize(
    "text, meant",
    [
        ("", TitleArguments(title="")),
        ("A trip", TitleArguments(title="A trip")),
        ("A trip --memory", TitleArguments(title="A trip", memory=True)),
        ("--memory", TitleArguments(title="", memory=True)),
    ],
)
def test_title_arguments_are_parsed(text: str, meant: TitleArguments) -> None:
    assert parse_title(text) == meant


def test_commands_with_a_message_are_commands() -> None:
    assert set(COMMANDS) >= MESSAGE_COMMANDS


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="/newstop@ \n\t.a", max_size=30) | st.text(max_size=30))
def test_any_text_is_parsed_as_a_command_or_as_text(text: str) -> None:
    found = parse_command(text)
    if found is not None:
        assert found.name in COMMANDS
        assert text.strip().startswith("/")
        assert text.rstrip().endswith(found.argument)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("text", ["/new" + " " * 1_000_000 + "x", "/new@" + "a" * 1_000_000 + "\0 ", "/" * 1_000_000])
def test_a_megabyte_after_a_slash_is_parsed_quickly(text: str) -> None:
    parse_command(text)


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
def test_compress_arguments_are_parsed(argument: str, meant: tuple[int | None, str, bool]) -> None:
    assert parse_compress_arguments(argument) == meant


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=8) | st.integers(0, 10**9).map(str) | st.text(alphabet="0123456789²٣১", max_size=9))
def test_a_number_is_parsed_or_rejected_without_an_error(word: str) -> None:
    found = parse_count(word, most=500)
    if found is None:
        assert not (word.isascii() and word.isdecimal())
    else:
        assert found == min(int(word), 500)


def test_a_number_with_any_count_of_digits_is_bounded() -> None:
    assert parse_count("9" * 100_000) == 1_000
    assert parse_count("0" * 100_000 + "7") == 7


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_argument_blocks_the_next_command(name: str, tmp_path: Path) -> None:
    """Commands are obeyed in order: one that cannot be would hold up all that come after it."""
    gateway = InProcessGateway(tmp_path)
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
    with gateway.run_started():
        gateway.send_message("hello")
        for argument in arguments:
            gateway.send_message(f"/{name} {argument}", rest=False)
            gateway.pass_time(1)
        gateway.send_message("/whoami", rest=False)
        gateway.pass_time(10)
        assert any(text.startswith("You are ada") for text in gateway.list_shown_texts()[-3:])
        assert not gateway.logger.find_events("consumer.failed")
        gateway.assert_sound()


def test_a_command_of_another_version_is_answered_with_the_help(tmp_path: Path) -> None:
    """A log outlives the version that wrote it."""
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        gateway.send_message("hello")
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(COMMANDS, "nosuch", CommandSpec("nosuch", "Do something that this version cannot"))
            gateway.send_message("/nosuch", rest=False)
            gateway.pass_time(1)
        assert gateway.list_shown_texts()[-1] == render_help()
        gateway.assert_sound()
