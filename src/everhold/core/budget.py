"""What may be spent. Reserve the worst case before a call, settle the truth after it; refuse before, never after."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs


class Purse(Struct, frozen=True, kw_only=True):
    """A limit for a day and what is gone of it. No limit: nothing is ever refused."""

    name: str
    limit: float | None = None
    spent: float = 0.0
    reserved: float = 0.0

    @property
    def left(self) -> float:
        return float("inf") if self.limit is None else max(0.0, self.limit - self.spent - self.reserved)


class Refusal(Struct, frozen=True, kw_only=True):
    """Which purse is too small for what was asked."""

    purse: str
    left: float
    asked: float


def reserve(purses: Iterable[Purse], amount: float) -> list[Purse] | Refusal:
    """Every purse with `amount` set aside, or the first that cannot afford it (then none is touched)."""
    purses = list(purses)
    for purse in purses:
        # an empty purse refuses even what looks free: an estimate of nothing is not a promise
        if purse.left < amount or (purse.limit is not None and purse.left <= 0):
            return Refusal(purse=purse.name, left=purse.left, asked=amount)
    return [structs.replace(purse, reserved=purse.reserved + amount) for purse in purses]


def settle(purses: Iterable[Purse], *, reserved: float, actual: float) -> list[Purse]:
    """Every purse with the reservation gone and the actual cost spent, even where it was more."""
    return [
        structs.replace(purse, reserved=max(0.0, purse.reserved - reserved), spent=purse.spent + actual)
        for purse in purses
    ]
