"""Rules 13 to 16: the view and its generations, undo and branches, erasure, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec import structs

from everhold.core.context import render_messages
from everhold.core.entries import (
    Began,
    Compressed,
    Ended,
    Erased,
    Heard,
    ModelUsage,
    Noted,
    Returned,
    Said,
    Thought,
    Took,
    ToolCall,
)
from everhold.engine.context_cache import load_context_at
from everhold.errors import InvalidRequest, NotFound, Overloaded, TooLong, Transient
from everhold.ports.memory import MemoryBatch, MemoryRetraction
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Step
from everhold.ports.tool import ToolEffect, ToolResult
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakeTool, echo_last_message, get_memory_text
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel
from .test_accept import texts
from .test_delivery import use
from .test_operations import crash_at_step

LONG = "x" * 400


def make_compressing(house: InProcessGateway, *, window: int = 1_200, keep: int = 1, ahead: bool = True) -> FakeModel:
    """A house whose model has a small window, and a summariser beside it."""
    # one that reports no usage: what a token is stays what it was
    house.runtimes.model = FakeModel(lambda request: structs.replace(echo_last_message(request), usage=ModelUsage()))
    house.runtimes.model.context_tokens = window
    house.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="the story so far", model="sum"))
    house.runtimes.settings.update(soft=0.3, hard=0.6, keep=keep, ahead=ahead)
    return house.runtimes.summariser


def use_cramped_model(house: InProcessGateway, most: int) -> FakeModel:
    """A house whose model takes no more than so many letters."""

    def answer(request: ModelRequest) -> ModelResponse:
        if sum(len(message.text) for message in request.messages) > most:
            raise TooLong("too many tokens")
        return ModelResponse(text="done")

    house.runtimes.model = FakeModel(answer)
    return house.runtimes.model


def make_blocked_turn(house: InProcessGateway) -> tuple[str, HeldModel]:
    """A turn that does not fit, and beside it a summary is being made ahead of need until it is let go."""
    make_compressing(house)
    house.runtimes.summariser = held = HeldModel()
    held.text = "short"
    while not held.requests:
        house.send_message(LONG, rest=False)
        house.pass_time(1)
    use_cramped_model(house, 1_000)
    session = house.send_message("z" * 500, rest=False).session
    house.pass_time(5)
    assert len(house.runtimes.model.requests) == 1
    return session, held


class TestRule13Compressions:
    def test_a_fold_is_made_ahead_and_its_summary_stands_for_what_it_covers(self, house: InProcessGateway) -> None:
        make_compressing(house)
        session = ""
        for n in range(6):
            session = house.send_message(f"{n} {LONG}").session
        folds = house.read_bodies(session, Compressed)
        assert folds
        assert folds[0].trigger == "soft"
        shown = texts(house, session)
        assert "the story so far" in shown[0]
        assert not any(text.startswith("0 ") for text in shown)
        assert house.run(house.store.get_session(session)).id == session
        house.assert_sound()

    def test_a_summary_near_the_mark_is_not_made_anew_with_every_turn(self, house: InProcessGateway) -> None:
        """What is left after a fold can lie above the soft mark: then only enough news are worth another one."""
        make_compressing(house, window=2_000, keep=1)
        long = "the story so far " + "and on " * 180
        house.runtimes.summariser = FakeModel(lambda request: ModelResponse(text=long, model="sum"))
        house.runtimes.settings.update(soft=0.3, hard=0.95)
        session = ""
        for n in range(40):
            session = house.send_message(f"{n} {LONG if n < 12 else 'x' * 60}").session
        folds = [
            op for op in house.run(house.store.list_operations(session, types=("compression",))) if op.state == "done"
        ]
        assert 1 <= len(folds) <= 6, f"{len(folds)} folds in 40 turns"
        house.assert_sound()

    def test_at_the_hard_limit_the_chat_waits_for_the_fold(self, house: InProcessGateway) -> None:
        make_compressing(house, ahead=False)
        session = ""
        for n in range(6):
            session = house.send_message(f"{n} {LONG}").session
        began = [body for body in house.read_bodies(session, Began) if body.type == "compression"]
        assert began
        assert all(body.blocking and body.trigger == "hard" for body in began)
        assert [text[:10] for text in house.list_shown_texts()].count("You said: ") == 6
        assert any("Your message is kept" in text for text in house.list_shown_texts())
        house.assert_sound()

    @pytest.mark.parametrize("change", ["/new", "/undo"])
    def test_a_fold_of_a_view_that_changed_meanwhile_is_discarded(self, house: InProcessGateway, change: str) -> None:
        make_compressing(house)
        house.runtimes.summariser = held = HeldModel()
        held.text = "too late"
        session = ""
        for n in range(4):
            session = house.send_message(f"{n} {LONG}", rest=False).session
            house.pass_time(1)
        assert held.requests, "the fold must be under way"
        house.send_message(change, rest=False)
        house.pass_time(1)
        held.free = True
        house.pass_time(5)
        assert all(fold.generation > 0 for fold in house.read_bodies(session, Compressed)), "made of another view"
        assert "the view changed" in next(b.reason for b in house.read_bodies(session, Ended) if b.outcome == "refused")
        house.assert_sound()

    @pytest.mark.parametrize("answer", ["", "y" * 5_000])
    def test_a_summary_that_is_no_summary_changes_nothing(self, house: InProcessGateway, answer: str) -> None:
        make_compressing(house)
        house.runtimes.summariser = FakeModel(lambda request: ModelResponse(text=answer))
        session = ""
        for n in range(4):
            session = house.send_message(f"{n} {LONG}", rest=False).session
            house.pass_time(1)
        assert house.read_bodies(session, Compressed) == []
        assert house.logger.find_events("compression.refused")
        assert texts(house, session)[0].startswith("0 ")

    def test_a_fold_cut_short_by_a_crash_is_closed_and_made_again(self, house: InProcessGateway) -> None:
        make_compressing(house)
        crash_at_step(house, Step.COMPRESSION_END, after=False)
        session = ""
        for n in range(2):
            session = house.send_message(f"{n} {LONG}", rest=False).session
            house.pass_time(1)
        house.start()
        house.run_until_idle(5)
        for n in range(3, 6):
            house.send_message(f"{n} {LONG}")
        outcomes = [body.outcome for body in house.read_bodies(session, Ended)]
        assert "refused" in outcomes
        assert house.read_bodies(session, Compressed)
        house.assert_sound()

    def test_a_resumed_turn_builds_the_same_request_although_a_fold_came_between(self, house: InProcessGateway) -> None:
        make_compressing(house)
        house.runtimes.summariser = summariser = HeldModel()
        session = ""
        for n in range(4):
            session = house.send_message(f"{n} {LONG}", rest=False).session
            house.pass_time(1)
        house.runtimes.model = answering = HeldModel()
        answering.context_tokens = 1_200
        house.runtimes.settings["hard"] = 0.99
        house.send_message("the question", rest=False)
        house.pass_time(1)
        summariser.text = "short"
        summariser.free = True
        house.pass_time(3)
        assert house.read_bodies(session, Compressed), "the fold must land while the turn runs"
        house.crash()
        house.start()
        house.pass_time(3)
        assert len(answering.requests) == 2
        assert answering.requests[0] == answering.requests[1]

    def test_no_turn_begins_while_a_blocking_fold_runs_and_what_arrives_is_seen_next(
        self, house: InProcessGateway
    ) -> None:
        make_compressing(house, ahead=False)
        for n in range(4):
            house.send_message(f"{n} {LONG}")
        house.runtimes.summariser = held = HeldModel()
        session = house.send_message("trigger", rest=False).session
        house.pass_time(1)
        house.send_message("meanwhile", rest=False)
        house.pass_time(1)
        assert held.requests
        running = [op for op in house.run(house.store.list_operations(session)) if op.state == "running"]
        assert [(op.type, op.blocking) for op in running] == [("compression", True)]
        held.free = True
        held.text = "short"
        house.run_until_idle(10)
        assert texts(house, session)[-3:-1] == ["trigger", "meanwhile"]
        house.assert_sound()

    def test_a_turn_whose_fold_was_cut_short_by_a_crash_folds_again_and_goes_on(self, house: InProcessGateway) -> None:
        house.runtimes.model = FakeModel(lambda request: ModelResponse(text="y" * 1_500))
        session = house.send_message("one").session
        house.send_message("two")
        use_cramped_model(house, 4_000)
        house.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="short"))
        crash_at_step(house, Step.COMPRESSION_END, after=False)
        house.send_message("z" * 1_500, rest=False)
        house.pass_time(5)
        house.start()
        house.run_until_idle(30)
        assert house.list_shown_texts()[-1] == "done"
        assert [body.trigger for body in house.read_bodies(session, Compressed)] == ["too long"]
        ended = [body.reason for body in house.read_bodies(session, Ended) if body.outcome == "refused"]
        assert ended == ["cut short by a restart"]
        house.assert_sound()

    def test_a_turn_that_does_not_fit_waits_for_a_summary_that_is_being_made_ahead(
        self, house: InProcessGateway
    ) -> None:
        session, held = make_blocked_turn(house)
        held.free = True
        house.run_until_idle(10)
        assert house.list_shown_texts()[-1] == "done"
        assert [body.trigger for body in house.read_bodies(session, Compressed)] == ["soft", "too long"]
        house.assert_sound()

    def test_a_turn_that_waits_for_a_summary_can_be_stopped(self, house: InProcessGateway) -> None:
        session, held = make_blocked_turn(house)
        house.send_message("/stop", rest=False)
        house.pass_time(5)
        assert "stopped" in [body.outcome for body in house.read_bodies(session, Ended)]
        held.free = True
        house.run_until_idle(10)
        house.assert_sound()

    def test_what_does_not_fit_mid_turn_is_stubbed_then_folded_then_fails_visibly(
        self, house: InProcessGateway
    ) -> None:
        asked: list[ModelRequest] = []

        def answer(request: ModelRequest) -> ModelResponse:
            asked.append(request)
            size = sum(len(message.text) for message in request.messages)
            if size > 4_000:
                raise TooLong("too many tokens")
            if request.messages[-1].role == "tool":
                return ModelResponse(text="done")
            return ModelResponse(calls=(ToolCall(id="c", tool="read"),))

        house.runtimes.tools = {
            "read": FakeTool("read", ToolEffect.PURE, act=lambda arguments, context: ToolResult(text="y" * 30_000))
        }
        house.runtimes.model = FakeModel(answer)
        session = house.send_message("read it").session
        assert house.list_shown_texts() == ["done"]
        assert house.read_bodies(session, Thought)[-1].stubs
        house.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="short"))
        house.send_message("z" * 1_500)
        assert house.list_shown_texts()[-1] == "done"
        assert [body.trigger for body in house.read_bodies(session, Compressed)] == ["too long"]
        assert [body.compression for body in house.read_bodies(session, Took) if body.compression is not None]
        house.send_message("z" * 5_000)
        assert "does not fit" in house.list_shown_texts()[-1]
        house.assert_sound()


def use_narrow_model(house: InProcessGateway, *, most: int, window: int = 8_000) -> list[ModelRequest]:
    """A house whose model, which also makes its summaries, refuses more than `most` characters; what it was asked."""
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> ModelResponse:
        asked.append(request)
        if sum(len(message.text) for message in request.messages) > most:
            raise TooLong("too many tokens")
        return ModelResponse(text=f"answer {len(asked)}")

    house.runtimes.model = house.runtimes.summariser = FakeModel(answer)
    house.runtimes.model.context_tokens = window
    return asked


class TestRule13Messages:
    """A message that is larger than the window costs its own turn, and no later one."""

    GIANT = f"begin {'g' * 400_000} end"

    def exact(self, house: InProcessGateway, session: str) -> list[bool | None]:
        seqs = [entry.seq for entry in house.read_log(session) if isinstance(entry.body, Thought)]
        return [house.run(house.control.load_context(session, at=seq)).exact for seq in seqs]

    def test_it_fails_visibly_and_what_follows_is_answered_with_a_stub_of_it(self, house: InProcessGateway) -> None:
        asked = use_narrow_model(house, most=8_000)
        session = house.send_message("hello").session
        giant = house.send_message(self.GIANT).seq
        assert "the message does not fit the model" in house.list_shown_texts()[-1]
        assert "/undo" in house.list_shown_texts()[-1]
        assert "/retry tries it again" not in house.list_shown_texts()[-1]
        assert house.read_bodies(session, Compressed) == [], "a summary of the rest would not have helped"
        assert house.read_bodies(session, Ended)[-1].stubs == (giant,)
        asked.clear()
        house.send_message("and now?")
        house.send_message("and then?")
        assert house.list_shown_texts()[-2:] == ["answer 1", "answer 2"]
        first, second = asked
        stub = first.messages[2].text
        assert stub.startswith("begin ggg")
        assert stub.endswith("ggg end")
        assert f"of {len(self.GIANT)} characters left out; the whole is entry {giant} of this session" in stub
        assert second.messages[: len(first.messages)] == first.messages, "the beginning of requests stays the same"
        assert self.exact(house, session) == [True, True, True]
        upcoming = house.run(house.control.load_context(session)).request.messages
        assert upcoming[: len(second.messages)] == second.messages
        house.assert_sound()

    def test_undo_takes_it_out_and_a_larger_window_answers_it_whole(self, house: InProcessGateway) -> None:
        use_narrow_model(house, most=8_000)
        session = house.send_message(self.GIANT).session
        house.send_message("/undo")
        assert texts(house, session) == []
        house.send_message(self.GIANT)
        asked = use_narrow_model(house, most=900_000, window=500_000)
        house.send_message("/retry")
        assert asked[-1].messages[-1].text == self.GIANT
        house.send_message("thanks")
        assert asked[-1].messages[0].text == self.GIANT
        house.assert_sound()

    def test_one_that_was_answered_in_a_larger_window_becomes_a_stub_in_a_smaller_one(
        self, house: InProcessGateway
    ) -> None:
        use_narrow_model(house, most=900_000, window=500_000)
        session = house.send_message(self.GIANT).session
        house.runtimes.settings.update(hard=9.0, soft=9.0)
        asked = use_narrow_model(house, most=8_000)
        house.send_message("and now?")
        assert [body.outcome for body in house.read_bodies(session, Ended)] == ["done", "done"]
        assert len(asked) == 2, "once in vain"
        house.send_message("and then?")
        assert len(asked) == 3, "what was shortened stays so"
        assert asked[2].messages[: len(asked[1].messages)] == asked[1].messages
        assert house.read_bodies(session, Compressed) == []
        assert self.exact(house, session) == [True, True, True]
        house.assert_sound()

    def test_one_that_is_too_long_only_for_a_window_smaller_than_configured_is_shown_as_a_stub_too(
        self, house: InProcessGateway
    ) -> None:
        asked = use_narrow_model(house, most=4_000, window=128_000)
        session = house.send_message("m" * 6_000).session
        assert "the message does not fit the model" in house.list_shown_texts()[-1]
        asked.clear()
        house.send_message("and now?")
        assert house.list_shown_texts()[-1] == "answer 1"
        assert self.exact(house, session) == [True]
        house.assert_sound()

    def test_it_can_be_compressed_and_reviewed(self, house: InProcessGateway) -> None:
        asked = use_narrow_model(house, most=8_000)
        session = house.send_message(self.GIANT).session
        house.runtimes.settings["review_every"] = 1
        house.send_message("and now?")
        house.send_message("/compress here 0")
        assert [folded.messages for folded in house.read_bodies(session, Compressed)] == [2]
        assert not house.logger.find_events("compression.refused")
        assert not house.logger.find_events("review.skipped")
        assert all(sum(len(m.text) for m in request.messages) <= 8_000 for request in asked[1:])
        house.assert_sound()

    def test_a_summary_that_the_whole_does_not_fit_into_is_made_of_stubs(self, house: InProcessGateway) -> None:
        use_narrow_model(house, most=900_000, window=500_000)
        session = house.send_message(self.GIANT).session
        use_narrow_model(house, most=8_000)
        house.send_message("/compress here 0")
        assert [folded.messages for folded in house.read_bodies(session, Compressed)] == [1]
        house.send_message("and now?")
        assert house.read_bodies(session, Ended)[-1].outcome == "done"
        house.assert_sound()


class TestRule14Undo:
    def test_undone_turns_leave_the_view_and_nothing_is_deleted(self, house: InProcessGateway) -> None:
        session = house.send_message("one").session
        house.send_message("two")
        before = house.read_log(session)
        house.send_message("/undo")
        assert texts(house, session) == ["one", "You said: one"]
        assert house.read_log(session)[: len(before)] == before
        house.assert_sound()

    def test_undo_cancels_unsent_parts_and_retracts_from_memory(self, house: InProcessGateway) -> None:
        provider = FakeMemoryProvider()
        house.runtimes.memories = {"a": provider}
        platform = use(house, DeliveryGuarantee.KEYED, text_limit=60)
        house.runtimes.model = FakeModel([ModelResponse(text=" ".join(f"word{n}" for n in range(30)))])
        platform.faults.succeed_next()
        platform.faults.fail_next(Transient("later", retry_after=600.0))
        session = house.send_message("tell me", rest=False).session
        house.pass_time(5)
        house.send_message("/undo", rest=False)
        house.pass_time(1_200)
        said = house.read_bodies(session, Said)[0]
        assert house.list_shown_texts()[0] == said.parts[0]
        assert said.parts[1] not in house.list_shown_texts()
        kept = provider.kept[session]
        assert isinstance(kept[-1], MemoryRetraction)
        assert kept[-1].keys == (kept[0].key,)

    def test_retry_answers_the_same_messages_again(self, house: InProcessGateway) -> None:
        session = house.send_message("one").session
        house.runtimes.model = FakeModel([ModelResponse(text="better")])
        house.send_message("/retry")
        assert texts(house, session) == ["one", "better"]
        house.assert_sound()

    def test_undoing_a_fold_restores_the_exact_earlier_context(self, house: InProcessGateway) -> None:
        make_compressing(house, keep=1)
        session = house.send_message(f"0 {LONG}").session
        house.runtimes.settings["ahead"] = False
        house.runtimes.settings["hard"] = 0.9
        for n in range(1, 3):
            house.send_message(f"{n} {LONG}")
        before = texts(house, session)
        house.runtimes.settings.update(ahead=True)
        house.send_message(f"3 {LONG}")
        assert house.read_bodies(session, Compressed)
        house.runtimes.settings.update(ahead=False)
        house.send_message("/undo compress")
        assert texts(house, session)[: len(before)] == before
        house.assert_sound()

    def test_an_undone_turn_voids_the_folds_that_cover_it(self, house: InProcessGateway) -> None:
        make_compressing(house, keep=0)
        session = ""
        for n in range(3):
            session = house.send_message(f"{n} {LONG}").session
        assert house.read_bodies(session, Compressed)
        house.runtimes.settings.update(ahead=False, hard=9.0)
        house.send_message("/undo 2")
        assert "the story so far" not in " ".join(texts(house, session))
        assert texts(house, session)[0].startswith("0 ")
        house.assert_sound()

    def test_a_branch_starts_with_its_parents_context_and_copies_nothing(self, house: InProcessGateway) -> None:
        parent = house.send_message("one").session
        house.send_message("/branch")
        branch = house.send_message("two").session
        assert branch != parent
        assert texts(house, branch) == ["one", "You said: one", "two", "You said: two"]
        assert [body.text for body in house.read_bodies(branch, Heard)] == ["two"]
        assert texts(house, parent) == ["one", "You said: one"]
        assert house.list_shown_texts().count("You said: one") == 1
        house.assert_sound()

    def test_a_fresh_context_keeps_the_session_and_its_history(self, house: InProcessGateway) -> None:
        session = house.send_message("old").session
        house.send_message("/new")
        assert house.send_message("new").session == session
        assert texts(house, session) == ["new", "You said: new"]
        house.assert_sound()


SECRET = "the launch code is 4711"


class TestRule15Erasure:
    def everywhere(self, house: InProcessGateway) -> bytes:
        """Every byte the store holds, the write-ahead log included."""
        return b"".join(path.read_bytes() for path in house.path.glob("log.db*"))

    def test_erased_words_are_gone_and_the_log_still_holds_together(self, house: InProcessGateway) -> None:
        session = house.send_message(SECRET).session
        seqs = [e.seq for e in house.read_log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase_entries(session, seqs))
        assert b"4711" not in self.everywhere(house)
        house.send_message("what was it?")
        assert not any("4711" in str(m) for m in house.runtimes.model.requests[-1].messages)
        assert house.read_bodies(session, Erased)
        house.assert_sound()

    def test_a_fold_that_contained_it_goes_too(self, house: InProcessGateway) -> None:
        make_compressing(house, keep=0)
        house.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="they spoke of 4711"))
        session = house.send_message(f"{SECRET} {LONG}").session
        house.send_message(f"more {LONG}")
        assert house.read_bodies(session, Compressed)
        seqs = [
            e.seq for e in house.read_log(session) if e.kind in ("heard", "said", "thought") and "4711" in str(e.body)
        ]
        house.run(house.control.erase_entries(session, seqs))
        assert b"4711" not in self.everywhere(house)
        assert not any("4711" in text for text in texts(house, session))
        house.assert_sound()

    def test_it_ends_running_operations_that_saw_it(self, house: InProcessGateway) -> None:
        house.runtimes.model = held = HeldModel()
        session = house.send_message(SECRET, rest=False).session
        house.pass_time(1)
        held.text = "yes, 4711"
        house.run(house.control.erase_entries(session, [1]))
        held.free = True
        house.pass_time(5)
        assert [body.outcome for body in house.read_bodies(session, Ended)] == ["erased"]
        assert b"4711" not in self.everywhere(house)
        house.assert_sound()

    def test_whoever_speaks_next_does_not_wait_for_a_turn_that_was_ended_so(self, house: InProcessGateway) -> None:
        house.runtimes.model = held = HeldModel()
        session = house.send_message(SECRET, rest=False).session
        house.pass_time(1)
        house.run(house.control.erase_entries(session, [1]))
        held.free = True
        house.send_message("and now?", rest=False)
        house.pass_time(3)
        assert house.list_shown_texts() == ["at last"]
        house.assert_sound()

    def test_what_was_erased_meanwhile_is_shown_to_no_other_model(self, house: InProcessGateway) -> None:
        class Failing(FakeModel):
            async def answer(
                self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
            ) -> ModelResponse:
                await asyncio.sleep(10)
                raise Overloaded("too much to do")

        house.runtimes.model = Failing()
        house.runtimes.fallbacks = (other := FakeModel(),)
        session = house.send_message(SECRET, rest=False).session
        house.pass_time(5)
        house.run(house.control.erase_entries(session, [1]))
        house.pass_time(30)
        assert other.requests == []
        house.assert_sound()

    def test_a_batch_in_flight_is_voided_and_the_rest_of_it_goes_again(self, house: InProcessGateway) -> None:
        provider = FakeMemoryProvider(DeliveryGuarantee.UPSERT)
        provider.faults.fail_next(Transient("down"))
        house.runtimes.memories = {"a": provider}
        session = house.send_message(SECRET, rest=False).session
        house.pass_time(0.2)
        house.send_message("harmless", rest=False)
        house.pass_time(0.2)
        seqs = [e.seq for e in house.read_log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase_entries(session, seqs))
        house.run_until_idle(120)
        stored = " ".join(str(item) for items in provider.kept.values() for item in items)
        assert "4711" not in stored
        assert "harmless" in stored

    def test_what_was_erased_on_its_way_to_somebody_who_cannot_tell_is_counted(self, house: InProcessGateway) -> None:
        batches: list[list[str]] = []

        class Slow(FakeMemoryProvider):
            async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
                batches.append([get_memory_text(item) for item in batch.items])
                await asyncio.sleep(10)
                return await super().store(batch)

        house.runtimes.memories = {"a": Slow(DeliveryGuarantee.BLIND)}
        session = house.send_message("first", rest=False).session
        house.pass_time(1)
        for text in (SECRET, "harmless"):
            house.send_message(text, rest=False)
            house.pass_time(1)
        house.pass_time(10)
        assert len(batches[-1]) == 2, "both are on their way"
        seqs = [e.seq for e in house.read_log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase_entries(session, seqs))
        house.crash()
        house.start()
        house.run_until_idle(300)
        (parked,) = house.run(house.store.list_dead_letters(session=session))
        assert parked.in_doubt
        assert "4711" not in str(batches[2:])
        assert "harmless" in str(batches[2:])
        house.assert_sound()

    def test_a_redelivered_erased_message_is_a_duplicate(self, house: InProcessGateway) -> None:
        session = house.send_message(SECRET, id="9").session
        house.run(house.control.erase_entries(session, [1]))
        assert house.send_message(SECRET, id="9").outcome == "duplicate"
        assert b"4711" not in self.everywhere(house).replace(b"You said: the launch code is 4711", b"")

    def test_a_branch_forgets_with_its_parent(self, house: InProcessGateway) -> None:
        parent = house.send_message(SECRET).session
        house.send_message("/branch")
        branch = house.send_message("in the branch").session
        seqs = [e.seq for e in house.read_log(parent) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase_entries(parent, seqs))
        house.send_message("still there?")
        assert not any("4711" in str(m) for m in house.runtimes.model.requests[-1].messages)
        assert not any("4711" in text for text in texts(house, branch))

    def test_a_branch_forgets_though_whoever_erased_fell_before_it_was_its_turn(self, house: InProcessGateway) -> None:
        make_compressing(house, keep=0)
        house.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="they spoke of 4711"))
        parent = house.send_message(SECRET).session
        house.send_message("/branch")
        branch = house.send_message(f"in the branch {LONG}").session
        house.send_message(f"more {LONG}")
        assert house.read_bodies(branch, Compressed)
        assert not house.read_bodies(parent, Compressed)
        house.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="nothing worth telling"))
        seqs = [e.seq for e in house.read_log(parent) if e.body is not None and "4711" in str(e.body)]
        crash_at_step(house, Step.ERASE, after=True)
        house.loop.create_task(house.control.erase_entries(parent, seqs))
        house.pass_time(1)
        house.start()
        assert b"4711" in self.everywhere(house)
        house.run(house.control.reapply_erasures())
        assert b"4711" not in self.everywhere(house)
        house.assert_sound()

    def test_a_restored_backup_forgets_again(self, house: InProcessGateway) -> None:
        session = house.send_message(SECRET).session
        assert house.process is not None
        saved = house.run(house.process.disk.make_backup(house.path / "saved.db"))
        seqs = [e.seq for e in house.read_log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase_entries(session, seqs))
        house.crash()
        for path in house.path.glob("log.db*"):
            path.unlink()
        saved.rename(house.path / "log.db")
        house.start()
        assert b"4711" in self.everywhere(house)
        assert house.run(house.control.reapply_erasures()) == len(seqs)
        assert b"4711" not in self.everywhere(house)
        assert house.run(house.control.reapply_erasures()) == 0
        house.assert_sound()

    @pytest.mark.parametrize(
        "torn", [b'{"session":"s","se', b'{"session":"","seqs":[],"forget":["ada"],"at":1', b"\0" * 9]
    )
    def test_a_line_that_a_power_cut_tore_keeps_nobody_from_starting(
        self, house: InProcessGateway, torn: bytes
    ) -> None:
        """It tells of an erasure that was not begun, and takes no other with it."""
        session = house.send_message(SECRET).session
        file = house.control.erasures
        assert file is not None
        file.write_bytes(torn)
        assert house.run(house.control.reapply_erasures()) == 0
        assert house.control.read_erasures(about=b'"forget"') == []
        seqs = [e.seq for e in house.read_log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase_entries(session, seqs))
        (record,) = house.control.read_erasures()
        assert (record["session"], record["seqs"]) == (session, seqs)
        assert house.run(house.control.reapply_erasures()) == 0
        house.assert_sound()

    def test_what_holds_the_log_together_cannot_be_erased(self, house: InProcessGateway) -> None:
        session = house.send_message("hello").session
        with pytest.raises(InvalidRequest):
            house.run(house.control.erase_entries(session, [2]))
        with pytest.raises(NotFound):
            house.run(house.control.erase_entries(session, [99]))


class TestRule16Limits:
    def test_a_message_of_a_megabyte_is_kept_and_answered(self, house: InProcessGateway) -> None:
        house.runtimes.model = FakeModel([ModelResponse(text="long indeed")])
        text = "a" * 1_000_000
        session = house.send_message(text).session
        assert house.read_bodies(session, Heard)[0].text == text

    @pytest.mark.parametrize(
        "text", ["bad \ud800 surrogate", "nul \0 inside", "\u202eltr", "\ufeff", "👨‍👩‍👧" * 10_000]
    )
    def test_strange_text_is_kept_and_harms_no_neighbour(self, house: InProcessGateway, text: str) -> None:
        house.runtimes.model = FakeModel(lambda request: ModelResponse(text="fine"))
        house.send_message("before")
        session = house.send_message(text).session
        house.send_message("after")
        heard = house.read_bodies(session, Heard)
        assert [heard[0].text, heard[2].text] == ["before", "after"]
        assert heard[1].mangled == ("\ud800" in text)
        if not heard[1].mangled:
            assert heard[1].text == text
        house.assert_sound()

    def test_an_unknown_kind_stops_its_own_lane_and_no_other(self, house: InProcessGateway) -> None:
        provider = FakeMemoryProvider()
        house.runtimes.memories = {"a": provider}
        provider.faults.fail_next(Transient("down"))
        session = house.send_message("one", rest=False).session
        house.pass_time(0.2)
        assert house.process is not None
        house.process.disk.writer.db.execute("update entries set kind = 'dreamt' where kind = 'said'")
        other = house.send_message("elsewhere", chat="other", rest=False).session
        house.pass_time(30)
        assert "You said: elsewhere" in house.list_shown_texts()
        assert other in provider.kept
        lanes = house.run(house.store.list_cursors(session=session))
        assert any("dreamt" in lane.error for lane in lanes)

    def test_ten_thousand_pending_are_drained_in_order(self, house: InProcessGateway) -> None:
        house.runtimes.model = held = HeldModel()
        held.context_tokens = 10_000_000
        session = house.send_message("0", rest=False).session

        async def burst() -> None:
            assert house.process is not None
            for n in range(1, 10_000):
                await house.process.accept(house.make_message(str(n)))
                await asyncio.sleep(0.001 * (n % 500 == 0))

        house.run(burst())
        held.free = True
        house.run_until_idle(60)
        heard = [body.text for body in house.read_bodies(session, Heard)]
        assert heard == [str(n) for n in range(10_000)]
        assert house.run(house.store.get_session(session)).pending == 0
        shown = [text for text in texts(house, session) if text.isdigit()]
        assert shown == heard


class TestBusy:
    """E4: what happens to a message that arrives mid-turn."""

    def tool_turn(self, house: InProcessGateway, seen: list[list[str]]) -> None:
        class Reading(FakeModel):
            async def answer(
                self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
            ) -> ModelResponse:
                seen.append([message.text for message in request.messages if message.role == "user"])
                await asyncio.sleep(1)
                if len(seen) < 3:
                    return ModelResponse(calls=(ToolCall(id="c", tool="look"),))
                return ModelResponse(text="done")

        house.runtimes.tools = {"look": FakeTool("look", ToolEffect.PURE)}
        house.runtimes.model = Reading()

    def test_steer_is_seen_at_the_next_tool_boundary(self, house: InProcessGateway) -> None:
        seen: list[list[str]] = []
        self.tool_turn(house, seen)
        session = house.send_message("start", rest=False).session
        house.pass_time(0.5)
        house.send_message("/steer left", rest=False)
        house.run_until_idle(10)
        assert seen == [["start"], ["start", "left"], ["start", "left"]]
        assert house.list_shown_texts() == ["done"]
        house.assert_sound()
        assert len(house.read_bodies(session, Took)) == 1

    def test_interrupt_ends_the_running_turn_and_the_message_is_answered(self, house: InProcessGateway) -> None:
        house.runtimes.settings["busy"] = "interrupt"
        house.runtimes.model = held = HeldModel()
        session = house.send_message("wrong question", rest=False).session
        house.pass_time(1)
        house.runtimes.model = FakeModel()
        house.send_message("right question", rest=False)
        house.run_until_idle(10)
        assert [body.outcome for body in house.read_bodies(session, Ended)] == ["interrupted", "done"]
        assert house.list_shown_texts() == ["You said: right question"]
        assert held.requests
        house.assert_sound()

    def test_stop_ends_the_turn_and_says_so_truly(self, house: InProcessGateway) -> None:
        house.runtimes.model = HeldModel()
        session = house.send_message("never mind", rest=False).session
        house.pass_time(1)
        house.send_message("/stop", rest=False)
        house.pass_time(5)
        outcomes = [body.outcome for body in house.read_bodies(session, Ended)]
        assert outcomes.count("stopped") == 1
        assert house.run(house.store.get_session(session)).running == ""

    def test_stop_waits_for_a_tool_that_changes_something(self, house: InProcessGateway) -> None:
        class Slow(FakeTool):
            async def run(self, arguments: dict[str, Any], context: Any) -> ToolResult:
                await asyncio.sleep(5)
                return await super().run(arguments, context)

        tool = Slow("send", ToolEffect.ONCE)
        house.runtimes.tools = {"send": tool}
        house.runtimes.model = FakeModel(lambda request: ModelResponse(calls=(ToolCall(id="c", tool="send"),)))
        session = house.send_message("send it", rest=False).session
        house.pass_time(1)
        house.send_message("/stop", rest=False)
        house.pass_time(30)
        assert sum(tool.done.values()) == 1
        assert [body.unknown for body in house.read_bodies(session, Returned)] == [False]
        assert "stopped" in [body.outcome for body in house.read_bodies(session, Ended)]

    def test_with_the_model_down_stop_puts_the_messages_aside(self, house: InProcessGateway) -> None:
        house.runtimes.model.faults.fail_next(Overloaded("down"), times=10_000)
        session = house.send_message("hello?", rest=False).session
        house.pass_time(5)
        house.send_message("/stop", rest=False)
        house.pass_time(5)
        assert house.run(house.store.get_session(session)).pending == 0
        house.runtimes.model.faults = type(house.runtimes.model.faults)()
        house.pass_time(600)
        assert not any("You said: hello?" in text for text in house.list_shown_texts())


def test_the_exact_context_of_a_turn_is_verified_against_its_digest(house: InProcessGateway) -> None:
    session = house.send_message("one").session
    house.send_message("two")
    house.send_message("/undo")
    house.send_message("three")
    thoughts = [entry.seq for entry in house.read_log(session) if isinstance(entry.body, Thought)]
    for seq, request in zip(thoughts, house.runtimes.model.requests, strict=True):
        shown = house.run(house.control.load_context(session, at=seq))
        assert shown.exact is True
        assert shown.request == request
    house.run(house.control.erase_entries(session, [1]))
    assert house.run(house.control.load_context(session, at=thoughts[0])).exact is False


def test_a_note_is_kept_at_once_and_reaches_the_providers(house: InProcessGateway) -> None:
    provider = FakeMemoryProvider()
    house.runtimes.memories = {"a": provider}
    session = house.send_message("hello").session
    house.run(house.control.add_note(session, "Ada likes tea", by="person:ada"))
    house.run_until_idle()
    assert [note.text for note in house.read_bodies(session, Noted)] == ["Ada likes tea"]
    assert [type(item).__name__ for item in provider.kept[session]] == ["Exchange", "Note"]


def test_the_view_of_a_session_is_the_same_read_at_once_or_grown(house: InProcessGateway) -> None:
    """The kept view of a talking session and the one read from the log alone show the same."""
    session = ""
    for n in range(10):
        session = house.send_message(f"message {n}").session

    async def look() -> list[str]:
        found = await house.store.get_session(session)
        return [m.text for m in render_messages(await load_context_at(house.store, found, at=found.last_seq + 1))]

    assert [m.text for m in house.runtimes.model.requests[-1].messages] == house.run(look())[:-1]


def test_a_branch_that_folded_what_it_inherited_forgets_with_its_parent(house: InProcessGateway) -> None:
    make_compressing(house, keep=0, ahead=False)
    house.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="they spoke of 4711"))
    parent = house.send_message(f"{SECRET} {LONG}").session
    house.send_message("/branch")
    house.runtimes.settings["ahead"] = True
    branch = house.send_message(f"on we go {LONG}").session
    assert branch != parent
    assert [fold.summary for fold in house.read_bodies(branch, Compressed)] == ["they spoke of 4711"]
    seqs = [e.seq for e in house.read_log(parent) if e.body is not None and "4711" in str(e.body)]
    house.run(house.control.erase_entries(parent, seqs))
    house.send_message("and now?")
    assert not any("4711" in str(m) for m in house.runtimes.model.requests[-1].messages)
    assert any("on we go" in m.text for m in house.runtimes.model.requests[-1].messages), "the originals are back"
    assert b"4711" not in b"".join(path.read_bytes() for path in house.path.glob("log.db*"))
    house.assert_sound()


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_a_branch_folds_its_inheritance_whole_and_loses_nothing(house: InProcessGateway, keep: int) -> None:
    make_compressing(house, keep=keep, ahead=False)
    for n in range(3):
        house.send_message(f"parent {n} {LONG}")
    house.send_message("/branch")
    branch = ""
    for n in range(4):
        house.runtimes.settings["ahead"] = n == 3
        branch = house.send_message(f"child {n} {LONG}").session
    shown = " ".join(texts(house, branch))
    for n in range(4):
        assert (f"child {n} " in shown) or house.read_bodies(branch, Compressed)
    folds = house.read_bodies(branch, Compressed)
    assert folds
    covered = [op for op in house.run(house.store.list_operations(branch, types=("turn",))) if op.op > folds[-1].covers]
    assert len(covered) >= min(keep, 4)
    assert shown.count("child 3 ") >= (1 if keep else 0)
    assert "parent 0 " not in shown
    house.assert_sound()
