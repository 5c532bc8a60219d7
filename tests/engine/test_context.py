"""Rules 13 to 16: the context and its generations, undo and branches, erasure, limits."""

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


def make_compressing(gateway: InProcessGateway, *, window: int = 1_200, keep: int = 1, ahead: bool = True) -> FakeModel:
    """Give the gateway a model with a small window, and a summariser."""
    # a model that reports no usage, so the calibration of tokens stays the same
    gateway.runtimes.model = FakeModel(lambda request: structs.replace(echo_last_message(request), usage=ModelUsage()))
    gateway.runtimes.model.context_tokens = window
    gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="the story so far", model="sum"))
    gateway.runtimes.settings.update(soft_share=0.3, hard_share=0.6, keep_turns=keep, compress_in_background=ahead)
    return gateway.runtimes.summariser


def use_cramped_model(gateway: InProcessGateway, most: int) -> FakeModel:
    """Give the gateway a model that accepts only so many characters."""

    def answer(request: ModelRequest) -> ModelResponse:
        if sum(len(message.text) for message in request.messages) > most:
            raise TooLong("too many tokens")
        return ModelResponse(text="done")

    gateway.runtimes.model = FakeModel(answer)
    return gateway.runtimes.model


def make_blocked_turn(gateway: InProcessGateway) -> tuple[str, HeldModel]:
    """A turn that does not fit, and beside it a summary is being made ahead of need until it is let go."""
    make_compressing(gateway)
    gateway.runtimes.summariser = held = HeldModel()
    held.text = "short"
    while not held.requests:
        gateway.send_message(LONG, rest=False)
        gateway.pass_time(1)
    use_cramped_model(gateway, 1_000)
    session = gateway.send_message("z" * 500, rest=False).session
    gateway.pass_time(5)
    assert len(gateway.runtimes.model.requests) == 1
    return session, held


class TestRule13Compressions:
    def test_a_background_summary_replaces_what_it_covers(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway)
        session = ""
        for n in range(6):
            session = gateway.send_message(f"{n} {LONG}").session
        compressions = gateway.read_bodies(session, Compressed)
        assert compressions
        assert compressions[0].trigger == "soft"
        shown = texts(gateway, session)
        assert "the story so far" in shown[0]
        assert not any(text.startswith("0 ") for text in shown)
        assert gateway.run(gateway.store.get_session(session)).id == session
        gateway.assert_sound()

    def test_a_context_above_the_soft_limit_is_not_compressed_after_every_turn(self, gateway: InProcessGateway) -> None:
        """What is left after a compression can be above the soft limit. The next compression waits
        until enough is new.
        """
        make_compressing(gateway, window=2_000, keep=1)
        long = "the story so far " + "and on " * 180
        gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text=long, model="sum"))
        gateway.runtimes.settings.update(soft_share=0.3, hard_share=0.95)
        session = ""
        for n in range(40):
            session = gateway.send_message(f"{n} {LONG if n < 12 else 'x' * 60}").session
        compressions = [
            op
            for op in gateway.run(gateway.store.list_operations(session, types=("compression",)))
            if op.state == "done"
        ]
        assert 1 <= len(compressions) <= 6, f"{len(compressions)} compressions in 40 turns"
        gateway.assert_sound()

    def test_at_the_hard_limit_the_turn_waits_for_the_compression(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway, ahead=False)
        session = ""
        for n in range(6):
            session = gateway.send_message(f"{n} {LONG}").session
        began = [body for body in gateway.read_bodies(session, Began) if body.type == "compression"]
        assert began
        assert all(body.blocking and body.trigger == "hard" for body in began)
        assert [text[:10] for text in gateway.list_shown_texts()].count("You said: ") == 6
        assert any("I answer your message right after" in text for text in gateway.list_shown_texts())
        gateway.assert_sound()

    @pytest.mark.parametrize("change", ["/new", "/undo"])
    def test_a_compression_of_an_outdated_context_is_discarded(self, gateway: InProcessGateway, change: str) -> None:
        make_compressing(gateway)
        gateway.runtimes.summariser = held = HeldModel()
        held.text = "too late"
        session = ""
        for n in range(4):
            session = gateway.send_message(f"{n} {LONG}", rest=False).session
            gateway.pass_time(1)
        assert held.requests, "the compression must be running"
        gateway.send_message(change, rest=False)
        gateway.pass_time(1)
        held.free = True
        gateway.pass_time(5)
        assert all(compression.generation > 0 for compression in gateway.read_bodies(session, Compressed)), (
            "made from another context"
        )
        assert "the context changed" in next(
            b.reason for b in gateway.read_bodies(session, Ended) if b.outcome == "refused"
        )
        gateway.assert_sound()

    @pytest.mark.parametrize("answer", ["", "y" * 5_000])
    def test_an_invalid_summary_changes_nothing(self, gateway: InProcessGateway, answer: str) -> None:
        make_compressing(gateway)
        gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text=answer))
        session = ""
        for n in range(4):
            session = gateway.send_message(f"{n} {LONG}", rest=False).session
            gateway.pass_time(1)
        assert gateway.read_bodies(session, Compressed) == []
        assert gateway.logger.find_events("compression.refused")
        assert texts(gateway, session)[0].startswith("0 ")

    def test_a_compression_interrupted_by_a_crash_is_closed_and_repeated(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway)
        crash_at_step(gateway, Step.COMPRESSION_END, after=False)
        session = ""
        for n in range(2):
            session = gateway.send_message(f"{n} {LONG}", rest=False).session
            gateway.pass_time(1)
        gateway.start()
        gateway.run_until_idle(5)
        for n in range(3, 6):
            gateway.send_message(f"{n} {LONG}")
        outcomes = [body.outcome for body in gateway.read_bodies(session, Ended)]
        assert "refused" in outcomes
        assert gateway.read_bodies(session, Compressed)
        gateway.assert_sound()

    def test_a_resumed_turn_builds_the_same_request_despite_a_compression(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway)
        gateway.runtimes.summariser = summariser = HeldModel()
        session = ""
        for n in range(4):
            session = gateway.send_message(f"{n} {LONG}", rest=False).session
            gateway.pass_time(1)
        gateway.runtimes.model = answering = HeldModel()
        answering.context_tokens = 1_200
        gateway.runtimes.settings["hard_share"] = 0.99
        gateway.send_message("the question", rest=False)
        gateway.pass_time(1)
        summariser.text = "short"
        summariser.free = True
        gateway.pass_time(3)
        assert gateway.read_bodies(session, Compressed), "the compression must end while the turn runs"
        gateway.crash()
        gateway.start()
        gateway.pass_time(3)
        assert len(answering.requests) == 2
        assert answering.requests[0] == answering.requests[1]

    def test_no_turn_begins_during_a_blocking_compression(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway, ahead=False)
        for n in range(4):
            gateway.send_message(f"{n} {LONG}")
        gateway.runtimes.summariser = held = HeldModel()
        session = gateway.send_message("trigger", rest=False).session
        gateway.pass_time(1)
        gateway.send_message("meanwhile", rest=False)
        gateway.pass_time(1)
        assert held.requests
        running = [op for op in gateway.run(gateway.store.list_operations(session)) if op.state == "running"]
        assert [(op.type, op.blocking) for op in running] == [("compression", True)]
        held.free = True
        held.text = "short"
        gateway.run_until_idle(10)
        assert texts(gateway, session)[-3:-1] == ["trigger", "meanwhile"]
        gateway.assert_sound()

    def test_a_turn_whose_compression_crashed_compresses_again_and_continues(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = FakeModel(lambda request: ModelResponse(text="y" * 1_500))
        session = gateway.send_message("one").session
        gateway.send_message("two")
        use_cramped_model(gateway, 4_000)
        gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="short"))
        crash_at_step(gateway, Step.COMPRESSION_END, after=False)
        gateway.send_message("z" * 1_500, rest=False)
        gateway.pass_time(5)
        gateway.start()
        gateway.run_until_idle(30)
        assert gateway.list_shown_texts()[-1] == "done"
        assert [body.trigger for body in gateway.read_bodies(session, Compressed)] == ["too long"]
        ended = [body.reason for body in gateway.read_bodies(session, Ended) if body.outcome == "refused"]
        assert ended == ["cut short by a restart"]
        gateway.assert_sound()

    def test_a_turn_that_does_not_fit_waits_for_the_background_summary(self, gateway: InProcessGateway) -> None:
        session, held = make_blocked_turn(gateway)
        held.free = True
        gateway.run_until_idle(10)
        assert gateway.list_shown_texts()[-1] == "done"
        assert [body.trigger for body in gateway.read_bodies(session, Compressed)] == ["soft", "too long"]
        gateway.assert_sound()

    def test_a_turn_that_waits_for_a_summary_can_be_stopped(self, gateway: InProcessGateway) -> None:
        session, held = make_blocked_turn(gateway)
        gateway.send_message("/stop", rest=False)
        gateway.pass_time(5)
        assert "stopped" in [body.outcome for body in gateway.read_bodies(session, Ended)]
        held.free = True
        gateway.run_until_idle(10)
        gateway.assert_sound()

    def test_an_oversized_context_is_stubbed_then_compressed_then_fails_visibly(
        self, gateway: InProcessGateway
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

        gateway.runtimes.tools = {
            "read": FakeTool("read", ToolEffect.PURE, act=lambda arguments, context: ToolResult(text="y" * 30_000))
        }
        gateway.runtimes.model = FakeModel(answer)
        session = gateway.send_message("read it").session
        assert gateway.list_shown_texts() == ["done"]
        assert gateway.read_bodies(session, Thought)[-1].stubs
        gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="short"))
        gateway.send_message("z" * 1_500)
        assert gateway.list_shown_texts()[-1] == "done"
        assert [body.trigger for body in gateway.read_bodies(session, Compressed)] == ["too long"]
        assert [body.compression for body in gateway.read_bodies(session, Took) if body.compression is not None]
        gateway.send_message("z" * 5_000)
        assert "does not fit" in gateway.list_shown_texts()[-1]
        gateway.assert_sound()


def use_narrow_model(gateway: InProcessGateway, *, most: int, window: int = 8_000) -> list[ModelRequest]:
    """Give the gateway a model that refuses more than `most` characters, also for summaries; return
    what it was asked.
    """
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> ModelResponse:
        asked.append(request)
        if sum(len(message.text) for message in request.messages) > most:
            raise TooLong("too many tokens")
        return ModelResponse(text=f"answer {len(asked)}")

    gateway.runtimes.model = gateway.runtimes.summariser = FakeModel(answer)
    gateway.runtimes.model.context_tokens = window
    return asked


class TestRule13Messages:
    """A message that is larger than the window costs its own turn, and no later one."""

    GIANT = f"begin {'g' * 400_000} end"

    def exact(self, gateway: InProcessGateway, session: str) -> list[bool | None]:
        seqs = [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Thought)]
        return [gateway.run(gateway.control.load_context(session, at=seq)).exact for seq in seqs]

    def test_an_oversized_message_fails_visibly_and_becomes_a_stub(self, gateway: InProcessGateway) -> None:
        asked = use_narrow_model(gateway, most=8_000)
        session = gateway.send_message("hello").session
        giant = gateway.send_message(self.GIANT).seq
        assert "the message does not fit the model" in gateway.list_shown_texts()[-1]
        assert "/undo" in gateway.list_shown_texts()[-1]
        assert "/retry tries again" not in gateway.list_shown_texts()[-1]
        assert gateway.read_bodies(session, Compressed) == [], "a summary of the rest would not have helped"
        assert gateway.read_bodies(session, Ended)[-1].stubs == (giant,)
        asked.clear()
        gateway.send_message("and now?")
        gateway.send_message("and then?")
        assert gateway.list_shown_texts()[-2:] == ["answer 1", "answer 2"]
        first, second = asked
        stub = first.messages[2].text
        assert stub.startswith("begin ggg")
        assert stub.endswith("ggg end")
        assert f"of {len(self.GIANT)} characters left out; the whole is entry {giant} of this session" in stub
        assert second.messages[: len(first.messages)] == first.messages, "the beginning of requests stays the same"
        assert self.exact(gateway, session) == [True, True, True]
        upcoming = gateway.run(gateway.control.load_context(session)).request.messages
        assert upcoming[: len(second.messages)] == second.messages
        gateway.assert_sound()

    def test_undo_removes_an_oversized_message_and_a_larger_window_answers_it(self, gateway: InProcessGateway) -> None:
        use_narrow_model(gateway, most=8_000)
        session = gateway.send_message(self.GIANT).session
        gateway.send_message("/undo")
        assert texts(gateway, session) == []
        gateway.send_message(self.GIANT)
        asked = use_narrow_model(gateway, most=900_000, window=500_000)
        gateway.send_message("/retry")
        assert asked[-1].messages[-1].text == self.GIANT
        gateway.send_message("thanks")
        assert asked[-1].messages[0].text == self.GIANT
        gateway.assert_sound()

    def test_a_message_becomes_a_stub_in_a_smaller_window(self, gateway: InProcessGateway) -> None:
        use_narrow_model(gateway, most=900_000, window=500_000)
        session = gateway.send_message(self.GIANT).session
        gateway.runtimes.settings.update(hard_share=9.0, soft_share=9.0)
        asked = use_narrow_model(gateway, most=8_000)
        gateway.send_message("and now?")
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["done", "done"]
        assert len(asked) == 2, "once in vain"
        gateway.send_message("and then?")
        assert len(asked) == 3, "a stub stays a stub"
        assert asked[2].messages[: len(asked[1].messages)] == asked[1].messages
        assert gateway.read_bodies(session, Compressed) == []
        assert self.exact(gateway, session) == [True, True, True]
        gateway.assert_sound()

    def test_a_message_becomes_a_stub_if_the_real_window_is_smaller_than_configured(
        self, gateway: InProcessGateway
    ) -> None:
        asked = use_narrow_model(gateway, most=4_000, window=128_000)
        session = gateway.send_message("m" * 6_000).session
        assert "the message does not fit the model" in gateway.list_shown_texts()[-1]
        asked.clear()
        gateway.send_message("and now?")
        assert gateway.list_shown_texts()[-1] == "answer 1"
        assert self.exact(gateway, session) == [True]
        gateway.assert_sound()

    def test_an_oversized_message_can_be_compressed_and_reviewed(self, gateway: InProcessGateway) -> None:
        asked = use_narrow_model(gateway, most=8_000)
        session = gateway.send_message(self.GIANT).session
        gateway.runtimes.settings["review_every_turns"] = 1
        gateway.send_message("and now?")
        gateway.send_message("/compress here 0")
        assert [compressed.messages for compressed in gateway.read_bodies(session, Compressed)] == [2]
        assert not gateway.logger.find_events("compression.refused")
        assert not gateway.logger.find_events("review.skipped")
        assert all(sum(len(m.text) for m in request.messages) <= 8_000 for request in asked[1:])
        gateway.assert_sound()

    def test_an_oversized_summary_request_is_made_of_stubs(self, gateway: InProcessGateway) -> None:
        use_narrow_model(gateway, most=900_000, window=500_000)
        session = gateway.send_message(self.GIANT).session
        use_narrow_model(gateway, most=8_000)
        gateway.send_message("/compress here 0")
        assert [compressed.messages for compressed in gateway.read_bodies(session, Compressed)] == [1]
        gateway.send_message("and now?")
        assert gateway.read_bodies(session, Ended)[-1].outcome == "done"
        gateway.assert_sound()


class TestRule14Undo:
    def test_undone_turns_leave_the_context_and_stay_in_the_log(self, gateway: InProcessGateway) -> None:
        session = gateway.send_message("one").session
        gateway.send_message("two")
        before = gateway.read_log(session)
        gateway.send_message("/undo")
        assert texts(gateway, session) == ["one", "You said: one"]
        assert gateway.read_log(session)[: len(before)] == before
        gateway.assert_sound()

    def test_undo_cancels_unsent_parts_and_retracts_from_memory(self, gateway: InProcessGateway) -> None:
        provider = FakeMemoryProvider()
        gateway.runtimes.memories = {"a": provider}
        platform = use(gateway, DeliveryGuarantee.KEYED, text_limit=60)
        gateway.runtimes.model = FakeModel([ModelResponse(text=" ".join(f"word{n}" for n in range(30)))])
        platform.faults.succeed_next()
        platform.faults.fail_next(Transient("later", retry_after=600.0))
        session = gateway.send_message("tell me", rest=False).session
        gateway.pass_time(5)
        gateway.send_message("/undo", rest=False)
        gateway.pass_time(1_200)
        said = gateway.read_bodies(session, Said)[0]
        assert gateway.list_shown_texts()[0] == said.parts[0]
        assert said.parts[1] not in gateway.list_shown_texts()
        kept = provider.kept[session]
        assert isinstance(kept[-1], MemoryRetraction)
        assert kept[-1].keys == (kept[0].key,)

    def test_retry_answers_the_same_messages_again(self, gateway: InProcessGateway) -> None:
        session = gateway.send_message("one").session
        gateway.runtimes.model = FakeModel([ModelResponse(text="better")])
        gateway.send_message("/retry")
        assert texts(gateway, session) == ["one", "better"]
        gateway.assert_sound()

    def test_undoing_a_compression_restores_the_exact_earlier_context(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway, keep=1)
        session = gateway.send_message(f"0 {LONG}").session
        gateway.runtimes.settings["compress_in_background"] = False
        gateway.runtimes.settings["hard_share"] = 0.9
        for n in range(1, 3):
            gateway.send_message(f"{n} {LONG}")
        before = texts(gateway, session)
        gateway.runtimes.settings.update(compress_in_background=True)
        gateway.send_message(f"3 {LONG}")
        assert gateway.read_bodies(session, Compressed)
        gateway.runtimes.settings.update(compress_in_background=False)
        gateway.send_message("/undo compress")
        assert texts(gateway, session)[: len(before)] == before
        gateway.assert_sound()

    def test_an_undone_turn_voids_the_compressions_that_cover_it(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway, keep=0)
        session = ""
        for n in range(3):
            session = gateway.send_message(f"{n} {LONG}").session
        assert gateway.read_bodies(session, Compressed)
        gateway.runtimes.settings.update(compress_in_background=False, hard_share=9.0)
        gateway.send_message("/undo 2")
        assert "the story so far" not in " ".join(texts(gateway, session))
        assert texts(gateway, session)[0].startswith("0 ")
        gateway.assert_sound()

    def test_a_branch_starts_with_its_parents_context_and_copies_nothing(self, gateway: InProcessGateway) -> None:
        parent = gateway.send_message("one").session
        gateway.send_message("/branch")
        branch = gateway.send_message("two").session
        assert branch != parent
        assert texts(gateway, branch) == ["one", "You said: one", "two", "You said: two"]
        assert [body.text for body in gateway.read_bodies(branch, Heard)] == ["two"]
        assert texts(gateway, parent) == ["one", "You said: one"]
        assert gateway.list_shown_texts().count("You said: one") == 1
        gateway.assert_sound()

    def test_a_context_reset_keeps_the_session_and_its_log(self, gateway: InProcessGateway) -> None:
        session = gateway.send_message("old").session
        gateway.send_message("/new")
        assert gateway.send_message("new").session == session
        assert texts(gateway, session) == ["new", "You said: new"]
        gateway.assert_sound()


SECRET = "the launch code is 4711"


class TestRule15Erasure:
    def everywhere(self, gateway: InProcessGateway) -> bytes:
        """Every byte the store holds, the write-ahead log included."""
        return b"".join(path.read_bytes() for path in gateway.path.glob("log.db*"))

    def test_erased_text_is_gone_and_the_log_stays_valid(self, gateway: InProcessGateway) -> None:
        session = gateway.send_message(SECRET).session
        seqs = [e.seq for e in gateway.read_log(session) if e.body is not None and "4711" in str(e.body)]
        gateway.run(gateway.control.erase_entries(session, seqs))
        assert b"4711" not in self.everywhere(gateway)
        gateway.send_message("what was it?")
        assert not any("4711" in str(m) for m in gateway.runtimes.model.requests[-1].messages)
        assert gateway.read_bodies(session, Erased)
        gateway.assert_sound()

    def test_a_compression_of_an_erased_entry_is_erased_too(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway, keep=0)
        gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="they spoke of 4711"))
        session = gateway.send_message(f"{SECRET} {LONG}").session
        gateway.send_message(f"more {LONG}")
        assert gateway.read_bodies(session, Compressed)
        seqs = [
            e.seq for e in gateway.read_log(session) if e.kind in ("heard", "said", "thought") and "4711" in str(e.body)
        ]
        gateway.run(gateway.control.erase_entries(session, seqs))
        assert b"4711" not in self.everywhere(gateway)
        assert not any("4711" in text for text in texts(gateway, session))
        gateway.assert_sound()

    def test_an_erasure_ends_running_operations_that_read_the_entry(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = held = HeldModel()
        session = gateway.send_message(SECRET, rest=False).session
        gateway.pass_time(1)
        held.text = "yes, 4711"
        gateway.run(gateway.control.erase_entries(session, [1]))
        held.free = True
        gateway.pass_time(5)
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["erased"]
        assert b"4711" not in self.everywhere(gateway)
        gateway.assert_sound()

    def test_a_new_message_does_not_wait_for_a_turn_that_an_erasure_ended(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = held = HeldModel()
        session = gateway.send_message(SECRET, rest=False).session
        gateway.pass_time(1)
        gateway.run(gateway.control.erase_entries(session, [1]))
        held.free = True
        gateway.send_message("and now?", rest=False)
        gateway.pass_time(3)
        assert gateway.list_shown_texts() == ["at last"]
        gateway.assert_sound()

    def test_text_erased_during_a_call_is_not_sent_to_the_fallback_model(self, gateway: InProcessGateway) -> None:
        class Failing(FakeModel):
            async def answer(
                self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
            ) -> ModelResponse:
                await asyncio.sleep(10)
                raise Overloaded("too much to do")

        gateway.runtimes.model = Failing()
        gateway.runtimes.fallbacks = (other := FakeModel(),)
        session = gateway.send_message(SECRET, rest=False).session
        gateway.pass_time(5)
        gateway.run(gateway.control.erase_entries(session, [1]))
        gateway.pass_time(30)
        assert other.requests == []
        gateway.assert_sound()

    def test_an_in_flight_batch_is_voided_and_the_rest_is_sent_again(self, gateway: InProcessGateway) -> None:
        provider = FakeMemoryProvider(DeliveryGuarantee.UPSERT)
        provider.faults.fail_next(Transient("down"))
        gateway.runtimes.memories = {"a": provider}
        session = gateway.send_message(SECRET, rest=False).session
        gateway.pass_time(0.2)
        gateway.send_message("harmless", rest=False)
        gateway.pass_time(0.2)
        seqs = [e.seq for e in gateway.read_log(session) if e.body is not None and "4711" in str(e.body)]
        gateway.run(gateway.control.erase_entries(session, seqs))
        gateway.run_until_idle(120)
        stored = " ".join(str(item) for items in provider.kept.values() for item in items)
        assert "4711" not in stored
        assert "harmless" in stored

    def test_an_entry_erased_during_a_blind_send_is_counted(self, gateway: InProcessGateway) -> None:
        batches: list[list[str]] = []

        class Slow(FakeMemoryProvider):
            async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
                batches.append([get_memory_text(item) for item in batch.items])
                await asyncio.sleep(10)
                return await super().store(batch)

        gateway.runtimes.memories = {"a": Slow(DeliveryGuarantee.BLIND)}
        session = gateway.send_message("first", rest=False).session
        gateway.pass_time(1)
        for text in (SECRET, "harmless"):
            gateway.send_message(text, rest=False)
            gateway.pass_time(1)
        gateway.pass_time(10)
        assert len(batches[-1]) == 2, "both are on their way"
        seqs = [e.seq for e in gateway.read_log(session) if e.body is not None and "4711" in str(e.body)]
        gateway.run(gateway.control.erase_entries(session, seqs))
        gateway.crash()
        gateway.start()
        gateway.run_until_idle(300)
        (dead_letter,) = gateway.run(gateway.store.list_dead_letters(session=session))
        assert dead_letter.in_doubt
        assert "4711" not in str(batches[2:])
        assert "harmless" in str(batches[2:])
        gateway.assert_sound()

    def test_a_redelivered_erased_message_is_a_duplicate(self, gateway: InProcessGateway) -> None:
        session = gateway.send_message(SECRET, id="9").session
        gateway.run(gateway.control.erase_entries(session, [1]))
        assert gateway.send_message(SECRET, id="9").outcome == "duplicate"
        assert b"4711" not in self.everywhere(gateway).replace(b"You said: the launch code is 4711", b"")

    def test_an_erasure_in_the_parent_reaches_its_branch(self, gateway: InProcessGateway) -> None:
        parent = gateway.send_message(SECRET).session
        gateway.send_message("/branch")
        branch = gateway.send_message("in the branch").session
        seqs = [e.seq for e in gateway.read_log(parent) if e.body is not None and "4711" in str(e.body)]
        gateway.run(gateway.control.erase_entries(parent, seqs))
        gateway.send_message("still there?")
        assert not any("4711" in str(m) for m in gateway.runtimes.model.requests[-1].messages)
        assert not any("4711" in text for text in texts(gateway, branch))

    def test_an_erasure_reaches_the_branch_after_a_crash(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway, keep=0)
        gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="they spoke of 4711"))
        parent = gateway.send_message(SECRET).session
        gateway.send_message("/branch")
        branch = gateway.send_message(f"in the branch {LONG}").session
        gateway.send_message(f"more {LONG}")
        assert gateway.read_bodies(branch, Compressed)
        assert not gateway.read_bodies(parent, Compressed)
        gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="nothing worth telling"))
        seqs = [e.seq for e in gateway.read_log(parent) if e.body is not None and "4711" in str(e.body)]
        crash_at_step(gateway, Step.ERASE, after=True)
        gateway.loop.create_task(gateway.control.erase_entries(parent, seqs))
        gateway.pass_time(1)
        gateway.start()
        assert b"4711" in self.everywhere(gateway)
        gateway.run(gateway.control.reapply_erasures())
        assert b"4711" not in self.everywhere(gateway)
        gateway.assert_sound()

    def test_erasures_are_applied_again_after_a_restore(self, gateway: InProcessGateway) -> None:
        session = gateway.send_message(SECRET).session
        assert gateway.process is not None
        saved = gateway.run(gateway.process.disk.make_backup(gateway.path / "saved.db"))
        seqs = [e.seq for e in gateway.read_log(session) if e.body is not None and "4711" in str(e.body)]
        gateway.run(gateway.control.erase_entries(session, seqs))
        gateway.crash()
        for path in gateway.path.glob("log.db*"):
            path.unlink()
        saved.rename(gateway.path / "log.db")
        gateway.start()
        assert b"4711" in self.everywhere(gateway)
        assert gateway.run(gateway.control.reapply_erasures()) == len(seqs)
        assert b"4711" not in self.everywhere(gateway)
        assert gateway.run(gateway.control.reapply_erasures()) == 0
        gateway.assert_sound()

    @pytest.mark.parametrize(
        "torn", [b'{"session":"s","se', b'{"session":"","seqs":[],"forget":["ada"],"at":1', b"\0" * 9]
    )
    def test_a_torn_line_in_the_erasure_log_does_not_prevent_a_start(
        self, gateway: InProcessGateway, torn: bytes
    ) -> None:
        """It tells of an erasure that was not begun, and takes no other with it."""
        session = gateway.send_message(SECRET).session
        file = gateway.control.erasures
        assert file is not None
        file.write_bytes(torn)
        assert gateway.run(gateway.control.reapply_erasures()) == 0
        assert gateway.control.read_erasures(about=b'"forget"') == []
        seqs = [e.seq for e in gateway.read_log(session) if e.body is not None and "4711" in str(e.body)]
        gateway.run(gateway.control.erase_entries(session, seqs))
        (record,) = gateway.control.read_erasures()
        assert (record["session"], record["seqs"]) == (session, seqs)
        assert gateway.run(gateway.control.reapply_erasures()) == 0
        gateway.assert_sound()

    def test_structural_entries_cannot_be_erased(self, gateway: InProcessGateway) -> None:
        session = gateway.send_message("hello").session
        with pytest.raises(InvalidRequest):
            gateway.run(gateway.control.erase_entries(session, [2]))
        with pytest.raises(NotFound):
            gateway.run(gateway.control.erase_entries(session, [99]))


class TestRule16Limits:
    def test_a_message_of_a_megabyte_is_kept_and_answered(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = FakeModel([ModelResponse(text="long indeed")])
        text = "a" * 1_000_000
        session = gateway.send_message(text).session
        assert gateway.read_bodies(session, Heard)[0].text == text

    @pytest.mark.parametrize(
        "text", ["bad \ud800 surrogate", "nul \0 inside", "\u202eltr", "\ufeff", "👨‍👩‍👧" * 10_000]
    )
    def test_unusual_text_is_kept_and_does_not_affect_other_messages(
        self, gateway: InProcessGateway, text: str
    ) -> None:
        gateway.runtimes.model = FakeModel(lambda request: ModelResponse(text="fine"))
        gateway.send_message("before")
        session = gateway.send_message(text).session
        gateway.send_message("after")
        heard = gateway.read_bodies(session, Heard)
        assert [heard[0].text, heard[2].text] == ["before", "after"]
        assert heard[1].mangled == ("\ud800" in text)
        if not heard[1].mangled:
            assert heard[1].text == text
        gateway.assert_sound()

    def test_an_unknown_kind_stops_its_own_cursor_and_no_other(self, gateway: InProcessGateway) -> None:
        provider = FakeMemoryProvider()
        gateway.runtimes.memories = {"a": provider}
        provider.faults.fail_next(Transient("down"))
        session = gateway.send_message("one", rest=False).session
        gateway.pass_time(0.2)
        assert gateway.process is not None
        gateway.process.disk.writer.db.execute("update entries set kind = 'dreamt' where kind = 'said'")
        other = gateway.send_message("elsewhere", chat="other", rest=False).session
        gateway.pass_time(30)
        assert "You said: elsewhere" in gateway.list_shown_texts()
        assert other in provider.kept
        cursors = gateway.run(gateway.store.list_cursors(session=session))
        assert any("dreamt" in cursor.error for cursor in cursors)

    def test_ten_thousand_pending_messages_are_answered_in_order(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = held = HeldModel()
        held.context_tokens = 10_000_000
        session = gateway.send_message("0", rest=False).session

        async def burst() -> None:
            assert gateway.process is not None
            for n in range(1, 10_000):
                await gateway.process.accept(gateway.make_message(str(n)))
                await asyncio.sleep(0.001 * (n % 500 == 0))

        gateway.run(burst())
        held.free = True
        gateway.run_until_idle(60)
        heard = [body.text for body in gateway.read_bodies(session, Heard)]
        assert heard == [str(n) for n in range(10_000)]
        assert gateway.run(gateway.store.get_session(session)).pending == 0
        shown = [text for text in texts(gateway, session) if text.isdigit()]
        assert shown == heard


class TestBusy:
    """E4: what happens to a message that arrives mid-turn."""

    def tool_turn(self, gateway: InProcessGateway, seen: list[list[str]]) -> None:
        class Reading(FakeModel):
            async def answer(
                self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
            ) -> ModelResponse:
                seen.append([message.text for message in request.messages if message.role == "user"])
                await asyncio.sleep(1)
                if len(seen) < 3:
                    return ModelResponse(calls=(ToolCall(id="c", tool="look"),))
                return ModelResponse(text="done")

        gateway.runtimes.tools = {"look": FakeTool("look", ToolEffect.PURE)}
        gateway.runtimes.model = Reading()

    def test_a_steering_message_is_seen_after_the_next_tool_call(self, gateway: InProcessGateway) -> None:
        seen: list[list[str]] = []
        self.tool_turn(gateway, seen)
        session = gateway.send_message("start", rest=False).session
        gateway.pass_time(0.5)
        gateway.send_message("/steer left", rest=False)
        gateway.run_until_idle(10)
        assert seen == [["start"], ["start", "left"], ["start", "left"]]
        assert gateway.list_shown_texts() == ["done"]
        gateway.assert_sound()
        assert len(gateway.read_bodies(session, Took)) == 1

    def test_an_interrupting_message_ends_the_running_turn_and_is_answered(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.settings["busy_policy"] = "interrupt"
        gateway.runtimes.model = held = HeldModel()
        session = gateway.send_message("wrong question", rest=False).session
        gateway.pass_time(1)
        gateway.runtimes.model = FakeModel()
        gateway.send_message("right question", rest=False)
        gateway.run_until_idle(10)
        assert [body.outcome for body in gateway.read_bodies(session, Ended)] == ["interrupted", "done"]
        assert gateway.list_shown_texts() == ["You said: right question"]
        assert held.requests
        gateway.assert_sound()

    def test_stop_ends_the_turn_and_reports_the_result(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = HeldModel()
        session = gateway.send_message("never mind", rest=False).session
        gateway.pass_time(1)
        gateway.send_message("/stop", rest=False)
        gateway.pass_time(5)
        outcomes = [body.outcome for body in gateway.read_bodies(session, Ended)]
        assert outcomes.count("stopped") == 1
        assert gateway.run(gateway.store.get_session(session)).running == ""

    def test_stop_waits_for_a_tool_with_side_effects(self, gateway: InProcessGateway) -> None:
        class Slow(FakeTool):
            async def run(self, arguments: dict[str, Any], context: Any) -> ToolResult:
                await asyncio.sleep(5)
                return await super().run(arguments, context)

        tool = Slow("send", ToolEffect.ONCE)
        gateway.runtimes.tools = {"send": tool}
        gateway.runtimes.model = FakeModel(lambda request: ModelResponse(calls=(ToolCall(id="c", tool="send"),)))
        session = gateway.send_message("send it", rest=False).session
        gateway.pass_time(1)
        gateway.send_message("/stop", rest=False)
        gateway.pass_time(30)
        assert sum(tool.done.values()) == 1
        assert [body.unknown for body in gateway.read_bodies(session, Returned)] == [False]
        assert "stopped" in [body.outcome for body in gateway.read_bodies(session, Ended)]

    def test_stop_during_a_model_outage_drops_the_waiting_messages(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model.faults.fail_next(Overloaded("down"), times=10_000)
        session = gateway.send_message("hello?", rest=False).session
        gateway.pass_time(5)
        gateway.send_message("/stop", rest=False)
        gateway.pass_time(5)
        assert gateway.run(gateway.store.get_session(session)).pending == 0
        gateway.runtimes.model.faults = type(gateway.runtimes.model.faults)()
        gateway.pass_time(600)
        assert not any("You said: hello?" in text for text in gateway.list_shown_texts())


def test_the_exact_context_of_a_turn_is_verified_against_its_digest(gateway: InProcessGateway) -> None:
    session = gateway.send_message("one").session
    gateway.send_message("two")
    gateway.send_message("/undo")
    gateway.send_message("three")
    thoughts = [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Thought)]
    for seq, request in zip(thoughts, gateway.runtimes.model.requests, strict=True):
        shown = gateway.run(gateway.control.load_context(session, at=seq))
        assert shown.exact is True
        assert shown.request == request
    gateway.run(gateway.control.erase_entries(session, [1]))
    assert gateway.run(gateway.control.load_context(session, at=thoughts[0])).exact is False


def test_a_note_is_stored_at_once_and_reaches_the_providers(gateway: InProcessGateway) -> None:
    provider = FakeMemoryProvider()
    gateway.runtimes.memories = {"a": provider}
    session = gateway.send_message("hello").session
    gateway.run(gateway.control.add_note(session, "Ada likes tea", by="person:ada"))
    gateway.run_until_idle()
    assert [note.text for note in gateway.read_bodies(session, Noted)] == ["Ada likes tea"]
    assert [type(item).__name__ for item in provider.kept[session]] == ["Exchange", "MemoryNote"]


def test_a_cached_context_equals_one_read_from_the_log(gateway: InProcessGateway) -> None:
    """The cached context of an active session equals the context that is read from the log."""
    session = ""
    for n in range(10):
        session = gateway.send_message(f"message {n}").session

    async def look() -> list[str]:
        found = await gateway.store.get_session(session)
        return [m.text for m in render_messages(await load_context_at(gateway.store, found, at=found.last_seq + 1))]

    assert [m.text for m in gateway.runtimes.model.requests[-1].messages] == gateway.run(look())[:-1]


def test_an_erasure_in_the_parent_reaches_the_compression_of_a_branch(gateway: InProcessGateway) -> None:
    make_compressing(gateway, keep=0, ahead=False)
    gateway.runtimes.summariser = FakeModel(lambda request: ModelResponse(text="they spoke of 4711"))
    parent = gateway.send_message(f"{SECRET} {LONG}").session
    gateway.send_message("/branch")
    gateway.runtimes.settings["compress_in_background"] = True
    branch = gateway.send_message(f"on we go {LONG}").session
    assert branch != parent
    assert [compression.summary for compression in gateway.read_bodies(branch, Compressed)] == ["they spoke of 4711"]
    seqs = [e.seq for e in gateway.read_log(parent) if e.body is not None and "4711" in str(e.body)]
    gateway.run(gateway.control.erase_entries(parent, seqs))
    gateway.send_message("and now?")
    assert not any("4711" in str(m) for m in gateway.runtimes.model.requests[-1].messages)
    assert any("on we go" in m.text for m in gateway.runtimes.model.requests[-1].messages), "the originals are back"
    assert b"4711" not in b"".join(path.read_bytes() for path in gateway.path.glob("log.db*"))
    gateway.assert_sound()


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_a_branch_compresses_its_inherited_entries_completely(gateway: InProcessGateway, keep: int) -> None:
    make_compressing(gateway, keep=keep, ahead=False)
    for n in range(3):
        gateway.send_message(f"parent {n} {LONG}")
    gateway.send_message("/branch")
    branch = ""
    for n in range(4):
        gateway.runtimes.settings["compress_in_background"] = n == 3
        branch = gateway.send_message(f"child {n} {LONG}").session
    shown = " ".join(texts(gateway, branch))
    for n in range(4):
        assert (f"child {n} " in shown) or gateway.read_bodies(branch, Compressed)
    compressions = gateway.read_bodies(branch, Compressed)
    assert compressions
    covered = [
        op
        for op in gateway.run(gateway.store.list_operations(branch, types=("turn",)))
        if op.op > compressions[-1].covers
    ]
    assert len(covered) >= min(keep, 4)
    assert shown.count("child 3 ") >= (1 if keep else 0)
    assert "parent 0 " not in shown
    gateway.assert_sound()
