"""Any file gives Settings or a ConfigError, and valid settings stay valid when they are written again."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import HealthCheck, example, given, settings as how, strategies as st

from everhold.config import ConfigError, ConfigProblem, Settings, parse_settings, show_settings, to_yaml
from everhold.config.secrets import SecretEnvironment
from everhold.config.settings import Settings as Model, list_given_fields
from tests.config.conftest import SAMPLE

QUICK = how(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])


def attempt(text: str | bytes) -> Settings | None:
    def validate(group: str, name: str, raw: Any) -> list[ConfigProblem]:
        return []

    try:
        return parse_settings(
            text,
            environment=SecretEnvironment({"A": "secret-a"}),
            read_persona=lambda name: f"from {name}",
            validate_plugin=validate,
        )
    except ConfigError as error:
        refused = error
    assert refused.problems
    assert all(problem.message and problem.file for problem in refused.problems)
    assert "secret-a" not in str(refused)
    return None


@QUICK
@given(st.text())
@example("a: !!binary x")
@example("%YAML 1.1\n---\na: 0o7\n")
@example("%TAG ! tag:x,1:\n---\na: !b c\n")
@example("? a\n: b")
@example("a: &a [*a]")
@example("<<: 1")
@example("<<: {<<: *x}")
@example("a: 1e999")
@example("a: " + "9" * 5000)
@example("\ud800")
@example("a: \x00")
@example('a: "\\x"')
@example("a: |9\n x")
@example("- -\n-")
@example("%YAML 9.9\n---\n")
@example("%YAML x\n---\n")
@example("!!map {a: 1}")
@example("!!set {a, b}")
@example("!!omap [a: 1]")
def test_no_text_breaks_the_loader(text: str) -> None:
    attempt(text)


@QUICK
@given(st.binary())
def test_no_bytes_break_the_loader(data: bytes) -> None:
    attempt(data)


@QUICK
@given(st.text(alphabet="ab01:-?[]{},#&*!|>'\"%@` \n\t~<.=é", max_size=60))
def test_no_yaml_shape_breaks_the_loader(text: str) -> None:
    attempt(text)


names = st.sampled_from(
    ["main", "coder", "big", "honcho", "telegram", "ada", "offline", "builtin", "A", "x.md", "a b", ""]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | names
    | st.text(string.printable, max_size=5)
    | st.sampled_from(["agent:main", "mcp:main", "telegram:1", "queue", "turn", "http://h", "UTC", "${A}", "{agent}"])
)


def fields_of(model: Any) -> list[str]:
    found = list_given_fields(model)
    for info in model.model_fields.values():
        stack = [info.annotation]
        while stack:
            item = stack.pop()
            if isinstance(item, type) and hasattr(item, "model_fields"):
                found += fields_of(item)
            stack += getattr(item, "__args__", ())
    return found


words = st.sampled_from(sorted({*fields_of(Model), "token_env", "name", "file", "text", "extra", "=name"}))
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | names, inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(st.sampled_from(list_given_fields(Model)), values, max_size=5)


@how(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(documents)
def test_no_combination_of_known_words_breaks_the_loader(document: Any) -> None:
    try:
        text = to_yaml(document)
    except UnicodeEncodeError:
        return
    settings = attempt(text)
    if settings is not None:
        again = attempt(to_yaml(settings.document))
        assert again is not None
        assert again.revision == settings.revision
        assert attempt(to_yaml(show_settings(settings))) is not None


@how(deadline=None, max_examples=200)
@given(st.data())
def test_no_damage_to_a_good_file_breaks_the_loader(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(SAMPLE)))
    length = data.draw(st.integers(0, 40))
    put = data.draw(st.text(alphabet="{}[]:,-# \nax&*!'\"", max_size=6))
    attempt(SAMPLE[:start] + put + SAMPLE[start + length :])
