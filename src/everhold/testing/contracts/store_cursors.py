"""What every store promises about cursors: when they are due, who holds one, and its batch in flight."""

from __future__ import annotations

import pytest

from everhold.core.entries import Began, ChatLocation, Ended, EntryDraft, Noted, Said
from everhold.errors import InvalidRequest, LeaseLost
from everhold.ports.store import (
    Change,
    CursorUpdate,
    DeadLetter,
    DeliveryItem,
    InFlightBatch,
    Receipt,
    RetryDelay,
    Step,
    Wakeup,
)
from everhold.testing.contracts.store_scenario import StoreScenario, make_heard, make_own_draft, store_promise

TEN_YEARS_SECONDS = 10 * 365 * 86_400.0


def make_in_flight_batch(*seqs: int, digest: str = "d", state: str = "sent") -> InFlightBatch:
    items = tuple(DeliveryItem(seq=seq, key=f"k{seq}") for seq in seqs)
    return InFlightBatch(items=items, upto=max(seqs), digest=digest, state=state)  # type: ignore[arg-type]


def make_idle_update(at: int) -> CursorUpdate:
    return CursorUpdate(idle_at=at, release=True)


class StoreCursorContract:
    # -- waking

    @store_promise
    async def test_a_cursor_starts_at_the_entry_that_woke_it(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(wake="")
        await scenario.commit_heard(wake="")
        await scenario.commit_heard(wake="turn", at=3.0)
        cursor = await scenario.read_cursor()
        assert (cursor.processed_seq, cursor.since, cursor.wait, cursor.mandatory) == (2, 3.0, 0.0, False)
        await scenario.commit_heard(wake="turn", at=4.0)
        assert (await scenario.read_cursor()).processed_seq == 2

    @store_promise
    async def test_a_new_cursor_can_be_given_a_start_seq(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(wake="")
        await scenario.commit_heard(wake="")
        await scenario.commit(wakeups=(Wakeup(consumer="memory", start=0), Wakeup(consumer="index", start=1)))
        assert [(await scenario.read_cursor(consumer)).processed_seq for consumer in ("memory", "index")] == [0, 1]
        await scenario.commit(wakeups=(Wakeup(consumer="memory", start=2),))
        assert (await scenario.read_cursor("memory")).processed_seq == 0

    @store_promise
    async def test_a_cursor_is_due_after_its_delay(self, scenario: StoreScenario) -> None:
        await scenario.wake_consumer("compression", 30.0, at=100.0)
        assert await scenario.claim_consumers(at=129.0) == []
        assert await scenario.at(110.0).get_next_due() == pytest.approx(20.0)
        assert await scenario.at(140.0).get_next_due() == 0.0
        assert await scenario.claim_consumers(at=130.0) == ["compression"]

    @store_promise
    async def test_an_earlier_wakeup_applies_and_a_later_one_changes_nothing(self, scenario: StoreScenario) -> None:
        await scenario.wake_consumer("compression", 30.0, at=100.0)
        await scenario.wake_consumer("compression", 60.0, at=100.0)
        assert (await scenario.read_cursor("compression")).wait == 30.0
        await scenario.wake_consumer("compression", 5.0, at=101.0)
        cursor = await scenario.read_cursor("compression")
        assert (cursor.since, cursor.wait) == (101.0, 5.0)

    @store_promise
    async def test_a_mandatory_delay_is_not_shortened_by_a_wakeup(self, scenario: StoreScenario) -> None:
        await scenario.wake_consumer("platform", 30.0, at=100.0, mandatory=True)
        await scenario.wake_consumer("platform", at=101.0)
        assert await scenario.claim_consumers(at=129.0) == []
        assert await scenario.claim_consumers(at=130.0) == ["platform"]

    @store_promise
    async def test_a_cursor_that_waits_after_a_failure_is_not_due_earlier(self, scenario: StoreScenario) -> None:
        await scenario.wake_consumer("platform", at=100.0)
        claim = await scenario.claim_cursor("platform", at=100.0)
        await scenario.update_cursor(
            claim, at=100.0, attempts=1, error="down", wait=RetryDelay(seconds=30.0), release=True
        )
        await scenario.wake_consumer("platform", at=101.0)
        assert await scenario.claim_consumers(at=129.0) == []
        claim = await scenario.claim_cursor("platform", at=130.0)
        assert (claim.cursor.attempts, claim.cursor.error) == (1, "down")

    # -- claiming

    @store_promise
    async def test_the_longest_due_cursor_is_claimed_first(self, scenario: StoreScenario) -> None:
        await scenario.wake_consumer("c", at=3.0)
        await scenario.wake_consumer("a", at=1.0)
        await scenario.wake_consumer("b", at=2.0)
        assert await scenario.claim_consumers(at=10.0, limit=2) == ["a", "b"]
        assert await scenario.claim_consumers(at=10.0) == ["c"]

    @store_promise
    async def test_cursors_with_equal_due_times_are_ordered_by_session(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        await scenario.commit(wakeups=(Wakeup(consumer="turn"),), at=2.0)
        await scenario.claim_cursor("turn", owner="gone", at=2.0)
        await scenario.at(2.0).revoke_leases(owner="me")
        await scenario.commit(wakeups=(Wakeup(consumer="turn"),), at=2.0, session="t")
        assert (await scenario.claim_cursor("turn", owner="me", at=2.0)).session == "s"

    @store_promise
    async def test_a_claim_can_skip_or_select_consumers(self, scenario: StoreScenario) -> None:
        for consumer in ("memory:a", "memory:b", "turn", "platform"):
            await scenario.wake_consumer(consumer)
        assert await scenario.claim_consumers(only=("nobody",)) == []
        assert await scenario.claim_consumers(skip=("memory:*", "turn")) == ["platform"]
        assert await scenario.claim_consumers(only=("memory:*",), skip=("memory:a",)) == ["memory:b"]
        assert await scenario.claim_consumers(only=("turn", "memory")) == ["turn"]
        assert await scenario.at(1.0).get_next_due(skip=("memory:*",)) is None
        assert await scenario.claim_consumers() == ["memory:a"]

    @store_promise
    async def test_a_claim_names_session_consumer_agent_and_owner(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor(owner="me")
        assert (claim.session, claim.consumer, claim.agent, claim.taken_over) == ("s", "turn", "main", False)
        assert (claim.cursor.owner, claim.fence) == ("me", 1)
        assert await scenario.read_cursor() == claim.cursor

    @store_promise
    async def test_a_wakeup_can_claim_its_cursor(self, scenario: StoreScenario) -> None:
        taking = Wakeup(consumer="turn", owner="me", lease=60.0)
        (claim,) = (await scenario.commit(at=5.0, wakeups=(taking,))).claims
        assert (claim.session, claim.consumer, claim.agent, claim.taken_over) == ("s", "turn", "main", False)
        assert (claim.cursor.owner, claim.fence) == ("me", 1)
        assert await scenario.read_cursor() == claim.cursor
        assert await scenario.claim_consumers(at=64.0, owner="you") == []
        assert await scenario.claim_consumers(at=65.0, owner="you") == ["turn"]

    @store_promise
    async def test_the_clock_of_the_store_decides_and_not_the_time_of_a_change(self, scenario: StoreScenario) -> None:
        """The clock of a host may be wrong, or the host may have stalled before its commit."""
        for hosts_time in (5.0, 500.0, 5_000.0):
            change = Change(
                step=Step.NOTE,
                session="s",
                at=hosts_time,
                wakeups=(
                    Wakeup(consumer="turn", owner="me", lease=60.0),
                    Wakeup(consumer="compression", wait=RetryDelay(seconds=30.0)),
                ),
            )
            (claim,) = (await scenario.at(500.0).commit(change)).claims
            assert await scenario.at(510.0).get_next_due(only=("compression",)) == pytest.approx(20.0)
            assert await scenario.claim_consumers(at=559.0, owner="you", only=("turn",)) == []
            update = CursorUpdate(wait=RetryDelay(seconds=40.0), release=True)
            await scenario.at(559.0).commit(
                Change(step=Step.CURSOR_SETTLE, session="s", at=hosts_time, claim=claim, cursor=update)
            )
            assert await scenario.claim_consumers(at=598.0, owner="you", only=("turn",)) == []
            assert await scenario.claim_consumers(at=599.0, owner="you", only=("turn",)) == ["turn"]
            (compression,) = await scenario.at(599.0).claim_cursors(
                owner="you", lease=60.0, limit=1, only=("compression",)
            )
            await scenario.update_cursor(compression, at=599.0, release=True, idle_at=99)
            (turn,) = await scenario.at(700.0).claim_cursors(owner="me", lease=60.0, limit=1, only=("turn",))
            await scenario.update_cursor(turn, at=400.0, release=True, idle_at=99)

    @store_promise
    async def test_a_wakeup_claims_no_cursor_that_is_held_or_not_yet_due(self, scenario: StoreScenario) -> None:
        await scenario.wake_consumer("platform", 30.0, at=1.0, mandatory=True)
        await scenario.wake_consumer("turn", at=1.0)
        held = await scenario.claim_cursor("turn", at=1.0, owner="you")
        done = await scenario.commit(
            at=2.0,
            wakeups=(
                *(Wakeup(consumer=consumer, owner="me", lease=60.0) for consumer in ("turn", "platform")),
                Wakeup(consumer="compression", wait=RetryDelay(seconds=9.0), owner="me", lease=60.0),
            ),
        )
        assert done.claims == ()
        assert (await scenario.read_cursor("turn")).owner == "you"
        await scenario.update_cursor(held, at=3.0, release=True, idle_at=99)
        assert await scenario.claim_consumers(at=2.0, owner="me") == []

    @store_promise
    async def test_a_claim_with_a_wakeup_raises_the_fence_of_the_running_operation(
        self, scenario: StoreScenario
    ) -> None:
        seq = await scenario.commit_heard()
        claim = await scenario.claim_cursor()
        op = await scenario.begin_operation(seq, claim=claim)
        await scenario.update_cursor(claim, release=True, idle_at=99)
        (again,) = (await scenario.commit(wakeups=(Wakeup(consumer="turn", owner="me", lease=60.0),))).claims
        assert again.fence == 2
        with pytest.raises(LeaseLost):
            await scenario.end_operation(op, claim=claim)
        await scenario.end_operation(op, claim=again)

    @store_promise
    async def test_a_held_cursor_cannot_be_claimed(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        await scenario.claim_cursor(at=1.0, owner="me", lease=60.0)
        assert await scenario.claim_consumers(at=60.9, owner="you") == []
        assert await scenario.at(2.0).get_next_due() is None

    @store_promise
    async def test_an_expired_lease_can_be_taken_over_and_is_marked(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        old = await scenario.claim_cursor(at=1.0, owner="old", lease=60.0)
        new = await scenario.claim_cursor(at=61.0, owner="new", lease=60.0)
        assert new.taken_over
        assert new.fence == old.fence + 1
        with pytest.raises(LeaseLost):
            await scenario.update_cursor(old, release=True)
        with pytest.raises(LeaseLost):
            await scenario.begin_operation(1, claim=old)
        await scenario.begin_operation(1, claim=new)

    @store_promise
    async def test_a_stalled_worker_is_fenced_off_after_its_own_new_claim(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        old = await scenario.claim_cursor(at=1.0, owner="me", lease=60.0)
        new = await scenario.claim_cursor(at=61.0, owner="me", lease=60.0)
        assert new.taken_over
        with pytest.raises(LeaseLost):
            await scenario.update_cursor(old, release=True)
        await scenario.update_cursor(new, release=True)

    @store_promise
    async def test_a_released_cursor_was_not_taken_over(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor()
        await scenario.update_cursor(claim, release=True)
        with pytest.raises(LeaseLost):
            await scenario.update_cursor(claim, error="late")
        assert not (await scenario.claim_cursor(owner="you")).taken_over

    @store_promise
    async def test_a_renewed_lease_lasts_longer(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        await scenario.wake_consumer("platform")
        mine = await scenario.claim_cursor(at=1.0, owner="me", lease=60.0)
        yours = await scenario.claim_cursor("platform", at=1.0, owner="you", lease=60.0)
        assert await scenario.at(50.0).renew_leases([mine, mine, yours], owner="me", lease=60.0) == 1
        assert await scenario.claim_consumers(at=109.0, owner="third") == ["platform"]
        assert await scenario.claim_consumers(at=110.0, owner="third") == ["turn"]
        assert await scenario.at(111.0).renew_leases([mine, yours], owner="me", lease=60.0) == 0

    @store_promise
    async def test_a_single_process_revokes_the_leases_of_dead_ones(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        await scenario.wake_consumer("platform")
        await scenario.wake_consumer("idle")
        dead = await scenario.claim_cursor(at=1.0, owner="dead", lease=3600.0)
        await scenario.claim_cursor("platform", at=1.0, owner="me", lease=3600.0)
        assert await scenario.at(2.0).revoke_leases(owner="me") == 1
        new = await scenario.claim_cursor(at=2.0, owner="me")
        assert (new.taken_over, new.fence) == (True, dead.fence + 1)
        assert await scenario.claim_consumers(at=2.0) == ["idle"]

    @store_promise
    async def test_a_held_cursor_that_is_due_again_waits_for_its_holder(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor(at=1.0)
        await scenario.commit_heard(at=2.0)
        assert await scenario.claim_consumers(at=3.0, owner="you") == []
        await scenario.update_cursor(claim, at=4.0, idle_at=1, release=True)
        assert await scenario.claim_consumers(at=4.0, owner="you") == ["turn"]

    @store_promise
    async def test_a_mandatory_delay_ends_when_another_destination_is_used(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor()
        wait = RetryDelay(seconds=60.0, mandatory=True, waits_for="a")
        await scenario.update_cursor(claim, at=2.0, attempts=3, error="a: busy", wait=wait, release=True)
        assert (await scenario.read_cursor()).waits_for == "a"
        for wake in (Wakeup(consumer="turn"), Wakeup(consumer="turn", waits_for="a")):
            await scenario.commit(at=3.0, wakeups=(wake,))
            assert await scenario.claim_consumers(at=3.0) == [], "a requested wait is never shortened"
        await scenario.commit(
            at=4.0, wakeups=(Wakeup(consumer="turn", waits_for="b"), Wakeup(consumer="compression", waits_for="b"))
        )
        cursor = await scenario.read_cursor()
        assert (cursor.attempts, cursor.error, cursor.mandatory, cursor.waits_for) == (0, "", False, "")
        assert await scenario.claim_consumers(at=4.0) == ["turn"]
        assert await scenario.store.get_cursor("compression", "s") is None, "no other cursor is woken"

    @store_promise
    async def test_a_cursor_whose_delay_ended_waits_for_no_destination(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor()
        await scenario.update_cursor(claim, at=2.0, wait=RetryDelay(seconds=1.0, waits_for="a"), release=True)
        claim = await scenario.claim_cursor(at=4.0)
        await scenario.update_cursor(claim, at=4.0, idle_at=9, release=True)
        assert (await scenario.read_cursor()).waits_for == ""

    # -- clocks

    @store_promise
    async def test_a_clock_that_goes_back_blocks_nothing(self, scenario: StoreScenario) -> None:
        for back in (3600.0, TEN_YEARS_SECONDS):
            await scenario.wake_consumer("compression", 30.0, at=TEN_YEARS_SECONDS * 2)
            assert await scenario.at(TEN_YEARS_SECONDS * 2 - back).get_next_due() == 0.0
            claim = await scenario.claim_cursor("compression", at=TEN_YEARS_SECONDS * 2 - back)
            await scenario.update_cursor(claim, at=TEN_YEARS_SECONDS * 2 - back, idle_at=9, release=True)

    @store_promise
    async def test_a_clock_that_goes_back_does_not_shorten_a_mandatory_delay(self, scenario: StoreScenario) -> None:
        for now, back in ((TEN_YEARS_SECONDS * 4, 3600.0), (TEN_YEARS_SECONDS * 3, TEN_YEARS_SECONDS)):
            await scenario.wake_consumer("platform", 30.0, at=now, mandatory=True)
            assert await scenario.at(now - back).get_next_due() == 30.0
            assert await scenario.claim_consumers(at=now - back) == []
            assert await scenario.claim_consumers(at=now - back + 29.0) == []
            claim = await scenario.claim_cursor("platform", at=now - back + 30.0)
            await scenario.update_cursor(claim, at=now - back + 30.0, idle_at=9, release=True)

    @store_promise
    async def test_a_clock_that_jumps_ahead_makes_delays_due_and_loses_nothing(self, scenario: StoreScenario) -> None:
        await scenario.wake_consumer("compression", 30.0, at=1.0)
        await scenario.wake_consumer("platform", 30.0, at=1.0, mandatory=True)
        assert await scenario.claim_consumers(at=TEN_YEARS_SECONDS) == ["compression", "platform"]

    @store_promise
    async def test_a_clock_that_stands_still_claims_each_cursor_once(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(at=5.0)
        claim = await scenario.claim_cursor(at=5.0)
        assert await scenario.claim_consumers(at=5.0) == []
        await scenario.update_cursor(claim, at=5.0, idle_at=1, release=True)
        assert await scenario.claim_consumers(at=5.0) == []
        await scenario.commit_heard(at=5.0)
        assert await scenario.claim_consumers(at=5.0) == ["turn"]

    @store_promise
    async def test_a_changed_clock_takes_no_cursor_from_a_running_worker(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(at=1.0)
        mine = await scenario.claim_cursor(at=TEN_YEARS_SECONDS, owner="me", lease=60.0)
        for at in (TEN_YEARS_SECONDS + 3600.0, TEN_YEARS_SECONDS - 10.0, 2.0):
            assert await scenario.claim_consumers(at=at, owner="me", list_held=lambda: [mine.name]) == []
        await scenario.wake_consumer("platform", at=TEN_YEARS_SECONDS)
        later = TEN_YEARS_SECONDS + 3600.0
        assert await scenario.claim_consumers(at=later, owner="me", list_held=lambda: [mine.name], limit=1) == [
            "platform"
        ], "it takes no place"
        assert await scenario.claim_consumers(at=later, owner="you", list_held=lambda: [mine.name]) == ["turn"], (
            "others cannot know"
        )

    @store_promise
    async def test_a_cursor_that_is_held_back_is_left_with_the_process_that_ended(
        self, scenario: StoreScenario
    ) -> None:
        for session in ("a", "b"):
            await scenario.open_session(session)
            await scenario.commit_heard(session=session)
        first = await scenario.at(1.0).claim_cursors(owner="dead", lease=60.0, limit=9)
        assert await scenario.at(2.0).revoke_leases(owner="me") == 2
        held_back = [claim.name for claim in first if claim.session == "a"]
        (claim,) = await scenario.at(2.0).claim_cursors(owner="me", lease=60.0, limit=1, held_back=held_back)
        assert claim.session == "b"
        assert await scenario.at(2.0).claim_cursors(owner="me", lease=60.0, limit=9, held_back=held_back) == []
        assert (await scenario.read_cursor(session="a")).owner == "dead"
        (claim,) = await scenario.at(2.0).claim_cursors(owner="me", lease=60.0, limit=9)
        assert (claim.session, claim.taken_over) == ("a", True)

    @store_promise
    async def test_a_released_cursor_can_be_claimed_again_while_its_worker_ends(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        mine = await scenario.claim_cursor(owner="me")
        await scenario.update_cursor(mine, release=True)
        assert await scenario.claim_consumers(owner="me", list_held=lambda: [mine.name]) == ["turn"]

    @store_promise
    async def test_a_lease_from_the_future_is_expired(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(at=1.0)
        await scenario.claim_cursor(at=TEN_YEARS_SECONDS, owner="dead", lease=60.0)
        assert (await scenario.claim_cursor(at=2.0, owner="me")).taken_over

    # -- going idle

    @store_promise
    async def test_an_idle_cursor_is_not_due_until_it_is_woken(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor()
        await scenario.update_cursor(claim, idle_at=1, release=True)
        cursor = await scenario.read_cursor()
        assert (cursor.since, cursor.owner) == (None, "")
        assert await scenario.at(99.0).get_next_due() is None
        assert await scenario.claim_consumers(at=99.0) == []
        assert await scenario.store.list_cursors(waiting=True) == []
        await scenario.commit_heard(at=100.0)
        assert await scenario.claim_consumers(at=100.0) == ["turn"]

    @store_promise
    async def test_a_cursor_with_unread_entries_does_not_go_idle(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor()
        await scenario.commit_heard(at=2.0)
        await scenario.update_cursor(claim, at=3.0, idle_at=1, release=True)
        assert await scenario.claim_consumers(at=3.0) == ["turn"]

    @store_promise
    async def test_a_cursor_that_holds_back_is_due_later_or_with_the_next_entry(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor(at=1.0)
        await scenario.update_cursor(claim, at=1.0, idle_at=1, wait=RetryDelay(seconds=60.0), release=True)
        assert await scenario.at(2.0).get_next_due() == 59.0
        claim = await scenario.claim_cursor(at=61.0)
        await scenario.update_cursor(claim, at=61.0, idle_at=1, wait=RetryDelay(seconds=60.0), release=True)
        await scenario.commit_heard(at=62.0)
        claim = await scenario.claim_cursor(at=62.0)
        await scenario.commit_heard(at=63.0)
        await scenario.update_cursor(claim, at=64.0, idle_at=2, wait=RetryDelay(seconds=60.0), release=True)
        assert await scenario.claim_consumers(at=64.0) == ["turn"]

    @store_promise
    async def test_only_held_back_cursors_can_be_made_due(self, scenario: StoreScenario) -> None:
        for consumer in ("memory:a", "memory:b", "platform"):
            await scenario.wake_consumer(consumer, 60.0, at=1.0)
        await scenario.wake_consumer("memory:firm", 60.0, at=1.0, mandatory=True)
        await scenario.wake_consumer("memory:failed", at=1.0)
        failed = await scenario.claim_cursor("memory:failed", at=1.0)
        await scenario.update_cursor(failed, at=1.0, attempts=1, wait=RetryDelay(seconds=60.0), release=True)
        assert await scenario.at(2.0).retry_now(held=("memory:*",)) == 2
        assert await scenario.claim_consumers(at=2.0) == ["memory:a", "memory:b"]
        assert await scenario.at(2.0).retry_now() == 1
        assert await scenario.claim_consumers(at=2.0) == ["memory:failed"]

    @store_promise
    async def test_a_backlog_counts_only_entries_that_the_memory_has_not_received(
        self, scenario: StoreScenario
    ) -> None:
        await scenario.commit_heard(at=1.0)
        claim = await scenario.claim_cursor(at=1.0)
        turn = await scenario.begin_operation(1, claim=claim)
        await scenario.end_operation(
            turn, claim=claim, at=5.0, wakeups=(Wakeup(consumer="memory:a", start=0), Wakeup(consumer="platform"))
        )
        await scenario.commit(
            EntryDraft(body=Noted(text="n"), author="agent:main"),
            at=6.0,
            wakeups=(Wakeup(consumer="memory:a"), Wakeup(consumer="memory:b")),
        )
        found = {it.consumer: it for it in await scenario.store.list_backlogs("memory:")}
        assert {consumer: (it.agent, it.cursors, it.items, it.oldest) for consumer, it in found.items()} == {
            "memory:a": ("main", 1, 2, 5.0),
            "memory:b": ("main", 1, 1, 6.0),
        }
        held = await scenario.claim_cursor("memory:a", at=7.0)
        wait = RetryDelay(seconds=60.0)
        await scenario.update_cursor(
            held, at=7.0, processed_seq=turn + 1, attempts=4, error="down", wait=wait, release=True
        )
        first = (await scenario.store.list_backlogs("memory:"))[0]
        assert (first.items, first.attempts, first.error, first.due) == (1, 4, "down", 67.0)
        done = await scenario.claim_cursor("memory:b", at=7.0)
        await scenario.update_cursor(done, at=7.0, processed_seq=4, idle_at=4, release=True)
        assert [it.consumer for it in await scenario.store.list_backlogs("memory:")] == ["memory:a"]

    @store_promise
    async def test_a_cursor_is_not_woken_by_its_own_entries(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor()
        op = await scenario.begin_operation(1, claim=claim)
        from_turn = (Said(text="x", to=ChatLocation(platform="test")), Ended())
        drafts = [EntryDraft(body=body, author="agent:main", op=op) for body in from_turn]
        await scenario.commit(
            *drafts,
            step=Step.END,
            op=op,
            claim=claim,
            wakeups=(Wakeup(consumer="platform"),),
            cursor=make_idle_update(2),
        )
        assert await scenario.claim_consumers(at=9.0) == ["platform"]

    @store_promise
    async def test_an_idle_update_from_another_session_checks_the_cursor_s_own_session(
        self, scenario: StoreScenario
    ) -> None:
        await scenario.open_session("t")
        await scenario.commit_heard(wake="backlinks")
        claim = await scenario.claim_cursor("backlinks")
        await scenario.commit(Noted(text="there"), session="t", claim=claim, cursor=make_idle_update(1))
        assert (await scenario.read_cursor("backlinks")).since is None
        await scenario.commit_heard(wake="backlinks")
        claim = await scenario.claim_cursor("backlinks")
        await scenario.commit_heard(wake="")
        await scenario.commit(Noted(text="there"), session="t", claim=claim, cursor=make_idle_update(2))
        assert (await scenario.read_cursor("backlinks")).since is not None

    # -- updating

    @store_promise
    async def test_only_the_holder_can_update_a_cursor(self, scenario: StoreScenario) -> None:
        with pytest.raises(InvalidRequest):
            await scenario.commit(cursor=make_idle_update(0))

    @store_promise
    async def test_an_update_keeps_the_fields_it_does_not_name(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor()
        await scenario.update_cursor(claim, processed_seq=1, attempts=3, error="e", in_flight=make_in_flight_batch(1))
        await scenario.update_cursor(claim, wait=RetryDelay(seconds=5.0, mandatory=True), at=9.0)
        cursor = await scenario.read_cursor()
        assert (cursor.processed_seq, cursor.attempts, cursor.error, cursor.in_flight) == (
            1,
            3,
            "e",
            make_in_flight_batch(1),
        )
        assert (cursor.since, cursor.wait, cursor.mandatory, cursor.owner) == (9.0, 5.0, True, "me")
        await scenario.update_cursor(claim, clear_in_flight=True, attempts=0, error="")
        cursor = await scenario.read_cursor()
        assert (cursor.in_flight, cursor.attempts, cursor.error, cursor.processed_seq) == (None, 0, "", 1)

    @store_promise
    async def test_an_in_flight_batch_survives_a_takeover_unchanged(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor(at=1.0, owner="old", lease=1.0)
        await scenario.update_cursor(claim, in_flight=make_in_flight_batch(1, state="in_doubt"))
        assert (await scenario.claim_cursor(at=9.0, owner="new")).cursor.in_flight == make_in_flight_batch(
            1, state="in_doubt"
        )

    @store_promise
    async def test_a_duplicate_key_still_advances_its_cursor(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        draft = EntryDraft(body=Noted(text="once"), author="system", dedup="backlink:s:1")
        await scenario.commit(draft, session="t")
        await scenario.commit_heard(wake="backlinks")
        claim = await scenario.claim_cursor("backlinks")
        done = await scenario.commit(draft, session="t", claim=claim, cursor=make_idle_update(1))
        assert done.duplicate
        cursor = await scenario.read_cursor("backlinks")
        assert (cursor.since, cursor.owner) == (None, "")

    # -- erasing

    @store_promise
    async def test_an_erasure_voids_in_flight_batches_that_contain_the_entry(self, scenario: StoreScenario) -> None:
        for _ in range(3):
            await scenario.commit_heard(wake="")
        for consumer in ("a", "b", "c"):
            await scenario.wake_consumer(consumer)
        a, b, _ = [await scenario.claim_cursor(consumer) for consumer in ("a", "b", "c")]
        await scenario.update_cursor(a, in_flight=make_in_flight_batch(1, 2))
        await scenario.update_cursor(b, in_flight=make_in_flight_batch(3))
        await scenario.erase_entries(2)
        states = {
            cursor.consumer: cursor.in_flight and cursor.in_flight.state
            for cursor in await scenario.store.list_cursors(session="s")
        }
        assert states == {"a": "voided", "b": "sent", "c": None}

    @store_promise
    async def test_an_erasure_voids_the_exchange_of_an_erased_message(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("kept", wake="")
        await scenario.commit(make_own_draft(Began(type="turn", takes=(1,))), make_own_draft(Ended()))
        await scenario.commit_heard("secret", wake="")
        await scenario.commit(make_own_draft(Began(type="turn", takes=(4,))), make_own_draft(Ended()))
        for consumer in ("a", "b"):
            await scenario.wake_consumer(consumer)
        a, b = [await scenario.claim_cursor(consumer) for consumer in ("a", "b")]
        await scenario.update_cursor(a, in_flight=make_in_flight_batch(3))
        await scenario.update_cursor(b, in_flight=make_in_flight_batch(6))
        await scenario.erase_entries(4)
        assert (await scenario.read_cursor("a")).in_flight == make_in_flight_batch(3)
        assert (await scenario.read_cursor("b")).in_flight == make_in_flight_batch(6, state="voided")

    @store_promise
    async def test_a_holder_that_missed_an_erasure_cannot_restore_a_voided_batch(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor()
        await scenario.update_cursor(claim, in_flight=make_in_flight_batch(1))
        await scenario.erase_entries(1)
        await scenario.update_cursor(claim, in_flight=make_in_flight_batch(1, state="in_doubt"))
        assert (await scenario.read_cursor()).in_flight == make_in_flight_batch(1, state="voided")
        await scenario.update_cursor(claim, in_flight=make_in_flight_batch(1, digest="without it", state="unsent"))
        assert (await scenario.read_cursor()).in_flight == make_in_flight_batch(1, digest="without it", state="unsent")
        await scenario.update_cursor(claim, clear_in_flight=True)
        assert (await scenario.read_cursor()).in_flight is None

    # -- receipts and dead letters

    @store_promise
    async def test_receipts_are_kept_per_part_and_consumer(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        await scenario.commit_heard()

        def receipt(seq: int, part: int, reader: str = "platform", remote: str = "r") -> Receipt:
            return Receipt(consumer=reader, session="s", seq=seq, part=part, key="k", remote=remote, at=7.0)

        await scenario.commit(at=7.0, receipts=(receipt(1, 0), receipt(1, 1), receipt(2, 0), receipt(1, 0, "other")))
        await scenario.commit(at=7.0, receipts=(receipt(1, 0, remote="edited"),))
        found = await scenario.store.list_receipts("s", seq=1, consumer="platform")
        assert found == [receipt(1, 0, remote="edited"), receipt(1, 1)]
        assert len(await scenario.store.list_receipts("s")) == 4
        assert await scenario.store.list_receipts("t") == []

    @store_promise
    async def test_possible_duplicates_are_counted(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        assert await scenario.store.count_receipts_in_doubt() == 0
        sure = Receipt(consumer="platform", session="s", seq=1, key="k", remote="r")
        await scenario.commit(
            receipts=(sure, Receipt(consumer="platform", session="s", seq=1, part=1, key="l", in_doubt=True))
        )
        assert await scenario.store.count_receipts_in_doubt() == 1

    @store_promise
    async def test_receipts_are_counted_by_consumer(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        named = Receipt(consumer="memory:a", session="s", seq=1, key="k", remote="r")
        plain = Receipt(consumer="memory:a", session="s", seq=2, key="l")
        await scenario.commit(receipts=(named, plain, Receipt(consumer="memory:b", session="s", seq=1, key="k")))
        (found,) = await scenario.store.count_receipts(["memory:a", "memory:none"])
        assert (found.consumer, found.items, found.named) == ("memory:a", 2, 1)
        assert found.agent == (await scenario.store.get_session("s")).agent
        assert await scenario.store.count_receipts([]) == []

    @store_promise
    async def test_a_dropped_dead_letter_is_listed_no_more_and_never_delivered(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(wake="platform")
        claim = await scenario.claim_cursor("platform")
        letters = tuple(
            DeadLetter(consumer="platform", session="s", seq=1, part=part, key=f"k{part}", reason="no")
            for part in range(2)
        )
        await scenario.commit(
            step=Step.DELIVERY_DONE, claim=claim, at=5.0, dead_letters=letters, cursor=make_idle_update(1)
        )
        first, second = await scenario.store.list_dead_letters()
        assert await scenario.store.drop_dead_letters([first.id, 999]) == 1
        assert await scenario.store.drop_dead_letters([first.id]) == 0
        assert [it.id for it in await scenario.store.list_dead_letters()] == [second.id]
        assert await scenario.at(9.0).replay_dead_letters([first.id]) == 0
        assert await scenario.at(9.0).replay_dead_letters([second.id]) == 1
        assert await scenario.store.drop_dead_letters([second.id]) == 0, "it is being replayed"
        assert await scenario.store.verify() == []

    @store_promise
    async def test_a_dead_letter_is_listed_replayed_and_settled(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(wake="platform")
        claim = await scenario.claim_cursor("platform")
        letter = DeadLetter(consumer="platform", session="s", seq=1, key="k", reason="no", in_doubt=True)
        await scenario.commit(
            step=Step.DELIVERY_DONE, claim=claim, at=5.0, dead_letters=(letter,), cursor=make_idle_update(1)
        )
        (dead_letters,) = await scenario.store.list_dead_letters(session="s", consumer="platform")
        assert (dead_letters.seq, dead_letters.key, dead_letters.reason, dead_letters.in_doubt) == (1, "k", "no", True)
        assert (dead_letters.at, dead_letters.state) == (5.0, "dead")
        assert await scenario.at(9.0).get_next_due() is None
        assert await scenario.at(9.0).replay_dead_letters([dead_letters.id, 999]) == 1
        assert await scenario.at(9.0).replay_dead_letters([dead_letters.id]) == 0
        assert await scenario.store.list_dead_letters() == []
        (replaying,) = await scenario.store.list_dead_letters(state="replaying")
        assert (replaying.id, replaying.state) == (dead_letters.id, "replaying")
        claim = await scenario.claim_cursor("platform", at=9.0)
        await scenario.commit(
            step=Step.DELIVERY_DONE, claim=claim, at=9.0, replayed=(dead_letters.id,), cursor=make_idle_update(1)
        )
        assert [one.state for one in await scenario.store.list_dead_letters(state="")] == ["replayed"]
        assert await scenario.at(9.0).get_next_due() is None

    @store_promise
    async def test_no_reason_of_a_dead_letter_contains_erased_text(self, scenario: StoreScenario) -> None:
        """A refusal may quote the refused text, also when the text is part of an exchange."""
        await scenario.commit_heard("secret", wake="platform")
        await scenario.commit(make_own_draft(Began(type="turn", takes=(1,))), make_own_draft(Ended()))
        await scenario.commit_heard("kept", wake="")
        claim = await scenario.claim_cursor("platform")
        letters = [
            DeadLetter(consumer="platform", session="s", seq=seq, reason="'secret' is no text") for seq in (1, 3, 4)
        ]
        await scenario.commit(claim=claim, dead_letters=tuple(letters))
        await scenario.update_cursor(
            claim, attempts=1, error="'secret' is no text", wait=RetryDelay(seconds=9.0), release=True
        )
        await scenario.erase_entries(1)
        found = {one.seq: one for one in await scenario.store.list_dead_letters(state="")}
        assert (found[1].state, found[3].state, found[4].state) == ("dropped", "dead", "dead")
        assert not any("secret" in found[seq].reason for seq in (1, 3))
        assert found[4].reason == letters[2].reason
        assert "secret" not in (await scenario.read_cursor("platform")).error

    @store_promise
    async def test_a_dead_letter_can_be_replayed_before_its_cursor_advances(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(wake="platform")
        claim = await scenario.claim_cursor("platform")
        await scenario.commit(step=Step.DELIVERY_DONE, claim=claim, at=5.0, cursor=make_idle_update(1))
        letter = DeadLetter(consumer="platform", session="s", seq=1, key="k", in_doubt=True, state="replaying")
        await scenario.commit(step=Step.REPLAY, at=6.0, dead_letters=(letter,), wakeups=(Wakeup(consumer="platform"),))
        assert await scenario.store.list_dead_letters() == []
        assert [one.key for one in await scenario.store.list_dead_letters(state="replaying")] == ["k"]
        assert await scenario.claim_consumers(at=6.0) == ["platform"]

    @store_promise
    async def test_a_cursor_with_a_replayed_dead_letter_does_not_go_idle(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(wake="platform")
        claim = await scenario.claim_cursor("platform")
        await scenario.commit(claim=claim, dead_letters=(DeadLetter(consumer="platform", session="s", seq=1),))
        (dead_letters,) = await scenario.store.list_dead_letters()
        await scenario.at(2.0).replay_dead_letters([dead_letters.id])
        await scenario.update_cursor(claim, at=3.0, idle_at=1, release=True)
        assert await scenario.claim_consumers(at=3.0) == ["platform"]

    @store_promise
    async def test_a_claim_says_whether_there_are_dead_letters_to_replay(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(wake="platform")
        claim = await scenario.claim_cursor("platform")
        assert not claim.has_replays
        letter = DeadLetter(consumer="platform", session="s", seq=1)
        await scenario.commit(claim=claim, dead_letters=(letter,), cursor=make_idle_update(1))
        wakeup = Wakeup(consumer="platform", owner="me", lease=60.0)
        (claim,) = (await scenario.commit(wakeups=(wakeup,))).claims
        assert not claim.has_replays, "nobody asked for a replay"
        (dead_letter,) = await scenario.store.list_dead_letters()
        await scenario.at(2.0).replay_dead_letters([dead_letter.id])
        await scenario.update_cursor(claim, at=2.0, idle_at=1, release=True)
        claim = await scenario.claim_cursor("platform", at=2.0)
        assert claim.has_replays
        await scenario.update_cursor(claim, at=2.0, idle_at=1, release=True)
        (claim,) = (await scenario.commit(at=2.0, wakeups=(wakeup,))).claims
        assert claim.has_replays
        await scenario.commit(claim=claim, replayed=(dead_letter.id,), cursor=make_idle_update(1))
        (claim,) = (await scenario.commit(at=2.0, wakeups=(wakeup,))).claims
        assert not claim.has_replays

    @store_promise
    async def test_cursors_are_listed_by_consumer_and_session(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        for session in "st":
            await scenario.commit(
                make_heard(), session=session, wakeups=(Wakeup(consumer="turn"), Wakeup(consumer="platform"))
            )
        store = scenario.store
        assert [(one.session, one.consumer) for one in await store.list_cursors(consumer="turn")] == [
            ("s", "turn"),
            ("t", "turn"),
        ]
        assert [one.consumer for one in await store.list_cursors(session="t")] == ["platform", "turn"]
        assert len(await store.list_cursors(waiting=True)) == 4
