"""Files on the disk are private to their owner, and contain nothing that was erased."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.stores.sqlite import DiskReserve
from tests.stores.home import open_scenario, open_store, run_coroutine


@pytest.fixture
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("careless")
def test_all_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    async def play() -> None:
        home = tmp_path / "home"
        store, scenario = await open_scenario(home / "log.db")
        await scenario.commit_heard()
        await store.make_backup(home / "backups" / "copy.db")
        DiskReserve(home / "disk-reserve", size_bytes=4096).allocate()
        assert home.stat().st_mode & 0o777 == 0o700
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in home.rglob("*") if path.is_file()}
        assert set(modes) == {"log.db", "log.db-wal", "log.db-shm", "log.db.mark", "copy.db", "disk-reserve"}
        assert set(modes.values()) == {"0o600"}
        await store.close()

    run_coroutine(play())


def test_a_database_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    run_coroutine(open_store(tmp_path / "log.db").close())
    (tmp_path / "log.db").chmod(0o644)
    run_coroutine(open_store(tmp_path / "log.db").close())
    assert (tmp_path / "log.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("inline", [False, True])
def test_no_file_contains_erased_text(tmp_path: Path, inline: bool) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db", inline=inline)
        for n in range(30):
            await scenario.commit_heard(f"filler {n} " + "f" * 300)
        secret = await scenario.commit_heard("my secret word is xyzzy-short")
        long = await scenario.commit_heard("xyzzy-long " * 5_000)
        await scenario.commit(blobs=(b"xyzzy-blob" * 5_000,))
        for n in range(30):
            await scenario.commit_heard(f"filler {n} " + "f" * 300)
        assert holding(tmp_path, b"xyzzy")
        await scenario.erase_entries(secret, long, drop_blobs=(hashlib.sha256(b"xyzzy-blob" * 5_000).hexdigest(),))
        assert holding(tmp_path, b"xyzzy") == []
        assert await store.verify() == []
        await store.close()
        assert holding(tmp_path, b"xyzzy") == []

    run_coroutine(play())


def holding(home: Path, what: bytes) -> list[str]:
    return [path.name for path in home.iterdir() if what in path.read_bytes()]


def test_the_reserve_is_allocated_and_released_once(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path / "disk-reserve", size_bytes=1 << 20)
    assert not reserve.is_allocated
    assert reserve.allocate()
    assert reserve.allocate()
    assert (tmp_path / "disk-reserve").stat().st_blocks * 512 >= 1 << 20
    assert reserve.release()
    assert not reserve.release()


def test_the_reserve_does_not_take_the_last_space(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    reserve = DiskReserve(tmp_path / "disk-reserve", size_bytes=disk.f_bavail * disk.f_frsize)
    assert not reserve.allocate()
    assert not (tmp_path / "disk-reserve").exists()


def test_several_stores_share_one_file_in_a_simulated_world(tmp_path: Path) -> None:
    async def play() -> None:
        first, scenario = await open_scenario(tmp_path / "log.db", inline=True, synchronous="OFF")
        second, other = await open_scenario(tmp_path / "log.db", inline=True, synchronous="OFF")
        for n in range(20):
            await (scenario, other)[n % 2].commit_heard(f"m{n}")
        assert await scenario.read_texts() == await other.read_texts() == [f"m{n}" for n in range(20)]
        claim = await scenario.claim_cursor(owner="first", at=1.0, lease=1.0)
        assert (await other.claim_cursor(owner="second", at=5.0)).fence == claim.fence + 1
        await first.close()
        await other.commit_heard("the other goes on")
        await second.close()

    run_coroutine(play())
