"""Compare the costs that the log records with what the budgets booked.

A budget may have booked more, because calls that were given up and calls without a session leave no `thought`. It must
never have booked less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from everhold.core.audit import AuditFinding
from everhold.core.budget import list_turn_budgets
from everhold.core.entries import (
    RELEASING_OUTCOMES,
    Began,
    Ended,
    Entry,
    Heard,
    ModelUsage,
    Stamp,
    Thought,
    Took,
)

USD_TOLERANCE: Final = 1e-6
"""Sums of many small amounts differ by rounding."""
IMPORT_TRIGGER: Final = "import"
"""The trigger of an operation that was paid for elsewhere."""


class _RunningCost(Struct):
    """A running operation and who pays for it."""

    type: str
    takes: list[int]
    stamp: Stamp | None = None
    """None: unknown, because a message was erased."""
    is_scheduled: bool = True
    is_known: bool = True


class CostAudit:
    """Adds up the costs of all sessions, log by log."""

    def __init__(self) -> None:
        self._costs: dict[str, ModelUsage] = {}
        self._agent = ""
        self._running: dict[int, _RunningCost] = {}
        self._heard: dict[int, Heard] = {}

    def begin_session(self, agent: str) -> None:
        self._agent = agent
        self._running, self._heard = {}, {}

    def add_entry(self, entry: Entry) -> None:
        match entry.body:
            case Heard() as heard:
                self._heard[entry.seq] = heard
            case Began(type=what, takes=takes, trigger=trigger) if trigger != IMPORT_TRIGGER:
                self._running[entry.seq] = _RunningCost(type=what, takes=[])
                self._take(entry.seq, takes)
            case Took(takes=takes):
                self._take(entry.op or 0, takes)
            case Thought(usage=usage) if (op := self._running.get(entry.op or 0)) is not None and op.type == "turn":
                self._pay(usage, self._list_payers(op))
            case Ended():
                self._end(entry.op or 0, entry.body)

    def _take(self, op: int, takes: Sequence[int]) -> None:
        running = self._running.get(op)
        if running is None:
            return
        running.takes.extend(takes)
        for seq in takes:
            heard = self._heard.get(seq)
            if heard is None:
                running.is_known = False
                continue
            if heard.asks or running.stamp is None:
                running.stamp = heard.stamp
            running.is_scheduled = running.is_scheduled and heard.is_automatic

    def _list_payers(self, op: _RunningCost) -> tuple[str, ...]:
        if not op.is_known or op.stamp is None:
            return (f"agent:{self._agent}",)
        return list_turn_budgets(self._agent, op.stamp, scheduled=op.is_scheduled)

    def _end(self, op: int, ended: Ended) -> None:
        running = self._running.pop(op, None)
        if running is None:
            return
        if running.type != "turn":
            self._pay(ended.usage, (f"background:{self._agent}", f"agent:{self._agent}"))
        if ended.outcome not in RELEASING_OUTCOMES:
            for seq in running.takes:
                self._heard.pop(seq, None)

    def _pay(self, usage: ModelUsage, budgets: Iterable[str]) -> None:
        if usage.input or usage.output:
            for budget in budgets:
                self._costs[budget] = self._costs.get(budget, ModelUsage()) + usage

    def compare(self, booked: Iterable[tuple[str, int, float]]) -> list[AuditFinding]:
        """Return a finding for each budget that booked less than the log records. `booked` is (budget, tokens, USD)."""
        found: list[AuditFinding] = []
        spent = {budget: (tokens, usd) for budget, tokens, usd in booked}
        for budget, cost in sorted(self._costs.items()):
            tokens, usd = spent.get(budget, (0, 0.0))
            recorded = cost.input + cost.output
            if tokens < recorded or usd < cost.usd - USD_TOLERANCE * max(1.0, cost.usd):
                text = (
                    f"the budget {budget} booked {tokens:,} tokens and {usd:.4f} USD, "
                    f"but the log records {recorded:,} tokens and {cost.usd:.4f} USD"
                )
                found.append(AuditFinding(promise="P8", session="", text=text))
        return found
