"""YAML of others is loaded in one place, which never expands more than a few aliases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import everhold
from everhold.infra import safe_yaml
from everhold.infra.safe_yaml import TooManyAliases, load_foreign_yaml
from tests.hermes.test_hostile_home import build_alias_bomb

SOURCE = Path(everhold.__file__).parent


@pytest.mark.parametrize("merge", [False, True], ids=["lists", "merges"])
def test_a_text_with_too_many_aliases_is_not_loaded(merge: bool) -> None:
    with pytest.raises(TooManyAliases, match="more than 20 aliases"):
        load_foreign_yaml(build_alias_bomb(merge=merge), most_aliases=20)


def test_asterisks_that_are_no_aliases_do_not_count() -> None:
    assert load_foreign_yaml("a: '*x'\nb: a * b * c\n", most_aliases=0) == {"a": "*x", "b": "a * b * c"}
    assert load_foreign_yaml("a: &a [1]\nb: *a\n", most_aliases=1) == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    "text, reason",
    [
        ("a: [", "parsing"),
        ("a: 2026-99-99", "month"),
        ("[" * 5_000, "parsing|nested"),
        ("a: !!python/object:os.system x", "constructor"),
    ],
)
def test_an_invalid_text_is_an_error_of_one_kind(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_foreign_yaml(text, most_aliases=0)


def test_nothing_else_loads_yaml() -> None:
    """The configuration builds its values from nodes, with a limit of its own. Writing expands nothing."""
    users = {path for path in SOURCE.rglob("*.py") if re.search(r"\bYAML\(", path.read_text())}
    loading = {path for path in users if re.search(r"\.load(_all)?\(", path.read_text())}
    assert Path(safe_yaml.__file__) in loading
    edit = SOURCE / "config" / "edit.py"
    assert loading <= {Path(safe_yaml.__file__), edit}


@pytest.mark.parametrize(
    "text, found",
    [
        (r'a: "\ud800 x"', "\ufffd x"),
        (r'a: "\U0000DFFF"', "\ufffd"),
        (r'a: "\ud83d\ude00"', "\U0001f600"),
        (r'a: "\udc00\ud800"', "\ufffd\ufffd"),
        (r'a: "\ud7ff\ue000"', "\ud7ff\ue000"),
    ],
)
def test_an_escape_of_half_a_character_is_none(text: str, found: str) -> None:
    """Such a text could be stored and sent nowhere: a skill with it would fail every request to a model."""
    loaded = load_foreign_yaml(text, most_aliases=0)
    assert loaded == {"a": found}
    loaded["a"].encode()
