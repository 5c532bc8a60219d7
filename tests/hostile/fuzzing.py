"""Runs one property with few examples in `make test`, and with many in `make prove PART=fuzz`."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

LONG_EXAMPLES: Final = int(os.environ.get("EVERHOLD_FUZZ", "5000"))
_CHECKS: Final = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]

TEXT: Final = st.text(max_size=20) | st.sampled_from(
    ["", "\0", "\ud800", "x" * 5_000, "9" * 500, "eyJ-" * 500, "/status"]
)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.sampled_from([10**400, math.inf, math.nan, -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def fuzz_briefly(check: Callable[..., None], *, examples: int = 60, **strategies: Any) -> Callable[..., None]:
    """Return the short run. It does not look for a smaller example, so a failure ends it at once."""
    return _fuzz(check, examples, strategies, phases=[Phase.generate])


def fuzz_for_long(check: Callable[..., None], *, share: float = 1.0, **strategies: Any) -> Callable[..., None]:
    """Return the long run. `share` lowers the number of examples of a slow property."""
    long: Callable[..., None] = pytest.mark.prove(
        _fuzz(check, max(1, int(LONG_EXAMPLES * share)), strategies, phases=list(Phase))
    )
    return long


def _fuzz(
    check: Callable[..., None], examples: int, strategies: dict[str, Any], *, phases: list[Phase]
) -> Callable[..., None]:
    limits = settings(max_examples=examples, deadline=None, database=None, phases=phases, suppress_health_check=_CHECKS)
    found: Callable[..., None] = limits(given(**strategies)(check))
    return found


def mutate(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for the object with one to three of its parts replaced, removed, or nested too deeply."""
    paths = list(_iter_paths(base))
    change = st.tuples(st.sampled_from(paths), st.sampled_from(["replace", "replace", "remove", "nest"]), JSON)
    return st.lists(change, min_size=1, max_size=3).map(lambda changes: _apply_changes(base, changes))


def _iter_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _iter_paths(item, (*path, key))


def _apply_changes(base: dict[str, Any], changes: list[tuple[tuple[Any, ...], str, Any]]) -> dict[str, Any]:
    raw: Any = copy.deepcopy(base)
    for (*outer, last), how, value in changes:
        holder = raw
        try:
            for key in outer:
                holder = holder[key]
            if how == "remove":
                del holder[last]
            else:
                holder[last] = nest(value) if how == "nest" else copy.deepcopy(value)
        except (LookupError, TypeError):
            continue  # an earlier change removed this part
    result: dict[str, Any] = raw
    return result


def nest(value: Any, depth: int = 300) -> Any:
    for _ in range(depth):
        value = [value]
    return value
