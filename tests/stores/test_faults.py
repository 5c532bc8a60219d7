"""A failing, full or busy disk: nobody is told that something is kept when it is not."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from everhold.core.entries import Draft
from everhold.errors import StoreBusy, StoreError, StoreFull
from everhold.stores.sqlite import Ballast, SqliteStore
from everhold.testing.contracts.scene import Scene, heard
from tests.stores.faulty import FaultyVFS
from tests.stores.home import opened, run, staged


@pytest.fixture
def vfs() -> Iterator[FaultyVFS]:
    faulty = FaultyVFS()
    yield faulty
    faulty.unregister()


async def hear_many(scene: Scene, first: int, count: int, *, size: int = 1) -> list[str]:
    """Commit messages all at once; the texts of those that were acknowledged."""

    async def one(n: int) -> str:
        text = f"m{n} " + "x" * size
        await scene.hear(text, wake="", dedup=f"k{n}")
        return text

    done = await asyncio.gather(*[one(n) for n in range(first, first + count)], return_exceptions=True)
    unexpected = [one for one in done if isinstance(one, BaseException) and not isinstance(one, StoreError)]
    assert unexpected == []
    return [one for one in done if isinstance(one, str)]


def is_broken(store: SqliteStore) -> bool:
    return store.broken is not None


# -- fsync


def test_after_a_failed_fsync_nobody_is_told_anything_was_kept(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", vfs=vfs.name)
        acked = await hear_many(scene, 0, 20)
        assert len(acked) == 20
        assert not is_broken(store)
        vfs.disk.fsync_fails = True
        assert await hear_many(scene, 20, 20) == []
        assert is_broken(store)
        vfs.disk.fsync_fails = False
        with pytest.raises(StoreError, match="disk"):
            await scene.hear("a later success would prove nothing")
        with pytest.raises(StoreError):
            await store.claim(owner="me", at=1.0, lease=1.0, limit=1)
        assert set(acked) <= set(await scene.texts())
        await store.close()

        store, scene = await staged(tmp_path / "log.db")
        assert set(acked) <= set(await scene.texts())
        assert await store.verify() == []
        await store.close()

    run(play())


def test_a_failed_fsync_of_the_database_itself_is_not_overlooked(tmp_path: Path, vfs: FaultyVFS) -> None:
    """SQLite's own checkpoints swallow it; then the log would be emptied although the database never got its pages."""

    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.only = "log.db"
        vfs.disk.fsync_fails = True
        acked: list[str] = []
        for n in range(40):
            acked += await hear_many(scene, n, 1, size=200_000)
            if store.broken is not None:
                break
        assert store.broken is not None
        await store.close()

        store, scene = await staged(tmp_path / "log.db")
        assert set(acked) <= set(await scene.texts())
        await store.close()

    run(play())


def test_a_disk_that_cannot_be_read_is_said_to_be_so(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", vfs=vfs.name)
        await hear_many(scene, 0, 1, size=100_000)
        await store.close()
        store = opened(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.reads_fail = True
        with pytest.raises(StoreError, match="disk") as caught:
            await store.entries("s")
        assert "the system's log" in caught.value.remedy
        vfs.disk.reads_fail = False
        assert len(await store.entries("s")) == 1
        await store.close()

    run(play())


# -- no room


def test_a_full_disk_keeps_what_was_acknowledged_and_recovers(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", vfs=vfs.name)
        acked = await hear_many(scene, 0, 10)
        vfs.disk.room = 200_000
        refused = 0
        for n in range(10, 40):
            try:
                await scene.hear(f"m{n} " + "x" * 20_000, wake="")
                acked.append(f"m{n} " + "x" * 20_000)
            except StoreFull as error:
                refused += "space" in error.remedy
        assert 0 < refused < 30
        assert await scene.texts() == acked
        assert store.broken is None
        vfs.disk.room = None
        acked += await hear_many(scene, 40, 10)
        assert await scene.texts() == acked
        assert await store.verify() == []
        await store.close()
        store, scene = await staged(tmp_path / "log.db")
        assert await scene.texts() == acked
        await store.close()

    run(play())


def test_a_full_disk_refuses_a_whole_batch_alike(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.room = 0
        assert await hear_many(scene, 0, 50, size=5_000) == []
        vfs.disk.room = None
        assert len(await hear_many(scene, 0, 50, size=5_000)) == 50
        await store.close()

    run(play())


def test_a_disk_that_fills_up_in_the_middle_of_a_batch_is_said_to_be_full(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.room = 1_000_000
        large = bytes(40_000_000)  # more than the cache holds: it goes to the disk before the commit does
        changes = [scene.hear("before"), scene.commit(blobs=(large,)), scene.hear("after")]
        done = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(one) for one in done] == [StoreFull] * 3
        vfs.disk.room = None
        await scene.hear("there is room again")
        assert await scene.texts() == ["there is room again"]
        await store.close()

    run(play())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def remount(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def test_a_really_full_disk_and_the_ballast_that_makes_room_for_a_last_word(small_disk: Path) -> None:
    async def play() -> None:
        store, scene = await staged(small_disk / "log.db")
        ballast = Ballast(small_disk / "ballast", size=500_000)
        assert ballast.take_aboard()
        acked: list[str] = []
        refused = 0
        for n in range(200):
            try:
                await scene.hear(f"m{n} " + "x" * 20_000, wake="")
                acked.append(f"m{n} " + "x" * 20_000)
            except StoreFull:
                refused += 1
        assert acked
        assert refused
        assert store.broken is None
        assert await scene.texts() == acked
        assert ballast.release()
        await scene.hear("the disk is full", wake="")
        assert not ballast.take_aboard()
        remount(small_disk, "16m")
        await scene.hear("there is room again", wake="")
        assert ballast.take_aboard()
        assert await scene.texts() == [*acked, "the disk is full", "there is room again"]
        assert await store.verify() == []
        await store.close()
        store, scene = await staged(small_disk / "log.db")
        assert len(await scene.texts()) == len(acked) + 2
        await store.close()

    run(play())


# -- foreign locks


def test_a_foreign_lock_that_goes_costs_only_time(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")
        foreign = apsw.Connection(str(tmp_path / "log.db"))
        foreign.execute("begin immediate")
        waiting = asyncio.ensure_future(hear_many(scene, 0, 10))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        assert await scene.texts() == []
        foreign.execute("rollback")
        assert len(await waiting) == 10
        foreign.close()
        await store.close()

    run(play())


def test_a_foreign_lock_that_stays_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", patience=0.2)
        foreign = apsw.Connection(str(tmp_path / "log.db"))
        foreign.execute("begin immediate")
        with pytest.raises(StoreBusy) as refused:
            await scene.hear("not now")
        assert "another program" in refused.value.remedy
        assert store.broken is None
        foreign.execute("rollback")
        foreign.close()
        await scene.hear("now")
        assert await scene.texts() == ["now"]
        await store.close()

    run(play())


# -- neighbours


def test_one_poisoned_draft_in_a_batch_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")
        foreign = apsw.Connection(str(tmp_path / "log.db"))
        foreign.execute("begin immediate")  # so that all of these become one batch
        texts = ["one", "bad \ud800", "nul \x00", "\U0001f600" * 100_000, "two"]
        tasks = [asyncio.ensure_future(scene.hear(text, wake="")) for text in texts]
        bad_author = Draft(body=heard("x"), author="person:\udfff")
        tasks.append(asyncio.ensure_future(scene.commit(bad_author)))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        before = store.writer.batches
        foreign.execute("rollback")
        foreign.close()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, Exception) for one in done] == [False, True, False, False, False, True]
        assert await scene.texts() == [text for text in texts if not text.startswith("bad")]
        assert store.writer.batches - before <= 2
        await store.close()

    run(play())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_writer_that_fell(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")

        def fall(_: object) -> None:
            raise SystemExit

        with pytest.raises(StoreError, match="stopped"):
            await store.writer.write(fall)
        with pytest.raises(StoreError, match="stopped"):
            await scene.hear()
        assert is_broken(store)
        await store.close()

    run(play())


def test_after_closing_a_store_says_that_it_is_closed(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")
        waiting = [asyncio.ensure_future(scene.hear(f"m{n}")) for n in range(20)]
        await asyncio.sleep(0)
        await store.close()
        assert len(await asyncio.gather(*waiting)) == 20
        with pytest.raises(StoreError, match="closed"):
            await scene.hear()
        store, scene = await staged(tmp_path / "log.db")
        assert len(await scene.texts()) == 20
        await store.close()

    run(play())
