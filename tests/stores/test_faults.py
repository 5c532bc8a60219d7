"""A failing, full or busy disk: no commit is acknowledged that was not stored."""

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


async def hear_many(scenario: StoreScenario, first: int, count: int, *, size: int = 1) -> list[str]:
    """Commit messages all at once. Return the texts of the acknowledged ones."""

    async def one(n: int) -> str:
        text = f"m{n} " + "x" * size
        await scenario.commit_heard(text, wake="", dedup=f"k{n}")
        return text

    done = await asyncio.gather(*[one(n) for n in range(first, first + count)], return_exceptions=True)
    unexpected = [one for one in done if isinstance(one, BaseException) and not isinstance(one, StoreError)]
    assert unexpected == []
    return [one for one in done if isinstance(one, str)]


def is_broken(store: SqliteStore) -> bool:
    return store.broken is not None


# -- fsync


def test_after_a_failed_fsync_nothing_is_acknowledged(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        acked = await hear_many(scenario, 0, 20)
        assert len(acked) == 20
        assert not is_broken(store)
        vfs.disk.fsync_fails = True
        assert await hear_many(scenario, 20, 20) == []
        assert is_broken(store)
        vfs.disk.fsync_fails = False
        with pytest.raises(StoreError, match="disk"):
            await scenario.commit_heard("a later success would prove nothing")
        with pytest.raises(StoreError):
            await store.claim_cursors(owner="me", lease=1.0, limit=1)
        assert set(acked) <= set(await scenario.read_texts())
        await store.close()

        store, scenario = await open_scenario(tmp_path / "log.db")
        assert set(acked) <= set(await scenario.read_texts())
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_a_failed_fsync_of_the_database_itself_is_not_overlooked(tmp_path: Path, vfs: FaultyVFS) -> None:
    """SQLite's own checkpoints ignore it. Then the log would be emptied although its pages are not in the database."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.only = "log.db"
        vfs.disk.fsync_fails = True
        acked: list[str] = []
        for n in range(40):
            acked += await hear_many(scenario, n, 1, size=200_000)
            if store.broken is not None:
                break
        assert store.broken is not None
        await store.close()

        store, scenario = await open_scenario(tmp_path / "log.db")
        assert set(acked) <= set(await scenario.read_texts())
        await store.close()

    run_coroutine(play())


def test_a_disk_that_cannot_be_read_is_reported(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        await hear_many(scenario, 0, 1, size=100_000)
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


# -- full disk


def test_a_full_disk_keeps_acknowledged_commits_and_recovers(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        acked = await hear_many(scenario, 0, 10)
        vfs.disk.free_bytes = 200_000
        refused = 0
        for n in range(10, 40):
            try:
                await scenario.commit_heard(f"m{n} " + "x" * 20_000, wake="")
                acked.append(f"m{n} " + "x" * 20_000)
            except StoreFull as error:
                refused += "space" in error.remedy
        assert 0 < refused < 30
        assert await scenario.read_texts() == acked
        assert store.broken is None
        vfs.disk.free_bytes = None
        acked += await hear_many(scenario, 40, 10)
        assert await scenario.read_texts() == acked
        assert await store.verify() == []
        await store.close()
        store, scenario = await open_scenario(tmp_path / "log.db")
        assert await scenario.read_texts() == acked
        await store.close()

    run_coroutine(play())


def test_a_full_disk_refuses_every_change_of_a_batch(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.free_bytes = 0
        assert await hear_many(scenario, 0, 50, size=5_000) == []
        vfs.disk.free_bytes = None
        assert len(await hear_many(scenario, 0, 50, size=5_000)) == 50
        await store.close()

    run_coroutine(play())


def test_a_disk_that_fills_up_during_a_batch_is_reported_as_full(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
        vfs.disk.free_bytes = 1_000_000
        large = bytes(40_000_000)  # more than fits into the cache, so it is written before the commit
        changes = [scenario.commit_heard("before"), scenario.commit(blobs=(large,)), scenario.commit_heard("after")]
        done = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(one) for one in done] == [StoreFull] * 3
        vfs.disk.free_bytes = None
        await scenario.commit_heard("there is space again")
        assert await scenario.read_texts() == ["there is space again"]
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


def test_on_a_full_disk_releasing_the_reserve_makes_space_for_commits(small_disk: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(small_disk / "log.db")
        reserve = DiskReserve(small_disk / "disk-reserve", size_bytes=500_000)
        assert reserve.allocate()
        acked: list[str] = []
        refused = 0
        for n in range(200):
            try:
                await scenario.commit_heard(f"m{n} " + "x" * 20_000, wake="")
                acked.append(f"m{n} " + "x" * 20_000)
            except StoreFull:
                refused += 1
        assert acked
        assert refused
        assert store.broken is None
        assert await scenario.read_texts() == acked
        assert reserve.release()
        await scenario.commit_heard("the disk is full", wake="")
        assert not reserve.allocate()
        remount(small_disk, "16m")
        await scenario.commit_heard("there is space again", wake="")
        assert reserve.allocate()
        assert await scenario.read_texts() == [*acked, "the disk is full", "there is space again"]
        assert await store.verify() == []
        await store.close()
        store, scenario = await open_scenario(small_disk / "log.db")
        assert len(await scenario.read_texts()) == len(acked) + 2
        await store.close()

    run_coroutine(play())


def test_opening_a_store_on_a_full_disk_fails_until_there_is_space(small_disk: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(small_disk / "log.db")
        await scenario.commit_heard("kept")
        await store.close()
        filler = small_disk / "filler"
        fill(filler)
        with pytest.raises(StoreFull, match="its disk is full"):
            open_store(small_disk / "log.db")
        filler.unlink()
        store, scenario = await open_scenario(small_disk / "log.db")
        assert await scenario.read_texts() == ["kept"]
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
    """A complete gateway on a disk that can be filled up."""

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
        # a notice needs no answer
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
    gateway = GatewayOnDisk(disk)
    await gateway.app.start(listen=False)
    assert gateway.app.disk_guard.reserve.is_allocated
    try:
        yield gateway
    finally:
        await gateway.app.stop(seconds=0)


def test_nothing_is_accepted_on_a_full_disk_until_the_reserve_is_allocated_again(small_disk: Path) -> None:
    async def play() -> None:
        async with run_gateway_on_disk(small_disk) as gateway:
            app, reserve = gateway.app, gateway.app.disk_guard.reserve
            session = (await gateway.hear(1)).session
            gateway.fill()
            assert "free" in (await write_until_full(gateway.hear)).remedy
            kept = len(gateway.kept)
            assert (app.describe()["store"], gateway.lines("store.full"), reserve.is_allocated) == (
                "the disk is full",
                1,
                False,
            )
            # the space of the reserve is for work in progress, not for new messages
            await app.session_admin.add_note(session, "a last word", by="person:ada")
            for _ in range(3):
                with pytest.raises(StoreFull, match="is full"):
                    await gateway.hear(1)
            assert (len(gateway.kept), app.describe()["store"], gateway.lines("store.full")) == (
                kept,
                "the disk is full",
                1,
            )

            gateway.filler.unlink()
            await wait_until(lambda: not app.disk_guard.is_full)
            assert (app.describe()["store"], gateway.lines("store.space_recovered"), reserve.is_allocated) == (
                "",
                1,
                True,
            )
            assert (await gateway.hear()).outcome == "accepted"

            gateway.fill()  # the reserve works a second time
            await write_until_full(gateway.hear)
            await app.session_admin.add_note(session, "another", by="person:ada")
            heard = await app.store.list_entries(session, kinds=(EntryKind.HEARD,))
            assert len(heard) == len(gateway.kept)
            assert await app.store.verify() == []

    run_coroutine(play())


def test_a_commit_that_finds_the_disk_full_reports_it_to_the_guard(small_disk: Path) -> None:
    async def play() -> None:
        async with run_gateway_on_disk(small_disk) as gateway:
            app = gateway.app
            session = (await gateway.hear(1)).session
            gateway.fill()
            await write_until_full(lambda: app.session_admin.add_note(session, "x" * 20_000, by="person:ada"))
            with pytest.raises(StoreFull):
                await gateway.hear(1)
            assert not app.disk_guard.reserve.is_allocated

    run_coroutine(play())


def test_every_writing_method_reports_a_full_disk() -> None:
    assert list_writing_methods() <= vars(DiskGuardedStore).keys()


def test_a_message_between_agents_waits_for_disk_space(small_disk: Path) -> None:
    async def play() -> None:
        async with run_gateway_on_disk(small_disk) as gateway:
            gateway.app.disk_guard.report_full()
            said = OutgoingMessage(
                key="k", to=ChatLocation(platform="agent", account="main", chat="main"), text="hello"
            )
            with pytest.raises(Transient, match="is full"):
                await gateway.app.platforms["agent", "main"].send(said)

    run_coroutine(play())


def test_a_task_that_failed_on_a_full_disk_continues_as_soon_as_there_is_space(small_disk: Path) -> None:
    async def play() -> None:
        async with run_gateway_on_disk(small_disk) as gateway:
            gateway.fill()

            async def listen() -> None:
                while True:
                    await gateway.hear()

            listening = asyncio.ensure_future(gateway.app.keep_running("listen", listen))
            await wait_until(lambda: gateway.lines("store.failed") > 0)
            kept = len(gateway.kept)
            gateway.filler.unlink()
            await wait_until(lambda: len(gateway.kept) > kept)
            assert gateway.lines("what=listen") == 1, "it waits for space instead of retrying with growing delays"
            listening.cancel()

    run_coroutine(play())


def test_a_small_disk_has_a_small_reserve(small_disk: Path) -> None:
    reserve = DiskReserve(small_disk / "disk-reserve")
    assert 0 < reserve.size_bytes < 1 << 20
    assert reserve.allocate()


# -- foreign locks


def test_a_foreign_lock_that_is_released_only_delays(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", patience=LIMIT_SECONDS)
        foreign = apsw.Connection(str(tmp_path / "log.db"))
        foreign.execute("begin immediate")
        waiting = asyncio.ensure_future(hear_many(scenario, 0, 10))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        assert await scenario.read_texts() == []
        foreign.execute("rollback")
        assert len(await waiting) == 10
        foreign.close()
        await store.close()

    run_coroutine(play())


def test_a_foreign_lock_that_stays_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", patience=0.2)
        foreign = apsw.Connection(str(tmp_path / "log.db"))
        foreign.execute("begin immediate")
        with pytest.raises(StoreBusy) as refused:
            await scenario.commit_heard("not now")
        assert "another program" in refused.value.remedy
        assert store.broken is None
        foreign.execute("rollback")
        foreign.close()
        await scenario.commit_heard("now")
        assert await scenario.read_texts() == ["now"]
        await store.close()

    run_coroutine(play())


# -- neighbours


def test_an_invalid_entry_does_not_affect_the_rest_of_its_batch(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", patience=LIMIT_SECONDS)
        foreign = apsw.Connection(str(tmp_path / "log.db"))
        foreign.execute("begin immediate")  # so that all of these become one batch
        texts = ["one", "bad \ud800", "nul \x00", "\U0001f600" * 100_000, "two"]
        tasks = [asyncio.ensure_future(scenario.commit_heard(text, wake="")) for text in texts]
        bad_author = EntryDraft(body=make_heard("x"), author="person:\udfff")
        tasks.append(asyncio.ensure_future(scenario.commit(bad_author)))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        before = store.writer.batches
        foreign.execute("rollback")
        foreign.close()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, Exception) for one in done] == [False, True, False, False, False, True]
        assert await scenario.read_texts() == [text for text in texts if not text.startswith("bad")]
        assert store.writer.batches - before <= 2
        await store.close()

    run_coroutine(play())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_caller_waits_for_a_crashed_writer(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")

        def fall(_: object) -> None:
            raise SystemExit

        with pytest.raises(StoreError, match="stopped"):
            await store.writer.write(fall)
        with pytest.raises(StoreError, match="stopped"):
            await scenario.commit_heard()
        assert is_broken(store)
        await store.close()

    run_coroutine(play())


def test_a_closed_store_raises_a_clear_error(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        waiting = [asyncio.ensure_future(scenario.commit_heard(f"m{n}")) for n in range(20)]
        await asyncio.sleep(0)
        await store.close()
        assert len(await asyncio.gather(*waiting)) == 20
        with pytest.raises(StoreError, match="closed"):
            await scenario.commit_heard()
        store, scenario = await open_scenario(tmp_path / "log.db")
        assert len(await scenario.read_texts()) == 20
        await store.close()

    run_coroutine(play())
