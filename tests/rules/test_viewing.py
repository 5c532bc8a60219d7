"""Rules 13 to 16: the view and its generations, undo and branches, erasure, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec import structs

from everhold.core.context import messages
from everhold.core.entries import (
    Began,
    Call,
    Compressed,
    Ended,
    Erased,
    Heard,
    Noted,
    Returned,
    Said,
    Thought,
    Took,
    Usage,
)
from everhold.errors import Misuse, NotFound, Overloaded, TooLong, Transient
from everhold.flow.view import view_at
from everhold.ports.memory import Batch, Retraction
from everhold.ports.model import Answer, Request
from everhold.ports.platform import Delivery
from everhold.ports.store import Step
from everhold.ports.tool import Effect, Result
from everhold.testing.fakes import FakeProvider, FakeTool, ScriptedModel, echo, wording
from everhold.testing.house import House

from .conftest import HeldModel
from .test_delivering import use
from .test_hearing import texts
from .test_working import die_at

LONG = "x" * 400


def folding(house: House, *, window: int = 1_200, keep: int = 1, ahead: bool = True) -> ScriptedModel:
    """A house whose model has a small window, and a summariser beside it."""
    # one that reports no usage: what a token is stays what it was
    house.furniture.model = ScriptedModel(lambda request: structs.replace(echo(request), usage=Usage()))
    house.furniture.model.context_tokens = window
    house.furniture.summariser = ScriptedModel(lambda request: Answer(text="the story so far", model="sum"))
    house.furniture.settings.update(soft=0.3, hard=0.6, keep=keep, ahead=ahead)
    return house.furniture.summariser


def cramped(house: House, most: int) -> ScriptedModel:
    """A house whose model takes no more than so many letters."""

    def answer(request: Request) -> Answer:
        if sum(len(message.text) for message in request.messages) > most:
            raise TooLong("too many tokens")
        return Answer(text="done")

    house.furniture.model = ScriptedModel(answer)
    return house.furniture.model


def in_the_way(house: House) -> tuple[str, HeldModel]:
    """A turn that does not fit, and beside it a summary is being made ahead of need until it is let go."""
    folding(house)
    house.furniture.summariser = held = HeldModel()
    held.text = "short"
    while not held.asked:
        house.say(LONG, rest=False)
        house.tick(1)
    cramped(house, 1_000)
    session = house.say("z" * 500, rest=False).session
    house.tick(5)
    assert len(house.furniture.model.asked) == 1
    return session, held


class TestRule13Folds:
    def test_a_fold_is_made_ahead_and_its_summary_stands_for_what_it_covers(self, house: House) -> None:
        folding(house)
        session = ""
        for n in range(6):
            session = house.say(f"{n} {LONG}").session
        folds = house.bodies(session, Compressed)
        assert folds
        assert folds[0].trigger == "soft"
        shown = texts(house, session)
        assert "the story so far" in shown[0]
        assert not any(text.startswith("0 ") for text in shown)
        assert house.run(house.store.get_session(session)).id == session
        house.sound()

    def test_a_summary_near_the_mark_is_not_made_anew_with_every_turn(self, house: House) -> None:
        """What is left after a fold can lie above the soft mark: then only enough news are worth another one."""
        folding(house, window=2_000, keep=1)
        long = "the story so far " + "and on " * 180
        house.furniture.summariser = ScriptedModel(lambda request: Answer(text=long, model="sum"))
        house.furniture.settings.update(soft=0.3, hard=0.95)
        session = ""
        for n in range(40):
            session = house.say(f"{n} {LONG if n < 12 else 'x' * 60}").session
        folds = [
            op for op in house.run(house.store.list_operations(session, types=("compression",))) if op.state == "done"
        ]
        assert 1 <= len(folds) <= 6, f"{len(folds)} folds in 40 turns"
        house.sound()

    def test_at_the_hard_limit_the_chat_waits_for_the_fold(self, house: House) -> None:
        folding(house, ahead=False)
        session = ""
        for n in range(6):
            session = house.say(f"{n} {LONG}").session
        began = [body for body in house.bodies(session, Began) if body.type == "compression"]
        assert began
        assert all(body.blocking and body.trigger == "hard" for body in began)
        assert [text[:10] for text in house.heard_back()].count("You said: ") == 6
        assert any("Your message is kept" in text for text in house.heard_back())
        house.sound()

    @pytest.mark.parametrize("change", ["/new", "/undo"])
    def test_a_fold_of_a_view_that_changed_meanwhile_is_discarded(self, house: House, change: str) -> None:
        folding(house)
        house.furniture.summariser = held = HeldModel()
        held.text = "too late"
        session = ""
        for n in range(4):
            session = house.say(f"{n} {LONG}", rest=False).session
            house.tick(1)
        assert held.asked, "the fold must be under way"
        house.say(change, rest=False)
        house.tick(1)
        held.free = True
        house.tick(5)
        assert all(fold.generation > 0 for fold in house.bodies(session, Compressed)), "made of another view"
        assert "the view changed" in next(b.reason for b in house.bodies(session, Ended) if b.outcome == "refused")
        house.sound()

    @pytest.mark.parametrize("answer", ["", "y" * 5_000])
    def test_a_summary_that_is_no_summary_changes_nothing(self, house: House, answer: str) -> None:
        folding(house)
        house.furniture.summariser = ScriptedModel(lambda request: Answer(text=answer))
        session = ""
        for n in range(4):
            session = house.say(f"{n} {LONG}", rest=False).session
            house.tick(1)
        assert house.bodies(session, Compressed) == []
        assert house.diary.of("compression.refused")
        assert texts(house, session)[0].startswith("0 ")

    def test_a_fold_cut_short_by_a_crash_is_closed_and_made_again(self, house: House) -> None:
        folding(house)
        die_at(house, Step.COMPRESSION_END, after=False)
        session = ""
        for n in range(2):
            session = house.say(f"{n} {LONG}", rest=False).session
            house.tick(1)
        house.start()
        house.rest(5)
        for n in range(3, 6):
            house.say(f"{n} {LONG}")
        outcomes = [body.outcome for body in house.bodies(session, Ended)]
        assert "refused" in outcomes
        assert house.bodies(session, Compressed)
        house.sound()

    def test_a_resumed_turn_builds_the_same_request_although_a_fold_came_between(self, house: House) -> None:
        folding(house)
        house.furniture.summariser = summariser = HeldModel()
        session = ""
        for n in range(4):
            session = house.say(f"{n} {LONG}", rest=False).session
            house.tick(1)
        house.furniture.model = answering = HeldModel()
        answering.context_tokens = 1_200
        house.furniture.settings["hard"] = 0.99
        house.say("the question", rest=False)
        house.tick(1)
        summariser.text = "short"
        summariser.free = True
        house.tick(3)
        assert house.bodies(session, Compressed), "the fold must land while the turn runs"
        house.crash()
        house.start()
        house.tick(3)
        assert len(answering.asked) == 2
        assert answering.asked[0] == answering.asked[1]

    def test_no_turn_begins_while_a_blocking_fold_runs_and_what_arrives_is_seen_next(self, house: House) -> None:
        folding(house, ahead=False)
        for n in range(4):
            house.say(f"{n} {LONG}")
        house.furniture.summariser = held = HeldModel()
        session = house.say("trigger", rest=False).session
        house.tick(1)
        house.say("meanwhile", rest=False)
        house.tick(1)
        assert held.asked
        running = [op for op in house.run(house.store.list_operations(session)) if op.state == "running"]
        assert [(op.type, op.blocking) for op in running] == [("compression", True)]
        held.free = True
        held.text = "short"
        house.rest(10)
        assert texts(house, session)[-3:-1] == ["trigger", "meanwhile"]
        house.sound()

    def test_a_turn_whose_fold_was_cut_short_by_a_crash_folds_again_and_goes_on(self, house: House) -> None:
        house.furniture.model = ScriptedModel(lambda request: Answer(text="y" * 1_500))
        session = house.say("one").session
        house.say("two")
        cramped(house, 4_000)
        house.furniture.summariser = ScriptedModel(lambda request: Answer(text="short"))
        die_at(house, Step.COMPRESSION_END, after=False)
        house.say("z" * 1_500, rest=False)
        house.tick(5)
        house.start()
        house.rest(30)
        assert house.heard_back()[-1] == "done"
        assert [body.trigger for body in house.bodies(session, Compressed)] == ["too long"]
        ended = [body.reason for body in house.bodies(session, Ended) if body.outcome == "refused"]
        assert ended == ["cut short by a restart"]
        house.sound()

    def test_a_turn_that_does_not_fit_waits_for_a_summary_that_is_being_made_ahead(self, house: House) -> None:
        session, held = in_the_way(house)
        held.free = True
        house.rest(10)
        assert house.heard_back()[-1] == "done"
        assert [body.trigger for body in house.bodies(session, Compressed)] == ["soft", "too long"]
        house.sound()

    def test_a_turn_that_waits_for_a_summary_can_be_stopped(self, house: House) -> None:
        session, held = in_the_way(house)
        house.say("/stop", rest=False)
        house.tick(5)
        assert "stopped" in [body.outcome for body in house.bodies(session, Ended)]
        held.free = True
        house.rest(10)
        house.sound()

    def test_what_does_not_fit_mid_turn_is_stubbed_then_folded_then_fails_visibly(self, house: House) -> None:
        asked: list[Request] = []

        def answer(request: Request) -> Answer:
            asked.append(request)
            size = sum(len(message.text) for message in request.messages)
            if size > 4_000:
                raise TooLong("too many tokens")
            if request.messages[-1].role == "tool":
                return Answer(text="done")
            return Answer(calls=(Call(id="c", tool="read"),))

        house.furniture.tools = {
            "read": FakeTool("read", Effect.PURE, act=lambda arguments, context: Result(text="y" * 30_000))
        }
        house.furniture.model = ScriptedModel(answer)
        session = house.say("read it").session
        assert house.heard_back() == ["done"]
        assert house.bodies(session, Thought)[-1].stubs
        house.furniture.summariser = ScriptedModel(lambda request: Answer(text="short"))
        house.say("z" * 1_500)
        assert house.heard_back()[-1] == "done"
        assert [body.trigger for body in house.bodies(session, Compressed)] == ["too long"]
        assert [body.compression for body in house.bodies(session, Took) if body.compression is not None]
        house.say("z" * 5_000)
        assert "does not fit" in house.heard_back()[-1]
        house.sound()


def narrow(house: House, *, most: int, window: int = 8_000) -> list[Request]:
    """A house whose model, which also makes its summaries, refuses more than `most` characters; what it was asked."""
    asked: list[Request] = []

    def answer(request: Request) -> Answer:
        asked.append(request)
        if sum(len(message.text) for message in request.messages) > most:
            raise TooLong("too many tokens")
        return Answer(text=f"answer {len(asked)}")

    house.furniture.model = house.furniture.summariser = ScriptedModel(answer)
    house.furniture.model.context_tokens = window
    return asked


class TestRule13Messages:
    """A message that is larger than the window costs its own turn, and no later one."""

    GIANT = f"begin {'g' * 400_000} end"

    def exact(self, house: House, session: str) -> list[bool | None]:
        seqs = [entry.seq for entry in house.log(session) if isinstance(entry.body, Thought)]
        return [house.run(house.control.context(session, at=seq)).exact for seq in seqs]

    def test_it_fails_visibly_and_what_follows_is_answered_with_a_stub_of_it(self, house: House) -> None:
        asked = narrow(house, most=8_000)
        session = house.say("hello").session
        giant = house.say(self.GIANT).seq
        assert "the message does not fit the model" in house.heard_back()[-1]
        assert "/undo" in house.heard_back()[-1]
        assert "/retry tries it again" not in house.heard_back()[-1]
        assert house.bodies(session, Compressed) == [], "a summary of the rest would not have helped"
        assert house.bodies(session, Ended)[-1].stubs == (giant,)
        asked.clear()
        house.say("and now?")
        house.say("and then?")
        assert house.heard_back()[-2:] == ["answer 1", "answer 2"]
        first, second = asked
        stub = first.messages[2].text
        assert stub.startswith("begin ggg")
        assert stub.endswith("ggg end")
        assert f"of {len(self.GIANT)} characters left out; the whole is entry {giant} of this session" in stub
        assert second.messages[: len(first.messages)] == first.messages, "the beginning of requests stays the same"
        assert self.exact(house, session) == [True, True, True]
        upcoming = house.run(house.control.context(session)).request.messages
        assert upcoming[: len(second.messages)] == second.messages
        house.sound()

    def test_undo_takes_it_out_and_a_larger_window_answers_it_whole(self, house: House) -> None:
        narrow(house, most=8_000)
        session = house.say(self.GIANT).session
        house.say("/undo")
        assert texts(house, session) == []
        house.say(self.GIANT)
        asked = narrow(house, most=900_000, window=500_000)
        house.say("/retry")
        assert asked[-1].messages[-1].text == self.GIANT
        house.say("thanks")
        assert asked[-1].messages[0].text == self.GIANT
        house.sound()

    def test_one_that_was_answered_in_a_larger_window_becomes_a_stub_in_a_smaller_one(self, house: House) -> None:
        narrow(house, most=900_000, window=500_000)
        session = house.say(self.GIANT).session
        house.furniture.settings.update(hard=9.0, soft=9.0)
        asked = narrow(house, most=8_000)
        house.say("and now?")
        assert [body.outcome for body in house.bodies(session, Ended)] == ["done", "done"]
        assert len(asked) == 2, "once in vain"
        house.say("and then?")
        assert len(asked) == 3, "what was shortened stays so"
        assert asked[2].messages[: len(asked[1].messages)] == asked[1].messages
        assert house.bodies(session, Compressed) == []
        assert self.exact(house, session) == [True, True, True]
        house.sound()

    def test_one_that_is_too_long_only_for_a_window_smaller_than_configured_is_shown_as_a_stub_too(
        self, house: House
    ) -> None:
        asked = narrow(house, most=4_000, window=128_000)
        session = house.say("m" * 6_000).session
        assert "the message does not fit the model" in house.heard_back()[-1]
        asked.clear()
        house.say("and now?")
        assert house.heard_back()[-1] == "answer 1"
        assert self.exact(house, session) == [True]
        house.sound()

    def test_it_can_be_compressed_and_reviewed(self, house: House) -> None:
        asked = narrow(house, most=8_000)
        session = house.say(self.GIANT).session
        house.furniture.settings["review_every"] = 1
        house.say("and now?")
        house.say("/compress here 0")
        assert [folded.messages for folded in house.bodies(session, Compressed)] == [2]
        assert not house.diary.of("compression.refused")
        assert not house.diary.of("review.skipped")
        assert all(sum(len(m.text) for m in request.messages) <= 8_000 for request in asked[1:])
        house.sound()

    def test_a_summary_that_the_whole_does_not_fit_into_is_made_of_stubs(self, house: House) -> None:
        narrow(house, most=900_000, window=500_000)
        session = house.say(self.GIANT).session
        narrow(house, most=8_000)
        house.say("/compress here 0")
        assert [folded.messages for folded in house.bodies(session, Compressed)] == [1]
        house.say("and now?")
        assert house.bodies(session, Ended)[-1].outcome == "done"
        house.sound()


class TestRule14Undo:
    def test_undone_turns_leave_the_view_and_nothing_is_deleted(self, house: House) -> None:
        session = house.say("one").session
        house.say("two")
        before = house.log(session)
        house.say("/undo")
        assert texts(house, session) == ["one", "You said: one"]
        assert house.log(session)[: len(before)] == before
        house.sound()

    def test_undo_cancels_unsent_parts_and_retracts_from_memory(self, house: House) -> None:
        provider = FakeProvider()
        house.furniture.memories = {"a": provider}
        platform = use(house, Delivery.KEYED, text_limit=60)
        house.furniture.model = ScriptedModel([Answer(text=" ".join(f"word{n}" for n in range(30)))])
        platform.faults.work()
        platform.faults.fail(Transient("later", retry_after=600.0))
        session = house.say("tell me", rest=False).session
        house.tick(5)
        house.say("/undo", rest=False)
        house.tick(1_200)
        said = house.bodies(session, Said)[0]
        assert house.heard_back()[0] == said.parts[0]
        assert said.parts[1] not in house.heard_back()
        kept = provider.kept[session]
        assert isinstance(kept[-1], Retraction)
        assert kept[-1].keys == (kept[0].key,)

    def test_retry_answers_the_same_messages_again(self, house: House) -> None:
        session = house.say("one").session
        house.furniture.model = ScriptedModel([Answer(text="better")])
        house.say("/retry")
        assert texts(house, session) == ["one", "better"]
        house.sound()

    def test_undoing_a_fold_restores_the_exact_earlier_context(self, house: House) -> None:
        folding(house, keep=1)
        session = house.say(f"0 {LONG}").session
        house.furniture.settings["ahead"] = False
        house.furniture.settings["hard"] = 0.9
        for n in range(1, 3):
            house.say(f"{n} {LONG}")
        before = texts(house, session)
        house.furniture.settings.update(ahead=True)
        house.say(f"3 {LONG}")
        assert house.bodies(session, Compressed)
        house.furniture.settings.update(ahead=False)
        house.say("/undo compress")
        assert texts(house, session)[: len(before)] == before
        house.sound()

    def test_an_undone_turn_voids_the_folds_that_cover_it(self, house: House) -> None:
        folding(house, keep=0)
        session = ""
        for n in range(3):
            session = house.say(f"{n} {LONG}").session
        assert house.bodies(session, Compressed)
        house.furniture.settings.update(ahead=False, hard=9.0)
        house.say("/undo 2")
        assert "the story so far" not in " ".join(texts(house, session))
        assert texts(house, session)[0].startswith("0 ")
        house.sound()

    def test_a_branch_starts_with_its_parents_context_and_copies_nothing(self, house: House) -> None:
        parent = house.say("one").session
        house.say("/branch")
        branch = house.say("two").session
        assert branch != parent
        assert texts(house, branch) == ["one", "You said: one", "two", "You said: two"]
        assert [body.text for body in house.bodies(branch, Heard)] == ["two"]
        assert texts(house, parent) == ["one", "You said: one"]
        assert house.heard_back().count("You said: one") == 1
        house.sound()

    def test_a_fresh_context_keeps_the_session_and_its_history(self, house: House) -> None:
        session = house.say("old").session
        house.say("/new")
        assert house.say("new").session == session
        assert texts(house, session) == ["new", "You said: new"]
        house.sound()


SECRET = "the launch code is 4711"


class TestRule15Erasure:
    def everywhere(self, house: House) -> bytes:
        """Every byte the store holds, the write-ahead log included."""
        return b"".join(path.read_bytes() for path in house.path.glob("log.db*"))

    def test_erased_words_are_gone_and_the_log_still_holds_together(self, house: House) -> None:
        session = house.say(SECRET).session
        seqs = [e.seq for e in house.log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase(session, seqs))
        assert b"4711" not in self.everywhere(house)
        house.say("what was it?")
        assert not any("4711" in str(m) for m in house.furniture.model.asked[-1].messages)
        assert house.bodies(session, Erased)
        house.sound()

    def test_a_fold_that_contained_it_goes_too(self, house: House) -> None:
        folding(house, keep=0)
        house.furniture.summariser = ScriptedModel(lambda request: Answer(text="they spoke of 4711"))
        session = house.say(f"{SECRET} {LONG}").session
        house.say(f"more {LONG}")
        assert house.bodies(session, Compressed)
        seqs = [e.seq for e in house.log(session) if e.kind in ("heard", "said", "thought") and "4711" in str(e.body)]
        house.run(house.control.erase(session, seqs))
        assert b"4711" not in self.everywhere(house)
        assert not any("4711" in text for text in texts(house, session))
        house.sound()

    def test_it_ends_running_operations_that_saw_it(self, house: House) -> None:
        house.furniture.model = held = HeldModel()
        session = house.say(SECRET, rest=False).session
        house.tick(1)
        held.text = "yes, 4711"
        house.run(house.control.erase(session, [1]))
        held.free = True
        house.tick(5)
        assert [body.outcome for body in house.bodies(session, Ended)] == ["erased"]
        assert b"4711" not in self.everywhere(house)
        house.sound()

    def test_whoever_speaks_next_does_not_wait_for_a_turn_that_was_ended_so(self, house: House) -> None:
        house.furniture.model = held = HeldModel()
        session = house.say(SECRET, rest=False).session
        house.tick(1)
        house.run(house.control.erase(session, [1]))
        held.free = True
        house.say("and now?", rest=False)
        house.tick(3)
        assert house.heard_back() == ["at last"]
        house.sound()

    def test_what_was_erased_meanwhile_is_shown_to_no_other_model(self, house: House) -> None:
        class Failing(ScriptedModel):
            async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
                await asyncio.sleep(10)
                raise Overloaded("too much to do")

        house.furniture.model = Failing()
        house.furniture.fallbacks = (other := ScriptedModel(),)
        session = house.say(SECRET, rest=False).session
        house.tick(5)
        house.run(house.control.erase(session, [1]))
        house.tick(30)
        assert other.asked == []
        house.sound()

    def test_a_batch_in_flight_is_voided_and_the_rest_of_it_goes_again(self, house: House) -> None:
        provider = FakeProvider(Delivery.UPSERT)
        provider.faults.fail(Transient("down"))
        house.furniture.memories = {"a": provider}
        session = house.say(SECRET, rest=False).session
        house.tick(0.2)
        house.say("harmless", rest=False)
        house.tick(0.2)
        seqs = [e.seq for e in house.log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase(session, seqs))
        house.rest(120)
        stored = " ".join(str(item) for items in provider.kept.values() for item in items)
        assert "4711" not in stored
        assert "harmless" in stored

    def test_what_was_erased_on_its_way_to_somebody_who_cannot_tell_is_counted(self, house: House) -> None:
        batches: list[list[str]] = []

        class Slow(FakeProvider):
            async def store(self, batch: Batch) -> Mapping[str, str]:
                batches.append([wording(item) for item in batch.items])
                await asyncio.sleep(10)
                return await super().store(batch)

        house.furniture.memories = {"a": Slow(Delivery.BLIND)}
        session = house.say("first", rest=False).session
        house.tick(1)
        for text in (SECRET, "harmless"):
            house.say(text, rest=False)
            house.tick(1)
        house.tick(10)
        assert len(batches[-1]) == 2, "both are on their way"
        seqs = [e.seq for e in house.log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase(session, seqs))
        house.crash()
        house.start()
        house.rest(300)
        (parked,) = house.run(house.store.list_dead_letters(session=session))
        assert parked.in_doubt
        assert "4711" not in str(batches[2:])
        assert "harmless" in str(batches[2:])
        house.sound()

    def test_a_redelivered_erased_message_is_a_duplicate(self, house: House) -> None:
        session = house.say(SECRET, id="9").session
        house.run(house.control.erase(session, [1]))
        assert house.say(SECRET, id="9").outcome == "duplicate"
        assert b"4711" not in self.everywhere(house).replace(b"You said: the launch code is 4711", b"")

    def test_a_branch_forgets_with_its_parent(self, house: House) -> None:
        parent = house.say(SECRET).session
        house.say("/branch")
        branch = house.say("in the branch").session
        seqs = [e.seq for e in house.log(parent) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase(parent, seqs))
        house.say("still there?")
        assert not any("4711" in str(m) for m in house.furniture.model.asked[-1].messages)
        assert not any("4711" in text for text in texts(house, branch))

    def test_a_branch_forgets_though_whoever_erased_fell_before_it_was_its_turn(self, house: House) -> None:
        folding(house, keep=0)
        house.furniture.summariser = ScriptedModel(lambda request: Answer(text="they spoke of 4711"))
        parent = house.say(SECRET).session
        house.say("/branch")
        branch = house.say(f"in the branch {LONG}").session
        house.say(f"more {LONG}")
        assert house.bodies(branch, Compressed)
        assert not house.bodies(parent, Compressed)
        house.furniture.summariser = ScriptedModel(lambda request: Answer(text="nothing worth telling"))
        seqs = [e.seq for e in house.log(parent) if e.body is not None and "4711" in str(e.body)]
        die_at(house, Step.ERASE, after=True)
        house.loop.create_task(house.control.erase(parent, seqs))
        house.tick(1)
        house.start()
        assert b"4711" in self.everywhere(house)
        house.run(house.control.reapply_erasures())
        assert b"4711" not in self.everywhere(house)
        house.sound()

    def test_a_restored_backup_forgets_again(self, house: House) -> None:
        session = house.say(SECRET).session
        assert house.process is not None
        saved = house.run(house.process.disk.backup(house.path / "saved.db"))
        seqs = [e.seq for e in house.log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase(session, seqs))
        house.crash()
        for path in house.path.glob("log.db*"):
            path.unlink()
        saved.rename(house.path / "log.db")
        house.start()
        assert b"4711" in self.everywhere(house)
        assert house.run(house.control.reapply_erasures()) == len(seqs)
        assert b"4711" not in self.everywhere(house)
        assert house.run(house.control.reapply_erasures()) == 0
        house.sound()

    @pytest.mark.parametrize(
        "torn", [b'{"session":"s","se', b'{"session":"","seqs":[],"forget":["ada"],"at":1', b"\0" * 9]
    )
    def test_a_line_that_a_power_cut_tore_keeps_nobody_from_starting(self, house: House, torn: bytes) -> None:
        """It tells of an erasure that was not begun, and takes no other with it."""
        session = house.say(SECRET).session
        file = house.control.erasures
        assert file is not None
        file.write_bytes(torn)
        assert house.run(house.control.reapply_erasures()) == 0
        assert house.control.written_down(about=b'"forget"') == []
        seqs = [e.seq for e in house.log(session) if e.body is not None and "4711" in str(e.body)]
        house.run(house.control.erase(session, seqs))
        (record,) = house.control.written_down()
        assert (record["session"], record["seqs"]) == (session, seqs)
        assert house.run(house.control.reapply_erasures()) == 0
        house.sound()

    def test_what_holds_the_log_together_cannot_be_erased(self, house: House) -> None:
        session = house.say("hello").session
        with pytest.raises(Misuse):
            house.run(house.control.erase(session, [2]))
        with pytest.raises(NotFound):
            house.run(house.control.erase(session, [99]))


class TestRule16Limits:
    def test_a_message_of_a_megabyte_is_kept_and_answered(self, house: House) -> None:
        house.furniture.model = ScriptedModel([Answer(text="long indeed")])
        text = "a" * 1_000_000
        session = house.say(text).session
        assert house.bodies(session, Heard)[0].text == text

    @pytest.mark.parametrize(
        "text", ["bad \ud800 surrogate", "nul \0 inside", "\u202eltr", "\ufeff", "👨‍👩‍👧" * 10_000]
    )
    def test_strange_text_is_kept_and_harms_no_neighbour(self, house: House, text: str) -> None:
        house.furniture.model = ScriptedModel(lambda request: Answer(text="fine"))
        house.say("before")
        session = house.say(text).session
        house.say("after")
        heard = house.bodies(session, Heard)
        assert [heard[0].text, heard[2].text] == ["before", "after"]
        assert heard[1].mangled == ("\ud800" in text)
        if not heard[1].mangled:
            assert heard[1].text == text
        house.sound()

    def test_an_unknown_kind_stops_its_own_lane_and_no_other(self, house: House) -> None:
        provider = FakeProvider()
        house.furniture.memories = {"a": provider}
        provider.faults.fail(Transient("down"))
        session = house.say("one", rest=False).session
        house.tick(0.2)
        assert house.process is not None
        house.process.disk.writer.db.execute("update entries set kind = 'dreamt' where kind = 'said'")
        other = house.say("elsewhere", chat="other", rest=False).session
        house.tick(30)
        assert "You said: elsewhere" in house.heard_back()
        assert other in provider.kept
        lanes = house.run(house.store.list_cursors(session=session))
        assert any("dreamt" in lane.error for lane in lanes)

    def test_ten_thousand_pending_are_drained_in_order(self, house: House) -> None:
        house.furniture.model = held = HeldModel()
        held.context_tokens = 10_000_000
        session = house.say("0", rest=False).session

        async def burst() -> None:
            assert house.process is not None
            for n in range(1, 10_000):
                await house.process.accept(house.message(str(n)))
                await asyncio.sleep(0.001 * (n % 500 == 0))

        house.run(burst())
        held.free = True
        house.rest(60)
        heard = [body.text for body in house.bodies(session, Heard)]
        assert heard == [str(n) for n in range(10_000)]
        assert house.run(house.store.get_session(session)).pending == 0
        shown = [text for text in texts(house, session) if text.isdigit()]
        assert shown == heard


class TestBusy:
    """E4: what happens to a message that arrives mid-turn."""

    def tool_turn(self, house: House, seen: list[list[str]]) -> None:
        class Reading(ScriptedModel):
            async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
                seen.append([message.text for message in request.messages if message.role == "user"])
                await asyncio.sleep(1)
                if len(seen) < 3:
                    return Answer(calls=(Call(id="c", tool="look"),))
                return Answer(text="done")

        house.furniture.tools = {"look": FakeTool("look", Effect.PURE)}
        house.furniture.model = Reading()

    def test_steer_is_seen_at_the_next_tool_boundary(self, house: House) -> None:
        seen: list[list[str]] = []
        self.tool_turn(house, seen)
        session = house.say("start", rest=False).session
        house.tick(0.5)
        house.say("/steer left", rest=False)
        house.rest(10)
        assert seen == [["start"], ["start", "left"], ["start", "left"]]
        assert house.heard_back() == ["done"]
        house.sound()
        assert len(house.bodies(session, Took)) == 1

    def test_interrupt_ends_the_running_turn_and_the_message_is_answered(self, house: House) -> None:
        house.furniture.settings["busy"] = "interrupt"
        house.furniture.model = held = HeldModel()
        session = house.say("wrong question", rest=False).session
        house.tick(1)
        house.furniture.model = ScriptedModel()
        house.say("right question", rest=False)
        house.rest(10)
        assert [body.outcome for body in house.bodies(session, Ended)] == ["interrupted", "done"]
        assert house.heard_back() == ["You said: right question"]
        assert held.asked
        house.sound()

    def test_stop_ends_the_turn_and_says_so_truly(self, house: House) -> None:
        house.furniture.model = HeldModel()
        session = house.say("never mind", rest=False).session
        house.tick(1)
        house.say("/stop", rest=False)
        house.tick(5)
        outcomes = [body.outcome for body in house.bodies(session, Ended)]
        assert outcomes.count("stopped") == 1
        assert house.run(house.store.get_session(session)).running == ""

    def test_stop_waits_for_a_tool_that_changes_something(self, house: House) -> None:
        class Slow(FakeTool):
            async def run(self, arguments: dict[str, Any], context: Any) -> Result:
                await asyncio.sleep(5)
                return await super().run(arguments, context)

        tool = Slow("send", Effect.ONCE)
        house.furniture.tools = {"send": tool}
        house.furniture.model = ScriptedModel(lambda request: Answer(calls=(Call(id="c", tool="send"),)))
        session = house.say("send it", rest=False).session
        house.tick(1)
        house.say("/stop", rest=False)
        house.tick(30)
        assert sum(tool.done.values()) == 1
        assert [body.unknown for body in house.bodies(session, Returned)] == [False]
        assert "stopped" in [body.outcome for body in house.bodies(session, Ended)]

    def test_with_the_model_down_stop_puts_the_messages_aside(self, house: House) -> None:
        house.furniture.model.faults.fail(Overloaded("down"), times=10_000)
        session = house.say("hello?", rest=False).session
        house.tick(5)
        house.say("/stop", rest=False)
        house.tick(5)
        assert house.run(house.store.get_session(session)).pending == 0
        house.furniture.model.faults = type(house.furniture.model.faults)()
        house.tick(600)
        assert not any("You said: hello?" in text for text in house.heard_back())


def test_the_exact_context_of_a_turn_is_verified_against_its_digest(house: House) -> None:
    session = house.say("one").session
    house.say("two")
    house.say("/undo")
    house.say("three")
    thoughts = [entry.seq for entry in house.log(session) if isinstance(entry.body, Thought)]
    for seq, request in zip(thoughts, house.furniture.model.asked, strict=True):
        shown = house.run(house.control.context(session, at=seq))
        assert shown.exact is True
        assert shown.request == request
    house.run(house.control.erase(session, [1]))
    assert house.run(house.control.context(session, at=thoughts[0])).exact is False


def test_a_note_is_kept_at_once_and_reaches_the_providers(house: House) -> None:
    provider = FakeProvider()
    house.furniture.memories = {"a": provider}
    session = house.say("hello").session
    house.run(house.control.note(session, "Ada likes tea", by="person:ada"))
    house.rest()
    assert [note.text for note in house.bodies(session, Noted)] == ["Ada likes tea"]
    assert [type(item).__name__ for item in provider.kept[session]] == ["Exchange", "Note"]


def test_the_view_of_a_session_is_the_same_read_at_once_or_grown(house: House) -> None:
    """The kept view of a talking session and the one read from the log alone show the same."""
    session = ""
    for n in range(10):
        session = house.say(f"message {n}").session

    async def look() -> list[str]:
        found = await house.store.get_session(session)
        return [m.text for m in messages(await view_at(house.store, found, at=found.last_seq + 1))]

    assert [m.text for m in house.furniture.model.asked[-1].messages] == house.run(look())[:-1]


def test_a_branch_that_folded_what_it_inherited_forgets_with_its_parent(house: House) -> None:
    folding(house, keep=0, ahead=False)
    house.furniture.summariser = ScriptedModel(lambda request: Answer(text="they spoke of 4711"))
    parent = house.say(f"{SECRET} {LONG}").session
    house.say("/branch")
    house.furniture.settings["ahead"] = True
    branch = house.say(f"on we go {LONG}").session
    assert branch != parent
    assert [fold.summary for fold in house.bodies(branch, Compressed)] == ["they spoke of 4711"]
    seqs = [e.seq for e in house.log(parent) if e.body is not None and "4711" in str(e.body)]
    house.run(house.control.erase(parent, seqs))
    house.say("and now?")
    assert not any("4711" in str(m) for m in house.furniture.model.asked[-1].messages)
    assert any("on we go" in m.text for m in house.furniture.model.asked[-1].messages), "the originals are back"
    assert b"4711" not in b"".join(path.read_bytes() for path in house.path.glob("log.db*"))
    house.sound()


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_a_branch_folds_its_inheritance_whole_and_loses_nothing(house: House, keep: int) -> None:
    folding(house, keep=keep, ahead=False)
    for n in range(3):
        house.say(f"parent {n} {LONG}")
    house.say("/branch")
    branch = ""
    for n in range(4):
        house.furniture.settings["ahead"] = n == 3
        branch = house.say(f"child {n} {LONG}").session
    shown = " ".join(texts(house, branch))
    for n in range(4):
        assert (f"child {n} " in shown) or house.bodies(branch, Compressed)
    folds = house.bodies(branch, Compressed)
    assert folds
    covered = [op for op in house.run(house.store.list_operations(branch, types=("turn",))) if op.op > folds[-1].covers]
    assert len(covered) >= min(keep, 4)
    assert shown.count("child 3 ") >= (1 if keep else 0)
    assert "parent 0 " not in shown
    house.sound()
