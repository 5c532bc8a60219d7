"""A property that never fails proves nothing: plant a bug, and let the property find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TypeVar

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def find_failing_example(strategy: SearchStrategy[T], prop: Callable[[T], None], *, within: int = 400) -> T:
    """An example on which `prop` fails; raises NoSuchExample if there is none among the first `within`."""

    def breaks(example: T) -> bool:
        try:
            prop(example)
        except AssertionError:
            return True
        return False

    bounded = settings(
        max_examples=within,
        database=None,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    return find(strategy, breaks, settings=bounded, random=Random(0))


def find_first_failing(examples: Iterable[T], prop: Callable[[T], None]) -> T:
    """The first of `examples` on which `prop` fails. For worlds that are better seeded than drawn."""
    for example in examples:
        try:
            prop(example)
        except AssertionError:
            return example
    raise AssertionError("nothing was found: this property cannot fail")
