"""What may be spent. Reserve the worst case before a call, settle the truth after it; refuse before, never after."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs


class DailyBudget(Struct, frozen=True, kw_only=True):
    """A limit for a day and what is gone of it. No limit: nothing is ever refused."""

    name: str
    limit: float | None = None
    spent: float = 0.0
    reserved: float = 0.0

    @property
    def remaining(self) -> float:
        return float("inf") if self.limit is None else max(0.0, self.limit - self.spent - self.reserved)


class BudgetRefusal(Struct, frozen=True, kw_only=True):
    """Which purse is too small for what was asked."""

    budget: str
    remaining: float
    requested: float


def reserve_amount(budgets: Iterable[DailyBudget], amount: float) -> list[DailyBudget] | BudgetRefusal:
    """Every purse with `amount` set aside, or the first that cannot afford it (then none is touched)."""
    budgets = list(budgets)
    for budget in budgets:
        # an empty purse refuses even what looks free: an estimate of nothing is not a promise
        if budget.remaining < amount or (budget.limit is not None and budget.remaining <= 0):
            return BudgetRefusal(budget=budget.name, remaining=budget.remaining, requested=amount)
    return [structs.replace(budget, reserved=budget.reserved + amount) for budget in budgets]


def settle_reservation(budgets: Iterable[DailyBudget], *, reserved: float, actual: float) -> list[DailyBudget]:
    """Every purse with the reservation gone and the actual cost spent, even where it was more."""
    return [
        structs.replace(budget, reserved=max(0.0, budget.reserved - reserved), spent=budget.spent + actual)
        for budget in budgets
    ]
