"""Which commits wait for the disk, and that the event loop does so only where nobody would notice."""

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

from everhold.admin.backups import plan_restore
from everhold.core.entries import EntryDraft
from everhold.errors import Conflict, StoreError
from everhold.infra.home import Home
from everhold.ports.store import CommitResult
from everhold.stores.sqlite import SqliteStore, watermark, writer
from everhold.testing.contracts.store_scenario import StoreScenario, get_heard_text, make_heard
from tests.stores.faulty_disk import FaultyVFS
from tests.stores.home import copy_crash_image, open_scenario, open_store, run_coroutine
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture(autouse=True)
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, the writer syncs nothing by itself before a test moves its clock."""
    monkeypatch.setattr(writer, "MAX_SYNC_LAG_SECONDS", 3600.0)


@pytest.fixture
def vfs() -> Iterator[FaultyVFS]:
    faulty = FaultyVFS()
    yield faulty
    faulty.unregister()


def test_only_what_need_not_be_durable_does_not_wait_for_the_disk(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        await scene.commit_heard()
        for durable, waits in ((True, 1), (False, 0), (False, 0), (True, 1), (False, 0)):
            before = vfs.disk.syncs
            await scene.commit_heard(durable=durable)
            assert vfs.disk.syncs - before == waits
        await store.close()

    run_coroutine(play())


def test_together_with_something_durable_everything_is(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        before, batches = vfs.disk.syncs, store.writer.batches
        vfs.disk.fsync_fails = True
        done = await asyncio.gather(
            scene.commit_heard("kept"), scene.commit_heard("with it", durable=False), return_exceptions=True
        )
        assert (vfs.disk.syncs, store.writer.batches) == (before + 1, batches)
        assert all(isinstance(one, Exception) for one in done)
        await store.close()

    run_coroutine(play())


def test_what_was_not_waited_for_is_not_said_to_be_acknowledged(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        witness = watermark.build_watermark_path(store.path)
        await scene.commit_heard()
        pos = watermark.read_watermark(witness)
        await scene.commit_heard(durable=False)
        assert await store.last_pos() == pos + 1
        assert watermark.read_watermark(witness) == pos  # after a power cut the log may end here, and that is no damage
        await scene.commit_heard()
        assert watermark.read_watermark(witness) == pos + 2
        await store.close()
        store, scene = await open_scenario(tmp_path / "log.db")
        assert len(await scene.read_texts()) == 3
        await store.close()

    run_coroutine(play())


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files that we sync ourselves, in order, by their numbers."""
    files: list[int] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        real(handle)
        files.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    return files


def test_a_commit_of_nothing_brings_what_was_ahead_of_it_to_the_disk(tmp_path: Path, synced: list[int]) -> None:
    """SQLite does not: a log that lost its end would be refused as damaged if the mark said otherwise."""
    message = EntryDraft(body=make_heard("kept"), author="person:ada", dedup="d")
    late = EntryDraft(body=make_heard("late"), author="person:ada")

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        witness = watermark.build_watermark_path(store.path)
        await scene.commit(message)
        synced.clear()
        await store.ping_writer()
        assert synced == []  # it was there already
        wal = store.path.with_name("log.db-wal").stat().st_ino
        nothings: tuple[Callable[[], Awaitable[object]], ...] = (
            store.ping_writer,
            lambda: scene.commit(message),
            lambda: scene.commit(late, seen=0),
        )
        for n, nothing in enumerate(nothings):
            await scene.commit_heard(durable=False)
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
def test_the_disk_gets_what_need_not_be_durable_though_nobody_says_anything_more(
    tmp_path: Path, synced: list[int], on_the_spot: bool
) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        store, scene, clocks = await timed(tmp_path / "log.db")
        clocks.commit_seconds = 0.0 if on_the_spot else 1.0
        if on_the_spot:
            await Committing(store).settle(scene)
        for queues in (False, True):
            seq = await scene.commit_heard()
            if queues:
                await scene.erase_entries(seq)  # whoever begins a log anew does not do it on the event loop
            synced.clear()
            await scene.commit_heard(durable=False)
            assert synced == []
            loop.ahead_seconds += writer.MAX_SYNC_LAG_SECONDS
            await wait_until(lambda: synced)
            for _ in range(100):
                await asyncio.sleep(0)
            assert synced == [store.path.with_name("log.db-wal").stat().st_ino]
        await store.close()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(play())


def test_a_log_that_cannot_be_synced_is_not_written_to_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError("the disk did not take it")

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard()
        await scene.commit_heard(durable=False)
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreError):
            await store.ping_writer()
        assert store.broken is not None
        with pytest.raises(StoreError):
            await scene.commit_heard(durable=False)
        await store.close()

    run_coroutine(play())


@pytest.mark.parametrize("durable", [True, False])
def test_the_event_loop_does_not_wait_for_somebody_elses_lock(tmp_path: Path, durable: bool) -> None:
    async def play() -> None:
        patience = 20.0
        store, scene = await open_scenario(tmp_path / "log.db", patience=patience)
        foreign = apsw.Connection(str(store.path))
        foreign.execute("begin immediate")
        began = time.monotonic()
        waiting = asyncio.ensure_future(scene.commit_heard("patient", durable=durable))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert time.monotonic() - began < patience, "the event loop waited for the lock"
        foreign.execute("rollback")
        foreign.close()
        await waiting
        assert await scene.read_texts() == ["patient"]
        await store.close()

    run_coroutine(play())


@pytest.mark.parametrize("durable", [True, False])
def test_a_refused_change_leaves_nothing_behind(tmp_path: Path, durable: bool) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        late = EntryDraft(body=make_heard("too late"), author="person:ada")
        with pytest.raises(Conflict):
            await scene.commit(late, generation=7, durable=durable)
        await scene.commit_heard("in time")
        assert await scene.read_texts() == ["in time"]
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_whoever_gave_up_waiting_holds_nobody_up(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        leaving = [asyncio.ensure_future(scene.commit_heard(f"gone {n}")) for n in range(3)]
        await asyncio.sleep(0)
        for one in leaving:
            one.cancel()
        await scene.commit_heard("staying")
        assert (await scene.read_texts())[-1] == "staying"
        await store.close()

    run_coroutine(play())


def test_no_position_is_used_twice_after_a_power_cut(tmp_path: Path) -> None:
    """Somebody may have seen the positions that were lost, and asks for what comes behind them."""

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard("kept")
        found = copy_crash_image(store.path, tmp_path / "after")
        for n in range(20):
            await scene.commit_heard(f"lost {n}", durable=False)
        seen = await store.last_pos()
        await store.close()

        store, scene = await open_scenario(found)
        assert await scene.read_texts() == ["kept"]
        await asyncio.gather(*[scene.commit_heard(f"new {n}") for n in range(5)])
        await scene.commit_heard("last")
        behind = await store.read_feed(after=seen)
        assert [get_heard_text(entry) for entry in behind] == [*(f"new {n}" for n in range(5)), "last"]
        assert [entry.pos - behind[0].pos for entry in behind] == list(range(6))
        assert await store.verify() == []
        await store.close()

        newest = behind[-1].pos
        store, scene = await open_scenario(found)  # it was closed well: nothing can have been lost
        await scene.commit_heard("after that")
        assert await store.last_pos() == newest + 1
        await store.close()

    run_coroutine(play())


def test_a_killed_process_leaves_no_gap(tmp_path: Path) -> None:
    """Its machine is still up, and has all that was written."""

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard("kept", durable=False)
        found = copy_crash_image(store.path, tmp_path / "after")
        shutil.copy(watermark.build_watermark_path(store.path), watermark.build_watermark_path(found))
        newest = await store.last_pos()
        await store.close()
        store, scene = await open_scenario(found)
        await scene.commit_heard("next")
        assert await store.last_pos() == newest + 1
        await store.close()

    run_coroutine(play())


def test_what_a_restore_takes_back_is_counted_across_a_gap(tmp_path: Path) -> None:
    home = Home(tmp_path / "after")

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / home.store.name)
        await scene.commit_heard("kept")
        copy_crash_image(store.path, home.path)
        await store.close()
        store, scene = await open_scenario(home.store)
        await scene.commit_heard("behind the gap")
        await scene.commit_heard("and one more")
        await store.close()

    run_coroutine(play())
    assert [plan_restore(home, at=at).lost_entries for at in ("1", "500", "1025", "1026")] == [2, 2, 1, 0]


def test_a_repeat_after_a_power_cut_gives_no_position_away(tmp_path: Path) -> None:
    """A platform brings again what was not confirmed: nothing is written then, and the places are still lost ones."""
    message = EntryDraft(body=make_heard("kept"), author="person:ada", dedup="d")

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit(message)
        found = copy_crash_image(store.path, tmp_path / "after")
        for n in range(5):
            await scene.commit_heard(f"lost {n}", durable=False)
        seen = await store.last_pos()
        await store.close()

        store, scene = await open_scenario(found)
        assert (await scene.commit(message)).duplicate
        await scene.commit_heard("new")
        assert [get_heard_text(entry) for entry in await store.read_feed(after=seen)] == ["new"]
        await store.close()

    run_coroutine(play())


def test_the_first_entry_after_a_fall_is_waited_for(tmp_path: Path, vfs: FaultyVFS) -> None:
    """A second power cut would else find the log as it was, and give the same places away again."""

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard("kept")
        found = copy_crash_image(store.path, tmp_path / "after")
        await store.close()
        store, scene = await open_scenario(found, vfs=vfs.name)
        await store.writer.write(lambda cur: cur.execute("update sessions set next_seq = next_seq"))
        for waits in (1, 0):
            before = vfs.disk.syncs
            await scene.commit_heard(durable=False)
            assert vfs.disk.syncs - before == waits
        await store.close()

    run_coroutine(play())


def test_the_event_loop_does_not_wait_for_a_slow_disk(
    tmp_path: Path, vfs: FaultyVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite syncs the head of a log that starts over, at any level."""
    monkeypatch.setattr(writer, "QUICK_DISK_SECONDS", 0.0)  # no disk is quick

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.waiting.clear()
        for n in range(3):
            seq = await scene.commit_heard(f"wrong {n}", durable=False)
            await scene.erase_entries(seq)  # empties the log
            await scene.commit_heard(f"right {n}", durable=False)
        assert vfs.disk.waiting
        assert threading.get_ident() not in vfs.disk.waiting
        await store.close()

    run_coroutine(play())


class MadeClocks:
    """Clocks by which every commit takes as long, and the event loop computes as much meanwhile, as a test says."""

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
    """A store whose writer decides by made clocks where it waits: for the disk at once, and with `real` by the true
    clock how much the event loop computes meanwhile."""
    store, made = open_store(path), MadeClocks()
    assert isinstance(store.writer, writer.ThreadWriter)
    store.writer.clocks = (
        writer.WriterClocks(elapsed_seconds=made.elapsed)
        if real
        else writer.WriterClocks(elapsed_seconds=made.elapsed, computed_seconds=made.computed)
    )
    scene = StoreScenario(store)
    await scene.open_session("s")
    return store, scene, made


class Committing:
    """On which threads commits are made."""

    def __init__(self, store: SqliteStore) -> None:
        self.names: list[str] = []
        assert isinstance(store.writer, writer.ThreadWriter)
        store.writer.db.set_commit_hook(self._commit)

    def _commit(self) -> bool:
        self.names.append(threading.current_thread().name)
        return False  # go on

    def took(self) -> list[bool]:
        """Of each commit since the last time, whether the event loop waited for it."""
        names, self.names = self.names, []
        return [name != "everhold-writer" for name in names]

    async def heard(self, scene: StoreScenario) -> bool:
        """Whether the event loop waits for the commit of one more message."""
        self.took()
        await scene.commit_heard()
        (on_the_spot,) = self.took()
        return on_the_spot

    async def settle(self, scene: StoreScenario) -> None:
        """Go on until the disk has been quick for so long, and nobody used the wait for so long, that the event loop
        waits itself."""
        for _ in range(50):
            if await self.heard(scene):
                return
        raise AssertionError("the event loop never waited itself")


@pytest.mark.parametrize("many", [1, 5])
def test_a_quick_disk_is_waited_for_on_the_spot_where_nobody_makes_use_of_the_wait(tmp_path: Path, many: int) -> None:
    async def play() -> None:
        store, scene, clocks = await timed(tmp_path / "log.db")
        committing = Committing(store)

        async def hear() -> None:
            await asyncio.gather(*(scene.commit_heard() for _ in range(many)))

        await committing.settle(scene)
        for _ in range(2 * (writer.INLINE_COMMITS_PER_CHECK + 1)):
            await hear()
        on_the_spot = committing.took()
        assert on_the_spot.count(False) == 2  # now and then it is seen whether it is still so
        assert on_the_spot[-1 - writer.INLINE_COMMITS_PER_CHECK :].count(True) == writer.INLINE_COMMITS_PER_CHECK
        clocks.commit_seconds = 8 * writer.QUICK_DISK_SECONDS  # a slow one
        await hear()
        committing.took()
        for _ in range(2 * (writer.INLINE_COMMITS_PER_CHECK + 1)):
            await hear()
        assert not any(committing.took())
        await store.close()

    run_coroutine(play())


def test_a_crowd_larger_than_a_batch_is_written_to_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        store, scene, _ = await timed(tmp_path / "log.db")
        monkeypatch.setattr(writer, "MAX_BATCH_JOBS", 3)
        committing = Committing(store)
        await committing.settle(scene)
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.gather(*(scene.commit_heard() for _ in range(8)))
        assert committing.took() == [True] * 3
        await store.close()

    run_coroutine(play())


def test_whoever_makes_use_of_a_wait_is_not_kept_from_it(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene, _ = await timed(tmp_path / "log.db", real=True)
        committing = Committing(store)

        async def work(hearing: asyncio.Future[int]) -> None:
            while here(store) and not hearing.done():  # noqa: ASYNC110
                await asyncio.sleep(0)
            until = time.thread_time() + 2 * writer.UNUSED_WAIT_SECONDS
            while time.thread_time() < until:
                pass

        for _ in range(8 * writer.MAX_UNUSED_WAITS):
            hearing = asyncio.ensure_future(scene.commit_heard())
            await asyncio.gather(hearing, work(hearing))
        assert not any(committing.took())
        await store.close()

    run_coroutine(play())


def test_a_disk_that_stalls_is_waited_for_once(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene, clocks = await timed(tmp_path / "log.db")
        committing = Committing(store)
        await committing.settle(scene)
        clocks.commit_seconds = 0.05
        for _ in range(3):
            await scene.commit_heard()
        assert committing.took() == [True, False, False]
        clocks.commit_seconds = 0.0
        await committing.settle(scene)
        await store.close()

    run_coroutine(play())


def test_what_is_long_is_tidied_up_on_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        store, scene, _ = await timed(tmp_path / "log.db")
        hand = store.writer
        assert isinstance(hand, writer.ThreadWriter)
        committing, tidied, real = Committing(store), list[str](), hand.checkpoint_wal

        def tidy() -> None:
            tidied.append(threading.current_thread().name)
            real()

        monkeypatch.setattr(hand, "checkpoint_wal", tidy)
        await committing.settle(scene)
        monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 1)
        assert await committing.heard(scene)
        await scene.commit_heard()
        assert tidied[0] == "everhold-writer"
        await store.close()

    run_coroutine(play())


def test_an_erasure_waits_until_a_reader_has_read(tmp_path: Path) -> None:
    """Or the write-ahead log would keep what was erased until somebody says something again."""

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        seq = await scene.commit_heard("the secret word")
        reader = apsw.Connection(str(store.path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("begin; select * from entries").fetchall()
        erasing = asyncio.ensure_future(scene.erase_entries(seq))
        await asyncio.sleep(0.05)
        reader.execute("rollback")
        await erasing
        assert store.path.with_name("log.db-wal").stat().st_size == 0
        reader.close()
        await store.close()

    run_coroutine(play())


def test_a_long_reader_holds_up_one_erasure_and_nothing_after_it(tmp_path: Path) -> None:
    async def play() -> None:
        patience = 1.0
        store, scene = await open_scenario(tmp_path / "log.db", patience=patience)
        wal = store.path.with_name("log.db-wal")
        seq = await scene.commit_heard("the secret word")
        reader = apsw.Connection(str(store.path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("begin; select * from entries").fetchall()
        await scene.erase_entries(seq)
        assert wal.stat().st_size > 0
        took: list[float] = []
        for _ in range(5):
            began = time.monotonic()
            await scene.commit_heard()
            took.append(time.monotonic() - began)
        assert sorted(took)[2] < patience, "they waited for the reader again"
        reader.close()
        await scene.commit_heard()
        assert wal.stat().st_size == 0
        await store.close()

    run_coroutine(play())


def test_a_close_that_was_cut_short_can_be_repeated(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        queued = asyncio.ensure_future(scene.commit_heard("queued"))
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
def test_a_second_loop_goes_on_where_the_first_one_left_without_waiting(tmp_path: Path, closed: bool) -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    store, scene = first.run_until_complete(open_scenario(tmp_path / "log.db"))

    foreign = apsw.Connection(str(store.path))
    foreign.execute("begin immediate")
    waiting: list[asyncio.Future[int]] = []

    async def leave() -> None:
        for n in range(3):
            waiting.append(asyncio.ensure_future(scene.commit_heard(f"left behind {n}")))
            await asyncio.sleep(0.01)

    first.run_until_complete(leave())
    if closed:
        first.close()
    threading.Timer(0.05, foreign.close).start()
    second.run_until_complete(asyncio.wait_for(scene.commit_heard("going on"), LIMIT_SECONDS))
    assert second.run_until_complete(scene.read_texts()) == [*(f"left behind {n}" for n in range(3)), "going on"]
    if not closed:
        first.run_until_complete(asyncio.wait(waiting, timeout=LIMIT_SECONDS))
        assert all(one.done() for one in waiting)
        first.close()
    second.run_until_complete(asyncio.wait_for(store.close(), LIMIT_SECONDS))
    second.close()


def test_nobody_waits_for_a_thread_that_fell_while_it_tidied_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall() -> None:
        raise MemoryError

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        monkeypatch.setattr(type(store.writer), "is_wal_long", property(lambda _: True))
        monkeypatch.setattr(store.writer, "checkpoint_wal", fall)
        done = await asyncio.wait_for(
            asyncio.gather(*[scene.commit_heard() for _ in range(300)], return_exceptions=True), LIMIT_SECONDS
        )
        assert {type(one) for one in done} == {type(done[0]), StoreError}
        with pytest.raises(StoreError):
            await scene.commit_heard()
        await store.close()

    run_coroutine(play())


@pytest.fixture
def no_handles(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called, this process may open no file any more."""

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    return lambda: monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("at_hand", [False, True])
@pytest.mark.parametrize("on_the_spot", [False, True])
def test_a_process_without_a_handle_left_goes_on_writing(
    tmp_path: Path, no_handles: Callable[[], None], monkeypatch: pytest.MonkeyPatch, at_hand: bool, on_the_spot: bool
) -> None:
    """A crowd of connections takes them all for a moment: that is no reason to stop for good, nor to wait for ever."""
    message = EntryDraft(body=make_heard("kept"), author="person:ada", dedup="d")

    async def play() -> None:
        store, scene, clocks = await timed(tmp_path / "log.db")
        clocks.commit_seconds = 0.0 if on_the_spot else 1.0
        if on_the_spot:
            await Committing(store).settle(scene)
        kept = (await scene.commit(message)).pos
        await scene.commit_heard(durable=False)
        if at_hand:
            await store.ping_writer()
            await scene.commit_heard(durable=False)
        no_handles()
        async with asyncio.timeout(LIMIT_SECONDS):
            (again,) = await asyncio.gather(scene.commit(message), return_exceptions=True)
        assert isinstance(again, CommitResult if at_hand else StoreError)
        assert watermark.read_watermark(watermark.build_watermark_path(store.path)) == (
            await store.last_pos() if at_hand else kept
        )
        monkeypatch.undo()
        assert (await scene.commit(message)).duplicate
        assert watermark.read_watermark(watermark.build_watermark_path(store.path)) == await store.last_pos()
        await store.close()

    run_coroutine(play())


def test_nobody_waits_for_a_commit_that_fell_on_the_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fall() -> None:
        raise MemoryError

    async def play() -> None:
        store, scene, _ = await timed(tmp_path / "log.db")
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await Committing(store).settle(scene)
        monkeypatch.setattr(store.writer, "_record_durable", fall)
        async with asyncio.timeout(LIMIT_SECONDS):
            done = await asyncio.gather(*[scene.commit_heard() for _ in range(9)], return_exceptions=True)
        assert {type(one) for one in done} == {StoreError}
        assert store.broken is not None
        await store.close()

    run_coroutine(play())


def here(store: SqliteStore) -> bool:
    """Whether the connection that writes is where whoever reads is."""
    return store.writer.read_cursor is not None


def test_whoever_reads_sees_what_was_committed_wherever_the_connection_is(tmp_path: Path) -> None:
    """At the writer's own connection while it is here, and past it while the thread has it."""
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


def test_a_commit_that_was_undone_is_never_marked_as_acknowledged(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        witness = watermark.build_watermark_path(store.path)
        await scene.commit_heard("kept")
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
