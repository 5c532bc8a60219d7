"""Each rule of state that several hosts share is guarded by a test: with the bug planted, that test fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.ingress.accept import MessageAcceptor
from everhold.ingress.admission import AdmissionControl
from everhold.ingress.chat_records import DmOwners
from everhold.ingress.shared_records import SharedRecords
from tests.hosts import test_shared_records as shared
from tests.ingress.harness import IngressHarness

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
