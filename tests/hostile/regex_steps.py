"""Counts the steps of a backtracking regular expression. The same pattern and text always give the same count.

`re` does not report its work, and a clock depends on the machine. So this module runs the parsed pattern as `re` does:
it tries the alternatives in order, repeats greedily, and goes back. `tests/hostile/test_linear.py` checks that
both find the same spans.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

c: Final[Any] = import_module("re._constants")
parser: Final[Any] = import_module("re._parser")

Matcher = Callable[[int], bool]
CharTest = Callable[[str], bool]

MANY: Final = 3
"""How many times a sample repeats what may repeat without end."""
SPARE_CHARS: Final = "aZ0_- \n.é<\u4e00"
_CATEGORIES: Final[dict[Any, CharTest]] = {
    c.CATEGORY_DIGIT: str.isdigit,
    c.CATEGORY_NOT_DIGIT: lambda char: not char.isdigit(),
    c.CATEGORY_SPACE: str.isspace,
    c.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    c.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    c.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}


class StepLimitReached(Exception):
    """The pattern took more steps than allowed."""


@contextmanager
def allow_deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class CountedPattern:
    """A compiled pattern that counts its steps."""

    def __init__(self, pattern: re.Pattern[str] | re.Pattern[bytes]) -> None:
        self.pattern = pattern
        source = pattern.pattern
        flags = pattern.flags
        if isinstance(source, bytes):
            source = source.decode("latin-1")
            flags |= re.ASCII
        self.tree = parser.parse(source, flags & ~re.UNICODE if flags & re.ASCII else flags)
        self.char_tests: list[CharTest] = []
        self.literals: set[str] = set()
        self.steps = 0
        self.limit = 1 << 62
        self._text = ""
        self._end = -1
        self._groups: dict[int, tuple[int, int]] = {}
        self._start = self._compile_all(list(self.tree), self._finish, flags)

    # -- running -----------------------------------------------------------------------------------------------------

    def find_end(self, text: str, at: int) -> int:
        """Return where a match that begins at `at` ends; -1 if there is none."""
        self._text = text
        self._groups.clear()
        return self._end if self._start(at) else -1

    def count_scan(self, text: str, *, limit: int = 1 << 62) -> int:
        """Count the steps of `finditer` over the whole text. Stop soon after `limit`."""
        self.steps, self.limit = 0, limit
        at = 0
        try:
            while at <= len(text):
                end = self.find_end(text, at)
                at = max(end, at + 1)
        except StepLimitReached:
            pass
        return self.steps

    def count_anchored(self, text: str, *, limit: int = 1 << 62) -> int:
        """Count the steps of one `fullmatch`. It takes at least as many as `match`."""
        self.steps, self.limit = 0, limit
        self._must_reach_end = True
        try:
            self.find_end(text, 0)
        except StepLimitReached:
            pass
        finally:
            self._must_reach_end = False
        return self.steps

    _must_reach_end = False

    def _finish(self, at: int) -> bool:
        self._count()
        if self._must_reach_end and at != len(self._text):
            return False
        self._end = at
        return True

    def _count(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > self.limit:
            raise StepLimitReached

    # -- compiling ---------------------------------------------------------------------------------------------------

    def _compile_all(self, nodes: Sequence[Any], then: Matcher, flags: int) -> Matcher:
        for node in reversed(nodes):
            then = self._compile(node, then, flags)
        return then

    def _compile(self, node: Any, then: Matcher, flags: int) -> Matcher:
        kind, value = node
        char_test = self.build_char_test(kind, value, flags)
        if char_test is not None:
            return self._match_char(char_test, then)
        match kind:
            case c.SUBPATTERN:
                group, added, removed, inside = value
                return self._match_group(group, list(inside), then, (flags | added) & ~removed)
            case c.BRANCH:
                return self._match_branch([self._compile_all(list(one), then, flags) for one in value[1]])
            case c.MAX_REPEAT | c.MIN_REPEAT | c.POSSESSIVE_REPEAT:
                return self._match_repeat(kind, value, then, flags)
            case c.ATOMIC_GROUP:
                return self._match_atomic(self._compile_all(list(value), self._finish_inside, flags), then)
            case c.ASSERT | c.ASSERT_NOT:
                return self._match_assertion(kind is c.ASSERT, value, then, flags)
            case c.AT:
                return self._match_place(value, then, flags)
            case c.GROUPREF:
                return self._match_reference(value, then, flags)
        raise NotImplementedError(f"{kind} in {self.pattern.pattern!r}")

    def build_char_test(self, kind: Any, value: Any, flags: Any) -> CharTest | None:
        ascii_only, is_caseless = bool(flags & re.ASCII), bool(flags & re.IGNORECASE)
        match kind:
            case c.LITERAL:
                self.literals.add(chr(value))
                test = self._ignore_case(lambda char, want=value: ord(char) == want, is_caseless)  # type: ignore[misc]
            case c.NOT_LITERAL:
                self.literals.add(chr(value))
                inner = self._ignore_case(lambda char, want=value: ord(char) == want, is_caseless)  # type: ignore[misc]
                test = lambda char: not inner(char)  # noqa: E731
            case c.ANY:
                test = (lambda char: True) if flags & re.DOTALL else (lambda char: char != "\n")
            case c.IN:
                test = self._build_set_test(value, ascii_only, is_caseless)
            case c.CATEGORY:
                test = _limit_to_ascii(value, ascii_only)
            case _:
                return None
        known: dict[str, bool] = {}

        def remember(char: str) -> bool:
            found = known.get(char)
            if found is None:
                found = known[char] = test(char)
            return found

        self.char_tests.append(remember)
        return remember

    def _build_set_test(self, items: Sequence[Any], ascii_only: bool, is_caseless: bool) -> CharTest:
        negated = items[0][0] is c.NEGATE
        tests: list[CharTest] = []
        for kind, value in items[1:] if negated else items:
            match kind:
                case c.LITERAL:
                    self.literals.add(chr(value))
                    tests.append(lambda char, want=value: ord(char) == want)  # type: ignore[misc]
                case c.RANGE:
                    self.literals |= {chr(value[0]), chr(value[1])}
                    tests.append(lambda char, low=value[0], high=value[1]: low <= ord(char) <= high)  # type: ignore[misc]
                case c.CATEGORY:
                    tests.append(_limit_to_ascii(value, ascii_only))
                case _:
                    raise NotImplementedError(f"{kind} in a set of {self.pattern.pattern!r}")
        inside = self._ignore_case(lambda char: any(test(char) for test in tests), is_caseless)
        return (lambda char: not inside(char)) if negated else inside

    @staticmethod
    def _ignore_case(test: CharTest, is_caseless: bool) -> CharTest:
        if not is_caseless:
            return test
        return lambda char: any(test(one) for one in {char, char.lower(), char.upper()} if len(one) == 1)

    def _match_char(self, test: CharTest, then: Matcher) -> Matcher:
        def match_char(at: int) -> bool:
            self._count()
            return at < len(self._text) and test(self._text[at]) and then(at + 1)

        return match_char

    def _match_group(self, group: int | None, nodes: list[Any], then: Matcher, flags: int) -> Matcher:
        if group is None:
            return self._compile_all(nodes, then, flags)
        starts: list[int] = []

        def close(at: int) -> bool:
            begin, before = starts.pop(), self._groups.get(group)
            self._groups[group] = begin, at
            if then(at):
                return True
            starts.append(begin)
            if before is None:
                del self._groups[group]
            else:
                self._groups[group] = before
            return False

        inside = self._compile_all(nodes, close, flags)

        def open_group(at: int) -> bool:
            starts.append(at)
            if inside(at):
                return True
            starts.pop()
            return False

        return open_group

    def _match_branch(self, ways: list[Matcher]) -> Matcher:
        def match_branch(at: int) -> bool:
            for way in ways:  # noqa: SIM110 - `any` with a generator needs a C stack frame for each level
                if way(at):
                    return True
            return False

        return match_branch

    def _match_repeat(self, kind: Any, value: Any, then: Matcher, flags: int) -> Matcher:
        low, high, inside = value
        most = sys.maxsize if high is c.MAXREPEAT else int(high)
        if len(inside) == 1 and (test := self.build_char_test(inside[0][0], inside[0][1], flags)) is not None:
            return self._match_char_run(kind, test, low, most, then)
        if kind is c.POSSESSIVE_REPEAT:
            whole = self._match_loop(c.MAX_REPEAT, list(inside), low, most, self._finish_inside, flags)
            return self._match_atomic(whole, then)
        return self._match_loop(kind, list(inside), low, most, then, flags)

    def _match_char_run(self, kind: Any, test: CharTest, low: int, most: int, then: Matcher) -> Matcher:
        def measure_run(at: int, wanted: int) -> int:
            text, stop = self._text, min(len(self._text), at + wanted)
            here = at
            while here < stop and test(text[here]):
                here += 1
            self._count(here - at + 1)
            return here

        def match_greedy(at: int) -> bool:
            here = measure_run(at, most)
            while here - at >= low:
                if then(here):
                    return True
                here -= 1
            return False

        def match_possessive(at: int) -> bool:
            here = measure_run(at, most)
            return here - at >= low and then(here)

        def match_lazy(at: int) -> bool:
            here = measure_run(at, low)
            if here - at < low:
                return False
            while not then(here):
                self._count()
                if here - at >= most or here >= len(self._text) or not test(self._text[here]):
                    return False
                here += 1
            return True

        return {c.MAX_REPEAT: match_greedy, c.MIN_REPEAT: match_lazy, c.POSSESSIVE_REPEAT: match_possessive}[kind]

    def _match_loop(self, kind: Any, nodes: list[Any], low: int, most: int, then: Matcher, flags: int) -> Matcher:
        state = (0, -1)  # how often the body matched, and where its last round began

        def leave(at: int) -> bool:
            nonlocal state
            before = state
            if then(at):
                return True
            state = before
            return False

        def go_round(at: int) -> bool:
            nonlocal state
            count, last = before = state
            if count >= most or (at == last and count > low):
                return False
            state = count + 1, at
            if body(at):
                return True
            state = before
            return False

        def decide(at: int) -> bool:
            self._count()
            enough = state[0] >= low
            if kind is c.MIN_REPEAT:
                return (enough and leave(at)) or go_round(at)
            return go_round(at) or (enough and leave(at))

        body = self._compile_all(nodes, decide, flags)

        def enter(at: int) -> bool:
            nonlocal state
            before, state = state, (0, -1)
            found = decide(at)
            state = before
            return found

        return enter

    def _finish_inside(self, at: int) -> bool:
        self._count()
        self._end = at
        return True

    def _match_atomic(self, inside: Matcher, then: Matcher) -> Matcher:
        def match_atomic(at: int) -> bool:
            return inside(at) and then(self._end)

        return match_atomic

    def _match_assertion(self, wanted: bool, value: Any, then: Matcher, flags: int) -> Matcher:
        direction, inside = value
        width = inside.getwidth()[0] if direction < 0 else 0
        look = self._compile_all(list(inside), self._finish_inside, flags)

        def match_assertion(at: int) -> bool:
            self._count()
            found = at >= width and look(at - width)
            return found is wanted and then(at)

        return match_assertion

    def _match_place(self, place: Any, then: Matcher, flags: int) -> Matcher:
        is_word = _limit_to_ascii(c.CATEGORY_WORD, bool(flags & re.ASCII))

        def is_boundary(at: int) -> bool:
            text = self._text
            before = at > 0 and is_word(text[at - 1])
            return before != (at < len(text) and is_word(text[at]))

        def is_here(at: int) -> bool:
            text = self._text
            match place:
                case c.AT_BEGINNING:
                    return at == 0 or bool(flags & re.MULTILINE and text[at - 1] == "\n")
                case c.AT_BEGINNING_STRING:
                    return at == 0
                case c.AT_END:
                    is_last = at == len(text) or (at == len(text) - 1 and text[at] == "\n")
                    return is_last or bool(flags & re.MULTILINE and text[at] == "\n")
                case c.AT_END_STRING:
                    return at == len(text)
                case c.AT_BOUNDARY:
                    return is_boundary(at)
                case c.AT_NON_BOUNDARY:
                    return not is_boundary(at)
            raise NotImplementedError(str(place))

        def match_place(at: int) -> bool:
            self._count()
            return is_here(at) and then(at)

        return match_place

    def _match_reference(self, group: int, then: Matcher, flags: int) -> Matcher:
        def match_reference(at: int) -> bool:
            if group not in self._groups:
                return False
            begin, end = self._groups[group]
            wanted, there = self._text[begin:end], self._text[at : at + end - begin]
            self._count(1 + len(there))
            same = wanted.lower() == there.lower() if flags & re.IGNORECASE else wanted == there
            return same and then(at + end - begin)

        return match_reference


def _limit_to_ascii(category: Any, ascii_only: bool) -> CharTest:
    test = _CATEGORIES[category]
    if not ascii_only:
        return test
    # Outside of ASCII, a character belongs to no category, so it belongs to every negated one.
    is_negated = category in (c.CATEGORY_NOT_DIGIT, c.CATEGORY_NOT_SPACE, c.CATEGORY_NOT_WORD)
    return lambda char: test(char) if char.isascii() else is_negated


# -- texts that are hard for a pattern ---------------------------------------------------------------------------------


class PatternSampler:
    """Makes texts from a pattern: what it matches, the beginnings of that, and near matches."""

    def __init__(self, counted: CountedPattern, seed: int = 0) -> None:
        self.tree = counted.tree
        self._random = random.Random(seed)
        self.alphabet = _choose_alphabet(counted)
        """One character for each set of characters that the pattern tells apart."""
        self._known_chars: dict[str, list[str]] = {}
        self._counted = counted

    def iter_pumps(self, samples: int) -> Iterator[str]:
        """Yield short texts that are worth repeating, each once."""
        seen: set[str] = set()
        for text in self._iter_pumps(samples):
            if text and len(text) <= 40 and text not in seen:
                seen.add(text)
                yield text

    def _iter_pumps(self, samples: int) -> Iterator[str]:
        yield from self.alphabet
        for nodes in _expand(list(self.tree)):
            yield from self._iter_beginnings(nodes)
        for _ in range(samples):
            whole = self.make_sample()
            part = whole[: self._random.randint(1, max(1, len(whole)))]
            yield part
            yield part + self._random.choice(self.alphabet)
            yield part[self._random.randint(0, len(part) - 1) :] if part else ""
            yield self._random.choice(self.alphabet) + self._random.choice(self.alphabet)

    def _iter_beginnings(self, nodes: Sequence[Any]) -> Iterator[str]:
        """Yield each beginning of one alternative. What may repeat occurs once, with every kind of character."""
        before = ""
        for node in nodes:
            kinds = self._list_units(node)
            if kinds != [chr(node[1])] if node[0] is c.LITERAL else True:
                yield from (before + unit for unit in kinds)
            before += self._random.choice(kinds)
        yield before

    def _list_units(self, node: Any) -> list[str]:
        kind, value = node
        if kind is c.LITERAL:
            return [chr(value)]
        if kind in (c.NOT_LITERAL, c.ANY, c.IN, c.CATEGORY):
            return self._list_chars(node)[:8] or [""]
        if kind in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            inside = list(value[2])
            return self._list_units(inside[0]) if len(inside) == 1 else [self._sample_all(inside, 0) for _ in range(4)]
        return [self._sample(node, 0)]

    def iter_texts(self, pump: str) -> Iterator[Callable[[int], str]]:
        """Yield builders of texts of any size: the pump repeated, alone or after a beginning of a match."""
        tail = self._random.choice(self.alphabet)
        head = self.make_sample()
        head = head[: self._random.randint(0, len(head))]
        yield lambda size: pump * (size // len(pump)) + tail
        yield lambda size: head + pump * (size // len(pump)) + tail

    def _list_chars(self, node: Any) -> list[str]:
        found = self._known_chars.get(str(node))
        if found is None:
            test = self._counted.build_char_test(node[0], node[1], self._counted.pattern.flags)
            assert test is not None
            found = self._known_chars[str(node)] = [char for char in self.alphabet if test(char)]
        return found

    def make_sample(self) -> str:
        return self._sample_all(list(self.tree), 0)

    def _sample_all(self, nodes: Sequence[Any], depth: int) -> str:
        return "".join(self._sample(node, depth) for node in nodes)

    def _sample(self, node: Any, depth: int) -> str:
        kind, value = node
        match kind:
            case c.LITERAL:
                return chr(value)
            case c.NOT_LITERAL | c.ANY | c.IN | c.CATEGORY:
                return self._random.choice(self._list_chars(node) or [""])
            case c.SUBPATTERN:
                return self._sample_all(list(value[3]), depth)
            case c.ATOMIC_GROUP:
                return self._sample_all(list(value), depth)
            case c.BRANCH:
                return self._sample_all(list(self._random.choice(value[1])), depth)
            case c.MAX_REPEAT | c.MIN_REPEAT | c.POSSESSIVE_REPEAT:
                low, high, inside = value
                most = low + MANY if high is c.MAXREPEAT else min(int(high), low + MANY)
                return "".join(
                    self._sample_all(list(inside), depth + 1) for _ in range(self._random.randint(low, most))
                )
        return ""


def _expand(nodes: list[Any], most: int = 64) -> list[list[Any]]:
    """Return the alternatives of a pattern, each as a sequence without branches and groups."""
    found: list[list[Any]] = [[]]
    for kind, value in nodes:
        ways: list[list[Any]] = [[(kind, value)]]
        if kind is c.BRANCH:
            ways = [way for one in value[1] for way in _expand(list(one), most)]
        elif kind is c.SUBPATTERN:
            ways = _expand(list(value[3]), most)
        elif kind is c.ATOMIC_GROUP:
            ways = _expand(list(value), most)
        if len(found) * len(ways) > most:  # each way once, after one of the beginnings
            found = [[*found[at % len(found)], *way] for at, way in enumerate(ways[:most])]
        else:
            found = [[*before, *way] for before in found for way in ways]
    return found


def _choose_alphabet(counted: CountedPattern) -> list[str]:
    """Choose one character for each combination of the pattern's sets, and keep its literals of few letters."""
    chosen: dict[tuple[bool, ...], str] = {}
    for char in [*SPARE_CHARS, *sorted(counted.literals)]:
        shape = (*(test(char) for test in counted.char_tests), char.isalnum() or char == "_", char.isspace())
        chosen.setdefault(shape, char)
    return list(chosen.values())
