"""One bad item costs nobody else a memory: a refused batch goes item by item, and only what is to blame is parked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from everhold.core.entries import Heard, Said, Thought
from everhold.core.memory_pacing import SILENCE_SECONDS, parse_write_setting
from everhold.errors import InDoubt, PartiallyDone, Refused, Transient
from everhold.ports.memory import MemoryBatch
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import DeadLetter
from everhold.testing.fakes import FakeMemoryProvider, get_memory_text
from everhold.testing.gateway import InProcessGateway

SURE = (DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT, DeliveryGuarantee.PROBE)
WORDS = "one two bad four five".split()


class PickyProvider(FakeMemoryProvider):
    """Never takes what begins with `bad`. Turns the whole batch away for it, or keeps what stands before it."""

    def __init__(self, delivery: DeliveryGuarantee = DeliveryGuarantee.KEYED, *, keeps_before: bool = False) -> None:
        super().__init__(delivery, deadline=5.0)
        self.keeps_before = keeps_before
        self.batches: list[list[str]] = []

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        lost = self.faults.begin_call()
        words = [get_memory_text(item).partition(" ")[0] for item in batch.items]
        self.batches.append(words)
        bad = next((index for index, word in enumerate(words) if word.startswith("bad")), None)
        if bad is not None and (bad == 0 or not self.keeps_before):
            raise Refused(f"no {words[bad]}")
        for item in batch.items[:bad]:
            self.receive_item(batch.name, item)
        if bad is not None:
            raise PartiallyDone(f"no {words[bad]}")
        if lost:
            raise lost
        return {item.key: f"doc-{item.key}" for item in batch.items}

    def words(self) -> list[str]:
        return [get_memory_text(item).partition(" ")[0] for items in self.kept.values() for item in items]


def picky(
    house: InProcessGateway, delivery: DeliveryGuarantee, *, keeps_before: bool = False, write: str | int = 5
) -> PickyProvider:
    provider = PickyProvider(delivery, keeps_before=keeps_before)
    house.runtimes.memories["a"] = provider
    house.runtimes.settings["paces"] = {"a": parse_write_setting(write)}
    house.pass_time(1)  # what was said up to the start is not held back
    return provider


def read_dead_letters(house: InProcessGateway) -> list[DeadLetter]:
    return house.run(house.store.list_dead_letters())


def say_all(house: InProcessGateway, words: list[str] = WORDS) -> None:
    for word in words:
        house.send_message(word)


@pytest.mark.parametrize("keeps_before", [False, True], ids=["at the door", "in part"])
@pytest.mark.parametrize("delivery", SURE)
def test_only_what_is_to_blame_is_parked(
    house: InProcessGateway, delivery: DeliveryGuarantee, keeps_before: bool
) -> None:
    provider = picky(house, delivery, keeps_before=keeps_before)
    say_all(house)
    house.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five"]
    (one,) = read_dead_letters(house)
    assert (one.reason, one.in_doubt) == ("no bad", False)
    assert provider.batches[0] == WORDS
    assert all(len(batch) == 1 for batch in provider.batches[1:])
    house.assert_sound()


@pytest.mark.parametrize("write", ["turn", "async", "session", 3])
@pytest.mark.parametrize("delivery", SURE)
def test_whenever_a_memory_is_written(house: InProcessGateway, delivery: DeliveryGuarantee, write: str | int) -> None:
    """A batch fills in every mode: while a memory is away, what is said gathers."""
    provider = picky(house, delivery, write=write)
    provider.faults.fail_next(Transient("down"), times=3)
    for word in WORDS:
        house.send_message(word, rest=False)
        house.pass_time(0.2)
    house.run_until_idle(2 * SILENCE_SECONDS)
    house.send_message("/new")
    house.run_until_idle(2 * SILENCE_SECONDS)
    assert provider.words() == ["one", "two", "four", "five"]
    assert [one.reason for one in read_dead_letters(house)] == ["no bad"]
    house.assert_sound()


def test_several_bad_ones_are_parked_each_with_its_own_reason(house: InProcessGateway) -> None:
    provider = picky(house, DeliveryGuarantee.KEYED)
    say_all(house, "bad1 two bad3 four bad5".split())
    assert provider.words() == ["two", "four"]
    assert [one.reason for one in read_dead_letters(house)] == ["no bad1", "no bad3", "no bad5"]


@pytest.mark.parametrize("delivery", SURE)
def test_a_crash_in_the_middle_goes_on_there(house: InProcessGateway, delivery: DeliveryGuarantee) -> None:
    provider = picky(house, delivery)
    provider.faults.succeed_next(times=3)  # the batch, then `one` and `two`
    provider.faults.fail_next(Transient("down"), times=2)
    say_all(house)
    assert provider.words() == ["one", "two"]
    house.crash()
    house.start()
    house.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five"]
    assert provider.batches.count(WORDS) == 1, "what is left is stored: nobody sends the whole again"
    assert len(read_dead_letters(house)) == 1
    house.assert_sound()


@pytest.mark.parametrize("delivery", SURE)
def test_an_answer_lost_in_the_middle_doubles_nothing(house: InProcessGateway, delivery: DeliveryGuarantee) -> None:
    provider = picky(house, delivery)
    provider.faults.succeed_next(times=2)
    provider.faults.lose_next_answer(InDoubt("no answer"))
    say_all(house)
    house.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five"]
    assert len(read_dead_letters(house)) == 1
    house.assert_sound()


def test_what_comes_meanwhile_waits_for_the_last_of_them(house: InProcessGateway) -> None:
    provider = picky(house, DeliveryGuarantee.KEYED, write=5)
    provider.faults.succeed_next(times=2)
    provider.faults.fail_next(Transient("down"), times=3)
    say_all(house)
    say_all(house, "six seven eight nine ten".split())
    house.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five", "six", "seven", "eight", "nine", "ten"]
    assert provider.batches[-1] == "six seven eight nine ten".split()
    house.assert_sound()


def test_where_nobody_can_tell_what_was_kept_goes_twice_and_says_so(house: InProcessGateway) -> None:
    provider = picky(house, DeliveryGuarantee.BLIND, keeps_before=True)
    say_all(house)
    house.run_until_idle(60)
    assert provider.words() == ["one", "two", "one", "two", "four", "five"]
    assert house.run(house.store.count_receipts_in_doubt()) == 4
    assert [one.reason for one in read_dead_letters(house)] == ["no bad"]


def test_one_item_that_is_kept_in_part_is_parked_as_doubtful(house: InProcessGateway) -> None:
    """Otherwise it would be tried for ever: each time a part of it is taken, and the rest is not."""
    provider = picky(house, DeliveryGuarantee.PROBE, write="turn")
    provider.faults.fail_next(PartiallyDone("the second half is not taken"))
    house.send_message("long")
    house.send_message("next")
    assert provider.words() == ["next"]
    (one,) = read_dead_letters(house)
    assert one.in_doubt


def test_a_replay_of_the_bad_one_is_refused_again_and_holds_up_nobody(house: InProcessGateway) -> None:
    provider = picky(house, DeliveryGuarantee.KEYED)
    say_all(house)
    (one,) = read_dead_letters(house)
    house.run(house.store.replay_dead_letters([one.id], at=house.clock.now()))
    house.run_until_idle(5)
    say_all(house, "six seven eight nine ten".split())
    assert provider.words()[-5:] == "six seven eight nine ten".split()
    assert [again.key for again in read_dead_letters(house)] == [one.key]
    house.assert_sound()


@pytest.mark.parametrize("delivery", SURE)
def test_what_is_erased_while_it_waits_for_its_turn_never_leaves(
    house: InProcessGateway, delivery: DeliveryGuarantee
) -> None:
    provider = picky(house, delivery)
    provider.faults.succeed_next(times=2)  # the batch, then `one`
    provider.faults.fail_next(Transient("down"), times=2)
    session = house.send_message("one").session
    say_all(house, WORDS[1:])
    assert provider.words() == ["one"]
    gone = [
        entry.seq
        for entry in house.read_log(session)
        if isinstance(entry.body, Heard | Said | Thought) and "four" in entry.body.text
    ]
    assert house.run(house.control.erase_entries(session, gone))
    seen = len(provider.batches)
    house.run_until_idle(60)
    assert [word for word in provider.words() if word] == ["one", "two", "five"]
    assert not any("four" in batch for batch in provider.batches[seen:])
    assert [one.reason for one in read_dead_letters(house)] == ["no bad"]
    house.assert_sound()


def test_what_is_erased_while_it_waits_to_go_a_second_time_where_nobody_can_tell_is_named(
    house: InProcessGateway,
) -> None:
    provider = picky(house, DeliveryGuarantee.BLIND, keeps_before=True)
    provider.faults.succeed_next(times=2)  # the batch, then `one`
    provider.faults.fail_next(Transient("down"), times=2)
    session = house.send_message("one").session
    say_all(house, WORDS[1:])
    assert provider.batches == [WORDS, ["one"]]
    gone = [
        entry.seq
        for entry in house.read_log(session)
        if isinstance(entry.body, Heard | Said | Thought) and "four" in entry.body.text
    ]
    assert house.run(house.control.erase_entries(session, gone))
    house.run_until_idle(60)
    assert not any("four" in batch for batch in provider.batches[1:])
    assert [(one.in_doubt, one.reason.partition(",")[0]) for one in read_dead_letters(house)] == [
        (True, "no bad"),
        (True, "it was erased on its way"),
    ]
    house.assert_sound()


class HalfStoringProvider(FakeMemoryProvider):
    """Knows no keys and can be searched. Of its first batch it keeps two, and the answer is lost."""

    def __init__(self) -> None:
        super().__init__(DeliveryGuarantee.UNACKNOWLEDGED, deadline=5.0)
        self.batches: list[list[str]] = []

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        self.batches.append([get_memory_text(item).partition(" ")[0] for item in batch.items])
        for item in batch.items if len(self.batches) > 1 else batch.items[:2]:
            self.receive_item(batch.name, item)
        if len(self.batches) == 1:
            raise InDoubt("no answer")
        return {item.key: "" for item in batch.items}


def half(house: InProcessGateway) -> HalfStoringProvider:
    provider = HalfStoringProvider()
    house.runtimes.memories["a"] = provider
    house.runtimes.settings["paces"] = {"a": parse_write_setting(5)}
    house.pass_time(1)
    return provider


def test_what_is_not_seen_where_nobody_can_tell_goes_again_and_is_counted(house: InProcessGateway) -> None:
    provider = half(house)
    say_all(house)
    house.run_until_idle(60)
    assert provider.batches == [WORDS, WORDS[2:]]
    assert house.run(house.store.count_receipts_in_doubt()) == 3, "not seen is not the same as not there"
    assert read_dead_letters(house) == []
    house.assert_sound()


@pytest.mark.parametrize("erased", [3, 1], ids=["all that was left", "one of it"])
def test_what_is_erased_while_nobody_can_tell_whether_it_arrived_is_named(house: InProcessGateway, erased: int) -> None:
    provider = half(house)
    session = ""
    for word in WORDS:
        session = house.send_message(word, rest=False).session
        house.pass_time(0.2)
    assert provider.batches == [WORDS]
    gone = [
        entry.seq
        for entry in house.read_log(session)
        if isinstance(entry.body, Heard | Said | Thought) and any(word in entry.body.text for word in WORDS[-erased:])
    ]
    assert house.run(house.control.erase_entries(session, gone))
    house.run_until_idle(60)
    assert not {word for batch in provider.batches[1:] for word in batch} & set(WORDS[-erased:])
    assert [(one.in_doubt, one.reason.partition(",")[0]) for one in read_dead_letters(house)] == [
        (True, "it was erased on its way")
    ] * erased
    house.assert_sound()
