"""Daily budgets. The worst case is reserved before a call, so that a refusal comes before the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs

from everhold.core.entries import Stamp


class DailyBudget(Struct, frozen=True, kw_only=True):
    """A limit for a day, and what was spent and reserved of it. A budget without a limit refuses nothing."""

    name: str
    limit: float | None = None
    spent: float = 0.0
    reserved: float = 0.0

    @property
    def remaining(self) -> float:
        return float("inf") if self.limit is None else max(0.0, self.limit - self.spent - self.reserved)


class BudgetRefusal(Struct, frozen=True, kw_only=True):
    """The budget that is too small for a requested amount."""

    budget: str
    remaining: float
    requested: float
    unit: str = ""
    """`USD` or `tokens`."""


class BudgetHold(Struct, frozen=True, kw_only=True):
    """A budget that a call takes from, with its limits; None: unlimited. `counted` are the budgets that count together
    with it, such as those of all identities of one person, and itself."""

    budget: str
    counted: tuple[str, ...]
    usd_limit: float | None = None
    token_limit: int | None = None


class BudgetUse(Struct, frozen=True, kw_only=True):
    """What was spent of a budget today, and what is reserved in it for running calls."""

    spent_usd: float = 0.0
    spent_tokens: int = 0
    reserved_usd: float = 0.0
    reserved_tokens: int = 0


_NO_USE = BudgetUse()


def find_refusal(
    holds: Sequence[BudgetHold], uses: Mapping[str, BudgetUse], *, usd: float, tokens: int
) -> BudgetRefusal | None:
    """Return why a call may not take so much from these budgets; None if it may. Every store decides by this."""
    for hold in holds:
        counted = [uses.get(budget, _NO_USE) for budget in hold.counted]
        in_usd = DailyBudget(
            name=hold.budget,
            limit=hold.usd_limit,
            spent=sum(it.spent_usd for it in counted),
            reserved=sum(it.reserved_usd for it in counted),
        )
        in_tokens = DailyBudget(
            name=hold.budget,
            limit=hold.token_limit,
            spent=sum(it.spent_tokens for it in counted),
            reserved=sum(it.reserved_tokens for it in counted),
        )
        for budget, amount, unit in ((in_usd, usd, "USD"), (in_tokens, tokens, "tokens")):
            outcome = reserve_amount([budget], amount)
            if isinstance(outcome, BudgetRefusal):
                return structs.replace(outcome, unit=unit)
    return None


def reserve_amount(budgets: Iterable[DailyBudget], amount: float) -> list[DailyBudget] | BudgetRefusal:
    """Return every budget with `amount` reserved, or the first budget that cannot afford it. In that case none
    changes.
    """
    budgets = list(budgets)
    for budget in budgets:
        # An exhausted budget also refuses a call with an estimate of 0, because the call may cost more than estimated.
        if budget.remaining < amount or (budget.limit is not None and budget.remaining <= 0):
            return BudgetRefusal(budget=budget.name, remaining=budget.remaining, requested=amount)
    return [structs.replace(budget, reserved=budget.reserved + amount) for budget in budgets]


def name_person_budget(stamp: Stamp) -> str:
    """Return the budget of the person who asks."""
    return f"person:{stamp.person}"


def list_turn_budgets(agent: str, stamp: Stamp, *, scheduled: bool = False) -> tuple[str, ...]:
    """Return the budgets that pay for a turn: of the agent, the person and the chat. A scheduled turn is background
    work.
    """
    if scheduled:
        return f"background:{agent}", f"agent:{agent}"
    return f"agent:{agent}", name_person_budget(stamp), f"chat:{stamp.address}"
