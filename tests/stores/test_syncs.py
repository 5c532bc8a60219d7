"""Which commits wait for the disk, and that the event loop never does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from everhold.core.entries import Draft
from everhold.errors import Conflict
from everhold.stores.sqlite import mark
from everhold.testing.contracts.scene import heard, text_of
from tests.stores.faulty import FaultyVFS
from tests.stores.home import crash_image, run, staged


@pytest.fixture
def vfs() -> Iterator[FaultyVFS]:
    faulty = FaultyVFS()
    yield faulty
    faulty.unregister()


def test_only_what_would_be_redone_does_not_wait_for_the_disk(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", vfs=vfs.name)
        await scene.hear()
        for redone, waits in ((False, 1), (True, 0), (True, 0), (False, 1), (True, 0)):
            before = vfs.disk.syncs
            await scene.hear(redone=redone)
            assert vfs.disk.syncs - before == waits
        await store.close()

    run(play())


def test_together_with_something_durable_everything_is(tmp_path: Path, vfs: FaultyVFS) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db", vfs=vfs.name)
        before, batches = vfs.disk.syncs, store.writer.batches
        vfs.disk.fsync_fails = True
        done = await asyncio.gather(scene.hear("kept"), scene.hear("with it", redone=True), return_exceptions=True)
        assert (vfs.disk.syncs, store.writer.batches) == (before + 1, batches)
        assert all(isinstance(one, Exception) for one in done)
        await store.close()

    run(play())


def test_what_was_not_waited_for_is_not_said_to_be_acknowledged(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")
        witness = mark.beside(store.path)
        await scene.hear()
        pos = int(witness.read_text())
        await scene.hear(redone=True)
        assert await store.last_pos() == pos + 1
        assert int(witness.read_text()) == pos  # after a power cut the log may end here, and that is no damage
        await scene.hear()
        assert int(witness.read_text()) == pos + 2
        await store.close()
        store, scene = await staged(tmp_path / "log.db")
        assert len(await scene.texts()) == 3
        await store.close()

    run(play())


@pytest.mark.parametrize("redone", [False, True])
def test_the_event_loop_does_not_wait_for_somebody_elses_lock(tmp_path: Path, redone: bool) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")
        foreign = apsw.Connection(str(store.path))
        foreign.execute("begin immediate")
        waiting = asyncio.ensure_future(scene.hear("patient", redone=redone))
        await asyncio.wait_for(asyncio.sleep(0.05), 1.0)
        assert not waiting.done()
        foreign.execute("rollback")
        foreign.close()
        await waiting
        assert await scene.texts() == ["patient"]
        await store.close()

    run(play())


@pytest.mark.parametrize("redone", [False, True])
def test_a_refused_change_leaves_nothing_behind(tmp_path: Path, redone: bool) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")
        late = Draft(body=heard("too late"), author="person:ada")
        with pytest.raises(Conflict):
            await scene.commit(late, generation=7, redone=redone)
        await scene.hear("in time")
        assert await scene.texts() == ["in time"]
        assert await store.verify() == []
        await store.close()

    run(play())


def test_whoever_gave_up_waiting_holds_nobody_up(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")
        leaving = [asyncio.ensure_future(scene.hear(f"gone {n}")) for n in range(3)]
        await asyncio.sleep(0)
        for one in leaving:
            one.cancel()
        await scene.hear("staying")
        assert (await scene.texts())[-1] == "staying"
        await store.close()

    run(play())


def test_no_position_is_used_twice_after_a_power_cut(tmp_path: Path) -> None:
    """Somebody may have seen the positions that were lost, and asks for what comes behind them."""

    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")
        await scene.hear("kept")
        found = crash_image(store.path, tmp_path / "after")
        for n in range(20):
            await scene.hear(f"lost {n}", redone=True)
        seen = await store.last_pos()
        await store.close()

        store, scene = await staged(found)
        assert await scene.texts() == ["kept"]
        await asyncio.gather(*[scene.hear(f"new {n}") for n in range(5)])
        await scene.hear("last")
        behind = await store.feed(after=seen)
        assert [text_of(entry) for entry in behind] == [*(f"new {n}" for n in range(5)), "last"]
        assert [entry.pos - behind[0].pos for entry in behind] == list(range(6))
        assert await store.verify() == []
        await store.close()

        newest = behind[-1].pos
        store, scene = await staged(found)  # it was closed well: nothing can have been lost
        await scene.hear("after that")
        assert await store.last_pos() == newest + 1
        await store.close()

    run(play())
