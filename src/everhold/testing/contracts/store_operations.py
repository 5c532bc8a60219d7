"""What every store promises about operations: who may write for one, what it consumes, and how it leaves the
context."""

from __future__ import annotations

import pytest

from everhold.core.entries import (
    Changed,
    ChatLocation,
    Compressed,
    ContextReset,
    Ended,
    EntryDraft,
    Erased,
    Noted,
    Notified,
    OperationsUndone,
    Said,
    StopRequested,
    Thought,
    Took,
)
from everhold.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from everhold.ports.store import Step
from everhold.testing.contracts.store_scenario import StoreScenario, store_promise


class StoreOperationsContract:
    @store_promise
    async def test_unconsumed_messages_are_pending_in_order(self, scenario: StoreScenario) -> None:
        for text in ("a", "b", "c"):
            await scenario.commit_heard(text)
        op = await scenario.begin_operation(1, 3)
        assert await scenario.list_pending_seqs() == [2]
        assert (await scenario.store.get_session("s")).pending == 1
        await scenario.take_messages(op, 2)
        assert await scenario.list_pending_seqs() == []
        await scenario.end_operation(op)
        assert await scenario.list_pending_seqs() == []

    @store_promise
    async def test_chatter_is_pending_until_a_turn_takes_it(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("just saying", asks=False)
        assert await scenario.list_pending_seqs() == [1]
        await scenario.begin_operation(1)
        assert await scenario.list_pending_seqs() == []

    @store_promise
    async def test_no_message_is_consumed_twice(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        await scenario.commit_heard()
        op = await scenario.begin_operation(1)
        for takes in ((1,), (1, 2), (9,), (2, 2)):
            with pytest.raises(Conflict):
                await scenario.commit(EntryDraft(body=Took(takes=takes), author="agent:main", op=op), op=op)
        assert await scenario.list_pending_seqs() == [2]
        await scenario.end_operation(op)
        with pytest.raises(Conflict):
            await scenario.begin_operation(1)

    @store_promise
    async def test_an_operation_is_identified_by_its_began_entry(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("a")
        await scenario.commit_heard("b")
        claim = await scenario.claim_cursor()
        op = await scenario.begin_operation(2, 1, claim=claim, compression=7)
        (operation,) = await scenario.store.list_operations("s")
        assert (operation.op, operation.type, operation.state) == (op, "turn", "running")
        assert (operation.first, operation.last) == (1, 0)
        assert (operation.consumer, operation.fence, operation.attempts, operation.compression) == (
            "turn",
            claim.fence,
            1,
            7,
        )
        assert (await scenario.store.get_entry("s", op)).op == op
        last = await scenario.end_operation(op, claim=claim)
        (operation,) = await scenario.store.list_operations("s")
        assert (operation.state, operation.last) == ("done", last)

    @store_promise
    async def test_one_turn_runs_per_session(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        op = await scenario.begin_operation()
        assert (await scenario.store.get_session("s")).running == "turn"
        with pytest.raises(Conflict):
            await scenario.begin_operation()
        await scenario.begin_operation(session="t")
        await scenario.end_operation(op)
        assert (await scenario.store.get_session("s")).running == ""
        await scenario.begin_operation()

    @store_promise
    async def test_one_compression_runs_during_a_turn(self, scenario: StoreScenario) -> None:
        compression = await scenario.begin_operation(type="compression")
        assert (await scenario.store.get_session("s")).running == "compression"
        with pytest.raises(Conflict):
            await scenario.begin_operation(type="compression")
        await scenario.begin_operation()
        assert (await scenario.store.get_session("s")).running == "turn"
        await scenario.end_operation(compression)
        await scenario.begin_operation(type="compression")

    @store_promise
    async def test_no_turn_begins_while_a_blocking_compression_runs(self, scenario: StoreScenario) -> None:
        compression = await scenario.begin_operation(type="compression", blocking=True)
        with pytest.raises(Conflict):
            await scenario.begin_operation()
        await scenario.end_operation(compression)
        turn = await scenario.begin_operation()
        with pytest.raises(Conflict):
            await scenario.begin_operation(type="compression", blocking=True)
        await scenario.end_operation(turn)

    @store_promise
    async def test_commands_and_jobs_run_beside_turns_and_compressions(self, scenario: StoreScenario) -> None:
        await scenario.begin_operation()
        await scenario.begin_operation(type="command")
        await scenario.begin_operation(type="command")
        await scenario.begin_operation(type="job")
        assert len(await scenario.store.list_operations("s", states=("running",))) == 4

    @store_promise
    async def test_only_a_running_operation_accepts_changes(self, scenario: StoreScenario) -> None:
        thought = Thought(text="hm")
        with pytest.raises(LeaseLost):
            await scenario.commit(EntryDraft(body=thought, author="agent:main", op=5), op=5)
        op = await scenario.begin_operation()
        await scenario.commit(EntryDraft(body=thought, author="agent:main", op=op), op=op)
        await scenario.end_operation(op)
        with pytest.raises(LeaseLost):
            await scenario.commit(EntryDraft(body=thought, author="agent:main", op=op), op=op)
        with pytest.raises(LeaseLost):
            await scenario.commit(EntryDraft(body=Ended(), author="agent:main", op=op), op=op)
        assert len(await scenario.store.list_entries("s")) == 3

    @store_promise
    async def test_a_change_for_an_operation_must_name_it(self, scenario: StoreScenario) -> None:
        """Otherwise the store could not check that the operation still runs."""
        over, running = await scenario.commit_turn(), await scenario.begin_operation()
        for op in (over, running):
            for body in (Thought(text="hm"), Noted(text="late"), Took(takes=()), Ended()):
                draft = EntryDraft(body=body, author="agent:main", op=op)
                with pytest.raises(InvalidRequest, match=f"operation {op}, which its change does not name"):
                    await scenario.commit(draft)
        with pytest.raises(InvalidRequest, match="does not name"):
            await scenario.commit(EntryDraft(body=Thought(), author="agent:main", op=over), op=running)
        with pytest.raises(
            InvalidRequest, match="does not name"
        ):  # nor with an erasure, which may only end other operations
            await scenario.commit(
                Erased(seqs=(1,)),
                EntryDraft(body=Thought(), author="agent:main", op=running),
                step=Step.ERASE,
                erase=(1,),
            )
        assert len(await scenario.store.list_entries("s")) == 4
        ended = EntryDraft(body=Ended(outcome="interrupted"), author="system", op=running)
        await scenario.commit(Erased(seqs=(1,)), ended, step=Step.ERASE, erase=(1,))
        assert [it.state for it in await scenario.store.list_operations("s")] == ["done", "interrupted"]

    @store_promise
    async def test_an_operation_accepts_only_the_fence_of_its_claim(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        old = await scenario.claim_cursor(at=1.0, owner="old", lease=10)
        op = await scenario.begin_operation(1, claim=old)
        new = await scenario.claim_cursor(at=20.0, owner="new")
        thought = EntryDraft(body=Thought(text="hm"), author="agent:main", op=op)
        with pytest.raises(LeaseLost):
            await scenario.commit(thought, op=op, claim=old)
        await scenario.commit(thought, op=op, claim=new)
        (operation,) = await scenario.store.list_operations("s")
        assert (operation.fence, operation.attempts) == (new.fence, 2)

    @store_promise
    async def test_an_operation_accepts_no_change_of_another_cursor(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        await scenario.wake_consumer("commands")
        claim, other = await scenario.claim_cursor(), await scenario.claim_cursor("commands")
        await scenario.update_cursor(other, release=True)
        other = await scenario.claim_cursor("commands")
        assert other.fence != claim.fence
        op = await scenario.begin_operation(1, claim=claim)
        with pytest.raises(LeaseLost):
            await scenario.commit(EntryDraft(body=Thought(text="?"), author="agent:main", op=op), op=op, claim=other)

    @store_promise
    async def test_an_intended_wait_is_not_an_attempt(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        claim = await scenario.claim_cursor(at=1.0)
        op = await scenario.begin_operation(1, claim=claim)
        await scenario.commit(step=Step.PAUSE, op=op, claim=claim, pause=True)
        (operation,) = await scenario.store.list_operations("s")
        assert operation.paused
        await scenario.update_cursor(claim, release=True)
        claim = await scenario.claim_cursor(at=2.0)
        (operation,) = await scenario.store.list_operations("s")
        assert (operation.paused, operation.attempts) == (False, 1)
        await scenario.update_cursor(claim, release=True)
        await scenario.claim_cursor(at=3.0)
        (operation,) = await scenario.store.list_operations("s")
        assert operation.attempts == 2

    @store_promise
    async def test_a_released_operation_returns_all_its_messages(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("a")
        await scenario.commit_heard("b", asks=False)
        await scenario.commit_heard("c")
        op = await scenario.begin_operation(1, 2)
        await scenario.take_messages(op, 3)
        await scenario.end_operation(op, "released")
        assert await scenario.list_pending_seqs() == [1, 2, 3]
        (operation,) = await scenario.store.list_operations("s")
        assert operation.state == "released"
        await scenario.begin_operation(1, 2, 3)
        assert await scenario.list_pending_seqs() == []

    @store_promise
    async def test_a_failed_operation_keeps_its_messages(self, scenario: StoreScenario) -> None:
        for outcome in ("failed", "stopped", "interrupted", "refused"):
            op = await scenario.begin_operation(await scenario.commit_heard(outcome))
            await scenario.end_operation(op, outcome)
        assert await scenario.list_pending_seqs() == []
        states = [operation.state for operation in await scenario.store.list_operations("s")]
        assert states == ["failed", "stopped", "interrupted", "refused"]

    @store_promise
    async def test_operations_are_read_by_type_state_range_and_order(self, scenario: StoreScenario) -> None:
        first, second = await scenario.commit_turn(), await scenario.commit_turn()
        compression = await scenario.commit_compression(first)
        last = await scenario.begin_operation()

        async def read(**wanted: object) -> list[int]:
            return [one.op for one in await scenario.store.list_operations("s", **wanted)]  # type: ignore[arg-type]

        assert await read() == [first, second, compression, last]
        assert await read(types=("turn",), states=("done",)) == [first, second]
        assert await read(after=first, before=last) == [second, compression]
        assert await read(newest_first=True, limit=2) == [last, compression]
        assert await read(types=("turn",), newest_first=True, before=last) == [second, first]
        assert await scenario.store.list_operations("nobody") == []

    @store_promise
    async def test_a_running_operation_can_be_requested_to_end(self, scenario: StoreScenario) -> None:
        done = await scenario.commit_turn()
        op = await scenario.begin_operation()
        await scenario.commit_change(StopRequested(op=done))
        await scenario.commit_change(StopRequested(op=op))
        assert [one.stop for one in await scenario.store.list_operations("s")] == [False, True]

    @store_promise
    async def test_other_messages_of_an_erased_operation_are_pending_again(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("secret")
        await scenario.commit_heard("what time is it?")
        op = await scenario.begin_operation(1, 2)
        await scenario.erase_entries(1)
        await scenario.end_operation(op, "erased")
        assert await scenario.list_pending_seqs() == [2]

    @store_promise
    async def test_a_glance_contains_the_session_its_pending_messages_and_running_operations(
        self, scenario: StoreScenario
    ) -> None:
        await scenario.commit_turn()
        turn = await scenario.commit_turn()
        await scenario.commit_heard("next")
        compression = await scenario.begin_operation(type="compression")
        glance = await scenario.store.get_session_snapshot("s")
        assert glance.session == await scenario.store.get_session("s")
        assert glance.pending == await scenario.store.list_pending("s")
        assert [operation.op for operation in glance.running] == [compression]
        assert glance.newest_turn == turn
        with pytest.raises(NotFound):
            await scenario.store.get_session_snapshot("nobody")

    @store_promise
    async def test_a_head_contains_the_last_seq_and_the_erasures_of_ancestors(self, scenario: StoreScenario) -> None:
        seq = await scenario.commit_heard("wrong")
        await scenario.open_session("branch", parent="s", parent_at=seq)
        await scenario.erase_entries(seq)
        for id in ("s", "branch"):
            session = await scenario.store.get_session(id)
            assert await scenario.store.get_session_head(id) == (session.last_seq, session.generation)
        assert (await scenario.store.get_session_head("branch"))[1] > 0
        with pytest.raises(NotFound):
            await scenario.store.get_session_head("nobody")

    @store_promise
    async def test_replies_are_read_with_the_head_of_their_session(self, scenario: StoreScenario) -> None:
        to = ChatLocation(platform="test", account="bot", chat="c")
        said, notice = Said(text="hi", to=to), Notified(text="note", about="turn", to=to)
        first = await scenario.begin_operation(await scenario.commit_heard())
        await scenario.commit(
            *(EntryDraft(body=body, author="agent:main", op=first) for body in (said, notice)), op=first
        )
        await scenario.end_operation(first)
        second = await scenario.commit_turn()
        last = (await scenario.commit(said, Noted(text="n"), notice)).seqs[-1]
        assert second < last
        found = await scenario.store.read_replies("s")
        assert [it.seq for it in found.entries] == [first + 1, first + 2, last - 2, last]
        assert found.entries == [await scenario.store.get_entry("s", it.seq) for it in found.entries]
        assert (found.last_seq, found.generation) == await scenario.store.get_session_head("s")
        assert [it.seq for it in (await scenario.store.read_replies("s", after=last - 2)).entries] == [last]
        await scenario.commit_change(OperationsUndone(ops=(first,)))
        found = await scenario.store.read_replies("s")
        assert [it.seq for it in found.entries] == [first + 2, last - 2, last], "a notice of an undone turn stays valid"
        assert (found.last_seq, found.generation) == await scenario.store.get_session_head("s")

    @store_promise
    async def test_a_session_without_replies_has_a_head(self, scenario: StoreScenario) -> None:
        seq = await scenario.commit_heard("wrong")
        await scenario.open_session("branch", parent="s", parent_at=seq)
        await scenario.erase_entries(seq)
        for id in ("s", "branch"):
            found = await scenario.store.read_replies(id)
            assert found.entries == []
            assert (found.last_seq, found.generation) == await scenario.store.get_session_head(id)
        with pytest.raises(NotFound):
            await scenario.store.read_replies("nobody")

    @store_promise
    async def test_unanswered_messages_are_counted_across_sessions(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        await scenario.commit_heard("a")
        await scenario.commit_heard("b", session="t")
        await scenario.commit_heard("just saying", session="t", asks=False)
        assert await scenario.store.count_waiting() == 2
        await scenario.begin_operation(1)
        assert await scenario.store.count_waiting() == 1

    # -- changes of the context

    @store_promise
    async def test_undone_operations_leave_the_context_and_stay_in_the_log(self, scenario: StoreScenario) -> None:
        kept, gone = await scenario.commit_turn("a"), await scenario.commit_turn("b")
        seq = await scenario.commit_change(OperationsUndone(ops=(gone,)))
        assert [one.undone_at for one in await scenario.store.list_operations("s")] == [0, seq]
        assert await scenario.read_generation() == 1
        assert await scenario.list_pending_seqs() == []
        assert await scenario.read_texts() == ["a", "b"]
        assert kept < gone

    @store_promise
    async def test_a_second_undo_keeps_the_first_undo_time(self, scenario: StoreScenario) -> None:
        op = await scenario.commit_turn()
        first = await scenario.commit_change(OperationsUndone(ops=(op,)))
        await scenario.commit_change(OperationsUndone(ops=(op,), again=True))
        (operation,) = await scenario.store.list_operations("s")
        assert operation.undone_at == first
        with pytest.raises(NotFound):
            await scenario.commit_change(OperationsUndone(ops=(99,)))

    @store_promise
    async def test_an_undo_with_retry_makes_its_messages_pending(self, scenario: StoreScenario) -> None:
        a, b = await scenario.commit_heard("a"), await scenario.commit_heard("b", asks=False)
        op = await scenario.begin_operation(a)
        await scenario.take_messages(op, b)
        await scenario.end_operation(op, "failed")
        await scenario.commit_change(OperationsUndone(ops=(op,), again=True))
        assert await scenario.list_pending_seqs() == [a, b]
        again = await scenario.begin_operation(a, b)
        assert (await scenario.store.list_operations("s"))[1].first == a < again

    @store_promise
    async def test_a_compression_commits_with_the_seq_it_covers(self, scenario: StoreScenario) -> None:
        op = await scenario.commit_turn()
        compression = await scenario.commit_compression(op, generation=0)
        session = await scenario.store.get_session("s")
        assert (session.compressed_upto, session.generation) == (op, 1)
        assert [one.covers for one in await scenario.store.list_operations("s")] == [0, op]
        newer = await scenario.commit_turn()
        await scenario.commit_compression(newer)
        assert (await scenario.store.get_session("s")).compressed_upto == newer
        await scenario.commit_change(OperationsUndone(ops=(compression,)))
        assert (await scenario.store.get_session("s")).compressed_upto == newer

    @store_promise
    async def test_a_compression_of_an_outdated_context_does_not_commit(self, scenario: StoreScenario) -> None:
        first, second = await scenario.commit_turn(), await scenario.commit_turn()
        op = await scenario.begin_operation(type="compression")
        await scenario.commit_change(OperationsUndone(ops=(second,)))
        compressed = EntryDraft(body=Compressed(summary="stale", covers=second), author="system", op=op)
        with pytest.raises(Conflict):
            await scenario.commit(compressed, op=op, generation=0)
        await scenario.end_operation(op, "failed")
        assert (await scenario.store.get_session("s")).compressed_upto == 0
        assert first < second

    @store_promise
    async def test_a_compression_that_covers_an_undone_turn_is_void(self, scenario: StoreScenario) -> None:
        first, second = await scenario.commit_turn(), await scenario.commit_turn()
        early, late = await scenario.commit_compression(first), await scenario.commit_compression(second)
        seq = await scenario.commit_change(OperationsUndone(ops=(second,)))
        undone = {one.op: one.undone_at for one in await scenario.store.list_operations("s")}
        assert undone == {first: 0, second: seq, early: 0, late: seq}
        assert (await scenario.store.get_session("s")).compressed_upto == first

    @store_promise
    async def test_undoing_a_compression_leaves_the_turns_and_the_other_compressions(
        self, scenario: StoreScenario
    ) -> None:
        first, second = await scenario.commit_turn(), await scenario.commit_turn()
        early, late = await scenario.commit_compression(first), await scenario.commit_compression(second)
        await scenario.commit_change(OperationsUndone(ops=(early,)))
        assert [one.op for one in await scenario.store.list_operations("s") if one.undone_at] == [early]
        assert (await scenario.store.get_session("s")).compressed_upto == second
        assert late

    @store_promise
    async def test_a_context_reset_is_listed_among_the_operations(self, scenario: StoreScenario) -> None:
        await scenario.commit_turn()
        seq = await scenario.commit_change(ContextReset())
        fresh = (await scenario.store.list_operations("s", types=("context_reset",)))[0]
        assert (fresh.op, fresh.state, fresh.first, fresh.last) == (seq, "done", seq, seq)
        assert await scenario.read_generation() == 1

    @store_promise
    async def test_each_change_of_the_context_raises_the_generation(self, scenario: StoreScenario) -> None:
        op = await scenario.commit_turn()
        done = await scenario.commit(
            Changed(change=ContextReset()), Changed(change=OperationsUndone(ops=(op,))), Noted(text="no")
        )
        assert done.generation == 2
        assert await scenario.read_generation() == 2

    @store_promise
    async def test_an_erasure_voids_the_compressions_that_contain_the_entry(self, scenario: StoreScenario) -> None:
        op = await scenario.commit_turn("secret")
        compression = await scenario.commit_compression(op)
        done = await scenario.erase_entries(1, compressions=(compression,))
        assert (await scenario.store.list_operations("s", types=("compression",)))[0].undone_at == done.seqs[0]
        assert (await scenario.store.get_session("s")).compressed_upto == 0
