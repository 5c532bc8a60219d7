"""What every store promises about lanes: when they are due, who holds one, and what becomes of its flight."""

from __future__ import annotations

import pytest

from everhold.core.entries import Began, Draft, Ended, Noted, Place, Said
from everhold.errors import LeaseLost, Misuse
from everhold.ports.store import Flight, Item, LaneUpdate, Parked, Receipt, Step, Wait, Wake
from everhold.testing.contracts.scene import Scene, heard, own, promise

YEARS = 10 * 365 * 86_400.0


def flight(*seqs: int, digest: str = "d", state: str = "flying") -> Flight:
    items = tuple(Item(seq=seq, key=f"k{seq}") for seq in seqs)
    return Flight(items=items, upto=max(seqs), digest=digest, state=state)  # type: ignore[arg-type]


def idle(at: int) -> LaneUpdate:
    return LaneUpdate(idle_at=at, release=True)


class LanesContract:
    # -- waking

    @promise
    async def test_a_lane_begins_reading_at_the_entry_that_woke_it_first(self, scene: Scene) -> None:
        await scene.hear(wake="")
        await scene.hear(wake="")
        await scene.hear(wake="mind", at=3.0)
        lane = await scene.lane()
        assert (lane.position, lane.since, lane.wait, lane.firm) == (2, 3.0, 0.0, False)
        await scene.hear(wake="mind", at=4.0)
        assert (await scene.lane()).position == 2

    @promise
    async def test_a_new_lane_can_be_told_where_to_begin(self, scene: Scene) -> None:
        await scene.hear(wake="")
        await scene.hear(wake="")
        await scene.commit(wakes=(Wake(reader="memory", start=0), Wake(reader="index", start=1)))
        assert [(await scene.lane(reader)).position for reader in ("memory", "index")] == [0, 1]
        await scene.commit(wakes=(Wake(reader="memory", start=2),))
        assert (await scene.lane("memory")).position == 0

    @promise
    async def test_a_lane_is_due_when_its_wait_is_over(self, scene: Scene) -> None:
        await scene.wake("fold", 30.0, at=100.0)
        assert await scene.claimed(at=129.0) == []
        assert await scene.store.next_due(at=110.0) == pytest.approx(20.0)
        assert await scene.store.next_due(at=140.0) == 0.0
        assert await scene.claimed(at=130.0) == ["fold"]

    @promise
    async def test_an_earlier_wake_wins_and_a_later_one_changes_nothing(self, scene: Scene) -> None:
        await scene.wake("fold", 30.0, at=100.0)
        await scene.wake("fold", 60.0, at=100.0)
        assert (await scene.lane("fold")).wait == 30.0
        await scene.wake("fold", 5.0, at=101.0)
        lane = await scene.lane("fold")
        assert (lane.since, lane.wait) == (101.0, 5.0)

    @promise
    async def test_a_firm_wait_is_not_shortened_by_a_wake(self, scene: Scene) -> None:
        await scene.wake("voice", 30.0, at=100.0, firm=True)
        await scene.wake("voice", at=101.0)
        assert await scene.claimed(at=129.0) == []
        assert await scene.claimed(at=130.0) == ["voice"]

    @promise
    async def test_a_lane_that_waits_after_a_failure_is_not_hurried(self, scene: Scene) -> None:
        await scene.wake("voice", at=100.0)
        claim = await scene.claim("voice", at=100.0)
        await scene.update(claim, at=100.0, attempts=1, error="down", wait=Wait(seconds=30.0), release=True)
        await scene.wake("voice", at=101.0)
        assert await scene.claimed(at=129.0) == []
        claim = await scene.claim("voice", at=130.0)
        assert (claim.lane.attempts, claim.lane.error) == (1, "down")

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
        await scene.commit(wakes=(Wake(reader="mind"),), at=2.0)
        await scene.claim("mind", owner="gone", at=2.0)
        await scene.store.seize(owner="me", at=2.0)
        await scene.commit(wakes=(Wake(reader="mind"),), at=2.0, session="t")
        assert (await scene.claim("mind", owner="me", at=2.0)).session == "s"

    @promise
    async def test_readers_can_be_skipped_or_singled_out(self, scene: Scene) -> None:
        for reader in ("memory:a", "memory:b", "mind", "voice"):
            await scene.wake(reader)
        assert await scene.claimed(only=("nobody",)) == []
        assert await scene.claimed(skip=("memory:*", "mind")) == ["voice"]
        assert await scene.claimed(only=("memory:*",), skip=("memory:a",)) == ["memory:b"]
        assert await scene.claimed(only=("mind", "memory")) == ["mind"]
        assert await scene.store.next_due(at=1.0, skip=("memory:*",)) is None
        assert await scene.claimed() == ["memory:a"]

    @promise
    async def test_a_claim_says_whose_lane_it_is(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim(owner="me")
        assert (claim.session, claim.reader, claim.agent, claim.taken_over) == ("s", "mind", "main", False)
        assert (claim.lane.owner, claim.fence) == ("me", 1)
        assert await scene.lane() == claim.lane

    @promise
    async def test_a_lane_can_be_taken_with_its_waking(self, scene: Scene) -> None:
        taking = Wake(reader="mind", owner="me", lease=60.0)
        (claim,) = (await scene.commit(at=5.0, wakes=(taking,))).claims
        assert (claim.session, claim.reader, claim.agent, claim.taken_over) == ("s", "mind", "main", False)
        assert (claim.lane.owner, claim.fence) == ("me", 1)
        assert await scene.lane() == claim.lane
        assert await scene.claimed(at=64.0, owner="you") == []
        assert await scene.claimed(at=65.0, owner="you") == ["mind"]

    @promise
    async def test_a_waking_takes_no_lane_that_is_held_or_not_yet_due(self, scene: Scene) -> None:
        await scene.wake("voice", 30.0, at=1.0, firm=True)
        await scene.wake("mind", at=1.0)
        held = await scene.claim("mind", at=1.0, owner="you")
        done = await scene.commit(
            at=2.0,
            wakes=(
                *(Wake(reader=reader, owner="me", lease=60.0) for reader in ("mind", "voice")),
                Wake(reader="fold", wait=Wait(seconds=9.0), owner="me", lease=60.0),
            ),
        )
        assert done.claims == ()
        assert (await scene.lane("mind")).owner == "you"
        await scene.update(held, at=3.0, release=True, idle_at=99)
        assert await scene.claimed(at=2.0, owner="me") == []

    @promise
    async def test_taking_a_lane_with_its_waking_moves_the_fence_of_what_runs_there(self, scene: Scene) -> None:
        seq = await scene.hear()
        claim = await scene.claim()
        op = await scene.begin(seq, claim=claim)
        await scene.update(claim, release=True, idle_at=99)
        (again,) = (await scene.commit(wakes=(Wake(reader="mind", owner="me", lease=60.0),))).claims
        assert again.fence == 2
        with pytest.raises(LeaseLost):
            await scene.end(op, claim=claim)
        await scene.end(op, claim=again)

    @promise
    async def test_a_held_lane_is_nobody_elses(self, scene: Scene) -> None:
        await scene.hear()
        await scene.claim(at=1.0, owner="me", lease=60.0)
        assert await scene.claimed(at=60.9, owner="you") == []
        assert await scene.store.next_due(at=2.0) is None

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
        await scene.wake("voice")
        mine = await scene.claim(at=1.0, owner="me", lease=60.0)
        yours = await scene.claim("voice", at=1.0, owner="you", lease=60.0)
        assert await scene.store.renew([mine, mine, yours], owner="me", at=50.0, lease=60.0) == 1
        assert await scene.claimed(at=109.0, owner="third") == ["voice"]
        assert await scene.claimed(at=110.0, owner="third") == ["mind"]
        assert await scene.store.renew([mine, yours], owner="me", at=111.0, lease=60.0) == 0

    @promise
    async def test_who_is_alone_ends_the_leases_of_the_dead(self, scene: Scene) -> None:
        await scene.hear()
        await scene.wake("voice")
        await scene.wake("idle")
        dead = await scene.claim(at=1.0, owner="dead", lease=3600.0)
        await scene.claim("voice", at=1.0, owner="me", lease=3600.0)
        assert await scene.store.seize(owner="me", at=2.0) == 1
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
        assert await scene.claimed(at=4.0, owner="you") == ["mind"]

    @promise
    async def test_a_firm_wait_ends_for_whoever_asks_somebody_else(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        wait = Wait(seconds=60.0, firm=True, whom="a")
        await scene.update(claim, at=2.0, attempts=3, error="a: busy", wait=wait, release=True)
        assert (await scene.lane()).whom == "a"
        for wake in (Wake(reader="mind"), Wake(reader="mind", whom="a")):
            await scene.commit(at=3.0, wakes=(wake,))
            assert await scene.claimed(at=3.0) == [], "what somebody asked for is never shortened for them"
        await scene.commit(at=4.0, wakes=(Wake(reader="mind", whom="b"), Wake(reader="fold", whom="b")))
        lane = await scene.lane()
        assert (lane.attempts, lane.error, lane.firm, lane.whom) == (0, "", False, "")
        assert await scene.claimed(at=4.0) == ["mind"]
        assert await scene.store.lane("fold", "s") is None, "nothing else is woken by it"

    @promise
    async def test_a_wait_that_is_over_is_for_nobody(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.update(claim, at=2.0, wait=Wait(seconds=1.0, whom="a"), release=True)
        claim = await scene.claim(at=4.0)
        await scene.update(claim, at=4.0, idle_at=9, release=True)
        assert (await scene.lane()).whom == ""

    # -- clocks

    @promise
    async def test_a_clock_that_goes_back_freezes_nothing(self, scene: Scene) -> None:
        for back in (3600.0, YEARS):
            await scene.wake("fold", 30.0, at=YEARS * 2)
            assert await scene.store.next_due(at=YEARS * 2 - back) == 0.0
            claim = await scene.claim("fold", at=YEARS * 2 - back)
            await scene.update(claim, at=YEARS * 2 - back, idle_at=9, release=True)

    @promise
    async def test_a_clock_that_goes_back_does_not_shorten_a_firm_wait(self, scene: Scene) -> None:
        for now, back in ((YEARS * 4, 3600.0), (YEARS * 3, YEARS)):
            await scene.wake("voice", 30.0, at=now, firm=True)
            assert await scene.store.next_due(at=now - back) == 30.0
            assert await scene.claimed(at=now - back) == []
            assert await scene.claimed(at=now - back + 29.0) == []
            claim = await scene.claim("voice", at=now - back + 30.0)
            await scene.update(claim, at=now - back + 30.0, idle_at=9, release=True)

    @promise
    async def test_a_clock_that_jumps_ahead_makes_waits_due_and_loses_nothing(self, scene: Scene) -> None:
        await scene.wake("fold", 30.0, at=1.0)
        await scene.wake("voice", 30.0, at=1.0, firm=True)
        assert await scene.claimed(at=YEARS) == ["fold", "voice"]

    @promise
    async def test_a_clock_that_stands_still_claims_each_lane_once(self, scene: Scene) -> None:
        await scene.hear(at=5.0)
        claim = await scene.claim(at=5.0)
        assert await scene.claimed(at=5.0) == []
        await scene.update(claim, at=5.0, idle_at=1, release=True)
        assert await scene.claimed(at=5.0) == []
        await scene.hear(at=5.0)
        assert await scene.claimed(at=5.0) == ["mind"]

    @promise
    async def test_a_clock_that_is_set_takes_no_lane_from_those_who_are_at_work_here(self, scene: Scene) -> None:
        await scene.hear(at=1.0)
        mine = await scene.claim(at=YEARS, owner="me", lease=60.0)
        for at in (YEARS + 3600.0, YEARS - 10.0, 2.0):
            assert await scene.claimed(at=at, owner="me", skip=(mine.name,)) == []
        await scene.wake("voice", at=YEARS)
        later = YEARS + 3600.0
        assert await scene.claimed(at=later, owner="me", skip=(mine.name,), limit=1) == ["voice"], "it takes no place"
        assert await scene.claimed(at=later, owner="you", skip=(mine.name,)) == ["mind"], "others cannot know"

    @promise
    async def test_whoever_has_let_go_of_a_lane_may_take_it_again_while_they_wind_up(self, scene: Scene) -> None:
        await scene.hear()
        mine = await scene.claim(owner="me")
        await scene.update(mine, release=True)
        assert await scene.claimed(owner="me", skip=(mine.name,)) == ["mind"]

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
        assert await scene.store.next_due(at=99.0) is None
        assert await scene.claimed(at=99.0) == []
        assert await scene.store.lanes(waiting=True) == []
        await scene.hear(at=100.0)
        assert await scene.claimed(at=100.0) == ["mind"]

    @promise
    async def test_a_lane_does_not_go_idle_over_what_it_has_not_seen(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.hear(at=2.0)
        await scene.update(claim, at=3.0, idle_at=1, release=True)
        assert await scene.claimed(at=3.0) == ["mind"]

    @promise
    async def test_a_lane_that_holds_back_is_due_later_or_as_soon_as_there_is_more(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim(at=1.0)
        await scene.update(claim, at=1.0, idle_at=1, wait=Wait(seconds=60.0), release=True)
        assert await scene.store.next_due(at=2.0) == 59.0
        claim = await scene.claim(at=61.0)
        await scene.update(claim, at=61.0, idle_at=1, wait=Wait(seconds=60.0), release=True)
        await scene.hear(at=62.0)
        claim = await scene.claim(at=62.0)
        await scene.hear(at=63.0)
        await scene.update(claim, at=64.0, idle_at=2, wait=Wait(seconds=60.0), release=True)
        assert await scene.claimed(at=64.0) == ["mind"]

    @promise
    async def test_what_is_held_back_can_be_made_due_and_nothing_else_with_it(self, scene: Scene) -> None:
        for reader in ("memory:a", "memory:b", "voice"):
            await scene.wake(reader, 60.0, at=1.0)
        await scene.wake("memory:firm", 60.0, at=1.0, firm=True)
        await scene.wake("memory:failed", at=1.0)
        failed = await scene.claim("memory:failed", at=1.0)
        await scene.update(failed, at=1.0, attempts=1, wait=Wait(seconds=60.0), release=True)
        assert await scene.store.hasten(at=2.0, held=("memory:*",)) == 2
        assert await scene.claimed(at=2.0) == ["memory:a", "memory:b"]
        assert await scene.store.hasten(at=2.0) == 1
        assert await scene.claimed(at=2.0) == ["memory:failed"]

    @promise
    async def test_a_backlog_counts_what_memory_has_yet_to_get_and_nothing_else(self, scene: Scene) -> None:
        await scene.hear(at=1.0)
        claim = await scene.claim(at=1.0)
        turn = await scene.begin(1, claim=claim)
        await scene.end(turn, claim=claim, at=5.0, wakes=(Wake(reader="memory:a", start=0), Wake(reader="voice")))
        await scene.commit(
            Draft(body=Noted(text="n"), author="agent:main"),
            at=6.0,
            wakes=(Wake(reader="memory:a"), Wake(reader="memory:b")),
        )
        found = {it.reader: it for it in await scene.store.backlog("memory:")}
        assert {reader: (it.agent, it.lanes, it.items, it.oldest) for reader, it in found.items()} == {
            "memory:a": ("main", 1, 2, 5.0),
            "memory:b": ("main", 1, 1, 6.0),
        }
        held = await scene.claim("memory:a", at=7.0)
        wait = Wait(seconds=60.0)
        await scene.update(held, at=7.0, position=turn + 1, attempts=4, error="down", wait=wait, release=True)
        first = (await scene.store.backlog("memory:"))[0]
        assert (first.items, first.attempts, first.error, first.due) == (1, 4, "down", 67.0)
        done = await scene.claim("memory:b", at=7.0)
        await scene.update(done, at=7.0, position=4, idle_at=4, release=True)
        assert [it.reader for it in await scene.store.backlog("memory:")] == ["memory:a"]

    @promise
    async def test_a_lane_does_not_wake_itself_with_what_it_appends(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        op = await scene.begin(1, claim=claim)
        from_turn = (Said(text="x", to=Place(platform="test")), Ended())
        drafts = [Draft(body=body, author="agent:main", op=op) for body in from_turn]
        await scene.commit(*drafts, step=Step.END, op=op, claim=claim, wakes=(Wake(reader="voice"),), lane=idle(2))
        assert await scene.claimed(at=9.0) == ["voice"]

    @promise
    async def test_going_idle_elsewhere_looks_at_the_lanes_own_session(self, scene: Scene) -> None:
        await scene.open("t")
        await scene.hear(wake="tie")
        claim = await scene.claim("tie")
        await scene.commit(Noted(text="there"), session="t", claim=claim, lane=idle(1))
        assert (await scene.lane("tie")).since is None
        await scene.hear(wake="tie")
        claim = await scene.claim("tie")
        await scene.hear(wake="")
        await scene.commit(Noted(text="there"), session="t", claim=claim, lane=idle(2))
        assert (await scene.lane("tie")).since is not None

    # -- updating

    @promise
    async def test_only_its_holder_says_what_becomes_of_a_lane(self, scene: Scene) -> None:
        with pytest.raises(Misuse):
            await scene.commit(lane=idle(0))

    @promise
    async def test_an_update_leaves_what_it_does_not_name(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.update(claim, position=1, attempts=3, error="e", flight=flight(1))
        await scene.update(claim, wait=Wait(seconds=5.0, firm=True), at=9.0)
        lane = await scene.lane()
        assert (lane.position, lane.attempts, lane.error, lane.flight) == (1, 3, "e", flight(1))
        assert (lane.since, lane.wait, lane.firm, lane.owner) == (9.0, 5.0, True, "me")
        await scene.update(claim, landed=True, attempts=0, error="")
        lane = await scene.lane()
        assert (lane.flight, lane.attempts, lane.error, lane.position) == (None, 0, "", 1)

    @promise
    async def test_a_flight_survives_a_take_over_as_it_was(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim(at=1.0, owner="old", lease=1.0)
        await scene.update(claim, flight=flight(1, state="doubt"))
        assert (await scene.claim(at=9.0, owner="new")).lane.flight == flight(1, state="doubt")

    @promise
    async def test_a_repeated_key_still_lets_its_lane_move_on(self, scene: Scene) -> None:
        await scene.open("t")
        tied = Draft(body=Noted(text="once"), author="system", dedup="tie:s:1")
        await scene.commit(tied, session="t")
        await scene.hear(wake="tie")
        claim = await scene.claim("tie")
        done = await scene.commit(tied, session="t", claim=claim, lane=idle(1))
        assert done.duplicate
        lane = await scene.lane("tie")
        assert (lane.since, lane.owner) == (None, "")

    # -- erasing

    @promise
    async def test_erasing_voids_the_flights_that_carry_it(self, scene: Scene) -> None:
        for _ in range(3):
            await scene.hear(wake="")
        for reader in ("a", "b", "c"):
            await scene.wake(reader)
        a, b, _ = [await scene.claim(reader) for reader in ("a", "b", "c")]
        await scene.update(a, flight=flight(1, 2))
        await scene.update(b, flight=flight(3))
        await scene.erase(2)
        states = {lane.reader: lane.flight and lane.flight.state for lane in await scene.store.lanes(session="s")}
        assert states == {"a": "void", "b": "flying", "c": None}

    @promise
    async def test_erasing_voids_the_exchange_that_an_erased_message_belongs_to(self, scene: Scene) -> None:
        await scene.hear("kept", wake="")
        await scene.commit(own(Began(what="turn", takes=(1,))), own(Ended()))
        await scene.hear("secret", wake="")
        await scene.commit(own(Began(what="turn", takes=(4,))), own(Ended()))
        for reader in ("a", "b"):
            await scene.wake(reader)
        a, b = [await scene.claim(reader) for reader in ("a", "b")]
        await scene.update(a, flight=flight(3))
        await scene.update(b, flight=flight(6))
        await scene.erase(4)
        assert (await scene.lane("a")).flight == flight(3)
        assert (await scene.lane("b")).flight == flight(6, state="void")

    @promise
    async def test_a_holder_who_does_not_know_cannot_bring_a_void_flight_back(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim()
        await scene.update(claim, flight=flight(1))
        await scene.erase(1)
        await scene.update(claim, flight=flight(1, state="doubt"))
        assert (await scene.lane()).flight == flight(1, state="void")
        await scene.update(claim, flight=flight(1, digest="without it", state="unsent"))
        assert (await scene.lane()).flight == flight(1, digest="without it", state="unsent")
        await scene.update(claim, landed=True)
        assert (await scene.lane()).flight is None

    # -- what they leave

    @promise
    async def test_receipts_are_kept_per_part_and_reader(self, scene: Scene) -> None:
        await scene.hear()
        await scene.hear()

        def receipt(seq: int, part: int, reader: str = "voice", remote: str = "r") -> Receipt:
            return Receipt(reader=reader, session="s", seq=seq, part=part, key="k", remote=remote, at=7.0)

        await scene.commit(at=7.0, receipts=(receipt(1, 0), receipt(1, 1), receipt(2, 0), receipt(1, 0, "other")))
        await scene.commit(at=7.0, receipts=(receipt(1, 0, remote="edited"),))
        found = await scene.store.receipts("s", seq=1, reader="voice")
        assert found == [receipt(1, 0, remote="edited"), receipt(1, 1)]
        assert len(await scene.store.receipts("s")) == 4
        assert await scene.store.receipts("t") == []

    @promise
    async def test_what_may_have_arrived_twice_is_counted(self, scene: Scene) -> None:
        await scene.hear()
        assert await scene.store.gambled() == 0
        sure = Receipt(reader="voice", session="s", seq=1, key="k", remote="r")
        await scene.commit(receipts=(sure, Receipt(reader="voice", session="s", seq=1, part=1, key="l", doubtful=True)))
        assert await scene.store.gambled() == 1

    @promise
    async def test_what_was_handed_over_is_counted_by_reader(self, scene: Scene) -> None:
        await scene.hear()
        named = Receipt(reader="memory:a", session="s", seq=1, key="k", remote="r")
        plain = Receipt(reader="memory:a", session="s", seq=2, key="l")
        await scene.commit(receipts=(named, plain, Receipt(reader="memory:b", session="s", seq=1, key="k")))
        (found,) = await scene.store.handed(["memory:a", "memory:none"])
        assert (found.reader, found.items, found.named) == ("memory:a", 2, 1)
        assert found.agent == (await scene.store.session("s")).agent
        assert await scene.store.handed([]) == []

    @promise
    async def test_a_dead_letter_is_listed_replayed_and_settled(self, scene: Scene) -> None:
        await scene.hear(wake="voice")
        claim = await scene.claim("voice")
        letter = Parked(reader="voice", session="s", seq=1, key="k", reason="no", doubtful=True)
        await scene.commit(step=Step.LANDED, claim=claim, at=5.0, parks=(letter,), lane=idle(1))
        (parked,) = await scene.store.parked(session="s", reader="voice")
        assert (parked.seq, parked.key, parked.reason, parked.doubtful) == (1, "k", "no", True)
        assert (parked.at, parked.state) == (5.0, "parked")
        assert await scene.store.next_due(at=9.0) is None
        assert await scene.store.replay([parked.id, 999], at=9.0) == 1
        assert await scene.store.replay([parked.id], at=9.0) == 0
        assert await scene.store.parked() == []
        (replaying,) = await scene.store.parked(state="replaying")
        assert (replaying.id, replaying.state) == (parked.id, "replaying")
        claim = await scene.claim("voice", at=9.0)
        await scene.commit(step=Step.LANDED, claim=claim, at=9.0, unparks=(parked.id,), lane=idle(1))
        assert [one.state for one in await scene.store.parked(state="")] == ["replayed"]
        assert await scene.store.next_due(at=9.0) is None

    @promise
    async def test_no_reason_repeats_what_was_erased(self, scene: Scene) -> None:
        """Whoever refuses something may quote it, also where it was handed over as part of an exchange."""
        await scene.hear("secret", wake="voice")
        await scene.commit(own(Began(what="turn", takes=(1,))), own(Ended()))
        await scene.hear("kept", wake="")
        claim = await scene.claim("voice")
        letters = [Parked(reader="voice", session="s", seq=seq, reason="'secret' is no text") for seq in (1, 3, 4)]
        await scene.commit(claim=claim, parks=tuple(letters))
        await scene.update(claim, attempts=1, error="'secret' is no text", wait=Wait(seconds=9.0), release=True)
        await scene.erase(1)
        found = {one.seq: one for one in await scene.store.parked(state="")}
        assert (found[1].state, found[3].state, found[4].state) == ("dropped", "parked", "parked")
        assert not any("secret" in found[seq].reason for seq in (1, 3))
        assert found[4].reason == letters[2].reason
        assert "secret" not in (await scene.lane("voice")).error

    @promise
    async def test_a_letter_can_be_put_straight_in_front_of_its_lane(self, scene: Scene) -> None:
        await scene.hear(wake="voice")
        claim = await scene.claim("voice")
        await scene.commit(step=Step.LANDED, claim=claim, at=5.0, lane=idle(1))
        letter = Parked(reader="voice", session="s", seq=1, key="k", doubtful=True, state="replaying")
        await scene.commit(step=Step.REPLAY, at=6.0, parks=(letter,), wakes=(Wake(reader="voice"),))
        assert await scene.store.parked() == []
        assert [one.key for one in await scene.store.parked(state="replaying")] == ["k"]
        assert await scene.claimed(at=6.0) == ["voice"]

    @promise
    async def test_a_lane_does_not_go_idle_over_a_letter_that_must_go_again(self, scene: Scene) -> None:
        await scene.hear(wake="voice")
        claim = await scene.claim("voice")
        await scene.commit(claim=claim, parks=(Parked(reader="voice", session="s", seq=1),))
        (parked,) = await scene.store.parked()
        await scene.store.replay([parked.id], at=2.0)
        await scene.update(claim, at=3.0, idle_at=1, release=True)
        assert await scene.claimed(at=3.0) == ["voice"]

    @promise
    async def test_lanes_are_listed_by_reader_and_session(self, scene: Scene) -> None:
        await scene.open("t")
        for session in "st":
            await scene.commit(heard(), session=session, wakes=(Wake(reader="mind"), Wake(reader="voice")))
        store = scene.store
        assert [(one.session, one.reader) for one in await store.lanes(reader="mind")] == [("s", "mind"), ("t", "mind")]
        assert [one.reader for one in await store.lanes(session="t")] == ["mind", "voice"]
        assert len(await store.lanes(waiting=True)) == 4
