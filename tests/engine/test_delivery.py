"""Rules 9 to 12: cursors, items in doubt, delays, and the destination of a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from everhold.core.entries import ChatLocation, Said
from everhold.core.retry import MAX_DELAY_SECONDS
from everhold.engine.outbox.platform import SEND_DEADLINE_SECONDS
from everhold.errors import EverholdError, InDoubt, Overloaded, Refused, StoreBusy, StoreError, StoreFull, Transient
from everhold.ports.memory import MemoryBatch
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import DeliveryGuarantee, OutgoingMessage
from everhold.ports.store import Change, CommitResult, Step
from everhold.ports.tool import SendRequest, ToolEffect, ToolResult
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakePlatform, FakeTool
from everhold.testing.gateway import InProcessGateway

from .conftest import FailingStore, HeldModel
from .test_operations import calling, crash_at_step, delay_commit_result, wake_dispatcher


def use(gateway: InProcessGateway, delivery: DeliveryGuarantee, **options: Any) -> FakePlatform:
    gateway.platform = FakePlatform(delivery, **options)
    gateway.runtimes.platforms[("fake", "main")] = gateway.platform
    return gateway.platform


class TestRule9Cursors:
    def test_a_retry_repeats_exactly_the_batch_that_was_sent(self, gateway: InProcessGateway) -> None:
        batches: list[MemoryBatch] = []

        class Watching(FakeMemoryProvider):
            async def store(self, batch: MemoryBatch) -> Any:
                batches.append(batch)
                return await super().store(batch)

        provider = Watching()
        gateway.runtimes.memories = {"a": provider}
        provider.faults.fail_next(Transient("later"), times=2)
        gateway.send_message("one", rest=False)
        gateway.pass_time(0.2)
        gateway.send_message("two", rest=False)
        gateway.send_message("three", rest=False)
        gateway.run_until_idle(60)
        assert batches[0] == batches[1] == batches[2], "the same batch, despite later messages"
        kept = [item.key for items in provider.kept.values() for item in items]
        assert len(kept) == len(set(kept))

    def test_a_poisoned_session_and_a_dead_provider_block_no_other_session(self, gateway: InProcessGateway) -> None:
        dead, alive = FakeMemoryProvider(), FakeMemoryProvider()
        dead.faults.fail_next(Transient("dead"), times=10_000)
        gateway.runtimes.memories = {"dead": dead, "alive": alive}
        for chat in ("a", "b", "c"):
            gateway.send_message(f"from {chat}", chat=chat, rest=False)
        gateway.pass_time(30)
        assert len(alive.kept) == 3
        assert len(gateway.list_shown_texts()) == 3
        cursors = gateway.run(gateway.store.list_cursors(consumer="memory:dead"))
        assert all(cursor.error and cursor.attempts for cursor in cursors), "a failing provider shows"

    def test_a_refused_item_is_dead_lettered_and_the_next_is_sent(self, gateway: InProcessGateway) -> None:
        gateway.platform.faults.fail_next(Refused("chat is gone"))
        gateway.send_message("one")
        gateway.send_message("two")
        dead_letters = gateway.run(gateway.store.list_dead_letters())
        assert [(item.reason, item.in_doubt) for item in dead_letters] == [("chat is gone", False)]
        assert gateway.list_shown_texts() == ["You said: two"]

    def test_a_dead_letter_is_sent_on_replay(self, gateway: InProcessGateway) -> None:
        gateway.platform.faults.fail_next(Refused("chat is gone"))
        gateway.send_message("one")
        assert gateway.run(gateway.control.replay_dead_letters()) == 1
        gateway.run_until_idle(1)
        assert gateway.list_shown_texts() == ["You said: one"]
        assert gateway.run(gateway.store.list_dead_letters()) == []

    def test_a_replayed_part_is_sent_once_while_others_are_in_flight(self, gateway: InProcessGateway) -> None:
        platform = use(gateway, DeliveryGuarantee.PROBE, text_limit=100)
        gateway.runtimes.model = FakeModel([ModelResponse(text=" ".join(f"word{n}" for n in range(40)))])
        platform.faults.fail_next(Refused("not like this"))
        platform.faults.lose_next_answer()
        session = gateway.send_message("tell me", rest=False).session
        gateway.pass_time(0.2)
        assert gateway.run(gateway.control.replay_dead_letters()) == 1, (
            "the cursor waits to see whether the second part arrived"
        )
        gateway.run_until_idle(120)
        (said,) = gateway.read_bodies(session, Said)
        assert len(said.parts) > 2
        assert sorted(gateway.list_shown_texts()) == sorted(said.parts)

    def test_an_outage_of_an_hour_loses_nothing_and_keeps_the_order(self, gateway: InProcessGateway) -> None:
        provider = FakeMemoryProvider()
        provider.faults.fail_next(Transient("down"), times=15)
        gateway.runtimes.memories = {"a": provider}
        session = ""
        for n in range(60):
            session = gateway.send_message(f"minute {n}", rest=False).session
            gateway.pass_time(60)
        gateway.run_until_idle(600)
        said = [item.heard[0].text for item in provider.kept[session]]  # type: ignore[union-attr]
        assert said == [f"minute {n}" for n in range(60)]


class TestRule10Doubt:
    @pytest.mark.parametrize("delivery", [DeliveryGuarantee.KEYED, DeliveryGuarantee.PROBE])
    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_between_send_and_response_shows_exactly_one_message(
        self, gateway: InProcessGateway, delivery: DeliveryGuarantee, after: bool
    ) -> None:
        use(gateway, delivery)
        crash_at_step(gateway, Step.DELIVERY_DONE, after=after)
        gateway.send_message("hello", rest=False)
        gateway.pass_time(5)
        gateway.start()
        gateway.run_until_idle(2 * SEND_DEADLINE_SECONDS)
        assert gateway.list_shown_texts() == ["You said: hello"]

    @pytest.mark.parametrize(
        "delivery, shown, counted", [(DeliveryGuarantee.PROBE, 1, False), (DeliveryGuarantee.BLIND, 2, True)]
    )
    def test_a_repeated_batch_is_recorded_as_sent_before_it_is_sent(
        self, gateway: InProcessGateway, delivery: DeliveryGuarantee, shown: int, counted: bool
    ) -> None:
        """The first attempt failed and nothing arrived. The process dies after the second one, which did arrive."""
        use(gateway, delivery).faults.fail_next(Transient("later"))
        crash_at_step(gateway, Step.DELIVERY_DONE, after=False)
        session = gateway.send_message("hello", rest=False).session
        gateway.pass_time(60)
        assert gateway.list_shown_texts() == ["You said: hello"]
        gateway.start()
        gateway.run_until_idle(2 * SEND_DEADLINE_SECONDS)
        assert gateway.list_shown_texts() == ["You said: hello"] * shown
        assert [receipt.in_doubt for receipt in gateway.run(gateway.store.list_receipts(session))] == [counted]

    def test_a_blind_platform_gets_a_counted_resend(self, gateway: InProcessGateway) -> None:
        use(gateway, DeliveryGuarantee.BLIND).faults.lose_next_answer()
        session = gateway.send_message("hello", rest=False).session
        gateway.run_until_idle(2 * SEND_DEADLINE_SECONDS)
        assert gateway.list_shown_texts() == ["You said: hello"] * 2
        receipts = gateway.run(gateway.store.list_receipts(session))
        assert [receipt.in_doubt for receipt in receipts] == [True]
        assert gateway.logger.find_events("delivery.in_doubt")

    def test_with_the_hold_policy_a_blind_platform_never_gets_a_resend(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.in_doubt_policy = "hold"
        use(gateway, DeliveryGuarantee.BLIND).faults.lose_next_answer()
        gateway.send_message("hello", rest=False)
        gateway.run_until_idle(2 * SEND_DEADLINE_SECONDS)
        gateway.send_message("next", rest=False)
        gateway.run_until_idle(1)
        assert gateway.list_shown_texts() == ["You said: hello", "You said: next"]
        assert [item.in_doubt for item in gateway.run(gateway.store.list_dead_letters())] == [True]

    def test_a_replayed_in_doubt_item_is_counted(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.in_doubt_policy = "hold"
        use(gateway, DeliveryGuarantee.BLIND).faults.lose_next_answer()
        session = gateway.send_message("hello", rest=False).session
        gateway.run_until_idle(2 * SEND_DEADLINE_SECONDS)
        assert gateway.run(gateway.control.replay_dead_letters()) == 1
        gateway.run_until_idle(1)
        assert gateway.list_shown_texts() == ["You said: hello"] * 2
        assert [receipt.in_doubt for receipt in gateway.run(gateway.store.list_receipts(session))] == [True]

    def test_a_second_attempt_that_stalled_before_the_send_is_counted(self, gateway: InProcessGateway) -> None:
        use(gateway, DeliveryGuarantee.BLIND).faults.lose_next_answer()
        session = gateway.send_message("hello", rest=False).session
        gateway.pass_time(1)
        delay_commit_result(gateway, Step.DELIVERY_SEND, seconds=SEND_DEADLINE_SECONDS)
        gateway.run_until_idle(3 * SEND_DEADLINE_SECONDS)
        assert gateway.list_shown_texts() == ["You said: hello"] * 2
        assert [receipt.in_doubt for receipt in gateway.run(gateway.store.list_receipts(session))] == [True]

    def test_after_a_takeover_an_unkeyed_item_holds_its_cursor_for_the_deadline(
        self, gateway: InProcessGateway
    ) -> None:
        """A stalled predecessor's request may still land: nothing may overtake it."""

        class Late(FakePlatform):
            async def send(self, out: OutgoingMessage) -> str:
                if not self.shown_messages and out.text.endswith("first"):
                    await asyncio.sleep(SEND_DEADLINE_SECONDS - 1)
                return self.receive_sent(out)

        gateway.platform = Late(DeliveryGuarantee.PROBE)
        gateway.runtimes.platforms[("fake", "main")] = gateway.platform
        gateway.send_message("first", rest=False)
        gateway.pass_time(0.5)
        gateway.start()  # the first process is stalled, not dead
        gateway.send_message("second", rest=False)
        gateway.run_until_idle(3 * SEND_DEADLINE_SECONDS)
        assert gateway.list_shown_texts() == ["You said: first", "You said: second"]

    @pytest.mark.parametrize("jump", [3_600.0, -10.0, 315_360_000.0, -315_360_000.0])
    def test_a_clock_change_puts_no_running_send_in_doubt(self, gateway: InProcessGateway, jump: float) -> None:
        class Late(FakePlatform):
            async def send(self, out: OutgoingMessage) -> str:
                await asyncio.sleep(10)
                return self.receive_sent(out)

        gateway.platform = Late(DeliveryGuarantee.BLIND)
        gateway.runtimes.platforms[("fake", "main")] = gateway.platform
        gateway.send_message("hello", rest=False)
        gateway.pass_time(2)
        gateway.clock.skew += jump
        wake_dispatcher(gateway)
        gateway.run_until_idle(3 * SEND_DEADLINE_SECONDS)
        assert gateway.list_shown_texts() == ["You said: hello"]
        assert gateway.logger.find_events("delivery.in_doubt") == []

    @pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
    def test_a_receipt_is_recorded_once_the_disk_has_space(self, gateway: InProcessGateway, error: StoreError) -> None:
        use(gateway, DeliveryGuarantee.BLIND)
        trouble = FailingStore(gateway, error).with_commits(Step.DELIVERY_DONE)
        gateway.send_message("hello", rest=False)
        gateway.pass_time(600)
        assert trouble.met > 1
        trouble.over = True
        gateway.send_message("and on?", rest=False)
        gateway.pass_time(5)
        assert gateway.list_shown_texts() == ["You said: hello", "You said: and on?"], "sent once each"
        assert gateway.logger.find_events("delivery.in_doubt") == []

    def test_an_item_that_was_not_sent_within_the_deadline_is_not_in_doubt(self, gateway: InProcessGateway) -> None:
        class Late(FakePlatform):
            async def send(self, out: OutgoingMessage) -> str:
                await asyncio.sleep(1)
                return self.receive_sent(out)

        gateway.platform = Late(DeliveryGuarantee.BLIND)
        gateway.runtimes.platforms[("fake", "main")] = gateway.platform
        delay_commit_result(gateway, Step.DELIVERY_SEND, seconds=SEND_DEADLINE_SECONDS)
        gateway.send_message("hello", rest=False)
        gateway.run_until_idle(3 * SEND_DEADLINE_SECONDS)
        assert gateway.list_shown_texts() == ["You said: hello"]
        assert gateway.logger.find_events("delivery.in_doubt") == []

    def test_a_probe_runs_only_after_the_deadline_and_the_visibility_lag(self, gateway: InProcessGateway) -> None:
        """A request may be carried out at the last moment, long after its answer was lost, and be seen later still."""

        class Late(FakePlatform):
            async def send(self, out: OutgoingMessage) -> str:
                asyncio.get_running_loop().call_later(SEND_DEADLINE_SECONDS - 1, self.receive_sent, out)
                raise InDoubt("the connection broke")

        gateway.platform = Late(DeliveryGuarantee.PROBE, visible_after=20.0)
        gateway.runtimes.platforms[("fake", "main")] = gateway.platform
        gateway.send_message("hello", rest=False)
        gateway.run_until_idle(3 * SEND_DEADLINE_SECONDS)
        assert gateway.list_shown_texts() == ["You said: hello"]

    def test_a_probe_after_a_takeover_waits_as_long(self, gateway: InProcessGateway) -> None:
        class Late(FakePlatform):
            async def send(self, out: OutgoingMessage) -> str:
                asyncio.get_running_loop().call_later(SEND_DEADLINE_SECONDS - 1, self.receive_sent, out)
                await asyncio.sleep(SEND_DEADLINE_SECONDS)
                return ""

        gateway.platform = Late(DeliveryGuarantee.PROBE, visible_after=20.0)
        gateway.runtimes.platforms[("fake", "main")] = gateway.platform
        gateway.send_message("hello", rest=False)
        gateway.pass_time(0.5)
        gateway.crash()
        gateway.start()
        gateway.run_until_idle(3 * SEND_DEADLINE_SECONDS)
        assert gateway.list_shown_texts() == ["You said: hello"]

    @pytest.mark.parametrize("delivery", [DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT, DeliveryGuarantee.PROBE])
    def test_providers_with_keys_or_probes_get_everything_once(
        self, gateway: InProcessGateway, delivery: DeliveryGuarantee
    ) -> None:
        provider = FakeMemoryProvider(delivery, visible_after=2.0)
        gateway.runtimes.memories = {"a": provider}
        provider.faults.lose_next_answer()
        provider.faults.fail_next(InDoubt("timeout"))
        session = gateway.send_message("one", rest=False).session
        gateway.run_until_idle(300)
        gateway.send_message("two", rest=False)
        gateway.run_until_idle(300)
        assert [item.heard[0].text for item in provider.kept[session]] == ["one", "two"]  # type: ignore[union-attr]

    def test_an_unexpected_exception_of_an_adapter_means_in_doubt(self, gateway: InProcessGateway) -> None:
        use(gateway, DeliveryGuarantee.KEYED).faults.lose_next_answer(RuntimeError("surprise"))
        gateway.send_message("hello", rest=False)
        gateway.run_until_idle(30)
        assert gateway.list_shown_texts() == ["You said: hello"]


class TestRule11Waits:
    def test_a_delay_from_the_server_is_never_shortened(self, gateway: InProcessGateway) -> None:
        gateway.platform.faults.fail_next(Transient("slow down", retry_after=3_600.0))
        gateway.send_message("one", rest=False)
        gateway.pass_time(3_000)
        gateway.send_message("two", rest=False)
        gateway.pass_time(500)
        assert gateway.list_shown_texts() == []
        gateway.run_until_idle(200)
        assert gateway.list_shown_texts() == ["You said: one", "You said: two"]

    @pytest.mark.parametrize("jump", [-3_600.0, -315_360_000.0, 315_360_000.0])
    def test_a_clock_jump_blocks_nothing(self, gateway: InProcessGateway, jump: float) -> None:
        gateway.platform.faults.fail_next(Transient("down"), times=4)
        gateway.send_message("hello", rest=False)
        gateway.pass_time(2)
        gateway.clock.skew += jump
        gateway.run_until_idle(2 * MAX_DELAY_SECONDS)
        assert gateway.list_shown_texts() == ["You said: hello"]

    def test_a_clock_that_goes_back_does_not_shorten_a_delay_from_the_server(self, gateway: InProcessGateway) -> None:
        gateway.platform.faults.fail_next(Transient("slow down", retry_after=600.0))
        gateway.send_message("hello", rest=False)
        gateway.pass_time(10)
        gateway.clock.skew -= 3_600
        gateway.pass_time(580)
        assert gateway.list_shown_texts() == []
        gateway.run_until_idle(600)
        assert gateway.list_shown_texts() == ["You said: hello"]


class TestRule12Destinations:
    def test_a_reply_goes_to_the_chat_of_its_message_despite_later_bindings(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = held = HeldModel()
        gateway.send_message("from one", chat="one", rest=False)
        gateway.pass_time()
        gateway.send_message("/branch", chat="one", rest=False)
        gateway.pass_time(2)
        held.free = True
        gateway.run_until_idle(5)
        assert [out.to.chat for out in gateway.platform.shown_messages] == ["one", "one"]

    def test_a_reply_goes_to_the_last_message_that_asked(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = held = HeldModel()
        gateway.send_message("first", rest=False)
        gateway.pass_time()
        gateway.send_message("second", id="asks", rest=False)
        gateway.send_message("by the way", id="does not", who="bob", notice=True, rest=False)
        held.free = True
        gateway.run_until_idle(5)
        assert [out.to.message for out in gateway.platform.shown_messages][1:] == ["asks"]

    def test_a_reply_is_split_once_before_the_first_part_is_sent(self, gateway: InProcessGateway) -> None:
        platform = use(gateway, DeliveryGuarantee.KEYED, text_limit=100)
        text = " ".join(f"word{n}" for n in range(60))
        gateway.runtimes.model = FakeModel([ModelResponse(text=text)])
        platform.faults.succeed_next()
        platform.faults.fail_next(Transient("later"))
        session = gateway.send_message("tell me", rest=False).session
        gateway.pass_time(0.2)
        platform.text_limit = 50
        gateway.run_until_idle(30)
        said = gateway.read_bodies(session, Said)[0]
        assert tuple(gateway.list_shown_texts()) == said.parts
        assert "".join(said.parts) == text
        assert all(len(part) <= 100 for part in said.parts)

    def test_one_platforms_outage_delays_no_other(self, gateway: InProcessGateway) -> None:
        other = FakePlatform(name="other")
        gateway.runtimes.platforms[("other", "main")] = other
        gateway.platform.faults.fail_next(Transient("down"), times=10_000)
        gateway.send_message("to the dead one", chat="x", rest=False)
        incoming = gateway.make_message("to the other", chat="x")
        place = incoming.origin
        gateway.accept_message(structs.replace(incoming, origin=structs.replace(place, platform="other")))
        gateway.pass_time(5)
        assert [out.text for out in other.shown_messages] == ["You said: to the other"]

    def test_a_reply_to_two_chats_is_sent_once_to_each(self, gateway: InProcessGateway) -> None:
        other = FakePlatform(name="other")
        gateway.runtimes.platforms[("other", "main")] = other
        there = ChatLocation(platform="other", account="main", chat="elsewhere")
        word = ToolResult(text="told", send_requests=[SendRequest(text="a word", to=there)])
        gateway.runtimes.tools = {"tell": FakeTool("tell", ToolEffect.PURE, act=lambda _arguments, _context: word)}
        gateway.runtimes.model = FakeModel(calling("tell"))
        for _ in range(2):
            gateway.send_message("tell them")
        assert [(out.text, out.to.chat) for out in other.shown_messages] == [("a word", "elsewhere")] * 2
        assert gateway.list_shown_texts() == ["it says: told"] * 2

    def test_the_final_text_replaces_the_draft_even_after_a_crash(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway)
        gateway.send_message("write", rest=False)
        gateway.pass_time(5)
        gateway.crash()
        gateway.start()
        gateway.run_until_idle(30)
        assert [(out.text, out.edits) for out in platform.shown_messages] == [("piece by piece it grew", "draft-1")]

    def test_a_draft_is_updated_until_the_reply_is_committed(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway)
        gateway.send_message("write", rest=False)
        gateway.run_until_idle(30)
        lengths = [len(text) for text in platform.seen]
        assert len(lengths) >= 8, "twenty pieces in ten seconds, shown once a second"
        assert lengths == sorted(set(lengths))
        assert [out.edits for out in platform.shown_messages] == ["draft-1"]

    def test_a_draft_starts_only_when_nothing_is_undelivered(self, gateway: InProcessGateway) -> None:
        """It would appear above an earlier reply."""
        platform = growing(gateway)
        platform.faults.fail_next(Transient("slow down", retry_after=60.0))
        gateway.send_message("one", rest=False)
        gateway.pass_time(15)
        assert (platform.drafts, platform.shown_messages) == (1, [])
        gateway.send_message("two", rest=False)
        gateway.pass_time(15)
        assert platform.drafts == 1
        gateway.run_until_idle(120)
        assert [out.edits for out in platform.shown_messages] == ["draft-1", ""]

    @pytest.mark.parametrize("word", ["/stop", "/halt"])
    def test_an_unfinished_draft_is_marked(self, gateway: InProcessGateway, word: str) -> None:
        platform = growing(gateway)
        gateway.send_message("write", rest=False)
        gateway.pass_time(3.2)
        gateway.send_message(word)
        seen = [(out.text, out.edits) for out in platform.shown_messages if out.edits]
        assert seen == [("piece by piece " * 6 + "piece by piece … (stopped)", "draft-1")]
        assert platform.drafts == 1
        gateway.assert_sound()

    def test_an_unfinished_draft_of_a_dead_process_is_marked(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway)
        gateway.send_message("write", rest=False)
        gateway.pass_time(3)
        gateway.crash()
        gateway.start()
        gateway.send_message("/stop", rest=False)
        gateway.run_until_idle(30)
        assert [(out.text, out.edits) for out in platform.shown_messages if out.edits] == [("… (stopped)", "draft-1")]

    def test_only_the_first_part_of_a_long_reply_replaces_the_draft(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway)
        platform.text_limit = 12
        gateway.send_message("write", rest=False)
        gateway.run_until_idle(30)
        assert "".join(gateway.list_shown_texts()) == "piece by piece it grew"
        assert [out.edits for out in platform.shown_messages] == ["draft-1", "", ""]

    def test_a_turn_with_a_visible_draft_keeps_its_id_after_a_power_cut(self, gateway: InProcessGateway) -> None:
        """A draft is identified by the turn's id. After a power cut a turn with another id would
        show a second draft.
        """
        platform = growing(gateway)
        assert gateway.process is not None
        disk, seen = gateway.process.disk, list[str]()
        real, draft = disk.commit, platform.draft

        async def commit(change: Change) -> CommitResult:
            done = await real(change)
            if change.durable:  # then the disk has everything that was committed before, too
                seen.append(change.step.value)
            return done

        async def show(out: OutgoingMessage) -> str:
            seen.append("shown")
            return await draft(out)

        disk.commit = commit  # type: ignore[method-assign]  # a disk that loses nothing does not tell
        platform.draft = show  # type: ignore[method-assign]
        gateway.send_message("write", rest=False)
        gateway.run_until_idle(30)
        assert seen[: seen.index("shown") + 1] == [Step.ACCEPT.value, Step.DRAFT.value, "shown"]

    def test_a_failed_turn_replaces_its_draft_with_the_failure(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway, fails=Refused("no such model"))
        gateway.send_message("write", rest=False)
        gateway.run_until_idle(30)
        (told,) = platform.shown_messages
        assert (told.edits, told.notice) == ("draft-1", True)
        assert told.text.startswith("I could not answer")

    def test_half_a_surrogate_pair_in_a_draft_is_shown_as_text(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway, piece="piece by piece \ud83d ")
        gateway.send_message("write", rest=False)
        gateway.run_until_idle(30)
        assert "\ufffd" in platform.seen[0]
        "".join(platform.seen).encode()

    def test_a_repeatedly_broken_answer_leaves_no_partial_draft(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway, fails=Overloaded("the answer broke off"))
        gateway.send_message("write", rest=False)
        gateway.pass_time(25)
        assert platform.drafts >= 2
        gateway.runtimes.model = FakeModel()
        gateway.run_until_idle(60)
        *notices, reply = platform.shown_messages
        assert {out.edits for out in notices} == {f"draft-{n + 1}" for n in range(platform.drafts)}
        assert all(out.text.startswith("The model cannot be reached") for out in notices)
        assert (reply.text, reply.edits) == ("You said: write", "")
        gateway.assert_sound()

    def test_a_draft_restarted_by_another_model_shows_only_the_new_text(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway, fails=Overloaded("gone in the middle"))
        gateway.runtimes.fallbacks = (SlowModel("all over again "),)
        gateway.send_message("write", rest=False)
        gateway.run_until_idle(30)
        mixed = [text for text in platform.seen if "piece by piece" in text and "all over" in text]
        assert not mixed
        assert platform.seen[-1].startswith("all over again all over again")
        assert [(out.text, out.edits) for out in platform.shown_messages] == [("piece by piece it grew", "draft-1")]

    def test_a_cut_off_notice_does_not_replace_the_reply(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway)
        gateway.runtimes.model = SlowModel("piece by piece ", finish="length")
        gateway.send_message("write", rest=False)
        gateway.run_until_idle(30)
        reply, notice = platform.shown_messages
        assert (reply.text, reply.edits) == ("piece by piece it grew", "draft-1")
        assert (notice.edits, notice.notice) == ("", True)
        assert "cut off" in notice.text

    def test_a_turn_stopped_before_its_draft_sends_no_text(self, gateway: InProcessGateway) -> None:
        platform = growing(gateway)
        gateway.send_message("write", rest=False)
        gateway.pass_time(0.2)
        gateway.send_message("/stop")
        assert platform.drafts == 0
        assert len(platform.shown_messages) == 1


class LatePlatform(FakePlatform):
    """Carries the first request out long after its connection broke, and meanwhile refuses the chat."""

    has_broken = False

    async def send(self, out: OutgoingMessage) -> str:
        if not self.arrived and out.text.endswith("one"):
            if not self.has_broken:
                self.has_broken = True
                asyncio.get_running_loop().call_later(20.0, self.receive_sent, out)
                raise InDoubt("the connection broke")
            raise Refused("not now")
        return await super().send(out)


def test_a_refused_reply_that_is_under_way_does_not_appear_after_a_later_one(gateway: InProcessGateway) -> None:
    platform = LatePlatform(DeliveryGuarantee.KEYED)
    gateway.platform = platform
    gateway.runtimes.platforms[("fake", "main")] = platform
    gateway.send_message("one", rest=False)
    gateway.pass_time(0.2)
    gateway.send_message("two", rest=False)
    gateway.run_until_idle(120)
    assert gateway.list_shown_texts() == ["You said: one", "You said: two"]
    (dead_letter,) = gateway.run(gateway.store.list_dead_letters())
    assert dead_letter.in_doubt, "it was refused, and an earlier attempt may have arrived"


def test_an_undone_reply_that_is_under_way_does_not_appear_after_a_later_one(gateway: InProcessGateway) -> None:
    platform = LatePlatform(DeliveryGuarantee.KEYED)
    gateway.platform = platform
    gateway.runtimes.platforms[("fake", "main")] = platform
    real = platform.send

    async def refuse_later(out: OutgoingMessage) -> str:
        try:
            return await real(out)
        except Refused:
            raise Transient("not now", retry_after=3.0) from None

    platform.send = refuse_later  # type: ignore[method-assign]  # the second attempt is known not to have arrived
    gateway.send_message("one", rest=False)
    gateway.pass_time(2)
    gateway.send_message("/undo", rest=False)
    gateway.run_until_idle(120)
    shown = gateway.list_shown_texts()
    assert shown[0] == "You said: one"
    assert len(shown) == 2, "the answer to the command"


class SilentOnce(FakePlatform):
    """Shows the first message and never answers."""

    async def send(self, out: OutgoingMessage) -> str:
        remote = await super().send(out)
        if len(self.shown_messages) == 1 and len(self.arrived) == 1 and not self.has_answered:
            self.has_answered = True
            await asyncio.get_running_loop().create_future()
        return remote

    has_answered = False


@pytest.mark.parametrize("ending", ["killed", "answer lost"])
@pytest.mark.parametrize("delivery", [DeliveryGuarantee.BLIND, DeliveryGuarantee.PROBE, DeliveryGuarantee.KEYED])
def test_after_a_kill_or_a_lost_answer_a_chat_waits_for_its_platform_only(
    gateway: InProcessGateway, delivery: DeliveryGuarantee, ending: str
) -> None:
    platform = FakePlatform(delivery, visible_after=1.0) if ending == "answer lost" else SilentOnce(delivery)
    gateway.platform = platform
    gateway.runtimes.platforms[("fake", "main")] = platform
    assert gateway.process is not None
    gateway.process.supervisor.has_no_rivals = True
    if ending == "answer lost":
        platform.faults.lose_next_answer()
    gateway.send_message("one", rest=False)
    gateway.pass_time(1)
    if ending == "killed":
        gateway.crash()
        gateway.start().supervisor.has_no_rivals = True
    gateway.send_message("two", rest=False)
    gateway.pass_time(platform.settle_seconds + platform.visible_after + 1)
    twice = delivery is DeliveryGuarantee.BLIND
    assert gateway.list_shown_texts() == ["You said: one"] * (2 if twice else 1) + ["You said: two"]
    assert gateway.run(gateway.store.count_receipts_in_doubt()) == int(twice)


class Growing(FakePlatform):
    """A platform with drafts."""

    drafts = 0

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    async def draft(self, out: OutgoingMessage) -> str:
        self.drafts += 1
        self.seen.append(out.text)
        return f"draft-{self.drafts}"

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        self.seen.append(out.text)


class SlowModel(FakeModel):
    """Streams the same text repeatedly, and may fail after that."""

    def __init__(self, words: str, fails: EverholdError | None = None, finish: str = "") -> None:
        super().__init__()
        self.finish = finish
        self.words = words
        self.fails = fails

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        assert on_text is not None
        for _ in range(20):
            on_text(self.words)
            await asyncio.sleep(0.5)
        if self.fails is not None:
            raise self.fails
        return ModelResponse(text="piece by piece it grew", finish=self.finish)


def growing(
    gateway: InProcessGateway, *, piece: str = "piece by piece ", fails: EverholdError | None = None
) -> Growing:
    """Make replies slow and drafted."""
    platform = Growing()
    gateway.platform = platform
    gateway.runtimes.platforms[("fake", "main")] = platform
    gateway.runtimes.drafts[("fake", "main")] = platform
    gateway.runtimes.model = SlowModel(piece, fails)
    return platform


def test_waiting_retries_run_at_once_after_a_repair(gateway: InProcessGateway) -> None:
    gateway.platform.faults.fail_next(Transient("bad key"), times=6)
    gateway.send_message("hello", rest=False)
    gateway.pass_time(40)
    assert gateway.list_shown_texts() == []
    assert gateway.run(gateway.store.retry_now()) == 1
    gateway.pass_time(6)
    assert gateway.list_shown_texts() == ["You said: hello"]


def test_a_delay_from_the_remote_side_is_not_shortened(gateway: InProcessGateway) -> None:
    gateway.platform.faults.fail_next(Transient("slow down", retry_after=600.0))
    gateway.send_message("hello", rest=False)
    gateway.pass_time(5)
    assert gateway.run(gateway.store.retry_now()) == 0
    gateway.pass_time(60)
    assert gateway.list_shown_texts() == []
