"""Whoever looks after the gateway hears when it is ready, that it lives and that it stops; nothing that is not so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest

from everhold.cli.commands.up import _Signals
from everhold.cli.notify import Notify
from everhold.errors import StoreError, StoreFull
from everhold.stores.sqlite import SqliteStore
from tests.cli.house import House, until
from tests.stores.faulty import FaultyVFS
from tests.stores.home import opened, staged
from tests.waiting import LIMIT_SECONDS

OFTEN = 0.06
"""Seconds after which a process that says nothing is taken for dead, in these tests."""
SILENCE = 8 * OFTEN


class Manager:
    """The other end of $NOTIFY_SOCKET: a real socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def hear(self, seconds: float = LIMIT_SECONDS) -> dict[str, str]:
        self.socket.settimeout(seconds)
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())

    def forget(self) -> None:
        """Nothing that was said before counts."""
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.socket.recv(4096):
                pass

    def is_silent(self) -> bool:
        self.forget()
        try:
            self.hear(SILENCE)
        except TimeoutError:
            return True
        return False


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    if request.param == "abstract" and sys.platform != "linux":
        pytest.skip("only Linux has abstract names")
    made = Manager(f"@everhold-{os.getpid()}-{tmp_path.name}" if request.param == "abstract" else str(tmp_path / "n"))
    yield made
    made.socket.close()


# -- the whole gateway -------------------------------------------------------------------------------------------------


def test_ready_alive_and_stopping_are_said_when_they_are_so(house: House, manager: Manager) -> None:
    gateway = house.up(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC=str(int(OFTEN * 1e6)))
    first = manager.hear()
    assert first["READY"] == "1"
    assert "1 agent" in first["STATUS"]
    with urllib.request.urlopen(first["STATUS"].split(" · ")[-1] + "/ready") as page:
        assert page.status == 200, "nobody is told before it listens"
    assert [manager.hear() for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
    gateway.signal(signal.SIGTERM)
    heard = manager.hear()
    while "WATCHDOG" in heard:
        heard = manager.hear()
    assert heard["STOPPING"] == "1"
    assert int(heard["EXTEND_TIMEOUT_USEC"]) > 30_000_000
    assert gateway.end() == 0


def test_a_loop_that_hangs_is_not_alive(house: House, tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "n"))
    house.up(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC=str(int(OFTEN * 1e6)))
    assert "READY" in manager.hear()
    assert manager.hear() == {"WATCHDOG": "1"}
    free = tmp_path / "free"
    house.begin("send", f"freeze {free}")
    until(manager.is_silent)
    free.touch()
    assert manager.hear() == {"WATCHDOG": "1"}, "and it is again once it goes on"


def test_a_refused_configuration_is_never_ready_and_ends_with_78(house: House, tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "n"))
    (house.path / "config.yaml").write_text("agents: {main: {modle: m}}\n")
    assert house.run("up", "--port", "0", NOTIFY_SOCKET=manager.address).code == 78
    assert manager.is_silent()


# -- the beat alone ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def beating(store: SqliteStore, manager: Manager) -> AsyncIterator[asyncio.Task[None]]:
    notify = Notify(manager.address, watchdog_seconds=OFTEN)
    task = asyncio.create_task(notify.beat(store.pulse))
    assert await asyncio.to_thread(manager.hear) == {"WATCHDOG": "1"}
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_writer_that_hangs_is_not_alive(tmp_path: Path, manager: Manager) -> None:
    store = opened(tmp_path / "log.db")
    free = threading.Event()

    def hang(_: apsw.Cursor) -> None:
        free.wait(LIMIT_SECONDS)

    async with beating(store, manager):
        stuck = asyncio.ensure_future(store.writer.write(hang))
        # what was on its way may still arrive
        assert True in [await asyncio.to_thread(manager.is_silent) for _ in range(3)]
        free.set()
        await stuck
        assert await asyncio.to_thread(manager.hear) == {"WATCHDOG": "1"}
    await store.close()


async def test_a_broken_writer_is_not_alive(tmp_path: Path, manager: Manager) -> None:
    vfs = FaultyVFS()
    store = opened(tmp_path / "log.db", vfs=vfs.name)
    async with beating(store, manager) as beat:
        vfs.disk.fsync_fails = True
        with pytest.raises(StoreError):
            await store.writer.write(lambda cur: cur.execute("create table anything(at)"))
        await beat
        assert await asyncio.to_thread(manager.is_silent)
    await store.close()
    vfs.unregister()


async def test_somebody_elses_lock_is_no_reason_to_start_anew(tmp_path: Path, manager: Manager) -> None:
    store = opened(tmp_path / "log.db", patience=0.01)
    other = apsw.Connection(str(tmp_path / "log.db"))
    async with beating(store, manager):
        other.execute("begin immediate")
        manager.forget()
        assert await asyncio.to_thread(manager.hear) == {"WATCHDOG": "1"}
        other.execute("rollback")
    other.close()
    await store.close()


async def test_nor_is_a_full_disk(tmp_path: Path, manager: Manager) -> None:
    """The pulse meets somebody's message there that finds no room: they are refused together."""
    vfs = FaultyVFS()
    store, scene = await staged(tmp_path / "log.db", vfs=vfs.name)
    together = 0

    async def pulse() -> None:
        nonlocal together
        message = asyncio.ensure_future(scene.hear())
        await asyncio.sleep(0)
        try:
            await store.pulse()
        finally:
            together += isinstance((await asyncio.gather(message, return_exceptions=True))[0], StoreFull)

    vfs.disk.room = 0
    beat = asyncio.create_task(Notify(manager.address, watchdog_seconds=OFTEN).beat(pulse))
    assert [await asyncio.to_thread(manager.hear) for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
    assert together >= 2
    beat.cancel()
    await asyncio.gather(beat, return_exceptions=True)
    await store.close()
    vfs.unregister()


# -- what the environment says -----------------------------------------------------------------------------------------


def test_what_was_meant_for_another_process_is_not_answered() -> None:
    mine = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/bin"}
    assert Notify.take(mine) == Notify("/run/n", 3.0)
    assert mine == {"PATH": "/bin"}, "nor will a child of ours answer for us"
    assert (
        Notify.take({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}).watchdog_seconds == 0
    )
    assert Notify.take({"NOTIFY_SOCKET": "vsock:2:1"}) == Notify()
    assert Notify.take({"WATCHDOG_USEC": "soon"}) == Notify()


def test_nobody_listens_and_nothing_happens(tmp_path: Path) -> None:
    Notify().say(READY="1")
    Notify(str(tmp_path / "gone")).say(READY="1")


def test_where_a_loop_knows_no_signals_the_first_one_still_stops_it() -> None:
    class Plain(asyncio.SelectorEventLoop):
        """As on Windows."""

        def add_signal_handler(self, sig: int, callback: object, *args: object) -> None:
            raise NotImplementedError

    async def play() -> tuple[bool, bool]:
        signals = _Signals()
        signals.install()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(signals.first.wait(), LIMIT_SECONDS)
        return signals.first.is_set(), signals.second.is_set()

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with asyncio.Runner(loop_factory=Plain) as runner:
            assert runner.run(play()) == (True, False)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
