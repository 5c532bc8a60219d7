"""Work of a whole store that one host does at a time, and erasures that race with another host."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path

import msgspec
import pytest

from everhold.admin.erasure_records import ErasureRecords
from everhold.admin.sessions import SessionAdmin
from everhold.core.entries import Compressed, EntryDraft, Thought
from everhold.core.erasure import PersonErasure
from everhold.core.recall import RecallRecord, RecallTarget, RecallTrace
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.recall_records import RecallRecords
from everhold.engine.work_lock import WORK_LEASE_SECONDS, WorkLock
from everhold.errors import LeaseLost
from everhold.ports.store import Step, Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom, StoreScenario
from everhold.testing.gateway import FakeRuntimes, RecordingLogger, VirtualClock
from everhold.testing.sim.loop import SimLoop


class SimulatedHosts:
    """Hosts with connections of their own, in virtual time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loop = SimLoop(0, shuffle=0.0)  # type: ignore[abstract]  # it lacks only sockets and signals
        self.clock = VirtualClock(self.loop)
        self.count = 0

    def open(self) -> Gates:
        self.count += 1
        store = SqliteStore.open(
            self.path / "log.db",
            chance=SeededRandom(self.count),
            now=self.clock.now,
            inline=True,
            synchronous="OFF",
            exclusive=False,
        )
        owner = f"host {self.count}"
        return Gates(store=store, clock=self.clock, chance=SeededRandom(self.count), log=RecordingLogger(), owner=owner)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SimulatedHosts]:
    hosts = SimulatedHosts(tmp_path)
    yield hosts
    hosts.loop.close()


def make_erasure(label: str) -> PersonErasure:
    return PersonErasure(identities=("fake:1",), at=1.0, label=label)


def test_one_host_at_a_time_works(hosts: SimulatedHosts) -> None:
    running: list[str] = []
    most = 0

    async def work(gates: Gates) -> None:
        nonlocal most
        for _ in range(3):
            async with lock_of[gates.owner]:
                running.append(gates.owner)
                most = max(most, len(running))
                await asyncio.sleep(3 * WORK_LEASE_SECONDS)  # longer than the lease, so it has to be renewed
                running.remove(gates.owner)

    both = [hosts.open() for _ in range(2)]
    lock_of = {gates.owner: WorkLock(gates, "forgetting") for gates in both}

    async def play() -> None:
        await asyncio.gather(*(work(gates) for gates in both for _ in range(2)))

    hosts.loop.run(play())
    assert most == 1


def test_the_work_of_a_host_that_died_is_taken_over(hosts: SimulatedHosts) -> None:
    dead, alive = hosts.open(), hosts.open()

    async def play() -> float:
        assert await dead.store.claim_account("work:forgetting", owner=dead.owner, lease=WORK_LEASE_SECONDS)
        began = hosts.clock.now()
        async with WorkLock(alive, "forgetting"):
            return hosts.clock.now() - began

    assert WORK_LEASE_SECONDS <= hosts.loop.run(play()) <= WORK_LEASE_SECONDS + 2


def test_a_host_that_lost_the_work_records_nothing(hosts: SimulatedHosts) -> None:
    slow, quick = hosts.open(), hosts.open()

    async def play() -> str:
        slow_lock, quick_lock = WorkLock(slow, "forgetting"), WorkLock(quick, "forgetting")
        records = [ErasureRecords(open_control(it), lock=lock) for it, lock in ((slow, slow_lock), (quick, quick_lock))]
        async with slow_lock:
            await records[0].save(make_erasure("begun"))
            assert slow_lock._renewing is not None
            slow_lock._renewing.cancel()  # the host is stopped for longer than its lease
            await asyncio.sleep(WORK_LEASE_SECONDS + 1)
            async with quick_lock:
                await records[1].save(make_erasure("further"))
                with pytest.raises(LeaseLost):
                    await records[0].save(make_erasure("outdated"))
        (found,) = await records[0].load_all()
        return found.label

    assert hosts.loop.run(play()) == "further"


def open_control(gates: Gates) -> SessionAdmin:
    async def accept(_: object) -> object:
        raise AssertionError("nothing is sent")

    runtimes = FakeRuntimes()
    return SessionAdmin(gates, wakeups=Wakeups(), accept=accept, runtimes=runtimes)  # type: ignore[arg-type]


def make_scenario(gates: Gates) -> StoreScenario:
    return StoreScenario(gates.store)


def test_an_erasure_that_died_before_the_branches_is_finished_by_another_host(hosts: SimulatedHosts) -> None:
    dead, alive = hosts.open(), hosts.open()

    async def play() -> None:
        scenario = make_scenario(dead)
        await scenario.open_session("s")
        secret = await scenario.commit_heard("a secret")
        await scenario.open_session("branch", parent="s", parent_at=secret)
        began = await scenario.begin_operation(type="compression", session="branch", consumer="compression")
        summary = EntryDraft(
            body=Compressed(summary="a secret", covers=secret, generation=0), author="system", op=began
        )
        made = await scenario.commit(summary, session="branch", op=began, step=Step.COMPRESSION_END)
        await scenario.end_operation(began, session="branch")
        control = open_control(dead)

        async def die(*_: object, **__: object) -> None:
            raise SystemError("killed here")

        control._erase_in_branches = die  # type: ignore[method-assign]
        with pytest.raises(SystemError):
            await control.erase_entries("s", [secret])
        assert (await alive.store.get_entry("branch", made.seqs[0])).body is not None
        other = open_control(alive)
        assert await other.list_interrupted_erasures() == ["s"]
        await other.finish_interrupted_erasures()
        assert (await alive.store.get_entry("branch", made.seqs[0])).body is None
        assert await other.list_interrupted_erasures() == []

    hosts.loop.run(play())


class RacingRecords(RecallRecords):
    """Lets another host commit a thought after the thoughts were read, and before the erasure is committed."""

    def __init__(self, store: Store, race: Callable[[], Awaitable[None]]) -> None:
        super().__init__(store)
        self.race: Callable[[], Awaitable[None]] | None = race

    async def find_repeating_blobs(self, session: str, seqs: Collection[int]) -> tuple[str, ...]:
        found = await super().find_repeating_blobs(session, seqs)
        if self.race is not None:
            race, self.race = self.race, None
            await race()
        return found


@pytest.mark.parametrize("order", ["thought before the erasure", "thought after the erasure"])
def test_an_erased_text_survives_in_no_recall_record_of_another_host(hosts: SimulatedHosts, order: str) -> None:
    here, there = hosts.open(), hosts.open()

    async def play() -> None:
        scenario, other = make_scenario(here), make_scenario(there)
        await scenario.open_session("s")
        await scenario.open_session("t", address="test:t")
        secret = await scenario.commit_heard("a secret")
        began = await other.begin_operation(await other.commit_heard("what was it?", session="t"), session="t")
        shown = RecallTrace(provider="builtin", session="s", seq=secret)
        record = RecallRecord(asked=RecallTarget(session="t", generation=0, takes=()), audience=(), shown=(shown,))
        why = msgspec.json.encode(record)
        recall = b"recalled: a secret"
        digests = [hashlib.sha256(it).hexdigest() for it in (recall, why)]
        thought = Thought(text="hm", recall=digests[0], why=digests[1])

        async def think() -> None:
            await other.commit(
                EntryDraft(body=thought, author="agent:main", op=began),
                session="t",
                op=began,
                step=Step.THINK,
                records=(recall, why),
            )

        control = open_control(here)
        if order == "thought before the erasure":
            await control.erase_entries("s", [secret], records=RacingRecords(here.store, think))
        else:
            await control.erase_entries("s", [secret])
            await think()
        for gates in (here, there):
            assert [await gates.store.get_blob(it) for it in digests] == [None, None]
        heard = (await there.store.get_entry("s", secret)).body
        assert heard is None

    hosts.loop.run(play())
