"""What every store promises to two hosts that work on the same data, with clocks that differ by 20 seconds.

class TestMyPair(StorePairContract):
    def open_pair(self, home: Path, now: Callable[[], float]) -> tuple[Store, Store]:
        return MyStore.open(home, now=now), MyStore.open(home, now=now)

`now` is the clock of the store, which both share. The clocks of the callers are only in the times of their changes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from everhold.core.entries import EntryDraft, Noted
from everhold.core.people import IdentityProof
from everhold.engine.state_updates import update_people
from everhold.errors import Conflict, EverholdError, LeaseLost
from everhold.ports.hosts import CommitHint, HostRecord, HostVersion, make_account_name
from everhold.ports.store import (
    BudgetSpend,
    CursorUpdate,
    FirstSeen,
    RetryDelay,
    StateNamespace,
    StateRecord,
    StateWrite,
    Step,
    Store,
    Wakeup,
)
from everhold.testing.contracts.store_scenario import SeededRandom, StoreClock, StoreScenario

SKEW_SECONDS = 10.0
ACCOUNT = make_account_name("telegram", "main")


class StorePair:
    """Two stores on the same data, with session `s` of agent `main`."""

    def __init__(self, one: Store, other: Store, clock: StoreClock) -> None:
        self.clock = clock
        self.one = StoreScenario(one, clock, skew=SKEW_SECONDS)
        self.other = StoreScenario(other, clock, skew=-SKEW_SECONDS)


class OpensPair(Protocol):
    def open_pair(self, home: Path, now: Callable[[], float]) -> tuple[Store, Store]: ...


def pair_promise(test: Callable[[Any, StorePair], Awaitable[None]]) -> Callable[[Any, Path], None]:
    """Run an async test with its own pair of stores, and verify the data afterwards."""

    def run(self: OpensPair, tmp_path: Path) -> None:
        async def play() -> None:
            clock = StoreClock()
            one, other = self.open_pair(tmp_path, clock)
            try:
                pair = StorePair(one, other, clock)
                await pair.one.open_session("s")
                await test(self, pair)
                assert await one.verify() == []
                assert await other.verify() == []
            finally:
                await one.close()
                await other.close()

        asyncio.run(play())

    functools.update_wrapper(run, test)
    del run.__dict__["__wrapped__"]  # otherwise pytest would ask for the inner test's arguments
    return run


async def read_record(scenario: StoreScenario, key: str = "k") -> StateRecord:
    record = await scenario.store.get_state_record(StateNamespace.SCHEDULE, key)
    assert record is not None, f"there is no record {key}"
    return record


class StorePairContract:
    def open_pair(self, home: Path, now: Callable[[], float]) -> tuple[Store, Store]:
        """Open two stores on the same new data, which may use the directory `home`. The clock of the data is `now`."""
        raise NotImplementedError

    # -- claims

    @pair_promise
    async def test_neither_store_is_exclusive(self, pair: StorePair) -> None:
        for scenario in (pair.one, pair.other):
            assert not scenario.store.is_exclusive
            with pytest.raises(EverholdError):
                await scenario.store.revoke_leases(owner="me")

    @pair_promise
    async def test_a_cursor_is_claimed_by_one_host(self, pair: StorePair) -> None:
        for number in range(6):
            session = f"t{number}"
            await pair.one.open_session(session, at=1.0)
            await pair.one.commit(session=session, wakeups=(Wakeup(consumer="turn"),))
        pair.clock.time = 100.0
        found = await asyncio.gather(
            *(
                scenario.store.claim_cursors(owner=owner, lease=60.0, limit=2)
                for _ in range(3)
                for owner, scenario in (("one", pair.one), ("other", pair.other))
            )
        )
        sessions = [claim.session for claims in found for claim in claims]
        assert sorted(sessions) == [f"t{number}" for number in range(6)]

    @pair_promise
    async def test_a_lease_ends_on_the_clock_of_the_store(self, pair: StorePair) -> None:
        await pair.one.commit_heard(at=100.0)
        claim = await pair.other.claim_cursor(at=100.0, owner="other", lease=60.0)
        assert await pair.one.claim_consumers(at=159.0, owner="one") == []
        assert await pair.other.at(159.0).renew_leases([claim], owner="other", lease=60.0) == 1
        assert await pair.one.claim_consumers(at=218.0, owner="one") == []
        taken = await pair.one.claim_cursor(at=219.0, owner="one")
        assert taken.taken_over
        assert taken.fence > claim.fence

    @pair_promise
    async def test_a_host_that_lost_its_cursor_writes_nothing(self, pair: StorePair) -> None:
        message = await pair.one.commit_heard(at=100.0)
        stale = await pair.one.claim_cursor(at=100.0, owner="one", lease=60.0)
        op = await pair.one.begin_operation(message, claim=stale, at=100.0)
        taken = await pair.other.claim_cursor(at=160.0, owner="other", lease=60.0)
        with pytest.raises(LeaseLost):
            await pair.one.end_operation(op, claim=stale, at=161.0)
        with pytest.raises(LeaseLost):
            await pair.one.commit(
                at=161.0,
                step=Step.CURSOR_SETTLE,
                claim=stale,
                cursor=CursorUpdate(processed_seq=1, release=True),
                durable=False,
            )
        assert await pair.one.at(161.0).renew_leases([stale], owner="one", lease=60.0) == 0
        assert await pair.one.at(161.0).hand_over_leases([stale], owner="one") == 0
        await pair.other.end_operation(op, claim=taken, at=162.0)
        assert [it.state for it in await pair.one.store.list_operations("s")] == ["done"]

    @pair_promise
    async def test_work_of_one_host_is_due_for_the_other(self, pair: StorePair) -> None:
        await pair.one.wake_consumer("compression", 30.0, at=100.0)
        assert await pair.other.at(110.0).get_next_due() == pytest.approx(20.0)
        assert await pair.other.claim_consumers(at=129.0, owner="other") == []
        assert await pair.other.claim_consumers(at=130.0, owner="other") == ["compression"]
        assert await pair.one.claim_consumers(at=130.0, owner="one") == []

    @pair_promise
    async def test_a_cursor_claimed_with_its_wakeup_belongs_to_that_host(self, pair: StorePair) -> None:
        wakeup = Wakeup(consumer="turn", owner="one", lease=60.0)
        done = await pair.one.commit(Noted(text="x"), at=100.0, wakeups=(wakeup,))
        assert [claim.cursor.owner for claim in done.claims] == ["one"]
        assert await pair.other.claim_consumers(at=100.0, owner="other") == []
        late = await pair.other.commit(at=101.0, wakeups=(Wakeup(consumer="turn", owner="other", lease=60.0),))
        assert late.claims == ()

    @pair_promise
    async def test_a_cursor_that_is_handed_over_is_free_at_once(self, pair: StorePair) -> None:
        await pair.one.commit_heard(at=100.0)
        claim = await pair.one.claim_cursor(at=100.0, owner="one", lease=120.0)
        assert await pair.one.at(101.0).hand_over_leases([claim], owner="one") == 1
        assert (await pair.other.claim_cursor(at=101.0, owner="other")).taken_over

    @pair_promise
    async def test_a_mandatory_delay_holds_for_both(self, pair: StorePair) -> None:
        await pair.one.wake_consumer("platform", at=100.0)
        claim = await pair.one.claim_cursor("platform", at=100.0, owner="one")
        wait = RetryDelay(seconds=30.0, mandatory=True)
        await pair.one.update_cursor(claim, at=100.0, wait=wait, attempts=1, release=True)
        await pair.other.wake_consumer("platform", at=101.0)
        assert await pair.other.claim_consumers(at=129.0, owner="other") == []
        assert await pair.other.claim_consumers(at=130.0, owner="other") == ["platform"]

    @pair_promise
    async def test_a_session_has_one_turn_on_all_hosts(self, pair: StorePair) -> None:
        first, second = await pair.one.commit_heard(), await pair.other.commit_heard()
        results = await asyncio.gather(
            pair.one.begin_operation(first), pair.other.begin_operation(second), return_exceptions=True
        )
        assert [isinstance(it, int) for it in results].count(True) == 1
        assert [isinstance(it, Conflict) for it in results].count(True) == 1

    # -- what both write

    @pair_promise
    async def test_a_message_that_arrives_at_both_is_stored_once(self, pair: StorePair) -> None:
        results = await asyncio.gather(
            *(
                scenario.commit_heard("hello", dedup="k", session="s")
                for _ in range(3)
                for scenario in (pair.one, pair.other)
            )
        )
        assert len(set(results)) == 1
        assert await pair.other.read_texts() == ["hello"]

    @pair_promise
    async def test_an_address_that_both_open_leads_to_one_session(self, pair: StorePair) -> None:
        results = await asyncio.gather(
            pair.one.open_session("t1", address="test:t"),
            pair.other.open_session("t2", address="test:t"),
            return_exceptions=True,
        )
        assert [isinstance(it, Conflict) for it in results].count(True) == 1
        found = await pair.one.store.resolve_address("test:t")
        assert found in ("t1", "t2")
        assert await pair.other.store.resolve_address("test:t") == found

    @pair_promise
    async def test_of_two_hosts_that_replace_a_record_one_gets_a_conflict(self, pair: StorePair) -> None:
        await pair.one.commit(
            session="",
            step=Step.STATE,
            state_writes=(StateWrite(namespace=StateNamespace.SCHEDULE, key="k", value="0", version=0),),
        )
        before = await read_record(pair.other)
        results = await asyncio.gather(
            *(
                scenario.commit(session="", step=Step.STATE, state_writes=(before.replace_with(value),))
                for value, scenario in (("1", pair.one), ("2", pair.other), ("3", pair.one))
            ),
            return_exceptions=True,
        )
        assert [isinstance(it, Conflict) for it in results].count(True) == 2
        after = await read_record(pair.one)
        assert after == await read_record(pair.other)
        assert after.version == before.version + 1

    @pair_promise
    async def test_spending_of_both_adds_up(self, pair: StorePair) -> None:
        spend = BudgetSpend(budget="agent:main", day="d1", usd=0.25, tokens=10)
        await asyncio.gather(
            *(scenario.commit(spends=(spend,)) for scenario in (pair.one, pair.other) for _ in range(4))
        )
        for scenario in (pair.one, pair.other):
            found = await scenario.store.get_spend("agent:main", "d1")
            assert (found.usd, found.tokens) == (2.0, 80)

    @pair_promise
    async def test_people_of_one_host_are_known_to_the_other(self, pair: StorePair) -> None:
        assert "telegram:1" not in (await pair.other.store.get_people()).identities
        await pair.one.commit_heard(first_seen=(FirstSeen(identity="telegram:1", person="p_a"),))
        people = await pair.other.store.get_people()
        assert people.identities["telegram:1"].person == "p_a"
        # of two hosts that hear somebody for the first time, one gives the person an id
        await asyncio.gather(
            pair.one.commit_heard(first_seen=(FirstSeen(identity="telegram:2", person="p_b"),)),
            pair.other.commit_heard(first_seen=(FirstSeen(identity="telegram:2", person="p_c"),)),
        )
        found = [(await it.store.get_people()).identities["telegram:2"].person for it in (pair.one, pair.other)]
        assert found in (["p_b", "p_b"], ["p_c", "p_c"])
        epoch = (await pair.other.store.get_people()).epoch
        (link,) = await update_people(
            pair.one.at(2.0),
            chance=SeededRandom(),
            at=2.0,
            by="operator",
            plan=lambda planner: planner.link_identity(
                "slack:U1", planner.get_person("telegram:1"), IdentityProof.OPERATOR
            ),
        )
        assert (await pair.other.store.get_people()).is_same_person("slack:U1", "telegram:1")
        with pytest.raises(Conflict):
            await pair.other.commit(session="", step=Step.PEOPLE, people=(link,), people_epoch=epoch)

    @pair_promise
    async def test_an_erasure_is_seen_by_both_and_voids_what_the_other_decided(self, pair: StorePair) -> None:
        await pair.one.open_session("t")
        secret = await pair.one.commit_heard("a secret")
        read = (await pair.other.store.read_feed())[-1].pos
        op = await pair.other.begin_operation(await pair.other.commit_heard(session="t"), session="t")
        thought = EntryDraft(body=Noted(text="about it"), author="agent:main", op=op)
        await pair.one.erase_entries(secret, read=read)
        assert (await pair.other.store.get_entry("s", secret)).body is None
        await pair.other.commit(thought, op=op, session="t", records=(b"a copy of the secret",))
        assert await pair.one.store.count_erasures("s") == await pair.other.store.count_erasures("s") == 1

    # -- reading

    @pair_promise
    async def test_the_feed_skips_no_commit_of_either_host(self, pair: StorePair) -> None:
        for session in ("t", "u"):
            await pair.one.open_session(session)
        seen: list[tuple[str, str]] = []
        positions: list[int] = []

        async def write(scenario: StoreScenario, session: str, name: str) -> None:
            for number in range(12):
                await scenario.commit(Noted(text=f"{name}{number}"), session=session)

        async def follow(after: int) -> None:
            while len(seen) < 36:
                page = await pair.other.store.read_feed(after=after, limit=5)
                for entry in page:
                    assert isinstance(entry.body, Noted)
                    seen.append((entry.session, entry.body.text))
                    positions.append(entry.pos)
                    after = entry.pos
                await asyncio.sleep(0.001)

        last = await pair.one.store.last_pos()
        async with asyncio.timeout(30):
            await asyncio.gather(
                follow(last),
                write(pair.one, "t", "a"),
                write(pair.other, "t", "b"),
                write(pair.one, "u", "c"),
            )
        assert positions == sorted(set(positions))
        for session, name in (("t", "a"), ("t", "b"), ("u", "c")):
            assert [text for where, text in seen if where == session and text.startswith(name)] == [
                f"{name}{number}" for number in range(12)
            ]

    @pair_promise
    async def test_the_seqs_of_a_session_have_no_gap_when_both_append(self, pair: StorePair) -> None:
        await asyncio.gather(
            *(scenario.commit_heard(f"{number}") for number in range(8) for scenario in (pair.one, pair.other))
        )
        assert [entry.seq for entry in await pair.other.store.list_entries("s")] == list(range(1, 17))

    # -- accounts and hosts

    @pair_promise
    async def test_an_account_moves_between_hosts_and_its_offset_with_it(self, pair: StorePair) -> None:
        first = await pair.one.at(100.0).claim_account(ACCOUNT, owner="one", lease=30.0)
        assert first is not None
        assert await pair.other.at(129.0).claim_account(ACCOUNT, owner="other", lease=30.0) is None
        second = await pair.other.at(130.0).claim_account(ACCOUNT, owner="other", lease=30.0)
        assert second is not None
        write = StateWrite(
            namespace=StateNamespace.PLATFORM_OFFSET, scope="telegram:main", key="updates", value="1", version=0
        )
        with pytest.raises(LeaseLost):
            await pair.one.commit_heard("late", at=131.0, account=first, state_writes=(write,))
        await pair.other.commit_heard("on time", at=131.0, account=second, state_writes=(write,))
        assert await pair.one.at(132.0).renew_accounts([first], lease=30.0) == []
        assert await pair.one.read_texts() == ["on time"]
        assert await pair.other.at(133.0).release_account(second)
        assert await pair.one.at(133.0).claim_account(ACCOUNT, owner="one", lease=30.0) is not None

    @pair_promise
    async def test_hosts_see_each_other(self, pair: StorePair) -> None:
        own = HostRecord(id="one", name="a", version=HostVersion("0.1.0", 4))
        other = HostRecord(id="other", name="b", version=HostVersion("0.2.0", 5))
        assert await pair.one.at(100.0).register_host(own, lease=30.0) == []
        assert [it.host for it in await pair.other.at(101.0).register_host(other, lease=30.0)] == [own]
        await pair.one.at(110.0).renew_host("one", lease=30.0, is_draining=True)
        found = await pair.other.at(125.0).list_hosts()
        assert [(it.host.id, it.is_alive, it.is_draining) for it in found] == [
            ("one", True, True),
            ("other", True, False),
        ]
        found = await pair.one.at(135.0).list_hosts()
        assert [it.is_alive for it in found] == [True, False]

    @pair_promise
    async def test_a_hint_of_the_other_host_is_marked_as_such(self, pair: StorePair) -> None:
        """It may not come at all."""
        own: list[CommitHint] = []
        others: list[CommitHint] = []
        pair.one.store.notifier.subscribe(own.append)
        pair.other.store.notifier.subscribe(others.append)
        await pair.one.commit_heard("hello")
        await asyncio.sleep(0.05)
        assert [hint.is_remote for hint in own].count(False) == 1
        assert all(hint.is_remote for hint in others)
