"""Foreign text costs time in proportion to its length. The work is counted, so no machine is too slow."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any, Final

import pytest

from everhold.core.message_split import _CODE_FENCE
from tests.core import test_statements as statements_tests
from tests.hostile.patterns import FoundPattern, find_patterns, list_imported_patterns
from tests.hostile.regex_steps import CountedPattern, PatternSampler, allow_deep_recursion
from tests.tools import test_files as files_tests

LIGHT_STEPS_PER_CHAR: Final = 10
"""A text that costs less at its first size is not measured further."""
MAX_STEPS_PER_CHAR: Final = 150
MAX_GROWTH: Final = 2.6
"""How much the steps may grow when the text doubles: twice is linear, four times is quadratic."""

OWN_TEXT: Final = {
    "everhold.evals.": "reads conversations and reports of this repository, and no gateway imports it",
    "everhold.testing.": "reads what tests send, and no gateway imports it",
}
"""Packages whose patterns meet no foreign text in a gateway."""

_SECRETS: Final = ["hunter2-hunter2", "hunter2%2Fhunter2", "\\u00e4hunter2"]
MADE_AT_RUN_TIME: Final[dict[str, tuple[str, ...]]] = {
    "everhold.core.message_split._split_keeping_blocks": (r" {0,3}```[ \t]*(?:\n|\Z)", r" {0,3}~~~~[ \t]*(?:\n|\Z)"),
    "everhold.memories.builtin.tokenizing.remove_names.left": (r"(?<!\w)(?:Ada|Ada Lovelace)(?:['\u2019]s?)?(?!\w)",),
    "everhold.platforms.matrix.parsing._detect_mention.first": (
        r"(?:@bot:example\.org|@bot|bot)(?![\w.-]|:\w)[:,]?\s*",
    ),
    "everhold.platforms.matrix.parsing._detect_mention": (r"(?<![\w@.-])@bot:example\.org(?![\w-])",),
    "everhold.telemetry.logs.SecretRedaction.add_secrets": ("|".join(map(re.escape, _SECRETS)),),
}
"""Patterns made of names that only a running gateway knows, with examples."""
WRITTEN_BY_A_MODEL: Final = {
    "everhold.tools.search_process.main.compiled": files_tests.test_an_expression_that_never_ends_is_ended,
}
"""Patterns that may cost any time, because a model writes them, and the tests that such a search is ended."""
SHORT_TEXT: Final = {"everhold.core.statements._compile_patterns": statements_tests.test_a_long_clause_is_not_read}
"""Patterns that meet only a short text, and the tests that a longer one is not read."""


def is_own_text(found: FoundPattern) -> bool:
    return found.place.startswith(tuple(OWN_TEXT))


FOUND: Final = [found for found in find_patterns() if not is_own_text(found)]
CONSTANT: Final = {f"{found.place}#{at}": found for at, found in enumerate(FOUND) if found.pattern is not None}


def find_costly_text(pattern: re.Pattern[Any], *, is_anchored: bool, samples: int) -> str:
    """Return a description of a text whose cost is not linear; empty if none was found."""
    counted = CountedPattern(pattern)
    count = counted.count_anchored if is_anchored else counted.count_scan
    sampler = PatternSampler(counted)
    with allow_deep_recursion():
        for pump in sampler.iter_pumps(samples):
            for build in sampler.iter_texts(pump):
                if problem := measure_growth(count, build, max(240, 24 * len(pump))):
                    return f"{build(len(pump))!r}, with {pump!r} repeated: {problem}"
    return ""


def measure_growth(count: Callable[..., int], build: Callable[[int], str], size: int) -> str:
    if count(build(size), limit=size * LIGHT_STEPS_PER_CHAR) <= size * LIGHT_STEPS_PER_CHAR:
        return ""
    texts = [build(2 * size), build(4 * size)]
    limit = 4 * size * MAX_STEPS_PER_CHAR
    small, large = (count(text, limit=limit) for text in texts)
    if large > limit:
        return f"more than {MAX_STEPS_PER_CHAR} steps per character"
    growth = (large / len(texts[1])) / (small / len(texts[0])) * 2
    return f"{small:,} steps become {large:,} when it doubles" if growth > MAX_GROWTH else ""


# -- the counter -------------------------------------------------------------------------------------------------------


def test_the_counter_matches_as_re_does() -> None:
    chance = random.Random(1)
    with allow_deep_recursion():
        for found in CONSTANT.values():
            assert found.pattern is not None
            counted = CountedPattern(found.pattern)
            sampler = PatternSampler(counted)
            for _ in range(6):
                text = sampler.make_sample()[:200] + chance.choice(sampler.alphabet) + sampler.make_sample()[:200]
                subject: Any = text
                if isinstance(found.pattern.pattern, bytes):
                    text = text.encode("ascii", "replace").decode()
                    subject = text.encode()
                for at in range(min(len(text), 40)):
                    real = found.pattern.match(subject, at)
                    assert counted.find_end(text, at) == (real.end() if real else -1), (found.place, text, at)


@pytest.mark.parametrize(
    "pattern",
    [r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", r"(a+)+$", r"<a>.*?</a>", r"[\w.]+@\w+", r"\s*\S+", r"(?:a|aa)+b", r"\[.*\]",
     r"\b[a-z][a-z0-9+.-]*://", r"^#+[ \t]+(\S.*?)[ \t]*#*$", r"\d+(?:\.\d+)?s"],
)  # fmt: skip
def test_a_costly_pattern_is_found(pattern: str) -> None:
    assert find_costly_text(re.compile(pattern), is_anchored=False, samples=4)


# -- every pattern of the package --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", CONSTANT)
def test_a_pattern_is_linear(place: str) -> None:
    found = CONSTANT[place]
    assert found.pattern is not None
    problem = find_costly_text(found.pattern, is_anchored=found.is_anchored, samples=4)
    assert not problem, f"{found.pattern.pattern!r} is costly on {problem}"


@pytest.mark.prove
@pytest.mark.parametrize("place", CONSTANT)
def test_a_pattern_is_linear_on_many_texts(place: str) -> None:
    found = CONSTANT[place]
    assert found.pattern is not None
    problem = find_costly_text(found.pattern, is_anchored=found.is_anchored, samples=100)
    assert not problem, f"{found.pattern.pattern!r} is costly on {problem}"


@pytest.mark.parametrize("place", MADE_AT_RUN_TIME)
def test_a_pattern_of_names_is_linear(place: str) -> None:
    for text in MADE_AT_RUN_TIME[place]:
        assert not find_costly_text(re.compile(text, re.IGNORECASE), is_anchored=False, samples=4)


def test_every_pattern_made_at_run_time_has_an_example() -> None:
    """A new one must be added to MADE_AT_RUN_TIME, or be made of constants."""
    made = {found.place for found in FOUND if found.pattern is None}
    assert made == {*MADE_AT_RUN_TIME, *WRITTEN_BY_A_MODEL, *SHORT_TEXT}


def test_every_pattern_that_a_module_holds_was_found_in_the_source() -> None:
    known = {found.pattern for found in find_patterns()}
    hidden = {place for place, pattern in list_imported_patterns().items() if pattern not in known}
    assert not hidden
    assert _CODE_FENCE in known
