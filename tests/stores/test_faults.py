"""A failing, full or busy disk: nobody is told that something is kept when it is not."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest

from everhold.app import GatewayApp, SystemClock, get_local_user, load_home_settings
from everhold.core.entries import ChatLocation, EntryDraft, EntryKind
from everhold.errors import StoreBusy, StoreError, StoreFull, Transient
from everhold.infra.home import Home
from everhold.ports.platform import AcceptResult, IncomingMessage, OutgoingMessage
from everhold.stores.sqlite import DiskReserve, SqliteStore
from everhold.stores.sqlite.disk_guard import DiskGuardedStore
from everhold.stores.sqlite.errors import is_fatal, translate_error
from everhold.telemetry.logs import open_log
from everhold.testing.contracts.store_scenario import StoreScenario, make_heard
from tests.stores.faulty_disk import FaultyVFS
from tests.stores.home import list_writing_methods, open_scenario, open_store, run_coroutine
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture
def vfs() -> Iterator[FaultyVFS]:
    faulty = FaultyVFS()
    yield faulty
    faulty.unregister()


async def hear_many(scene: StoreScenario, first: int, count: int, *, size: int = 1) -> list[str]:
    """Commit messages all at once; the texts of those that were acknowledged."""

    async def one(n: int) -> str:
        text = f"m{n} " + "x" * size
        await scene.commit_heard(text, wake="", dedup=f"k{n}")
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
        store, scene = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        acked = await hear_many(scene, 0, 20)
        assert len(acked) == 20
        assert not is_broken(store)
        vfs.disk.fsync_fails = True
        assert await hear_many(scene, 20, 20) == []
        assert is_broken(store)
        vfs.disk.fsync_fails = False
        with pytest.raises(StoreError, match="disk"):
            await scene.commit_heard("a later success would prove nothing")
        with pytest.raises(StoreError):
            await store.claim_cursors(owner="me", at=1.0, lease=1.0, limit=1)
        assert set(acked) <= set(await scene.read_texts())
        await store.close()

        store, scene = await open_scenario(tmp_path / "log.db")
        assert set(acked) <= set(await scene.read_texts())
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_a_failed_fsync_of_the_database_itself_is_not_overlooked(tmp_path: Path, vfs: FaultyVFS) -> None:
    """SQLite's own checkpoints swallow it; then the log would be emptied although the database never got its pages."""

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.only = "log.db"
        vfs.disk.fsync_fails = True
        acked: list[str] = []
        for n in range(40):
            acked += await hear_many(scene, n, 1, size=200_000)
            if store.broken is not None:
                break
        assert store.broken is not None
        await store.close()

        store, scene = await open_scenario(tmp_path / "log.db")
        assert set(acked) <= set(await scene.read_texts())
        await store.close()

    run_coroutine(play())


def test_a_disk_that_cannot_be_read_is_said_to_be_so(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        await hear_many(scene, 0, 1, size=100_000)
        await store.close()
        store = open_store(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.reads_fail = True
        with pytest.raises(StoreError, match="disk") as caught:
            await store.list_entries("s")
        assert "the system's log" in caught.value.remedy
        vfs.disk.reads_fail = False
        assert len(await store.list_entries("s")) == 1
        await store.close()

    run_coroutine(play())


# -- no room


def test_a_full_disk_keeps_what_was_acknowledged_and_recovers(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        acked = await hear_many(scene, 0, 10)
        vfs.disk.free_bytes = 200_000
        refused = 0
        for n in range(10, 40):
            try:
                await scene.commit_heard(f"m{n} " + "x" * 20_000, wake="")
                acked.append(f"m{n} " + "x" * 20_000)
            except StoreFull as error:
                refused += "space" in error.remedy
        assert 0 < refused < 30
        assert await scene.read_texts() == acked
        assert store.broken is None
        vfs.disk.free_bytes = None
        acked += await hear_many(scene, 40, 10)
        assert await scene.read_texts() == acked
        assert await store.verify() == []
        await store.close()
        store, scene = await open_scenario(tmp_path / "log.db")
        assert await scene.read_texts() == acked
        await store.close()

    run_coroutine(play())


def test_a_full_disk_refuses_a_whole_batch_alike(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.free_bytes = 0
        assert await hear_many(scene, 0, 50, size=5_000) == []
        vfs.disk.free_bytes = None
        assert len(await hear_many(scene, 0, 50, size=5_000)) == 50
        await store.close()

    run_coroutine(play())


def test_a_disk_that_fills_up_in_the_middle_of_a_batch_is_said_to_be_full(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.free_bytes = 1_000_000
        large = bytes(40_000_000)  # more than the cache holds: it goes to the disk before the commit does
        changes = [scene.commit_heard("before"), scene.commit(blobs=(large,)), scene.commit_heard("after")]
        done = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(one) for one in done] == [StoreFull] * 3
        vfs.disk.free_bytes = None
        await scene.commit_heard("there is room again")
        assert await scene.read_texts() == ["there is room again"]
        await store.close()

    run_coroutine(play())


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
        store, scene = await open_scenario(small_disk / "log.db")
        ballast = DiskReserve(small_disk / "ballast", size_bytes=500_000)
        assert ballast.allocate()
        acked: list[str] = []
        refused = 0
        for n in range(200):
            try:
                await scene.commit_heard(f"m{n} " + "x" * 20_000, wake="")
                acked.append(f"m{n} " + "x" * 20_000)
            except StoreFull:
                refused += 1
        assert acked
        assert refused
        assert store.broken is None
        assert await scene.read_texts() == acked
        assert ballast.release()
        await scene.commit_heard("the disk is full", wake="")
        assert not ballast.allocate()
        remount(small_disk, "16m")
        await scene.commit_heard("there is room again", wake="")
        assert ballast.allocate()
        assert await scene.read_texts() == [*acked, "the disk is full", "there is room again"]
        assert await store.verify() == []
        await store.close()
        store, scene = await open_scenario(small_disk / "log.db")
        assert len(await scene.read_texts()) == len(acked) + 2
        await store.close()

    run_coroutine(play())


def test_whoever_starts_on_a_full_disk_is_told_so_and_starts_once_there_is_room(small_disk: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(small_disk / "log.db")
        await scene.commit_heard("kept")
        await store.close()
        filler = small_disk / "filler"
        fill(filler)
        with pytest.raises(StoreFull, match="its disk is full"):
            open_store(small_disk / "log.db")
        filler.unlink()
        store, scene = await open_scenario(small_disk / "log.db")
        assert await scene.read_texts() == ["kept"]
        await store.close()

    run_coroutine(play())


def test_an_index_that_cannot_grow_is_a_full_disk_and_not_a_broken_one() -> None:
    error = apsw.IOError("disk I/O error")
    assert is_fatal(error)
    error.extendedresult = apsw.SQLITE_IOERR_SHMSIZE  # type: ignore[attr-defined]  # apsw gives it to what SQLite raises
    assert not is_fatal(error)
    assert isinstance(translate_error(error, Path("log.db")), StoreFull)


def fill(filler: Path) -> None:
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


class GatewayOnDisk:
    """The whole house on a disk that can be filled up."""

    def __init__(self, disk: Path) -> None:
        self.filler = disk / "filler"
        self.said = io.StringIO()
        self.home = Home(disk / "home").create()
        log = open_log(clock=SystemClock(), stream=self.said)
        self.app = GatewayApp(self.home, load_home_settings(self.home, environ={}), log=log, environ={})
        self.kept: list[str] = []

    def fill(self) -> None:
        fill(self.filler)

    async def hear(self, size: int = 20_000) -> AcceptResult:
        text = f"m{len(self.kept)} " + "x" * size
        origin = ChatLocation(platform="terminal", account="", chat="c", message=str(len(self.kept)))
        # nobody has to answer a notice
        verdict = await self.app.accept(IncomingMessage(origin=origin, text=text, sender=get_local_user(), notice=True))
        self.kept.append(text)
        return verdict

    def lines(self, event: str) -> int:
        return self.said.getvalue().count(event)


async def write_until_full(write: Callable[[], Awaitable[object]]) -> StoreFull:
    while True:
        try:
            await write()
        except StoreFull as error:
            return error


@asynccontextmanager
async def run_gateway_on_disk(disk: Path) -> AsyncIterator[GatewayOnDisk]:
    remount(disk, "24m")
    house = GatewayOnDisk(disk)
    await house.app.start(listen=False)
    assert house.app.disk_guard.reserve.is_allocated
    try:
        yield house
    finally:
        await house.app.stop(seconds=0)


def test_a_full_disk_takes_nothing_in_until_it_has_room_for_the_ballast_again(small_disk: Path) -> None:
    async def play() -> None:
        async with run_gateway_on_disk(small_disk) as house:
            app, ballast = house.app, house.app.disk_guard.reserve
            session = (await house.hear(1)).session
            house.fill()
            assert "free" in (await write_until_full(house.hear)).remedy
            kept = len(house.kept)
            assert (app.describe()["store"], house.lines("store.full"), ballast.is_allocated) == (
                "the disk is full",
                1,
                False,
            )
            # what the ballast gave is for those at work, and not for the next who knocks
            await app.session_admin.add_note(session, "a last word", by="person:ada")
            for _ in range(3):
                with pytest.raises(StoreFull, match="is full"):
                    await house.hear(1)
            assert (len(house.kept), app.describe()["store"], house.lines("store.full")) == (
                kept,
                "the disk is full",
                1,
            )

            house.filler.unlink()
            await wait_until(lambda: not app.disk_guard.is_full)
            assert (app.describe()["store"], house.lines("store.space_recovered"), ballast.is_allocated) == (
                "",
                1,
                True,
            )
            assert (await house.hear()).outcome == "accepted"

            house.fill()  # there is a last word the next time, too
            await write_until_full(house.hear)
            await app.session_admin.add_note(session, "another", by="person:ada")
            heard = await app.store.list_entries(session, kinds=(EntryKind.HEARD,))
            assert len(heard) == len(house.kept)
            assert await app.store.verify() == []

    run_coroutine(play())


def test_whoever_finds_the_disk_full_says_so_for_everybody(small_disk: Path) -> None:
    async def play() -> None:
        async with run_gateway_on_disk(small_disk) as house:
            app = house.app
            session = (await house.hear(1)).session
            house.fill()
            await write_until_full(lambda: app.session_admin.add_note(session, "x" * 20_000, by="person:ada"))
            with pytest.raises(StoreFull):
                await house.hear(1)
            assert not app.disk_guard.reserve.is_allocated

    run_coroutine(play())


def test_whichever_way_a_commit_is_made_it_tells_of_a_full_disk() -> None:
    assert list_writing_methods() <= vars(DiskGuardedStore).keys()


def test_what_one_agent_says_to_another_waits_for_room_like_any_outage(small_disk: Path) -> None:
    async def play() -> None:
        async with run_gateway_on_disk(small_disk) as house:
            house.app.disk_guard.report_full()
            said = OutgoingMessage(
                key="k", to=ChatLocation(platform="agent", account="main", chat="main"), text="hello"
            )
            with pytest.raises(Transient, match="is full"):
                await house.app.platforms["agent", "main"].send(said)

    run_coroutine(play())


def test_who_fell_for_want_of_room_goes_on_as_soon_as_there_is_some(small_disk: Path) -> None:
    async def play() -> None:
        async with run_gateway_on_disk(small_disk) as house:
            house.fill()

            async def listen() -> None:
                while True:
                    await house.hear()

            listening = asyncio.ensure_future(house.app.keep_running("listen", listen))
            await wait_until(lambda: house.lines("store.failed") > 0)
            kept = len(house.kept)
            house.filler.unlink()
            await wait_until(lambda: len(house.kept) > kept)
            assert house.lines("what=listen") == 1, "and does not try in vain meanwhile, more and more rarely"
            listening.cancel()

    run_coroutine(play())


def test_a_small_disk_has_a_small_ballast(small_disk: Path) -> None:
    ballast = DiskReserve(small_disk / "ballast")
    assert 0 < ballast.size_bytes < 1 << 20
    assert ballast.allocate()


# -- foreign locks


def test_a_foreign_lock_that_goes_costs_only_time(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", patience=LIMIT_SECONDS)
        foreign = apsw.Connection(str(tmp_path / "log.db"))
        foreign.execute("begin immediate")
        waiting = asyncio.ensure_future(hear_many(scene, 0, 10))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        assert await scene.read_texts() == []
        foreign.execute("rollback")
        assert len(await waiting) == 10
        foreign.close()
        await store.close()

    run_coroutine(play())


def test_a_foreign_lock_that_stays_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", patience=0.2)
        foreign = apsw.Connection(str(tmp_path / "log.db"))
        foreign.execute("begin immediate")
        with pytest.raises(StoreBusy) as refused:
            await scene.commit_heard("not now")
        assert "another program" in refused.value.remedy
        assert store.broken is None
        foreign.execute("rollback")
        foreign.close()
        await scene.commit_heard("now")
        assert await scene.read_texts() == ["now"]
        await store.close()

    run_coroutine(play())


# -- neighbours


def test_one_poisoned_draft_in_a_batch_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db", patience=LIMIT_SECONDS)
        foreign = apsw.Connection(str(tmp_path / "log.db"))
        foreign.execute("begin immediate")  # so that all of these become one batch
        texts = ["one", "bad \ud800", "nul \x00", "\U0001f600" * 100_000, "two"]
        tasks = [asyncio.ensure_future(scene.commit_heard(text, wake="")) for text in texts]
        bad_author = EntryDraft(body=make_heard("x"), author="person:\udfff")
        tasks.append(asyncio.ensure_future(scene.commit(bad_author)))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        before = store.writer.batches
        foreign.execute("rollback")
        foreign.close()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, Exception) for one in done] == [False, True, False, False, False, True]
        assert await scene.read_texts() == [text for text in texts if not text.startswith("bad")]
        assert store.writer.batches - before <= 2
        await store.close()

    run_coroutine(play())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_writer_that_fell(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")

        def fall(_: object) -> None:
            raise SystemExit

        with pytest.raises(StoreError, match="stopped"):
            await store.writer.write(fall)
        with pytest.raises(StoreError, match="stopped"):
            await scene.commit_heard()
        assert is_broken(store)
        await store.close()

    run_coroutine(play())


def test_after_closing_a_store_says_that_it_is_closed(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        waiting = [asyncio.ensure_future(scene.commit_heard(f"m{n}")) for n in range(20)]
        await asyncio.sleep(0)
        await store.close()
        assert len(await asyncio.gather(*waiting)) == 20
        with pytest.raises(StoreError, match="closed"):
            await scene.commit_heard()
        store, scene = await open_scenario(tmp_path / "log.db")
        assert len(await scene.read_texts()) == 20
        await store.close()

    run_coroutine(play())
