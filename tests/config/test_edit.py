"""Changing one key keeps the rest of the file unchanged, and never makes the configuration invalid."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings as how, strategies as st

from everhold.config import (
    ConfigError,
    ConfigProblem,
    get_key,
    load_settings,
    parse_settings,
    set_key,
    show_settings,
    to_yaml,
)
from everhold.config.edit import edit_text, parse_value, split_key
from everhold.config.source import read_document
from everhold.errors import Conflict, InvalidRequest, NotFound
from everhold.infra.home import Home


def changes(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line.startswith(("+ ", "- "))]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_keys_are_parsed_as_they_are_printed() -> None:
    assert split_key("agents.main.model") == ("agents", "main", "model")
    assert split_key("people[0].name") == ("people", 0, "name")
    assert split_key('chats."-100.5".agent') == ("chats", "-100.5", "agent")
    assert split_key("a.'b c'[1][2]") == ("a", "b c", 1, 2)
    for key in ("", "a..b", "a.", "[x]", 'a."b'):
        with pytest.raises(InvalidRequest):
            split_key(key)


def test_values_are_parsed_as_yaml() -> None:
    assert [parse_value(text) for text in ("80", "true", "[a, b]", "{a: 1}", "plain text", "null", "a: b", "# x")] == [
        80,
        True,
        ("a", "b"),
        {"a": 1},
        "plain text",
        None,
        "a: b",
        None,
    ]


def test_get_prints_the_effective_value(sample: str) -> None:
    settings = parse_settings(sample, read_persona=lambda _: "I am.")
    assert get_key(settings, "agents.coder.busy") == "queue"
    assert get_key(settings, "agents.coder.tools[2]") == "mcp:time"
    assert get_key(settings, "people.0.name") == "ada"
    assert get_key(settings, "platforms.telegram.coder.token_env") == "TELEGRAM_CODER_TOKEN"
    assert get_key(settings, "defaults.model") == "big"
    assert get_key(settings, 'platforms.telegram.coder.chats."-100123".agent') == "main"
    with pytest.raises(NotFound, match=r"agents\.codr is not set \(did you mean `coder`\?\)"):
        get_key(settings, "agents.codr.model")


CHOICES = (("-", "resend"), ("+", "hold"))

# -- the text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key, value, change",
    [
        ("timezone", "UTC", ["- timezone: Europe/Berlin", "+ timezone: UTC"]),
        ("loops.max_hops", 3, ['- loops: {max_hops: 8, halt_word: "!halt"}',
                               '+ loops: {max_hops: 3, halt_word: "!halt"}']),
        ("defaults.busy", "steer", ["-   busy: queue                            # queue | steer | interrupt",
                                    "+   busy: steer                            # queue | steer | interrupt"]),
        ("defaults.memory_notices", False, ["+   memory_notices: false"]),
        ("agents.coder.busy", "steer", ["+     busy: steer"]),
        ("agents.writer.persona", "I write.", ["+   writer:", '+     persona: "I write."']),
        ("platforms.telegram.coder.in_doubt", "hold", [f"{sign}     coder: {{token_env: TELEGRAM_CODER_TOKEN, "
            f"agent: coder, enabled: true, in_doubt: {what},   # resend | hold" for sign, what in CHOICES]),
        ("agents.main.busy", "steer", ["-   main: {persona: SOUL.md}               # a file, or text",
                                       "+   main: {persona: SOUL.md, busy: steer}               # a file, or text"]),
        ("agents.coder.send_to[1]", "agent:coder", ['-     send_to: ["agent:main"]',
                                                    '+     send_to: ["agent:main", "agent:coder"]']),
        ("backup", {"keep": 3}, ["- backup: {every_hours: 24, keep: 7}", "+ backup: {keep: 3}"]),
    ],
)  # fmt: skip
def test_set_changes_one_key_and_keeps_every_comment(sample: str, key: str, value: Any, change: list[str]) -> None:
    assert changes(sample, edit_text(sample, split_key(key), value)) == change


@pytest.mark.parametrize(
    "before, key, value, after",
    [
        ("", "timezone", "UTC", "timezone: UTC\n"),
        ("# mine\n", "agents.a.busy", "steer", "# mine\nagents:\n  a:\n    busy: steer\n"),
        ("# mine", "timezone", "UTC", "# mine\ntimezone: UTC\n"),
        ("a: 1\r\nb: 2\r\n", "c", 3, "a: 1\r\nb: 2\r\nc: 3\r\n"),
        ("a: 1", "b", 2, "a: 1\nb: 2\n"),
        ("a:\n", "a.b", 1, "a: {b: 1}\n"),
        ("a: # none yet\n\nb: 1\n", "a.b", 1, "a: {b: 1} # none yet\n\nb: 1\n"),
        ("a: # why\n  b: 1\n", "a.b", 2, "a: # why\n  b: 2\n"),
        ("a:\n  b: 1 # one\n\n# two\nc: 3\n", "a.d", 4, "a:\n  b: 1 # one\n  d: 4\n\n# two\nc: 3\n"),
        ("a:\n  b: 1\n  # tail\nc: 3\n", "a", 5, "a: 5\n  # tail\nc: 3\n"),
        ("a: |\n  text\n  more\n\nb: 1\n", "a", "short", "a: short\n\nb: 1\n"),
        ("a: {b: 1,}\n", "a.c", 2, "a: {b: 1, c: 2,}\n"),
        ("a: {}\n", "a.b", 1, "a: {b: 1}\n"),
        ("a: []\n", "a[0]", "x", "a: [x]\n"),
        ("a:\n- x # first\n", "a[0]", "z", "a:\n- z # first\n"),
        ('a: {b: "x, y"} # c\n', "a.b", "z", "a: {b: z} # c\n"),
        ("a: 'x'\n", "a", "yes", 'a: "yes"\n'),
        ("a: x\n...\n", "b", 1, "a: x\nb: 1\n...\n"),
        ("1: {a: x}\n", "1.a", "z", "1: {a: z}\n"),
        ("a: x\n", "a", None, "a: null\n"),
    ],
)
def test_files_of_every_shape_are_edited_in_place(before: str, key: str, value: Any, after: str) -> None:
    assert edit_text(before, split_key(key), value) == after


def test_an_item_is_appended_to_a_list() -> None:
    after = edit_text("# who\npeople:\n  - name: ada # first\n", split_key("people[1]"), {"name": "bob"})
    assert read_document(after).data == {"people": ({"name": "ada"}, {"name": "bob"})}
    assert "# who" in after
    assert "# first" in after


def test_a_value_shared_by_an_alias_is_not_changed() -> None:
    text = "a: &x {b: 1}\nc: *x\n"
    with pytest.raises(ConfigError, match="by hand"):
        edit_text(text, ("c", "b"), 2)


def test_a_key_inside_a_text_cannot_be_set() -> None:
    with pytest.raises(ConfigError, match="not a mapping"):
        edit_text("timezone: UTC\n", ("timezone", "x"), 1)
    with pytest.raises(ConfigError, match="has 1 items"):
        edit_text("a: [1]\n", ("a", 5), 1)


words = st.text("abc.-: 1#", min_size=1, max_size=4)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text("ab:#-{}[]'\" \né\\|>&*!%@`,?x0.", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
keys = st.lists(words, min_size=1, max_size=3).map(tuple)


@how(deadline=None, max_examples=150)
@given(st.dictionaries(words, plain, max_size=4), keys, plain)
def test_a_set_value_can_be_read_back_and_nothing_else_changes(before: Any, key: Any, value: Any) -> None:
    text = to_yaml(before) if before else ""
    was = read_document(text)
    assume(not was.problems)
    try:
        after = edit_text(text, key, value)
    except ConfigError:
        assume(False)
    found: Any = read_document(after).data
    for part in key[:-1]:
        found = found[int(part)] if isinstance(found, tuple) else found[part]
    got = found[int(key[-1])] if isinstance(found, tuple) else found[key[-1]]
    assert got == read_document(to_yaml({"v": value})).data["v"]
    assert {k: v for k, v in read_document(after).data.items() if k != key[0]} == {
        k: v for k, v in was.data.items() if k != key[0]
    }


# -- the file ----------------------------------------------------------------------------------------------------------


def test_set_writes_whole_files_and_keeps_their_mode(home: Home) -> None:
    home.config.write_text("# mine\ntimezone: UTC # zone\n")
    home.config.chmod(0o644)
    settings = set_key(home, "timezone", "Europe/Berlin", environ={})
    assert home.config.read_text() == "# mine\ntimezone: Europe/Berlin # zone\n"
    assert home.config.stat().st_mode & 0o777 == 0o644
    assert settings.revision == load_settings(home, environ={}).revision
    assert not [name for name in os.listdir(home.path) if name.endswith(".new")]


def test_the_first_set_key_creates_the_file(home: Home) -> None:
    set_key(home, "timezone", "Europe/Berlin", environ={})
    assert home.config.read_text() == "timezone: Europe/Berlin\n"
    assert home.config.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("timezone", "Mars", "is not a time zone"),
        ("agents.main.modle", "x", "did you mean `model`"),
        ("platforms.telegram.main.token", "hunter2", "TELEGRAM_MAIN_TOKEN=…"),
        ("agents.main.model", "nothing", "there is no model"),
    ],
)
def test_an_invalid_value_is_not_written(home: Home, key: str, value: str, said: str) -> None:
    home.config.write_text("loops: {max_hops: 2}\n")
    with pytest.raises(ConfigError, match=said):
        set_key(home, key, value, environ={})
    assert home.config.read_text() == "loops: {max_hops: 2}\n"


def test_a_broken_file_is_not_edited(home: Home) -> None:
    home.config.write_text("a: {\n")
    with pytest.raises(ConfigError):
        set_key(home, "timezone", "UTC", environ={})
    assert home.config.read_text() == "a: {\n"


def test_a_concurrent_edit_is_not_overwritten(home: Home) -> None:
    home.config.write_text("timezone: UTC\n")

    def edit_concurrently(group: str, name: str, raw: Any) -> list[ConfigProblem]:
        home.config.write_text("timezone: UTC\nloops: {max_hops: 3}\n")
        return []

    with pytest.raises(Conflict, match="try again"):
        set_key(home, "timezone", "Europe/Berlin", environ={}, validate_plugin=edit_concurrently)
    assert home.config.read_text() == "timezone: UTC\nloops: {max_hops: 3}\n"


def test_a_symlinked_config_stays_a_link(home: Home, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("timezone: UTC\n")
    home.config.symlink_to(tmp_path / "mine.yaml")
    set_key(home, "loops.max_hops", 3, environ={})
    assert home.config.is_symlink()
    assert (tmp_path / "mine.yaml").read_text() == "timezone: UTC\nloops:\n  max_hops: 3\n"


def test_a_byte_order_mark_is_kept(home: Home) -> None:
    home.config.write_bytes(b"\xef\xbb\xbftimezone: UTC\n")
    set_key(home, "timezone", "Europe/Paris", environ={})
    assert home.config.read_bytes() == b"\xef\xbb\xbftimezone: Europe/Paris\n"


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_the_shown_configuration_has_the_same_effect(sample: str) -> None:
    def persona(name: str) -> str:
        return f"I am {name}."

    first = parse_settings(sample, read_persona=persona)
    again = parse_settings(to_yaml(show_settings(first)), read_persona=persona)
    assert again.revision == first.revision
    inline = parse_settings(
        "agents: {a: {model: {provider: offline, name: x}, fallback: [{provider: offline, name: y}]}}"
    )
    again = parse_settings(to_yaml(show_settings(inline)))
    assert [again.models[name].name for name in again.get_agent().list_models()] == ["x", "y"]
