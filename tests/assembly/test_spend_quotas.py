"""The daily spend of people who are not owners, added to the budgets of a turn."""

from __future__ import annotations

import pytest

from everhold.assembly.agents import list_turn_limits
from everhold.config.settings import AgentSettings, BudgetSettings, LimitSettings, SpendQuotas
from everhold.core.entries import Stamp


@pytest.mark.parametrize(
    "budget, quota, expected",
    [(None, 5, 5), (3, 5, 3), (7, 5, 5), (7, 0, 7), (None, 0, None), (0, 5, 0)],
)
def test_the_lower_of_budget_and_quota_counts(budget: int | None, quota: int, expected: int | None) -> None:
    limits = LimitSettings(tokens_per_day=budget, usd_per_day=budget)
    agent = AgentSettings(budget=BudgetSettings(per_person=limits))
    stamp = Stamp(person="http:ada", address="a")
    spend = SpendQuotas(tokens_per_day=quota, usd_per_day=quota)
    _, person, _ = list_turn_limits(agent, stamp, spend=spend)
    assert (person.budget, person.tokens, person.usd) == ("person:http:ada", expected, expected)
    _, owner, _ = list_turn_limits(agent, stamp)
    assert (owner.tokens, owner.usd) == (budget, budget)
