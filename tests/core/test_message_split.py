"""A reply is split once into parts that fit the platform, and the parts join to the reply."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings, strategies as st

from everhold.core.message_split import split_text
from tests.core.planted_bugs import find_failing_example

Splitter = Callable[[str, int], tuple[str, ...]]

TEXT = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="ab. \n😀é\ud800", max_size=120),
    st.lists(st.text(alphabet="abc😀", min_size=1, max_size=9), max_size=20).map(" ".join),
)
LIMIT = st.integers(2, 40)


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def check_split(text: str, limit: int, splitter: Splitter) -> None:
    parts = splitter(text, limit)
    assert "".join(parts) == text, "nothing is lost or added"
    assert all(units(part) <= limit for part in parts), "a platform would refuse it"
    assert all(parts) or parts == ("",), "no part is empty"
    assert len(parts) <= 4 * units(text) // limit + 2, "crumbs"


@settings(max_examples=200, deadline=None)
@given(TEXT, LIMIT)
@example("", 2)
@example("😀", 2)
@example("a😀", 2)
@example("ab", 2)
@example("\n\n\n\n\n", 2)
def test_parts_fit_are_never_empty_and_join_to_the_text(text: str, limit: int) -> None:
    check_split(text, limit, split_text)


def by_characters(text: str, limit: int) -> tuple[str, ...]:
    return tuple(text[at : at + limit] for at in range(0, len(text), limit)) or ("",)


def swallowing_the_seam(text: str, limit: int) -> tuple[str, ...]:
    return tuple(part.rstrip(" ") for part in split_text(text, limit))


def with_an_empty_end(text: str, limit: int) -> tuple[str, ...]:
    parts = split_text(text, limit)
    return (*parts, "") if text and units(text) % limit == 0 else parts


def in_crumbs(text: str, limit: int) -> tuple[str, ...]:
    return tuple(text) or ("",)


@pytest.mark.parametrize("bug", [by_characters, swallowing_the_seam, with_an_empty_end, in_crumbs])
def test_the_check_finds_a_splitter_that_loses_text(bug: Splitter) -> None:
    find_failing_example(st.tuples(TEXT, LIMIT), lambda drawn: check_split(*drawn, bug), within=1_000)


def test_the_best_break_in_the_second_half_is_used() -> None:
    assert split_text("one two. three four\nfive six\n\nseven eight nine", 40)[0] == "one two. three four\nfive six\n\n"
    assert split_text("one two. three four\nfive six seven", 30)[0] == "one two. three four\n"
    assert split_text("one two three four. five six seven", 30)[0] == "one two three four. "
    assert split_text("one two three four five six seven", 30)[0] == "one two three four five six "


def test_a_break_in_the_first_half_is_not_used() -> None:
    assert split_text("one\n\ntwo three four five", 20)[0] == "one\n\ntwo three four "
    assert split_text("a b" + "c" * 30, 20)[0] == "a b" + "c" * 17


def test_a_text_that_fits_exactly_is_one_part() -> None:
    assert split_text("x" * 4_000, 4_000) == ("x" * 4_000,)
    assert split_text("😀" * 2_000, 4_000) == ("😀" * 2_000,)
    assert split_text("😀" * 2_000 + "x", 4_000) == ("😀" * 2_000, "x")


def test_a_surrogate_pair_is_never_split() -> None:
    assert split_text("😀😀😀", 3) == ("😀", "😀", "😀")
    assert split_text("a😀b😀", 2) == ("a", "😀", "b", "😀")


# -- blocks of code ----------------------------------------------------------------------------------------------------

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^`]*")
BLOCKS = st.lists(
    st.one_of(
        st.sampled_from(["```", "```python", "~~~", "````md", "  ```", "```" + "x" * 70, "`` `", "", "  "]),
        st.text(alphabet="ab. 😀`", max_size=150),
    ),
    max_size=40,
).map("\n".join)


def opened(text: str) -> str:
    """Return the mark of the code block that is open at the end of a text."""
    mark = ""
    for line in text.split("\n"):
        found = FENCE.fullmatch(line)
        if found is None or len(found[0].lstrip()) > 50:
            continue
        if not mark:
            mark = found[1]
        elif found[0].strip() == found[1] and found[1].startswith(mark):
            mark = ""
    return mark


def without_blocks(text: str) -> str:
    """Everything but marks and ends of lines, which is what may be added between two parts."""
    return re.sub(r"[`~\n ]|python|md", "", text)


def check_code_blocks(text: str, limit: int, splitter: Splitter) -> None:
    parts = splitter(text, limit)
    assert all(units(part) <= limit for part in parts), "a platform would refuse it"
    assert not any(opened(part) for part in parts[:-1]), "a block of code is left open"
    assert without_blocks("".join(parts)) == without_blocks(text), "something is lost or added"
    assert opened(parts[-1]) == opened(text), "the last part has another open block"
    assert len(parts) <= 4 * units(text) // limit + 2, "crumbs"


@settings(max_examples=300, deadline=None)
@given(BLOCKS, st.integers(200, 300))
def test_a_code_block_is_closed_and_reopened_at_a_cut(text: str, limit: int) -> None:
    check_code_blocks(text, limit, split_text)


def heedless(text: str, limit: int) -> tuple[str, ...]:
    return tuple(text[at : at + limit // 2] for at in range(0, len(text), limit // 2)) or ("",)


def test_the_check_finds_a_splitter_that_leaves_blocks_open() -> None:
    drawn = st.tuples(BLOCKS, st.integers(200, 300))
    find_failing_example(drawn, lambda it: check_code_blocks(*it, heedless), within=2_000)


def test_code_stays_in_a_code_block_in_every_part() -> None:
    code = "\n".join(f"print({n:04})" for n in range(40))
    first, *rest = split_text(f"See:\n```python\n{code}\n```\nThat is all.", 300)
    assert first.startswith("See:\n```python\nprint(0000)\n")
    assert first.endswith(")\n```")
    assert all(part.startswith("```python\nprint(") for part in rest)
    assert rest[-1].endswith("print(0039)\n```\nThat is all.")


def test_a_code_block_that_starts_near_the_cut_moves_to_the_next_part() -> None:
    prose, code = "word " * 40, "```\n" + "x\n" * 60 + "```"
    assert split_text(f"{prose}\n{code}", 260) == (f"{prose}\n", code)


def test_a_code_block_that_ends_at_the_cut_is_not_reopened() -> None:
    code = "```\n" + "123456789\n" * 18
    for filler in range(12):
        parts = split_text(f"{code}{'y' * filler}\n```\nand so on " + "z " * 60, 200)
        assert not any(part.startswith(("```\n```", "```\n\n```")) for part in parts)


class Counted(str):
    """A text that counts how many characters of it, or of any piece of it, are looked at."""

    looked = 0

    def __getitem__(self, index: object) -> str:
        piece = Counted(super().__getitem__(index))  # type: ignore[index]  # whatever split asks for
        Counted.looked += len(piece)
        return piece

    def __iter__(self) -> Iterator[str]:
        for char in super().__iter__():
            Counted.looked += 1
            yield char

    def rfind(self, sub: str, start: object = 0, end: object = None, /) -> int:
        assert isinstance(start, int)
        stop = end if isinstance(end, int) else len(self)
        Counted.looked += stop - start
        return super().rfind(sub, start, stop)


def by_what_is_left(text: str, limit: int) -> tuple[str, ...]:
    """Measures the whole rest of the text for every part."""
    parts = []
    while sum(1 for _ in text) > limit:
        parts.append(text[:limit])
        text = text[limit:]
    return (*parts, text)


def work(splitter: Splitter, text: str) -> int:
    Counted.looked = 0
    splitter(Counted(text), 200)
    return Counted.looked


@pytest.mark.parametrize("word", ["word ", "x", "\n", "😀", "line\n\n", "```\nx\n"])
def test_the_work_is_linear_in_the_length_of_the_text(word: str) -> None:
    """Counted in characters looked at, so that a slow machine cannot fail it and a fast one cannot hide it."""
    few, many = (work(split_text, (word * length)[:length]) for length in (10_000, 80_000))
    assert many <= 8.5 * few
    assert many <= 12 * 80_000


def test_the_check_finds_a_splitter_with_quadratic_work() -> None:
    few, many = (work(by_what_is_left, "x" * length) for length in (1_000, 8_000))
    assert many > 20 * few


@pytest.mark.timeout(200)
@pytest.mark.parametrize("word", ["word ", "x", "😀 ", "naïve. "])
def test_a_megabyte_is_split_quickly(word: str) -> None:
    text = (word * (1_000_000 // len(word) + 1))[:1_000_000]
    parts = split_text(text, 4_000)
    assert "".join(parts) == text
    assert len(parts) < 1_100
    assert not any(a.isspace() for a, _ in itertools.pairwise(parts))
