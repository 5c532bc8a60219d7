"""Reserve the worst case of a call in the budgets before it, and settle the actual cost after it. A refusal comes
before the call, while it costs nothing.

The amounts spent are in the store, committed with the thought they paid for. A reservation is held until that commit. A
concurrent reader sees the reservation, the spent amount, or both, but never neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec import Struct

from everhold.core.budget import BudgetRefusal, DailyBudget, reserve_amount
from everhold.errors import Refused
from everhold.ports.store import Store


class BudgetLimit(Struct, frozen=True, kw_only=True):
    """The daily limit of a budget; None: unlimited."""

    budget: str
    usd: float | None = None
    tokens: int | None = None


class WorstCaseCost(Struct, frozen=True, kw_only=True):
    """The highest possible cost of a call."""

    usd: float = 0.0
    tokens: int = 0


class BudgetLedger:
    """The budgets of one process. Only one process spends at a time, so it knows all reservations."""

    def __init__(self, store: Store, *, get_today: Callable[[], str]) -> None:
        self.store = store
        self.get_today = get_today
        self._reserved_usd: defaultdict[str, float] = defaultdict(float)
        self._reserved_tokens: defaultdict[str, int] = defaultdict(int)
        self._release_count = 0

    def prepare_reservation(self, limits: Sequence[BudgetLimit], worst: WorstCaseCost) -> BudgetReservation:
        """Return a reservation for the worst case of a call: `reserve` it before the call, and `release` it after the
        cost is committed.
        """
        bound = [limit for limit in limits if limit.usd is not None or limit.tokens is not None]
        return BudgetReservation(self, bound, worst)

    def get_reserved(self, budget: str) -> WorstCaseCost:
        """Return what is reserved in a budget for running calls."""
        return WorstCaseCost(usd=self._reserved_usd[budget], tokens=self._reserved_tokens[budget])

    async def reserve(self, bound: Sequence[BudgetLimit], worst: WorstCaseCost) -> None:
        day = self.get_today()
        while True:
            before = self._release_count
            members = [await self._list_shared_budgets(limit.budget) for limit in bound]
            spents = [await self._read_spend(budgets, day) for budgets in members]
            if before == self._release_count:
                break  # otherwise something was spent and released after we read the spent amounts, so we would miss it
        # No other task runs from here to the reservation, so two calls cannot both take the rest of a budget.
        for limit, budgets, spent in zip(bound, members, spents, strict=True):
            usd = DailyBudget(
                name=limit.budget,
                limit=limit.usd,
                spent=spent.usd,
                reserved=sum(self._reserved_usd[budget] for budget in budgets),
            )
            self._raise_if_refused(reserve_amount([usd], worst.usd), "USD")
            tokens = DailyBudget(
                name=limit.budget,
                limit=limit.tokens,
                spent=spent.tokens,
                reserved=sum(self._reserved_tokens[budget] for budget in budgets),
            )
            self._raise_if_refused(reserve_amount([tokens], worst.tokens), "tokens")
        for limit in bound:
            self._reserved_usd[limit.budget] += worst.usd
            self._reserved_tokens[limit.budget] += worst.tokens

    async def _list_shared_budgets(self, budget: str) -> tuple[str, ...]:
        """Return the budgets that count together: those of all identities of one person. Others count alone."""
        return (await self.store.get_people()).list_same_authors(budget)

    async def _read_spend(self, budgets: Sequence[str], day: str) -> WorstCaseCost:
        spends = [await self.store.get_spend(budget, day) for budget in budgets]
        return WorstCaseCost(usd=sum(it.usd for it in spends), tokens=sum(it.tokens for it in spends))

    def release(self, bound: Sequence[BudgetLimit], worst: WorstCaseCost) -> None:
        self._release_count += 1
        for limit in bound:
            self._reserved_usd[limit.budget] -= worst.usd
            self._reserved_tokens[limit.budget] -= worst.tokens

    def _raise_if_refused(self, outcome: list[DailyBudget] | BudgetRefusal, unit: str) -> None:
        if isinstance(outcome, BudgetRefusal):
            form = ",.0f" if unit == "tokens" else ".4f"  # people read this, so it is written in full
            asked, left = (format(amount, form) for amount in (outcome.requested, outcome.remaining))
            raise Refused(
                f"today's budget of {outcome.budget} does not allow it: it may take {asked} {unit}, {left} are left",
                remedy="raise `budget` or `quotas.spend` in config.yaml, or wait for tomorrow",
            )


class BudgetReservation:
    """A reservation in budgets for one call, until it is released or the block ends."""

    def __init__(self, ledger: BudgetLedger, bound: Sequence[BudgetLimit], worst: WorstCaseCost) -> None:
        self._ledger = ledger
        self._limits = bound
        self._worst_case = worst
        self._held = False

    async def reserve(self) -> None:
        """Raise Refused if a budget does not allow it, before anything is spent."""
        if self._limits:
            await self._ledger.reserve(self._limits, self._worst_case)
            self._held = True

    def release(self) -> None:
        """Release the reservation, after the cost was committed or if there was none. A second
        release has no effect.
        """
        if self._held:
            self._held = False
            self._ledger.release(self._limits, self._worst_case)

    async def __aenter__(self) -> None:
        await self.reserve()

    async def __aexit__(self, *_: object) -> None:
        self.release()
