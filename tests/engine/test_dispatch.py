"""Due lanes are looked for when there may be some, and then at once; never only to find nothing."""

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
from everhold.errors import Overloaded, StoreBusy, StoreError, StoreFull, Transient
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.platform import IncomingMessage
from everhold.ports.store import Change, Claim, CommitResult, Step, Wakeup
from everhold.stores.sqlite import SqliteStore
from everhold.testing.gateway import InProcessGateway, RecordingLogger
from everhold.testing.seeded_random import SeededRandom

from .conftest import FailingStore, HeldModel


def looks(gateway: InProcessGateway) -> list[dict[str, Any]]:
    """What is asked for due lanes from here on by whoever hands out work; nobody looks without being told to."""
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


def test_a_turn_that_leaves_nothing_behind_has_nobody_look(gateway: InProcessGateway) -> None:
    asked = looks(gateway)
    gateway.send_message("hello")
    gateway.pass_time(60.0)
    assert len(gateway.list_shown_texts()) == 2
    assert asked == []


def test_a_turn_without_tools_is_five_commits_and_no_claim(gateway: InProcessGateway) -> None:
    """What docs/ARCHITECTURE.md says: `accept` and `end` claim what they make due."""
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
    assert steps == [Step.ACCEPT, Step.BEGIN, Step.END, Step.DELIVERY_SEND, Step.DELIVERY_DONE]


def test_what_came_during_a_turn_is_taken_up_at_its_end(gateway: InProcessGateway) -> None:
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
    """So many speak at once, before anybody has begun to answer."""

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
    assert len(gateway.list_shown_texts()) == 1, (
        "nobody who waits for a model keeps others from what they can have at once"
    )
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


def test_a_worker_slot_is_free_again_though_its_turn_was_ended(gateway: InProcessGateway) -> None:
    assert gateway.process is not None
    gateway.process.supervisor.max_workers_per_consumer = 1
    session, control = gateway.send_message("a secret").session, gateway.control
    secret = [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Heard)]

    async def erase(_: Change) -> None:
        if secret:
            await control.erase_entries(session, [secret.pop()])  # what the turn has read goes, and the turn with it

    before(gateway, Step.END, erase)
    gateway.send_message("are you there?")
    assert gateway.list_shown_texts()[-1] == "You said: are you there?"


def test_a_turn_that_somebody_ended_is_no_failure_and_the_next_outage_is_told(gateway: InProcessGateway) -> None:
    session, control, faults = gateway.send_message("a secret").session, gateway.control, gateway.runtimes.model.faults
    secret = [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Heard)]

    async def erase(_: Change) -> None:
        if secret:
            faults.fail_next(Overloaded("down"))
            await control.erase_entries(session, [secret.pop()])  # what the turn has read goes, and the turn with it

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


def test_what_could_not_be_delivered_is_tried_again_in_time(gateway: InProcessGateway) -> None:
    looks(gateway)
    gateway.platform.faults.fail_next(Transient("later"), times=2)
    gateway.send_message("hello", rest=False)
    gateway.pass_time(120.0)
    assert len(gateway.list_shown_texts()) == 2


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("locked")])
def test_once_there_is_room_everything_goes_on_within_seconds(gateway: InProcessGateway, error: StoreError) -> None:
    """Fault tests 5 and 6: whoever hands out work, keeps leases or works waits for the store, however long."""
    assert gateway.process is not None
    gateway.process.supervisor.max_workers_per_consumer = 1  # so that somebody has to be looked for
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
def test_a_clock_that_is_set_gives_nobody_else_what_is_worked_on_here(gateway: InProcessGateway, jump: float) -> None:
    assert gateway.process is not None
    gateway.runtimes.model = held = HeldModel()
    gateway.send_message("hello", rest=False)
    gateway.pass_time()
    gateway.clock.skew += jump
    gateway.pass_time(gateway.process.supervisor.poll_seconds)
    assert gateway.run(gateway.store.claim_cursors(owner="peer", at=gateway.clock.now, lease=60.0, limit=9)) == []
    held.free = True
    gateway.run_until_idle(5)
    assert gateway.list_shown_texts() == ["at last"]


async def test_a_cancelled_accept_still_starts_a_worker_for_its_cursor(tmp_path: Path) -> None:
    """It is taken with the commit; nobody else could for the two minutes of its lease."""
    taken: list[Claim] = []

    class Hand:
        def reserve_worker(self, wakeup: Wakeup) -> Wakeup:
            return structs.replace(wakeup, owner="me", lease=120.0)

        def start_reserved(self, wakeups: tuple[Wakeup, ...], claims: tuple[Claim, ...]) -> None:
            taken.extend(claims)

    async def reception(_: IncomingMessage) -> AdmissionDecision:
        return AdmissionDecision(agent="main", person="ada")

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
