"""What every store must measure for monitoring: sums by consumer. Part of `StoreContract`."""

from __future__ import annotations

from everhold.core.entries import ChatLocation, EntryDraft, Noted, Said
from everhold.ports.measurements import ConsumerBacklog, ConsumerLoad
from everhold.ports.store import DeadLetter, Receipt, RetryDelay, Wakeup
from everhold.testing.contracts.store_scenario import StoreScenario, store_promise


class StoreMeasurementsContract:
    @store_promise
    async def test_what_waits_is_counted_by_consumer(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        await scenario.commit_heard(at=10.0)
        await scenario.commit_heard(session="t", at=20.0)
        await scenario.wake_consumer("memory:a", 100.0, at=20.0)
        load = await scenario.at(50.0).measure_load()
        assert load.pending_messages == 2
        assert load.consumers == (
            ConsumerLoad(consumer="memory:a", due=1, failing=0, lag_seconds=0.0),
            ConsumerLoad(consumer="turn", due=2, failing=0, lag_seconds=40.0),
        )
        assert load.size_bytes > 0

    @store_promise
    async def test_a_cursor_that_a_worker_holds_does_not_lag(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard(at=10.0)
        await scenario.claim_cursor(at=20.0, lease=60.0)
        assert [it.lag_seconds for it in (await scenario.at(50.0).measure_load()).consumers] == [0.0]
        (after_the_lease,) = (await scenario.at(200.0).measure_load()).consumers
        assert after_the_lease.lag_seconds > 100.0

    @store_promise
    async def test_a_failing_cursor_is_counted_until_it_succeeds(self, scenario: StoreScenario) -> None:
        await scenario.wake_consumer("memory:a")
        claim = await scenario.claim_cursor("memory:a")
        delay = RetryDelay(seconds=5.0)
        await scenario.update_cursor(claim, error="down", attempts=1, wait=delay, release=True)
        assert [it.failing for it in (await scenario.store.measure_load()).consumers] == [1]
        claim = await scenario.claim_cursor("memory:a", at=10.0)
        await scenario.update_cursor(claim, error="", attempts=0, wait=delay, release=True, at=10.0)
        assert [it.failing for it in (await scenario.store.measure_load()).consumers] == [0]

    @store_promise
    async def test_dead_letters_and_doubts_are_counted(self, scenario: StoreScenario) -> None:
        letters = [DeadLetter(consumer="platform:p:q", session="s", seq=1, in_doubt=it) for it in (True, False)]
        await scenario.commit(dead_letters=(*letters, DeadLetter(consumer="memory:a", session="s", seq=1)))
        load = await scenario.store.measure_load()
        assert load.dead_letters == {"memory:a": 1, "platform:p:q": 2}
        assert (load.dead_letters_in_doubt, load.receipts_in_doubt) == (1, 0)
        await scenario.commit(
            receipts=(Receipt(consumer="platform:p:q", session="s", seq=1, in_doubt=True, remote="r"),)
        )
        assert (await scenario.store.measure_load()).receipts_in_doubt == 1

    @store_promise
    async def test_an_empty_store_has_no_load_and_no_backlog(self, scenario: StoreScenario) -> None:
        load = await scenario.store.measure_load()
        assert (load.consumers, load.pending_messages, load.dead_letters) == ((), 0, {})
        assert await scenario.store.measure_backlogs() == []

    @store_promise
    async def test_the_oldest_reply_and_the_oldest_note_that_wait_are_found(self, scenario: StoreScenario) -> None:
        to = ChatLocation(platform="p", account="q", chat="c")
        for at in (10.0, 20.0):
            said = EntryDraft(body=Said(text="hi", to=to), author="agent:main")
            noted = EntryDraft(body=Noted(text="a"), author="agent:main")
            wakeups = (Wakeup(consumer="platform:p:q", start=0), Wakeup(consumer="memory:a", start=0))
            await scenario.commit(said, noted, at=at, wakeups=wakeups)
        assert sorted(await scenario.at(30.0).measure_backlogs(), key=lambda it: it.consumer) == [
            ConsumerBacklog(consumer="memory:a", items=2, oldest_at=10.0 + scenario.skew),
            ConsumerBacklog(consumer="platform:p:q", items=2, oldest_at=10.0 + scenario.skew),
        ]
        claim = await scenario.claim_cursor("platform:p:q", at=30.0)
        entries = await scenario.store.list_entries("s")
        done = next(entry.seq for entry in entries if isinstance(entry.body, Said))
        await scenario.update_cursor(claim, processed_seq=done, wait=RetryDelay(seconds=1.0), release=True, at=30.0)
        waiting = {it.consumer: it for it in await scenario.store.measure_backlogs()}
        assert waiting["platform:p:q"].oldest_at == 20.0 + scenario.skew
