"""One bad item costs nobody else a memory: a refused batch goes item by item, and only what is to blame is parked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from everhold.core.entries import Heard, Said, Thought
from everhold.core.pace import REST_SECONDS, pace_of
from everhold.errors import InDoubt, Partial, Refused, Transient
from everhold.ports.memory import Batch
from everhold.ports.platform import Delivery
from everhold.ports.store import DeadLetter
from everhold.testing.fakes import FakeProvider, wording
from everhold.testing.house import House

SURE = (Delivery.KEYED, Delivery.UPSERT, Delivery.PROBE)
WORDS = "one two bad four five".split()


class Picky(FakeProvider):
    """Never takes what begins with `bad`. Turns the whole batch away for it, or keeps what stands before it."""

    def __init__(self, delivery: Delivery = Delivery.KEYED, *, keeps_before: bool = False) -> None:
        super().__init__(delivery, deadline=5.0)
        self.keeps_before = keeps_before
        self.batches: list[list[str]] = []

    async def store(self, batch: Batch) -> Mapping[str, str]:
        lost = self.faults.before()
        words = [wording(item).partition(" ")[0] for item in batch.items]
        self.batches.append(words)
        bad = next((index for index, word in enumerate(words) if word.startswith("bad")), None)
        if bad is not None and (bad == 0 or not self.keeps_before):
            raise Refused(f"no {words[bad]}")
        for item in batch.items[:bad]:
            self.receive(batch.name, item)
        if bad is not None:
            raise Partial(f"no {words[bad]}")
        if lost:
            raise lost
        return {item.key: f"doc-{item.key}" for item in batch.items}

    def words(self) -> list[str]:
        return [wording(item).partition(" ")[0] for items in self.kept.values() for item in items]


def picky(house: House, delivery: Delivery, *, keeps_before: bool = False, write: str | int = 5) -> Picky:
    provider = Picky(delivery, keeps_before=keeps_before)
    house.furniture.memories["a"] = provider
    house.furniture.settings["paces"] = {"a": pace_of(write)}
    house.tick(1)  # what was said up to the start is not held back
    return provider


def parked(house: House) -> list[DeadLetter]:
    return house.run(house.store.list_dead_letters())


def say_all(house: House, words: list[str] = WORDS) -> None:
    for word in words:
        house.say(word)


@pytest.mark.parametrize("keeps_before", [False, True], ids=["at the door", "in part"])
@pytest.mark.parametrize("delivery", SURE)
def test_only_what_is_to_blame_is_parked(house: House, delivery: Delivery, keeps_before: bool) -> None:
    provider = picky(house, delivery, keeps_before=keeps_before)
    say_all(house)
    house.rest(60)
    assert provider.words() == ["one", "two", "four", "five"]
    (one,) = parked(house)
    assert (one.reason, one.in_doubt) == ("no bad", False)
    assert provider.batches[0] == WORDS
    assert all(len(batch) == 1 for batch in provider.batches[1:])
    house.sound()


@pytest.mark.parametrize("write", ["turn", "async", "session", 3])
@pytest.mark.parametrize("delivery", SURE)
def test_whenever_a_memory_is_written(house: House, delivery: Delivery, write: str | int) -> None:
    """A batch fills in every mode: while a memory is away, what is said gathers."""
    provider = picky(house, delivery, write=write)
    provider.faults.fail(Transient("down"), times=3)
    for word in WORDS:
        house.say(word, rest=False)
        house.tick(0.2)
    house.rest(2 * REST_SECONDS)
    house.say("/new")
    house.rest(2 * REST_SECONDS)
    assert provider.words() == ["one", "two", "four", "five"]
    assert [one.reason for one in parked(house)] == ["no bad"]
    house.sound()


def test_several_bad_ones_are_parked_each_with_its_own_reason(house: House) -> None:
    provider = picky(house, Delivery.KEYED)
    say_all(house, "bad1 two bad3 four bad5".split())
    assert provider.words() == ["two", "four"]
    assert [one.reason for one in parked(house)] == ["no bad1", "no bad3", "no bad5"]


@pytest.mark.parametrize("delivery", SURE)
def test_a_crash_in_the_middle_goes_on_there(house: House, delivery: Delivery) -> None:
    provider = picky(house, delivery)
    provider.faults.work(times=3)  # the batch, then `one` and `two`
    provider.faults.fail(Transient("down"), times=2)
    say_all(house)
    assert provider.words() == ["one", "two"]
    house.crash()
    house.start()
    house.rest(60)
    assert provider.words() == ["one", "two", "four", "five"]
    assert provider.batches.count(WORDS) == 1, "what is left is stored: nobody sends the whole again"
    assert len(parked(house)) == 1
    house.sound()


@pytest.mark.parametrize("delivery", SURE)
def test_an_answer_lost_in_the_middle_doubles_nothing(house: House, delivery: Delivery) -> None:
    provider = picky(house, delivery)
    provider.faults.work(times=2)
    provider.faults.lose(InDoubt("no answer"))
    say_all(house)
    house.rest(60)
    assert provider.words() == ["one", "two", "four", "five"]
    assert len(parked(house)) == 1
    house.sound()


def test_what_comes_meanwhile_waits_for_the_last_of_them(house: House) -> None:
    provider = picky(house, Delivery.KEYED, write=5)
    provider.faults.work(times=2)
    provider.faults.fail(Transient("down"), times=3)
    say_all(house)
    say_all(house, "six seven eight nine ten".split())
    house.rest(60)
    assert provider.words() == ["one", "two", "four", "five", "six", "seven", "eight", "nine", "ten"]
    assert provider.batches[-1] == "six seven eight nine ten".split()
    house.sound()


def test_where_nobody_can_tell_what_was_kept_goes_twice_and_says_so(house: House) -> None:
    provider = picky(house, Delivery.BLIND, keeps_before=True)
    say_all(house)
    house.rest(60)
    assert provider.words() == ["one", "two", "one", "two", "four", "five"]
    assert house.run(house.store.count_receipts_in_doubt()) == 4
    assert [one.reason for one in parked(house)] == ["no bad"]


def test_one_item_that_is_kept_in_part_is_parked_as_doubtful(house: House) -> None:
    """Otherwise it would be tried for ever: each time a part of it is taken, and the rest is not."""
    provider = picky(house, Delivery.PROBE, write="turn")
    provider.faults.fail(Partial("the second half is not taken"))
    house.say("long")
    house.say("next")
    assert provider.words() == ["next"]
    (one,) = parked(house)
    assert one.in_doubt


def test_a_replay_of_the_bad_one_is_refused_again_and_holds_up_nobody(house: House) -> None:
    provider = picky(house, Delivery.KEYED)
    say_all(house)
    (one,) = parked(house)
    house.run(house.store.replay_dead_letters([one.id], at=house.clock.now()))
    house.rest(5)
    say_all(house, "six seven eight nine ten".split())
    assert provider.words()[-5:] == "six seven eight nine ten".split()
    assert [again.key for again in parked(house)] == [one.key]
    house.sound()


@pytest.mark.parametrize("delivery", SURE)
def test_what_is_erased_while_it_waits_for_its_turn_never_leaves(house: House, delivery: Delivery) -> None:
    provider = picky(house, delivery)
    provider.faults.work(times=2)  # the batch, then `one`
    provider.faults.fail(Transient("down"), times=2)
    session = house.say("one").session
    say_all(house, WORDS[1:])
    assert provider.words() == ["one"]
    gone = [
        entry.seq
        for entry in house.log(session)
        if isinstance(entry.body, Heard | Said | Thought) and "four" in entry.body.text
    ]
    assert house.run(house.control.erase(session, gone))
    seen = len(provider.batches)
    house.rest(60)
    assert [word for word in provider.words() if word] == ["one", "two", "five"]
    assert not any("four" in batch for batch in provider.batches[seen:])
    assert [one.reason for one in parked(house)] == ["no bad"]
    house.sound()


def test_what_is_erased_while_it_waits_to_go_a_second_time_where_nobody_can_tell_is_named(house: House) -> None:
    provider = picky(house, Delivery.BLIND, keeps_before=True)
    provider.faults.work(times=2)  # the batch, then `one`
    provider.faults.fail(Transient("down"), times=2)
    session = house.say("one").session
    say_all(house, WORDS[1:])
    assert provider.batches == [WORDS, ["one"]]
    gone = [
        entry.seq
        for entry in house.log(session)
        if isinstance(entry.body, Heard | Said | Thought) and "four" in entry.body.text
    ]
    assert house.run(house.control.erase(session, gone))
    house.rest(60)
    assert not any("four" in batch for batch in provider.batches[1:])
    assert [(one.in_doubt, one.reason.partition(",")[0]) for one in parked(house)] == [
        (True, "no bad"),
        (True, "it was erased on its way"),
    ]
    house.sound()


class Half(FakeProvider):
    """Knows no keys and can be searched. Of its first batch it keeps two, and the answer is lost."""

    def __init__(self) -> None:
        super().__init__(Delivery.UNACKNOWLEDGED, deadline=5.0)
        self.batches: list[list[str]] = []

    async def store(self, batch: Batch) -> Mapping[str, str]:
        self.batches.append([wording(item).partition(" ")[0] for item in batch.items])
        for item in batch.items if len(self.batches) > 1 else batch.items[:2]:
            self.receive(batch.name, item)
        if len(self.batches) == 1:
            raise InDoubt("no answer")
        return {item.key: "" for item in batch.items}


def half(house: House) -> Half:
    provider = Half()
    house.furniture.memories["a"] = provider
    house.furniture.settings["paces"] = {"a": pace_of(5)}
    house.tick(1)
    return provider


def test_what_is_not_seen_where_nobody_can_tell_goes_again_and_is_counted(house: House) -> None:
    provider = half(house)
    say_all(house)
    house.rest(60)
    assert provider.batches == [WORDS, WORDS[2:]]
    assert house.run(house.store.count_receipts_in_doubt()) == 3, "not seen is not the same as not there"
    assert parked(house) == []
    house.sound()


@pytest.mark.parametrize("erased", [3, 1], ids=["all that was left", "one of it"])
def test_what_is_erased_while_nobody_can_tell_whether_it_arrived_is_named(house: House, erased: int) -> None:
    provider = half(house)
    session = ""
    for word in WORDS:
        session = house.say(word, rest=False).session
        house.tick(0.2)
    assert provider.batches == [WORDS]
    gone = [
        entry.seq
        for entry in house.log(session)
        if isinstance(entry.body, Heard | Said | Thought) and any(word in entry.body.text for word in WORDS[-erased:])
    ]
    assert house.run(house.control.erase(session, gone))
    house.rest(60)
    assert not {word for batch in provider.batches[1:] for word in batch} & set(WORDS[-erased:])
    assert [(one.in_doubt, one.reason.partition(",")[0]) for one in parked(house)] == [
        (True, "it was erased on its way")
    ] * erased
    house.sound()
