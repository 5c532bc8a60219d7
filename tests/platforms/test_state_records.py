"""Concurrent writers of a state record: no write is lost without an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.assembly.accounts import StoredPlatformOffsets
from everhold.engine.state_updates import MOST_CONFLICTS, update_state_record
from everhold.errors import Conflict, InvalidRequest, NotFound
from everhold.ingress.chat_records import DmOwners
from everhold.ports.platform import PlatformOffset
from everhold.ports.store import Change, CommitResult, StateNamespace, StateWrite, Step
from tests.ingress.harness import IngressHarness
from tests.ingress.test_admission import code_for

Meanwhile = Callable[[], Awaitable[Any]]


@pytest.fixture
async def ingress(tmp_path: Path) -> AsyncIterator[IngressHarness]:
    ingress = IngressHarness(tmp_path)
    yield ingress
    await ingress.store.close()


async def value_of(ingress: IngressHarness, namespace: StateNamespace, key: str, *, scope: str = "") -> str | None:
    record = await ingress.store.get_state_record(namespace, key, scope=scope)
    return None if record is None else record.value


async def put(
    ingress: IngressHarness, value: str | None, *, namespace: StateNamespace = StateNamespace.SCHEDULE
) -> str | None:
    return await update_state_record(ingress.store, namespace, "k", at=1.0, decide=lambda _: value)


def interrupt(ingress: IngressHarness, meanwhile: Meanwhile, *, times: int = 1) -> list[Change]:
    """Run `meanwhile` between a read and its commit, this many times. Returns the attempted changes."""
    commit, tried = ingress.store.commit, list[Change]()

    async def late(change: Change) -> CommitResult:
        nonlocal times
        if change.state_writes and times > 0:
            tried.append(change)
            times -= 1
            ingress.store.commit = commit  # type: ignore[method-assign]  # the inner write is not interrupted
            try:
                await meanwhile()
            finally:
                ingress.store.commit = late  # type: ignore[method-assign]
        return await commit(change)

    ingress.store.commit = late  # type: ignore[method-assign]  # there is no other seam between the reading and the commit
    return tried


# -- the helper --------------------------------------------------------------------------------------------------------


async def test_an_update_is_decided_again_after_another_write(ingress: IngressHarness) -> None:
    await put(ingress, "1")
    tried = interrupt(ingress, lambda: put(ingress, "5"))
    decide: Callable[[str | None], str] = lambda present: str(int(present or 0) + 1)  # noqa: E731
    assert await update_state_record(ingress.store, StateNamespace.SCHEDULE, "k", at=1.0, decide=decide) == "6"
    assert await value_of(ingress, StateNamespace.SCHEDULE, "k") == "6"
    assert len(tried) == 1


async def test_an_update_that_changes_nothing_writes_nothing(ingress: IngressHarness) -> None:
    await put(ingress, "1")
    (before,) = await ingress.store.list_state_records()
    assert await put(ingress, "1") == "1"
    assert await ingress.store.list_state_records() == [before]
    assert await put(ingress, None) is None
    assert await put(ingress, None) is None
    assert await ingress.store.list_state_records() == []


async def test_an_update_gives_up_after_many_conflicts(ingress: IngressHarness) -> None:
    number = iter(range(1_000))
    tried = interrupt(ingress, lambda: put(ingress, f"other {next(number)}"), times=100)
    with pytest.raises(Conflict, match="schedule record 'k'"):
        await put(ingress, "mine")
    assert len(tried) == MOST_CONFLICTS


# -- platform offsets
# ---------------------------------------------------------------------------------------------------


async def test_concurrent_messages_move_one_offset_and_all_are_accepted(ingress: IngressHarness) -> None:
    async def say(number: int) -> str:
        offset = PlatformOffset(key="history/1", value=str(number))
        return (await ingress.send_message(f"hello {number}", chat="room", addressed=True, offset=offset)).outcome

    commit, tried = ingress.store.commit, list[Change]()

    async def counted(change: Change) -> CommitResult:
        tried.append(change)
        return await commit(change)

    ingress.store.commit = counted  # type: ignore[method-assign]
    assert await asyncio.gather(*map(say, range(30))) == ["accepted"] * 30
    assert len(tried) < 120, "late writers do not conflict repeatedly"
    scope = "fake:main"
    before = await ingress.store.get_state_record(StateNamespace.PLATFORM_OFFSET, "history/1", scope=scope)
    assert before is not None
    assert await asyncio.gather(*map(say, range(30, 60))) == ["accepted"] * 30
    after = await ingress.store.get_state_record(StateNamespace.PLATFORM_OFFSET, "history/1", scope=scope)
    assert after is not None
    assert (after.value, after.version) == ("59", before.version + 30)


async def test_a_message_is_accepted_although_its_offset_was_moved_concurrently(ingress: IngressHarness) -> None:
    kept = StoredPlatformOffsets(ingress.store, ingress.clock, platform="fake", account="main")
    for number in range(3):
        await ingress.send_message("hello", offset=PlatformOffset(key="since", value=f"message {number}"))
        await kept.advance("since", f"moved {number}")
    interrupt(ingress, lambda: kept.advance("since", "moved in between"))
    assert (await ingress.send_message("hello", offset=PlatformOffset(key="since", value="last"))).outcome == "accepted"
    assert await kept.read("since") == "last"
    await kept.advance("since", "")
    assert await kept.read("since") is None
    assert (await ingress.send_message("hello", offset=PlatformOffset(key="since", value="anew"))).outcome == "accepted"
    assert await kept.read("since") == "anew"


async def test_a_message_whose_record_has_another_version_is_not_accepted(ingress: IngressHarness) -> None:
    await put(ingress, "1")
    (record,) = await ingress.store.list_state_records()
    assert (await ingress.send_message("one", state_write=record.replace_with("2"))).outcome == "accepted"
    for sender in ("1001", "666"):  # a person who may speak, and one who may not
        with pytest.raises(Conflict):
            await ingress.send_message("two", sender=sender, state_write=record.replace_with("3"))
    assert await value_of(ingress, StateNamespace.SCHEDULE, "k") == "2"
    assert len(await ingress.store.read_feed()) == 1


# -- pairing -----------------------------------------------------------------------------------------------------------


async def test_of_two_concurrent_approvals_of_a_code_one_succeeds(ingress: IngressHarness) -> None:
    code = await code_for(ingress)
    pairing = ingress.admission.pairing
    done = await asyncio.gather(pairing.approve_code(code), pairing.approve_code(code), return_exceptions=True)
    assert sorted(type(it).__name__ for it in done) == ["NotFound", "dict"]
    assert len(await pairing.list_grants()) == 1


async def test_concurrent_wrong_codes_all_count(ingress: IngressHarness) -> None:
    await code_for(ingress)
    pairing = ingress.admission.pairing
    done = await asyncio.gather(*(pairing.approve_code("AAAA-AAAA") for _ in range(5)), return_exceptions=True)
    assert {type(it) for it in done} == {NotFound}
    with pytest.raises(InvalidRequest, match="too many"):
        await pairing.approve_code("AAAA-AAAA")


async def test_a_stranger_who_writes_twice_at_once_gets_one_valid_code(
    ingress: IngressHarness,
) -> None:
    pairing = ingress.admission.pairing
    codes = await asyncio.gather(
        *(pairing.request_pairing("fake", "main", "666", name="Eve", chat="666") for _ in range(3))
    )
    assert sum(bool(code) for code in codes) == 1
    assert (await pairing.approve_code("".join(codes)))["identity"] == "fake:666"


async def test_a_grant_that_is_renewed_while_it_is_revoked_is_revoked(ingress: IngressHarness) -> None:
    pairing = ingress.admission.pairing
    await pairing.approve_code(await code_for(ingress))
    (grant,) = await ingress.store.list_state_records(StateNamespace.PAIRING_GRANT)

    async def renew() -> None:
        await ingress.store.commit(change_of(grant.replace_with(grant.value)))

    interrupt(ingress, renew)
    assert await pairing.revoke_identity("fake:666") == 1
    assert await pairing.list_grants() == []


# -- chats -------------------------------------------------------------------------------------------------------------


async def test_of_two_concurrent_first_senders_one_owns_the_chat(ingress: IngressHarness) -> None:
    one, other = (DmOwners(ingress.store, clock=ingress.clock) for _ in range(2))

    async def first(partners: DmOwners, sender: str) -> str:
        return await partners.find_or_set_owner("fake", "main", "!room", addresses=(), sender=sender)

    found = await asyncio.gather(first(one, "ada"), first(other, "eve"))
    assert len(set(found)) == 1
    assert await first(one, "bob") == await first(other, "bob") == found[0]
    assert await value_of(ingress, StateNamespace.DM_OWNER, "!room", scope="fake:main") == found[0]


def change_of(write: StateWrite) -> Change:
    return Change(step=Step.STATE, session="", at=1.0, state_writes=(write,))
