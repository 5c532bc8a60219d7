"""The dispatcher searches for due cursors at once when there may be some, and never without a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from everhold.app import SystemClock
from everhold.core.access import AdmissionDecision
from everhold.core.entries import ChatLocation, Heard
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.supervisor import LEASE_SECONDS, WorkerSupervisor
from everhold.errors import OutcomeUnknown, Overloaded, StoreBusy, StoreError, StoreFull, Transient
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.platform import DeliveryGuarantee, IncomingMessage, OutgoingMessage
from everhold.ports.store import Change, Claim, CommitResult, Step, Wakeup
from everhold.stores.sqlite import SqliteStore
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway, RecordingLogger
from everhold.testing.seeded_random import SeededRandom

from .conftest import FailingStore, HeldModel


def looks(gateway: InProcessGateway) -> list[dict[str, Any]]:
    """Record the queries for due cursors from here on. The dispatcher is not woken otherwise."""
    assert gateway.process is not None
    process, asked = gateway.process, list[dict[str, Any]]()
    process.supervisor.poll_seconds = 1e6
    gateway.send_message("wake up")
    real = process.disk.get_next_due

    async def next_due(**options: Any) -> float | None:
        if "skip" in options:
            asked.append(options)
        return await real(**options)

    process.disk.get_next_due = next_due  # type: ignore[method-assign]
    return asked


def test_a_turn_without_follow_up_work_triggers_no_search_for_cursors(gateway: InProcessGateway) -> None:
    asked = looks(gateway)
    gateway.send_message("hello")
    gateway.pass_time(60.0)
    assert len(gateway.list_shown_texts()) == 2
    assert asked == []


def test_a_turn_without_tools_is_four_commits_and_no_claim(gateway: InProcessGateway) -> None:
    """As in docs/ARCHITECTURE.md: `accept` and `end` claim the cursors that they make due."""
    gateway.send_message("wake up")
    assert gateway.process is not None
    disk, steps = gateway.process.disk, list[str]()
    commit, claim = disk.commit, disk.claim_cursors

    async def counted_commit(change: Change) -> CommitResult:
        steps.append(change.step)
        return await commit(change)

    async def counted_claim(*given: Any, **options: Any) -> Any:
        steps.append("claim")
        return await claim(*given, **options)

    disk.commit, disk.claim_cursors = counted_commit, counted_claim  # type: ignore[method-assign]
    gateway.send_message("hello")
    gateway.pass_time(5.0)
    assert steps == [Step.ACCEPT, Step.BEGIN, Step.END, Step.DELIVERY_DONE]


@pytest.mark.parametrize("delivery", [DeliveryGuarantee.PROBE, DeliveryGuarantee.BLIND, DeliveryGuarantee.UPSERT])
def test_a_reply_is_stored_before_its_send_where_a_repetition_is_not_recognised(
    gateway: InProcessGateway, delivery: DeliveryGuarantee
) -> None:
    gateway.platform.delivery = delivery
    assert gateway.process is not None
    disk, steps = gateway.process.disk, list[str]()
    commit, send = disk.commit, gateway.platform.send

    async def counted_commit(change: Change) -> Any:
        steps.append(change.step)
        return await commit(change)

    async def counted_send(out: OutgoingMessage) -> str:
        steps.append("send")
        return await send(out)

    disk.commit, gateway.platform.send = counted_commit, counted_send  # type: ignore[method-assign]
    gateway.send_message("hello")
    gateway.pass_time(5.0)
    assert steps == [Step.ACCEPT, Step.BEGIN, Step.END, Step.DELIVERY_SEND, "send", Step.DELIVERY_DONE]


def test_a_message_during_a_turn_is_claimed_at_its_end(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = held = HeldModel()
    held.free = True
    looks(gateway)
    held.free = False
    gateway.send_message("one", rest=False)
    gateway.pass_time()
    gateway.send_message("two", rest=False)
    gateway.pass_time()
    held.free = True
    gateway.pass_time(5.0)
    assert len(gateway.list_shown_texts()) == 3


def test_a_waiting_cursor_gets_a_slot_when_one_is_free(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = held = HeldModel()
    held.free = True
    looks(gateway)
    assert gateway.process is not None
    gateway.process.supervisor.max_workers_per_consumer = 1
    held.free = False
    for chat in ("a", "b", "c"):
        gateway.send_message("hello", chat=chat, rest=False)
    gateway.pass_time(1.0)
    assert len(held.requests) == 2
    held.free = True
    gateway.pass_time(5.0)
    assert len(gateway.list_shown_texts()) == 4


def crowd(gateway: InProcessGateway, *, chats: int = 5) -> None:
    """Send so many messages at once, before any is answered."""

    async def all_at_once() -> None:
        assert gateway.process is not None
        knocking = (gateway.process.accept(gateway.make_message("hello", chat=f"chat {n}")) for n in range(chats))
        await asyncio.gather(*knocking)

    gateway.run(all_at_once())


def test_a_burst_of_messages_gets_no_more_workers_than_allowed(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = held = HeldModel()
    assert gateway.process is not None
    supervisor = gateway.process.supervisor
    supervisor.max_workers_per_consumer = 2
    gateway.pass_time()
    crowd(gateway)
    gateway.pass_time(2 * supervisor.poll_seconds)
    assert len(held.requests) == 2
    held.free = True
    gateway.run_until_idle(5.0)
    assert gateway.list_shown_texts() == ["at last"] * 5
    assert not +supervisor.reserved_by_consumer
    gateway.assert_sound()


def test_queued_worker_starts_leave_time_for_other_tasks(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = held = HeldModel()
    crowd(gateway)
    gateway.pass_time()
    asked = len(held.requests)
    gateway.crash()
    supervisor = gateway.start().supervisor
    supervisor.max_workers, supervisor.max_workers_per_consumer = 4, 2
    gateway.pass_time(2 * supervisor.poll_seconds)
    assert len(held.requests) == asked + 2
    gateway.send_message("/whoami", chat="another", rest=False)
    gateway.pass_time(2 * supervisor.poll_seconds)
    assert len(gateway.list_shown_texts()) == 1, "a worker that waits for a model does not delay other consumers"
    held.free = True
    gateway.run_until_idle(5.0)
    assert gateway.list_shown_texts()[1:] == ["at last"] * 5
    gateway.assert_sound()


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
def test_an_unused_reservation_is_free_for_others(gateway: InProcessGateway, error: StoreError) -> None:
    assert gateway.process is not None
    supervisor = gateway.process.supervisor
    supervisor.max_workers_per_consumer = 1
    gateway.pass_time()
    trouble = FailingStore(gateway, error).with_commits(Step.ACCEPT)
    for _ in range(3):
        with pytest.raises(type(error)):
            gateway.send_message("hello", rest=False)
    trouble.over = True
    gateway.send_message("hello", id="again")
    gateway.send_message("hello", id="again")
    supervisor.poll_seconds = 1e6
    gateway.send_message("and on?", rest=False)
    gateway.pass_time(1.0)
    assert gateway.list_shown_texts() == ["You said: hello", "You said: and on?"]
    assert not +supervisor.reserved_by_consumer


def test_a_refused_reservation_is_retried_when_another_is_unused(gateway: InProcessGateway) -> None:
    looks(gateway)
    session = gateway.send_message("hello", id="again").session
    assert gateway.process is not None
    accept = gateway.process.accept
    gateway.process.supervisor.max_workers_per_consumer = 1
    before(gateway, Step.ACCEPT, lambda change: asyncio.sleep(1.0 if change.session == session else 0.0))
    twice, new = gateway.make_message("hello", id="again"), gateway.make_message("and I?", chat="another")

    async def both() -> None:
        await asyncio.gather(accept(twice), accept(new))

    gateway.run(both())
    gateway.pass_time(1.0)
    assert gateway.list_shown_texts()[-1] == "You said: and I?"


def test_a_worker_slot_is_released_when_an_erasure_ends_its_turn(gateway: InProcessGateway) -> None:
    assert gateway.process is not None
    gateway.process.supervisor.max_workers_per_consumer = 1
    session, control = gateway.send_message("a secret").session, gateway.control
    secret = [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Heard)]

    async def erase(_: Change) -> None:
        if secret:
            await control.erase_entries(session, [secret.pop()])  # erase an entry the turn has read, which ends it

    before(gateway, Step.END, erase)
    gateway.send_message("are you there?")
    assert gateway.list_shown_texts()[-1] == "You said: are you there?"


def test_a_turn_ended_by_an_erasure_is_not_a_failure_and_the_next_outage_is_logged(gateway: InProcessGateway) -> None:
    session, control, faults = gateway.send_message("a secret").session, gateway.control, gateway.runtimes.model.faults
    secret = [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Heard)]

    async def erase(_: Change) -> None:
        if secret:
            faults.fail_next(Overloaded("down"))
            await control.erase_entries(session, [secret.pop()])  # erase an entry the turn has read, which ends it

    before(gateway, Step.END, erase)
    gateway.send_message("are you there?", rest=False)
    gateway.pass_time(60.0)
    assert [text.partition(".")[0] for text in gateway.list_shown_texts()[1:]] == [
        "The model cannot be reached right now",
        "You said: are you there?",
    ]


def before(gateway: InProcessGateway, step: Step, what: Callable[[Change], Awaitable[None]]) -> None:
    """Have something happen in the moment before such a commit."""
    assert gateway.process is not None
    disk = gateway.process.disk
    real = disk.commit

    async def commit(change: Change) -> CommitResult:
        if change.step is step:
            await what(change)
        return await real(change)

    disk.commit = commit  # type: ignore[method-assign]  # the worst moment is between two lines


def test_a_failed_delivery_is_retried_when_it_is_due(gateway: InProcessGateway) -> None:
    looks(gateway)
    gateway.platform.faults.fail_next(Transient("later"), times=2)
    gateway.send_message("hello", rest=False)
    gateway.pass_time(120.0)
    assert len(gateway.list_shown_texts()) == 2


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
def test_all_work_resumes_within_seconds_once_the_disk_has_space(gateway: InProcessGateway, error: StoreError) -> None:
    """Fault tests 5 and 6: the dispatcher, the lease renewal and the workers wait for the store, however long."""
    assert gateway.process is not None
    gateway.process.supervisor.max_workers_per_consumer = 1  # so that the dispatcher has to search
    gateway.runtimes.model = held = HeldModel()
    gateway.send_message("one", chat="a", rest=False)
    gateway.send_message("two", chat="b", rest=False)
    gateway.pass_time()
    trouble = (
        FailingStore(gateway, error)
        .with_all("claim_cursors", "renew_leases", "retry_now")
        .with_commits(*(set(Step) - {Step.ACCEPT}))
    )
    held.free = True
    gateway.pass_time(600)
    assert gateway.list_shown_texts() == []
    trouble.over = True
    gateway.pass_time(5)
    assert sorted(gateway.list_shown_texts()) == ["at last", "at last"]
    gateway.assert_sound()


@pytest.mark.parametrize("jump", [3_600.0, -3_600.0])
def test_a_clock_change_does_not_release_claims_of_this_process(gateway: InProcessGateway, jump: float) -> None:
    assert gateway.process is not None
    gateway.runtimes.model = held = HeldModel()
    gateway.send_message("hello", rest=False)
    gateway.pass_time()
    gateway.clock.skew += jump
    gateway.pass_time(gateway.process.supervisor.poll_seconds)
    assert gateway.run(gateway.store.claim_cursors(owner="peer", lease=60.0, limit=9)) == []
    held.free = True
    gateway.run_until_idle(5)
    assert gateway.list_shown_texts() == ["at last"]


async def test_a_cancelled_accept_still_starts_a_worker_for_its_cursor(tmp_path: Path) -> None:
    """The cursor is claimed in the commit, so no other process could claim it during its lease."""
    taken: list[Claim] = []

    class Hand:
        def reserve_worker(self, session: str, wakeup: Wakeup) -> Wakeup:
            return structs.replace(wakeup, owner="me", lease=120.0)

        def start_reserved(self, session: str, wakeups: tuple[Wakeup, ...], claims: tuple[Claim, ...]) -> None:
            taken.extend(claims)

        def expect_strays(self) -> None: ...

    async def reception(_: IncomingMessage) -> AdmissionDecision:
        return AdmissionDecision(agent="main", identity="ada")

    store, bells = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom()), Wakeups()
    bells.worker_pool = Hand()
    gates = Gates(store=store, clock=SystemClock(), chance=SeededRandom(), log=RecordingLogger(), owner="me")
    accept = MessageAcceptor(gates, admit=reception, wakeups=bells)
    origin = ChatLocation(platform="fake", account="main", chat="chat", message="1")
    leaving = asyncio.create_task(accept(IncomingMessage(origin=origin, text="hello", sender="ada")))
    while not store.writer._queue:  # type: ignore[union-attr]  # noqa: ASYNC110
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    for _ in range(3):
        await store.ping_writer()
    assert [claim.consumer for claim in taken] == ["turn"]
    await store.close()


def test_work_that_takes_longer_than_a_lease_is_not_given_to_another_process(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = held = HeldModel()
    gateway.runtimes.settings["model_deadline_seconds"] = 10 * LEASE_SECONDS
    gateway.send_message("hello", rest=False)
    for _ in range(5):
        gateway.pass_time(LEASE_SECONDS / 2)
        assert not gateway.run(gateway.store.claim_cursors(owner="another", lease=LEASE_SECONDS, limit=9))
    held.free = True
    gateway.run_until_idle()
    assert gateway.list_shown_texts() == ["at last"]
    assert len(held.requests) == 1


# -- stop and start ----------------------------------------------------------------------------------------------------


def test_a_stop_waits_for_running_work_no_longer_than_its_limit_and_the_next_start_goes_on_at_once(
    gateway: InProcessGateway,
) -> None:
    gateway.runtimes.model = held = HeldModel()
    gateway.send_message("hello", rest=False)
    gateway.pass_time()
    assert gateway.process is not None
    supervisor = gateway.process.supervisor
    asked = gateway.loop.time()
    gateway.run(supervisor.drain(5.0))
    assert 5.0 <= gateway.loop.time() - asked < 5.2
    gateway.pass_time()
    assert not supervisor.tasks
    gateway.crash()
    held.free = True
    started = gateway.loop.time()
    gateway.start()
    gateway.run_until_idle()
    assert gateway.list_shown_texts() == ["at last"]
    assert gateway.loop.time() - started < 1.0


def test_a_stop_without_running_work_takes_no_time(gateway: InProcessGateway) -> None:
    gateway.send_message("hello")
    assert gateway.process is not None
    asked = gateway.loop.time()
    gateway.run(gateway.process.supervisor.drain(30.0))
    assert gateway.loop.time() - asked < 0.2


def test_a_stop_hands_its_cursors_over_to_other_hosts(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = HeldModel()
    gateway.send_message("hello", rest=False)
    gateway.pass_time()
    assert gateway.process is not None
    disk, supervisor = gateway.process.disk, gateway.process.supervisor
    disk.is_exclusive = False
    gateway.run(supervisor.drain(1.0))
    assert not supervisor.tasks
    claims = gateway.run(disk.claim_cursors(owner="another host", lease=60.0, limit=9))
    assert [(claim.consumer, claim.taken_over) for claim in claims] == [("turn", True)]


def test_hosts_on_one_store_poll_more_often_and_release_nothing_of_each_other(gateway: InProcessGateway) -> None:
    assert gateway.process is not None
    gates = gateway.process.gates
    wakeups, runtimes = gateway.process.wakeups, gateway.runtimes
    alone = WorkerSupervisor(gates, runtimes=runtimes, wakeups=wakeups)
    gateway.process.disk.is_exclusive = False
    shared = WorkerSupervisor(gates, runtimes=runtimes, wakeups=wakeups)
    assert (alone.has_no_rivals, shared.has_no_rivals) == (True, False)
    assert 0.25 <= shared.poll_seconds <= 1.0 < alone.poll_seconds
    gateway.run(shared.drain(0.0))
    assert shared.released_upto == float("-inf")


# -- commits of unknown outcome ----------------------------------------------------------------------------------------


def lose_answers(gateway: InProcessGateway, step: Step, *, applied: bool) -> None:
    """Lose the connection during the next commit of a step."""
    assert gateway.process is not None
    disk = gateway.process.disk
    real, left = disk.commit, [1]

    async def commit(change: Change) -> CommitResult:
        if change.step is not step or not left:
            return await real(change)
        left.clear()
        if applied:
            await real(change)
        raise OutcomeUnknown("the connection was lost")

    disk.commit = commit  # type: ignore[method-assign]


@pytest.mark.parametrize("applied", [True, False])
def test_a_message_whose_commit_has_an_unknown_outcome_is_answered_once_and_soon(
    gateway: InProcessGateway, applied: bool
) -> None:
    lose_answers(gateway, Step.ACCEPT, applied=applied)
    message = gateway.make_message("hello")
    with pytest.raises(OutcomeUnknown):
        gateway.accept_message(message)
    gateway.accept_message(message)  # the platform sends it again
    gateway.pass_time(15)
    assert gateway.list_shown_texts() == ["You said: hello"]


@pytest.mark.parametrize("step", [Step.BEGIN, Step.END, Step.DELIVERY_SEND, Step.DELIVERY_DONE, Step.CURSOR_SETTLE])
@pytest.mark.parametrize("applied", [True, False])
def test_a_worker_whose_commit_has_an_unknown_outcome_leaves_the_rest_to_what_the_store_says(
    gateway: InProcessGateway, step: Step, applied: bool
) -> None:
    lose_answers(gateway, step, applied=applied)
    gateway.send_message("hello", rest=False)
    gateway.pass_time(60)
    assert gateway.list_shown_texts() == ["You said: hello"]


def test_a_requested_wait_is_kept_though_the_commit_that_stores_it_has_an_unknown_outcome(
    gateway: InProcessGateway,
) -> None:
    model = gateway.runtimes.model
    assert isinstance(model, FakeModel)
    model.faults.fail_next(Overloaded("busy", retry_after=90.0))
    lose_answers(gateway, Step.END, applied=False)
    lose_answers(gateway, Step.PAUSE, applied=False)
    gateway.send_message("hello", rest=False)
    gateway.pass_time(85)
    assert len(model.requests) == 1
    gateway.pass_time(60)
    assert gateway.list_shown_texts()[-1] == "You said: hello"
