"""What lies on the disk: for its owner's eyes only, and without what was erased."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.stores.sqlite import Ballast
from tests.stores.home import opened, run, staged


@pytest.fixture
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("careless")
def test_all_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    async def play() -> None:
        home = tmp_path / "home"
        store, scene = await staged(home / "log.db")
        await scene.hear()
        await store.backup(home / "backups" / "copy.db")
        Ballast(home / "ballast", size=4096).take_aboard()
        assert home.stat().st_mode & 0o777 == 0o700
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in home.rglob("*") if path.is_file()}
        assert set(modes) == {"log.db", "log.db-wal", "log.db-shm", "log.db.mark", "copy.db", "ballast"}
        assert set(modes.values()) == {"0o600"}
        await store.close()

    run(play())


def test_a_database_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    run(opened(tmp_path / "log.db").close())
    (tmp_path / "log.db").chmod(0o644)
    run(opened(tmp_path / "log.db").close())
    assert (tmp_path / "log.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("inline", [False, True])
def test_nothing_on_the_disk_holds_what_was_erased(tmp_path: Path, inline: bool) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", inline=inline)
        for n in range(30):
            await scene.hear(f"filler {n} " + "f" * 300)
        secret = await scene.hear("my secret word is xyzzy-short")
        long = await scene.hear("xyzzy-long " * 5_000)
        await scene.commit(blobs=(b"xyzzy-blob" * 5_000,))
        for n in range(30):
            await scene.hear(f"filler {n} " + "f" * 300)
        assert holding(tmp_path, b"xyzzy")
        await scene.erase(secret, long, drop_blobs=(hashlib.sha256(b"xyzzy-blob" * 5_000).hexdigest(),))
        assert holding(tmp_path, b"xyzzy") == []
        assert await store.verify() == []
        await store.close()
        assert holding(tmp_path, b"xyzzy") == []

    run(play())


def holding(home: Path, what: bytes) -> list[str]:
    return [path.name for path in home.iterdir() if what in path.read_bytes()]


def test_ballast_is_really_allocated_and_given_back_once(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "ballast", size=1 << 20)
    assert not ballast.aboard
    assert ballast.take_aboard()
    assert ballast.take_aboard()
    assert (tmp_path / "ballast").stat().st_blocks * 512 >= 1 << 20
    assert ballast.release()
    assert not ballast.release()


def test_ballast_never_takes_the_last_of_the_room(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    ballast = Ballast(tmp_path / "ballast", size=disk.f_bavail * disk.f_frsize)
    assert not ballast.take_aboard()
    assert not (tmp_path / "ballast").exists()


def test_several_stores_share_one_file_in_a_simulated_world(tmp_path: Path) -> None:
    async def play() -> None:
        first, scene = await staged(tmp_path / "log.db", inline=True, synchronous="OFF")
        second, other = await staged(tmp_path / "log.db", inline=True, synchronous="OFF")
        for n in range(20):
            await (scene, other)[n % 2].hear(f"m{n}")
        assert await scene.texts() == await other.texts() == [f"m{n}" for n in range(20)]
        claim = await scene.claim(owner="first", at=1.0, lease=1.0)
        assert (await other.claim(owner="second", at=5.0)).fence == claim.fence + 1
        await first.close()
        await other.hear("the other goes on")
        await second.close()

    run(play())
