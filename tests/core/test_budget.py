"""A limit holds before the call: a caller that reserves the worst case never spends more than the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

from everhold.core.budget import BudgetRefusal, DailyBudget, reserve_amount
from tests.core.planted_bugs import find_failing_example

Reserve = Callable[[Iterable[DailyBudget], float], list[DailyBudget] | BudgetRefusal]

MONEY = st.integers(0, 80).map(lambda eighths: eighths / 8)
"""Eighths are exact in binary, so that a limit can be held to the last one."""

DAY = st.tuples(
    st.lists(st.none() | MONEY, min_size=1, max_size=3),
    st.lists(st.tuples(st.booleans(), MONEY, st.integers(0, 8), st.integers(0, 10)), max_size=25),
)
"""The limits of the budgets that pay for a call, and the events: (begin a call or end one, worst, share, which)."""


def settle_reservation(budgets: Iterable[DailyBudget], *, reserved: float, actual: float) -> list[DailyBudget]:
    """What the end of a call makes of the budgets: its reservation is gone, its cost is spent."""
    return [
        structs.replace(budget, reserved=budget.reserved - reserved, spent=budget.spent + actual) for budget in budgets
    ]


def spend_a_day(
    day: tuple[list[float | None], list[tuple[bool, float, int, int]]], reserve_: Reserve = reserve_amount
) -> None:
    """Calls begin and end in any order, each costing at most its worst case. No budget is ever overdrawn."""
    limits, events = day
    budgets = [DailyBudget(name=f"budget {n}", limit=limit) for n, limit in enumerate(limits)]
    open_calls: list[tuple[float, float]] = []
    cost = 0.0
    for begin, worst, eighths, which in events:
        if begin:
            outcome = reserve_(budgets, worst)
            if isinstance(outcome, BudgetRefusal):
                continue
            budgets = outcome
            open_calls.append((worst, worst * eighths / 8))
        elif open_calls:
            worst, actual = open_calls.pop(which % len(open_calls))
            budgets = settle_reservation(budgets, reserved=worst, actual=actual)
            cost += actual
        held = sum(worst for worst, _ in open_calls)
        for budget in budgets:
            assert budget.spent == cost
            assert budget.reserved == held
            assert budget.limit is None or budget.spent + budget.reserved <= budget.limit, "more than there was"


@settings(max_examples=250, deadline=None)
@given(DAY)
def test_no_order_of_calls_spends_beyond_a_limit(
    day: tuple[list[float | None], list[tuple[bool, float, int, int]]],
) -> None:
    spend_a_day(day)


def blind_to_others(budgets: Iterable[DailyBudget], amount: float) -> list[DailyBudget] | BudgetRefusal:
    """Forgets what other calls hold at the same time."""
    budgets = list(budgets)
    for budget in budgets:
        if budget.limit is not None and budget.limit - budget.spent < amount:
            return BudgetRefusal(budget=budget.name, remaining=budget.remaining, requested=amount)
    return [structs.replace(budget, reserved=budget.reserved + amount) for budget in budgets]


def only_the_first(budgets: Iterable[DailyBudget], amount: float) -> list[DailyBudget] | BudgetRefusal:
    budgets = list(budgets)
    outcome = reserve_amount(budgets[:1], amount)
    if isinstance(outcome, BudgetRefusal):
        return outcome
    return [structs.replace(budget, reserved=budget.reserved + amount) for budget in budgets]


def touching_before_refusing(budgets: Iterable[DailyBudget], amount: float) -> list[DailyBudget] | BudgetRefusal:
    done: list[DailyBudget] = []
    for budget in budgets:
        if budget.remaining < amount:
            return [*done, budget]
        done.append(structs.replace(budget, reserved=budget.reserved + amount))
    return done


@pytest.mark.parametrize("bug", [blind_to_others, only_the_first, touching_before_refusing])
def test_the_check_finds_a_budget_that_can_be_overdrawn(bug: Reserve) -> None:
    find_failing_example(DAY, lambda day: spend_a_day(day, bug), within=1_000)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.builds(DailyBudget, name=st.text(max_size=3), limit=st.none() | MONEY, spent=MONEY, reserved=MONEY)),
    MONEY,
)
def test_a_refusal_changes_nothing_and_names_the_exhausted_budget(budgets: list[DailyBudget], amount: float) -> None:
    before = list(budgets)
    outcome = reserve_amount(iter(budgets), amount)
    assert budgets == before
    if isinstance(outcome, BudgetRefusal):
        assert any(budget.name == outcome.budget and budget.remaining == outcome.remaining for budget in budgets)
        assert outcome.remaining < amount or outcome.remaining == 0
        assert outcome.requested == amount
    else:
        assert [budget.reserved for budget in outcome] == [budget.reserved + amount for budget in budgets]
        assert [budget.spent for budget in outcome] == [budget.spent for budget in budgets]
        assert all(budget.remaining >= amount for budget in budgets)


def test_without_a_limit_every_call_is_allowed() -> None:
    assert reserve_amount([DailyBudget(name="p", spent=1e12, reserved=1e12)], 1e12) == [
        DailyBudget(name="p", spent=1e12, reserved=2e12),
    ]


def test_an_empty_budget_refuses_free_calls_too() -> None:
    assert isinstance(reserve_amount([DailyBudget(name="p", limit=0.0)], 0.0), BudgetRefusal)
    assert isinstance(reserve_amount([DailyBudget(name="p", limit=1.0, spent=1.0)], 0.0), BudgetRefusal)


def test_a_cost_above_its_reservation_is_booked_in_full_and_blocks_the_next_call() -> None:
    budgets = reserve_amount([DailyBudget(name="p", limit=1.0)], 0.5)
    assert not isinstance(budgets, BudgetRefusal)
    (budget,) = settle_reservation(budgets, reserved=0.5, actual=3.0)
    assert (budget.spent, budget.reserved, budget.remaining) == (3.0, 0.0, 0.0)
    assert isinstance(reserve_amount([budget], 0.125), BudgetRefusal)
