"""What every store promises to hosts: one holder per account, a list of hosts, and hints about commits."""

from __future__ import annotations

import asyncio

import pytest

from everhold.core.entries import EntryKind
from everhold.errors import LeaseLost
from everhold.ports.hosts import AccountClaim, AccountLease, CommitHint, HostRecord, HostVersion, make_account_name
from everhold.ports.store import CursorUpdate, StateNamespace, StateWrite, Step, Wakeup
from everhold.testing.contracts.store_scenario import StoreScenario, store_promise

ACCOUNT = make_account_name("telegram", "main")


def make_host(id: str, *, schema: int = 4) -> HostRecord:
    return HostRecord(id=id, name=f"machine-{id}", version=HostVersion("0.1.0", schema), url=f"http://{id}:8080")


def make_offset_write(value: str, version: int) -> StateWrite:
    return StateWrite(
        namespace=StateNamespace.PLATFORM_OFFSET, scope="telegram:main", key="updates", value=value, version=version
    )


async def claim_account(scenario: StoreScenario, owner: str, *, at: float, lease: float = 30.0) -> AccountClaim:
    claim = await scenario.at(at).claim_account(ACCOUNT, owner=owner, lease=lease)
    assert claim is not None, f"{owner} does not get the account"
    return claim


class StoreHostsContract:
    # -- accounts

    @store_promise
    async def test_an_account_has_one_holder_until_its_lease_ends(self, scenario: StoreScenario) -> None:
        first = await claim_account(scenario, "one", at=100.0)
        assert (first.account, first.owner) == (ACCOUNT, "one")
        assert await scenario.at(129.0).claim_account(ACCOUNT, owner="two", lease=30.0) is None
        second = await claim_account(scenario, "two", at=130.0)
        assert second.fence > first.fence
        assert await scenario.at(131.0).claim_account(ACCOUNT, owner="one", lease=30.0) is None

    @store_promise
    async def test_accounts_are_held_independently_of_each_other(self, scenario: StoreScenario) -> None:
        await claim_account(scenario, "one", at=100.0)
        shard = make_account_name("discord", "main", "1")
        other = await scenario.at(100.0).claim_account(shard, owner="two", lease=9.0)
        assert other is not None
        assert await scenario.store.list_account_leases() == [
            AccountLease(account="discord:main#1", owner="two", fence=other.fence, seconds_left=9.0),
            AccountLease(account=ACCOUNT, owner="one", fence=1, seconds_left=30.0),
        ]
        assert await scenario.at(110.0).list_account_leases() == [
            AccountLease(account="discord:main#1", owner="two", fence=other.fence, seconds_left=-1.0),
            AccountLease(account=ACCOUNT, owner="one", fence=1, seconds_left=20.0),
        ]

    @store_promise
    async def test_a_renewed_account_stays_with_its_holder(self, scenario: StoreScenario) -> None:
        claim = await claim_account(scenario, "one", at=100.0)
        assert await scenario.at(120.0).renew_accounts([claim], lease=30.0) == [claim]
        assert await scenario.at(149.0).claim_account(ACCOUNT, owner="two", lease=30.0) is None
        # nobody took it after its lease had ended, so it is still held
        assert await scenario.at(200.0).renew_accounts([claim], lease=30.0) == [claim]
        late = await claim_account(scenario, "two", at=230.0)
        assert await scenario.at(231.0).renew_accounts([claim, late], lease=30.0) == [late]

    @store_promise
    async def test_a_released_account_can_be_claimed_at_once_and_its_fence_never_comes_again(
        self, scenario: StoreScenario
    ) -> None:
        claim = await claim_account(scenario, "one", at=100.0)
        assert await scenario.at(101.0).release_account(claim)
        assert not await scenario.at(101.0).release_account(claim)
        assert await scenario.store.list_account_leases() == []
        assert await scenario.at(101.0).renew_accounts([claim], lease=30.0) == []
        second = await claim_account(scenario, "two", at=101.0)
        assert second.fence > claim.fence
        assert not await scenario.at(102.0).release_account(claim)
        assert await scenario.at(102.0).renew_accounts([second], lease=30.0) == [second]

    @store_promise
    async def test_a_second_claim_of_the_same_host_invalidates_the_first(self, scenario: StoreScenario) -> None:
        first = await claim_account(scenario, "one", at=100.0)
        second = await claim_account(scenario, "one", at=101.0)
        assert second.fence > first.fence
        assert await scenario.at(101.0).renew_accounts([first], lease=30.0) == []

    @store_promise
    async def test_an_account_can_be_claimed_after_the_clock_went_back(self, scenario: StoreScenario) -> None:
        await claim_account(scenario, "one", at=1_000.0)
        assert (await claim_account(scenario, "two", at=500.0)).owner == "two"

    @store_promise
    async def test_an_offset_moves_only_while_its_account_is_held(self, scenario: StoreScenario) -> None:
        first = await claim_account(scenario, "one", at=100.0)
        await scenario.commit_heard("one", at=101.0, account=first, state_writes=(make_offset_write("1", 0),))
        second = await claim_account(scenario, "two", at=130.0)
        record = await scenario.store.get_state_record(StateNamespace.PLATFORM_OFFSET, "updates", scope="telegram:main")
        assert record is not None
        later = record.replace_with("2")
        with pytest.raises(LeaseLost):
            await scenario.commit_heard("two", at=131.0, account=first, state_writes=(later,), blobs=(b"never",))
        with pytest.raises(LeaseLost):
            await scenario.commit(session="", at=131.0, step=Step.STATE, account=first, state_writes=(later,))
        assert await scenario.read_texts() == ["one"]
        await scenario.commit_heard("two", at=131.0, account=second, state_writes=(later,))
        assert await scenario.read_texts() == ["one", "two"]

    @store_promise
    async def test_a_holder_whose_lease_ended_may_commit_until_another_claims(self, scenario: StoreScenario) -> None:
        claim = await claim_account(scenario, "one", at=100.0)
        await scenario.commit_heard("late", at=500.0, account=claim)
        assert await scenario.at(501.0).release_account(claim)
        with pytest.raises(LeaseLost):
            await scenario.commit_heard("too late", at=502.0, account=claim)
        with pytest.raises(LeaseLost):
            await scenario.commit_heard("nobody's", at=502.0, account=AccountClaim("telegram:other", "one", 1))

    @store_promise
    async def test_of_many_hosts_one_gets_an_account(self, scenario: StoreScenario) -> None:
        store = scenario.at(100.0)
        claims = await asyncio.gather(*(store.claim_account(ACCOUNT, owner=f"host {n}", lease=30.0) for n in range(8)))
        assert [claim is not None for claim in claims].count(True) == 1

    # -- hosts

    @store_promise
    async def test_a_host_is_listed_until_it_is_removed(self, scenario: StoreScenario) -> None:
        one, two = make_host("one"), make_host("two", schema=5)
        assert await scenario.at(100.0).register_host(one, lease=30.0) == []
        others = await scenario.at(110.0).register_host(two, lease=30.0)
        assert [status.host for status in others] == [one]
        assert [status.host for status in await scenario.at(112.0).list_hosts()] == [one, two]
        first = (await scenario.store.list_hosts())[0]
        assert (first.seconds_since_start, first.seconds_since_renewal, first.is_alive) == (12.0, 12.0, True)
        await scenario.store.remove_host("one")
        assert [status.host for status in await scenario.store.list_hosts()] == [two]
        assert not await scenario.at(113.0).renew_host("one", lease=30.0)

    @store_promise
    async def test_a_host_is_alive_while_it_renews_its_registration(self, scenario: StoreScenario) -> None:
        await scenario.at(100.0).register_host(make_host("one"), lease=30.0)
        assert await scenario.at(120.0).renew_host("one", lease=30.0)
        (status,) = await scenario.at(149.0).list_hosts()
        assert (status.is_alive, status.seconds_since_start, status.seconds_since_renewal) == (True, 49.0, 29.0)
        (status,) = await scenario.at(150.0).list_hosts()
        assert not status.is_alive
        assert await scenario.at(150.0).register_host(make_host("two"), lease=30.0) == []
        assert await scenario.at(151.0).renew_host("one", lease=30.0), "it was only late"
        assert (await scenario.at(152.0).list_hosts())[0].is_alive

    @store_promise
    async def test_a_host_that_drains_is_marked(self, scenario: StoreScenario) -> None:
        await scenario.at(100.0).register_host(make_host("one"), lease=30.0)
        await scenario.at(101.0).renew_host("one", lease=30.0, is_draining=True)
        (status,) = await scenario.at(102.0).list_hosts()
        assert (status.is_draining, status.is_alive) == (True, True)
        await scenario.at(103.0).register_host(make_host("one"), lease=30.0)
        (status,) = await scenario.at(103.0).list_hosts()
        assert (status.is_draining, status.seconds_since_start) == (False, 0.0)

    @store_promise
    async def test_a_host_is_listed_with_what_it_holds(self, scenario: StoreScenario) -> None:
        await scenario.at(100.0).register_host(make_host("one"), lease=30.0)
        await scenario.open_session("t")
        for session in ("s", "t"):
            await scenario.commit(session=session, at=100.0, wakeups=(Wakeup(consumer="turn"),))
        await scenario.commit(at=100.0, wakeups=(Wakeup(consumer="platform:x:y"),))
        await scenario.at(100.0).claim_cursors(owner="one", lease=60.0, limit=9)
        await claim_account(scenario, "one", at=100.0)
        (status,) = await scenario.at(101.0).list_hosts()
        assert status.accounts == (ACCOUNT,)
        assert status.cursors == {"turn": 2, "platform:x:y": 1}

    @store_promise
    async def test_a_host_that_ended_long_ago_is_forgotten(self, scenario: StoreScenario) -> None:
        await scenario.at(100.0).register_host(make_host("gone"), lease=30.0)
        await scenario.at(3_600.0).register_host(make_host("one"), lease=30.0)
        assert len(await scenario.store.list_hosts()) == 2
        await scenario.at(90_000.0).register_host(make_host("one"), lease=30.0)
        assert [status.host.id for status in await scenario.store.list_hosts()] == ["one"]

    # -- leases that are handed over

    @store_promise
    async def test_a_cursor_that_is_handed_over_is_taken_over_at_once(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(at=100.0)
        claim = await scenario.claim_cursor(at=100.0, owner="one", lease=120.0)
        assert await scenario.claim_consumers(at=101.0, owner="two") == []
        assert await scenario.at(102.0).hand_over_leases([claim], owner="two") == 0
        assert await scenario.at(102.0).hand_over_leases([claim], owner="one") == 1
        taken = await scenario.claim_cursor(at=102.0, owner="two")
        assert taken.taken_over
        with pytest.raises(LeaseLost):
            await scenario.update_cursor(claim, at=103.0, release=True)
        assert await scenario.at(103.0).hand_over_leases([claim], owner="one") == 0
        await scenario.commit(
            at=103.0, step=Step.CURSOR_SETTLE, claim=taken, cursor=CursorUpdate(idle_at=1, release=True)
        )

    # -- hints

    @store_promise
    async def test_every_commit_is_hinted_at(self, scenario: StoreScenario) -> None:
        hints: list[CommitHint] = []
        end = scenario.store.notifier.subscribe(hints.append)
        await scenario.commit_heard("one")
        await scenario.commit(step=Step.NOTE, blobs=(b"x",))
        end()
        await scenario.commit_heard("three")
        own = [hint for hint in hints if not hint.is_remote]
        assert own[0] == CommitHint(session="s", step=Step.ACCEPT, kinds=(EntryKind.HEARD,), is_work_due=True)
        assert own[1] == CommitHint(session="s", step=Step.NOTE)
        assert len(own) == 2

    @store_promise
    async def test_a_refused_change_is_not_hinted_at(self, scenario: StoreScenario) -> None:
        hints: list[CommitHint] = []
        scenario.store.notifier.subscribe(hints.append)
        with pytest.raises(LeaseLost):
            await scenario.commit_heard(account=AccountClaim(ACCOUNT, "one", 1))
        assert [hint for hint in hints if not hint.is_remote] == []
