"""What every store promises about lanes: when they are due, who holds one, and what becomes of its flight."""

from __future__ import annotations

import pytest

from everhold.core.entries import Began, Draft, Ended, Noted, Place, Said
from everhold.errors import LeaseLost, Misuse
from everhold.ports.store import CursorUpdate, DeadLetter, InFlightBatch, Item, Receipt, RetryDelay, Step, Wakeup
from everhold.testing.contracts.scene import Scene, heard, own, promise

YEARS = 10 * 365 * 86_400.0


def flight(*seqs: int, digest: str = "d", state: str = "sent") -> InFlightBatch:
    items = tuple(Item(seq=seq, key=f"k{seq}") for seq in seqs)
    return InFlightBatch(items=items, upto=max(seqs), digest=digest, state=state)  # type: ignore[arg-type]


def idle(at: int) -> CursorUpdate:
    return CursorUpdate(idle_at=at, release=True)


class LanesContract:
    # -- waking

    @promise
    async def test_a_lane_begins_reading_at_the_entry_that_woke_it_first(self, scene: Scene) -> None:
        await scene.hear(wake="")
        await scene.hear(wake="")
        await scene.hear(wake="turn", at=3.0)
        lane = await scene.lane()
        assert (lane.processed_seq, lane.since, lane.wait, lane.mandatory) == (2, 3.0, 0.0, False)
        await scene.hear(wake="turn", at=4.0)
        assert (await scene.lane()).processed_seq == 2

    @promise
    async def test_a_new_lane_can_be_told_where_to_begin(self, scene: Scene) -> None:
        await scene.hear(wake="")
        await scene.hear(wake="")
        await scene.commit(wakeups=(Wakeup(consumer="memory", start=0), Wakeup(consumer="index", start=1)))
        assert [(await scene.lane(reader)).processed_seq for reader in ("memory", "index")] == [0, 1]
        await scene.commit(wakeups=(Wakeup(consumer="memory", start=2),))
        assert (await scene.lane("memory")).processed_seq == 0

    @promise
    async def test_a_lane_is_due_when_its_wait_is_over(self, scene: Scene) -> None:
        await scene.wake("compression", 30.0, at=100.0)
        assert await scene.claimed(at=129.0) == []
        assert await scene.store.get_next_due(at=110.0) == pytest.approx(20.0)
        assert await scene.store.get_next_due(at=140.0) == 0.0
        assert await scene.claimed(at=130.0) == ["compression"]

    @promise
    async def test_an_earlier_wake_wins_and_a_later_one_changes_nothing(self, scene: Scene) -> None:
        await scene.wake("compression", 30.0, at=100.0)
        await scene.wake("compression", 60.0, at=100.0)
        assert (await scene.lane("compression")).wait == 30.0
        await scene.wake("compression", 5.0, at=101.0)
        lane = await scene.lane("compression")
        assert (lane.since, lane.wait) == (101.0, 5.0)

    @promise
    async def test_a_firm_wait_is_not_shortened_by_a_wake(self, scene: Scene) -> None:
        await scene.wake("platform", 30.0, at=100.0, mandatory=True)
        await scene.wake("platform", at=101.0)
        assert await scene.claimed(at=129.0) == []
        assert await scene.claimed(at=130.0) == ["platform"]

    @promise
    async def test_a_lane_that_waits_after_a_failure_is_not_hurried(self, scene: Scene) -> None:
        await scene.wake("platform", at=100.0)
        claim = await scene.claim("platform", at=100.0)
        await scene.update(claim, at=100.0, attempts=1, error="down", wait=RetryDelay(seconds=30.0), release=True)
        await scene.wake("platform", at=101.0)
        assert await scene.claimed(at=129.0) == []
        claim = await scene.claim("platform", at=130.0)
        assert (claim.cursor.attempts, claim.cursor.error) == (1, "down")

    # -- claiming

    @promise
    async def test_the_longest_due_lane_comes_first(self, scene: Scene) -> None:
        await scene.wake("c", at=3.0)
        await scene.wake("a", at=1.0)
        await scene.wake("b", at=2.0)
        assert await scene.claimed(at=10.0, limit=2) == ["a", "b"]
        assert await scene.claimed(at=10.0) == ["c"]

    @promise
    async def test_lanes_that_are_due_alike_come_by_session_whoever_held_them(self, scene: Scene) -> None:
        await scene.open("t")
        await scene.commit(wakeups=(Wakeup(consumer="turn"),), at=2.0)
        await scene.claim("turn", owner="gone", at=2.0)
        await scene.store.revoke_leases(owner="me", at=2.0)
        await scene.commit(wakeups=(Wakeup(consumer="turn"),), at=2.0, session="t")
        assert (await scene.claim("turn", owner="me", at=2.0)).session == "s"

    @promise
    async def test_readers_can_be_skipped_or_singled_out(self, scene: Scene) -> None:
        for reader in ("memory:a", "memory:b", "turn", "platform"):
            await scene.wake(reader)
        assert await scene.claimed(only=("nobody",)) == []
        assert await scene.claimed(skip=("memory:*", "turn")) == ["platform"]
        assert await scene.claimed(only=("memory:*",), skip=("memory:a",)) == ["memory:b"]
        assert await scene.claimed(only=("turn", "memory")) == ["turn"]
        assert await scene.store.get_next_due(at=1.0, skip=("memory:*",)) is None
        assert await scene.claimed() == ["memory:a"]

    @promise
    async def test_a_claim_says_whose_lane_it_is(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim(owner="me")
        assert (claim.session, claim.consumer, claim.agent, claim.taken_over) == ("s", "turn", "main", False)
        assert (claim.cursor.owner, claim.fence) == ("me", 1)
        assert await scene.lane() == claim.cursor

    @promise
    async def test_a_lane_can_be_taken_with_its_waking(self, scene: Scene) -> None:
        taking = Wakeup(consumer="turn", owner="me", lease=60.0)
        (claim,) = (await scene.commit(at=5.0, wakeups=(taking,))).claims
        assert (claim.session, claim.consumer, claim.agent, claim.taken_over) == ("s", "turn", "main", False)
        assert (claim.cursor.owner, claim.fence) == ("me", 1)
        assert await scene.lane() == claim.cursor
        assert await scene.claimed(at=64.0, owner="you") == []
        assert await scene.claimed(at=65.0, owner="you") == ["turn"]

    @promise
    async def test_a_waking_takes_no_lane_that_is_held_or_not_yet_due(self, scene: Scene) -> None:
        await scene.wake("platform", 30.0, at=1.0, mandatory=True)
        await scene.wake("turn", at=1.0)
        held = await scene.claim("turn", at=1.0, owner="you")
        done = await scene.commit(
            at=2.0,
            wakeups=(
                *(Wakeup(consumer=reader, owner="me", lease=60.0) for reader in ("turn", "platform")),
                Wakeup(consumer="compression", wait=RetryDelay(seconds=9.0), owner="me", lease=60.0),
            ),
        )
        assert done.claims == ()
        assert (await scene.lane("turn")).owner == "you"
        await scene.update(held, at=3.0, release=True, idle_at=99)
        assert await scene.claimed(at=2.0, owner="me") == []

    @promise
    async def test_taking_a_lane_with_its_waking_moves_the_fence_of_what_runs_there(self, scene: Scene) -> None:
        seq = await scene.hear()
        claim = await scene.claim()
        op = await scene.begin(seq, claim=claim)
        await scene.update(claim, release=True, idle_at=99)
        (again,) = (await scene.commit(wakeups=(Wakeup(consumer="turn", owner="me", lease=60.0),))).claims
        assert again.fence == 2
        with pytest.raises(LeaseLost):
            await scene.end(op, claim=claim)
        await scene.end(op, claim=again)

    @promise
    async def test_a_held_lane_is_nobody_elses(self, scene: Scene) -> None:
        await scene.hear()
        await scene.claim(at=1.0, owner="me", lease=60.0)
        assert await scene.claimed(at=60.9, owner="you") == []
        assert await scene.store.get_next_due(at=2.0) is None

    @promise
    async def test_a_lease_that_is_over_can_be_taken_over_and_says_so(self, scene: Scene) -> None:
        await scene.hear()
        old = await scene.claim(at=1.0, owner="old", lease=60.0)
        new = await scene.claim(at=61.0, owner="new", lease=60.0)
        assert new.taken_over
        assert new.fence == old.fence + 1
        with pytest.raises(LeaseLost):
            await scene.update(old, release=True)
        with pytest.raises(LeaseLost):
            await scene.begin(1, claim=old)
        await scene.begin(1, claim=new)

    @promise
    async def test_a_stalled_worker_is_fenced_off_from_its_own_later_self(self, scene: Scene) -> None:
        await scene.hear()
        old = await scene.claim(at=1.0, owner="me", lease=60.0)
        new = await scene.claim(at=61.0, owner="me", lease=60.0)
        assert new.taken_over
        with pytest.raises(LeaseLost):
            await scene.update(old, release=True)
        await scene.update(new, release=True)

    @promise
    async def test_a_released_lane_was_not_taken_over(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.update(claim, release=True)
        with pytest.raises(LeaseLost):
            await scene.update(claim, error="late")
        assert not (await scene.claim(owner="you")).taken_over

    @promise
    async def test_a_renewed_lease_lasts_longer(self, scene: Scene) -> None:
        await scene.hear()
        await scene.wake("platform")
        mine = await scene.claim(at=1.0, owner="me", lease=60.0)
        yours = await scene.claim("platform", at=1.0, owner="you", lease=60.0)
        assert await scene.store.renew_leases([mine, mine, yours], owner="me", at=50.0, lease=60.0) == 1
        assert await scene.claimed(at=109.0, owner="third") == ["platform"]
        assert await scene.claimed(at=110.0, owner="third") == ["turn"]
        assert await scene.store.renew_leases([mine, yours], owner="me", at=111.0, lease=60.0) == 0

    @promise
    async def test_who_is_alone_ends_the_leases_of_the_dead(self, scene: Scene) -> None:
        await scene.hear()
        await scene.wake("platform")
        await scene.wake("idle")
        dead = await scene.claim(at=1.0, owner="dead", lease=3600.0)
        await scene.claim("platform", at=1.0, owner="me", lease=3600.0)
        assert await scene.store.revoke_leases(owner="me", at=2.0) == 1
        new = await scene.claim(at=2.0, owner="me")
        assert (new.taken_over, new.fence) == (True, dead.fence + 1)
        assert await scene.claimed(at=2.0) == ["idle"]

    @promise
    async def test_a_lane_that_is_due_again_while_held_waits_for_its_holder(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim(at=1.0)
        await scene.hear(at=2.0)
        assert await scene.claimed(at=3.0, owner="you") == []
        await scene.update(claim, at=4.0, idle_at=1, release=True)
        assert await scene.claimed(at=4.0, owner="you") == ["turn"]

    @promise
    async def test_a_firm_wait_ends_for_whoever_asks_somebody_else(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        wait = RetryDelay(seconds=60.0, mandatory=True, waits_for="a")
        await scene.update(claim, at=2.0, attempts=3, error="a: busy", wait=wait, release=True)
        assert (await scene.lane()).waits_for == "a"
        for wake in (Wakeup(consumer="turn"), Wakeup(consumer="turn", waits_for="a")):
            await scene.commit(at=3.0, wakeups=(wake,))
            assert await scene.claimed(at=3.0) == [], "what somebody asked for is never shortened for them"
        await scene.commit(
            at=4.0, wakeups=(Wakeup(consumer="turn", waits_for="b"), Wakeup(consumer="compression", waits_for="b"))
        )
        lane = await scene.lane()
        assert (lane.attempts, lane.error, lane.mandatory, lane.waits_for) == (0, "", False, "")
        assert await scene.claimed(at=4.0) == ["turn"]
        assert await scene.store.get_cursor("compression", "s") is None, "nothing else is woken by it"

    @promise
    async def test_a_wait_that_is_over_is_for_nobody(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.update(claim, at=2.0, wait=RetryDelay(seconds=1.0, waits_for="a"), release=True)
        claim = await scene.claim(at=4.0)
        await scene.update(claim, at=4.0, idle_at=9, release=True)
        assert (await scene.lane()).waits_for == ""

    # -- clocks

    @promise
    async def test_a_clock_that_goes_back_freezes_nothing(self, scene: Scene) -> None:
        for back in (3600.0, YEARS):
            await scene.wake("compression", 30.0, at=YEARS * 2)
            assert await scene.store.get_next_due(at=YEARS * 2 - back) == 0.0
            claim = await scene.claim("compression", at=YEARS * 2 - back)
            await scene.update(claim, at=YEARS * 2 - back, idle_at=9, release=True)

    @promise
    async def test_a_clock_that_goes_back_does_not_shorten_a_firm_wait(self, scene: Scene) -> None:
        for now, back in ((YEARS * 4, 3600.0), (YEARS * 3, YEARS)):
            await scene.wake("platform", 30.0, at=now, mandatory=True)
            assert await scene.store.get_next_due(at=now - back) == 30.0
            assert await scene.claimed(at=now - back) == []
            assert await scene.claimed(at=now - back + 29.0) == []
            claim = await scene.claim("platform", at=now - back + 30.0)
            await scene.update(claim, at=now - back + 30.0, idle_at=9, release=True)

    @promise
    async def test_a_clock_that_jumps_ahead_makes_waits_due_and_loses_nothing(self, scene: Scene) -> None:
        await scene.wake("compression", 30.0, at=1.0)
        await scene.wake("platform", 30.0, at=1.0, mandatory=True)
        assert await scene.claimed(at=YEARS) == ["compression", "platform"]

    @promise
    async def test_a_clock_that_stands_still_claims_each_lane_once(self, scene: Scene) -> None:
        await scene.hear(at=5.0)
        claim = await scene.claim(at=5.0)
        assert await scene.claimed(at=5.0) == []
        await scene.update(claim, at=5.0, idle_at=1, release=True)
        assert await scene.claimed(at=5.0) == []
        await scene.hear(at=5.0)
        assert await scene.claimed(at=5.0) == ["turn"]

    @promise
    async def test_a_clock_that_is_set_takes_no_lane_from_those_who_are_at_work_here(self, scene: Scene) -> None:
        await scene.hear(at=1.0)
        mine = await scene.claim(at=YEARS, owner="me", lease=60.0)
        for at in (YEARS + 3600.0, YEARS - 10.0, 2.0):
            assert await scene.claimed(at=at, owner="me", skip=(mine.name,)) == []
        await scene.wake("platform", at=YEARS)
        later = YEARS + 3600.0
        assert await scene.claimed(at=later, owner="me", skip=(mine.name,), limit=1) == ["platform"], (
            "it takes no place"
        )
        assert await scene.claimed(at=later, owner="you", skip=(mine.name,)) == ["turn"], "others cannot know"

    @promise
    async def test_whoever_has_let_go_of_a_lane_may_take_it_again_while_they_wind_up(self, scene: Scene) -> None:
        await scene.hear()
        mine = await scene.claim(owner="me")
        await scene.update(mine, release=True)
        assert await scene.claimed(owner="me", skip=(mine.name,)) == ["turn"]

    @promise
    async def test_a_lease_from_the_future_is_over(self, scene: Scene) -> None:
        await scene.hear(at=1.0)
        await scene.claim(at=YEARS, owner="dead", lease=60.0)
        assert (await scene.claim(at=2.0, owner="me")).taken_over

    # -- going idle

    @promise
    async def test_an_idle_lane_is_not_due_until_it_is_woken(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.update(claim, idle_at=1, release=True)
        lane = await scene.lane()
        assert (lane.since, lane.owner) == (None, "")
        assert await scene.store.get_next_due(at=99.0) is None
        assert await scene.claimed(at=99.0) == []
        assert await scene.store.list_cursors(waiting=True) == []
        await scene.hear(at=100.0)
        assert await scene.claimed(at=100.0) == ["turn"]

    @promise
    async def test_a_lane_does_not_go_idle_over_what_it_has_not_seen(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.hear(at=2.0)
        await scene.update(claim, at=3.0, idle_at=1, release=True)
        assert await scene.claimed(at=3.0) == ["turn"]

    @promise
    async def test_a_lane_that_holds_back_is_due_later_or_as_soon_as_there_is_more(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim(at=1.0)
        await scene.update(claim, at=1.0, idle_at=1, wait=RetryDelay(seconds=60.0), release=True)
        assert await scene.store.get_next_due(at=2.0) == 59.0
        claim = await scene.claim(at=61.0)
        await scene.update(claim, at=61.0, idle_at=1, wait=RetryDelay(seconds=60.0), release=True)
        await scene.hear(at=62.0)
        claim = await scene.claim(at=62.0)
        await scene.hear(at=63.0)
        await scene.update(claim, at=64.0, idle_at=2, wait=RetryDelay(seconds=60.0), release=True)
        assert await scene.claimed(at=64.0) == ["turn"]

    @promise
    async def test_what_is_held_back_can_be_made_due_and_nothing_else_with_it(self, scene: Scene) -> None:
        for reader in ("memory:a", "memory:b", "platform"):
            await scene.wake(reader, 60.0, at=1.0)
        await scene.wake("memory:firm", 60.0, at=1.0, mandatory=True)
        await scene.wake("memory:failed", at=1.0)
        failed = await scene.claim("memory:failed", at=1.0)
        await scene.update(failed, at=1.0, attempts=1, wait=RetryDelay(seconds=60.0), release=True)
        assert await scene.store.retry_now(at=2.0, held=("memory:*",)) == 2
        assert await scene.claimed(at=2.0) == ["memory:a", "memory:b"]
        assert await scene.store.retry_now(at=2.0) == 1
        assert await scene.claimed(at=2.0) == ["memory:failed"]

    @promise
    async def test_a_backlog_counts_what_memory_has_yet_to_get_and_nothing_else(self, scene: Scene) -> None:
        await scene.hear(at=1.0)
        claim = await scene.claim(at=1.0)
        turn = await scene.begin(1, claim=claim)
        await scene.end(
            turn, claim=claim, at=5.0, wakeups=(Wakeup(consumer="memory:a", start=0), Wakeup(consumer="platform"))
        )
        await scene.commit(
            Draft(body=Noted(text="n"), author="agent:main"),
            at=6.0,
            wakeups=(Wakeup(consumer="memory:a"), Wakeup(consumer="memory:b")),
        )
        found = {it.consumer: it for it in await scene.store.list_backlogs("memory:")}
        assert {reader: (it.agent, it.cursors, it.items, it.oldest) for reader, it in found.items()} == {
            "memory:a": ("main", 1, 2, 5.0),
            "memory:b": ("main", 1, 1, 6.0),
        }
        held = await scene.claim("memory:a", at=7.0)
        wait = RetryDelay(seconds=60.0)
        await scene.update(held, at=7.0, processed_seq=turn + 1, attempts=4, error="down", wait=wait, release=True)
        first = (await scene.store.list_backlogs("memory:"))[0]
        assert (first.items, first.attempts, first.error, first.due) == (1, 4, "down", 67.0)
        done = await scene.claim("memory:b", at=7.0)
        await scene.update(done, at=7.0, processed_seq=4, idle_at=4, release=True)
        assert [it.consumer for it in await scene.store.list_backlogs("memory:")] == ["memory:a"]

    @promise
    async def test_a_lane_does_not_wake_itself_with_what_it_appends(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        op = await scene.begin(1, claim=claim)
        from_turn = (Said(text="x", to=Place(platform="test")), Ended())
        drafts = [Draft(body=body, author="agent:main", op=op) for body in from_turn]
        await scene.commit(
            *drafts, step=Step.END, op=op, claim=claim, wakeups=(Wakeup(consumer="platform"),), cursor=idle(2)
        )
        assert await scene.claimed(at=9.0) == ["platform"]

    @promise
    async def test_going_idle_elsewhere_looks_at_the_lanes_own_session(self, scene: Scene) -> None:
        await scene.open("t")
        await scene.hear(wake="backlinks")
        claim = await scene.claim("backlinks")
        await scene.commit(Noted(text="there"), session="t", claim=claim, cursor=idle(1))
        assert (await scene.lane("backlinks")).since is None
        await scene.hear(wake="backlinks")
        claim = await scene.claim("backlinks")
        await scene.hear(wake="")
        await scene.commit(Noted(text="there"), session="t", claim=claim, cursor=idle(2))
        assert (await scene.lane("backlinks")).since is not None

    # -- updating

    @promise
    async def test_only_its_holder_says_what_becomes_of_a_lane(self, scene: Scene) -> None:
        with pytest.raises(Misuse):
            await scene.commit(cursor=idle(0))

    @promise
    async def test_an_update_leaves_what_it_does_not_name(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.update(claim, processed_seq=1, attempts=3, error="e", in_flight=flight(1))
        await scene.update(claim, wait=RetryDelay(seconds=5.0, mandatory=True), at=9.0)
        lane = await scene.lane()
        assert (lane.processed_seq, lane.attempts, lane.error, lane.in_flight) == (1, 3, "e", flight(1))
        assert (lane.since, lane.wait, lane.mandatory, lane.owner) == (9.0, 5.0, True, "me")
        await scene.update(claim, clear_in_flight=True, attempts=0, error="")
        lane = await scene.lane()
        assert (lane.in_flight, lane.attempts, lane.error, lane.processed_seq) == (None, 0, "", 1)

    @promise
    async def test_a_flight_survives_a_take_over_as_it_was(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim(at=1.0, owner="old", lease=1.0)
        await scene.update(claim, in_flight=flight(1, state="in_doubt"))
        assert (await scene.claim(at=9.0, owner="new")).cursor.in_flight == flight(1, state="in_doubt")

    @promise
    async def test_a_repeated_key_still_lets_its_lane_move_on(self, scene: Scene) -> None:
        await scene.open("t")
        tied = Draft(body=Noted(text="once"), author="system", dedup="tie:s:1")
        await scene.commit(tied, session="t")
        await scene.hear(wake="backlinks")
        claim = await scene.claim("backlinks")
        done = await scene.commit(tied, session="t", claim=claim, cursor=idle(1))
        assert done.duplicate
        lane = await scene.lane("backlinks")
        assert (lane.since, lane.owner) == (None, "")

    # -- erasing

    @promise
    async def test_erasing_voids_the_flights_that_carry_it(self, scene: Scene) -> None:
        for _ in range(3):
            await scene.hear(wake="")
        for reader in ("a", "b", "c"):
            await scene.wake(reader)
        a, b, _ = [await scene.claim(reader) for reader in ("a", "b", "c")]
        await scene.update(a, in_flight=flight(1, 2))
        await scene.update(b, in_flight=flight(3))
        await scene.erase(2)
        states = {
            lane.consumer: lane.in_flight and lane.in_flight.state
            for lane in await scene.store.list_cursors(session="s")
        }
        assert states == {"a": "voided", "b": "sent", "c": None}

    @promise
    async def test_erasing_voids_the_exchange_that_an_erased_message_belongs_to(self, scene: Scene) -> None:
        await scene.hear("kept", wake="")
        await scene.commit(own(Began(type="turn", takes=(1,))), own(Ended()))
        await scene.hear("secret", wake="")
        await scene.commit(own(Began(type="turn", takes=(4,))), own(Ended()))
        for reader in ("a", "b"):
            await scene.wake(reader)
        a, b = [await scene.claim(reader) for reader in ("a", "b")]
        await scene.update(a, in_flight=flight(3))
        await scene.update(b, in_flight=flight(6))
        await scene.erase(4)
        assert (await scene.lane("a")).in_flight == flight(3)
        assert (await scene.lane("b")).in_flight == flight(6, state="voided")

    @promise
    async def test_a_holder_who_does_not_know_cannot_bring_a_void_flight_back(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.update(claim, in_flight=flight(1))
        await scene.erase(1)
        await scene.update(claim, in_flight=flight(1, state="in_doubt"))
        assert (await scene.lane()).in_flight == flight(1, state="voided")
        await scene.update(claim, in_flight=flight(1, digest="without it", state="unsent"))
        assert (await scene.lane()).in_flight == flight(1, digest="without it", state="unsent")
        await scene.update(claim, clear_in_flight=True)
        assert (await scene.lane()).in_flight is None

    # -- what they leave

    @promise
    async def test_receipts_are_kept_per_part_and_reader(self, scene: Scene) -> None:
        await scene.hear()
        await scene.hear()

        def receipt(seq: int, part: int, reader: str = "platform", remote: str = "r") -> Receipt:
            return Receipt(consumer=reader, session="s", seq=seq, part=part, key="k", remote=remote, at=7.0)

        await scene.commit(at=7.0, receipts=(receipt(1, 0), receipt(1, 1), receipt(2, 0), receipt(1, 0, "other")))
        await scene.commit(at=7.0, receipts=(receipt(1, 0, remote="edited"),))
        found = await scene.store.list_receipts("s", seq=1, consumer="platform")
        assert found == [receipt(1, 0, remote="edited"), receipt(1, 1)]
        assert len(await scene.store.list_receipts("s")) == 4
        assert await scene.store.list_receipts("t") == []

    @promise
    async def test_what_may_have_arrived_twice_is_counted(self, scene: Scene) -> None:
        await scene.hear()
        assert await scene.store.count_receipts_in_doubt() == 0
        sure = Receipt(consumer="platform", session="s", seq=1, key="k", remote="r")
        await scene.commit(
            receipts=(sure, Receipt(consumer="platform", session="s", seq=1, part=1, key="l", in_doubt=True))
        )
        assert await scene.store.count_receipts_in_doubt() == 1

    @promise
    async def test_what_was_handed_over_is_counted_by_reader(self, scene: Scene) -> None:
        await scene.hear()
        named = Receipt(consumer="memory:a", session="s", seq=1, key="k", remote="r")
        plain = Receipt(consumer="memory:a", session="s", seq=2, key="l")
        await scene.commit(receipts=(named, plain, Receipt(consumer="memory:b", session="s", seq=1, key="k")))
        (found,) = await scene.store.count_receipts(["memory:a", "memory:none"])
        assert (found.consumer, found.items, found.named) == ("memory:a", 2, 1)
        assert found.agent == (await scene.store.get_session("s")).agent
        assert await scene.store.count_receipts([]) == []

    @promise
    async def test_a_dead_letter_is_listed_replayed_and_settled(self, scene: Scene) -> None:
        await scene.hear(wake="platform")
        claim = await scene.claim("platform")
        letter = DeadLetter(consumer="platform", session="s", seq=1, key="k", reason="no", in_doubt=True)
        await scene.commit(step=Step.DELIVERY_DONE, claim=claim, at=5.0, dead_letters=(letter,), cursor=idle(1))
        (parked,) = await scene.store.list_dead_letters(session="s", consumer="platform")
        assert (parked.seq, parked.key, parked.reason, parked.in_doubt) == (1, "k", "no", True)
        assert (parked.at, parked.state) == (5.0, "dead")
        assert await scene.store.get_next_due(at=9.0) is None
        assert await scene.store.replay_dead_letters([parked.id, 999], at=9.0) == 1
        assert await scene.store.replay_dead_letters([parked.id], at=9.0) == 0
        assert await scene.store.list_dead_letters() == []
        (replaying,) = await scene.store.list_dead_letters(state="replaying")
        assert (replaying.id, replaying.state) == (parked.id, "replaying")
        claim = await scene.claim("platform", at=9.0)
        await scene.commit(step=Step.DELIVERY_DONE, claim=claim, at=9.0, replayed=(parked.id,), cursor=idle(1))
        assert [one.state for one in await scene.store.list_dead_letters(state="")] == ["replayed"]
        assert await scene.store.get_next_due(at=9.0) is None

    @promise
    async def test_no_reason_repeats_what_was_erased(self, scene: Scene) -> None:
        """Whoever refuses something may quote it, also where it was handed over as part of an exchange."""
        await scene.hear("secret", wake="platform")
        await scene.commit(own(Began(type="turn", takes=(1,))), own(Ended()))
        await scene.hear("kept", wake="")
        claim = await scene.claim("platform")
        letters = [
            DeadLetter(consumer="platform", session="s", seq=seq, reason="'secret' is no text") for seq in (1, 3, 4)
        ]
        await scene.commit(claim=claim, dead_letters=tuple(letters))
        await scene.update(claim, attempts=1, error="'secret' is no text", wait=RetryDelay(seconds=9.0), release=True)
        await scene.erase(1)
        found = {one.seq: one for one in await scene.store.list_dead_letters(state="")}
        assert (found[1].state, found[3].state, found[4].state) == ("dropped", "dead", "dead")
        assert not any("secret" in found[seq].reason for seq in (1, 3))
        assert found[4].reason == letters[2].reason
        assert "secret" not in (await scene.lane("platform")).error

    @promise
    async def test_a_letter_can_be_put_straight_in_front_of_its_lane(self, scene: Scene) -> None:
        await scene.hear(wake="platform")
        claim = await scene.claim("platform")
        await scene.commit(step=Step.DELIVERY_DONE, claim=claim, at=5.0, cursor=idle(1))
        letter = DeadLetter(consumer="platform", session="s", seq=1, key="k", in_doubt=True, state="replaying")
        await scene.commit(step=Step.REPLAY, at=6.0, dead_letters=(letter,), wakeups=(Wakeup(consumer="platform"),))
        assert await scene.store.list_dead_letters() == []
        assert [one.key for one in await scene.store.list_dead_letters(state="replaying")] == ["k"]
        assert await scene.claimed(at=6.0) == ["platform"]

    @promise
    async def test_a_lane_does_not_go_idle_over_a_letter_that_must_go_again(self, scene: Scene) -> None:
        await scene.hear(wake="platform")
        claim = await scene.claim("platform")
        await scene.commit(claim=claim, dead_letters=(DeadLetter(consumer="platform", session="s", seq=1),))
        (parked,) = await scene.store.list_dead_letters()
        await scene.store.replay_dead_letters([parked.id], at=2.0)
        await scene.update(claim, at=3.0, idle_at=1, release=True)
        assert await scene.claimed(at=3.0) == ["platform"]

    @promise
    async def test_lanes_are_listed_by_reader_and_session(self, scene: Scene) -> None:
        await scene.open("t")
        for session in "st":
            await scene.commit(heard(), session=session, wakeups=(Wakeup(consumer="turn"), Wakeup(consumer="platform")))
        store = scene.store
        assert [(one.session, one.consumer) for one in await store.list_cursors(consumer="turn")] == [
            ("s", "turn"),
            ("t", "turn"),
        ]
        assert [one.consumer for one in await store.list_cursors(session="t")] == ["platform", "turn"]
        assert len(await store.list_cursors(waiting=True)) == 4
