"""Each rule of state that several hosts share is guarded by a test: with the bug planted, that test fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.engine.budgets import BudgetLedger, BudgetReservation, SharedReservations
from everhold.engine.work_lock import WorkLock
from everhold.ingress.accept import MessageAcceptor
from everhold.ingress.admission import AdmissionControl
from everhold.ingress.chat_records import DmOwners
from everhold.ingress.shared_records import SharedRecords
from everhold.ports.hosts import AccountClaim
from everhold.stores.sqlite import SqliteStore, account_leases, entries, reservations
from everhold.testing.contracts.store_scenario import StoreClock
from tests.hosts import test_budgets as budgets, test_shared_records as shared, test_work as work
from tests.ingress.harness import IngressHarness

ERASED_RACE = work.test_an_erased_text_survives_in_no_recall_record_of_another_host
ALIVE = reservations._ALIVE
Plant = Callable[[pytest.MonkeyPatch], None]


def _decide_by_the_copy_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageAcceptor, "_find_state_seen", lambda self, admission: None)


def _never_load_again(patch: pytest.MonkeyPatch) -> None:
    async def refresh(self: SharedRecords) -> bool:
        await self.load()
        return False

    patch.setattr(SharedRecords, "refresh", refresh)


def _do_not_spread_halts(patch: pytest.MonkeyPatch) -> None:
    async def spread(*_: Any) -> None: ...

    patch.setattr(AdmissionControl, "_spread_halt", spread)


def _keep_owners_for_ever(patch: pytest.MonkeyPatch) -> None:
    find = DmOwners.find_owner

    async def find_owner(self: DmOwners, *chat: str) -> str:
        known: dict[Any, str] = self.__dict__.setdefault("known_for_ever", {})
        if chat not in known:
            known[chat] = await find(self, *chat)
        return known[chat]

    patch.setattr(DmOwners, "find_owner", find_owner)


def _lock_within_the_process(patch: pytest.MonkeyPatch) -> None:
    async def claim(self: WorkLock) -> None: ...

    patch.setattr(WorkLock, "_claim", claim)


def _never_renew_the_work(patch: pytest.MonkeyPatch) -> None:
    async def keep_renewing(*_: object) -> None: ...

    patch.setattr(WorkLock, "_keep_renewing", keep_renewing)


def _hold_the_work_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteStore, "claim_account", _refuse_account)


async def _refuse_account(*_: object, **__: object) -> AccountClaim | None:
    await asyncio.sleep(10_000)
    return None


def _name_no_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(account_leases, "check_account", lambda *_: None)


def _erase_without_a_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteStore, "is_exclusive", True, raising=False)
    patch.setattr(SqliteStore, "__setattr__", _keep_exclusive)


def _keep_exclusive(self: SqliteStore, name: str, value: object) -> None:
    object.__setattr__(self, name, True if name == "is_exclusive" else value)


def _erase_whatever_was_thought_since(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(entries, "has_thought_after", lambda cur, pos: False)


def _keep_records_whatever_was_erased(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(entries, "has_erasure_since", lambda cur, session, op: False)


@pytest.mark.parametrize(
    "plant, test, more",
    [
        (_lock_within_the_process, work.test_one_host_at_a_time_works, ()),
        (_never_renew_the_work, work.test_one_host_at_a_time_works, ()),
        (_hold_the_work_for_ever, work.test_the_work_of_a_host_that_died_is_taken_over, ()),
        (_name_no_lease, work.test_a_host_that_lost_the_work_records_nothing, ()),
        (_erase_without_a_record, work.test_an_erasure_that_died_before_the_branches_is_finished_by_another_host, ()),
        (_erase_whatever_was_thought_since, ERASED_RACE, ("thought before the erasure",)),
        (_keep_records_whatever_was_erased, ERASED_RACE, ("thought after the erasure",)),
    ],
)
def test_a_planted_bug_of_work_is_found(
    plant: Plant, test: Callable[..., None], more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = work.SimulatedHosts(tmp_path)
    plant(monkeypatch)
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            test(hosts, *more)
    finally:
        hosts.loop.close()


def _reserve_in_memory(patch: pytest.MonkeyPatch) -> None:
    init = BudgetLedger.__init__

    def open_alone(self: BudgetLedger, store: Any, *, get_today: Any, shared: Any = None) -> None:
        init(self, store, get_today=get_today)

    patch.setattr(BudgetLedger, "__init__", open_alone)


def _never_end_reservations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reservations, "_ALIVE", ":at = :at")
    patch.setattr(reservations, "_DELETE_ENDED", "delete from reservations where :at < 0")
    patch.setattr(reservations, "_SELECT_RESERVED", reservations._SELECT_RESERVED.replace(ALIVE, ":at = :at"))


def _never_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedReservations, "release", lambda self, id: None)


def _release_before_the_cost_is_committed(patch: pytest.MonkeyPatch) -> None:
    reserve = BudgetReservation.reserve

    async def reserve_and_release(self: BudgetReservation) -> None:
        await reserve(self)
        self.release()

    patch.setattr(BudgetReservation, "reserve", reserve_and_release)


@pytest.mark.parametrize(
    "plant, test",
    [
        (_reserve_in_memory, budgets.test_parallel_calls_of_two_hosts_share_one_budget),
        (_reserve_in_memory, budgets.test_a_cost_counts_until_it_is_committed_and_then_once),
        (_reserve_in_memory, budgets.test_the_identities_of_one_person_share_a_budget_across_hosts),
        (
            _release_before_the_cost_is_committed,
            budgets.test_a_cost_counts_until_it_is_committed_and_then_once,
        ),
        (_never_release, budgets.test_calls_that_begin_and_end_at_both_hosts_never_exceed_the_budget),
    ],
)
async def test_a_planted_bug_of_budgets_is_found(
    plant: Plant, test: Callable[[Any], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    ledgers = [budgets.open_ledger(tmp_path, StoreClock(), seed=seed) for seed in (0, 1)]
    try:
        with pytest.raises(AssertionError):
            await test(ledgers)
    finally:
        for ledger in ledgers:
            await ledger.store.close()


async def test_reservations_that_never_end_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _never_end_reservations(monkeypatch)
    clock = StoreClock()
    ledgers = budgets.open_ledger(tmp_path, clock, seed=0), budgets.open_ledger(tmp_path, clock, seed=1)
    with pytest.raises(AssertionError):
        await budgets.test_what_a_dead_host_has_reserved_is_free_after_its_lease(ledgers, clock)
    for ledger in ledgers:
        await ledger.store.close()


@pytest.mark.parametrize(
    "plant, test",
    [
        (_decide_by_the_copy_alone, shared.test_a_halt_at_one_host_silences_the_chat_at_the_other),
        (
            _decide_by_the_copy_alone,
            shared.test_a_message_that_was_admitted_before_a_halt_and_commits_after_it_is_silenced,
        ),
        (_do_not_spread_halts, shared.test_a_halt_reaches_what_the_other_host_has_accepted),
        (_never_load_again, shared.test_a_chat_that_moved_keeps_its_conversation_at_every_host),
        (_never_load_again, shared.test_aliases_that_two_hosts_report_at_once_lead_to_the_first_id),
        (_keep_owners_for_ever, shared.test_a_direct_chat_has_one_owner_at_both_hosts),
    ],
)
async def test_a_planted_bug_is_found(
    plant: Plant, test: Callable[[Any], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = IngressHarness(tmp_path), IngressHarness(tmp_path, seed=1)
    there.said = 1_000
    plant(monkeypatch)
    try:
        with pytest.raises(Exception):  # noqa: B017, PT011  # an assertion, or an update that never comes to an end
            await test((here, there))
    finally:
        await here.store.close()
        await there.store.close()
