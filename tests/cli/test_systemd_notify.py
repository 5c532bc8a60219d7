"""The gateway notifies systemd of its start, its heartbeats and its stop."""

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

from everhold.cli.commands.up import _StopSignals
from everhold.cli.systemd_notify import ServiceNotifier
from everhold.errors import StoreError, StoreFull
from everhold.stores.sqlite import SqliteStore
from tests.cli.command_home import CommandHome, wait_until
from tests.stores.faulty_disk import FaultyVFS
from tests.stores.home import open_scenario, open_store
from tests.waiting import LIMIT_SECONDS

OFTEN = 0.06
"""The watchdog interval of these tests."""
SILENCE = 8 * OFTEN


class ServiceManager:
    """The listening side of $NOTIFY_SOCKET, a real socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def receive(self, seconds: float = LIMIT_SECONDS) -> dict[str, str]:
        self.socket.settimeout(seconds)
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())

    def forget(self) -> None:
        """Discard the notifications so far."""
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.socket.recv(4096):
                pass

    def is_silent(self) -> bool:
        self.forget()
        try:
            self.receive(SILENCE)
        except TimeoutError:
            return True
        return False


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceManager]:
    if request.param == "abstract" and sys.platform != "linux":
        pytest.skip("only Linux has abstract names")
    made = ServiceManager(
        f"@everhold-{os.getpid()}-{tmp_path.name}" if request.param == "abstract" else str(tmp_path / "n")
    )
    yield made
    made.socket.close()


# -- the whole gateway -------------------------------------------------------------------------------------------------


def test_ready_heartbeats_and_stopping_are_notified(command_home: CommandHome, manager: ServiceManager) -> None:
    gateway = command_home.start_gateway(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC=str(int(OFTEN * 1e6)))
    first = manager.receive()
    assert first["READY"] == "1"
    assert "1 agent" in first["STATUS"]
    with urllib.request.urlopen(first["STATUS"].split(" · ")[-1] + "/ready") as page:
        assert page.status == 200, "READY is sent only once the server listens"
    assert [manager.receive() for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
    gateway.signal(signal.SIGTERM)
    heard = manager.receive()
    while "WATCHDOG" in heard:
        heard = manager.receive()
    assert heard["STOPPING"] == "1"
    assert int(heard["EXTEND_TIMEOUT_USEC"]) > 30_000_000
    assert gateway.wait_until_ended() == 0


def test_a_hanging_event_loop_sends_no_heartbeat(command_home: CommandHome, tmp_path: Path) -> None:
    manager = ServiceManager(str(tmp_path / "n"))
    command_home.start_gateway(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC=str(int(OFTEN * 1e6)))
    assert "READY" in manager.receive()
    assert manager.receive() == {"WATCHDOG": "1"}
    free = tmp_path / "free"
    command_home.start_command("send", f"freeze {free}")
    wait_until(manager.is_silent)
    free.touch()
    assert manager.receive() == {"WATCHDOG": "1"}, "the heartbeat returns once the loop continues"


def test_a_refused_configuration_is_never_ready_and_exits_78(command_home: CommandHome, tmp_path: Path) -> None:
    manager = ServiceManager(str(tmp_path / "n"))
    (command_home.path / "config.yaml").write_text("agents: {main: {modle: m}}\n")
    assert command_home.run("up", "--port", "0", NOTIFY_SOCKET=manager.address).code == 78
    assert manager.is_silent()


# -- heartbeats only ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def run_heartbeats(store: SqliteStore, manager: ServiceManager) -> AsyncIterator[asyncio.Task[None]]:
    notify = ServiceNotifier(manager.address, watchdog_seconds=OFTEN)
    task = asyncio.create_task(notify.send_heartbeats(store.ping_writer))
    assert await asyncio.to_thread(manager.receive) == {"WATCHDOG": "1"}
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_hanging_writer_sends_no_heartbeat(tmp_path: Path, manager: ServiceManager) -> None:
    store = open_store(tmp_path / "log.db")
    free = threading.Event()

    def hang(_: apsw.Cursor) -> None:
        free.wait(LIMIT_SECONDS)

    async with run_heartbeats(store, manager):
        stuck = asyncio.ensure_future(store.writer.write(hang))
        # a heartbeat that was already sent may still arrive
        assert True in [await asyncio.to_thread(manager.is_silent) for _ in range(3)]
        free.set()
        await stuck
        assert await asyncio.to_thread(manager.receive) == {"WATCHDOG": "1"}
    await store.close()


async def test_a_broken_writer_sends_no_heartbeat(tmp_path: Path, manager: ServiceManager) -> None:
    vfs = FaultyVFS()
    store = open_store(tmp_path / "log.db", vfs=vfs.name)
    async with run_heartbeats(store, manager) as beat:
        vfs.disk.fsync_fails = True
        with pytest.raises(StoreError):
            await store.writer.write(lambda cur: cur.execute("create table anything(at)"))
        await beat
        assert await asyncio.to_thread(manager.is_silent)
    await store.close()
    vfs.unregister()


async def test_a_lock_of_another_process_does_not_stop_the_heartbeat(tmp_path: Path, manager: ServiceManager) -> None:
    store = open_store(tmp_path / "log.db", patience=0.01)
    other = apsw.Connection(str(tmp_path / "log.db"))
    async with run_heartbeats(store, manager):
        other.execute("begin immediate")
        manager.forget()
        assert await asyncio.to_thread(manager.receive) == {"WATCHDOG": "1"}
        other.execute("rollback")
    other.close()
    await store.close()


async def test_a_full_disk_does_not_stop_the_heartbeat(tmp_path: Path, manager: ServiceManager) -> None:
    """The pulse and a message are committed together, and both are refused because the disk is full."""
    vfs = FaultyVFS()
    store, scenario = await open_scenario(tmp_path / "log.db", vfs=vfs.name)
    together = 0

    async def pulse() -> None:
        nonlocal together
        message = asyncio.ensure_future(scenario.commit_heard())
        await asyncio.sleep(0)
        try:
            await store.ping_writer()
        finally:
            together += isinstance((await asyncio.gather(message, return_exceptions=True))[0], StoreFull)

    vfs.disk.free_bytes = 0
    beat = asyncio.create_task(ServiceNotifier(manager.address, watchdog_seconds=OFTEN).send_heartbeats(pulse))
    assert [await asyncio.to_thread(manager.receive) for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
    assert together >= 2
    beat.cancel()
    await asyncio.gather(beat, return_exceptions=True)
    await store.close()
    vfs.unregister()


# -- what the environment says -----------------------------------------------------------------------------------------


def test_notify_variables_of_another_process_are_ignored() -> None:
    mine = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/bin"}
    assert ServiceNotifier.from_environment(mine) == ServiceNotifier("/run/n", 3.0)
    assert mine == {"PATH": "/bin"}, "a child process does not inherit the variables"
    assert (
        ServiceNotifier.from_environment(
            {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
        ).watchdog_seconds
        == 0
    )
    assert ServiceNotifier.from_environment({"NOTIFY_SOCKET": "vsock:2:1"}) == ServiceNotifier()
    assert ServiceNotifier.from_environment({"WATCHDOG_USEC": "soon"}) == ServiceNotifier()


def test_without_a_notify_socket_nothing_is_sent(tmp_path: Path) -> None:
    ServiceNotifier().send(READY="1")
    ServiceNotifier(str(tmp_path / "gone")).send(READY="1")


def test_the_first_signal_stops_a_loop_without_signal_handlers() -> None:
    class Plain(asyncio.SelectorEventLoop):
        """As on Windows."""

        def add_signal_handler(self, sig: int, callback: object, *args: object) -> None:
            raise NotImplementedError

    async def play() -> tuple[bool, bool]:
        signals = _StopSignals()
        signals.install_handlers()
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
