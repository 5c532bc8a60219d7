"""The naming rules that a machine can check. docs/reference/glossary.md defines the words; each check is shown to fail."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.telemetry.events import LogEvent

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "everhold"
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def package_modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


# -- class names -------------------------------------------------------------------------------------------------------

ONE_WORD_CLASSES = set(
    """
    """.split()
)
"""Glossary nouns, entry bodies and errors. Every other class name has two words or more."""


def find_classes(source: str) -> Iterator[str]:
    """Every class defined in a module, nested and private ones included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name


def split_words(identifier: str) -> list[str]:
    """The words of a snake_case or CamelCase identifier, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]


def test_an_identifier_is_split_into_its_words() -> None:
    assert split_words("DeliveryWorker") == ["delivery", "worker"]
    assert split_words("_claim_cursors_2") == ["claim", "cursors"]
    assert split_words("HTTPServer") == ["http", "server"]
    assert split_words("MAX_BYTES") == ["max", "bytes"]


def test_a_nested_private_class_is_found() -> None:
    assert list(find_classes("class A:\n    class _B: ...\ndef f():\n    class C: ...")) == ["A", "_B", "C"]


def test_a_class_name_exists_once_in_the_package() -> None:
    modules = defaultdict(list)
    for path in package_modules():
        for name in find_classes(path.read_text()):
            modules[name].append(str(path.relative_to(SOURCE)))
    repeated = {name: paths for name, paths in modules.items() if len(paths) > 1}
    assert not repeated, f"these class names are used more than once: {repeated}"


def test_one_word_class_names_are_the_listed_ones() -> None:
    names = [name for path in package_modules() for name in find_classes(path.read_text())]
    one_word = {name for name in names if len(split_words(name)) < 2}
    assert one_word <= ONE_WORD_CLASSES, f"give these classes a second word: {sorted(one_word - ONE_WORD_CLASSES)}"
    assert ONE_WORD_CLASSES <= one_word, f"no longer in use: {sorted(ONE_WORD_CLASSES - one_word)}"
    assert len(one_word) <= len(names) / 10


# -- retired words -----------------------------------------------------------------------------------------------------

RETIRED = set(
    """
    mind voice desk tie fold lane seat purse courier flight leg parked papers ballast farside knock
    minds voices desks ties folds lanes seats purses couriers flights legs folded folding
    """.split()
)

ALLOWED_IDENTIFIERS = {
    "in_flight": "the usual word for what was sent and not yet confirmed; `flight` alone is retired",
}
"""Identifiers that contain a retired word, each with its reason."""

ALLOWED_TEXT: dict[str, str] = {
    "models/offline.py": "recognises people's words, such as `keep in mind`",
    "models/sentence_selection.py": "recognises people's words, such as `changed my mind`",
    "platforms/telegram/parsing.py": "Telegram calls a kind of message `voice`",
    "testing/platforms/discord.py": "Discord's field `voice_states`",
    "testing/platforms/telegram.py": "Telegram calls a kind of message `voice`",
}
"""Files whose text may contain a retired word, each with its reason."""


def find_identifiers(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string


def find_retired_identifiers(source: str) -> set[str]:
    """The identifiers of a module that contain a retired word."""
    found = set()
    for identifier in set(find_identifiers(source)):
        rest = identifier.lower()
        for allowed in ALLOWED_IDENTIFIERS:
            rest = rest.replace(allowed, "")
        if RETIRED & set(
            re.findall(r"[a-z]+", "_".join(split_words(identifier)) if rest == identifier.lower() else rest)
        ):
            found.add(identifier)
    return found


def find_retired_words(text: str) -> set[str]:
    """The retired words in prose, "in-flight" excepted."""
    return RETIRED & set(re.findall(r"[a-z]+", re.sub(r"in[ _-]flight", "", text.lower())))


@pytest.mark.parametrize(
    "source, found",
    [
        ("lane = 1", {"lane"}),
        ("def take_seat(): ...", {"take_seat"}),
        ("class VoiceReader: ...", {"VoiceReader"}),
        ("text.casefold()", set()),
        ("in_flight = batch.in_flight_items", set()),
        ("flight_of = in_flight", {"flight_of"}),
    ],
)
def test_a_retired_word_is_found_in_an_identifier(source: str, found: set[str]) -> None:
    assert find_retired_identifiers(source) == found


def test_a_retired_word_is_found_in_prose() -> None:
    assert find_retired_words("A lane hands over what is in flight.") == {"lane"}


@pytest.mark.parametrize("top", ["src", "tests", "bench"])
def test_no_identifier_contains_a_retired_word(top: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / top).rglob("*.py"))
        if (names := find_retired_identifiers(path.read_text()))
    }
    assert not found, f"use the glossary's words: {found}"


def test_no_text_of_the_package_contains_a_retired_word() -> None:
    """Strings, comments and docstrings: what users read in messages, and developers in the code."""
    found = {}
    for path in package_modules():
        name = str(path.relative_to(SOURCE))
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        text = " ".join(token.string for token in tokens if token.type in (tokenize.STRING, tokenize.COMMENT))
        if name not in ALLOWED_TEXT and (words := find_retired_words(text)):
            found[name] = words
    assert not found, f"use the glossary's words: {found}"


def test_no_page_of_the_docs_contains_a_retired_word() -> None:
    found = {
        str(path.relative_to(ROOT)): words
        for path in DOCS
        if str(path.relative_to(ROOT)) not in ALLOWED_TEXT and (words := find_retired_words(path.read_text()))
    }
    assert not found, f"use the glossary's words: {found}"


# -- log events --------------------------------------------------------------------------------------------------------

LEVELS = {"debug", "info", "warning", "error", "exception"}


def find_logged_events(source: str) -> Iterator[str]:
    """The literal event names that a module logs: the first argument of a call to a logger's level."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and node.args
        ):
            for part in ast.walk(node.args[0]):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_a_logged_event_is_found() -> None:
    assert list(find_logged_events('self.log.info("turn.done" if x else "turn.failed", op=1)')) == [
        "turn.done",
        "turn.failed",
    ]


def test_every_logged_event_is_declared_and_every_declared_one_is_used() -> None:
    declared = {event.value for event in LogEvent}
    logged = {event for path in package_modules() for event in find_logged_events(path.read_text())}
    assert logged <= declared, f"declare these in telemetry/events.py: {sorted(logged - declared)}"


def test_a_log_event_is_a_noun_and_what_happened_to_it() -> None:
    odd = [event.value for event in LogEvent if not re.fullmatch(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*", event.value)]
    assert not odd


# -- commits -----------------------------------------------------------------------------------------------------------


def test_the_glossary_is_linked_where_newcomers_begin() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md"):
        assert "glossary.md" in (ROOT / page).read_text(), f"{page} should link the glossary"
