"""A limit holds before the call, not after it: whoever reserves the worst case never spends beyond it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

from everhold.core.budget import BudgetRefusal, DailyBudget, reserve_amount, settle_reservation
from tests.core.planted_bugs import find_failing_example

Reserve = Callable[[Iterable[DailyBudget], float], list[DailyBudget] | BudgetRefusal]

MONEY = st.integers(0, 80).map(lambda eighths: eighths / 8)
"""Eighths are exact in binary, so that a limit can be held to the last one."""

DAY = st.tuples(
    st.lists(st.none() | MONEY, min_size=1, max_size=3),
    st.lists(st.tuples(st.booleans(), MONEY, st.integers(0, 8), st.integers(0, 10)), max_size=25),
)
"""The limits of the purses a call is charged to, and what happens: (begin a call or end one, worst, share, which)."""


def spend_a_day(
    day: tuple[list[float | None], list[tuple[bool, float, int, int]]], reserve_: Reserve = reserve_amount
) -> None:
    """Calls begin and end in any order, each costing at most its worst case. No purse is ever overdrawn."""
    limits, events = day
    budgets = [DailyBudget(name=f"purse {n}", limit=limit) for n, limit in enumerate(limits)]
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
def test_a_budget_that_can_be_overdrawn_is_found(bug: Reserve) -> None:
    find_failing_example(DAY, lambda day: spend_a_day(day, bug), within=1_000)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.builds(DailyBudget, name=st.text(max_size=3), limit=st.none() | MONEY, spent=MONEY, reserved=MONEY)),
    MONEY,
)
def test_a_refusal_touches_nothing_and_names_a_budget_that_is_too_small(
    budgets: list[DailyBudget], amount: float
) -> None:
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


def test_without_a_limit_nothing_is_refused() -> None:
    assert reserve_amount([DailyBudget(name="p", spent=1e12, reserved=1e12)], 1e12) == [
        DailyBudget(name="p", spent=1e12, reserved=2e12),
    ]


def test_an_empty_budget_refuses_even_what_looks_free() -> None:
    assert isinstance(reserve_amount([DailyBudget(name="p", limit=0.0)], 0.0), BudgetRefusal)
    assert isinstance(reserve_amount([DailyBudget(name="p", limit=1.0, spent=1.0)], 0.0), BudgetRefusal)


def test_what_cost_more_than_was_reserved_is_told_as_it_was_and_stops_the_next() -> None:
    budgets = reserve_amount([DailyBudget(name="p", limit=1.0)], 0.5)
    assert not isinstance(budgets, BudgetRefusal)
    (budget,) = settle_reservation(budgets, reserved=0.5, actual=3.0)
    assert (budget.spent, budget.reserved, budget.remaining) == (3.0, 0.0, 0.0)
    assert isinstance(reserve_amount([budget], 0.125), BudgetRefusal)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 10), max_size=20))
def test_reservations_that_are_all_settled_leave_nothing_behind(amounts: list[float]) -> None:
    budgets = [DailyBudget(name="p", limit=1_000.0)]
    for amount in amounts:
        outcome = reserve_amount(budgets, amount)
        assert not isinstance(outcome, BudgetRefusal)
        budgets = outcome
    for amount in amounts:
        budgets = settle_reservation(budgets, reserved=amount, actual=0.0)
    assert budgets[0].reserved == pytest.approx(0.0, abs=1e-9)
    assert budgets[0].reserved >= 0.0
    assert budgets[0].spent == 0.0
