"""With a bug planted, the tests of what happens once fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.api.logins import LoginRegistry
from everhold.api.shared_answers import SharedAnswer, SharedAnswers
from everhold.engine.memory.backfill import BackfillRateLimit, SharedBackfillRateLimit
from everhold.errors import Conflict
from everhold.ingress import held_messages
from everhold.ingress.schedules import ScheduleRunner
from everhold.ports.platform import IncomingMessage
from everhold.ports.store import StateWrite
from everhold.stores.sqlite import SqliteStore
from tests.hosts import test_held_messages as held, test_once as once
from tests.hosts.test_work import SimulatedHosts

Plant = Callable[[pytest.MonkeyPatch], None]


def _answer_at_every_host(patch: pytest.MonkeyPatch) -> None:
    async def begin(*_: object) -> SharedAnswer:
        return SharedAnswer(identity="", at=0.0, digest="", owner="", until=0.0)

    patch.setattr(SharedAnswers, "_begin", begin)


def _let_answers_expire(patch: pytest.MonkeyPatch) -> None:
    async def keep_renewing(*_: object) -> None: ...

    patch.setattr(SharedAnswers, "_keep_renewing", keep_renewing)


def _redeem_whoever_was_first(patch: pytest.MonkeyPatch) -> None:
    commit = LoginRegistry._commit

    async def commit_anyway(self: LoginRegistry, write: StateWrite) -> None:
        try:
            await commit(self, write)
        except Conflict:
            return

    patch.setattr(LoginRegistry, "_commit", commit_anyway)


def _remember_callers(patch: pytest.MonkeyPatch) -> None:
    find = LoginRegistry.find_caller

    async def find_caller(self: LoginRegistry, id: str, **halves: str) -> object:
        known: dict[str, object] = self.__dict__.setdefault("known_callers", {})
        if id not in known:
            known[id] = await find(self, id, **halves)
        return known[id]

    patch.setattr(LoginRegistry, "find_caller", find_caller)


def _count_in_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedBackfillRateLimit, "get_wait_seconds", BackfillRateLimit.get_wait_seconds)
    patch.setattr(SharedBackfillRateLimit, "count_items", BackfillRateLimit.count_items)


@pytest.mark.parametrize(
    "plant, test, more",
    [
        (_answer_at_every_host, once.test_a_key_that_two_hosts_receive_runs_once, (1.0,)),
        (_let_answers_expire, once.test_a_key_that_two_hosts_receive_runs_once, (180.0,)),
        (_redeem_whoever_was_first, once.test_a_login_code_is_used_once_by_two_hosts, ()),
        (_remember_callers, once.test_a_login_counts_at_every_host_until_one_of_them_ends_it, ()),
        (_count_in_memory, once.test_two_hosts_keep_to_one_rate_of_a_backfill, ()),
    ],
)
def test_a_planted_bug_is_found(
    plant: Plant, test: Callable[..., None], more: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test(SimulatedHosts(tmp_path), *more)


def _fire_without_a_key_and_a_version(patch: pytest.MonkeyPatch) -> None:
    fire = ScheduleRunner._fire

    async def fire_freely(self: ScheduleRunner, *schedule: Any) -> object:
        accept = self._accept

        async def accept_freely(incoming: IncomingMessage) -> object:
            place = msgspec.structs.replace(incoming.origin, message="")
            return await accept(msgspec.structs.replace(incoming, origin=place, state_write=None))

        self._accept = accept_freely  # type: ignore[assignment]
        try:
            return await fire(self, *schedule)
        finally:
            self._accept = accept

    patch.setattr(ScheduleRunner, "_fire", fire_freely)


def _fire_by_the_clock_of_the_host(patch: pytest.MonkeyPatch) -> None:
    def keep_exclusive(self: SqliteStore, name: str, value: object) -> None:
        object.__setattr__(self, name, True if name == "is_exclusive" else value)

    patch.setattr(SqliteStore, "__setattr__", keep_exclusive)


@pytest.mark.parametrize("plant", [_fire_without_a_key_and_a_version, _fire_by_the_clock_of_the_host])
async def test_a_planted_bug_of_schedules_is_found(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        await once.test_a_schedule_fires_once_at_two_hosts_by_the_clock_of_the_store(tmp_path)


def _never_choose_another_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(held_messages, "MOST_NUMBER_CONFLICTS", 1)


def _think_that_nobody_lives(patch: pytest.MonkeyPatch) -> None:
    async def list_hosts(_: SqliteStore) -> list[object]:
        return []

    patch.setattr(SqliteStore, "list_hosts", list_hosts)


def _take_over_nothing(patch: pytest.MonkeyPatch) -> None:
    async def resume(_: object) -> int:
        return 0

    patch.setattr(held_messages.HeldMessages, "resume", resume)


@pytest.mark.parametrize(
    "plant, test",
    [
        (_never_choose_another_number, held.test_two_hosts_hold_messages_under_different_numbers),
        (_think_that_nobody_lives, held.test_the_messages_of_a_living_host_are_left_to_it),
        (_take_over_nothing, held.test_the_messages_of_a_dead_host_are_taken_over_once_and_in_order),
    ],
)
async def test_a_planted_bug_of_held_messages_is_found(
    plant: Plant, test: Callable[[Any], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = held.open_host(tmp_path, 0), held.open_host(tmp_path, 1)
    plant(monkeypatch)
    try:
        with pytest.raises((AssertionError, Conflict)):
            await test((here, there))
    finally:
        for host in (here, there):
            await host.held.close()
            await host.store.close()
