"""Reserve the worst case of a call in the budgets before it, and settle the actual cost after it. A refusal comes
before the call, while it costs nothing.

The amounts spent are in the store, committed with the thought they paid for. A reservation is held until that commit. A
concurrent reader sees the reservation, the spent amount, or both, but never neither.

If only this process works on the store, its reservations are in memory. If several hosts do, they are in the store.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from everhold.core.budget import BudgetHold, BudgetRefusal, BudgetUse, find_refusal
from everhold.core.people import PeopleDirectory
from everhold.errors import EverholdError, Refused
from everhold.ports.clock import RandomSource
from everhold.ports.store import Store

RESERVATION_LEASE_SECONDS: Final = 120.0
"""How long the reservations of a host that died count."""
RESERVATION_ID_BYTES: Final = 12


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
    """The budgets, as one process uses them."""

    def __init__(self, store: Store, *, get_today: Callable[[], str], shared: SharedReservations | None = None) -> None:
        """`shared` are the reservations in a store that several hosts use; None: this process is alone."""
        self.store = store
        self.get_today = get_today
        self.shared = shared
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
        """Return what this process has reserved in a budget for running calls."""
        return WorstCaseCost(usd=self._reserved_usd[budget], tokens=self._reserved_tokens[budget])

    async def reserve(self, bound: Sequence[BudgetLimit], worst: WorstCaseCost) -> str:
        """Reserve an amount in all these budgets. Return the id of the reservation in the store, if it is there."""
        day = self.get_today()
        id = ""
        if self.shared is not None:
            holds = _list_holds(bound, await self.store.get_people())
            id, refusal = await self.shared.reserve(holds, worst, day=day)
        else:
            while True:
                before = self._release_count
                holds = _list_holds(bound, await self.store.get_people())
                uses = await self._read_uses({budget for hold in holds for budget in hold.counted}, day)
                if before == self._release_count:
                    break  # otherwise something was spent and released after we read, so we would miss it
            # No other task runs from here to the reservation, so two calls cannot both take the rest of a budget.
            refusal = find_refusal(holds, self._add_reserved(uses), usd=worst.usd, tokens=worst.tokens)
        if refusal is not None:
            raise _build_refused(refusal)
        for limit in bound:
            self._reserved_usd[limit.budget] += worst.usd
            self._reserved_tokens[limit.budget] += worst.tokens
        return id

    async def _read_uses(self, budgets: set[str], day: str) -> dict[str, BudgetUse]:
        spends = [await self.store.get_spend(budget, day) for budget in sorted(budgets)]
        return {it.budget: BudgetUse(spent_usd=it.usd, spent_tokens=it.tokens) for it in spends}

    def _add_reserved(self, uses: Mapping[str, BudgetUse]) -> dict[str, BudgetUse]:
        return {
            budget: BudgetUse(
                spent_usd=use.spent_usd,
                spent_tokens=use.spent_tokens,
                reserved_usd=self._reserved_usd[budget],
                reserved_tokens=self._reserved_tokens[budget],
            )
            for budget, use in uses.items()
        }

    def release(self, bound: Sequence[BudgetLimit], worst: WorstCaseCost, id: str) -> None:
        self._release_count += 1
        for limit in bound:
            self._reserved_usd[limit.budget] -= worst.usd
            self._reserved_tokens[limit.budget] -= worst.tokens
        if self.shared is not None and id:
            self.shared.release(id)

    async def renew(self) -> None:
        """Extend the leases of this process's reservations."""
        if self.shared is not None:
            await self.shared.renew()


class SharedReservations:
    """The reservations of this host in a store that several hosts use.

    They are released after the cost is committed, and nobody waits for that: until then others see both, so they
    spend less and never more. What a host that died has reserved is free again when the lease ends.
    """

    def __init__(self, store: Store, *, chance: RandomSource, lease_seconds: float = RESERVATION_LEASE_SECONDS) -> None:
        self._store = store
        self._chance = chance
        self._lease_seconds = lease_seconds
        self._held: set[str] = set()
        self._ended: list[str] = []
        self._releasing: asyncio.Task[None] | None = None

    async def reserve(
        self, holds: Sequence[BudgetHold], worst: WorstCaseCost, *, day: str
    ) -> tuple[str, BudgetRefusal | None]:
        id = self._chance.bytes(RESERVATION_ID_BYTES).hex()
        try:
            refusal = await self._store.reserve_spending(
                holds, id=id, day=day, usd=worst.usd, tokens=worst.tokens, lease=self._lease_seconds
            )
        except BaseException:
            self.release(id)  # it is unknown whether it was reserved
            raise
        if refusal is None:
            self._held.add(id)
        return id, refusal

    def release(self, id: str) -> None:
        self._held.discard(id)
        self._ended.append(id)
        if self._releasing is None:
            self._releasing = asyncio.get_running_loop().create_task(self._release_ended(), name="reservations")

    async def _release_ended(self) -> None:
        try:
            while self._ended:
                ids, self._ended = self._ended, []
                await self._store.release_reservations(ids)
        except EverholdError:
            self._ended.clear()  # nobody renews them, so they end with their leases
        finally:
            self._releasing = None

    async def renew(self) -> None:
        if self._held:
            await self._store.renew_reservations(sorted(self._held), lease=self._lease_seconds)


def _list_holds(bound: Sequence[BudgetLimit], people: PeopleDirectory) -> list[BudgetHold]:
    """Return the budgets with those that count together: those of all identities of one person. Others count alone."""
    return [
        BudgetHold(
            budget=limit.budget,
            counted=people.list_same_authors(limit.budget),
            usd_limit=limit.usd,
            token_limit=limit.tokens,
        )
        for limit in bound
    ]


def _build_refused(refusal: BudgetRefusal) -> Refused:
    form = ",.0f" if refusal.unit == "tokens" else ".4f"  # people read this, so it is written in full
    asked, left = (format(amount, form) for amount in (refusal.requested, refusal.remaining))
    return Refused(
        f"today's budget of {refusal.budget} does not allow it: it may take {asked} {refusal.unit}, {left} are left",
        remedy="raise `budget` or `quotas.spend` in config.yaml, or wait for tomorrow",
    )


class BudgetReservation:
    """A reservation in budgets for one call, until it is released or the block ends."""

    def __init__(self, ledger: BudgetLedger, bound: Sequence[BudgetLimit], worst: WorstCaseCost) -> None:
        self._ledger = ledger
        self._limits = bound
        self._worst_case = worst
        self._held = False
        self._id = ""

    async def reserve(self) -> None:
        """Raise Refused if a budget does not allow it, before anything is spent."""
        if self._limits:
            self._id = await self._ledger.reserve(self._limits, self._worst_case)
            self._held = True

    def release(self) -> None:
        """Release the reservation, after the cost was committed or if there was none. A second
        release has no effect.
        """
        if self._held:
            self._held = False
            self._ledger.release(self._limits, self._worst_case, self._id)

    async def __aenter__(self) -> None:
        await self.reserve()

    async def __aexit__(self, *_: object) -> None:
        self.release()
