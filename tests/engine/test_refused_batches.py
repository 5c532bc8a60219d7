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
    gateway: InProcessGateway, delivery: DeliveryGuarantee, *, keeps_before: bool = False, write: str | int = 5
) -> PickyProvider:
    provider = PickyProvider(delivery, keeps_before=keeps_before)
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings["paces"] = {"a": parse_write_setting(write)}
    gateway.pass_time(1)  # what was said up to the start is not held back
    return provider


def read_dead_letters(gateway: InProcessGateway) -> list[DeadLetter]:
    return gateway.run(gateway.store.list_dead_letters())


def say_all(gateway: InProcessGateway, words: list[str] = WORDS) -> None:
    for word in words:
        gateway.send_message(word)


@pytest.mark.parametrize("keeps_before", [False, True], ids=["at the door", "in part"])
@pytest.mark.parametrize("delivery", SURE)
def test_only_what_is_to_blame_is_dead_lettered(
    gateway: InProcessGateway, delivery: DeliveryGuarantee, keeps_before: bool
) -> None:
    provider = picky(gateway, delivery, keeps_before=keeps_before)
    say_all(gateway)
    gateway.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five"]
    (one,) = read_dead_letters(gateway)
    assert (one.reason, one.in_doubt) == ("no bad", False)
    assert provider.batches[0] == WORDS
    assert all(len(batch) == 1 for batch in provider.batches[1:])
    gateway.assert_sound()


@pytest.mark.parametrize("write", ["turn", "async", "session", 3])
@pytest.mark.parametrize("delivery", SURE)
def test_whenever_a_memory_is_written(gateway: InProcessGateway, delivery: DeliveryGuarantee, write: str | int) -> None:
    """A batch fills in every mode: while a memory is away, what is said gathers."""
    provider = picky(gateway, delivery, write=write)
    provider.faults.fail_next(Transient("down"), times=3)
    for word in WORDS:
        gateway.send_message(word, rest=False)
        gateway.pass_time(0.2)
    gateway.run_until_idle(2 * SILENCE_SECONDS)
    gateway.send_message("/new")
    gateway.run_until_idle(2 * SILENCE_SECONDS)
    assert provider.words() == ["one", "two", "four", "five"]
    assert [one.reason for one in read_dead_letters(gateway)] == ["no bad"]
    gateway.assert_sound()


def test_several_bad_ones_are_dead_lettered_each_with_its_own_reason(gateway: InProcessGateway) -> None:
    provider = picky(gateway, DeliveryGuarantee.KEYED)
    say_all(gateway, "bad1 two bad3 four bad5".split())
    assert provider.words() == ["two", "four"]
    assert [one.reason for one in read_dead_letters(gateway)] == ["no bad1", "no bad3", "no bad5"]


@pytest.mark.parametrize("delivery", SURE)
def test_a_crash_in_the_middle_goes_on_there(gateway: InProcessGateway, delivery: DeliveryGuarantee) -> None:
    provider = picky(gateway, delivery)
    provider.faults.succeed_next(times=3)  # the batch, then `one` and `two`
    provider.faults.fail_next(Transient("down"), times=2)
    say_all(gateway)
    assert provider.words() == ["one", "two"]
    gateway.crash()
    gateway.start()
    gateway.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five"]
    assert provider.batches.count(WORDS) == 1, "what is left is stored: nobody sends the whole again"
    assert len(read_dead_letters(gateway)) == 1
    gateway.assert_sound()


@pytest.mark.parametrize("delivery", SURE)
def test_an_answer_lost_in_the_middle_doubles_nothing(gateway: InProcessGateway, delivery: DeliveryGuarantee) -> None:
    provider = picky(gateway, delivery)
    provider.faults.succeed_next(times=2)
    provider.faults.lose_next_answer(InDoubt("no answer"))
    say_all(gateway)
    gateway.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five"]
    assert len(read_dead_letters(gateway)) == 1
    gateway.assert_sound()


def test_what_comes_meanwhile_waits_for_the_last_of_them(gateway: InProcessGateway) -> None:
    provider = picky(gateway, DeliveryGuarantee.KEYED, write=5)
    provider.faults.succeed_next(times=2)
    provider.faults.fail_next(Transient("down"), times=3)
    say_all(gateway)
    say_all(gateway, "six seven eight nine ten".split())
    gateway.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five", "six", "seven", "eight", "nine", "ten"]
    assert provider.batches[-1] == "six seven eight nine ten".split()
    gateway.assert_sound()


def test_where_nobody_can_tell_what_was_kept_goes_twice_and_says_so(gateway: InProcessGateway) -> None:
    provider = picky(gateway, DeliveryGuarantee.BLIND, keeps_before=True)
    say_all(gateway)
    gateway.run_until_idle(60)
    assert provider.words() == ["one", "two", "one", "two", "four", "five"]
    assert gateway.run(gateway.store.count_receipts_in_doubt()) == 4
    assert [one.reason for one in read_dead_letters(gateway)] == ["no bad"]


def test_one_item_that_is_stored_in_part_is_dead_lettered_in_doubt(gateway: InProcessGateway) -> None:
    """Otherwise it would be tried for ever: each time a part of it is taken, and the rest is not."""
    provider = picky(gateway, DeliveryGuarantee.PROBE, write="turn")
    provider.faults.fail_next(PartiallyDone("the second half is not taken"))
    gateway.send_message("long")
    gateway.send_message("next")
    assert provider.words() == ["next"]
    (one,) = read_dead_letters(gateway)
    assert one.in_doubt


def test_a_replay_of_the_bad_one_is_refused_again_and_holds_up_nobody(gateway: InProcessGateway) -> None:
    provider = picky(gateway, DeliveryGuarantee.KEYED)
    say_all(gateway)
    (one,) = read_dead_letters(gateway)
    gateway.run(gateway.store.replay_dead_letters([one.id], at=gateway.clock.now()))
    gateway.run_until_idle(5)
    say_all(gateway, "six seven eight nine ten".split())
    assert provider.words()[-5:] == "six seven eight nine ten".split()
    assert [again.key for again in read_dead_letters(gateway)] == [one.key]
    gateway.assert_sound()


@pytest.mark.parametrize("delivery", SURE)
def test_what_is_erased_while_it_waits_for_its_turn_never_leaves(
    gateway: InProcessGateway, delivery: DeliveryGuarantee
) -> None:
    provider = picky(gateway, delivery)
    provider.faults.succeed_next(times=2)  # the batch, then `one`
    provider.faults.fail_next(Transient("down"), times=2)
    session = gateway.send_message("one").session
    say_all(gateway, WORDS[1:])
    assert provider.words() == ["one"]
    gone = [
        entry.seq
        for entry in gateway.read_log(session)
        if isinstance(entry.body, Heard | Said | Thought) and "four" in entry.body.text
    ]
    assert gateway.run(gateway.control.erase_entries(session, gone))
    seen = len(provider.batches)
    gateway.run_until_idle(60)
    assert [word for word in provider.words() if word] == ["one", "two", "five"]
    assert not any("four" in batch for batch in provider.batches[seen:])
    assert [one.reason for one in read_dead_letters(gateway)] == ["no bad"]
    gateway.assert_sound()


def test_what_is_erased_while_it_waits_to_go_a_second_time_where_nobody_can_tell_is_named(
    gateway: InProcessGateway,
) -> None:
    provider = picky(gateway, DeliveryGuarantee.BLIND, keeps_before=True)
    provider.faults.succeed_next(times=2)  # the batch, then `one`
    provider.faults.fail_next(Transient("down"), times=2)
    session = gateway.send_message("one").session
    say_all(gateway, WORDS[1:])
    assert provider.batches == [WORDS, ["one"]]
    gone = [
        entry.seq
        for entry in gateway.read_log(session)
        if isinstance(entry.body, Heard | Said | Thought) and "four" in entry.body.text
    ]
    assert gateway.run(gateway.control.erase_entries(session, gone))
    gateway.run_until_idle(60)
    assert not any("four" in batch for batch in provider.batches[1:])
    assert [(one.in_doubt, one.reason.partition(",")[0]) for one in read_dead_letters(gateway)] == [
        (True, "no bad"),
        (True, "it was erased on its way"),
    ]
    gateway.assert_sound()


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


def half(gateway: InProcessGateway) -> HalfStoringProvider:
    provider = HalfStoringProvider()
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings["paces"] = {"a": parse_write_setting(5)}
    gateway.pass_time(1)
    return provider


def test_what_is_not_seen_where_nobody_can_tell_goes_again_and_is_counted(gateway: InProcessGateway) -> None:
    provider = half(gateway)
    say_all(gateway)
    gateway.run_until_idle(60)
    assert provider.batches == [WORDS, WORDS[2:]]
    assert gateway.run(gateway.store.count_receipts_in_doubt()) == 3, "not seen is not the same as not there"
    assert read_dead_letters(gateway) == []
    gateway.assert_sound()


@pytest.mark.parametrize("erased", [3, 1], ids=["all that was left", "one of it"])
def test_what_is_erased_while_nobody_can_tell_whether_it_arrived_is_named(
    gateway: InProcessGateway, erased: int
) -> None:
    provider = half(gateway)
    session = ""
    for word in WORDS:
        session = gateway.send_message(word, rest=False).session
        gateway.pass_time(0.2)
    assert provider.batches == [WORDS]
    gone = [
        entry.seq
        for entry in gateway.read_log(session)
        if isinstance(entry.body, Heard | Said | Thought) and any(word in entry.body.text for word in WORDS[-erased:])
    ]
    assert gateway.run(gateway.control.erase_entries(session, gone))
    gateway.run_until_idle(60)
    assert not {word for batch in provider.batches[1:] for word in batch} & set(WORDS[-erased:])
    assert [(one.in_doubt, one.reason.partition(",")[0]) for one in read_dead_letters(gateway)] == [
        (True, "it was erased on its way")
    ] * erased
    gateway.assert_sound()
