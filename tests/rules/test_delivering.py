"""Rules 9 to 12: lanes, doubt, waits, and where a reply goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from everhold.core.entries import Place, Said
from everhold.core.retry import LONGEST_WAIT_SECONDS
from everhold.errors import EverholdError, InDoubt, Overloaded, Refused, StoreBusy, StoreError, StoreFull, Transient
from everhold.flow.voice import DEADLINE_SECONDS
from everhold.ports.memory import Batch
from everhold.ports.model import Answer, Request
from everhold.ports.platform import Delivery, Outgoing
from everhold.ports.store import Change, Committed, Step
from everhold.ports.tool import Effect, Result, Saying
from everhold.testing.fakes import FakePlatform, FakeProvider, FakeTool, ScriptedModel
from everhold.testing.house import House

from .conftest import HeldModel, Trouble
from .test_working import calling, die_at, looking, stand_still


def use(house: House, delivery: Delivery, **options: Any) -> FakePlatform:
    house.platform = FakePlatform(delivery, **options)
    house.furniture.platforms[("fake", "main")] = house.platform
    return house.platform


class TestRule9Lanes:
    def test_a_retry_repeats_exactly_the_batch_that_was_sent(self, house: House) -> None:
        batches: list[Batch] = []

        class Watching(FakeProvider):
            async def store(self, batch: Batch) -> Any:
                batches.append(batch)
                return await super().store(batch)

        provider = Watching()
        house.furniture.memories = {"a": provider}
        provider.faults.fail(Transient("later"), times=2)
        house.say("one", rest=False)
        house.tick(0.2)
        house.say("two", rest=False)
        house.say("three", rest=False)
        house.rest(60)
        assert batches[0] == batches[1] == batches[2], "the same to the last word, whatever came since"
        kept = [item.key for items in provider.kept.values() for item in items]
        assert len(kept) == len(set(kept))

    def test_one_poisoned_session_and_one_dead_provider_block_nobody(self, house: House) -> None:
        dead, alive = FakeProvider(), FakeProvider()
        dead.faults.fail(Transient("dead"), times=10_000)
        house.furniture.memories = {"dead": dead, "alive": alive}
        for chat in ("a", "b", "c"):
            house.say(f"from {chat}", chat=chat, rest=False)
        house.tick(30)
        assert len(alive.kept) == 3
        assert len(house.heard_back()) == 3
        lanes = house.run(house.store.list_cursors(consumer="memory:dead"))
        assert all(lane.error and lane.attempts for lane in lanes), "a failing provider shows"

    def test_what_is_refused_is_parked_with_its_reason_and_the_next_goes_on(self, house: House) -> None:
        house.platform.faults.fail(Refused("chat is gone"))
        house.say("one")
        house.say("two")
        parked = house.run(house.store.list_dead_letters())
        assert [(item.reason, item.in_doubt) for item in parked] == [("chat is gone", False)]
        assert house.heard_back() == ["You said: two"]

    def test_what_was_parked_is_sent_on_command(self, house: House) -> None:
        house.platform.faults.fail(Refused("chat is gone"))
        house.say("one")
        assert house.run(house.control.replay()) == 1
        house.rest(1)
        assert house.heard_back() == ["You said: one"]
        assert house.run(house.store.list_dead_letters()) == []

    def test_a_part_that_is_sent_again_on_command_goes_once_while_the_others_are_on_their_way(
        self, house: House
    ) -> None:
        platform = use(house, Delivery.PROBE, text_limit=100)
        house.furniture.model = ScriptedModel([Answer(text=" ".join(f"word{n}" for n in range(40)))])
        platform.faults.fail(Refused("not like this"))
        platform.faults.lose()
        session = house.say("tell me", rest=False).session
        house.tick(0.2)
        assert house.run(house.control.replay()) == 1, "the lane waits to see whether the second part arrived"
        house.rest(120)
        (said,) = house.bodies(session, Said)
        assert len(said.parts) > 2
        assert sorted(house.heard_back()) == sorted(said.parts)

    def test_an_hour_without_the_provider_loses_nothing_and_keeps_the_order(self, house: House) -> None:
        provider = FakeProvider()
        provider.faults.fail(Transient("down"), times=15)
        house.furniture.memories = {"a": provider}
        session = ""
        for n in range(60):
            session = house.say(f"minute {n}", rest=False).session
            house.tick(60)
        house.rest(600)
        said = [item.heard[0].text for item in provider.kept[session]]  # type: ignore[union-attr]
        assert said == [f"minute {n}" for n in range(60)]


class TestRule10Doubt:
    @pytest.mark.parametrize("delivery", [Delivery.KEYED, Delivery.PROBE])
    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_between_send_and_answer_shows_exactly_one_message(
        self, house: House, delivery: Delivery, after: bool
    ) -> None:
        use(house, delivery)
        die_at(house, Step.DELIVERY_DONE, after=after)
        house.say("hello", rest=False)
        house.tick(5)
        house.start()
        house.rest(2 * DEADLINE_SECONDS)
        assert house.heard_back() == ["You said: hello"]

    @pytest.mark.parametrize("delivery, shown, counted", [(Delivery.PROBE, 1, False), (Delivery.BLIND, 2, True)])
    def test_a_batch_that_is_sent_again_is_stored_as_sent_before_it_leaves(
        self, house: House, delivery: Delivery, shown: int, counted: bool
    ) -> None:
        """The first attempt failed and nothing arrived. The process dies after the second one, which did arrive."""
        use(house, delivery).faults.fail(Transient("later"))
        die_at(house, Step.DELIVERY_DONE, after=False)
        session = house.say("hello", rest=False).session
        house.tick(60)
        assert house.heard_back() == ["You said: hello"]
        house.start()
        house.rest(2 * DEADLINE_SECONDS)
        assert house.heard_back() == ["You said: hello"] * shown
        assert [receipt.in_doubt for receipt in house.run(house.store.list_receipts(session))] == [counted]

    def test_a_blind_platform_resends_and_counts_it(self, house: House) -> None:
        use(house, Delivery.BLIND).faults.lose()
        session = house.say("hello", rest=False).session
        house.rest(2 * DEADLINE_SECONDS)
        assert house.heard_back() == ["You said: hello"] * 2
        receipts = house.run(house.store.list_receipts(session))
        assert [receipt.in_doubt for receipt in receipts] == [True]
        assert house.diary.of("delivery.in_doubt")

    def test_under_hold_a_blind_platform_is_never_sent_twice(self, house: House) -> None:
        house.furniture.policy = "hold"
        use(house, Delivery.BLIND).faults.lose()
        house.say("hello", rest=False)
        house.rest(2 * DEADLINE_SECONDS)
        house.say("next", rest=False)
        house.rest(1)
        assert house.heard_back() == ["You said: hello", "You said: next"]
        assert [item.in_doubt for item in house.run(house.store.list_dead_letters())] == [True]

    def test_what_may_have_arrived_and_is_sent_again_on_command_is_counted(self, house: House) -> None:
        house.furniture.policy = "hold"
        use(house, Delivery.BLIND).faults.lose()
        session = house.say("hello", rest=False).session
        house.rest(2 * DEADLINE_SECONDS)
        assert house.run(house.control.replay()) == 1
        house.rest(1)
        assert house.heard_back() == ["You said: hello"] * 2
        assert [receipt.in_doubt for receipt in house.run(house.store.list_receipts(session))] == [True]

    def test_a_second_try_that_stood_still_before_it_left_is_counted_all_the_same(self, house: House) -> None:
        use(house, Delivery.BLIND).faults.lose()
        session = house.say("hello", rest=False).session
        house.tick(1)
        stand_still(house, Step.DELIVERY_SEND, seconds=DEADLINE_SECONDS)
        house.rest(3 * DEADLINE_SECONDS)
        assert house.heard_back() == ["You said: hello"] * 2
        assert [receipt.in_doubt for receipt in house.run(house.store.list_receipts(session))] == [True]

    def test_after_a_take_over_an_unkeyed_item_holds_its_lane_for_the_deadline(self, house: House) -> None:
        """A stalled predecessor's request may still land: nothing may overtake it."""

        class Late(FakePlatform):
            async def send(self, out: Outgoing) -> str:
                if not self.shown and out.text.endswith("first"):
                    await asyncio.sleep(DEADLINE_SECONDS - 1)
                return self.receive(out)

        house.platform = Late(Delivery.PROBE)
        house.furniture.platforms[("fake", "main")] = house.platform
        house.say("first", rest=False)
        house.tick(0.5)
        house.start()  # the first process is stalled, not dead
        house.say("second", rest=False)
        house.rest(3 * DEADLINE_SECONDS)
        assert house.heard_back() == ["You said: first", "You said: second"]

    @pytest.mark.parametrize("jump", [3_600.0, -10.0, 315_360_000.0, -315_360_000.0])
    def test_a_clock_that_is_set_puts_nothing_that_is_being_sent_in_doubt(self, house: House, jump: float) -> None:
        class Late(FakePlatform):
            async def send(self, out: Outgoing) -> str:
                await asyncio.sleep(10)
                return self.receive(out)

        house.platform = Late(Delivery.BLIND)
        house.furniture.platforms[("fake", "main")] = house.platform
        house.say("hello", rest=False)
        house.tick(2)
        house.clock.skew += jump
        looking(house)
        house.rest(3 * DEADLINE_SECONDS)
        assert house.heard_back() == ["You said: hello"]
        assert house.diary.of("delivery.in_doubt") == []

    @pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
    def test_what_was_sent_is_written_down_as_soon_as_there_is_room(self, house: House, error: StoreError) -> None:
        use(house, Delivery.BLIND)
        trouble = Trouble(house, error).with_commits(Step.DELIVERY_DONE)
        house.say("hello", rest=False)
        house.tick(600)
        assert trouble.met > 1
        trouble.over = True
        house.say("and on?", rest=False)
        house.tick(5)
        assert house.heard_back() == ["You said: hello", "You said: and on?"], "sent once each"
        assert house.diary.of("delivery.in_doubt") == []

    def test_what_has_not_left_for_a_whole_deadline_is_not_in_doubt(self, house: House) -> None:
        class Late(FakePlatform):
            async def send(self, out: Outgoing) -> str:
                await asyncio.sleep(1)
                return self.receive(out)

        house.platform = Late(Delivery.BLIND)
        house.furniture.platforms[("fake", "main")] = house.platform
        stand_still(house, Step.DELIVERY_SEND, seconds=DEADLINE_SECONDS)
        house.say("hello", rest=False)
        house.rest(3 * DEADLINE_SECONDS)
        assert house.heard_back() == ["You said: hello"]
        assert house.diary.of("delivery.in_doubt") == []

    def test_a_probe_looks_only_after_the_deadline_and_the_visibility_lag(self, house: House) -> None:
        """A request may be carried out at the last moment, long after its answer was lost, and be seen later still."""

        class Late(FakePlatform):
            async def send(self, out: Outgoing) -> str:
                asyncio.get_running_loop().call_later(DEADLINE_SECONDS - 1, self.receive, out)
                raise InDoubt("the connection broke")

        house.platform = Late(Delivery.PROBE, visible_after=20.0)
        house.furniture.platforms[("fake", "main")] = house.platform
        house.say("hello", rest=False)
        house.rest(3 * DEADLINE_SECONDS)
        assert house.heard_back() == ["You said: hello"]

    def test_nor_does_whoever_takes_over_look_any_sooner(self, house: House) -> None:
        class Late(FakePlatform):
            async def send(self, out: Outgoing) -> str:
                asyncio.get_running_loop().call_later(DEADLINE_SECONDS - 1, self.receive, out)
                await asyncio.sleep(DEADLINE_SECONDS)
                return ""

        house.platform = Late(Delivery.PROBE, visible_after=20.0)
        house.furniture.platforms[("fake", "main")] = house.platform
        house.say("hello", rest=False)
        house.tick(0.5)
        house.crash()
        house.start()
        house.rest(3 * DEADLINE_SECONDS)
        assert house.heard_back() == ["You said: hello"]

    @pytest.mark.parametrize("delivery", [Delivery.KEYED, Delivery.UPSERT, Delivery.PROBE])
    def test_providers_that_can_tell_get_everything_once(self, house: House, delivery: Delivery) -> None:
        provider = FakeProvider(delivery, visible_after=2.0)
        house.furniture.memories = {"a": provider}
        provider.faults.lose()
        provider.faults.fail(InDoubt("timeout"))
        session = house.say("one", rest=False).session
        house.rest(300)
        house.say("two", rest=False)
        house.rest(300)
        assert [item.heard[0].text for item in provider.kept[session]] == ["one", "two"]  # type: ignore[union-attr]

    def test_an_adapter_that_raises_something_of_its_own_is_in_doubt(self, house: House) -> None:
        use(house, Delivery.KEYED).faults.lose(RuntimeError("surprise"))
        house.say("hello", rest=False)
        house.rest(30)
        assert house.heard_back() == ["You said: hello"]


class TestRule11Waits:
    def test_a_server_given_wait_is_never_shortened(self, house: House) -> None:
        house.platform.faults.fail(Transient("slow down", retry_after=3_600.0))
        house.say("one", rest=False)
        house.tick(3_000)
        house.say("two", rest=False)
        house.tick(500)
        assert house.heard_back() == []
        house.rest(200)
        assert house.heard_back() == ["You said: one", "You said: two"]

    @pytest.mark.parametrize("jump", [-3_600.0, -315_360_000.0, 315_360_000.0])
    def test_a_clock_that_jumps_freezes_nothing(self, house: House, jump: float) -> None:
        house.platform.faults.fail(Transient("down"), times=4)
        house.say("hello", rest=False)
        house.tick(2)
        house.clock.skew += jump
        house.rest(2 * LONGEST_WAIT_SECONDS)
        assert house.heard_back() == ["You said: hello"]

    def test_a_clock_that_goes_back_does_not_shorten_a_server_given_wait(self, house: House) -> None:
        house.platform.faults.fail(Transient("slow down", retry_after=600.0))
        house.say("hello", rest=False)
        house.tick(10)
        house.clock.skew -= 3_600
        house.tick(580)
        assert house.heard_back() == []
        house.rest(600)
        assert house.heard_back() == ["You said: hello"]


class TestRule12Destinations:
    def test_a_reply_goes_where_the_message_came_from_whatever_was_bound_since(self, house: House) -> None:
        house.furniture.model = held = HeldModel()
        house.say("from one", chat="one", rest=False)
        house.tick()
        house.say("/branch", chat="one", rest=False)
        house.tick(2)
        held.free = True
        house.rest(5)
        assert [out.to.chat for out in house.platform.shown] == ["one", "one"]

    def test_a_reply_goes_to_the_last_who_asked_whoever_said_something_after_them(self, house: House) -> None:
        house.furniture.model = held = HeldModel()
        house.say("first", rest=False)
        house.tick()
        house.say("second", id="asks", rest=False)
        house.say("by the way", id="does not", who="bob", notice=True, rest=False)
        held.free = True
        house.rest(5)
        assert [out.to.message for out in house.platform.shown][1:] == ["asks"]

    def test_parts_are_split_once_before_the_first_is_sent(self, house: House) -> None:
        platform = use(house, Delivery.KEYED, text_limit=100)
        text = " ".join(f"word{n}" for n in range(60))
        house.furniture.model = ScriptedModel([Answer(text=text)])
        platform.faults.work()
        platform.faults.fail(Transient("later"))
        session = house.say("tell me", rest=False).session
        house.tick(0.2)
        platform.text_limit = 50
        house.rest(30)
        said = house.bodies(session, Said)[0]
        assert tuple(house.heard_back()) == said.parts
        assert "".join(said.parts) == text
        assert all(len(part) <= 100 for part in said.parts)

    def test_one_platforms_outage_delays_no_other(self, house: House) -> None:
        other = FakePlatform(name="other")
        house.furniture.platforms[("other", "main")] = other
        house.platform.faults.fail(Transient("down"), times=10_000)
        house.say("to the dead one", chat="x", rest=False)
        incoming = house.message("to the other", chat="x")
        place = incoming.origin
        house.accept(structs.replace(incoming, origin=structs.replace(place, platform="other")))
        house.tick(5)
        assert [out.text for out in other.shown] == ["You said: to the other"]

    def test_what_one_session_says_in_two_places_is_said_once_in_each(self, house: House) -> None:
        other = FakePlatform(name="other")
        house.furniture.platforms[("other", "main")] = other
        there = Place(platform="other", account="main", chat="elsewhere")
        word = Result(text="told", sayings=[Saying(text="a word", to=there)])
        house.furniture.tools = {"tell": FakeTool("tell", Effect.PURE, act=lambda _arguments, _context: word)}
        house.furniture.model = ScriptedModel(calling("tell"))
        for _ in range(2):
            house.say("tell them")
        assert [(out.text, out.to.chat) for out in other.shown] == [("a word", "elsewhere")] * 2
        assert house.heard_back() == ["it says: told"] * 2

    def test_a_visible_draft_is_edited_by_the_final_text_even_after_a_crash(self, house: House) -> None:
        platform = growing(house)
        house.say("write", rest=False)
        house.tick(5)
        house.crash()
        house.start()
        house.rest(30)
        assert [(out.text, out.edits) for out in platform.shown] == [("piece by piece it grew", "draft-1")]

    def test_a_draft_is_brought_up_to_date_until_the_reply_is_made(self, house: House) -> None:
        platform = growing(house)
        house.say("write", rest=False)
        house.rest(30)
        lengths = [len(text) for text in platform.seen]
        assert len(lengths) >= 8, "twenty pieces in ten seconds, shown once a second"
        assert lengths == sorted(set(lengths))
        assert [out.edits for out in platform.shown] == ["draft-1"]

    def test_a_draft_opens_only_when_its_lane_is_empty(self, house: House) -> None:
        """It would stand above a reply that was made before."""
        platform = growing(house)
        platform.faults.fail(Transient("slow down", retry_after=60.0))
        house.say("one", rest=False)
        house.tick(15)
        assert (platform.drafts, platform.shown) == (1, [])
        house.say("two", rest=False)
        house.tick(15)
        assert platform.drafts == 1
        house.rest(120)
        assert [out.edits for out in platform.shown] == ["draft-1", ""]

    @pytest.mark.parametrize("word", ["/stop", "/halt"])
    def test_a_draft_that_nobody_finishes_says_so(self, house: House, word: str) -> None:
        platform = growing(house)
        house.say("write", rest=False)
        house.tick(3.2)
        house.say(word)
        seen = [(out.text, out.edits) for out in platform.shown if out.edits]
        assert seen == [("piece by piece " * 6 + "piece by piece … (stopped)", "draft-1")]
        assert platform.drafts == 1
        house.sound()

    def test_a_draft_that_a_dead_process_left_and_nobody_finishes_says_so(self, house: House) -> None:
        platform = growing(house)
        house.say("write", rest=False)
        house.tick(3)
        house.crash()
        house.start()
        house.say("/stop", rest=False)
        house.rest(30)
        assert [(out.text, out.edits) for out in platform.shown if out.edits] == [("… (stopped)", "draft-1")]

    def test_only_the_first_part_of_a_long_reply_takes_its_drafts_place(self, house: House) -> None:
        platform = growing(house)
        platform.text_limit = 12
        house.say("write", rest=False)
        house.rest(30)
        assert "".join(house.heard_back()) == "piece by piece it grew"
        assert [out.edits for out in platform.shown] == ["draft-1", "", ""]

    def test_a_turn_whose_draft_is_seen_has_its_number_for_good(self, house: House) -> None:
        """A draft is known by it. Begun anew after a power cut, the turn would show a second one beside the first."""
        growing(house)
        assert house.process is not None
        disk, lasting = house.process.disk, list[bool]()
        real = disk.commit

        async def commit(change: Change) -> Committed:
            if change.step is Step.BEGIN:
                lasting.append(change.durable)
            return await real(change)

        disk.commit = commit  # type: ignore[method-assign]  # a disk that loses nothing does not tell
        house.say("write", rest=False)
        house.rest(30)
        assert lasting == [True]

    def test_a_turn_that_fails_says_so_where_its_draft_is_seen(self, house: House) -> None:
        platform = growing(house, fails=Refused("no such model"))
        house.say("write", rest=False)
        house.rest(30)
        (told,) = platform.shown
        assert (told.edits, told.notice) == ("draft-1", True)
        assert told.text.startswith("I could not answer")

    def test_half_a_character_of_a_model_is_shown_as_text(self, house: House) -> None:
        platform = growing(house, piece="piece by piece \ud83d ")
        house.say("write", rest=False)
        house.rest(30)
        assert "\ufffd" in platform.seen[0]
        "".join(platform.seen).encode()

    def test_an_answer_that_breaks_off_again_and_again_leaves_no_half_of_it_to_be_seen(self, house: House) -> None:
        platform = growing(house, fails=Overloaded("the answer broke off"))
        house.say("write", rest=False)
        house.tick(25)
        assert platform.drafts >= 2
        house.furniture.model = ScriptedModel()
        house.rest(60)
        *notices, reply = platform.shown
        assert {out.edits for out in notices} == {f"draft-{n + 1}" for n in range(platform.drafts)}
        assert all(out.text.startswith("The model cannot be reached") for out in notices)
        assert (reply.text, reply.edits) == ("You said: write", "")
        house.sound()

    def test_a_draft_that_another_model_begins_anew_shows_nothing_of_the_first_one(self, house: House) -> None:
        platform = growing(house, fails=Overloaded("gone in the middle"))
        house.furniture.fallbacks = (SlowModel("all over again "),)
        house.say("write", rest=False)
        house.rest(30)
        mixed = [text for text in platform.seen if "piece by piece" in text and "all over" in text]
        assert not mixed
        assert platform.seen[-1].startswith("all over again all over again")
        assert [(out.text, out.edits) for out in platform.shown] == [("piece by piece it grew", "draft-1")]

    def test_a_word_that_the_reply_was_cut_off_does_not_take_its_place(self, house: House) -> None:
        platform = growing(house)
        house.furniture.model = SlowModel("piece by piece ", finish="length")
        house.say("write", rest=False)
        house.rest(30)
        reply, notice = platform.shown
        assert (reply.text, reply.edits) == ("piece by piece it grew", "draft-1")
        assert (notice.edits, notice.notice) == ("", True)
        assert "cut off" in notice.text

    def test_what_is_stopped_unseen_says_nothing_more(self, house: House) -> None:
        platform = growing(house)
        house.say("write", rest=False)
        house.tick(0.2)
        house.say("/stop")
        assert platform.drafts == 0
        assert len(platform.shown) == 1


class Growing(FakePlatform):
    """A platform on which replies are seen while they grow."""

    drafts = 0

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    async def draft(self, out: Outgoing) -> str:
        self.drafts += 1
        self.seen.append(out.text)
        return f"draft-{self.drafts}"

    async def revise(self, remote: str, out: Outgoing) -> None:
        self.seen.append(out.text)


class SlowModel(ScriptedModel):
    """Says the same again and again, and may fail after that."""

    def __init__(self, words: str, fails: EverholdError | None = None, finish: str = "") -> None:
        super().__init__()
        self.finish = finish
        self.words = words
        self.fails = fails

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        assert on_text is not None
        for _ in range(20):
            on_text(self.words)
            await asyncio.sleep(0.5)
        if self.fails is not None:
            raise self.fails
        return Answer(text="piece by piece it grew", finish=self.finish)


def growing(house: House, *, piece: str = "piece by piece ", fails: EverholdError | None = None) -> Growing:
    """Have replies grow slowly, and seen."""
    platform = Growing()
    house.platform = platform
    house.furniture.platforms[("fake", "main")] = platform
    house.furniture.drafts[("fake", "main")] = platform
    house.furniture.model = SlowModel(piece, fails)
    return platform


def test_what_waits_after_a_failure_is_tried_at_once_when_something_was_mended(house: House) -> None:
    house.platform.faults.fail(Transient("bad key"), times=6)
    house.say("hello", rest=False)
    house.tick(40)
    assert house.heard_back() == []
    assert house.run(house.store.retry_now(at=house.clock.now())) == 1
    house.tick(6)
    assert house.heard_back() == ["You said: hello"]


def test_a_wait_the_far_side_asked_for_is_not_hastened(house: House) -> None:
    house.platform.faults.fail(Transient("slow down", retry_after=600.0))
    house.say("hello", rest=False)
    house.tick(5)
    assert house.run(house.store.retry_now(at=house.clock.now())) == 0
    house.tick(60)
    assert house.heard_back() == []
