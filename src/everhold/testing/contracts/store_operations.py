"""What every store promises about operations: who may write for one, what it consumes, and how it leaves the view."""

from __future__ import annotations

import pytest

from everhold.core.entries import (
    Changed,
    Compressed,
    ContextReset,
    Draft,
    Ended,
    Erased,
    Noted,
    OperationsUndone,
    StopRequested,
    Thought,
    Took,
)
from everhold.errors import Conflict, LeaseLost, Misuse, NotFound
from everhold.ports.store import Step
from everhold.testing.contracts.scene import Scene, promise


class OperationsContract:
    @promise
    async def test_what_no_operation_consumed_is_pending_in_order(self, scene: Scene) -> None:
        for text in ("a", "b", "c"):
            await scene.hear(text)
        op = await scene.begin(1, 3)
        assert await scene.pending() == [2]
        assert (await scene.store.get_session("s")).pending == 1
        await scene.take(op, 2)
        assert await scene.pending() == []
        await scene.end(op)
        assert await scene.pending() == []

    @promise
    async def test_chatter_is_pending_too_until_a_turn_takes_it(self, scene: Scene) -> None:
        await scene.hear("just saying", asks=False)
        assert await scene.pending() == [1]
        await scene.begin(1)
        assert await scene.pending() == []

    @promise
    async def test_nothing_is_consumed_twice(self, scene: Scene) -> None:
        await scene.hear()
        await scene.hear()
        op = await scene.begin(1)
        for takes in ((1,), (1, 2), (9,), (2, 2)):
            with pytest.raises(Conflict):
                await scene.commit(Draft(body=Took(takes=takes), author="agent:main", op=op), op=op)
        assert await scene.pending() == [2]
        await scene.end(op)
        with pytest.raises(Conflict):
            await scene.begin(1)

    @promise
    async def test_an_operation_is_known_by_its_began(self, scene: Scene) -> None:
        await scene.hear("a")
        await scene.hear("b")
        claim = await scene.claim()
        op = await scene.begin(2, 1, claim=claim, compression=7)
        (operation,) = await scene.store.list_operations("s")
        assert (operation.op, operation.type, operation.state) == (op, "turn", "running")
        assert (operation.first, operation.last) == (1, 0)
        assert (operation.consumer, operation.fence, operation.attempts, operation.compression) == (
            "turn",
            claim.fence,
            1,
            7,
        )
        assert (await scene.store.get_entry("s", op)).op == op
        last = await scene.end(op, claim=claim)
        (operation,) = await scene.store.list_operations("s")
        assert (operation.state, operation.last) == ("done", last)

    @promise
    async def test_one_turn_runs_per_session(self, scene: Scene) -> None:
        await scene.open("t")
        op = await scene.begin()
        assert (await scene.store.get_session("s")).running == "turn"
        with pytest.raises(Conflict):
            await scene.begin()
        await scene.begin(session="t")
        await scene.end(op)
        assert (await scene.store.get_session("s")).running == ""
        await scene.begin()

    @promise
    async def test_one_fold_runs_beside_a_turn(self, scene: Scene) -> None:
        fold = await scene.begin(type="compression")
        assert (await scene.store.get_session("s")).running == "compression"
        with pytest.raises(Conflict):
            await scene.begin(type="compression")
        await scene.begin()
        assert (await scene.store.get_session("s")).running == "turn"
        await scene.end(fold)
        await scene.begin(type="compression")

    @promise
    async def test_no_turn_begins_while_a_blocking_fold_runs(self, scene: Scene) -> None:
        fold = await scene.begin(type="compression", blocking=True)
        with pytest.raises(Conflict):
            await scene.begin()
        await scene.end(fold)
        turn = await scene.begin()
        with pytest.raises(Conflict):
            await scene.begin(type="compression", blocking=True)
        await scene.end(turn)

    @promise
    async def test_commands_and_jobs_run_beside_everything(self, scene: Scene) -> None:
        await scene.begin()
        await scene.begin(type="command")
        await scene.begin(type="command")
        await scene.begin(type="job")
        assert len(await scene.store.list_operations("s", states=("running",))) == 4

    @promise
    async def test_only_a_running_operation_can_be_written_for(self, scene: Scene) -> None:
        thought = Thought(text="hm")
        with pytest.raises(LeaseLost):
            await scene.commit(Draft(body=thought, author="agent:main", op=5), op=5)
        op = await scene.begin()
        await scene.commit(Draft(body=thought, author="agent:main", op=op), op=op)
        await scene.end(op)
        with pytest.raises(LeaseLost):
            await scene.commit(Draft(body=thought, author="agent:main", op=op), op=op)
        with pytest.raises(LeaseLost):
            await scene.commit(Draft(body=Ended(), author="agent:main", op=op), op=op)
        assert len(await scene.store.list_entries("s")) == 3

    @promise
    async def test_who_writes_for_an_operation_names_it(self, scene: Scene) -> None:
        """Or nobody would look whether it is still running."""
        over, running = await scene.turn(), await scene.begin()
        for op in (over, running):
            for body in (Thought(text="hm"), Noted(text="late"), Took(takes=()), Ended()):
                draft = Draft(body=body, author="agent:main", op=op)
                with pytest.raises(Misuse, match=f"operation {op}, which its change does not name"):
                    await scene.commit(draft)
        with pytest.raises(Misuse, match="does not name"):
            await scene.commit(Draft(body=Thought(), author="agent:main", op=over), op=running)
        with pytest.raises(Misuse, match="does not name"):  # nor with something that erases: it ends others, no more
            await scene.commit(
                Erased(seqs=(1,)), Draft(body=Thought(), author="agent:main", op=running), step=Step.ERASE, erase=(1,)
            )
        assert len(await scene.store.list_entries("s")) == 4
        ended = Draft(body=Ended(outcome="interrupted"), author="system", op=running)
        await scene.commit(Erased(seqs=(1,)), ended, step=Step.ERASE, erase=(1,))
        assert [it.state for it in await scene.store.list_operations("s")] == ["done", "interrupted"]

    @promise
    async def test_an_operation_answers_to_the_fence_it_came_under(self, scene: Scene) -> None:
        await scene.hear()
        old = await scene.claim(at=1.0, owner="old", lease=10)
        op = await scene.begin(1, claim=old)
        new = await scene.claim(at=20.0, owner="new")
        thought = Draft(body=Thought(text="hm"), author="agent:main", op=op)
        with pytest.raises(LeaseLost):
            await scene.commit(thought, op=op, claim=old)
        await scene.commit(thought, op=op, claim=new)
        (operation,) = await scene.store.list_operations("s")
        assert (operation.fence, operation.attempts) == (new.fence, 2)

    @promise
    async def test_an_operation_is_not_written_for_by_another_lane(self, scene: Scene) -> None:
        await scene.hear()
        await scene.wake("commands")
        mind, desk = await scene.claim(), await scene.claim("commands")
        await scene.update(desk, release=True)
        desk = await scene.claim("commands")
        assert desk.fence != mind.fence
        op = await scene.begin(1, claim=mind)
        with pytest.raises(LeaseLost):
            await scene.commit(Draft(body=Thought(text="?"), author="agent:main", op=op), op=op, claim=desk)

    @promise
    async def test_waiting_on_purpose_is_not_an_attempt(self, scene: Scene) -> None:
        await scene.hear()
        claim = await scene.claim(at=1.0)
        op = await scene.begin(1, claim=claim)
        await scene.commit(step=Step.PAUSE, op=op, claim=claim, pause=True)
        (operation,) = await scene.store.list_operations("s")
        assert operation.paused
        await scene.update(claim, release=True)
        claim = await scene.claim(at=2.0)
        (operation,) = await scene.store.list_operations("s")
        assert (operation.paused, operation.attempts) == (False, 1)
        await scene.update(claim, release=True)
        await scene.claim(at=3.0)
        (operation,) = await scene.store.list_operations("s")
        assert operation.attempts == 2

    @promise
    async def test_a_released_operation_gives_back_all_it_took(self, scene: Scene) -> None:
        await scene.hear("a")
        await scene.hear("b", asks=False)
        await scene.hear("c")
        op = await scene.begin(1, 2)
        await scene.take(op, 3)
        await scene.end(op, "released")
        assert await scene.pending() == [1, 2, 3]
        (operation,) = await scene.store.list_operations("s")
        assert operation.state == "released"
        await scene.begin(1, 2, 3)
        assert await scene.pending() == []

    @promise
    async def test_a_failed_operation_keeps_what_it_took(self, scene: Scene) -> None:
        for outcome in ("failed", "stopped", "interrupted", "refused"):
            op = await scene.begin(await scene.hear(outcome))
            await scene.end(op, outcome)
        assert await scene.pending() == []
        states = [operation.state for operation in await scene.store.list_operations("s")]
        assert states == ["failed", "stopped", "interrupted", "refused"]

    @promise
    async def test_operations_are_read_by_what_state_range_and_order(self, scene: Scene) -> None:
        first, second = await scene.turn(), await scene.turn()
        fold = await scene.fold(first)
        last = await scene.begin()

        async def read(**wanted: object) -> list[int]:
            return [one.op for one in await scene.store.list_operations("s", **wanted)]  # type: ignore[arg-type]

        assert await read() == [first, second, fold, last]
        assert await read(types=("turn",), states=("done",)) == [first, second]
        assert await read(after=first, before=last) == [second, fold]
        assert await read(newest_first=True, limit=2) == [last, fold]
        assert await read(types=("turn",), newest_first=True, before=last) == [second, first]
        assert await scene.store.list_operations("nobody") == []

    @promise
    async def test_somebody_can_ask_a_running_operation_to_end(self, scene: Scene) -> None:
        done = await scene.turn()
        op = await scene.begin()
        await scene.alter(StopRequested(op=done))
        await scene.alter(StopRequested(op=op))
        assert [one.stop for one in await scene.store.list_operations("s")] == [False, True]

    @promise
    async def test_what_an_erased_operation_had_been_asked_besides_is_asked_again(self, scene: Scene) -> None:
        await scene.hear("secret")
        await scene.hear("what time is it?")
        op = await scene.begin(1, 2)
        await scene.erase(1)
        await scene.end(op, "erased")
        assert await scene.pending() == [2]

    @promise
    async def test_a_glance_is_the_session_its_pending_messages_and_what_runs(self, scene: Scene) -> None:
        await scene.turn()
        turn = await scene.turn()
        await scene.hear("next")
        fold = await scene.begin(type="compression")
        glance = await scene.store.get_session_snapshot("s")
        assert glance.session == await scene.store.get_session("s")
        assert glance.pending == await scene.store.list_pending("s")
        assert [operation.op for operation in glance.running] == [fold]
        assert glance.newest_turn == turn
        with pytest.raises(NotFound):
            await scene.store.get_session_snapshot("nobody")

    @promise
    async def test_a_head_says_how_far_a_session_goes_and_what_was_erased_above_it(self, scene: Scene) -> None:
        seq = await scene.hear("wrong")
        await scene.open("branch", parent="s", parent_at=seq)
        await scene.erase(seq)
        for id in ("s", "branch"):
            session = await scene.store.get_session(id)
            assert await scene.store.get_session_head(id) == (session.last_seq, session.generation)
        assert (await scene.store.get_session_head("branch"))[1] > 0
        with pytest.raises(NotFound):
            await scene.store.get_session_head("nobody")

    @promise
    async def test_messages_that_wait_for_an_answer_are_counted_across_sessions(self, scene: Scene) -> None:
        await scene.open("t")
        await scene.hear("a")
        await scene.hear("b", session="t")
        await scene.hear("just saying", session="t", asks=False)
        assert await scene.store.count_waiting() == 2
        await scene.begin(1)
        assert await scene.store.count_waiting() == 1

    # -- what changes the view

    @promise
    async def test_undone_operations_leave_the_view_and_stay_in_the_log(self, scene: Scene) -> None:
        kept, gone = await scene.turn("a"), await scene.turn("b")
        seq = await scene.alter(OperationsUndone(ops=(gone,)))
        assert [one.undone_at for one in await scene.store.list_operations("s")] == [0, seq]
        assert await scene.generation() == 1
        assert await scene.pending() == []
        assert await scene.texts() == ["a", "b"]
        assert kept < gone

    @promise
    async def test_what_was_undone_first_stays_so(self, scene: Scene) -> None:
        op = await scene.turn()
        first = await scene.alter(OperationsUndone(ops=(op,)))
        await scene.alter(OperationsUndone(ops=(op,), again=True))
        (operation,) = await scene.store.list_operations("s")
        assert operation.undone_at == first
        with pytest.raises(NotFound):
            await scene.alter(OperationsUndone(ops=(99,)))

    @promise
    async def test_undone_to_go_again_makes_its_messages_pending(self, scene: Scene) -> None:
        a, b = await scene.hear("a"), await scene.hear("b", asks=False)
        op = await scene.begin(a)
        await scene.take(op, b)
        await scene.end(op, "failed")
        await scene.alter(OperationsUndone(ops=(op,), again=True))
        assert await scene.pending() == [a, b]
        again = await scene.begin(a, b)
        assert (await scene.store.list_operations("s"))[1].first == a < again

    @promise
    async def test_a_fold_commits_with_the_mark_it_covers(self, scene: Scene) -> None:
        op = await scene.turn()
        fold = await scene.fold(op, generation=0)
        session = await scene.store.get_session("s")
        assert (session.compressed_upto, session.generation) == (op, 1)
        assert [one.covers for one in await scene.store.list_operations("s")] == [0, op]
        newer = await scene.turn()
        await scene.fold(newer)
        assert (await scene.store.get_session("s")).compressed_upto == newer
        await scene.alter(OperationsUndone(ops=(fold,)))
        assert (await scene.store.get_session("s")).compressed_upto == newer

    @promise
    async def test_a_fold_does_not_commit_over_a_view_it_did_not_read(self, scene: Scene) -> None:
        first, second = await scene.turn(), await scene.turn()
        op = await scene.begin(type="compression")
        await scene.alter(OperationsUndone(ops=(second,)))
        folded = Draft(body=Compressed(summary="stale", covers=second), author="system", op=op)
        with pytest.raises(Conflict):
            await scene.commit(folded, op=op, generation=0)
        await scene.end(op, "failed")
        assert (await scene.store.get_session("s")).compressed_upto == 0
        assert first < second

    @promise
    async def test_a_fold_that_covers_an_undone_turn_is_void(self, scene: Scene) -> None:
        first, second = await scene.turn(), await scene.turn()
        early, late = await scene.fold(first), await scene.fold(second)
        seq = await scene.alter(OperationsUndone(ops=(second,)))
        undone = {one.op: one.undone_at for one in await scene.store.list_operations("s")}
        assert undone == {first: 0, second: seq, early: 0, late: seq}
        assert (await scene.store.get_session("s")).compressed_upto == first

    @promise
    async def test_undoing_a_fold_leaves_the_turns_and_the_other_folds(self, scene: Scene) -> None:
        first, second = await scene.turn(), await scene.turn()
        early, late = await scene.fold(first), await scene.fold(second)
        await scene.alter(OperationsUndone(ops=(early,)))
        assert [one.op for one in await scene.store.list_operations("s") if one.undone_at] == [early]
        assert (await scene.store.get_session("s")).compressed_upto == second
        assert late

    @promise
    async def test_a_fresh_context_stands_among_the_operations(self, scene: Scene) -> None:
        await scene.turn()
        seq = await scene.alter(ContextReset())
        fresh = (await scene.store.list_operations("s", types=("context_reset",)))[0]
        assert (fresh.op, fresh.state, fresh.first, fresh.last) == (seq, "done", seq, seq)
        assert await scene.generation() == 1

    @promise
    async def test_each_change_of_the_view_counts(self, scene: Scene) -> None:
        op = await scene.turn()
        done = await scene.commit(
            Changed(change=ContextReset()), Changed(change=OperationsUndone(ops=(op,))), Noted(text="no")
        )
        assert done.generation == 2
        assert await scene.generation() == 2

    @promise
    async def test_erasing_voids_the_folds_that_contained_it(self, scene: Scene) -> None:
        op = await scene.turn("secret")
        fold = await scene.fold(op)
        done = await scene.erase(1, compressions=(fold,))
        assert (await scene.store.list_operations("s", types=("compression",)))[0].undone_at == done.seqs[0]
        assert (await scene.store.get_session("s")).compressed_upto == 0
