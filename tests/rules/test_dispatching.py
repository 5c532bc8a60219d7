"""Due lanes are looked for when there may be some, and then at once; never only to find nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from everhold.app import SystemClock
from everhold.core.access import Admission
from everhold.core.entries import Heard, Place
from everhold.errors import Overloaded, StoreBusy, StoreError, StoreFull, Transient
from everhold.flow.accept import Accept
from everhold.flow.gates import Bells, Gates
from everhold.ports.platform import Incoming
from everhold.ports.store import Change, Claim, Committed, Step, Wakeup
from everhold.stores.sqlite import SqliteStore
from everhold.testing.dice import Dice
from everhold.testing.house import Diary, House

from .conftest import HeldModel, Trouble


def looks(house: House) -> list[dict[str, Any]]:
    """What is asked for due lanes from here on by whoever hands out work; nobody looks without being told to."""
    assert house.process is not None
    process, asked = house.process, list[dict[str, Any]]()
    process.supervisor.poll = 1e6
    house.say("wake up")
    real = process.disk.get_next_due

    async def next_due(**options: Any) -> float | None:
        if "skip" in options:
            asked.append(options)
        return await real(**options)

    process.disk.get_next_due = next_due  # type: ignore[method-assign]
    return asked


def test_a_turn_that_leaves_nothing_behind_has_nobody_look(house: House) -> None:
    asked = looks(house)
    house.say("hello")
    house.tick(60.0)
    assert len(house.heard_back()) == 2
    assert asked == []


def test_a_turn_without_tools_is_five_commits_and_no_claim(house: House) -> None:
    """What docs/ARCHITECTURE.md says: `accept` and `end` claim what they make due."""
    house.say("wake up")
    assert house.process is not None
    disk, steps = house.process.disk, list[str]()
    commit, claim = disk.commit, disk.claim_cursors

    async def counted_commit(change: Change) -> Committed:
        steps.append(change.step)
        return await commit(change)

    async def counted_claim(*given: Any, **options: Any) -> Any:
        steps.append("claim")
        return await claim(*given, **options)

    disk.commit, disk.claim_cursors = counted_commit, counted_claim  # type: ignore[method-assign]
    house.say("hello")
    house.tick(5.0)
    assert steps == [Step.ACCEPT, Step.BEGIN, Step.END, Step.DELIVERY_SEND, Step.DELIVERY_DONE]


def test_what_came_during_a_turn_is_taken_up_at_its_end(house: House) -> None:
    house.furniture.model = held = HeldModel()
    held.free = True
    looks(house)
    held.free = False
    house.say("one", rest=False)
    house.tick()
    house.say("two", rest=False)
    house.tick()
    held.free = True
    house.tick(5.0)
    assert len(house.heard_back()) == 3


def test_whoever_waits_for_a_place_gets_it_when_one_is_free(house: House) -> None:
    house.furniture.model = held = HeldModel()
    held.free = True
    looks(house)
    assert house.process is not None
    house.process.supervisor.most_per_reader = 1
    held.free = False
    for chat in ("a", "b", "c"):
        house.say("hello", chat=chat, rest=False)
    house.tick(1.0)
    assert len(held.asked) == 2
    held.free = True
    house.tick(5.0)
    assert len(house.heard_back()) == 4


def crowd(house: House, *, chats: int = 5) -> None:
    """So many speak at once, before anybody has begun to answer."""

    async def all_at_once() -> None:
        assert house.process is not None
        knocking = (house.process.accept(house.message("hello", chat=f"chat {n}")) for n in range(chats))
        await asyncio.gather(*knocking)

    house.run(all_at_once())


def test_a_crowd_at_the_door_gets_no_more_hands_than_there_are(house: House) -> None:
    house.furniture.model = held = HeldModel()
    assert house.process is not None
    supervisor = house.process.supervisor
    supervisor.most_per_reader = 2
    house.tick()
    crowd(house)
    house.tick(2 * supervisor.poll)
    assert len(held.asked) == 2
    held.free = True
    house.rest(5.0)
    assert house.heard_back() == ["at last"] * 5
    assert not +supervisor.promised
    house.sound()


def test_a_crowd_that_waited_for_a_start_leaves_room_for_others(house: House) -> None:
    house.furniture.model = held = HeldModel()
    crowd(house)
    house.tick()
    asked = len(held.asked)
    house.crash()
    supervisor = house.start().supervisor
    supervisor.most, supervisor.most_per_reader = 4, 2
    house.tick(2 * supervisor.poll)
    assert len(held.asked) == asked + 2
    house.say("/whoami", chat="another", rest=False)
    house.tick(2 * supervisor.poll)
    assert len(house.heard_back()) == 1, "nobody who waits for a model keeps others from what they can have at once"
    held.free = True
    house.rest(5.0)
    assert house.heard_back()[1:] == ["at last"] * 5
    house.sound()


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
def test_a_hand_that_was_offered_in_vain_is_free_for_others(house: House, error: StoreError) -> None:
    assert house.process is not None
    supervisor = house.process.supervisor
    supervisor.most_per_reader = 1
    house.tick()
    trouble = Trouble(house, error).with_commits(Step.ACCEPT)
    for _ in range(3):
        with pytest.raises(type(error)):
            house.say("hello", rest=False)
    trouble.over = True
    house.say("hello", id="again")
    house.say("hello", id="again")
    supervisor.poll = 1e6
    house.say("and on?", rest=False)
    house.tick(1.0)
    assert house.heard_back() == ["You said: hello", "You said: and on?"]
    assert not +supervisor.promised


def test_whoever_is_turned_away_for_a_hand_that_nobody_needed_gets_it_at_once(house: House) -> None:
    looks(house)
    session = house.say("hello", id="again").session
    assert house.process is not None
    accept = house.process.accept
    house.process.supervisor.most_per_reader = 1
    before(house, Step.ACCEPT, lambda change: asyncio.sleep(1.0 if change.session == session else 0.0))
    twice, new = house.message("hello", id="again"), house.message("and I?", chat="another")

    async def both() -> None:
        await asyncio.gather(accept(twice), accept(new))

    house.run(both())
    house.tick(1.0)
    assert house.heard_back()[-1] == "You said: and I?"


def test_a_hand_is_free_again_though_the_turn_that_wanted_it_was_ended(house: House) -> None:
    assert house.process is not None
    house.process.supervisor.most_per_reader = 1
    session, control = house.say("a secret").session, house.control
    secret = [entry.seq for entry in house.log(session) if isinstance(entry.body, Heard)]

    async def erase(_: Change) -> None:
        if secret:
            await control.erase(session, [secret.pop()])  # what the turn has read goes, and the turn with it

    before(house, Step.END, erase)
    house.say("are you there?")
    assert house.heard_back()[-1] == "You said: are you there?"


def test_a_turn_that_somebody_ended_is_no_failure_and_the_next_outage_is_told(house: House) -> None:
    session, control, faults = house.say("a secret").session, house.control, house.furniture.model.faults
    secret = [entry.seq for entry in house.log(session) if isinstance(entry.body, Heard)]

    async def erase(_: Change) -> None:
        if secret:
            faults.fail(Overloaded("down"))
            await control.erase(session, [secret.pop()])  # what the turn has read goes, and the turn with it

    before(house, Step.END, erase)
    house.say("are you there?", rest=False)
    house.tick(60.0)
    assert [text.partition(".")[0] for text in house.heard_back()[1:]] == [
        "The model cannot be reached right now",
        "You said: are you there?",
    ]


def before(house: House, step: Step, what: Callable[[Change], Awaitable[None]]) -> None:
    """Have something happen in the moment before such a commit."""
    assert house.process is not None
    disk = house.process.disk
    real = disk.commit

    async def commit(change: Change) -> Committed:
        if change.step is step:
            await what(change)
        return await real(change)

    disk.commit = commit  # type: ignore[method-assign]  # the worst moment is between two lines


def test_what_could_not_be_delivered_is_tried_again_in_time(house: House) -> None:
    looks(house)
    house.platform.faults.fail(Transient("later"), times=2)
    house.say("hello", rest=False)
    house.tick(120.0)
    assert len(house.heard_back()) == 2


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
def test_once_there_is_room_everything_goes_on_within_seconds(house: House, error: StoreError) -> None:
    """Fault tests 5 and 6: whoever hands out work, keeps leases or works waits for the store, however long."""
    assert house.process is not None
    house.process.supervisor.most_per_reader = 1  # so that somebody has to be looked for
    house.furniture.model = held = HeldModel()
    house.say("one", chat="a", rest=False)
    house.say("two", chat="b", rest=False)
    house.tick()
    trouble = (
        Trouble(house, error)
        .with_all("claim_cursors", "renew_leases", "retry_now")
        .with_commits(*(set(Step) - {Step.ACCEPT}))
    )
    held.free = True
    house.tick(600)
    assert house.heard_back() == []
    trouble.over = True
    house.tick(5)
    assert sorted(house.heard_back()) == ["at last", "at last"]
    house.sound()


@pytest.mark.parametrize("jump", [3_600.0, -3_600.0])
def test_a_clock_that_is_set_gives_nobody_else_what_is_worked_on_here(house: House, jump: float) -> None:
    assert house.process is not None
    house.furniture.model = held = HeldModel()
    house.say("hello", rest=False)
    house.tick()
    house.clock.skew += jump
    house.tick(house.process.supervisor.poll)
    assert house.run(house.store.claim_cursors(owner="peer", at=house.clock.now, lease=60.0, limit=9)) == []
    held.free = True
    house.rest(5)
    assert house.heard_back() == ["at last"]


async def test_whoever_leaves_in_the_middle_of_a_message_leaves_its_lane_in_somebodys_hands(tmp_path: Path) -> None:
    """It is taken with the commit; nobody else could for the two minutes of its lease."""
    taken: list[Claim] = []

    class Hand:
        def offer(self, wake: Wakeup) -> Wakeup:
            return structs.replace(wake, owner="me", lease=120.0)

        def take(self, wakes: tuple[Wakeup, ...], claims: tuple[Claim, ...]) -> None:
            taken.extend(claims)

    async def reception(_: Incoming) -> Admission:
        return Admission(agent="main", person="ada")

    store, bells = SqliteStore.open(tmp_path / "log.db", chance=Dice()), Bells()
    bells.hands = Hand()
    gates = Gates(store=store, clock=SystemClock(), chance=Dice(), log=Diary(), owner="me")
    accept = Accept(gates, reception=reception, bells=bells)
    origin = Place(platform="fake", account="main", chat="chat", message="1")
    leaving = asyncio.create_task(accept(Incoming(origin=origin, text="hello", sender="ada")))
    while not store.writer._queue:  # type: ignore[union-attr]  # noqa: ASYNC110
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    for _ in range(3):
        await store.pulse()
    assert [claim.consumer for claim in taken] == ["turn"]
    await store.close()
