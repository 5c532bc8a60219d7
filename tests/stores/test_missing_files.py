"""A store whose files are deleted, moved or replaced acknowledges nothing more, and says why."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from everhold.errors import StoreMissing
from tests.stores.home import open_scenario, run_coroutine


def delete_home(home: Path) -> None:
    shutil.rmtree(home)


def move_home(home: Path) -> None:
    home.rename(home.with_name("elsewhere"))


def replace_home_by_copy(home: Path) -> None:
    move_home(home)
    shutil.copytree(home.with_name("elsewhere"), home)


def delete_file(name: str) -> Callable[[Path], None]:
    return lambda home: (home / name).unlink()


def replace_file(name: str) -> Callable[[Path], None]:
    def replace(home: Path) -> None:
        shutil.copy(home / name, home / "copy")
        (home / "copy").replace(home / name)

    return replace


def truncate_file(name: str) -> Callable[[Path], None]:
    """What `cp` over a file in use does first."""

    def truncate(home: Path) -> None:
        (home / name).write_bytes(b"")

    return truncate


FAULTS: dict[str, Callable[[Path], None]] = {
    "home deleted": delete_home,
    "home moved": move_home,
    "home replaced by its copy": replace_home_by_copy,
    **{f"{name} deleted": delete_file(name) for name in ("log.db", "log.db-wal", "log.db-shm", "lock")},
    **{f"{name} replaced": replace_file(name) for name in ("log.db", "log.db-wal", "lock")},
    "log.db-wal truncated": truncate_file("log.db-wal"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_acknowledged_after_the_files_changed(tmp_path: Path, fault: str) -> None:
    async def play() -> None:
        home = tmp_path / "home"
        home.mkdir(0o700)
        (home / "lock").touch()
        store, scenario = await open_scenario(home / "log.db", watched=(home / "lock",))
        for n in range(20):  # some commits run on the event loop, some on the thread
            await scenario.commit_heard(f"kept {n}")
        FAULTS[fault](home)
        for _ in range(3):
            with pytest.raises(StoreMissing, match=r"log\.db|lock") as caught:
                await scenario.commit_heard("lost")
            assert "backup" in caught.value.remedy
        assert isinstance(store.broken, StoreMissing)
        await store.close()

    run_coroutine(play())


@pytest.mark.parametrize("fault", FAULTS)
def test_an_idle_store_notices_it_when_asked(tmp_path: Path, fault: str) -> None:
    async def play() -> None:
        home = tmp_path / "home"
        home.mkdir(0o700)
        (home / "lock").touch()
        store, scenario = await open_scenario(home / "log.db", watched=(home / "lock",))
        await scenario.commit_heard("kept")
        assert store.find_fault() is None
        FAULTS[fault](home)
        assert isinstance(store.find_fault(), StoreMissing)
        await store.close()

    run_coroutine(play())


def test_what_was_acknowledged_is_in_the_moved_files(tmp_path: Path) -> None:
    """The writer neither checkpoints nor deletes anything at the old path, where another store may be by now."""

    async def play() -> None:
        home = tmp_path / "home"
        store, scenario = await open_scenario(home / "log.db")
        for n in range(20):
            await scenario.commit_heard(f"kept {n}")
        last = await store.last_pos()
        move_home(home)
        other, others = await open_scenario(home / "log.db")
        await others.commit_heard("of another store")
        assert store.find_fault() is not None
        await store.close()
        assert (home / "log.db-wal").stat().st_size > 0
        await others.commit_heard("more of another store")
        await other.close()
        moved, _ = await open_scenario(tmp_path / "elsewhere" / "log.db")
        assert await moved.last_pos() == last
        assert await moved.verify() == []
        await moved.close()

    run_coroutine(play())


def test_a_home_that_is_still_reached_by_a_link_goes_on(tmp_path: Path) -> None:
    """A home may be moved to another place of the same disk while a link leads to it."""

    async def play() -> None:
        home = tmp_path / "home"
        store, scenario = await open_scenario(home / "log.db")
        await scenario.commit_heard("before")
        move_home(home)
        home.symlink_to(tmp_path / "elsewhere")
        await scenario.commit_heard("after")
        assert store.find_fault() is None
        await store.close()

    run_coroutine(play())


def test_a_closed_store_misses_nothing(tmp_path: Path) -> None:
    """SQLite deletes the write-ahead log at the end."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard("before")
        await store.close()
        assert not (tmp_path / "log.db-wal").exists()
        assert store.find_fault() is None

    run_coroutine(play())
