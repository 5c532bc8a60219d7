"""One bad item does not affect others: a refused batch is sent item by item, and only refused items become dead
letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from everhold.core.entries import Heard, Said, Thought
from everhold.core.memory_pacing import SILENCE_SECONDS, parse_write_setting
from everhold.errors import InDoubt, PartiallyDone, Refused, Transient
from everhold.ports.memory import SEEN_REMOTE_ID, MemoryBatch
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import DeadLetter, Receipt
from everhold.testing.fakes import FakeMemoryProvider, get_memory_text
from everhold.testing.gateway import InProcessGateway

SURE = (DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT, DeliveryGuarantee.PROBE)
WORDS = "one two bad four five".split()


class PickyProvider(FakeMemoryProvider):
    """Refuses items that begin with `bad`: the whole batch, or all items from there on."""

    def __init__(self, delivery: DeliveryGuarantee = DeliveryGuarantee.KEYED, *, keeps_before: bool = False) -> None:
        super().__init__(delivery, deadline=5.0)
        self.keeps_before = keeps_before
        self.batches: list[list[str]] = []
        self.on_stored: Callable[[list[str]], None] = lambda _: None

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
        self.on_stored(words)
        return {item.key: f"doc-{item.key}" for item in batch.items}

    def words(self) -> list[str]:
        return [get_memory_text(item).partition(" ")[0] for items in self.kept.values() for item in items]


def picky(
    gateway: InProcessGateway, delivery: DeliveryGuarantee, *, keeps_before: bool = False, write: str | int = 5
) -> PickyProvider:
    provider = PickyProvider(delivery, keeps_before=keeps_before)
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings["pacing"] = {"a": parse_write_setting(write)}
    gateway.pass_time(1)  # items from before the start are not held back
    return provider


def read_receipts(gateway: InProcessGateway, session: str) -> list[Receipt]:
    return gateway.run(gateway.store.list_receipts(session, consumer="memory:a"))


def read_dead_letters(gateway: InProcessGateway) -> list[DeadLetter]:
    return gateway.run(gateway.store.list_dead_letters())


def say_all(gateway: InProcessGateway, words: list[str] = WORDS) -> None:
    for word in words:
        gateway.send_message(word)


@pytest.mark.parametrize("keeps_before", [False, True], ids=["whole batch refused", "stored up to the bad item"])
@pytest.mark.parametrize("delivery", SURE)
def test_only_the_refused_item_is_dead_lettered(
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
def test_only_the_refused_item_is_dead_lettered_in_every_write_mode(
    gateway: InProcessGateway, delivery: DeliveryGuarantee, write: str | int
) -> None:
    """Batches have several items in every mode, because items collect while a memory is down."""
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


def test_several_refused_items_are_dead_lettered_with_their_reasons(gateway: InProcessGateway) -> None:
    provider = picky(gateway, DeliveryGuarantee.KEYED)
    say_all(gateway, "bad1 two bad3 four bad5".split())
    assert provider.words() == ["two", "four"]
    assert [one.reason for one in read_dead_letters(gateway)] == ["no bad1", "no bad3", "no bad5"]


@pytest.mark.parametrize("delivery", SURE)
def test_a_crash_during_item_by_item_sending_continues_at_that_item(
    gateway: InProcessGateway, delivery: DeliveryGuarantee
) -> None:
    provider = picky(gateway, delivery)
    provider.faults.succeed_next(times=3)  # the batch, then `one` and `two`
    provider.faults.fail_next(Transient("down"), times=2)
    say_all(gateway)
    assert provider.words() == ["one", "two"]
    gateway.crash()
    gateway.start()
    gateway.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five"]
    assert provider.batches.count(WORDS) == 1, "the rest is stored without another send of the whole batch"
    assert len(read_dead_letters(gateway)) == 1
    gateway.assert_sound()


@pytest.mark.parametrize(
    "delivery, words, in_doubt",
    [
        (DeliveryGuarantee.PROBE, ["one", "two", "four", "five"], 0),
        (DeliveryGuarantee.BLIND, ["one", "one", "two", "four", "five"], 1),
    ],
)
def test_one_of_them_whose_answer_a_crash_lost_may_have_arrived(
    gateway: InProcessGateway, delivery: DeliveryGuarantee, words: list[str], in_doubt: int
) -> None:
    provider = picky(gateway, delivery)
    provider.on_stored = lambda stored: gateway.crash() if stored == ["one"] and gateway.process_count == 1 else None
    for word in WORDS:
        gateway.send_message(word, rest=False)
        gateway.pass_time(0.01)
    assert provider.batches == [WORDS, ["one"]]
    assert gateway.process is None
    gateway.start()
    gateway.run_until_idle(60)
    assert provider.words() == words
    assert gateway.run(gateway.store.count_receipts_in_doubt()) == in_doubt
    gateway.assert_sound()


def test_each_item_of_a_batch_gets_the_receipt_with_its_own_remote_id(gateway: InProcessGateway) -> None:
    provider = picky(gateway, DeliveryGuarantee.KEYED, write=3)
    session = gateway.send_message("one").session
    say_all(gateway, ["two", "three"])
    assert provider.batches == [["one", "two", "three"]]
    items = [item for items in provider.kept.values() for item in items]
    receipts = read_receipts(gateway, session)
    assert [(one.key, one.remote) for one in receipts] == [(item.key, f"doc-{item.key}") for item in items]
    assert len({one.seq for one in receipts}) == 3


@pytest.mark.parametrize("delivery", SURE)
def test_a_lost_response_during_item_by_item_sending_doubles_nothing(
    gateway: InProcessGateway, delivery: DeliveryGuarantee
) -> None:
    provider = picky(gateway, delivery)
    provider.faults.succeed_next(times=2)
    provider.faults.lose_next_answer(InDoubt("no answer"))
    say_all(gateway)
    gateway.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five"]
    assert len(read_dead_letters(gateway)) == 1
    gateway.assert_sound()


def test_new_items_wait_until_the_refused_batch_is_finished(gateway: InProcessGateway) -> None:
    provider = picky(gateway, DeliveryGuarantee.KEYED, write=5)
    provider.faults.succeed_next(times=2)
    provider.faults.fail_next(Transient("down"), times=3)
    say_all(gateway)
    say_all(gateway, "six seven eight nine ten".split())
    gateway.run_until_idle(60)
    assert provider.words() == ["one", "two", "four", "five", "six", "seven", "eight", "nine", "ten"]
    assert provider.batches[-1] == "six seven eight nine ten".split()
    gateway.assert_sound()


def test_blind_items_are_sent_twice_and_counted(gateway: InProcessGateway) -> None:
    provider = picky(gateway, DeliveryGuarantee.BLIND, keeps_before=True)
    say_all(gateway)
    gateway.run_until_idle(60)
    assert provider.words() == ["one", "two", "one", "two", "four", "five"]
    assert gateway.run(gateway.store.count_receipts_in_doubt()) == 4
    assert [one.reason for one in read_dead_letters(gateway)] == ["no bad"]


def test_a_partially_stored_item_is_dead_lettered_in_doubt(gateway: InProcessGateway) -> None:
    """Otherwise it would be retried without end, and stored in part each time."""
    provider = picky(gateway, DeliveryGuarantee.PROBE, write="turn")
    provider.faults.fail_next(PartiallyDone("the second half is not taken"))
    gateway.send_message("long")
    gateway.send_message("next")
    assert provider.words() == ["next"]
    (one,) = read_dead_letters(gateway)
    assert one.in_doubt


def test_a_replay_of_the_refused_item_is_refused_again_and_blocks_nothing(gateway: InProcessGateway) -> None:
    provider = picky(gateway, DeliveryGuarantee.KEYED)
    say_all(gateway)
    (one,) = read_dead_letters(gateway)
    gateway.run(gateway.store.replay_dead_letters([one.id]))
    gateway.run_until_idle(5)
    say_all(gateway, "six seven eight nine ten".split())
    assert provider.words()[-5:] == "six seven eight nine ten".split()
    assert [again.key for again in read_dead_letters(gateway)] == [one.key]
    gateway.assert_sound()


@pytest.mark.parametrize("delivery", SURE)
def test_an_item_erased_while_it_waits_is_never_sent(gateway: InProcessGateway, delivery: DeliveryGuarantee) -> None:
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


def test_an_item_erased_before_a_blind_resend_is_named(
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
        (True, "it was erased in flight"),
    ]
    gateway.assert_sound()


class HalfStoringProvider(FakeMemoryProvider):
    """Has no keys but can be searched. It stores two items of its first batch, and the response is lost."""

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
    gateway.runtimes.settings["pacing"] = {"a": parse_write_setting(5)}
    gateway.pass_time(1)
    return provider


def test_an_unseen_blind_item_is_sent_again_and_counted(gateway: InProcessGateway) -> None:
    provider = half(gateway)
    session = gateway.send_message(WORDS[0]).session
    say_all(gateway, WORDS[1:])
    gateway.run_until_idle(60)
    assert provider.batches == [WORDS, WORDS[2:]]
    receipts = [(one.remote, one.in_doubt) for one in read_receipts(gateway, session)]
    assert receipts == [(SEEN_REMOTE_ID, False)] * 2 + [("", True)] * 3
    assert gateway.run(gateway.store.count_receipts_in_doubt()) == 3, "not seen is not the same as not there"
    assert read_dead_letters(gateway) == []
    gateway.assert_sound()


@pytest.mark.parametrize("erased", [3, 1], ids=["all remaining items", "one remaining item"])
def test_an_item_erased_while_in_doubt_is_named(gateway: InProcessGateway, erased: int) -> None:
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
        (True, "it was erased in flight")
    ] * erased
    gateway.assert_sound()
