"""Money before calls: reserves the worst case, settles the truth, refuses while it still costs nothing.

What was spent is in the store, committed with the thought it paid for. What is reserved for a call is held until that
commit: whoever looks meanwhile sees the one or the other, or both, and never neither.
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
        self._given_back = 0

    def reserved(self, limits: Sequence[Limit], worst: Worst) -> Reservation:
        """What will hold the worst case of a call: `take` it before, `give_back` once what it came to is committed."""
        bound = [limit for limit in limits if limit.usd is not None or limit.tokens is not None]
        return Reservation(self, bound, worst)

    def held(self, purse: str) -> Worst:
        """What a purse holds back at this moment for calls that are being made."""
        return Worst(usd=self._usd[purse], tokens=self._tokens[purse])

    async def take(self, bound: Sequence[Limit], worst: Worst) -> None:
        day = self.day()
        while True:
            before = self._given_back
            spents = [await self.store.get_spend(limit.purse, day) for limit in bound]
            if before == self._given_back:
                break  # else something was spent and given back since we read what was spent: we would see neither
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
        self._given_back += 1
        for limit in bound:
            self._usd[limit.purse] -= worst.usd
            self._tokens[limit.purse] -= worst.tokens

    def _check(self, outcome: list[Purse] | Refusal, unit: str) -> None:
        if isinstance(outcome, Refusal):
            form = ",.0f" if unit == "tokens" else ".4f"  # in full: people read this
            asked, left = (format(amount, form) for amount in (outcome.asked, outcome.left))
            raise Refused(
                f"today's budget of {outcome.purse} does not allow it: it may take {asked} {unit}, {left} are left",
                remedy="raise `budget` in config.yaml, or wait for tomorrow",
            )


class Reservation:
    """What purses hold back for one call, until it is given back or the block ends."""

    def __init__(self, purses: Purses, bound: Sequence[Limit], worst: Worst) -> None:
        self._purses = purses
        self._bound = bound
        self._worst = worst
        self._held = False

    async def take(self) -> None:
        """Raises Refused, before anything is spent."""
        if self._bound:
            await self._purses.take(self._bound, self._worst)
            self._held = True

    def give_back(self) -> None:
        """What the call came to is committed, or it came to nothing. Once is enough."""
        if self._held:
            self._held = False
            self._purses.give_back(self._bound, self._worst)

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give_back()
