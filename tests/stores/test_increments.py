"""Incremental copies: a store that is lost completely comes back up to the last one, or to any point before it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from everhold.admin.backups import StoreBackups
from everhold.assembly.stores import plan_restore, restore_store
from everhold.core.entries import EntryDraft, Heard
from everhold.errors import NotFound, StoreDamaged
from everhold.infra.backup_files import find_chain, list_increments
from everhold.infra.home import Home
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom, StoreScenario, make_heard
from tests.stores.home import open_store, run_coroutine


class CopiedHome:
    """A home whose backups are in a directory of their own, as on another disk."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path / "home").create()
        self.disk = path / "disk"
        self.disk.mkdir()
        self.store: SqliteStore = open_store(self.home.store)
        self.scenario = StoreScenario(self.store)
        self.now = 1_000.0
        self.backups = StoreBackups(self.disk, files=self.store, now=lambda: self.now)

    async def write(self, *texts: str, session: str = "s", **more: Any) -> None:
        for text in texts:
            self.now += 1
            draft = EntryDraft(body=make_heard(text), author="person:ada", dedup=f"at {self.now}")
            await self.scenario.commit(draft, session=session, at=self.now, **more)

    async def lose_disk(self) -> None:
        await self.store.close()
        shutil.rmtree(self.home.path)
        self.home.create()

    def restore(self, **how: str) -> int:
        plan = plan_restore(self.home, directory=self.disk, **how)
        return restore_store(self.home, plan, now=2e9, chance=SeededRandom()).pos

    async def read_texts(self) -> list[str]:
        store = open_store(self.home.store)
        found = [entry.body.text for entry in await store.read_feed(limit=1_000) if isinstance(entry.body, Heard)]
        assert await store.verify() == []
        await store.close()
        return found


def test_a_lost_disk_loses_only_what_came_after_the_last_increment(tmp_path: Path) -> None:
    async def play() -> None:
        copied = CopiedHome(tmp_path)
        await copied.scenario.open_session("s")
        await copied.write("one", "two")
        await copied.backups.make_backup()
        await copied.write("three", blobs=(b"a file",))
        assert await copied.backups.make_increment() is not None
        assert await copied.backups.make_increment() is None, "nothing was committed since"
        await copied.scenario.open_session("new")
        await copied.write("four", session="new")
        await copied.write("five")
        assert await copied.backups.make_increment() is not None
        await copied.write("lost")
        await copied.lose_disk()
        copied.restore()
        assert await copied.read_texts() == ["one", "two", "three", "four", "five"]
        assert apsw.Connection(str(copied.home.store)).execute("select data from blobs").get == b"a file"

    run_coroutine(play())


def test_a_point_in_an_increment_can_be_restored(tmp_path: Path) -> None:
    async def play() -> None:
        copied = CopiedHome(tmp_path)
        await copied.scenario.open_session("s")
        await copied.write("one")
        await copied.backups.make_backup()
        places = {}
        for text in ("two", "three", "four", "five"):
            await copied.write(text)
            places[text] = await copied.store.last_pos()
            if text in ("three", "five"):
                await copied.backups.make_increment()
        last = places["five"]
        await copied.lose_disk()
        with pytest.raises(NotFound):
            copied.restore(at=str(last + 1))
        copied.restore(at=str(places["four"]))
        assert await copied.read_texts() == ["one", "two", "three", "four"]
        copied.home.store.unlink()
        copied.restore(at="1970-01-01T00:16:42+00:00")
        assert await copied.read_texts() == ["one", "two"], "at 1002 s"

    run_coroutine(play())


def test_what_was_delivered_before_the_increment_is_not_due_again(tmp_path: Path) -> None:
    async def play() -> None:
        copied = CopiedHome(tmp_path)
        scenario = copied.scenario
        await scenario.open_session("s")
        await copied.write("one")
        await copied.backups.make_backup()
        await scenario.commit_heard("two", wake="platform:fake:main")
        claim = await scenario.claim_cursor("platform:fake:main")
        last = (await copied.store.get_session("s")).last_seq
        await scenario.update_cursor(claim, processed_seq=last, idle_at=last, release=True)
        await copied.backups.make_increment()
        await copied.lose_disk()
        copied.restore()
        store = open_store(copied.home.store)
        cursor = await store.get_cursor("platform:fake:main", "s")
        assert cursor is not None
        assert (cursor.processed_seq, cursor.since) == (last, None)
        await store.close()

    run_coroutine(play())


def test_an_erasure_in_an_increment_erases_what_the_copy_has(tmp_path: Path) -> None:
    async def play() -> None:
        copied = CopiedHome(tmp_path)
        await copied.scenario.open_session("s")
        await copied.write("secret", "kept")
        await copied.backups.make_backup()
        await copied.scenario.erase_entries(1)
        await copied.backups.make_increment()
        await copied.lose_disk()
        copied.restore()
        assert await copied.read_texts() == ["kept"]
        assert b"secret" not in copied.home.store.read_bytes()

    run_coroutine(play())


def test_a_damaged_increment_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    async def play() -> None:
        copied = CopiedHome(tmp_path)
        await copied.scenario.open_session("s")
        await copied.write("one")
        await copied.backups.make_backup()
        await copied.write("two " + "m" * 500)
        made = await copied.backups.make_increment()
        assert made is not None
        await copied.lose_disk()
        made.path.write_bytes(made.path.read_bytes().replace(b"two mm", b"two XX"))
        with pytest.raises(StoreDamaged, match="wrong digests"):
            copied.restore()
        assert not copied.home.store.exists()
        made.path.unlink()
        copied.restore()
        assert await copied.read_texts() == ["one"]

    run_coroutine(play())


def test_increments_are_removed_with_the_backup_that_they_continue(tmp_path: Path) -> None:
    async def play() -> None:
        copied = CopiedHome(tmp_path)
        await copied.scenario.open_session("s")
        for n in range(4):
            await copied.write(f"m{n}")
            await copied.backups.make_backup()
            copied.now += 100
            await copied.write(f"more {n}")
            await copied.backups.make_increment()
        assert len(list_increments(copied.disk)) == 4
        copied.backups.prune(2)
        left = list_increments(copied.disk)
        assert len(left) == 2
        assert [len(find_chain(list_increments(copied.disk), it.after_pos)) for it in left] == [1, 1]
        await copied.store.close()

    run_coroutine(play())


def test_a_message_that_was_erased_after_its_turn_does_not_stop_a_restore(tmp_path: Path) -> None:
    async def play() -> None:
        copied = CopiedHome(tmp_path)
        scenario = copied.scenario
        await scenario.open_session("s")
        op = await scenario.begin_operation(await scenario.commit_heard("secret", wake=""))
        await scenario.end_operation(op)
        await copied.backups.make_backup()
        await scenario.erase_entries(1)
        waiting = await scenario.commit_heard("erased before any turn took it")
        await scenario.erase_entries(waiting)
        await copied.write("kept")
        await copied.backups.make_increment()
        await copied.lose_disk()
        copied.restore()
        assert await copied.read_texts() == ["kept"]

    run_coroutine(play())
