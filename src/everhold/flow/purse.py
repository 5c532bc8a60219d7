"""Money before calls: reserves the worst case, settles the truth, refuses while it still costs nothing.

What was spent is in the store, committed with the thought it paid for. What is reserved lives only as long as the call
that it is for, and so does this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec import Struct

from everhold.core.budget import Purse, Refusal, reserve
from everhold.errors import Refused
from everhold.ports.store import Store


class Limit(Struct, frozen=True, kw_only=True):
    """What a purse may give in a day; None for as much as is asked."""

    purse: str
    usd: float | None = None
    tokens: int | None = None


class Worst(Struct, frozen=True, kw_only=True):
    """The most a call may come to."""

    usd: float = 0.0
    tokens: int = 0


class Purses:
    """Every purse of one process. One process spends at a time, so what it has reserved it knows itself."""

    def __init__(self, store: Store, *, day: Callable[[], str]) -> None:
        self.store = store
        self.day = day
        self._usd: defaultdict[str, float] = defaultdict(float)
        self._tokens: defaultdict[str, int] = defaultdict(int)

    def reserved(self, limits: Sequence[Limit], worst: Worst) -> Reservation:
        """Hold the worst case of a call while it is made. Raises Refused, before anything is spent."""
        bound = [limit for limit in limits if limit.usd is not None or limit.tokens is not None]
        return Reservation(self, bound, worst)

    async def take(self, bound: Sequence[Limit], worst: Worst) -> None:
        day = self.day()
        spents = [await self.store.spent(limit.purse, day) for limit in bound]
        # from here to the reservation nobody else gets a turn: two calls cannot both have the last of a purse
        for limit, spent in zip(bound, spents, strict=True):
            usd = Purse(name=limit.purse, limit=limit.usd, spent=spent.usd, reserved=self._usd[limit.purse])
            self._check(reserve([usd], worst.usd), "USD")
            tokens = Purse(name=limit.purse, limit=limit.tokens, spent=spent.tokens, reserved=self._tokens[limit.purse])
            self._check(reserve([tokens], worst.tokens), "tokens")
        for limit in bound:
            self._usd[limit.purse] += worst.usd
            self._tokens[limit.purse] += worst.tokens

    def give_back(self, bound: Sequence[Limit], worst: Worst) -> None:
        for limit in bound:
            self._usd[limit.purse] -= worst.usd
            self._tokens[limit.purse] -= worst.tokens

    def _check(self, outcome: list[Purse] | Refusal, unit: str) -> None:
        if isinstance(outcome, Refusal):
            asked, left = (f"{amount:.4g}" for amount in (outcome.asked, outcome.left))
            raise Refused(
                f"today's budget of {outcome.purse} does not allow it: it may take {asked} {unit}, {left} are left",
                remedy="raise `budget` in config.yaml, or wait for tomorrow",
            )


class Reservation:
    """What purses hold back for one call, for as long as the block lasts."""

    def __init__(self, purses: Purses, bound: Sequence[Limit], worst: Worst) -> None:
        self._purses = purses
        self._bound = bound
        self._worst = worst

    async def __aenter__(self) -> None:
        if self._bound:
            await self._purses.take(self._bound, self._worst)

    async def __aexit__(self, *_: object) -> None:
        self._purses.give_back(self._bound, self._worst)
