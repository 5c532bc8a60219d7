"""Processes that share a home or are killed: one at a time holds the lock, and acknowledged commits are not lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everhold.errors import HomeBusy
from everhold.infra import home_lock
from everhold.stores.sqlite import HomeLock
from tests.stores.home import open_scenario, run_coroutine
from tests.waiting import LIMIT_SECONDS

VICTIM = Path(__file__).with_name("victim.py")


def start(*args: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, str(VICTIM), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


def kill(process: subprocess.Popen[bytes]) -> bytes:
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    return output


def test_a_second_process_is_told_at_once_who_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    really = home_lock._try

    def counted(handle: int) -> bool:
        tries.append(handle)
        return really(handle)

    monkeypatch.setattr(home_lock, "_try", counted)
    first = start("hold", str(tmp_path))
    assert first.stdout is not None
    assert first.stdout.readline() == b"held\n"
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(HomeLock(tmp_path / "lock").acquire)
        try:
            with pytest.raises(HomeBusy, match=str(first.pid)) as busy:
                asking.result(timeout=LIMIT_SECONDS)
            assert len(tries) == 1, "it waited for the other process"
            assert str(first.pid) in busy.value.remedy
            assert first.poll() is None
        finally:
            kill(first)  # were it waited for, the pool would wait for it, too
    with HomeLock(tmp_path / "lock") as held:
        assert held.is_held
        assert (tmp_path / "lock").read_text().strip() == str(os.getpid())


def test_a_lock_is_taken_once_and_free_after_release(tmp_path: Path) -> None:
    lock = HomeLock(tmp_path / "lock").acquire()
    with pytest.raises(HomeBusy):
        HomeLock(tmp_path / "lock").acquire()
    lock.release()
    lock.release()
    HomeLock(tmp_path / "lock").acquire().release()
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_a_home_whose_lock_file_was_replaced_is_still_locked(tmp_path: Path) -> None:
    held = HomeLock(tmp_path / "lock").acquire()
    (tmp_path / "lock").unlink()
    with pytest.raises(HomeBusy, match="its lock file was replaced"):
        HomeLock(tmp_path / "lock").acquire()
    held.release()
    HomeLock(tmp_path / "lock").acquire().release()


def test_a_moved_home_is_still_locked(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    held = HomeLock(tmp_path / "home" / "lock").acquire()
    (tmp_path / "home").rename(tmp_path / "moved")
    with pytest.raises(HomeBusy, match=str(os.getpid())):
        HomeLock(tmp_path / "moved" / "lock").acquire()
    held.release()


def test_a_lock_file_removed_between_opening_and_locking_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patched call is the only way to act at that moment."""
    really = home_lock._try
    calls = 0

    def late(handle: int) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            (tmp_path / "lock").unlink()
        return really(handle)

    monkeypatch.setattr(home_lock, "_try", late)
    with HomeLock(tmp_path / "lock"):
        with pytest.raises(HomeBusy):
            HomeLock(tmp_path / "lock").acquire()


def killed_again_and_again(home: Path, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    acked: list[str] = []
    for life in range(kills):
        victim = start("commit", str(home), str(life))
        assert victim.stdout is not None
        first = victim.stdout.readline().decode()
        assert first, "the victim did not come up"
        time.sleep(chance.random() * 0.15)
        # The kill may cut a line; an incomplete line does not count.
        lines = (first + kill(victim).decode()).splitlines(keepends=True)
        acked += [line.strip() for line in lines if line.endswith("\n")]

    async def look() -> None:
        store, scenario = await open_scenario(home / "log.db")
        texts = await scenario.read_texts("s") + await scenario.read_texts("t")
        assert set(acked) <= set(texts)
        assert len(texts) == len(set(texts))
        for session in "st":
            for speaker in range(20):
                for life in range(kills):
                    mine = [
                        text for text in await scenario.read_texts(session) if text.startswith(f"{life}-{speaker}-")
                    ]
                    assert [int(text.split("-")[2]) for text in mine] == list(range(1, len(mine) + 1))
        assert await store.verify() == []
        await store.close()

    run_coroutine(look())


def test_acknowledged_commits_survive_kill_9(tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, kills=4, seed=1)


@pytest.mark.prove
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(10))
def test_acknowledged_commits_survive_many_kills(tmp_path: Path, seed: int) -> None:
    killed_again_and_again(tmp_path, kills=20, seed=seed)
