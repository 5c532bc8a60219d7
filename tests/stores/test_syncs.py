"""Which commits wait for the disk, and that the event loop waits only if it has nothing else to do."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import apsw
import pytest

from everhold.assembly.stores import plan_restore
from everhold.core.entries import EntryDraft
from everhold.errors import Conflict, StoreError
from everhold.infra.home import Home
from everhold.stores.sqlite import SqliteStore, watermark, writer
from everhold.testing.contracts.store_scenario import StoreScenario, get_heard_text, make_heard
from tests.stores.faulty_disk import FaultyVFS
from tests.stores.home import copy_crash_image, open_scenario, open_store, run_coroutine
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture(autouse=True)
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, the writer does not sync by itself before a test moves its clock."""
    monkeypatch.setattr(writer, "MAX_SYNC_LAG_SECONDS", 3600.0)


@pytest.fixture
def vfs() -> Iterator[FaultyVFS]:
    faulty = FaultyVFS()
    yield faulty
    faulty.unregister()


def test_only_non_durable_commits_skip_the_sync(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        await scenario.commit_heard()
        for durable, waits in ((True, 1), (False, 0), (False, 0), (True, 1), (False, 0)):
            before = vfs.disk.syncs
            await scenario.commit_heard(durable=durable)
            assert vfs.disk.syncs - before == waits
        await store.close()

    run_coroutine(play())


def test_a_batch_with_a_durable_commit_is_synced(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        before, batches = vfs.disk.syncs, store.writer.batches
        vfs.disk.fsync_fails = True
        done = await asyncio.gather(
            scenario.commit_heard("kept"), scenario.commit_heard("with it", durable=False), return_exceptions=True
        )
        assert (vfs.disk.syncs, store.writer.batches) == (before + 1, batches)
        assert all(isinstance(one, Exception) for one in done)
        await store.close()

    run_coroutine(play())


def test_a_commit_that_was_not_synced_does_not_advance_the_watermark(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        witness = watermark.build_watermark_path(store.path)
        await scenario.commit_heard()
        pos = watermark.read_watermark(witness)
        await scenario.commit_heard(durable=False)
        assert await store.last_pos() == pos + 1
        assert watermark.read_watermark(witness) == pos  # after a power cut the log may end here, which is not damage
        await scenario.commit_heard()
        assert watermark.read_watermark(witness) == pos + 2
        await store.close()
        store, scenario = await open_scenario(tmp_path / "log.db")
        assert len(await scenario.read_texts()) == 3
        await store.close()

    run_coroutine(play())


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files that everhold syncs itself, in order, by their inodes."""
    files: list[int] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        real(handle)
        files.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    return files


def test_an_empty_commit_syncs_the_commits_before_it(tmp_path: Path, synced: list[int]) -> None:
    """SQLite does not sync it. A log that lost its end would be refused as damaged if the watermark were higher."""
    message = EntryDraft(body=make_heard("kept"), author="person:ada", dedup="d")
    late = EntryDraft(body=make_heard("late"), author="person:ada")

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        witness = watermark.build_watermark_path(store.path)
        await scenario.commit(message)
        synced.clear()
        await store.ping_writer()
        assert synced == []  # it was there already
        wal = store.path.with_name("log.db-wal").stat().st_ino
        nothings: tuple[Callable[[], Awaitable[object]], ...] = (
            store.ping_writer,
            lambda: scenario.commit(message),
            lambda: scenario.commit(late, seen=0),
        )
        for n, nothing in enumerate(nothings):
            await scenario.commit_heard(durable=False)
            assert watermark.read_watermark(witness) == n + 1
            assert synced == [wal] * n
            await asyncio.gather(nothing(), return_exceptions=True)
            assert synced == [wal] * (n + 1)
            assert watermark.read_watermark(witness) == await store.last_pos() == n + 2
        await store.close()

    run_coroutine(play())


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers can be made due."""

    ahead_seconds = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_seconds


@pytest.mark.parametrize("on_the_spot", [False, True])
def test_commits_that_are_not_durable_are_synced_later_without_a_durable_one(
    tmp_path: Path, synced: list[int], on_the_spot: bool
) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        store, scenario, clocks = await timed(tmp_path / "log.db")
        clocks.commit_seconds = 0.0 if on_the_spot else 1.0
        if on_the_spot:
            await Committing(store).settle(scenario)
        for queues in (False, True):
            seq = await scenario.commit_heard()
            if queues:
                await scenario.erase_entries(seq)  # the first commit of an emptied log runs on the thread
            synced.clear()
            await scenario.commit_heard(durable=False)
            assert synced == []
            loop.ahead_seconds += writer.MAX_SYNC_LAG_SECONDS
            await wait_until(lambda: synced)
            for _ in range(100):
                await asyncio.sleep(0)
            assert synced == [store.path.with_name("log.db-wal").stat().st_ino]
        await store.close()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(play())


def test_no_commit_follows_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError("the disk did not take it")

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard()
        await scenario.commit_heard(durable=False)
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreError):
            await store.ping_writer()
        assert store.broken is not None
        with pytest.raises(StoreError):
            await scenario.commit_heard(durable=False)
        await store.close()

    run_coroutine(play())


@pytest.mark.parametrize("durable", [True, False])
def test_the_event_loop_does_not_wait_for_the_lock_of_another_process(tmp_path: Path, durable: bool) -> None:
    async def play() -> None:
        patience = 20.0
        store, scenario = await open_scenario(tmp_path / "log.db", patience=patience)
        foreign = apsw.Connection(str(store.path))
        foreign.execute("begin immediate")
        began = time.monotonic()
        waiting = asyncio.ensure_future(scenario.commit_heard("patient", durable=durable))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert time.monotonic() - began < patience, "the event loop waited for the lock"
        foreign.execute("rollback")
        foreign.close()
        await waiting
        assert await scenario.read_texts() == ["patient"]
        await store.close()

    run_coroutine(play())


@pytest.mark.parametrize("durable", [True, False])
def test_a_refused_change_writes_nothing(tmp_path: Path, durable: bool) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        late = EntryDraft(body=make_heard("too late"), author="person:ada")
        with pytest.raises(Conflict):
            await scenario.commit(late, generation=7, durable=durable)
        await scenario.commit_heard("in time")
        assert await scenario.read_texts() == ["in time"]
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_a_cancelled_caller_does_not_delay_others(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        leaving = [asyncio.ensure_future(scenario.commit_heard(f"gone {n}")) for n in range(3)]
        await asyncio.sleep(0)
        for one in leaving:
            one.cancel()
        await scenario.commit_heard("staying")
        assert (await scenario.read_texts())[-1] == "staying"
        await store.close()

    run_coroutine(play())


def test_no_position_is_used_twice_after_a_power_cut(tmp_path: Path) -> None:
    """A follower may have seen the lost positions, and reads after them."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard("kept")
        found = copy_crash_image(store.path, tmp_path / "after")
        for n in range(20):
            await scenario.commit_heard(f"lost {n}", durable=False)
        seen = await store.last_pos()
        await store.close()

        store, scenario = await open_scenario(found)
        assert await scenario.read_texts() == ["kept"]
        await asyncio.gather(*[scenario.commit_heard(f"new {n}") for n in range(5)])
        await scenario.commit_heard("last")
        newer = await store.read_feed(after=seen)
        assert [get_heard_text(entry) for entry in newer] == [*(f"new {n}" for n in range(5)), "last"]
        assert [entry.pos - newer[0].pos for entry in newer] == list(range(6))
        assert await store.verify() == []
        await store.close()

        newest = newer[-1].pos
        store, scenario = await open_scenario(found)  # it was closed properly, so nothing can have been lost
        await scenario.commit_heard("after that")
        assert await store.last_pos() == newest + 1
        await store.close()

    run_coroutine(play())


def test_a_killed_process_leaves_no_gap(tmp_path: Path) -> None:
    """The machine did not restart, so nothing that was written is lost."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard("kept", durable=False)
        found = copy_crash_image(store.path, tmp_path / "after")
        shutil.copy(watermark.build_watermark_path(store.path), watermark.build_watermark_path(found))
        newest = await store.last_pos()
        await store.close()
        store, scenario = await open_scenario(found)
        await scenario.commit_heard("next")
        assert await store.last_pos() == newest + 1
        await store.close()

    run_coroutine(play())


def test_the_entries_that_a_restore_removes_are_counted_across_a_gap(tmp_path: Path) -> None:
    home = Home(tmp_path / "after")

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / home.store.name)
        await scenario.commit_heard("kept")
        copy_crash_image(store.path, home.path)
        await store.close()
        store, scenario = await open_scenario(home.store)
        await scenario.commit_heard("after the gap")
        await scenario.commit_heard("and one more")
        await store.close()

    run_coroutine(play())
    assert [plan_restore(home, at=at).lost_entries for at in ("1", "500", "1025", "1026")] == [2, 2, 1, 0]


def test_a_duplicate_after_a_power_cut_frees_no_lost_position(tmp_path: Path) -> None:
    """A platform repeats an unconfirmed message. Nothing is written then, so the positions stay lost."""
    message = EntryDraft(body=make_heard("kept"), author="person:ada", dedup="d")

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit(message)
        found = copy_crash_image(store.path, tmp_path / "after")
        for n in range(5):
            await scenario.commit_heard(f"lost {n}", durable=False)
        seen = await store.last_pos()
        await store.close()

        store, scenario = await open_scenario(found)
        assert (await scenario.commit(message)).duplicate
        await scenario.commit_heard("new")
        assert [get_heard_text(entry) for entry in await store.read_feed(after=seen)] == ["new"]
        await store.close()

    run_coroutine(play())


def test_the_first_entry_after_a_power_cut_is_durable(tmp_path: Path, vfs: FaultyVFS) -> None:
    """Otherwise a second power cut would restore the old log, and the same positions would be used again."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard("kept")
        found = copy_crash_image(store.path, tmp_path / "after")
        await store.close()
        store, scenario = await open_scenario(found, vfs=vfs.name)
        await store.writer.write(lambda cur: cur.execute("update sessions set next_seq = next_seq"))
        for waits in (1, 0):
            before = vfs.disk.syncs
            await scenario.commit_heard(durable=False)
            assert vfs.disk.syncs - before == waits
        await store.close()

    run_coroutine(play())


def test_the_event_loop_does_not_wait_for_a_slow_disk(
    tmp_path: Path, vfs: FaultyVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite syncs the header of a restarted log at any level."""
    monkeypatch.setattr(writer, "QUICK_DISK_SECONDS", 0.0)  # no disk is quick

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.waiting.clear()
        for n in range(3):
            seq = await scenario.commit_heard(f"wrong {n}", durable=False)
            await scenario.erase_entries(seq)  # empties the log
            await scenario.commit_heard(f"right {n}", durable=False)
        assert vfs.disk.waiting
        assert threading.get_ident() not in vfs.disk.waiting
        await store.close()

    run_coroutine(play())


class MadeClocks:
    """Clocks with which a test sets the duration of commits and the event loop's CPU time during them."""

    def __init__(self) -> None:
        self.commit_seconds = 0.0
        self.computed_seconds = 0.0
        self._elapsed = 0.0
        self._computed = 0.0

    def elapsed(self) -> float:
        self._elapsed += self.commit_seconds
        return self._elapsed

    def computed(self) -> float:
        self._computed += self.computed_seconds
        return self._computed


async def timed(path: Path, *, real: bool = False) -> tuple[SqliteStore, StoreScenario, MadeClocks]:
    """A store whose writer uses fake clocks; with `real`, the event loop's CPU time is the true one."""
    store, made = open_store(path), MadeClocks()
    assert isinstance(store.writer, writer.ThreadWriter)
    store.writer.clocks = (
        writer.WriterClocks(elapsed_seconds=made.elapsed)
        if real
        else writer.WriterClocks(elapsed_seconds=made.elapsed, computed_seconds=made.computed)
    )
    scenario = StoreScenario(store)
    await scenario.open_session("s")
    return store, scenario, made


class Committing:
    """Records on which threads commits are made."""

    def __init__(self, store: SqliteStore) -> None:
        self.names: list[str] = []
        assert isinstance(store.writer, writer.ThreadWriter)
        store.writer.db.set_commit_hook(self._commit)

    def _commit(self) -> bool:
        self.names.append(threading.current_thread().name)
        return False  # go on

    def took(self) -> list[bool]:
        """For each commit since the last call, whether it ran on the event loop."""
        names, self.names = self.names, []
        return [name != "everhold-writer" for name in names]

    async def heard(self, scenario: StoreScenario) -> bool:
        """Whether the commit of one more message runs on the event loop."""
        self.took()
        await scenario.commit_heard()
        (on_the_spot,) = self.took()
        return on_the_spot

    async def settle(self, scenario: StoreScenario) -> None:
        """Commit messages until commits run on the event loop, because the disk is quick and the loop idle."""
        for _ in range(50):
            if await self.heard(scenario):
                return
        raise AssertionError("no commit ran on the event loop")


@pytest.mark.parametrize("many", [1, 5])
def test_with_a_quick_disk_an_idle_event_loop_commits_itself(tmp_path: Path, many: int) -> None:
    async def play() -> None:
        store, scenario, clocks = await timed(tmp_path / "log.db")
        committing = Committing(store)

        async def hear() -> None:
            await asyncio.gather(*(scenario.commit_heard() for _ in range(many)))

        await committing.settle(scenario)
        for _ in range(2 * (writer.INLINE_COMMITS_PER_CHECK + 1)):
            await hear()
        on_the_spot = committing.took()
        assert on_the_spot.count(False) == 2  # from time to time a commit runs on the thread again
        assert on_the_spot[-1 - writer.INLINE_COMMITS_PER_CHECK :].count(True) == writer.INLINE_COMMITS_PER_CHECK
        clocks.commit_seconds = 8 * writer.QUICK_DISK_SECONDS  # a slow one
        await hear()
        committing.took()
        for _ in range(2 * (writer.INLINE_COMMITS_PER_CHECK + 1)):
            await hear()
        assert not any(committing.took())
        await store.close()

    run_coroutine(play())


def test_more_jobs_than_a_batch_can_hold_are_all_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        store, scenario, _ = await timed(tmp_path / "log.db")
        monkeypatch.setattr(writer, "MAX_BATCH_JOBS", 3)
        committing = Committing(store)
        await committing.settle(scenario)
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.gather(*(scenario.commit_heard() for _ in range(8)))
        assert committing.took() == [True] * 3
        await store.close()

    run_coroutine(play())


def test_a_busy_event_loop_does_not_commit_itself(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario, _ = await timed(tmp_path / "log.db", real=True)
        committing = Committing(store)

        async def work(hearing: asyncio.Future[int]) -> None:
            while here(store) and not hearing.done():  # noqa: ASYNC110
                await asyncio.sleep(0)
            until = time.thread_time() + 2 * writer.UNUSED_WAIT_SECONDS
            while time.thread_time() < until:
                pass

        for _ in range(8 * writer.MAX_UNUSED_WAITS):
            hearing = asyncio.ensure_future(scenario.commit_heard())
            await asyncio.gather(hearing, work(hearing))
        assert not any(committing.took())
        await store.close()

    run_coroutine(play())


def test_a_stalling_disk_is_waited_for_once(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario, clocks = await timed(tmp_path / "log.db")
        committing = Committing(store)
        await committing.settle(scenario)
        clocks.commit_seconds = 0.05
        for _ in range(3):
            await scenario.commit_heard()
        assert committing.took() == [True, False, False]
        clocks.commit_seconds = 0.0
        await committing.settle(scenario)
        await store.close()

    run_coroutine(play())


def test_a_long_write_ahead_log_is_checkpointed_on_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        store, scenario, _ = await timed(tmp_path / "log.db")
        thread_writer = store.writer
        assert isinstance(thread_writer, writer.ThreadWriter)
        committing, tidied, real = Committing(store), list[str](), thread_writer.checkpoint_wal

        def tidy() -> None:
            tidied.append(threading.current_thread().name)
            real()

        monkeypatch.setattr(thread_writer, "checkpoint_wal", tidy)
        await committing.settle(scenario)
        monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 1)
        assert await committing.heard(scenario)
        await scenario.commit_heard()
        assert tidied[0] == "everhold-writer"
        assert committing.took() == [True]  # the thread commits nothing before its checkpoint
        await store.close()

    run_coroutine(play())


def test_an_erasure_waits_until_a_reader_has_read(tmp_path: Path) -> None:
    """Otherwise erased data would stay in the write-ahead log until the next commit."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        seq = await scenario.commit_heard("the secret word")
        reader = apsw.Connection(str(store.path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("begin; select * from entries").fetchall()
        erasing = asyncio.ensure_future(scenario.erase_entries(seq))
        await asyncio.sleep(0.05)
        reader.execute("rollback")
        await erasing
        assert store.path.with_name("log.db-wal").stat().st_size == 0
        reader.close()
        await store.close()

    run_coroutine(play())


def test_a_long_reader_delays_only_one_erasure(tmp_path: Path) -> None:
    async def play() -> None:
        patience = 1.0
        store, scenario = await open_scenario(tmp_path / "log.db", patience=patience)
        wal = store.path.with_name("log.db-wal")
        seq = await scenario.commit_heard("the secret word")
        reader = apsw.Connection(str(store.path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("begin; select * from entries").fetchall()
        await scenario.erase_entries(seq)
        assert wal.stat().st_size > 0
        took: list[float] = []
        for _ in range(5):
            began = time.monotonic()
            await scenario.commit_heard()
            took.append(time.monotonic() - began)
        assert sorted(took)[2] < patience, "they waited for the reader again"
        reader.close()
        await scenario.commit_heard()
        assert wal.stat().st_size == 0
        await store.close()

    run_coroutine(play())


def test_an_interrupted_close_can_be_repeated(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        queued = asyncio.ensure_future(scenario.commit_heard("queued"))
        await asyncio.sleep(0)
        leaving = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        closing = [asyncio.ensure_future(store.close()) for _ in range(2)]
        done, _ = await asyncio.wait(closing, timeout=LIMIT_SECONDS)
        assert len(done) == 2
        assert await queued == 1
        assert not store.path.with_name("log.db-wal").exists()

    run_coroutine(play())


@pytest.mark.parametrize("closed", [False, True])
def test_a_second_event_loop_continues_without_waiting(tmp_path: Path, closed: bool) -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    store, scenario = first.run_until_complete(open_scenario(tmp_path / "log.db"))

    foreign = apsw.Connection(str(store.path))
    foreign.execute("begin immediate")
    waiting: list[asyncio.Future[int]] = []

    async def leave() -> None:
        for n in range(3):
            waiting.append(asyncio.ensure_future(scenario.commit_heard(f"left behind {n}")))
            await asyncio.sleep(0.01)

    first.run_until_complete(leave())
    if closed:
        first.close()
    threading.Timer(0.05, foreign.close).start()
    second.run_until_complete(asyncio.wait_for(scenario.commit_heard("going on"), LIMIT_SECONDS))
    assert second.run_until_complete(scenario.read_texts()) == [*(f"left behind {n}" for n in range(3)), "going on"]
    if not closed:
        first.run_until_complete(asyncio.wait(waiting, timeout=LIMIT_SECONDS))
        assert all(one.done() for one in waiting)
        first.close()
    second.run_until_complete(asyncio.wait_for(store.close(), LIMIT_SECONDS))
    second.close()


def test_no_caller_waits_for_a_thread_that_crashed_in_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall() -> None:
        raise MemoryError

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        monkeypatch.setattr(type(store.writer), "is_wal_long", property(lambda _: True))
        monkeypatch.setattr(store.writer, "checkpoint_wal", fall)
        done = await asyncio.wait_for(
            asyncio.gather(*[scenario.commit_heard() for _ in range(300)], return_exceptions=True), LIMIT_SECONDS
        )
        assert {type(one) for one in done} == {type(done[0]), StoreError}
        with pytest.raises(StoreError):
            await scenario.commit_heard()
        await store.close()

    run_coroutine(play())


@pytest.fixture
def no_handles(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once called, this process can open no more files."""

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    return lambda: monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("on_the_spot", [False, True])
def test_a_process_without_free_file_handles_continues_to_write(
    tmp_path: Path,
    no_handles: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    on_the_spot: bool,
) -> None:
    """Many connections may use all handles for a moment. The writer must neither stop for good nor wait for ever."""
    message = EntryDraft(body=make_heard("kept"), author="person:ada", dedup="d")

    async def play() -> None:
        store, scenario, clocks = await timed(tmp_path / "log.db")
        clocks.commit_seconds = 0.0 if on_the_spot else 1.0
        if on_the_spot:
            await Committing(store).settle(scenario)
        await scenario.commit(message)
        await scenario.commit_heard(durable=False)
        no_handles()
        async with asyncio.timeout(LIMIT_SECONDS):
            assert (await scenario.commit(message)).duplicate
        assert watermark.read_watermark(watermark.build_watermark_path(store.path)) == await store.last_pos()
        monkeypatch.undo()
        await store.close()

    run_coroutine(play())


def test_no_caller_waits_for_a_commit_that_crashed_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall() -> None:
        raise MemoryError

    async def play() -> None:
        store, scenario, _ = await timed(tmp_path / "log.db")
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await Committing(store).settle(scenario)
        monkeypatch.setattr(store.writer, "_record_durable", fall)
        async with asyncio.timeout(LIMIT_SECONDS):
            done = await asyncio.gather(*[scenario.commit_heard() for _ in range(9)], return_exceptions=True)
        assert {type(one) for one in done} == {StoreError}
        assert store.broken is not None
        await store.close()

    run_coroutine(play())


def here(store: SqliteStore) -> bool:
    """Whether the writing connection is on the event loop."""
    return store.writer.read_cursor is not None


def test_reads_see_committed_data_wherever_the_connection_is(tmp_path: Path) -> None:
    """Reads use the writer's connection while it is on the event loop, and another one while the thread has it."""
    written, go_on = threading.Event(), threading.Event()

    def slowly(cur: apsw.Cursor) -> None:
        cur.execute("update sessions set title = 'later' where id = 's'")
        written.set()
        assert go_on.wait(LIMIT_SECONDS)

    async def play() -> None:
        store, _ = await open_scenario(tmp_path / "log.db")
        await store.ping_writer()
        assert here(store)
        assert (await store.get_session("s")).title == ""
        going = asyncio.ensure_future(store.writer.write(slowly))
        assert await asyncio.to_thread(written.wait, LIMIT_SECONDS)
        assert not here(store)
        assert (await store.get_session("s")).title == "", "what is not committed is not seen"
        assert (await store.get_session_snapshot("s")).session.title == ""
        go_on.set()
        await going
        assert (await store.get_session("s")).title == "later"
        await store.close()
        assert not here(store)

    run_coroutine(play())


def test_a_rolled_back_commit_does_not_advance_the_watermark(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        witness = watermark.build_watermark_path(store.path)
        await scenario.commit_heard("kept")
        reached = await store.last_pos()
        assert watermark.read_watermark(witness) == reached

        def appends_and_fails(cur: apsw.Cursor) -> None:
            store.writer.last_pos = reached + 7
            raise ValueError("after all")

        for light in (True, False):
            with pytest.raises(ValueError, match="after all"):
                await store.writer.write(appends_and_fails, light=light)
            await store.ping_writer()
            assert watermark.read_watermark(witness) == reached
        with pytest.raises(ValueError, match="after all"):
            await store.writer.write(appends_and_fails, light=True, durable=False)
        await store.ping_writer()
        assert watermark.read_watermark(witness) == reached
        await store.close()

    run_coroutine(play())
